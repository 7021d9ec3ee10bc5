"""How a test run begins, and what it says at its end."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import browser, processor_time
from tests.browser import View
from tests.tiers import MULTIPLE

if TYPE_CHECKING:
    from ppopt.solver.choices.process_pool import SearchEngine

FAST, WHOLE = 25, 200
"""Examples of every property that states no number of its own: in the fast tier, and where slow
tests run."""


@pytest.fixture(scope="session")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """One browser for all tests of pages."""
    yield from browser.browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(autouse=True)
def _no_cached_schedules() -> None:
    """Make the schedules of strategies again: tests plant mistakes in what they are made of."""
    if (module := sys.modules.get("ppopt.strategies.schedules")) is not None:
        module.clear_cache()


@pytest.fixture(autouse=True)
def short_polishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches do not improve their best schedules: what a proof leaves open takes long.

    A file whose tests look at what is improved has a fixture of this name that changes nothing.
    """
    if (module := sys.modules.get("ppopt.solver.choices.search")) is not None:
        monkeypatch.setattr(module.ConfigurationSearch, "_improve_before", lambda *_: None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker that is done takes tests from the other: the last ones are long."""
    from xdist.scheduler import WorkStealingScheduling  # noqa: PLC0415  only with pytest-xdist

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_configure(config: pytest.Config) -> None:
    """Signals reach what the tests start, also where the run itself was started to ignore them.

    Properties draw more examples where slow tests run, too. None has a deadline: the machine may be
    busy.
    Under `nohup` the run ignores SIGHUP still, by a handler that what it starts does not inherit.
    Commands that they start keep compiled modules, which take a third of a short command's time.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    drawn = MULTIPLE * (FAST if config.option.markexpr == "not slow" else WHOLE)
    settings.register_profile("tests", deadline=None, max_examples=drawn)
    settings.load_profile("tests")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Every run measures the processor time of its tests."""
    pluginmanager.register(processor_time)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Mark the tests of files that may need a package of the extra `test-all`: see `packages`."""
    for item in items:
        if hasattr(item.module, "needed"):
            item.add_marker("extra")


def pytest_collection_finish() -> None:
    """The garbage collector need not look again at thousands of tests and their modules.

    At Python's threshold of 700 new objects it takes 5 % of the time of searches.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly what was not tested, a line for each reason. A file may be skipped as a whole."""
    skipped: dict[str, Counter[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        thing = "test" if isinstance(report, pytest.TestReport) else "file"
        skipped.setdefault(reason, Counter())[thing] += 1
    if skipped:
        terminalreporter.section("not tested", red=True, bold=True)
    for reason, counts in sorted(skipped.items()):
        counted = ", ".join(
            f"{count} {thing}{'s' * (count > 1)}" for thing, count in sorted(counts.items())
        )
        terminalreporter.write_line(f"{counted}: {reason}", red=True, bold=True)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[SearchEngine]:
    """Engines that searches start, at once."""
    from ppopt.solver.choices import process_pool  # noqa: PLC0415  only where a test needs it

    engines: list[SearchEngine] = []
    own = process_pool.SearchEngine

    def start(jobs: int) -> SearchEngine:
        engines.append(own(jobs))
        return engines[-1]

    monkeypatch.setattr(process_pool, "SearchEngine", start)
    monkeypatch.setattr(process_pool, "WARM_UP", 0.0)
    return engines
