"""The best partition for a hand strategy, beside every partition."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

import ppopt
from ppopt import InputError, NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.partitions.partition_bounds import every_partition
from ppopt.solver.partitions.space import space_of
from tests.solver.partitions.test_partition_search import layers


def random_model(rng: Random, count: int) -> ppopt.Model:
    return ppopt.Model(
        [
            ppopt.Layer(
                forward=rng.randint(1, 5),
                backward_input=rng.randint(0, 5),
                weight=rng.randint(0, 5),
                activation=1,
            )
            for _ in range(count)
        ]
    )


@pytest.mark.parametrize("strategy", ["1f1b", "gpipe", "zb-h1", "interleaved", "1f1b-v"])
@pytest.mark.parametrize("seed", range(4))
def test_no_partition_is_better_than_the_one_proved_best(strategy: str, seed: int) -> None:
    rng = Random(seed)
    model, objective = random_model(rng, 6), rng.choice(["makespan", "device-span"])
    pipe = model.pipeline(devices=2, batches=4, p2p=rng.choice((0, 1)))
    found = ppopt.choose_partition(pipe, strategy, objective)
    stages = found.schedule.pipeline.num_stages
    two = model.pipeline(devices=2, batches=4, chunks=stages // 2)
    space = space_of(Problem(two, Objective.MAKESPAN, BackwardKind.SPLIT)).space
    values = []
    for counts in every_partition(space):
        one = model.pipeline(devices=2, batches=4, partition=counts, p2p=pipe.p2p)
        made = ppopt.evaluate(one, strategy, objective)
        value = made.metrics.value(Objective(objective))
        values.append(made.pipeline.ticks.time(value))
    assert found.proved and found.gap == 0
    assert found.value == min(values)
    assert found.evaluated <= found.partitions == len(values)


def test_a_gap_is_told_where_there_are_too_many_partitions() -> None:
    pipe = layers(30).pipeline(devices=8, batches=16)
    found = ppopt.choose_partition(pipe, "1f1b", time_limit=0.3)
    assert not found.proved and 0 < found.gap < Fraction(1, 2)
    assert found.lower_bound < found.value
    assert found.evaluated < found.partitions


def test_limits_are_not_enforced() -> None:
    pipe = layers(5).pipeline(devices=2, batches=4, mem_limit=1)
    found = ppopt.choose_partition(pipe, "1f1b")
    assert found.proved and not found.schedule.fits_limits


def test_compare_gives_every_strategy_its_best_partition() -> None:
    model = layers(5)
    pipe = model.pipeline(devices=2, batches=3, partition="search")
    compared = ppopt.compare(pipe, workers=1, time_limit=20)
    best = ppopt.solve(pipe, workers=1)
    assert compared.optimum.value == best.value
    for row in compared.rows:
        name = row.schedule.origin.strategy
        if name not in ("optimal", None) and row.schedule.pipeline.num_chunks == 1:
            chosen = ppopt.choose_partition(pipe, name)
            assert row.schedule.pipeline.ticks.time(row.value) == chosen.value


def test_what_has_no_partition_search_says_so() -> None:
    pipe = layers(5).pipeline(devices=2, batches=4, partition="search")
    with pytest.raises(InputError, match=r"evaluate \(ppopt\.choose_partition does\) does not"):
        ppopt.evaluate(pipe, "1f1b")
    with pytest.raises(NotApplicableError, match="partition: search knows no routes above 1"):
        ppopt.choose_partition(pipe, "chimera")
    first = layers(5).pipeline(devices=2, batches=4, first_backward="weight")
    with pytest.raises(NotApplicableError, match="first_backward: a search of partition does not"):
        ppopt.choose_partition(first, "1f1b")
