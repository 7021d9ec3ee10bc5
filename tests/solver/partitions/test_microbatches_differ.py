"""A searched partition of microbatches that differ, against every schedule of every partition."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt.problem.partition import SEARCH
from tests.oracles.configurations import partitions
from tests.oracles.different_exhaustive import Different, least_makespan

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
    for first, _ in partitions(len(layers), 2):
        stages = (layers[:first], layers[first:])
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


@pytest.mark.parametrize("seed", range(12))
def test_the_best_schedule_of_every_partition(seed: int) -> None:
    rng = Random(seed)
    kind = ("split", "whole", "mixed")[seed % 3]
    layers, fields = drawn(rng, batches=3 if kind == "whole" else 2)
    model = ppopt.Model([ppopt.Layer(**layer) for layer in layers])
    pipeline = model.pipeline(
        devices=2, batches=len(fields["microbatch_times"]), partition=SEARCH, **fields
    )
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
