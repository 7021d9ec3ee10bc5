"""What the test run says at its end."""

from __future__ import annotations

from typing import Any

from tests import browser


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly where the page could not be tested."""
    if browser.found() is None:
        terminalreporter.section("no browser", red=True, bold=True)
        terminalreporter.write_line(browser.ABSENT, red=True, bold=True)
