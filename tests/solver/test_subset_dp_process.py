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
from multiprocessing import Pipe
from multiprocessing.connection import Connection
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
from ppopt.solver.parameters import SubsetParams
from ppopt.solver.result import Progress
from ppopt.solver.subset_dp_process import (
    PAUSE,
    BestValues,
    SubsetDPProxy,
    SubsetProblem,
    _Link,
    serve,
)
from tests.cli.cli_run import process
from tests.cli.terminal import of_session
from tests.clock import HANGS, wait_until
from tests.factories.instances import V
from tests.factories.searches import Begun, begun

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


def serving() -> tuple[Connection, threading.Thread]:
    """The pipe to a process that waits for its job, in a thread of this process."""
    client, server_end = Pipe()
    thread = threading.Thread(target=serve, args=(os.dup(server_end.fileno()),), daemon=True)
    server_end.close()
    thread.start()
    return client, thread


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
        link = process._link
        assert link is not None
        while not link._cut:
            assert not search.budget().search_over
            time.sleep(PAUSE)
        assert not search.budget().search_over


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


def link(connection: Connection, search: Begun, *, leads: bool) -> _Link:
    return _Link(connection, search.incumbent, search.whole, leads=leads)


def test_both_sides_know_of_the_better_one() -> None:
    """Values go to the process, bounds both ways; nothing is sent twice."""
    client, server_end = Pipe()
    with client, server_end:
        search, remote = begun(PROBLEM), begun(PROBLEM)
        assert search.incumbent.value is not None
        ours, theirs = link(client, search, leads=True), link(server_end, remote, leads=False)
        search.incumbent.value -= 100
        ours.exchange()
        theirs.exchange()
        assert remote.incumbent.value == search.incumbent.value
        remote.incumbent.raise_bound(dp_subset_bound((3,), 590))
        theirs.tell()
        ours.tell()
        assert client.poll(1)
        assert not server_end.poll(0)
        time.sleep(2 * PAUSE)
        ours.exchange()
        assert search.incumbent.bound.value == 590
        assert not server_end.poll(0)


def test_a_bound_that_contradicts_a_schedule_reaches_the_user() -> None:
    """A bound above a schedule is a bug, whichever process finds it."""
    client, server = serving()
    with client:
        search = begun(PROBLEM)
        wrong = Bound(search.incumbent.value + 1, "", Certificate(Argument.SEARCH))
        ours = link(client, search, leads=True)
        ours.send(SubsetProblem(PROBLEM, 600.0, search.incumbent.value, search.incumbent.bound))
        ours.send(BestValues(search.incumbent.value, wrong))
        assert client.poll(HANGS)
        with pytest.raises(VerificationError, match="lies above a schedule"):
            ours.exchange()
        server.join(HANGS)


def test_the_process_receives_values_and_sends_bounds() -> None:
    """Told that there is a schedule of 595 they have nothing left to ask, and end."""
    client, server = serving()
    with client:
        low = dp_subset_bound((0,), 594)
        client.send(SubsetProblem(PROBLEM, 600.0, 700, low))
        client.send(BestValues(595, low))
        assert client.poll(HANGS)
        news: BestValues = client.recv()
        assert (news.value, news.bound.value) == (595, 595)
        assert news.bound.certificate.devices == (3,)
        server.join(HANGS)
    assert not server.is_alive()


def test_a_bound_found_by_the_search_needs_no_process() -> None:
    client, server = serving()
    with client:
        client.send(
            SubsetProblem(LONG, 600.0, 9000, Bound(1, "", Certificate(Argument.WORK, (0,))))
        )
        client.send(BestValues(9000, Bound(9000, "", Certificate(Argument.SEARCH))))
        server.join(HANGS)
    assert not server.is_alive()


def test_the_process_ends_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it ends: the pipe is closed then."""
    running = threading.Event()
    run = SubsetDP.run

    def noted(subsets: SubsetDP, *arguments: Any) -> Any:
        running.set()
        return run(subsets, *arguments)

    monkeypatch.setattr(SubsetDP, "run", noted)
    client, server = serving()
    search = begun(LONG)
    assert search.incumbent.value is not None
    client.send(
        SubsetProblem(
            search.incumbent.problem, 600.0, search.incumbent.value, search.incumbent.bound
        )
    )
    assert running.wait(HANGS) and server.is_alive()
    client.close()
    server.join(HANGS)
    assert not server.is_alive()


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
