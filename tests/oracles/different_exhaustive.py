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
    values = (_makespan(case, orders) for orders in product(*choices))
    return min((value for value in values if value is not None), default=None)


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


def _makespan(case: Different, orders: Sequence[Order]) -> Fraction | None:
    """End of the last operation, each as early as it can start; None: they wait in a circle."""
    last = len(orders) - 1
    time = {
        "F": case.forward,
        "B": case.backward_input,
        "W": case.weight,
        "X": case.backward,
    }
    ends: dict[tuple[str, int, int], Fraction] = {}
    position, free = [0] * len(orders), [Fraction(0)] * len(orders)
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, microbatch = order[position[stage]]
                waits = _inputs(kind, stage, microbatch, last)
                if any(key not in ends for key in waits):
                    break
                ready = (ends[key] + case.delay * (key[1] != stage) for key in waits)
                start = max((free[stage], *ready))
                end = start + case.times[microbatch] * time[kind][stage]
                ends[kind, stage, microbatch] = free[stage] = end
                if kind in ("B", "X"):
                    ends["up", stage, microbatch] = end
                position[stage] += 1
                progress = True
    done = all(position[stage] == len(order) for stage, order in enumerate(orders))
    return max(free) if done else None


def _inputs(kind: str, stage: int, microbatch: int, last: int) -> list[tuple[str, int, int]]:
    """What an operation waits for; "up" is the B or X of a stage, whichever runs."""
    if kind == "F":
        return [("F", stage - 1, microbatch)] if stage else []
    if kind == "W":
        return [("B", stage, microbatch)]
    after = [("up", stage + 1, microbatch)] if stage < last else []
    return [("F", stage, microbatch), *after]
