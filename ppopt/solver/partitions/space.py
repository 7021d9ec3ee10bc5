"""Partition problem in ticks: layers to be cut into the stages of a placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import comb, floor, lcm
from typing import NamedTuple

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem import exact
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.costs import StageCosts, Ticks
from ppopt.problem.distinct import map_distinct
from ppopt.problem.layer_choices import SEARCH_RECOMPUTE
from ppopt.problem.layers import Layers
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.partition_costs import link_delays
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.choices.spaces import PARTITIONS, RECOMPUTE

FOREVER = 2**60
"""Above every value in ticks."""
FINEST_WORK = 2**20
"""Largest denominator of `PartitionSpace.batches_of_work`."""


class LayerTicks(NamedTuple):
    """Costs of every layer in forward order, as whole ticks of time or of memory.

    Times are those on a device of slowness 1 (`PartitionSpace.slowness`).
    """

    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    """Time of B."""
    weight: tuple[int, ...]
    """Time of W."""
    backward: tuple[int, ...]
    """Time of BW."""
    activation: tuple[int, ...]
    """Memory that F allocates and retains."""
    memory_b: tuple[int, ...]
    """Signed change of memory by B; W frees the rest."""
    static: tuple[int, ...]


class RecomputeTicks(NamedTuple):
    """Costs and savings of recompute per layer, as whole ticks."""

    time: tuple[int, ...]
    """Time added to B and BW."""
    saved: tuple[int, ...]
    """Memory that F does not retain; B or BW allocates it at its start."""


class CutDelays(NamedTuple):
    """Delays between stages: `[s][l]` between stages s and s + 1 when l layers lie before the cut.

    0 if both stages share a device.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PartitionSpace:
    """All partitions of layers into the stages of a placement, with costs, limits and delays."""

    layers: LayerTicks
    hosts: tuple[int, ...]
    """Device of every stage."""
    batches: int
    delays: CutDelays
    batches_of_work: Fraction = Fraction(0)
    """Work of all microbatches, divided by that of the smallest; 0: `batches`."""
    limits: tuple[int, ...] | None = None
    """Memory limit per device; None: unlimited."""
    split: bool = True
    """Whether a backward may be B and W."""
    whole: bool = False
    """Whether a backward may be BW."""
    span: bool = False
    """Whether the value is the device span; else it is the makespan."""
    has_all_backwards: bool = True
    """Whether all layers have a backward: the first one is not frozen."""
    recompute: RecomputeTicks | None = None
    """Recompute per layer if it is searched, else None; the costs of the layers exclude it."""
    slowness: tuple[int, ...] = ()
    """Per device, the factor on the times of layers; empty: 1."""

    def slowness_of(self, device: int) -> int:
        """Factor on the times of layers on a device."""
        return self.slowness[device] if self.slowness else 1

    def of_all_batches(self, times: Ints) -> Ints:
        """Times of all microbatches, rounded down, from those of the smallest."""
        work = self.batches_of_work or Fraction(self.batches)
        whole, rest = np.divmod(times, work.denominator)
        return np.asarray(whole * work.numerator + rest * work.numerator // work.denominator)

    @cached_property
    def min_slowness(self) -> int:
        """Slowness of the fastest device."""
        return min(self.slowness, default=1)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers.forward)

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.hosts)

    @cached_property
    def num_devices(self) -> int:
        """Number of devices."""
        return max(self.hosts) + 1

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Stages of every device, ascending."""
        return tuple(
            tuple(stage for stage, host in enumerate(self.hosts) if host == device)
            for device in range(self.num_devices)
        )

    @property
    def size(self) -> int:
        """Number of partitions with at least one layer per stage."""
        return comb(self.num_layers - 1, self.num_stages - 1)

    @cached_property
    def unlimited(self) -> PartitionSpace:
        """Return the space without memory limits and without recompute."""
        return replace(self, limits=None, recompute=None)

    @cached_property
    def sums(self) -> LayerPrefixSums:
        """Sums of costs over the first layers."""
        return LayerPrefixSums.of(self)


class LayerPrefixSums(NamedTuple):
    """Sums of costs over the first l layers, l = 0 .. number of layers; int64 arrays."""

    forward: Ints
    gradient_time: Ints
    """Minimum time from the start of a backward to its gradient: B, BW, or the shorter one."""
    backward_input: Ints
    weight: Ints
    backward: Ints
    activation: Ints
    memory_b: Ints
    static: Ints
    saved: Ints
    """Maximum memory that F does not retain; 0 if recompute is not searched."""
    lead_in: Ints
    """`[s][l]`: minimum time of forwards and delays before stage s if it begins after l layers."""
    way_out: Ints
    """`[s][l]`: minimum time from the gradient of stage s, after l layers, to that of stage 0."""
    round_trip: Ints
    """`[s][l]`: minimum round trip from stage s to the last stage if it ends after l layers."""

    def static_of(self, low: Ints | int, high: Ints | int) -> Ints:
        """Static memory of layers `low` to `high` - 1."""
        return self.static[high] - self.static[low]

    def activation_of(self, low: Ints | int, high: Ints | int) -> Ints:
        """Activation of layers `low` to `high` - 1."""
        return self.activation[high] - self.activation[low]

    def min_memory_of(self, low: Ints | int, high: Ints | int) -> Ints:
        """Static memory of layers `low` to `high` - 1, plus their minimum retained activation."""
        activation = self.activation_of(low, high) - (self.saved[high] - self.saved[low])
        return self.static_of(low, high) + activation

    @classmethod
    def of(cls, space: PartitionSpace) -> LayerPrefixSums:
        """Add up the costs of a space's layers."""
        layers = space.layers
        gradient_time: tuple[int, ...] = layers.backward
        if space.split:
            gradient_time = layers.backward_input
            if space.whole:
                gradient_time = tuple(map(min, layers.backward_input, layers.backward))
        down, up = (np.array(rows, np.int64) for rows in space.delays)
        if space.num_stages == 1:
            down = up = np.zeros((0, space.num_layers + 1), np.int64)
        nothing = (0,) * space.num_layers
        saved = nothing if space.recompute is None else space.recompute.saved
        rows = {"gradient_time": gradient_time, "saved": saved, **layers._asdict()}
        sums = {
            name: np.concatenate([[0], np.cumsum(row, dtype=np.int64)])
            for name, row in rows.items()
        }
        slowness = np.array([space.slowness_of(host) for host in space.hosts], np.int64)
        beyond = sums["forward"] + sums["gradient_time"]
        return cls(
            **sums,
            lead_in=_min_before(down, sums["forward"], slowness),
            way_out=_min_before(up, sums["gradient_time"], slowness),
            round_trip=_min_before(
                (down + up)[::-1, ::-1], (beyond[-1] - beyond)[::-1], slowness[::-1]
            )[::-1, ::-1],
        )


def _min_before(delays: Ints, times: Ints, slowness: Ints) -> Ints:
    """`[s][l]`: minimum time of the stages 0 .. s - 1, which end after l layers, and their delays.

    `delays[s][l]` is the delay of the cut after stage s, after l layers; every stage has at least
    one layer. `times[l]` is the time of the first l layers, `slowness[s]` multiplies that of stage
    s.
    """
    cuts, positions = delays.shape
    minima = np.full((cuts + 1, positions), FOREVER)
    minima[0, 0] = 0
    for cut in range(cuts):
        own = times * slowness[cut]
        before = np.minimum.accumulate(np.where(minima[cut] < FOREVER, minima[cut] - own, FOREVER))
        ends = np.where(before[:-1] < FOREVER, before[:-1] + own[1:] + delays[cut, 1:], FOREVER)
        minima[cut + 1, 1:] = ends
    return minima


class PartitionTicks(NamedTuple):
    """A partition space, and its ticks of time and memory per user's unit."""

    space: PartitionSpace
    per_unit: int
    memory_per_unit: Fraction
    passing: bool
    """Whether schedules may need memory that the space ignores: workspace, or the memory of a
    microbatch larger than the smallest."""


def space_of(problem: Problem) -> PartitionTicks:
    """Create the partition space of a problem's model and placement.

    If layers have phases, only their compute counts, which is a relaxation. If microbatches differ,
    all are as short and as small as the smallest, but for the sum of all work, which is a
    relaxation as well, in any order. If recompute is searched without a memory limit, no layer
    recomputes, because it would only cost time. Raises
    NotApplicableError if a partition search does not apply.
    """
    pipeline = problem.pipeline
    if pipeline.model is None:
        raise NotApplicableError(
            "partition: search needs a model in layers; give `layers:` in a file"
        )
    PARTITIONS.check(problem)
    chosen = pipeline.recompute == SEARCH_RECOMPUTE
    if chosen:
        RECOMPUTE.check(problem)
    shortest, smallest = map(min, zip(*pipeline.factors, strict=True))
    pipeline = _on_compute(pipeline, chosen=chosen)
    speeds = tuple(speed / shortest for speed in pipeline.device_speed)
    speed, slowness, divisor = _slowness(speeds)
    ticks, costs = _one_layer_each(pipeline, speed)
    layers = pipeline.model.costed if chosen else ()
    recompute_times = [layer.recompute_time / speed / divisor for layer in layers]
    saved = [layer.saved for layer in layers]
    delays = _delays(pipeline)
    numbers = (delay for rows in delays for row in rows for delay in row)
    own_per_unit = ticks.per_unit * divisor
    per_unit = lcm(own_per_unit, exact.common_denominator((*numbers, *recompute_times)))
    static = [amount / smallest for amount in costs.static]
    limits = [limit / smallest for limit in pipeline.limits or ()]
    memory = (*static, *saved, *limits)
    memory_per_unit = lcm(ticks.memory_per_unit, exact.common_denominator(memory))
    factors = per_unit // own_per_unit, memory_per_unit // ticks.memory_per_unit
    kind = problem.backward_kind
    may_recompute = chosen and pipeline.limits is not None
    if kind is BackwardKind.MIXED and _splitting_loses_nothing(
        ticks, pipeline.model, may_recompute=may_recompute
    ):
        kind = BackwardKind.SPLIT
    space = PartitionSpace(
        layers=_layer_ticks(ticks, *factors, _in_ticks(static, memory_per_unit)),
        hosts=pipeline.hosts[0],
        batches=pipeline.batches,
        batches_of_work=_rounded_down(
            exact.total(times for times, _ in pipeline.factors) / shortest
        ),
        delays=CutDelays(*(tuple(_in_ticks(row, per_unit) for row in rows) for rows in delays)),
        limits=None if pipeline.limits is None else _in_ticks(limits, memory_per_unit),
        split=kind is not BackwardKind.WHOLE,
        whole=kind is not BackwardKind.SPLIT,
        span=problem.objective is Objective.DEVICE_SPAN,
        has_all_backwards=not pipeline.model.layers[0].frozen,
        recompute=RecomputeTicks(
            _in_ticks(recompute_times, per_unit), _in_ticks(saved, memory_per_unit)
        )
        if may_recompute
        else None,
        slowness=slowness,
    )
    relaxed = _has_workspace(ticks) or chosen or len(set(pipeline.factors)) > 1
    return PartitionTicks(space, per_unit, memory_per_unit / smallest, relaxed)


def _rounded_down(work: Fraction) -> Fraction:
    """A number of microbatches with a small denominator: products with ticks do not overflow."""
    finest = FINEST_WORK if work < FINEST_WORK else 1
    return work if work.denominator <= finest else Fraction(floor(work * finest), finest)


def _on_compute(pipeline: Pipeline, *, chosen: bool) -> Pipeline:
    """The pipeline with only the compute of its layers; without recompute if that is searched."""
    assert pipeline.model is not None
    if pipeline.overlap is not None:
        pipeline = replace(pipeline, model=pipeline.model.on_compute())
    if not chosen:
        return pipeline
    model = pipeline.model.recomputing(lambda _: False)
    return replace(pipeline, model=model, recompute=None, mem_limit=pipeline.limits)


def _has_workspace(ticks: Ticks) -> bool:
    """Whether an operation needs workspace."""
    return any(
        allocated and freed
        for kind in OpKind
        for allocated, freed in zip(ticks.allocates[kind], ticks.frees[kind], strict=True)
    )


def _layer_ticks(
    ticks: Ticks, time_factor: int, memory_factor: int, static: tuple[int, ...]
) -> LayerTicks:
    """Costs of the layers in finer ticks, from their ticks as stages of one layer each."""
    durations = [_times(ticks.durations[kind], time_factor) for kind in OpKind]
    return LayerTicks(
        forward=durations[OpKind.F],
        backward_input=durations[OpKind.B],
        weight=durations[OpKind.W],
        backward=durations[OpKind.BW],
        activation=_times(_changes(ticks, OpKind.F), memory_factor),
        memory_b=_times(_changes(ticks, OpKind.B), memory_factor),
        static=static,
    )


def _splitting_loses_nothing(ticks: Ticks, model: Layers, *, may_recompute: bool) -> bool:
    """Whether splitting backwards loses nothing in any stage of these layers.

    `may_recompute`: whether the layers may also recompute, which these ticks exclude. If layers
    recompute one at a time, BW of a stage allocates at least as much as its last layer alone. So no
    layer up to that one may need more in B or W, and none may recompute, because B recomputes all.
    """
    _, partial, weight, full = ticks.durations
    _, at_b, at_w, allocated = ticks.allocates
    count = range(len(full))
    split = [
        max(at_b[layer], ticks.memory_change(OpKind.B, layer) + at_w[layer]) for layer in count
    ]
    if model.recompute_unit is RecomputeUnit.LAYER:
        if may_recompute or any(layer.recompute and layer.saved for layer in model.costed):
            return False
        split = list(accumulate(split, max))
    return all(
        full[layer] >= partial[layer] + weight[layer]
        and ticks.costs.memory_b[layer] <= 0
        and split[layer] <= allocated[layer]
        for layer in count
    )


def _slowness(speeds: tuple[Fraction, ...]) -> tuple[Fraction, tuple[int, ...], int]:
    """Speed of a device of slowness 1, slowness of every device, and divisor of a time tick.

    If all devices have the same speed, it is that speed, without slowness and divisor.
    """
    if len(set(speeds)) == 1:
        return speeds[0], (), 1
    divisor = lcm(*(speed.numerator for speed in speeds))
    return Fraction(1), tuple(int(divisor / speed) for speed in speeds), divisor


def _one_layer_each(pipeline: Pipeline, speed: Fraction) -> tuple[Ticks, StageCosts[Fraction]]:
    """Costs of the pipeline whose stages are single layers on one device of this speed."""
    fine = replace(
        pipeline,
        stages=len(pipeline.model),
        chunks=None,
        placement=(0,) * len(pipeline.model),
        partition=(1,) * len(pipeline.model),
        mem_limit=None,
        p2p=0,
        backward_p2p=None,
        link=None,
        device_speed=speed,
    )
    return fine.ticks, fine.costs


def _changes(ticks: Ticks, kind: OpKind) -> tuple[int, ...]:
    """Net change of memory by an operation of every layer.

    Workspace is not included: bounds must not assume more memory than is needed.
    """
    return tuple(ticks.memory_change(kind, layer) for layer in range(len(ticks.costs.activation)))


def _times(row: tuple[int, ...], factor: int) -> tuple[int, ...]:
    return tuple(value * factor for value in row)


def _in_ticks(values: Iterable[Fraction], per_unit: int) -> tuple[int, ...]:
    return map_distinct(lambda value: int(value * per_unit), values)


def _delays(pipeline: Pipeline) -> list[list[tuple[Fraction, ...]]]:
    """Delays down and up in the user's unit, as in `CutDelays`."""
    cuts = len(pipeline.model) + 1
    rows = [[(Fraction(0),) * cuts] * (pipeline.num_stages - 1) for _ in range(2)]
    for _, stage, back, delays in link_delays(pipeline):
        rows[back][stage] = tuple(delays) if len(delays) > 1 else tuple(delays) * cuts
    return rows
