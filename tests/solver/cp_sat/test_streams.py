"""Links in models: their transfers are operations, one at a time, and schedules have them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ppopt import Objective, Pipeline, Schedule, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.link_queues import queues_of_schedule
from ppopt.solver.bounds.destructive_bounds import feasibility_model
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.cp_sat.model import build_model, hint
from tests.factories.streams import LINK_MODES, append_all
from tests.oracles.streams_exhaustive import least_makespan, least_mixed
from tests.tiers import slow

LIMITS = SolverLimits(60, 1, 0)
ENOUGH = 200
"""More ticks than any pipeline here needs."""


def tiny(random: Random, stages: int, link_mode: str = "streams") -> Pipeline:
    """Two microbatches, with transfers that matter."""

    def each(*choices: int) -> list[int]:
        return [random.choice(choices) for _ in range(stages)]

    return Pipeline(
        stages=stages,
        batches=2,
        forward=each(1, 2, 3),
        backward_input=each(1, 2, 3),
        weight=each(1, 2),
        backward=each(3, 4),
        p2p=random.choice((1, 2, 3)),
        backward_p2p=random.choice((None, 1, 2)),
        memory_b=random.choice((0, 0, "0.5")),
        placement=random.choice((None, (0, 1, 0))) if stages == 3 else None,
        mem_limit=random.choice((None, 2, 3)),
        link_mode=link_mode,
    )


def solved(problem: Problem) -> Schedule | None:
    """The best schedule of the model, proved best; None where there is none."""
    outcome = cpsat.search(build_model(problem, horizon=ENOUGH, bound=0), LIMITS, lambda *_: None)
    assert outcome.complete or outcome.infeasible
    return outcome.schedule


def exists(problem: Problem, horizon: int) -> bool:
    """Whether there is a schedule of at most so many ticks."""
    outcome = cpsat.search(feasibility_model(problem, horizon), LIMITS, lambda *_: None)
    assert outcome.schedule is not None or outcome.infeasible
    return outcome.schedule is not None


@pytest.mark.parametrize("link_mode", LINK_MODES)
@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (0, BackwardKind.SPLIT),
        (0, BackwardKind.WHOLE),
        (2, BackwardKind.MIXED),
        (3, BackwardKind.SPLIT),
        (5, BackwardKind.WHOLE),
        *(slow(1, kind) for kind in BackwardKind if kind != "mixed"),
        *(slow(4, kind) for kind in BackwardKind),
    ],
)
def test_the_model_proves_the_optimum_of_all_orders_of_devices_and_links(
    seed: int, kind: BackwardKind, link_mode: str
) -> None:
    """By exhaustive search; of mixed backwards for two stages, as that of three takes long."""
    pipeline = tiny(Random(seed), 2 + seed % 2, link_mode)
    if kind is BackwardKind.MIXED:
        optimum = least_mixed(pipeline)
    else:
        optimum = least_makespan(pipeline, whole=kind is BackwardKind.WHOLE)
    problem = Problem(pipeline, Objective.MAKESPAN, kind)
    result = solved(problem)
    assert (result and result.metrics.makespan_ticks) == optimum
    if result is not None:
        assert verify(result) == []
        assert result.fits_limits
        assert not exists(problem, result.metrics.makespan_ticks - 1)


@pytest.mark.parametrize(
    ("link_mode", "horizon", "there_is"),
    [("streams", 9, True), ("streams", 8, False), ("delay", 8, True), ("delay", 7, False)],
)
def test_a_link_carries_one_transfer_at_a_time(
    link_mode: str, horizon: int, there_is: bool
) -> None:
    """Two activations take 3 ticks each, from 1 to 7 on a link: its F and BW then end at 9.

    Over delays the second one is there at 2 + 3, and stage 1 has 4 ticks of work from 4 on.
    """
    pipeline = Pipeline(
        stages=2,
        batches=2,
        forward=1,
        backward_input=0,
        weight=0,
        backward=(0, 1),
        p2p=3,
        backward_p2p=0,
        link_mode=link_mode,
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    assert exists(problem, horizon) is there_is


def test_device_spans_are_those_of_the_orders_at_their_best_times() -> None:
    """No times of the same orders have a smaller one; over delays none is larger, most smaller."""
    smaller = 0
    for seed in range(4):
        drawn = tiny(Random(100 + seed), 3)
        pipeline = replace(drawn, batches=3, p2p=4, backward_p2p=3, mem_limit=None)
        problem = Problem(pipeline, Objective.DEVICE_SPAN, BackwardKind.SPLIT)
        result = solved(problem)
        delays = solved(replace(problem, pipeline=replace(pipeline, link_mode="delay")))
        assert delays is not None
        assert verify(result) == []
        queues = queues_of_schedule(result)
        retimed = timing.schedule(pipeline, result.orders, Objective.DEVICE_SPAN, queues=queues)
        spans = [
            evaluated.metrics.value_ticks(Objective.DEVICE_SPAN)
            for evaluated in (result, retimed, delays)
        ]
        assert spans[0] == spans[1] >= spans[2]
        smaller += spans[0] > spans[2]
    assert smaller > 1


@pytest.mark.parametrize("seed", range(5))
def test_every_schedule_over_streams_is_a_solution_of_the_model(seed: int) -> None:
    """As a hint it is complete, and with all its times fixed the model is feasible.

    Schedules with pairs are left out: none saves time here, so the model has none.
    """
    random = Random(seed)
    pipeline = replace(tiny(random, 3), mem_limit=None)
    schedule = append_all(pipeline, random, "split").schedule
    while schedule.seconds.any():
        schedule = append_all(pipeline, random, "split").schedule
    built = build_model(
        Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT), horizon=ENOUGH, bound=0
    )
    hint(built, schedule)
    proto = built.cp.proto
    assert len(proto.solution_hint.vars) == len(proto.variables)
    for index, value in zip(proto.solution_hint.vars, proto.solution_hint.values, strict=True):
        built.cp.add(built.cp.get_int_var_from_proto_index(index) == value)
    outcome = cpsat.search(built, LIMITS, lambda *_: None)
    assert outcome.schedule.metrics == schedule.metrics
