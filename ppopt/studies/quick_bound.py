"""A quick lower bound on the makespan of all configurations of a plan space.

Two arguments hold for every partition, placement and order on P devices. M microbatches run. If
they differ, M is the sum of their factors on times, and for memory that of the products of both.

- Work: the devices together run F and the shorter of BW and B + W of every layer and microbatch,
  and every optimizer step; T is at least this divided by P.
- Memory: the activation of layer l for a microbatch is live at least from the start of its F to the
  end of its B or BW. In between, F and B or BW of all layers from l on run one after the other. So
  the sum over layers of M x activation x live time is at most (sum of limits - sum of static) x T.

Of phases only compute counts: `Layers.on_compute` is a relaxation whose operations run alone.

A layer that recomputes keeps less memory and works longer; one that offloads keeps less memory, and
its moves count no time. The bound is the minimum, over all choices of layers that recompute or
offload (even fractions of a layer), of the maximum of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import inf
from typing import NamedTuple

from ppopt.problem import exact
from ppopt.problem.cost_table import ZERO
from ppopt.problem.decisions import Decisions
from ppopt.problem.distinct import map_distinct
from ppopt.problem.layer import Layer
from ppopt.problem.layer_options import convex_hull, option_of, options_of
from ppopt.studies.plan_space import PlanSpace


class _Saving(NamedTuple):
    """Effect of an option of a layer on both bounds."""

    work: Fraction
    """Time by which the bound by work grows."""
    memory: Fraction
    """Time by which the bound by memory shrinks."""


def quick_bound(
    space: PlanSpace,
    limits: Sequence[Fraction] | None,
    factors: Sequence[tuple[Fraction, Fraction]] = (),
) -> Fraction | None:
    """Lower bound of the makespan; None: no schedule is within the memory limits of the devices.

    The space has one batch count, one route and devices of one speed. `factors` are
    those on the times and the memory of every microbatch; empty: 1.
    """
    model, devices = space.model, space.devices
    layers = (model.on_compute() if any(own.phases for own in model.distinct) else model).costed
    factors = factors or [(Fraction(1), Fraction(1))] * space.batches[0]
    batches = exact.total(times for times, _ in factors)
    in_memory = exact.total(times * memory for times, memory in factors)
    work = sum((batches * minimum_work(layer) + layer.optimizer for layer in layers), ZERO)
    if limits is None:
        return work / devices
    headroom = sum(limits) - sum(layer.static for layer in layers)
    times = _live_times(layers)
    memory_time = sum(time * layer.activation for time, layer in zip(times, layers, strict=True))
    if headroom < 0 or (not headroom and memory_time):
        return None
    per_headroom = in_memory / headroom if headroom else ZERO
    changes = [
        _Saving(batches * added / devices, per_headroom * time * saved)
        for time, steps in zip(times, map_distinct(partial(_steps, space), layers), strict=True)
        for added, saved in steps
    ]
    required = {*space.recompute} == {"full"}
    return _min_maximum(work / devices, per_headroom * memory_time, changes, required=required)


def _steps(space: PlanSpace, layer: Layer) -> list[tuple[Fraction, Fraction]]:
    """Time and memory of the steps from no option of a layer to its largest savings.

    The steps lie on the convex hull of its options. If the space has full recompute alone, there is
    the one step to a recompute of the whole layer.
    """
    modes = {*space.recompute}
    if modes == {"full"}:
        return [(layer.recompute_time, layer.saved)] if layer.saved else []
    decisions = space.open_decisions & Decisions.OFFLOAD
    if modes != {"none"}:
        decisions |= Decisions.RECOMPUTE
    bare = layer.undecided(decisions)
    options = (own._replace(moving=ZERO) for own in options_of(layer, decisions))
    return [
        (after.time - before.time, before.resident - after.resident)
        for before, after in pairwise([option_of(bare), *convex_hull(options)])
    ]


def minimum_work(layer: Layer) -> Fraction:
    """Minimum time of F and of a backward, whole or split, of a microbatch."""
    return layer.forward + min(layer.backward, layer.backward_input + layer.weight)


def _live_times(layers: Sequence[Layer]) -> list[Fraction]:
    """Minimum time from the start of F to the end of B or BW of every layer."""
    times, after = [], ZERO
    for layer in reversed(layers):
        after += layer.forward + min(layer.backward, layer.backward_input)
        times.append(after)
    return times[::-1]


def _min_maximum(
    work: Fraction, memory: Fraction, changes: Sequence[_Saving], *, required: bool
) -> Fraction:
    """Minimum over the choices of layers of the maximum of both bounds; all if `required`."""
    if required:
        work += sum(change.work for change in changes)
        memory -= sum(change.memory for change in changes)
        return max(work, memory)
    for change in sorted(changes, key=_rate, reverse=True):
        if work >= memory:
            break
        if work + change.work > memory - change.memory:
            return work + change.work * (memory - work) / (change.work + change.memory)
        work, memory = work + change.work, memory - change.memory
    return max(work, memory)


def _rate(change: _Saving) -> Fraction | float:
    """Memory that an option saves per added time."""
    return change.memory / change.work if change.work else inf
