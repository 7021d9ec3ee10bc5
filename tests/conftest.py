"""How a test run begins, and what it says at its end."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests import browser
from tests.browser import View

NO_TORCHTITAN = (
    "tests with torchtitan and megatron-core were skipped: pip install spmd_types==0.2.3 tyro, and "
    "pip install --no-deps torchtitan==0.3.0 megatron-core==0.16.1"
)


@pytest.fixture(scope="session")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """One browser for all tests of pages."""
    yield from browser.browser(tmp_path_factory.mktemp("browser"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker that is done takes tests from the other: the last ones are long."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415  only with pytest-xdist

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_configure() -> None:
    """Signals reach what the tests start, also where the run itself was started to ignore them.

    Under `nohup` the run ignores SIGHUP still, by a handler that what it starts does not inherit.
    Commands that they start keep compiled modules, which take a third of a short command's time.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_finish() -> None:
    """The garbage collector need not look again at thousands of tests and their modules."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly where the page could not be tested."""
    if browser.found() is None:
        terminalreporter.section("no browser", red=True, bold=True)
        terminalreporter.write_line(browser.ABSENT, red=True, bold=True)
    if find_spec("torchtitan") is None:
        terminalreporter.section("no torchtitan", red=True, bold=True)
        terminalreporter.write_line(NO_TORCHTITAN, red=True, bold=True)
