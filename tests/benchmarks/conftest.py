"""Tables of the benchmarks, printed at the end."""

import pytest

TABLES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def tables(pytestconfig: pytest.Config) -> list[str]:
    """Texts to print after the tests."""
    return pytestconfig.stash.setdefault(TABLES, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the tables, in Markdown."""
    for text in config.stash.get(TABLES, []):
        terminalreporter.write_line(f"\n{text}")
