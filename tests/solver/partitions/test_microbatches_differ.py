"""A searched partition of microbatches that differ, against every schedule of every partition.

Also with the order of the microbatches, and placements and recompute of such microbatches.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Objective, Status
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.problem import Problem
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.microbatch_orders.order_choice import OrderChoice
from ppopt.solver.partitions.partition_bounds import every_partition, partition_bounds
from ppopt.solver.partitions.space import FOREVER, space_of
from tests.oracles.configurations import partitions
from tests.oracles.different_exhaustive import Different, least_makespan
from tests.tiers import first, slow

WHOLE = {"split": False, "whole": True, "mixed": None}


def drawn(rng: Random, batches: int) -> tuple[list[dict[str, int]], dict[str, Any]]:
    """Layers, and the fields of a pipeline of two devices."""
    names = ("forward", "input", "weight", "backward", "activation")
    layers = [{name: rng.randint(1, 4) for name in names} for _ in range(rng.choice((3, 4)))]
    fields: dict[str, Any] = {
        "p2p": rng.choice((0, 1)),
        "microbatch_times": [Fraction(rng.choice((1, 2, 3, 5)), 2) for _ in range(batches)],
        "microbatch_memory": [Fraction(rng.choice((1, 2, 3)), 2) for _ in range(batches)],
    }
    total = sum(layer["activation"] for layer in layers)
    limit = rng.choice((None, rng.randint(total // 2, 2 * total), rng.randint(total, 2 * total)))
    return layers, fields | ({} if limit is None else {"mem_limit": limit})


def optimum(layers: list[dict[str, int]], fields: dict[str, Any], kind: str) -> Fraction | None:
    """The least makespan of all partitions into two stages; None if none is within the limit."""
    values = []
    for cut, _ in partitions(len(layers), 2):
        stages = (layers[:cut], layers[cut:])
        columns = {
            name: [sum(layer[name] for layer in own) for own in stages] for name in layers[0]
        }
        case = Different(
            forward=columns["forward"],
            backward_input=columns["input"],
            weight=columns["weight"],
            backward=columns["backward"],
            activation=columns["activation"],
            memory_b=(0, 0),
            workspace=(0, 0),
            delay=fields["p2p"],
            times=fields["microbatch_times"],
            memory=fields["microbatch_memory"],
            limit=None if "mem_limit" not in fields else Fraction(fields["mem_limit"]),
        )
        values.append(least_makespan(case, whole=WHOLE[kind]))
    return min((value for value in values if value is not None), default=None)


FAST = (4, 6, 8)
"""Seeds of small cases, one of every kind of backward: the slow ones are of larger pipelines."""


def drawn_case(
    seed: int,
) -> tuple[str, list[dict[str, Any]], dict[str, Any], ppopt.Pipeline]:
    """Kind of backward, layers, fields, and a pipeline whose partition is open."""
    kind = ("split", "whole", "mixed")[seed % 3]
    layers, fields = drawn(Random(seed), batches=3 if kind == "whole" else 2)
    model = ppopt.Model([ppopt.Layer(**layer) for layer in layers])
    batches = len(fields["microbatch_times"])
    return (
        kind,
        layers,
        fields,
        model.pipeline(devices=2, batches=batches, partition=SEARCH, **fields),
    )


@pytest.mark.parametrize("seed", first(3, (*FAST, 0, 1, 2, 3, 5, 7)))
def test_the_best_schedule_of_every_partition(seed: int) -> None:
    kind, layers, fields, pipeline = drawn_case(seed)
    result = ppopt.solve(pipeline, backward_kind=kind, workers=1)
    assert result.value == optimum(layers, fields, kind)
    assert str(result.status) == ("infeasible" if result.value is None else "optimal")


def test_a_bound_over_all_partitions_says_what_it_counts() -> None:
    model = ppopt.Model([ppopt.Layer(forward=2, activation=1) for _ in range(4)])
    pipeline = model.pipeline(
        devices=2, batches=2, partition=SEARCH, microbatch_times=(2, 2), microbatch_memory=1
    )
    equal = model.pipeline(devices=2, batches=2, partition=SEARCH)
    result, half = ppopt.solve(pipeline, workers=1), ppopt.solve(equal, workers=1)
    assert result.lower_bound == 2 * half.lower_bound
    differ = model.pipeline(devices=2, batches=2, partition=SEARCH, microbatch_times=(1, 2))
    assert "as short and as small as the smallest" in ppopt.solve(differ, workers=1).proof


def orders_of(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields with the microbatches in every order."""
    factors = zip(fields["microbatch_times"], fields["microbatch_memory"], strict=True)
    names = ("microbatch_times", "microbatch_memory")
    return [
        fields | dict(zip(names, zip(*order, strict=True), strict=True))
        for order in sorted(set(permutations(factors)))
    ]


def smallest(values: list[Fraction | None]) -> Fraction | None:
    """Least value of those that are feasible; None if none is."""
    return min((value for value in values if value is not None), default=None)


@pytest.mark.parametrize("seed", first(3, (3, 4, 5, 0, 1)))
def test_the_best_schedule_of_every_partition_in_every_order(seed: int) -> None:
    kind, layers, fields, pipeline = drawn_case(seed)
    result = ppopt.solve(
        replace(pipeline, order="search"), backward_kind=kind, workers=1, time_limit=600
    )
    assert result.value == smallest([optimum(layers, each, kind) for each in orders_of(fields)])
    assert result.status is (Status.INFEASIBLE if result.value is None else Status.OPTIMAL)


@pytest.mark.parametrize("seed", first(6, (*FAST, 12, 18, 19, 0, 1, 2, 5, 11, 16)))
def test_bounds_of_partitions_hold_in_every_order(seed: int) -> None:
    kind, _, _, pipeline = drawn_case(seed)
    space = space_of(Problem(pipeline, Objective.MAKESPAN, BackwardKind(kind)))
    partitions_of = list(every_partition(space))
    for counts, bound in zip(partitions_of, partition_bounds(space, partitions_of), strict=True):
        cut = replace(pipeline, partition=counts)
        optima = [
            ppopt.solve(cut.reordered(order), backward_kind=kind, workers=1, time_limit=600).value
            for order in permutations(range(pipeline.batches))
        ]
        minimum = smallest(optima)
        if bound >= FOREVER:
            assert minimum is None
        elif minimum is not None:
            assert Fraction(bound, space.grid.time) <= minimum


def test_a_bound_counts_the_work_of_all_microbatches() -> None:
    """One device: all work, 3 x (1 + 4 + 1) x 4. Two whole: 3 x 6 x 2, and F and BW of a layer."""
    model = ppopt.Model([ppopt.Layer(forward=1, count=4, activation=1)])
    times = (1, 4, 1)
    for devices, kind, bound in ((1, "split", 72), (2, "whole", 42)):
        pipeline = model.pipeline(
            devices=devices, batches=3, partition=SEARCH, microbatch_times=times
        )
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind(kind))
        choice = choice_of(problem)
        assert choice is not None
        choice.bound()
        assert choice.lower_bound == bound * pipeline.grid.time


@pytest.mark.parametrize(
    ("chosen", "order"),
    [
        ("placement", "search"),
        ("recompute", "given"),
        slow("placement", "given"),
        slow("recompute", "search"),
    ],
)
@pytest.mark.parametrize("seed", first(1, (1, 2)))
def test_placements_and_recompute_of_microbatches_that_differ(
    chosen: str, order: str, seed: int
) -> None:
    """Against the optimum of every placement, and of every choice of layers that recompute."""
    rng = Random(seed)
    layers, fields = drawn(rng, batches=2)
    layers = [{**layer, "recompute_time": 1} for layer in layers[:3]]
    fields["mem_limit"] = rng.randint(4, 12)
    model = ppopt.Model([ppopt.Layer(**layer) for layer in layers])
    hosts = (0, 1, 1) if chosen == "placement" else (0, 0, 1)
    base = ppopt.Pipeline(stages=3, batches=2, model=model, placement=hosts, **fields)
    options = {"backward_kind": "whole", "workers": 1, "time_limit": 600}
    searched = {"placement": "search"} if chosen == "placement" else {}
    open_ = replace(base, order=order, recompute="search" if chosen == "recompute" else None)
    result = ppopt.solve(open_, **options, **searched)
    if chosen == "placement":
        fixed = [base.placed(hosts) for hosts in product((0, 1), repeat=3) if len({*hosts}) == 2]
    else:
        fixed = [
            replace(base, model=model.with_choice(dict(enumerate(mask)), {}))
            for mask in product((False, True), repeat=3)
        ]
    orders = list(permutations(range(2))) if order == "search" else [(0, 1)]
    optima = [ppopt.solve(each.reordered(own), **options).value for each in fixed for own in orders]
    assert result.value == smallest(optima)
    assert result.status is (Status.INFEASIBLE if result.value is None else Status.OPTIMAL)


def test_the_given_order_is_searched_first() -> None:
    """So a search of orders that ends early is no worse than that of the given order."""
    model = ppopt.Model([ppopt.Layer(forward=1, count=4, activation=1)])
    for partition in ("balanced", SEARCH):
        pipeline = model.pipeline(
            devices=2, batches=4, partition=partition, microbatch_times=(1, 4, 1, 2), order="search"
        )
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
        choice = choice_of(problem)
        assert isinstance(choice, OrderChoice)
        assert choice.pipeline(next(iter(choice.first()))).order == (0, 1, 2, 3)


def test_placements_without_memory_for_the_largest_microbatch() -> None:
    """Two stages of 2 on a device, times 3: 12 in any order, or 6 on two devices."""
    pipeline = ppopt.Pipeline(
        stages=2, batches=3, forward=1, activation=2, mem_limit=5, placement="search",
        microbatch_times=(1, 2, 3), microbatch_memory=(1, 2, 3), order="search",
    )  # fmt: skip
    result = ppopt.solve(pipeline, workers=1, time_limit=600)
    assert result.status is Status.INFEASIBLE
    assert (
        "orders of 3 microbatches fits the memory limits: none of the 2 placements" in result.proof
    )
