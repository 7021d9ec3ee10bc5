"""The network of operations of all resources: classes of one operation, windows over links."""

from __future__ import annotations

from random import Random

import pytest

from ppopt import Objective, Pipeline, evaluate, verify
from ppopt.problem import features
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation import OpKind, TransferKind
from ppopt.problem.operation_classes import (
    Mode,
    OperationClass,
    Precedence,
)
from ppopt.problem.problem import Problem
from ppopt.problem.resources import Resource
from ppopt.solver.budget import SolverLimits
from ppopt.solver.heuristics.moves import State, Swap
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.window import SemiActiveSchedule, Window
from tests.factories.streams import LINK_MODES, append_all
from tests.oracles.streams_exhaustive import least_makespan
from tests.solver.test_stream_search import tiny

LIMITS = SolverLimits(60, 1, 0)


@pytest.mark.parametrize("allocates", [2, 3])
def test_a_class_of_one_operation_waits_for_all_and_takes_memory_of_its_device(
    allocates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After all W of stage 0, on a resource of its own; the limit of device 0 is 2."""
    plainly = features.draft_of

    def with_one(
        pipeline: Pipeline, backward: BackwardKind, *, all_resources: bool
    ) -> InstanceDraft:
        draft = plainly(pipeline, backward, all_resources=all_resources)
        if not all_resources:
            return draft
        vars(draft)["resources"] = (*draft.resources, Resource(ResourceKind.LINK, (0,)))
        modes = (Mode(TransferKind.SEND_F, 5, allocates, allocates),)
        class_id = len(draft.classes)
        weight = next(n for n, entry in enumerate(draft.classes) if entry.kind is OpKind.W)
        draft.classes.append(OperationClass(1, 0, 0, len(draft.resources) - 1, modes, 1))
        draft.precedence.append(Precedence(weight, class_id, 0))
        return draft

    monkeypatch.setattr(features, "draft_of", with_one)
    pipeline = Pipeline(stages=2, batches=3, mem_limit=2)
    network = OperationNetwork(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    (last,) = (op for op in range(network.size) if network.resource[op] == 2)
    schedule = evaluate(pipeline, "zb-h1")
    state = State.of(network, network.sequences(network.starts(schedule)))
    assert state is not None
    of_stage_0 = (schedule.kind == OpKind.W) & (schedule.stage == 0)
    assert state.start[last] == max(schedule.end[of_stage_0])
    assert state.value == state.start[last] + 5
    assert network.fits(state.start, 0) == network.fits(state.start, 1) == (allocates <= 2)
    proposals = (Swap().propose(state, Random(seed)) for seed in range(20))
    assert any(proposal is not None for proposal in proposals) == (allocates <= 2)


@pytest.mark.parametrize("link_mode", LINK_MODES)
def test_a_window_over_all_operations_and_transfers_is_the_whole_problem(link_mode: str) -> None:
    bettered = 0
    for seed in range(5):
        pipeline, whole = tiny(seed, link_mode), seed % 2 == 1
        kind = BackwardKind.uniform(fused=whole)
        schedule = append_all(pipeline, Random(seed), "whole" if whole else "split").schedule
        if not schedule.fits_limits:
            continue
        network = OperationNetwork(Problem(pipeline, Objective.MAKESPAN, kind))
        current = SemiActiveSchedule.of(network, network.starts(schedule))
        outcome = Window(current, 0, network.size).reoptimise(LIMITS)
        assert outcome.complete
        best = current if outcome.order is None else current.changed(outcome.order, outcome.flips)
        assert best.value == least_makespan(pipeline, whole=whole)
        restored = best.network.schedule(best.start)
        assert verify(restored) == []
        assert restored.metrics.makespan_ticks == best.value
        bettered += best.value < current.value
    assert bettered > 1
