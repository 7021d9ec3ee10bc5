"""Heuristics on frozen stages, which have no W, or no backward at all: what they build is valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import ppopt
from ppopt import Model, Objective, Pipeline, Schedule, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import codes, existing, portable
from ppopt.solver.bounds.device_bounds import minimum_memory
from ppopt.solver.budget import SolverLimits
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.heuristics.steady_state import Section, SteadyStatePattern
from tests.factories import schedules

HOSTS = ((0, 1), (0, 1, 2), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0, 1), (0, 1, 2, 3))
"""Device of every stage."""
LIMITS = SolverLimits(60, 1, 0)


def drawn(seed: int, count: int, **fixed: Any) -> Iterator[Pipeline]:
    """Pipelines of unequal stages of which some are frozen, the first one in most of them."""
    rng = Random(seed)
    for _ in range(count):
        hosts = fixed.get("placement", rng.choice(HOSTS))
        size = len(hosts)
        frozen = [rng.random() < 0.5 for _ in range(size)]
        frozen[0] |= rng.random() < 0.5
        costs: dict[str, Any] = {
            name: [rng.randint(1, 5) for _ in range(size)]
            for name in ("forward", "backward_input", "weight", "activation")
        }
        costs |= {"placement": hosts, "batches": rng.randint(1, 8), "p2p": rng.randint(0, 2)}
        yield Pipeline(stages=size, frozen=frozen, **(costs | fixed))


def uniform(pipeline: Pipeline, rng: Random) -> Instance:
    return Instance.uniform(pipeline, fused=rng.random() < 0.4)


def test_steady_states_are_repeated_without_a_circle() -> None:
    rng = Random(4)
    for seed, pipeline in enumerate(drawn(4, 20)):
        kind = rng.choice((BackwardKind.SPLIT, BackwardKind.WHOLE))
        name = "split" if kind is BackwardKind.SPLIT else "fused"
        schedule = schedules.build(pipeline, Random(seed), name, paired=False)
        first = rng.randrange(pipeline.batches)
        size = rng.randint(1, pipeline.batches - first)
        section = Section(first, size, 1, rng.choice((0, 1, 7)))
        longer = replace(pipeline, batches=pipeline.batches + rng.randint(1, 9))
        steady = SteadyStatePattern(schedule, Problem(pipeline, Objective.MAKESPAN, kind))
        assert verify(timing.schedule(longer, steady.orders(longer, section))) == []


@pytest.mark.parametrize("kind", BackwardKind)
def test_networks_keep_a_schedule_and_justify_it(kind: BackwardKind) -> None:
    """A mixed one may exchange B and BW of a frozen stage: one is never worse than the other."""
    names = {BackwardKind.SPLIT: "split", BackwardKind.WHOLE: "fused", BackwardKind.MIXED: "mixed"}
    for seed, pipeline in enumerate(drawn(6, 15)):
        schedule = schedules.build(pipeline, Random(seed), names[kind], paired=False)
        network = OperationNetwork.of(Problem(pipeline, Objective.MAKESPAN, kind), schedule)
        start = network.with_absent(network.starts(schedule))
        assert verify(network.schedule(start)) == []
        better = network.double_justified(start)
        assert network.value(better) <= network.value(start)
        assert verify(network.schedule(better)) == []


def test_repaired_orders_are_within_the_limits() -> None:
    rng, repaired = Random(7), 0
    for seed, pipeline in enumerate(drawn(7, 30)):
        schedule = schedules.build(pipeline, Random(seed), "split", paired=False)
        needed = minimum_memory(Instance(pipeline, BackwardKind.SPLIT))
        limited = replace(pipeline, mem_limit=[need + rng.randint(0, 2) for need in needed])
        orders = repair(schedule, Instance(limited, BackwardKind.SPLIT))
        assert orders is not None
        repaired += not schedule.fits_limits or schedule.metrics.peak_memory_ticks > tuple(needed)
        assert verify(timing.schedule(limited, orders)) == []
    assert repaired > 7


def listed(pipeline: Pipeline, schedule: Schedule) -> set[int]:
    return set(codes(np.concatenate(list(portable(schedule)))).tolist())


@pytest.mark.parametrize("backward", ["split", "fused", "mixed"])
def test_portable_orders_have_all_operations(backward: str) -> None:
    """They can be timed where all stages are trained, and here they are the same orders."""
    for seed, pipeline in enumerate(drawn(8, 20)):
        schedule = schedules.build(pipeline, Random(seed), backward, paired=False)
        orders = portable(schedule)
        trained = replace(pipeline, frozen=None, backward=None, weight=2, backward_input=3)
        assert verify(timing.schedule(trained, orders)) == []
        own = existing(pipeline, orders)
        assert [row.tolist() for row in own] == [row.tolist() for row in schedule.orders]


def test_portable_orders_run_the_backward_of_the_last_slice_first() -> None:
    """Without any backward, too: a frontier evaluates such strategies on other partitions."""
    pipeline = Pipeline(stages=2, batches=3, frozen=True, slices=2)
    orders = portable(ppopt.evaluate(pipeline, "seq-1f1b"))
    assert verify(timing.schedule(replace(pipeline, frozen=None), orders)) == []
    layers = Model([{"forward": 1, "activation": 1, "frozen": True}] * 3)
    searched = layers.pipeline(devices=2, batches=2, partition=SEARCH)
    assert ppopt.frontier(searched, time_limit=0.1, workers=1).points


def test_a_pair_without_its_backward_is_an_f_alone() -> None:
    """Whether F or the backward comes first in the order."""
    pipeline = Pipeline(stages=2, batches=2, frozen=[True, False])
    f0, f1, b0, b1 = (
        int(pipeline.code(kind, 0, j)) for kind in (OpKind.F, OpKind.BW) for j in (0, 1)
    )
    rest = [int(pipeline.code(kind, 1, j)) for j in (0, 1) for kind in (OpKind.F, OpKind.BW)]
    for pair in ([f1, ~b0], [b0, ~f1]):
        orders = [np.array([f0, *pair, b1]), np.array(rest)]
        assert [row.tolist() for row in existing(pipeline, orders)] == [[f0, f1], rest]
        assert verify(timing.schedule(pipeline, orders)) == []
