"""The instances: how many of each kind, by which study, and which are left out."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tests.equivalence import layered, mixed, pipelines
from tests.equivalence.pipelines import SPLIT, Draw, Fields


class Instance(NamedTuple):
    """A study of one pipeline, as arguments of `ppopt.Pipeline` and of the study."""

    name: str
    study: str
    """`solve`, `plan`, `frontier` or `compare`."""
    pipeline: Fields
    options: Fields
    may_improve: bool = False
    """Whether it does not end by proof: a lower value and a higher bound are no difference."""


class Group(NamedTuple):
    """Instances of one kind."""

    size: int
    draw: Draw
    study: str = "solve"
    may_improve: bool = False


GROUPS: dict[str, Group] = {
    "mixed": Group(14, mixed.mixed),
    "mixed-tight": Group(8, mixed.mixed_tight),
    "mixed-limits": Group(8, mixed.mixed_limits),
    "mixed-pairs": Group(5, mixed.mixed_pairs),
    "mixed-routes": Group(5, mixed.mixed_routes),
    "mixed-slices": Group(5, mixed.mixed_slices),
    "same-split": Group(5, mixed.one_kind("split")),
    "same-whole": Group(5, mixed.one_kind("whole")),
    "streams": Group(18, mixed.streams),
    "streams-open": Group(6, mixed.streams_open, may_improve=True),
    "hint": Group(10, mixed.hinted),
    "compare": Group(6, mixed.compared, "compare"),
    "partition": Group(12, layered.choosing("partition")),
    "placement": Group(8, layered.placements),
    "placed-partition": Group(4, layered.choosing("partition", "placement")),
    "recompute": Group(8, layered.choosing("recompute")),
    "partition-recompute": Group(10, layered.choosing("partition", "recompute")),
    "choose-all": Group(4, layered.choosing(*layered.ALL)),
    "streams-chosen": Group(4, layered.streamed),
    "plan": Group(10, layered.plans, "plan"),
    "plan-hands": Group(6, layered.hand_plans, "plan"),
    "frontier": Group(8, mixed.mixed, "frontier"),
    "frontier-partition": Group(4, layered.curve_over("partition"), "frontier"),
    "frontier-recompute": Group(4, layered.curve_over("recompute"), "frontier"),
    "frontier-placement": Group(2, layered.placements, "frontier"),
}
OPEN = frozenset(
    {"frontier-recompute-00", *(f"streams-{number:02}" for number in (3, 6, 10, 11, 16))}
)
"""Drawn instances that are left out: their search does not end by proof within about 5 s."""


def instances() -> Iterator[Instance]:
    """All instances, in a fixed order; each is drawn from a seed of its own, its name."""
    for group, (count, draw) in pipelines.GROUPS.items():
        for name in _names(group, count, pipelines.OPEN):
            fields, options = draw(Random(name))
            yield Instance(name, "solve", fields, {**SPLIT, **options})
    for group, (size, draw, study, may_improve) in GROUPS.items():
        for name in _names(group, size, OPEN):
            yield Instance(name, study, *draw(Random(name)), may_improve)


def _names(group: str, count: int, left_out: frozenset[str]) -> Iterator[str]:
    names = (f"{group}-{number:02}" for number in range(count))
    return (name for name in names if name not in left_out)
