"""Configurations that are searched at once, in processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from math import inf
from multiprocessing import Pipe
from typing import Any

import pytest

from ppopt import Pipeline, VerificationError, interrupts
from ppopt.cancellation import scope
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.choices import driver as searching
from ppopt.solver.choices import search_processes
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.choices.search_processes import Cutoff, SearchProcesses
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result, Status
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import verify
from tests.solver.test_choice_search import Forwards

TIMES = (5, 4, 3)
OPTIONS = SolveOptions(workers=2)
"""Without a deadline: one made here would count from the import of this module."""


def problem(forward: int) -> Problem:
    pipeline = Pipeline(stages=2, batches=2, forward=forward)
    return Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)


def tasks() -> Iterator[tuple[Configuration, SearchTask]]:
    for time in TIMES:
        task = SearchTask(problem(time), WarmStart(), OPTIONS, 1000)
        yield Configuration((time,), 0), task


@pytest.fixture
def own_pool() -> Iterator[SearchProcesses]:
    """Processes that a test ends."""
    pool = SearchProcesses(2)
    assert len(pool.members) == 2
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def started() -> Iterator[SearchProcesses]:
    """Processes that several tests use: starting them takes most of the time."""
    pool = SearchProcesses(2)
    yield pool
    pool.close()


@pytest.fixture
def pool(started: SearchProcesses) -> SearchProcesses:
    """Both processes are there and idle, whatever test was before."""
    assert [member.configuration for member in started.members] == [None, None]
    return started


class Received:
    """The results that the processes hand over, by key."""

    def __init__(self) -> None:
        self.results: dict[Any, Result] = {}

    def __call__(self, configuration: Configuration, result: Result) -> None:
        self.results[configuration.key] = result


def never() -> bool:
    return False


def no_cutoff(_: Configuration) -> None:
    return None


def test_every_configuration_is_searched_by_a_process(pool: SearchProcesses) -> None:
    received = Received()
    pool.run(tasks(), received, over=never, cutoff=no_cutoff)
    assert sorted(received.results) == [(3,), (4,), (5,)]
    for (time,), result in received.results.items():
        assert result.status is Status.OPTIMAL
        assert result.pipeline.costs.forward == (time, time)


@pytest.mark.parametrize("timeout", [False, True])
def test_processes_search_during_a_block(pool: SearchProcesses, timeout: bool) -> None:
    """At its end, each has a result; a task without a process has none."""
    received = Received()
    with suppress(TimeoutError), pool.aside(tasks(), received):
        assert not received.results
        if timeout:
            raise TimeoutError
    assert sorted(received.results) == [(4,), (5,)]
    assert all(result.schedule is not None for result in received.results.values())


def test_a_search_uses_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration is searched in this process, and none of the processes stays."""

    def refused(*_: Any) -> Result:
        raise AssertionError("searched here")

    started_pools: list[SearchProcesses] = []

    def started(workers: int) -> SearchProcesses:
        started_pools.append(SearchProcesses(workers))
        return started_pools[-1]

    monkeypatch.setattr(searching, "search_from", refused)
    monkeypatch.setattr(search_processes, "SearchProcesses", started)
    monkeypatch.setattr(search_processes, "WARM_UP", 0.0)
    result = ConfigurationSearch(Forwards(), problem(1), OPTIONS).run()
    assert result.status is Status.OPTIMAL and result.pipeline.costs.forward == (3, 3)
    (pool,) = started_pools
    assert all(member.child.poll() is not None for member in pool.members)


def test_with_one_worker_there_are_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> SearchProcesses:
        raise AssertionError("started")

    monkeypatch.setattr(search_processes, "SearchProcesses", refused)
    monkeypatch.setattr(search_processes, "WARM_UP", 0.0)
    result = ConfigurationSearch(Forwards(), problem(1), replace(OPTIONS, workers=1)).run()
    assert result.status is Status.OPTIMAL


def test_a_killed_process_gives_no_result(pool: SearchProcesses) -> None:
    pool.members[0].child.kill()
    pool.members[0].child.wait()
    received = Received()
    pool.run(tasks(), received, over=never, cutoff=no_cutoff)
    assert len(received.results) == 2 and len(pool.members) == 1
    pool.start_missing()
    assert len(pool.members) == 2


def test_processes_that_end_are_replaced_once(own_pool: SearchProcesses) -> None:
    """Not forever, as if memory is short."""
    for expected in (2, 0):
        own_pool._drop(own_pool.members)
        own_pool.start_missing()
        assert len(own_pool.members) == expected


def test_a_search_goes_on_without_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are killed: it searches in this process."""

    def killed(workers: int) -> SearchProcesses:
        pool = SearchProcesses(workers)
        for member in pool.members:
            member.child.kill()
        return pool

    monkeypatch.setattr(search_processes, "SearchProcesses", killed)
    monkeypatch.setattr(search_processes, "WARM_UP", 0.0)
    result = ConfigurationSearch(Forwards(), problem(1), OPTIONS).run()
    assert result.status is Status.OPTIMAL and result.pipeline.costs.forward == (3, 3)


def long_tasks() -> Iterator[tuple[Configuration, SearchTask]]:
    """Searches that only a stop ends: 0.75 activations per device is far from proved."""
    for time in (7, 11):
        pipeline = Pipeline(
            stages=8, batches=24, forward=time, backward=24, weight=14, p2p=2, mem_limit=6
        )
        hard = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
        yield Configuration((time,), 0), SearchTask(hard, WarmStart(), OPTIONS, 1000)


class AtThirdPoll:
    """A stop criterion, or Ctrl-C, once both processes have their tasks."""

    def __init__(self, *, ctrl_c: bool = False) -> None:
        self._polled, self._ctrl_c = 0, ctrl_c

    def __call__(self) -> bool:
        self._polled += 1
        if self._polled == 3 and self._ctrl_c:
            signal.raise_signal(signal.SIGINT)
        return self._polled >= 3 and not self._ctrl_c


def test_a_stop_keeps_what_the_processes_have(
    pool: SearchProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_processes, "GRACE", 600.0)
    received = Received()
    pool.run(long_tasks(), received, over=AtThirdPoll(), cutoff=no_cutoff)
    assert sorted(received.results) == [(7,), (11,)]
    for result in received.results.values():
        assert result.status is Status.FEASIBLE
        assert result.schedule is not None and verify(result.schedule) == []
    assert len(pool.members) == 2


def test_ctrl_c_keeps_what_the_processes_have(
    pool: SearchProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_processes, "GRACE", 600.0)
    received = Received()
    with interrupts.recorded(), scope(inf):
        pool.run(long_tasks(), received, over=AtThirdPoll(ctrl_c=True), cutoff=no_cutoff)
    assert sorted(received.results) == [(7,), (11,)]


def test_tasks_that_take_too_long_end_the_searches(
    pool: SearchProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_processes, "GRACE", 600.0)

    def one_task() -> Iterator[tuple[Configuration, SearchTask]]:
        yield next(long_tasks())
        raise TimeoutError

    received = Received()
    pool.run(one_task(), received, over=never, cutoff=no_cutoff)
    assert list(received.results) == [(7,)]


def test_processes_that_do_not_answer_a_stop_are_ended(
    own_pool: SearchProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_processes, "GRACE", 0.0)
    processes = [member.child for member in own_pool.members]
    own_pool.run(long_tasks(), Received(), over=AtThirdPoll(), cutoff=no_cutoff)
    assert not own_pool.members
    assert all(process.poll() is not None for process in processes)


def test_the_value_of_a_running_search_is_known(
    pool: SearchProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_processes, "GRACE", 600.0)
    values: list[int] = []

    def over() -> bool:
        values.extend(pool.values)
        return bool(values)

    received = Received()
    pool.run(long_tasks(), received, over=over, cutoff=no_cutoff)
    best = min(result.value for result in received.results.values() if result.value is not None)
    assert best * problem(1).pipeline.grid.time <= min(values)


def test_a_search_without_a_result_may_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its level of before; the last one is searched here."""

    def lost(*_: Any, **__: Any) -> None:
        return

    monkeypatch.setattr(search_processes, "WARM_UP", 0.0)
    monkeypatch.setattr(SearchProcesses, "run", lost)
    search = ConfigurationSearch(Forwards(), problem(1), OPTIONS)
    search.enumerate_listed()
    assert search._solve_all(search._open(), 0) == 3
    known = search.state.known.values()
    assert sorted(configuration.level for configuration in known) == [-1, -1, 0]
    search.close()


def test_messages_end_a_search() -> None:
    def state(bound: int) -> Progress:
        return Progress(0.0, "", None, bound, 1)

    def ends(message: Cutoff | None, bound: int) -> bool:
        here, there = Pipe()
        with here:
            with there:
                if message is not None:
                    there.send(message)
                    return search_processes._Messages(here).end(state(bound))
            return search_processes._Messages(here).end(state(bound))

    assert not ends(Cutoff(16), 15)
    assert ends(Cutoff(16), 16)
    assert ends(Cutoff(None), 0)
    assert ends(None, 0)
    """The parent is gone."""


def test_an_error_of_the_verifier_reaches_the_parent(
    pool: SearchProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Pipe()

    def refused(*_: Any) -> Result:
        raise VerificationError("a bound is above a value")

    monkeypatch.setattr(search_processes, "search_from", refused)
    (configuration, task), *_ = tasks()
    answer = search_processes._searched(task, here)
    assert isinstance(answer, VerificationError)
    there.send(answer)
    member = pool.members[0]
    monkeypatch.setattr(member, "pipe", here)
    member.configuration = configuration
    with pytest.raises(VerificationError, match="above a value"):
        pool._receive(Received())


def test_processes_end_with_their_owner() -> None:
    pool = SearchProcesses(2)
    processes = [member.child for member in pool.members]
    del pool
    assert [process.wait() for process in processes] == [-signal.SIGKILL, -signal.SIGKILL]
