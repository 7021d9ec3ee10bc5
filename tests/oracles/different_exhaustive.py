"""The least makespan of microbatches that differ, in their given order, by trying every schedule.

Written from the rules alone (DESIGN 3, rules 1 to 5 and 16): every stage runs every kind of
operation in the order of the list. One stage per device; a backward is split (B and W) or whole
(X). A device is given by the sequence of its kinds: the k-th F is that of microbatch k, and so on.
Times follow from the sequences by longest paths, the memory of a device from its own sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from math import lcm
from typing import NamedTuple


class Different(NamedTuple):
    """Stages, one per device, and microbatches; times and memory in the user's units."""

    forward: Sequence[int]
    backward_input: Sequence[int]
    weight: Sequence[int]
    backward: Sequence[int]
    activation: Sequence[int]
    memory_b: Sequence[int]
    workspace: Sequence[int]
    """Of F, B and BW."""
    delay: int
    times: Sequence[Fraction]
    memory: Sequence[Fraction]
    limit: Fraction | None


def least_makespan(case: Different, *, whole: bool | None) -> Fraction | None:
    """The least makespan; None where no schedule keeps the limit. `whole` is None: either way."""
    batches = len(case.times)
    ways = product((False, True), repeat=batches) if whole is None else [(whole,) * batches]
    every = [order for way in ways for order in _orders(way)]
    choices = [
        [order for order in every if _fits(case, stage, order)]
        for stage in range(len(case.forward))
    ]
    ticks = Ticks.of(case)
    best: int | None = None
    for orders in product(*choices):
        makespan = _makespan(ticks, orders, best)
        best = makespan if makespan is not None else best
    return None if best is None else Fraction(best, ticks.per_unit)


Order = tuple[tuple[str, int], ...]


@cache
def _orders(whole: tuple[bool, ...]) -> tuple[Order, ...]:
    """Sequences in which no operation comes before that of its microbatch which it waits for."""
    batches = len(whole)
    split = [microbatch for microbatch, way in enumerate(whole) if not way]

    def grow(f: int, b: int, w: int) -> Iterator[Order]:
        if (f, b, w) == (batches, batches, len(split)):
            yield ()
        if f < batches:
            yield from ((("F", f), *rest) for rest in grow(f + 1, b, w))
        if b < f:
            kind = "X" if whole[b] else "B"
            yield from (((kind, b), *rest) for rest in grow(f, b + 1, w))
        if w < len(split) and split[w] < b:
            yield from ((("W", split[w]), *rest) for rest in grow(f, b, w + 1))

    return tuple(grow(0, 0, 0))


def _fits(case: Different, stage: int, order: Order) -> bool:
    """Whether the device keeps its limit: an operation holds its workspace while it runs."""
    activation, change, space = (
        row[stage] for row in (case.activation, case.memory_b, case.workspace)
    )
    live = Fraction(0)
    for kind, microbatch in order:
        factor = case.memory[microbatch]
        during = {"F": factor * activation + space, "B": factor * max(0, change) + space}
        during |= {"W": Fraction(0), "X": Fraction(space)}
        if case.limit is not None and live + during[kind] > case.limit:
            return False
        after = {"F": activation, "B": change, "W": -activation - change, "X": -activation}
        live += factor * after[kind]
    return True


class Ticks(NamedTuple):
    """Times in whole ticks: per kind, stage and microbatch, and from a stage to the next."""

    duration: dict[str, list[list[int]]]
    delay: int
    per_unit: int

    @classmethod
    def of(cls, case: Different) -> Ticks:
        """The ticks of a case: the times of all its microbatches are whole."""
        per_unit = lcm(*(time.denominator for time in case.times))
        factors = [int(time * per_unit) for time in case.times]
        rows = {
            "F": case.forward,
            "B": case.backward_input,
            "W": case.weight,
            "X": case.backward,
        }
        return cls(
            {
                kind: [[factor * time for factor in factors] for time in row]
                for kind, row in rows.items()
            },
            case.delay * per_unit,
            per_unit,
        )


def _makespan(ticks: Ticks, orders: Sequence[Order], below: int | None) -> int | None:
    """End of the last operation, each as early as it can start.

    None: they wait in a circle, or the end is not below a value. An operation waits for that
    before it on its device, as `_orders` says; F for the F of the stage above, and a backward for
    that of the stage below, whichever runs.
    """
    stages = range(len(orders))
    batches = len(ticks.duration["F"][0])
    down: list[list[int | None]] = [[None] * batches for _ in range(len(orders) + 1)]
    up: list[list[int | None]] = [[None] * batches for _ in range(len(orders) + 1)]
    down[0], up[-1] = [0] * batches, [0] * batches
    position, free = [0] * len(orders), [0] * len(orders)
    progress = True
    while progress:
        progress = False
        for stage in stages:
            end, order = free[stage], orders[stage]
            for kind, microbatch in order[position[stage] :]:
                if kind != "W":
                    ready = (down[stage] if kind == "F" else up[stage + 1])[microbatch]
                    if ready is None:
                        break
                    end = max(end, ready)
                end += ticks.duration[kind][stage][microbatch]
                if kind == "F":
                    down[stage + 1][microbatch] = end + ticks.delay
                elif kind != "W":
                    up[stage][microbatch] = end + ticks.delay
                position[stage] += 1
                progress = True
            if below is not None and end >= below:
                return None
            free[stage] = end
    done = all(position[stage] == len(orders[stage]) for stage in stages)
    return max(free) if done else None
