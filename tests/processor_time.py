"""Processor time of every test, processes that it started and waited for included.

`pytest -n 2 --processor-times FILE` writes the seconds of every test to a JSON file. Every run
prints the sum, which hardly depends on how busy the machine is.
"""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_PROPERTY = "processor seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the times."""
    parser.addoption("--processor-times", metavar="FILE", help="JSON file of seconds per test")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the processor time at the start of a test and its fixtures."""
    item.stash[_START] = _spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the time of the whole test to its last report."""
    report = yield
    if call.when == "teardown":
        report.user_properties.append((_PROPERTY, round(_spent() - item.stash[_START], 3)))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the sum, and write the times."""
    times: dict[str, float] = defaultdict(float)
    for report in terminalreporter.getreports(""):
        for name, seconds in report.user_properties:
            if name == _PROPERTY:
                times[report.nodeid] += seconds
    terminalreporter.write_line(f"processor time of the tests: {sum(times.values()):.0f} s")
    if file := terminalreporter.config.getoption("--processor-times"):
        longest = sorted(times.items(), key=lambda pair: -pair[1])
        Path(file).write_text(json.dumps(dict(longest), indent=1), encoding="utf-8")


_START = pytest.StashKey[float]()


def _spent() -> float:
    """Processor seconds of this process and of the children that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
