"""The search over links against every order of devices and links, and what its results say."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ppopt import Pipeline, evaluate, interrupts, recheck, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.solver.bounds.proof_scope import DELAYED
from ppopt.solver.heuristics import critical_swaps
from ppopt.solver.heuristics.critical_swaps import CriticalSwaps, improve
from ppopt.solver.heuristics.moves import State
from ppopt.solver.parameters import SolveParams
from tests.clock import SHORT, work_clock
from tests.factories.streams import LINK_MODES, append_all
from tests.oracles.streams_exhaustive import least_makespan
from tests.tiers import first


def tiny(seed: int, link_mode: str = "streams") -> Pipeline:
    """A pipeline of two or three stages and two microbatches, with transfers that matter."""
    random = Random(seed)
    stages = 2 + seed % 2

    def each(*choices: int) -> list[int]:
        return [random.choice(choices) for _ in range(stages)]

    return Pipeline(
        stages=stages,
        batches=2,
        forward=each(1, 2, 3),
        backward=[4] * stages,
        weight=each(1, 2),
        p2p=random.choice((1, 2, 3)),
        backward_p2p=random.choice((None, 1, 2)),
        mem_limit=random.choice((None, None, 2, 1)),
        link_mode=link_mode,
    )


@pytest.mark.parametrize("link_mode", LINK_MODES)
@pytest.mark.parametrize("seed", first(4, range(8)))
def test_tiny_pipelines_reach_the_optimum_of_all_orders(seed: int, link_mode: str) -> None:
    pipeline, whole = tiny(seed, link_mode), seed % 2 == 1
    optimum = least_makespan(pipeline, whole=whole)
    kind = "whole" if whole else "split"
    with work_clock(SHORT):
        result = solve(pipeline, backward_kind=kind, time_limit=0.5, workers=1)
    assert result.schedule is not None
    assert verify(result.schedule) == []
    assert result.lower_bound <= optimum / pipeline.ticks.per_unit <= result.value
    assert result.value == optimum / pipeline.ticks.per_unit
    assert (result.status == "optimal") == (result.value == result.lower_bound)
    assert result.proof.endswith(DELAYED[Trait.LINKS])


@pytest.mark.parametrize("link_mode", LINK_MODES)
def test_a_state_has_the_orders_of_a_schedule_at_their_earliest_starts(link_mode: str) -> None:
    for seed in range(8):
        pipeline = replace(tiny(seed, link_mode), mem_limit=None)
        schedule = append_all(pipeline, Random(seed)).schedule
        problem = Problem(schedule.pipeline, schedule.objective, BackwardKind.MIXED)
        state = State.of_schedule(problem, schedule)
        assert state.value <= schedule.metrics.makespan_ticks
        restored = state.schedule
        assert verify(restored) == []
        assert restored.metrics.makespan_ticks == state.value
        assert State.of_schedule(problem, restored).start == state.start


def test_a_result_over_streams_is_checked_again() -> None:
    pipeline = Pipeline(stages=3, batches=4, p2p=1, link_mode="streams")
    with work_clock(SHORT):
        result = solve(pipeline, time_limit=1, workers=1)
        over = solve(replace(pipeline, link_mode="delay"), time_limit=1, workers=1)
    assert recheck(result).verdict in ("confirmed", "undecided")
    assert over.value <= result.value
    assert result.value <= evaluate(result.pipeline, "zb-1p").metrics.makespan_ticks


@pytest.mark.parametrize("link_mode", LINK_MODES)
@pytest.mark.parametrize("objective", ["makespan", "device-span"])
def test_a_bound_that_is_too_high_is_refuted_by_a_schedule_over_links(
    objective: str, link_mode: str
) -> None:
    pipeline = Pipeline(stages=2, batches=2, p2p=1, link_mode=link_mode)
    with work_clock(SHORT):
        result = solve(pipeline, objective=objective, time_limit=0.5, workers=1)
    rechecked = recheck(replace(result, bound_ticks=result.value_ticks + 1), workers=1)
    assert rechecked.verdict == "wrong"
    counterexample = rechecked.counterexample
    assert counterexample.pipeline.link_mode == link_mode
    assert verify(counterexample) == []
    assert (
        counterexample.metrics.value_ticks(counterexample.objective)
        <= result.value * pipeline.ticks.per_unit
    )


def test_what_streams_add_to_delays_is_proved_and_rechecked() -> None:
    """Six transfers of 4, one behind the other, between the first F of 1 and the last BW of 2. Over
    delays the last device needs no longer than 5 + 9."""
    pipeline = Pipeline(stages=2, batches=3, p2p=4, link_mode="streams")
    result = solve(pipeline, backward_kind="whole", time_limit=600, workers=1)
    assert (result.status, result.value) == ("optimal", 1 + 6 * 4 + 2)
    argument = "all orders of the 12 operations and their transfers and found none faster; for"
    assert argument in result.proof and "delays" not in result.proof
    assert recheck(result, workers=1).verdict == "confirmed"
    above = recheck(replace(result, bound_ticks=result.value_ticks + 1), workers=1)
    assert above.verdict == "wrong"
    assert above.counterexample is not None and verify(above.counterexample) == []
    delays = solve(replace(pipeline, link_mode="delay"), backward_kind="whole", workers=1)
    assert delays.value < result.value


def test_a_wrong_claim_of_infeasibility_over_streams() -> None:
    pipeline = Pipeline(stages=2, batches=2, p2p=3, mem_limit=2, link_mode="streams")
    result = solve(replace(pipeline, mem_limit=0), workers=1)
    assert recheck(result, workers=1).verdict == "confirmed"
    rechecked = recheck(replace(result, pipeline=pipeline), workers=1)
    assert rechecked.verdict == "wrong"


def test_a_hint_over_streams_is_never_lost() -> None:
    pipeline = Pipeline(stages=3, batches=4, p2p=1, link_mode="streams")
    hint = evaluate(pipeline, "1f1b")
    with work_clock(SHORT):
        result = solve(pipeline, hint=hint, time_limit=0.2, workers=1)
    assert result.hint.value == hint.metrics.makespan_ticks
    assert result.value <= result.hint.value


def test_infeasible_limits() -> None:
    pipeline = Pipeline(stages=2, batches=2, mem_limit=0, link_mode="streams")
    assert solve(pipeline).status == "infeasible"


def test_device_spans_are_improved_too() -> None:
    """Local search shortens the makespan; here its orders have a shorter device span, too."""
    pipeline = Pipeline(
        stages=3, batches=5, forward=[2, 3, 2], p2p=1, placement="v", link_mode="streams"
    )
    values = []
    for without in ({CriticalSwaps.name}, set()):
        params = SolveParams(without=frozenset(without))
        with work_clock(2 * SHORT):
            result = solve(
                pipeline, objective="device-span", time_limit=0.4, workers=1, params=params
            )
        assert result.schedule is not None
        assert verify(result.schedule) == []
        assert result.lower_bound <= result.value
        values.append(result.value)
    assert values[1] < values[0]


@pytest.mark.parametrize("recorded", [True, False])
def test_ctrl_c_in_local_search_ends_it_with_the_best_schedule(
    recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a command, which records Ctrl-C, and from Python: it went on until time was up, and was
    lost with everything."""
    pipeline = Pipeline(
        stages=3, batches=6, forward=[2, 3, 2], p2p=2, placement="v", link_mode="streams"
    )
    asked = 0

    def counted(*arguments: Any) -> Any:
        *rest, over = arguments

        def ask(value: int) -> bool:
            nonlocal asked
            asked += 1
            if asked == 1:
                signal.raise_signal(signal.SIGINT)
            return bool(over(value))

        return improve(*rest, ask)

    monkeypatch.setattr(critical_swaps, "improve", counted)
    with interrupts.recorded() if recorded else nullcontext():
        result = solve(pipeline, time_limit=600, workers=1)
    assert result.interrupted
    assert result.schedule is not None
    assert 1 <= asked <= 256
