"""Settings: grammar, names, errors, what differs."""

from __future__ import annotations

import pytest

from hcomm import ConfigError, config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("256KB", 262144),
        ("25MB", 26214400),
        ("1GB", 1073741824),
        ("1.5 MiB", 1572864),
        ("2k", 2048),
        ("7B", 7),
    ],
)
def test_sizes_are_powers_of_two(text: str, expected: int) -> None:
    assert config.parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("300", 300.0), ("0.5", 0.5), ("500ms", 0.5), ("5min", 300.0), ("1h", 3600.0)]
)
def test_durations_are_seconds(text: str, expected: float) -> None:
    assert config.parse_seconds(text) == expected


def test_defaults() -> None:
    settings = config.load({})
    assert settings.seconds("INIT_TIMEOUT") == 300
    assert settings.seconds("TIMEOUT") == 300
    assert settings.text("TRANSPORT") == "auto"
    assert settings.size("BUFFER_SIZE") == 16 << 20
    assert settings.changed() == []


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("HCOMM_TIMEOUT", "soon"),
        ("HCOMM_TIMEOUT", "-1"),
        ("HCOMM_TIMEOUT", "nan"),
        ("HCOMM_BUFFER_SIZE", "big"),
        ("HCCL_BUFFER_SIZE", "0"),
        ("HCOMM_TRANSPORT", "rdma"),
        ("HCOMM_DETERMINISTIC", "maybe"),
    ],
)
def test_what_does_not_parse_names_the_variable(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}='{text}' is not understood: expected "):
        config.load({variable: text})


def test_aliases_and_their_order() -> None:
    assert config.load({"HCCL_ALLREDUCE_ALGO": "ring"}).algorithm("all_reduce") == "ring"
    both = {"HCCL_ALLREDUCE_ALGO": "ring", "HCOMM_ALLREDUCE_ALGO": "star"}
    assert config.load(both).algorithm("all_reduce") == "star"
    assert config.load({"HCOMM_ALL_GATHER_ALGO": "ring"}).algorithm("all_gather") == "ring"
    assert config.load({"HCCL_BUFFER_SIZE": "1MB"}).size("BUFFER_SIZE") == 1048576


def test_changed_lists_the_variable_that_was_used_and_hides_secrets() -> None:
    changed = config.load(
        {"HCCL_DEBUG": "INFO", "HCOMM_JOB_SECRET": "hush", "HCOMM_TIMEOUT": "300"}
    ).changed()
    assert [(entry.variable, entry.value, entry.default) for entry in changed] == [
        ("HCOMM_JOB_SECRET", "(set)", "(none)"),
        ("HCCL_DEBUG", "info", "off"),
    ]


def test_arguments_win() -> None:
    settings = config.load({"HCOMM_TRANSPORT": "shm"}).replace(TRANSPORT="tcp", TIMEOUT=None)
    assert settings.text("TRANSPORT") == "tcp"
    assert settings.seconds("TIMEOUT") == 300


def test_unknown_variables_are_named_once_with_the_closest_known_one() -> None:
    environ = {"HCOMM_TIMOUT": "3", "HCOMM_ZZZZZZZZ": "1", "HCOMM_TIMEOUT": "3", "PATH": "/bin"}
    with pytest.warns(
        RuntimeWarning, match=r"HCOMM_TIMOUT \(did you mean HCOMM_TIMEOUT\?\), HCOMM_ZZZZZZZZ$"
    ) as found:
        config.warn_unknown(environ)
    assert len(found) == 1


def test_every_setting_has_help_and_its_own_variables() -> None:
    variables = [variable for setting in config.SETTINGS for variable in setting.variables]
    assert len(variables) == len(set(variables))
    assert all(setting.help.endswith(".") for setting in config.SETTINGS)
