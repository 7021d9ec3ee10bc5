"""Partition problem in ticks: layers to be cut into the stages of a placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import Any, NamedTuple

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.costs import StageArrays
from ppopt.problem.decisions import Decisions
from ppopt.problem.distinct import map_distinct
from ppopt.problem.grid import ANY_GRID, Grid
from ppopt.problem.layer import Layer
from ppopt.problem.layer_options import option_of, options_of
from ppopt.problem.layer_table import LayerTable
from ppopt.problem.layers import Layers
from ppopt.problem.microbatches import EQUAL, Factor, sum_of_work
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.partition_table import PartitionTable
from ppopt.problem.problem import Problem
from ppopt.solver.choices.spaces import check_spaces

FOREVER = 2**60
"""Above every value in ticks."""
TIMES = ("forward", "backward_input", "weight", "backward")
"""Times of a layer, by kind of operation."""
STEP_COSTS = ("unshard", "unshard_memory", "gradient_sync", "optimizer")
"""Costs of a layer once per step."""


def scaled(ticks: Ints, factor: Factor) -> Ints:
    """Ticks times a factor whose denominator divides them."""
    return np.asarray(ticks // factor.denominator * factor.numerator)


LayerOptions = tuple[tuple[tuple[int, int], ...], ...]
"""Options of every layer to recompute or offload that save memory, in ticks: added time, and memory
that is not live between F and the backward. Moves to the host count no time."""


@dataclass(frozen=True, eq=False)
class PartitionSpace:
    """All partitions of layers into the stages of a placement, with costs, limits and delays."""

    layers: Mapping[str, Any]
    """Costs of every layer in forward order, `[layer]`, in ticks: times of F, B, W and BW on a
    device of slowness 1 (`forward`, `backward_input`, `weight`, `backward`), memory that F
    allocates (`activation`), its change by B (`memory_b`), and `static` memory. Optional, else 0:
    `STEP_COSTS`, of which slowness multiplies the optimizer alone."""
    hosts: tuple[int, ...]
    """Device of every stage."""
    batches: int
    delays: Ints
    """`[way, s, l]`: delay between stages s and s + 1, down and up, if l layers lie before the cut;
    0 if both stages share a device."""
    batches_of_work: Factor | int = 0
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
    options: LayerOptions | None = None
    """Options per layer if recompute or offload is searched, else None; the costs of the layers
    exclude them."""
    slowness: tuple[int, ...] = ()
    """Per device, the factor on the times of layers; empty: 1."""
    factors: tuple[Factor, Factor] = (EQUAL, EQUAL)
    """Factors on times, and on memory, of the layer table: those of the smallest microbatch."""
    grid: Grid = ANY_GRID
    """Ticks in one unit of time, and of memory."""
    passing: bool = False
    """Whether schedules may need memory that the space ignores: workspace, gathered weights, or the
    memory of a microbatch larger than the smallest."""

    def slowness_of(self, device: int) -> int:
        """Factor on the times of layers on a device."""
        return self.slowness[device] if self.slowness else 1

    def times_of(self, ticks: Ints) -> Ints:
        """Times of the layer table for the smallest microbatch."""
        return scaled(ticks, self.factors[0])

    def memory_of(self, ticks: Ints) -> Ints:
        """Memory of the layer table for the smallest microbatch."""
        return scaled(ticks, self.factors[1])

    def of_all_batches(self, times: Ints) -> Ints:
        """Times of all microbatches, rounded down, from those of the smallest."""
        work = self.batches_of_work or self.batches
        whole, rest = np.divmod(times, work.denominator)
        return np.asarray(whole * work.numerator + rest * work.numerator // work.denominator)

    @cached_property
    def min_slowness(self) -> int:
        """Slowness of the fastest device."""
        return min(self.slowness, default=1)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers["forward"])

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
        """Return the space without memory limits and without options of layers."""
        return replace(self, limits=None, options=None)

    @cached_property
    def min_delays(self) -> Ints:
        """Minimum delays between stages over all positions of the cuts: `[way, s]`."""
        return np.asarray(self.delays[..., 1:-1].min(axis=-1, initial=FOREVER))

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
    unshard: Ints
    unshard_memory: Ints
    gradient_sync: Ints
    optimizer: Ints
    saved: Ints
    """Maximum memory that options save; 0 without options."""
    lead_in: Ints
    """`[s][l]`: minimum time before stage s if it begins after l layers: the unshard of the first
    layer, forwards and delays."""
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
        layers, (down, up) = space.layers, space.delays
        gradient_time = layers["backward"]
        if space.split:
            gradient_time = layers["backward_input"]
            if space.whole:
                gradient_time = np.minimum(gradient_time, layers["backward"])
        options = space.options or ((),) * space.num_layers
        saved = [max((saved for _, saved in own), default=0) for own in options]
        rows: dict[str, Any] = dict.fromkeys(STEP_COSTS, np.zeros(space.num_layers, np.int64))
        rows |= {"gradient_time": gradient_time, "saved": saved, **layers}
        sums = {
            name: np.concatenate([[0], np.cumsum(row, dtype=np.int64)])
            for name, row in rows.items()
        }
        slowness = np.array([space.slowness_of(host) for host in space.hosts], np.int64)
        beyond = sums["forward"] + sums["gradient_time"]
        return cls(
            **sums,
            lead_in=sums["unshard"][1] + _min_before(down, sums["forward"], slowness),
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


def space_of(problem: Problem) -> PartitionSpace:
    """Create the partition space of a problem's model and placement.

    If layers have phases, only their compute counts, which is a relaxation; in a stated partition,
    whose bounds do not use these times, all of them count. If microbatches differ,
    all are as short and as small as the smallest, but for the sum of all work, which is a
    relaxation as well, in any order. If recompute or offload is searched, moves to the host cost no
    time, which is a relaxation; without a memory limit, no layer does either, because it would only
    cost time. Raises NotApplicableError if a partition search does not apply.
    """
    pipeline = problem.pipeline
    if pipeline.model is None:
        raise NotApplicableError(
            "partition: search needs a model in layers; give `layers:` in a file"
        )
    chosen = pipeline.open_decisions & Decisions.OF_LAYERS
    check_spaces(problem, pipeline.open_decisions & Decisions.OF_STRATEGY)
    shortest, smallest = map(min, zip(*pipeline.factors, strict=True))
    table, model = pipeline.partitions, pipeline.model.undecided(chosen)
    if pipeline.overlap is not None and Decisions.PARTITION in pipeline.open_decisions:
        model = model.on_compute()
    layers, position = LayerTable.of(model, table.layers.per_unit), np.arange(len(model))
    single = StageArrays(layers.stages(position, position + 1))
    slow = table.devices.slowness
    equal = len(set(slow)) == 1
    pace = slow[0] if equal else 1
    time = shortest * pace
    kind, around = problem.backward_kind, {"unshard": table.devices.ratio * single.costs["unshard"]}
    gathers = bool(single.costs["unshard_memory"].any())
    if not (model.layers[0].frozen or single.costs["weight_workspace"].any()):
        around["unshard_memory"] = single.costs["unshard_memory"]
    if not any(layer.frozen for layer in model.distinct):
        around["gradient_sync"] = table.devices.ratio * single.costs["gradient_sync"]
        around["optimizer"] = pace * single.costs["optimizer"]
    optional = bool(chosen) and pipeline.limits is not None
    if kind is BackwardKind.MIXED and _splitting_loses_nothing(single, model, optional=optional):
        kind = BackwardKind.SPLIT
    return PartitionSpace(
        layers={
            **{kind: scaled(row, time) for kind, row in zip(TIMES, single.durations, strict=True)},
            "activation": scaled(single.memory_change(OpKind.F), smallest),
            "memory_b": scaled(single.memory_change(OpKind.B), smallest),
            "static": single.costs["static"],
            **around,
        },
        hosts=pipeline.hosts[0],
        batches=pipeline.batches,
        batches_of_work=sum_of_work(tuple(times for times, _ in pipeline.factors)),
        delays=table.delays_by_cut[:, 0, :-1] * table.devices.ratio,
        limits=pipeline.ticks.limits,
        split=kind is not BackwardKind.WHOLE,
        whole=kind is not BackwardKind.SPLIT,
        span=problem.objective is Objective.DEVICE_SPAN,
        has_all_backwards=not model.layers[0].frozen,
        options=_options(table, model, chosen, time, smallest) if optional else None,
        slowness=() if equal else slow,
        factors=(time, smallest),
        grid=pipeline.grid,
        passing=single.has_workspace or gathers or bool(chosen) or len(set(pipeline.factors)) > 1,
    )


def _splitting_loses_nothing(single: StageArrays, model: Layers, *, optional: bool) -> bool:
    """Whether splitting backwards loses nothing in any stage of these layers.

    `optional`: whether the layers have options, which these ticks exclude. If layers
    recompute one at a time, BW of a stage allocates at least as much as its last layer alone. So no
    layer up to that one may need more in B or W, and none may recompute, because B recomputes all.
    """
    _, partial, weight, full = single.durations
    _, at_b, at_w, allocated = single.allocates
    split = np.maximum(at_b, single.memory_change(OpKind.B) + at_w)
    if model.recompute_unit is RecomputeUnit.LAYER:
        if optional or any(
            layer.in_force["kept"] < layer.activation for layer in model.distinct_costed
        ):
            return False
        split = np.maximum.accumulate(split)
    no_longer = full >= partial + weight
    return bool((no_longer & (single.costs["memory_b"] <= 0) & (split <= allocated)).all())


def _options(
    table: PartitionTable, model: Layers, decisions: Decisions, time: Factor, memory: Factor
) -> LayerOptions:
    """Options of every layer; `time` and `memory` multiply the ticks of the table."""
    per_time, per_memory = (
        table.layers.per_unit[field] * factor
        for field, factor in (("recompute_time", time), ("kept", memory))
    )

    def of_layer(layer: Layer) -> tuple[tuple[int, int], ...]:
        live = option_of(layer).resident
        return tuple(
            (int(option.time * per_time), int((live - option.resident) * per_memory))
            for option in options_of(layer, decisions)
            if option.resident < live
        )

    return map_distinct(of_layer, model.costed)
