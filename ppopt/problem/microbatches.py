"""Microbatches that differ: one factor each on times, and one each on memory.

With packed or variable-length sequences no two microbatches take the same time. A factor on times
multiplies every time of a stage for its microbatch, recompute included. A factor on memory
multiplies the activation, its retained and its offloaded part with the time of that move, and the
change of memory by B; not workspace. Of two operations that run as one, as much overlaps as of two
with the smaller of their factors; the rest of the longer one runs alone.

Slices of a microbatch differ in the same way: under causal attention a later one attends to more
tokens. The factor of a slice, of mean 1, multiplies its times, on top of that of its microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import floor, lcm
from operator import add, sub
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem import exact
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.costs import StageCosts
from ppopt.problem.decisions import SEARCH
from ppopt.problem.field_values import (
    FieldReader,
    as_list,
    check_above_0,
    check_count,
    is_list,
)
from ppopt.problem.units import Unit

Factor = Fraction
"""An exact ratio of times, or of amounts of memory."""
Factors = tuple[Factor, ...]
"""One factor per microbatch, above 0."""
EQUAL = Factor(1)
"""Factor of a microbatch if all are equal."""
FINEST_WORK = 2**20
"""Largest denominator of `sum_of_work`."""
TIMES, MEMORY = "microbatch_times", "microbatch_memory"
SLICE_TIMES = "slice_times"
DIGITS = 4
"""Decimals to which derived factors are rounded: ticks must be as fine."""
GIVEN_ORDER = "given"
"""The value of `order` for the order of the factors."""


def read_factors(field: str, value: object, count: int, reader: FieldReader) -> Factors | None:
    """Read one factor for all microbatches or slices, or one for each; None if none is given.

    Raises InputError on anything else.
    """
    if value is None:
        return None
    of = "slice" if field == SLICE_TIMES else "microbatch"
    listed = as_list(value, field) if is_list(value) else [value] * count
    check_count(field, listed, count, of)
    factors = reader.numbers(field, listed)
    check_above_0(field, factors, of)
    return factors


def read_slice_times(value: object, slices: int, reader: FieldReader) -> Factors | None:
    """Read the relative times of slices as factors on equal parts; None if none is given.

    The mean of the factors is 1: all slices together take as long as the microbatch. The reader
    remembers if they were rounded. Raises InputError on anything else.
    """
    times = read_factors(SLICE_TIMES, value, slices, reader)
    if times is None:
        return None
    factors = [time * slices / sum(times) for time in times]
    if denominator(factors) <= 10**DIGITS:
        return tuple(factors)
    reader.note([SLICE_TIMES])
    return with_mean_1(factors, Fraction(1, 10**DIGITS))


def with_mean_1(factors: Sequence[Fraction], step: Fraction) -> Factors:
    """Factors of mean 1 as multiples of a step; the largest one makes up for the others."""
    rounded = [step * max(1, round(factor / step)) for factor in factors]
    rounded[factors.index(max(factors))] += len(factors) - sum(rounded)
    return tuple(rounded)


def read_order(value: object, batches: int, routes: int) -> str | tuple[int, ...]:
    """Read the order of microbatches: `given`, `search`, or a chosen order.

    Raises InputError on anything else; ConflictError if an order is chosen on two routes.
    """
    if isinstance(value, str) and value == GIVEN_ORDER:
        return GIVEN_ORDER
    if routes > 1:
        raise ConflictError("order: search does not go with two routes, which share microbatches")
    if isinstance(value, str) and value == SEARCH:
        return SEARCH
    order = tuple(as_list(value, "order")) if is_list(value) else ()
    if all(type(index) is int for index in order) and sorted(order) == list(range(batches)):
        return order
    raise InputError(
        f"order: {value!r} is unknown; use {GIVEN_ORDER} or {SEARCH}, or list the "
        f"{batches} microbatches from 0, each once"
    )


def check_memory_known(times: object, memory: object, limit: object) -> None:
    """Raise ConflictError if memory is limited, and only the times of microbatches are given."""
    if times is not None and memory is None and limit is not None:
        raise ConflictError(
            f"{TIMES}: a memory limit needs {MEMORY}, too: one factor per microbatch, or 1 for "
            "equal memory"
        )


def check_no_pairs(slices: Factors, costs: StageCosts[Fraction]) -> None:
    """Raise ConflictError if slices differ, and pairs have times of their own."""
    alone = tuple(map(add, costs.forward, costs.backward))
    if costs.overlap not in ((), alone) and any(factor != 1 for factor in slices):
        raise ConflictError(
            f"{SLICE_TIMES}: does not go with overlap_times, which are of equal slices; give one"
        )


def check_no_frozen_front(memory: Factors | None, frozen: bool) -> None:
    """Raise ConflictError if layers run no backward, and microbatches differ in memory."""
    if frozen and any(factor != 1 for factor in memory or ()):
        raise ConflictError(
            f"{MEMORY}: does not go with frozen layers in front, which have no backward; give 1"
        )


def denominator(factors: Sequence[Fraction] | None) -> int:
    """Smallest number whose product with every factor is whole."""
    return lcm(*(factor.denominator for factor in factors or ()))


def sum_of_work(times: Factors) -> Factor:
    """Work of microbatches of these times, divided by that of the smallest.

    It is rounded down to a small denominator: products with ticks do not overflow.
    """
    work = exact.total(times) / min(times)
    finest = FINEST_WORK if work < FINEST_WORK else 1
    return work if work.denominator <= finest else Factor(floor(work * finest), finest)


def scaled(ticks: int, factor: Fraction) -> int:
    """Ticks times a factor: whole, as `denominator` of the factors divides the ticks."""
    product, rest = divmod(ticks * factor.numerator, factor.denominator)
    assert not rest, "ticks are as fine as the factors need"
    return product


def costs_of(
    costs: StageCosts[int],
    times: Factor,
    memory: Factor,
    allocated: Sequence[int] | None,
    in_weight: bool,
) -> StageCosts[int]:
    """Costs of stages, in ticks, for a microbatch with these factors.

    `allocated` is what BW of every stage allocates for such a microbatch; None: what follows from
    the costs. With `in_weight` W of stage 0 allocates that, too.
    """
    factors = {Unit.TIME: times, Unit.MEMORY: memory}
    rows: dict[str, tuple[Any, ...]] = {
        cost.field: _multiplied(costs[cost.field], factors[unit])
        if (unit := cost.multiplied_with)
        else costs[cost.field]
        for cost in STAGE_COSTS
    }
    if allocated is not None:
        rows["backward_workspace"] = tuple(map(min, allocated, costs.backward_workspace))
        rows["recompute_memory"] = tuple(map(sub, allocated, rows["backward_workspace"]))
        if in_weight:
            rows["weight_workspace"] = (allocated[0], *costs.weight_workspace[1:])
    return StageCosts(**rows)


def _multiplied(values: Any, factor: Factor) -> Any:
    """Ticks, in rows of any depth, times a factor."""
    if isinstance(values, tuple):
        return tuple(_multiplied(value, factor) for value in values)
    return scaled(values, factor)


def costs_of_all(
    costs: StageCosts[Fraction],
    each: Iterable[Sequence[Fraction]],
    smallest: Factor,
    in_weight: bool,
    per_unit: int,
) -> dict[str, tuple[Fraction, ...]]:
    """Memory that BW allocates for any microbatch, by field, from what it allocates for `each`.

    It is no more than BW of any of them allocates: if layers run one at a time, that grows at least
    as fast as the factor from `smallest` on. Amounts are rounded down to 1 / `per_unit`.
    """
    amounts = [min(row) for row in zip(*each, strict=True)]
    beside = tuple(map(min, amounts, costs.backward_workspace))
    rest = ((amount - own) / smallest for amount, own in zip(amounts, beside, strict=True))
    rows = {
        "backward_workspace": tuple(rounded_down(own, per_unit) for own in beside),
        "recompute_memory": tuple(rounded_down(amount, per_unit) for amount in rest),
    }
    if in_weight:
        whole = rounded_down(amounts[0], per_unit)
        rows["weight_workspace"] = (whole, *costs.weight_workspace[1:])
    return rows


def rounded_down(amount: Fraction, per_unit: int) -> Fraction:
    """The largest multiple of 1 / `per_unit` that is no more than an amount."""
    return Fraction(floor(amount * per_unit), per_unit)
