"""The least makespan of microbatches that differ, in their given order, by trying every schedule.

Written from the rules alone (DESIGN 3, rules 1 to 5 and 16): every stage runs every kind of
operation in the order of the list. One stage per device, split or whole backwards. A device is
given by the sequence of its kinds: the k-th F is that of microbatch k, and so on. The times of all
operations follow from the sequences by longest paths, and so does the memory of a device from its
own sequence.
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


def least_makespan(case: Different, *, whole: bool) -> Fraction | None:
    """The least makespan; None where no schedule keeps the limit."""
    kinds = ("F", "X") if whole else ("F", "B", "W")
    choices = [
        [order for order in _orders(len(case.times), kinds) if _fits(case, stage, order)]
        for stage in range(len(case.forward))
    ]
    values = (_makespan(case, orders) for orders in product(*choices))
    return min((value for value in values if value is not None), default=None)


@cache
def _orders(batches: int, kinds: tuple[str, ...]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Sequences in which no operation comes before that of its microbatch which it waits for."""

    def grow(done: tuple[int, ...]) -> Iterator[tuple[tuple[str, int], ...]]:
        if min(done) == batches:
            yield ()
        for place, kind in enumerate(kinds):
            if done[place] < (batches if place == 0 else done[place - 1]):
                after = (*done[:place], done[place] + 1, *done[place + 1 :])
                yield from (((kind, done[place]), *rest) for rest in grow(after))

    return tuple(grow((0,) * len(kinds)))


def _fits(case: Different, stage: int, order: Sequence[tuple[str, int]]) -> bool:
    """Whether the device keeps its limit: an operation holds its workspace while it runs."""
    activation, change, space = (
        row[stage] for row in (case.activation, case.memory_b, case.workspace)
    )
    held = Fraction(0)
    for kind, microbatch in order:
        factor = case.memory[microbatch]
        during = {"F": factor * activation + space, "B": factor * max(0, change) + space}
        during |= {"W": Fraction(0), "X": Fraction(space)}
        if case.limit is not None and held + during[kind] > case.limit:
            return False
        after = {"F": activation, "B": change, "W": -activation - change, "X": -activation}
        held += factor * after[kind]
    return True


def _makespan(case: Different, orders: Sequence[Sequence[tuple[str, int]]]) -> Fraction | None:
    """End of the last operation, each as early as it can start; None: they wait in a circle."""
    last = len(orders) - 1
    time = {
        "F": case.forward,
        "B": case.backward_input,
        "W": case.weight,
        "X": case.backward,
    }
    ends: dict[tuple[str, int, int], Fraction] = {}
    place, free = [0] * len(orders), [Fraction(0)] * len(orders)
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while place[stage] < len(order):
                kind, microbatch = order[place[stage]]
                waits = _inputs(kind, stage, microbatch, last)
                if any(key not in ends for key in waits):
                    break
                ready = (ends[key] + case.delay * (key[1] != stage) for key in waits)
                start = max((free[stage], *ready))
                end = start + case.times[microbatch] * time[kind][stage]
                ends[kind, stage, microbatch] = free[stage] = end
                place[stage] += 1
                progress = True
    done = all(place[stage] == len(order) for stage, order in enumerate(orders))
    return max(free) if done else None


def _inputs(kind: str, stage: int, microbatch: int, last: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", stage - 1, microbatch)] if stage else []
    if kind == "W":
        return [("B", stage, microbatch)]
    after = [(kind, stage + 1, microbatch)] if stage < last else []
    return [("F", stage, microbatch), *after]
