"""The script that times the tests: its tables, and the plugin that writes the time of a test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import tiers
from benchmarks.tiers import Tier, Timed

pytestmark = pytest.mark.slow


def test_folders_stand_by_their_time_and_the_whole_run_last() -> None:
    fast = Tier([Timed("tests/a/test_a.py::b", 1.0), Timed("tests/b/test_b.py::c[x/y]", 4.0)], 9.0)
    slow = Tier([Timed("tests/a/test_a.py::c", 30.0), Timed("tests/a/test_b.py::d", 10.0)], 50.0)
    assert list(tiers.table({"fast": fast, "slow": slow}))[2:] == [
        "| tests/a | 1 | 1 | 2 | 40 |",
        "| tests/b | 1 | 4 |  |  |",
        "| the whole run | 2 | 9 | 2 | 50 |",
    ]
    assert list(tiers.slowest(slow, 1))[2:] == ["| `a/test_a.py::c` | 30.0 |"]


def test_the_plugin_writes_what_every_test_takes(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPOPT_TEST_TIMES", str(tmp_path))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    times = iter([(1.0, 0.5, 0.0, 0.0, 9.0), (1.0, 0.5, 0.25, 0.0, 9.0),
                  (2.0, 0.5, 0.25, 0.0, 9.0), (3.0, 1.0, 1.25, 0.5, 9.0)])  # fmt: skip
    monkeypatch.setattr(tiers, "os", SimpleNamespace(environ=os.environ, times=lambda: next(times)))
    pytester.makepyfile("def test_first(): pass\ndef test_second(): pass")
    pytester.runpytest("-p", "benchmarks.tiers").assert_outcomes(passed=2)
    lines = (tmp_path / "one").read_text().splitlines()
    first, second = (Timed(*json.loads(line)) for line in lines)
    assert first.test.endswith("::test_first")
    assert (first.seconds, second.seconds) == (0.25, 3.0)
