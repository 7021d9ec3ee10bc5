"""Ctrl-C is neither lost nor does it leave a thread of CP-SAT behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from ppopt import Objective, Pipeline, Progress, Status, interrupts, solve
from ppopt.cancellation import checkpoint, over, scope, shield
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import result as result_module
from ppopt.solver.bounds.destructive_bounds import feasibility_model
from ppopt.solver.cp_sat import cpsat
from tests.clock import work_clock


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_before_cp_sat_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for six of eight, and W shorter than what it has to fill: minutes, left alone."""
    times = Pipeline(stages=8, batches=64, forward=10419, backward_input=10207, weight=7715)
    pipeline = replace(times, p2p=408, mem_limit=6)
    solver = cpsat.solver(cpsat.SolverLimits(6000, 1, 0))
    begin = solver.solve

    def late(*arguments: Any) -> object:
        press()
        time.sleep(0.5)
        return begin(*arguments)

    monkeypatch.setattr(solver, "solve", late)
    built = feasibility_model(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT), 2_120_000)
    with interrupts.recorded() as pressed, scope(inf):
        cpsat.run(solver, built.cp)
    assert pressed
    assert solver.response_proto.deterministic_time < 30, "of 6000 seconds"
    assert [thread.name for thread in threading.enumerate() if "(solve)" in thread.name] == []


def test_ctrl_c_ends_every_scope_at_its_next_checkpoint() -> None:
    done = []
    with interrupts.recorded() as pressed:
        press()
        checkpoint()
        for end in (inf, inf):
            with scope(end) as entered:
                with shield():
                    checkpoint()
                    done.append(1)
                checkpoint()
                pytest.fail("Ctrl-C was not noticed")
            assert entered.ended and not over()
    assert (pressed, done) == ([signal.SIGINT], [1, 1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with scope(inf):
        checkpoint()
    assert not interrupts.pressed()


class Pressed:
    """An attribute of a class: Ctrl-C comes while the class gets it, as in an import."""

    def __set_name__(self, owner: type, name: str) -> None:
        press()


def test_ctrl_c_while_a_class_is_created() -> None:
    """Python 3.11 wraps it in RuntimeError."""
    with interrupts.recorded(), pytest.raises(KeyboardInterrupt), interrupts.heard():
        type("Class", (), {"attribute": Pressed()})
    with interrupts.recorded(), pytest.raises(RuntimeError, match="fault"), interrupts.heard():
        raise RuntimeError("a fault")


def test_a_search_hears_it_once_and_what_comes_after_is_not_cut_short() -> None:
    done = []
    with interrupts.recorded() as pressed:
        with pytest.raises(KeyboardInterrupt), interrupts.heard():
            press()
        press()
        done.append(1)
    assert (len(pressed), done) == (2, [1])


def test_a_search_hears_what_came_before_it_began() -> None:
    with interrupts.recorded():
        press()
        with pytest.raises(KeyboardInterrupt), interrupts.heard():
            pytest.fail("it was not heard")


def test_deferred_it_is_heard_in_searches_only() -> None:
    with interrupts.recorded(), interrupts.heard():
        with interrupts.recorded():
            pass
        with interrupts.heard():
            pass
        press()
        with pytest.raises(KeyboardInterrupt), interrupts.heard():
            pytest.fail("it was not heard")


def test_what_an_inner_block_records_is_recorded_outside() -> None:
    with interrupts.recorded() as outer, interrupts.recorded(), interrupts.recorded():
        press()
    assert outer == [signal.SIGINT]


def test_other_threads_do_without() -> None:
    heard: list[list[int]] = []

    def work() -> None:
        with interrupts.recorded() as pressed:
            heard.append(pressed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [[]]


def test_ctrl_c_after_the_search_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = result_module.checked

    def pressed(schedule: Schedule) -> Schedule:
        press()
        return check(schedule)

    monkeypatch.setattr(result_module, "checked", pressed)
    result = solve(Pipeline(stages=2, batches=2), workers=1)
    assert (result.status, result.interrupted) == (Status.OPTIMAL, True)


def test_a_lost_ctrl_c_ends_a_search_all_the_same() -> None:
    """Python drops a KeyboardInterrupt that a finalizer raises."""

    def lose(_: Progress) -> None:
        with suppress(KeyboardInterrupt):
            press()

    times = Pipeline(stages=8, batches=64, forward=10419, backward_input=10207, weight=7715)
    pipeline = replace(times, p2p=408, mem_limit=6)
    with interrupts.recorded(), work_clock():
        result = solve(pipeline, time_limit=600, workers=1, progress=lose)
    assert result.interrupted
    assert result.schedule is not None
    assert result.solve_seconds < 10
