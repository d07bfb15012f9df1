"""Do all ranks have the same parameters? Found out before the first gradient is exchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hcomm.communicator import Communicator
from hcomm.errors import CollectiveMismatch

Named = tuple[str, torch.nn.Parameter]


def named(parameters: Iterable[Any]) -> list[Named]:
    """Parameters with names, from `model.parameters()` or `model.named_parameters()`; each parameter once.

    Raises:
        TypeError: something else is among them.
    """
    found: dict[int, Named] = {}
    for index, item in enumerate(parameters):
        name, parameter = item if isinstance(item, tuple) and len(item) == 2 else (f"#{index}", item)
        if not isinstance(parameter, torch.Tensor):
            raise TypeError(
                f"expected parameters, or pairs of name and parameter; item {index} is a {type(parameter).__name__}"
            )
        found.setdefault(id(parameter), (str(name), parameter))  # type: ignore[arg-type]
    return list(found.values())


def name_of(dtype: torch.dtype) -> str:
    """An element type as hcomm calls it."""
    return str(dtype).removeprefix("torch.")


def floating(dtype: object) -> str | None:
    """The name of a type to add gradients in; None for None.

    Raises:
        ValueError: it is no floating type of 16 to 64 bits.
    """
    if dtype is None:
        return None
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ValueError(f"comm_dtype must be a floating type of torch of 16 to 64 bits, not {dtype!r}")
    return name_of(dtype)


def describe(parameters: Sequence[Named]) -> list[list[Any]]:
    """[name, shape, type, strides] of each."""
    return [[name, list(p.shape), name_of(p.dtype), list(p.stride())] for name, p in parameters]


def check_alike(group: Communicator, parameters: Sequence[Named], settings: dict[str, Any]) -> None:
    """Compare parameters (order, names, shapes, types, strides) and settings over all ranks. Collective.

    Raises:
        CollectiveMismatch: on every rank, the same text: the first parameter or setting that differs, and how.
    """
    mine = json.dumps([describe(parameters), settings], sort_keys=True).encode()
    digest = hashlib.sha256(mine).digest() + len(mine).to_bytes(8, "little")
    digests = group.all_gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8)).reshape(group.size, -1)
    if bool((digests == digests[0]).all()):
        return
    lengths = [int.from_bytes(bytes(row[32:].tolist()), "little") for row in digests]
    texts = group.all_gather(torch.frombuffer(bytearray(mine), dtype=torch.uint8), sizes=lengths)
    accounts = [json.loads(bytes(text.tolist())) for text in texts.split(lengths)]
    other = next(rank for rank in range(group.size) if accounts[rank] != accounts[0])
    different = tuple(rank for rank in range(group.size) if accounts[rank] != accounts[0])
    raise CollectiveMismatch(
        f"ranks have different parameters{group._in_group()}: {_difference(accounts[0], accounts[other], other)}",
        different,
    )


def _difference(first: Any, second: Any, other: int) -> str:
    """The first difference between the accounts of rank 0 and of another."""
    for index, (a, b) in enumerate(zip(first[0], second[0], strict=False)):
        if a != b:
            return f"parameter {index} is {_words(a, b)} on rank 0, but {_words(b, a)} on rank {other}"
    counts = len(first[0]), len(second[0])
    if counts[0] != counts[1]:
        longer, owner = (first[0], 0) if counts[0] > counts[1] else (second[0], other)
        extra = longer[min(counts)]
        return (
            f"rank 0 has {counts[0]} parameters, rank {other} has {counts[1]}; the first that only rank {owner} has "
            f"is parameter {min(counts)}, {_words(extra, extra)}"
        )
    for key, value in first[1].items():
        if second[1].get(key) != value:
            return f"{key} is {value!r} on rank 0, but {second[1].get(key)!r} on rank {other}"
    return "their settings differ"


def _words(parameter: list[Any], other: list[Any]) -> str:
    """A parameter in words; strides only where nothing else differs."""
    name, shape, dtype, strides = parameter
    text = f"'{name}' with shape {tuple(shape)} and type {dtype}"
    return (
        f"{text} and strides {tuple(strides)}" if parameter[:3] == other[:3] and parameter != other else text
    )
