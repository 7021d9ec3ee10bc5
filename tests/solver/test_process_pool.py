"""Configurations that are searched at once, in processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from math import inf
from threading import Timer
from time import sleep
from typing import Any, NamedTuple

import pytest

from ppopt import Pipeline, VerificationError, interrupts
from ppopt.cancellation import over, scope
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver import child_process
from ppopt.solver.choices import process_pool, search_tasks
from ppopt.solver.choices.process_pool import ProcessPool, SearchEngine, Searches
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.engines.engine import STOPPED, Done, Link, SearchDone, run_tasks
from ppopt.solver.engines.local import LocalEngine
from ppopt.solver.engines.worker import OUT_OF_MEMORY
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result, Status
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import verify
from tests.clock import HANGS
from tests.solver.test_choice_search import Forwards

TIMES = (5, 4, 3)
OPTIONS = SolveOptions(workers=2)
"""Without a deadline: one made here would count from the import of this module."""


def problem(forward: int) -> Problem:
    pipeline = Pipeline(stages=2, batches=2, forward=forward)
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)


def tasks() -> Searches:
    for time in TIMES:
        yield time, SearchTask(problem(time), WarmStart(), OPTIONS, 1000)


@pytest.fixture
def own_engine() -> Iterator[SearchEngine]:
    """Processes that a test ends."""
    with closing(SearchEngine(2)) as engine:
        yield engine


@pytest.fixture(scope="module")
def started() -> Iterator[SearchEngine]:
    """Processes that several tests use: starting them takes most of the time."""
    with closing(SearchEngine(2)) as engine:
        yield engine


@pytest.fixture
def engine(started: SearchEngine) -> SearchEngine:
    """No process has a task, whatever test was before."""
    assert started.busy == 0
    return started


POOL = ProcessPool(OPTIONS)


class Received(dict[Any, Result]):
    """Results of the searches, by id."""

    def __call__(self, task_id: Any, result: Result) -> None:
        self[task_id] = result


def test_every_configuration_is_searched_by_a_process(engine: SearchEngine) -> None:
    received = Received()
    POOL.run(engine, tasks(), received)
    assert sorted(received) == [3, 4, 5]
    for time, result in received.items():
        assert result.status is Status.OPTIMAL
        assert result.pipeline.costs.forward == (time, time)


@pytest.mark.parametrize("timeout", [False, True])
def test_processes_search_during_a_block(engine: SearchEngine, timeout: bool) -> None:
    """At its end, each has a result; as many workers but one search."""
    received, pool = Received(), ProcessPool(replace(OPTIONS, workers=3))
    with suppress(TimeoutError), pool.aside(engine, tasks(), received):
        assert not received
        if timeout:
            raise TimeoutError
    assert sorted(received) == [4, 5]
    assert all(result.schedule is not None for result in received.values())


def check_searched(options: SolveOptions = OPTIONS) -> None:
    result = ConfigurationSearch(Forwards(), problem(1), options).run()
    assert result.status is Status.OPTIMAL and result.pipeline.costs.forward == (3, 3)


def test_a_search_uses_the_processes(
    engines: list[SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No configuration is searched in this process, and none of the processes stays."""

    def refused(*_: Any) -> SearchDone[Result]:
        raise AssertionError("searched here")

    monkeypatch.setattr(SearchTask, "perform", refused)
    check_searched()
    (engine,) = engines
    assert not engine.workers


def test_with_one_worker_there_are_no_processes(engines: list[SearchEngine]) -> None:
    check_searched(replace(OPTIONS, workers=1))
    assert not engines


def test_without_processes_a_search_goes_on(
    engines: list[SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise OSError("no memory")

    monkeypatch.setattr(child_process, "start", refused)
    check_searched()
    assert engines[0].slots < 2


def test_a_task_says_why_there_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(child_process, "start", refused)
    with closing(LocalEngine(1, retries=1)) as engine:
        engine.submit(0, next(tasks())[1])
        ((_, done),) = engine.wait(0)
    assert done.failed == "no process can be started: Resource temporarily unavailable"


def test_a_process_without_memory_for_a_message_ends() -> None:
    code = """
from ppopt.solver.engines.worker import _Worker
class Full:
    def recv(self):
        raise MemoryError
_Worker(Full()).run()
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=HANGS, check=False)
    assert ended.returncode == OUT_OF_MEMORY


def kill(engine: SearchEngine) -> None:
    for worker in engine.workers:
        worker.process.kill()
        worker.process.wait()


def test_a_killed_process_gives_no_result(engine: SearchEngine) -> None:
    received = Received()
    kill(engine)
    POOL.run(engine, tasks(), received)
    assert len(received) < 3
    POOL.run(engine, tasks(), received)
    assert len(received) == 3


def test_processes_that_end_are_replaced_once(own_engine: SearchEngine) -> None:
    """Not forever, as if memory is short."""
    for slots in (2, 2, 2, 1, 0):
        assert own_engine.slots == slots
        own_engine.submit(0, next(long_tasks())[1])
        kill(own_engine)
        ended: list[Any] = []
        while not ended:
            ended += own_engine.wait(0.1)
        refused = "no process can be started: too many have died"
        cause = "its process was killed by SIGKILL" if slots else refused
        assert [done.failed for _, done in ended] == [cause]


def test_a_search_goes_on_without_its_processes(
    engines: list[SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are killed: it searches in this process."""
    start = child_process.start

    def start_and_kill(*arguments: Any) -> Any:
        pipe, process = start(*arguments)
        process.kill()
        return pipe, process

    monkeypatch.setattr(child_process, "start", start_and_kill)
    check_searched()
    assert engines[0].slots < 2


def long_tasks() -> Searches:
    """Searches that only a stop ends: 0.75 activations per device is far from proved."""
    for time in (7, 11):
        pipeline = Pipeline(
            stages=8, batches=24, forward=time, backward=24, weight=14, p2p=2, mem_limit=6
        )
        hard = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
        yield time, SearchTask(hard, WarmStart(), OPTIONS, 1000)


class AtThirdPoll:
    """A stop criterion, or Ctrl-C, once both processes have their tasks."""

    def __init__(self, *, ctrl_c: bool = False) -> None:
        self._polled, self._ctrl_c = 0, ctrl_c

    def __call__(self) -> bool:
        self._polled += 1
        if self._polled == 3 and self._ctrl_c:
            signal.raise_signal(signal.SIGINT)
        return self._polled >= 3


def test_a_stop_keeps_what_the_processes_have(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 600.0)
    received, before = Received(), list(engine.workers)
    POOL.run(engine, long_tasks(), received, AtThirdPoll())
    assert sorted(received) == [7, 11]
    for result in received.values():
        assert result.status is Status.FEASIBLE
        assert result.schedule is not None and verify(result.schedule) == []
    assert engine.workers == before


def test_ctrl_c_keeps_what_the_processes_have(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 600.0)
    received, polled = Received(), AtThirdPoll(ctrl_c=True)
    with interrupts.recorded(), scope(inf):
        POOL.run(engine, long_tasks(), received, lambda: polled() and over())
    assert sorted(received) == [7, 11]


def test_tasks_that_take_too_long_end_the_searches(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 600.0)

    def one_task() -> Searches:
        yield next(long_tasks())
        raise TimeoutError

    received = Received()
    POOL.run(engine, one_task(), received)
    assert list(received) == [7]


def test_processes_that_do_not_answer_a_stop_are_ended(
    own_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 0.0)
    polled, processes = AtThirdPoll(), list[Any]()

    def ends() -> bool:
        processes[:] = [worker.process for worker in own_engine.workers]
        return polled()

    POOL.run(own_engine, long_tasks(), Received(), ends)
    assert not own_engine.workers and len(processes) == 2
    assert all(process.poll() is not None for process in processes)


def test_the_value_of_a_running_search_is_known(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 600.0)
    values: list[int] = []

    def ends() -> bool:
        reported = (state.value_ticks for state in engine.states.values())
        values.extend(value for value in reported if value is not None)
        return bool(values)

    received = Received()
    POOL.run(engine, long_tasks(), received, ends)
    best = min(result.value for result in received.values() if result.value is not None)
    assert best * problem(1).pipeline.grid.time <= min(values)


def test_a_search_without_a_result_may_be_repeated(
    engines: list[SearchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its level of before; the last one is searched here."""

    def lost(_pool: Any, _engine: Any, searches: Searches, *_: Any) -> None:
        next(searches), next(searches)

    monkeypatch.setattr(ProcessPool, "run", lost)
    search = ConfigurationSearch(Forwards(), problem(1), OPTIONS)
    search.enumerate_listed()
    assert search._solve_all(search._open(), 0) == 3
    known = search.state.known.values()
    assert sorted(configuration.level for configuration in known) == [-1, -1, 0]
    search.close()
    assert len(engines) == 1


def test_a_cutoff_ends_a_search(engine: SearchEngine) -> None:
    """The bound of a search reaches it before its end."""
    received = Received()

    def ends() -> bool:
        engine.tell(7, 1)
        return False

    POOL.run(engine, iter([next(long_tasks())]), received, ends)
    assert received[7].status is Status.FEASIBLE


@dataclass(frozen=True)
class Returned:
    """A task with a known outcome."""

    done: SearchDone[Result]
    workers = 1

    def perform(self, _: Link) -> SearchDone[Result]:
        return self.done


def test_an_error_of_the_verifier_reaches_the_parent(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Result:
        raise VerificationError("a bound is above a value")

    monkeypatch.setattr(search_tasks, "search_from", refused)
    done = next(tasks())[1].perform()
    assert isinstance(done.outcome, VerificationError)
    monkeypatch.setattr(SearchTask, "detached", lambda *_: Returned(done))
    with pytest.raises(VerificationError, match="above a value"):
        POOL.run(engine, tasks(), Received())
    assert engine.busy == 0


class Late(NamedTuple):
    """A task, of which a thread reports after its end."""

    workers = 1

    def perform(self, link: Link) -> Done:
        assert link.progress is not None
        Timer(0.1, link.progress, [Progress(0.0, "", 1, 0, 1)]).start()
        return STOPPED


class Sleep(NamedTuple):
    """A task of half a second."""

    workers = 1

    def perform(self, _: Link) -> Done:
        sleep(0.5)
        return STOPPED


def test_an_ended_task_has_no_state(engine: SearchEngine) -> None:
    """Threads of CP-SAT may outlive their search: the next search has not their values."""
    tasks, states = iter([(0, Late()), (1, Sleep())]), list[Any]()

    def ends() -> bool:
        states.extend(engine.states.values())
        return False

    run_tasks(engine, lambda: next(tasks, None), lambda _: None, ends, at_once=1)
    assert not states


def test_processes_end_with_their_owner() -> None:
    """Also without a call of `close`."""
    engine = SearchEngine(1)
    engine.submit(0, next(tasks())[1])
    (process,) = (worker.process for worker in engine.workers)
    del engine
    assert process.wait() == 0
