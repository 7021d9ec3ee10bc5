"""A re-check ends by the clock and by Ctrl-C, also while CP-SAT runs."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from ortools.sat.python import cp_model

from ppopt import Pipeline, Schedule, Verdict, recheck, solve
from ppopt.cli.streams import INTERRUPTED
from ppopt.problem.backward_kind import BackwardKind
from ppopt.rechecker import Recheck, cp_sat
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.refute import refute
from tests.cli.cli_run import run
from tests.clock import HANGS

HARD = Pipeline(
    stages=8, batches=64, forward=10419, backward_input=10207, weight=7715, p2p=408, mem_limit=6
)
"""A question that takes CP-SAT minutes: is there a schedule of makespan below 2120000?"""


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Stuck(cp_model.CpSolver):
    """A solver that ends only when it is told to, as in a long presolve."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = threading.Event()

    def solve(self, *_: Any) -> cp_model.CpSolverStatus:
        assert self.stopped.wait(HANGS)
        return cp_model.UNKNOWN

    def stop_search(self) -> None:
        self.stopped.set()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp_model, "CpSolver", Stuck)


@pytest.mark.usefixtures("stuck")
def test_the_clock_ends_a_run_that_overruns_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    instants = iter([5.0, 5.1, 5.2])
    monkeypatch.setattr(cp_sat, "monotonic", lambda: next(instants))
    status, solver = cp_sat.run(cp_model.CpModel(), 0.2, 1, 0, instants=False)
    assert status == cp_model.UNKNOWN
    assert solver.parameters.max_time_in_seconds < 0.2
    assert solver.stopped.is_set()
    assert next(instants, None) is None


@pytest.mark.usefixtures("stuck")
def test_ctrl_c_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed at the second look at the clock; the first one sets the time limit."""
    looks = iter([lambda: 0.0, press])
    monkeypatch.setattr(cp_sat, "monotonic", lambda: next(looks)())  # noqa: PLW0108  one a look
    with pytest.raises(KeyboardInterrupt):
        cp_sat.run(cp_model.CpModel(), 600, 1, 0, instants=False)


@pytest.mark.usefixtures("stuck")
@pytest.mark.parametrize("runs", [True, False])
def test_ctrl_c_as_a_run_begins_leaves_no_thread(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed after the thread has begun to solve, or before it runs: it then does not solve."""
    threads: list[threading.Thread] = []
    start, solving = threading.Thread.start, threading.Event()
    solve = Stuck.solve

    def watched(solver: Stuck, *arguments: Any) -> Any:
        solving.set()
        return solve(solver, *arguments)

    def interrupted_start(thread: threading.Thread) -> None:
        threads.append(thread)
        if runs:
            start(thread)
            assert solving.wait(HANGS)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stuck, "solve", watched)
    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        cp_sat.run(cp_model.CpModel(), 600, 1, 0, instants=False)
    if not runs:
        start(threads[0])
    threads[0].join(HANGS)
    assert not threads[0].is_alive() and solving.is_set() == runs


def test_ctrl_c_while_cp_sat_runs_leaves_no_thread_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed at the first look at the clock after CP-SAT has begun."""
    begun = threading.Event()
    solve = cp_model.CpSolver.solve

    def noted(solver: cp_model.CpSolver, *arguments: Any) -> cp_model.CpSolverStatus:
        begun.set()
        return solve(solver, *arguments)

    def look() -> float:
        if begun.is_set():
            press()
        return 0.0

    monkeypatch.setattr(cp_model.CpSolver, "solve", noted)
    monkeypatch.setattr(cp_sat, "monotonic", look)
    claim = Claim(HARD, False, BackwardKind.SPLIT, 2_120_000)
    with pytest.raises(KeyboardInterrupt):
        refute(claim, 600, 1, 0, lambda _: None)
    assert [thread.name for thread in threading.enumerate() if "(solve)" in thread.name] == []


@pytest.fixture(scope="module")
def solved_schedule() -> Schedule:
    """A schedule whose bound takes the rules of several devices."""
    schedule = solve(Pipeline(stages=4, batches=8, p2p=1, mem_limit=2), workers=1).schedule
    assert schedule is not None
    return schedule


def test_ctrl_c_leaves_a_bound_undecided(solved_schedule: Schedule) -> None:
    """Pressed as it says how many devices it looks at."""
    rechecked = recheck(solved_schedule, workers=1, progress=lambda _: press())
    assert (rechecked.verdict, rechecked.reason) == (Verdict.UNDECIDED, "stopped early")


def test_a_file_is_verified_all_the_same(
    solved_schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved_schedule.to_json(tmp_path / "found.json")
    monkeypatch.setattr("ppopt.rechecker.partial_schedules.applies", lambda _: press() or False)
    ran = run(f"verify {tmp_path / 'found.json'} --bound --json")
    assert ran.code == 4
    assert INTERRUPTED not in ran.err
    output = json.loads(ran.out)
    assert output["verified"] is True
    assert output["bound"]["verdict"] == "not confirmed"
    assert output["bound"]["reason"] == "stopped early"


def test_time_counts_from_the_instant_that_is_given(
    solved_schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 seconds since 40 seconds ago 60 are left."""
    limits: list[float] = []

    def check(_: Claim, seconds: float, *__: object) -> Recheck:
        limits.append(seconds)
        return Recheck(Verdict.UNDECIDED, "", ())

    monkeypatch.setattr("ppopt.rechecker.check", check)
    monkeypatch.setattr("ppopt.rechecker.monotonic", lambda: 1000.0)
    recheck(solved_schedule, time_limit=100, began=960.0)
    recheck(solved_schedule, time_limit=100)
    assert limits == [60, 100]
