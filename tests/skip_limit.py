"""A pytest plugin: fail the session when more tests are skipped than `--max-skips` allows.

A skipped test proves nothing; in CI, where everything that tests need is installed, only few may be.
Loaded with ``-p skip_limit`` (see the Makefile), so that the session still closes on pytest's own summary line.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--max-skips",
        type=int,
        default=-1,
        metavar="N",
        help="fail when more than N tests are skipped (negative: no limit)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_SkipLimit(config.getoption("--max-skips")), "skip-limit")


class _SkipLimit:
    """Counts skipped tests and fails the session when there are too many."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.add(report.nodeid)

    def exceeded(self) -> bool:
        return 0 <= self.limit < len(self.skipped)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.exceeded() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.exceeded():
            terminalreporter.section("too many skipped tests", red=True)
            terminalreporter.line(
                f"{len(self.skipped)} tests were skipped, at most {self.limit} may be (--max-skips):"
            )
            for nodeid in sorted(self.skipped):
                terminalreporter.line(f"  {nodeid}")
