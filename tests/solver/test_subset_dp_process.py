"""Subsets solved in a process of their own: its messages, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt import Objective, Pipeline, Status, VerificationError, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.destructive_bounds import feasibility_model
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.bounds.subset_selection import dp_subset_bound
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.engines.engine import Link
from ppopt.solver.parameters import SubsetParams
from ppopt.solver.result import Progress
from ppopt.solver.subset_dp_process import (
    PAUSE,
    BestValues,
    SubsetDPProxy,
    SubsetProblem,
    _Exchange,
)
from tests.cli.cli_run import process
from tests.cli.terminal import of_session
from tests.clock import HANGS, wait_until
from tests.factories.instances import V
from tests.factories.searches import Begun, begun, waiting

PROBLEM = Problem(V, Objective.MAKESPAN, BackwardKind.SPLIT)
LONG = Problem(
    Pipeline(
        stages=16,
        batches=32,
        chunks=2,
        placement="interleaved",
        forward=11,
        backward_input=10,
        weight=7,
        p2p=1,
        mem_limit=10,
    ),
    Objective.MAKESPAN,
    BackwardKind.SPLIT,
)
"""What one device of this needs takes longer to find out than any test waits."""


@contextmanager
def beside(search: Begun) -> Iterator[SubsetDPProxy]:
    """The process of a search, not started yet."""
    remote = SubsetDPProxy(SubsetDP(search.incumbent.problem, SubsetParams()))
    try:
        yield remote
    finally:
        remote.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process that is started."""
    processes: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr("ppopt.solver.child_process.subprocess.Popen", noted)
    return processes


def test_a_search_hears_of_bounds_wherever_it_asks_for_its_end(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """The last device, which has the middle of the V, needs 595."""
    search = begun(PROBLEM)
    with beside(search) as process:
        process.begin(search.incumbent, search.whole)
        wait_until(lambda: search.budget().search_over or search.incumbent.bound.value == 595)
        assert search.incumbent.bound.certificate == Certificate(Argument.DEVICES, (3,))
    (server,) = started
    assert server.returncode is not None


def test_a_search_goes_on_without_them(started: list[subprocess.Popen[bytes]]) -> None:
    """Their process may be ended for the memory that it takes, by others."""
    search = begun(LONG)
    with beside(search) as process:
        process.begin(search.incumbent, search.whole)
        (server,) = started
        server.kill()
        server.wait()
        assert process._engine is not None
        while process._engine.busy:
            assert not search.budget().search_over
            time.sleep(PAUSE)
        assert not search.budget().search_over and process.active


@pytest.mark.slow
def test_where_no_process_can_be_started_they_are_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: "nowhere/python")
    search = begun(PROBLEM)
    with beside(search) as process:
        process.begin(search.incumbent, search.whole)
        assert not process.active
    result = solve(V, time_limit=600, workers=2)
    assert (result.status, result.value) == (Status.OPTIMAL, 595)


def test_a_process_that_fails_leaves_them_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppopt.solver.child_process._CODE", "import nothing_of_this_name")
    search = begun(PROBLEM)
    with beside(search) as process:
        process.begin(search.incumbent, search.whole)
        wait_until(lambda: search.budget().search_over or not process.active)
        process.begin(search.incumbent, search.whole)
        assert not process.active


def test_the_path_of_modules_may_hold_what_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some put paths there that are not text: Python passes over them."""
    monkeypatch.setattr(sys, "path", [tmp_path, "", *sys.path])
    monkeypatch.chdir(Path(ppopt.__file__).parent.parent)
    search = begun(PROBLEM)
    with beside(search) as process:
        process.begin(search.incumbent, search.whole)
        wait_until(lambda: search.budget().search_over or search.incumbent.bound.value == 595)


@pytest.mark.slow
def test_one_worker_has_no_process(started: list[subprocess.Popen[bytes]]) -> None:
    """Up to a turn that follows those of the subsets."""
    phases: list[str] = []

    def follows(state: Progress) -> bool:
        phases.append(state.phase)
        return state.phase == "double justification"

    solve(LONG.pipeline, time_limit=6000, workers=1, stop=follows)
    assert {SubsetDP.name, "double justification"} <= set(phases)
    assert not started


def task(problem: Problem, value: int, bound: Bound) -> SubsetProblem:
    return SubsetProblem(problem, 600.0, BestValues(value, bound))


def test_both_sides_know_of_the_better_one() -> None:
    """Values go to the process, bounds both ways; nothing is sent twice."""
    ours, theirs = list[BestValues](), list[BestValues]()
    search, remote = begun(PROBLEM), waiting(PROBLEM)
    remote.incumbent.value = search.incumbent.value
    assert search.incumbent.value is not None
    here = _Exchange(search.incumbent, lambda: theirs[-1] if theirs else None, ours.append)
    there = _Exchange(remote.incumbent, lambda: ours[-1] if ours else None, theirs.append)
    search.incumbent.value -= 100
    here()
    there()
    assert remote.incumbent.value == search.incumbent.value
    assert (len(ours), len(theirs)) == (1, 0)
    time.sleep(2 * PAUSE)
    remote.incumbent.raise_bound(dp_subset_bound((3,), 590))
    there()
    here()
    assert search.incumbent.bound.value == 590
    assert (len(ours), len(theirs)) == (1, 1)


def test_a_bound_that_contradicts_a_schedule_reaches_the_user() -> None:
    """A bound above a schedule is a bug, whichever process finds it."""
    search = begun(PROBLEM)
    with beside(search) as process:
        process.begin(search.incumbent, search.whole)
        assert process._engine is not None and search.incumbent.value is not None
        wrong = Bound(search.incumbent.value + 1, "", Certificate(Argument.SEARCH))
        process._engine.tell(0, BestValues(search.incumbent.value, wrong))
        with pytest.raises(VerificationError, match="lies above a schedule"):
            wait_until(lambda: search.budget().search_over)


def test_the_process_receives_values_and_sends_bounds() -> None:
    """Told that there is a schedule of 595 they have nothing left to ask, and end."""
    low = dp_subset_bound((0,), 594)
    link = Link(lambda _: None, None, lambda: BestValues(595, low))
    values = task(PROBLEM, 700, low).perform(link).result
    assert (values.value, values.bound.value) == (595, 595)
    assert values.bound.certificate.devices == (3,)


def test_a_bound_found_by_the_search_needs_no_process() -> None:
    proved = BestValues(9000, Bound(9000, "", Certificate(Argument.SEARCH)))
    first = Bound(1, "", Certificate(Argument.WORK, (0,)))
    done = task(LONG, 9000, first).perform(Link(lambda _: None, None, lambda: proved))
    assert done.result.bound.value == 9000


def test_what_asks_whether_it_is_enough_may_fail() -> None:
    """CP-SAT is stopped, which would run on for longer than a test waits."""

    def fail() -> bool:
        raise RuntimeError("seen")

    built = feasibility_model(LONG, int(1.1 * begun(LONG).incumbent.bound.value))
    with pytest.raises(RuntimeError, match="seen"):
        cpsat.search(built, SolverLimits(6000, 1, 0, enough=fail), lambda _value, _bound: None)
    wait_until(lambda: all("(solve)" not in thread.name for thread in threading.enumerate()))


def test_cp_sat_stops_when_there_is_enough() -> None:
    """Which the search may hear of from elsewhere."""
    looks = count()
    limits = SolverLimits(6000, 1, 0, enough=lambda: next(looks) >= 4)
    target = int(1.1 * begun(LONG).incumbent.bound.value)
    outcome = cpsat.search(feasibility_model(LONG, target), limits, lambda _value, _bound: None)
    assert not outcome.ended
    assert outcome.work < 60, "of 6000 seconds"


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    """The signal goes to the whole group, as a terminal sends it."""
    path = tmp_path / "long.json"
    line = (
        "solve --stages 16 --batches 32 --chunks 2 --placement interleaved --forward-times 11 "
        "--backward-times 17 --weight-times 7 --p2p-time 1 --mem-limit 10 --workers 2 "
        f"--time-limit 600 -o {path}"
    )
    command = process(line, start_new_session=True)
    try:
        wait_until(lambda: len(of_session(command.pid)) > 1)
        time.sleep(1)
        os.killpg(command.pid, signal.SIGINT)
        command.communicate(timeout=HANGS)
        wait_until(lambda: not of_session(command.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
    assert command.returncode == 0
    assert path.exists()
