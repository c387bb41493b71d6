"""The table of all cases, shown when they have been played."""

from __future__ import annotations

import pytest

from tests.chaos.table import Table

_TABLE = pytest.StashKey[Table]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TABLE] = Table()


@pytest.fixture(scope="session")
def chaos_table(request: pytest.FixtureRequest) -> Table:
    return request.config.stash[_TABLE]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[_TABLE].lines():
        terminalreporter.write_line(line)
