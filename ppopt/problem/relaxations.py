"""Relaxations: instances whose bounds hold for another, each in the ticks of the other.

Each is a function from an instance to an instance. A relaxation has the layout of its instance:
the operations of a class are those of the same stage, route and slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.traits import Trait

Relaxation = Callable[[Instance], Instance]


def smallest_microbatches(instance: Instance) -> Instance:
    """Every microbatch has the smallest factors.

    Keep all starts of any schedule: every operation ends no later, and every microbatch needs no
    more memory at any time.
    """
    return _with_equal_microbatches(instance, map(min, zip(*instance.costs.factors, strict=True)))


def largest_microbatches(instance: Instance, route: int) -> Instance:
    """The restriction in which every microbatch has the largest factors of a route."""
    own = instance.costs.factors[route * instance.batches :][: instance.batches]
    return _with_equal_microbatches(instance, map(max, zip(*own, strict=True)))


def _with_equal_microbatches(instance: Instance, factors: Iterable[Fraction]) -> Instance:
    costs, same = instance.costs, ((Fraction(1), Fraction(1)),) * len(instance.costs.factors)
    ticks = costs.ticks_at(*factors)
    return instance.with_costs(costs.without(Trait.MICROBATCHES, ticks=ticks, factors=same))


def fastest_pairs(instance: Instance) -> Instance:
    """One kind of backward, and no pair is shorter than one of its operations.

    `ppopt.problem.short_pairs` says why; links are delays.
    """
    kind = BackwardKind.uniform(fused=instance.fused)
    return replace(instance, relaxed=instance.short_pairs.relaxed, backward_kind=kind)


def without_limits(instance: Instance) -> Instance:
    """Memory is unlimited."""
    costs = instance.costs
    factors = tuple((times, Fraction(1)) for times, _ in costs.factors)
    ticks = costs.ticks._replace(limits=None)
    return instance.with_costs(replace(costs, ticks=ticks, factors=factors))


def without_blocking(instance: Instance) -> Instance:
    """Transfers occupy their links, and no device."""
    return instance.with_costs(instance.costs.without(Trait.BLOCKING))


def links_as_delays(instance: Instance) -> Instance:
    """Links carry any number of transfers at a time."""
    return instance.with_costs(instance.costs.without(Trait.LINKS, Trait.BLOCKING))
