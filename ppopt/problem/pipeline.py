"""The pipeline: stages on devices, with their costs, memory and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

from ppopt.errors import ConflictError, InputError, NotApplicableError
from ppopt.problem import (
    cost_fields,
    frozen,
    layer_choices,
    layout,
    microbatches,
    partition,
    placement,
    rounding,
    units,
)
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import STAGE_COSTS, STEP_FIELDS
from ppopt.problem.costs import StageCosts, Ticks, costs_of, times
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.grid import Grid, numbers_at_speed_1
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.layers import Layers
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.memory import peak_of_1f1b
from ppopt.problem.microbatches import EQUAL, Factor
from ppopt.problem.operation import OpKind
from ppopt.problem.partition_table import PartitionTable
from ppopt.problem.pipeline_fields import PipelineFields
from ppopt.problem.pipeline_reading import read_counts, read_structure, read_values, set_fields
from ppopt.problem.pipeline_structure import PipelineStructure
from ppopt.problem.setting_fields import accepts_every_name
from ppopt.problem.settings import LIMIT_1F1B
from ppopt.problem.stage_row import StageRow, TooFineError
from ppopt.problem.traits import RESOURCES, Traits, pipeline_traits

MAX_TABLES = 64
"""Maximum number of placements, with links and speeds, whose tables a model caches."""
_FIELDS = tuple(field.name for field in dataclasses.fields(PipelineFields))
_LAYOUT = ("hosts", "hosted", "num_stages", "num_devices", "num_chunks")
"""What follows from the fields of `_OF_LAYOUT`."""
_OF_LAYOUT = frozenset(("stages", "chunks", "placement", "routes"))
_ROW = ("partitions", "stage_row")
"""What follows from the fields that have a part in the costs of the stages."""
_WITHOUT_COSTS = frozenset(("batches", "mem_limit", "order", "link_mode", "recompute", "offload"))
"""Fields that have none."""


@accepts_every_name
@dataclass(frozen=True)
class Pipeline(PipelineStructure):
    """The problem as its user gives it: exact, checked and frozen.

    A field may be given under any of its names in files (`forward_times` for `forward`; see
    `ppopt.problem.settings`). Values are one number for all or a list. With a named placement a
    list has one entry per device, for the device's whole share of the model, and `chunks` divides
    every share into equal stages; with an explicit placement it has one entry per stage. With a
    `model` in layers, costs are sums over the layers of each stage: one entry per stage under every
    placement, whatever the number of chunks. Numbers are read as decimals (see
    `ppopt.problem.exact`) and may have a unit, as in `"3.2ms"` or `"80GiB"` (see
    `ppopt.problem.units`). Raises InputError on anything that is no pipeline; ConflictError if
    valid fields contradict each other.
    """

    def __post_init__(self) -> None:
        read_counts(self)
        self._read_model()
        read_structure(self)
        self._read_partition()
        read_values(self)
        front = any(self.model.passing) if self.model else not all(self.has_operations[OpKind.B])
        microbatches.check_no_frozen_front(self.microbatch_memory, front)
        if self.slice_times:
            microbatches.check_no_pairs(self.slice_times, self.costs)
        self._set_grid()

    def _set_grid(self) -> None:
        """Set the grid, and round what is read if that makes it too fine."""
        stated = self.grid
        try:
            set_fields(self, grid=self._finest_grid)
            _ = self.ticks
        except TooFineError as error:
            if stated is not None:
                raise
            rounded = rounding.rounded(self, error)
            vars(self).clear()
            vars(self).update(vars(rounded))

    def __getstate__(self) -> dict[str, Any]:
        """What other processes need; instances and tables are large, and are built again."""
        large = ("_instances", "_instance_costs", "partitions")
        return {name: value for name, value in vars(self).items() if name not in large}

    def _read_model(self) -> None:
        """Read the model, its recompute and offload, and the form of its partition."""
        if self.model is None:
            modules = (f"{field}_modules" for field in layer_choices.RULES)
            fields = ("partition", "recompute", "offload", "recompute_unit", *modules)
            stated = {field: getattr(self, field) for field in (*fields, "offload_fraction")}
            if self.partition_order != placement.PartitionOrder.STAGES:
                stated["partition_order"] = self.partition_order
            partition.refuse_without_layers(stated)
            return
        model = self.model
        if not isinstance(model, Model):
            model = Model(model, time_unit=self.time_unit, memory_unit=self.memory_unit)
        if self.recompute_unit is not None:
            model = replace(model, recompute_unit=self.recompute_unit)
        if self.recompute == "full" and self.offload in ("all", SEARCH):
            raise ConflictError(
                f"offload: {self.offload} does not go with recompute full; a layer does one of both"
            )
        choices = {
            field: layer_choices.with_modules(
                field, getattr(self, field), getattr(self, f"{field}_modules")
            )
            for field in layer_choices.RULES
        }
        # A layer does one of both: one that stops to recompute may offload, and the reverse.
        for field in sorted(choices, key=lambda field: choices[field] != "none"):
            choices[field], model = layer_choices.read(field, choices[field], model)
        set_fields(
            self,
            **choices,
            model=model,
            partition=partition.normal(self.partition),
            recompute_unit=None,
            recompute_modules=None,
            offload_modules=None,
        )

    def _read_partition(self) -> None:
        """Read the counts of a partition: of all layers, in the order of the stages."""
        if self.model is None:
            return
        cut, order = self.partition, placement.PartitionOrder(self.partition_order)
        if order is placement.PartitionOrder.RANKS:
            cut = partition.in_stage_order(cut, self.hosted[0])
        cut = partition.of_all_layers(self.model, cut)
        if isinstance(cut, str) and cut not in partition.RULES:
            set_fields(self, model=layout.with_losses(self.model, cut))
        set_fields(self, partition=cut, partition_order=placement.PartitionOrder.STAGES)

    @cached_property
    def traits(self) -> Traits:
        """Traits of every problem of this pipeline (`ppopt.problem.traits`)."""
        return pipeline_traits(self)

    @property
    def blocks(self) -> bool:
        """Whether a transfer occupies the compute of both devices."""
        return self.link_mode is LinkMode.BLOCKING

    @property
    def has_links(self) -> bool:
        """Whether links are resources, which carry one transfer at a time; otherwise delays."""
        return bool(self.link_mode.has_links)

    @cached_property
    def has_transfers(self) -> bool:
        """Whether links are resources and some neighbouring stages are on two devices."""
        boundaries = (pair for row in self.hosts for pair in pairwise(row))
        return self.has_links and any(source != target for source, target in boundaries)

    @cached_property
    def has_unshard(self) -> bool:
        """Whether weights of stages are gathered before their first F."""
        return self._has_any("unshard", "unshard_memory")

    @cached_property
    def has_gradient_work(self) -> bool:
        """Whether a step has unshards, gradient syncs, optimizers or gathered weights."""
        return self._has_any(*STEP_FIELDS)

    @cached_property
    def has_offload(self) -> bool:
        """Whether activations move to the host."""
        return self._has_any("offload_memory")

    def _has_any(self, *fields: str) -> bool:
        """Whether a stage has one of some costs."""
        return any(any(self.stage_row.costs[field]) for field in fields)

    @property
    def has_auxiliary_operations(self) -> bool:
        """Whether a step has operations other than compute and transfers."""
        kinds = {RESOURCES[trait] for trait in self.traits if trait in RESOURCES}
        return not kinds <= {ResourceKind.LINK}

    @property
    def streams(self) -> bool:
        """Whether links are streams: they run what PyTorch posts, in its order."""
        return self.link_mode is LinkMode.STREAMS

    @property
    def open_decisions(self) -> Decisions:
        """Decisions that are made with the schedule."""
        opened = Decisions.open_in(vars(self))
        if Decisions.ORDER in opened and len(set(self.factors)) == 1:
            return opened & ~Decisions.ORDER
        return opened

    def without(self, decisions: Decisions, **fields: Any) -> Pipeline:
        """The pipeline as it is before these decisions are made, and with other fields.

        Limits stay the same, and the partition unless that decision is open and not among these.
        """
        opened = self.open_decisions
        decided = opened & decisions
        values: dict[str, Any] = {"mem_limit": self.limits}
        if self.model is not None and Decisions.PARTITION not in opened ^ decided:
            values["partition"] = self.counts
        values |= dict.fromkeys((decided & Decisions.OF_MODEL).fields)
        if Decisions.ORDER in decided:
            values["order"] = tuple(range(self.batches))
        pipeline = self.with_layers(**values | fields)
        return pipeline.placed(self.hosts[0]) if Decisions.PLACEMENT in decided else pipeline

    def refuse_open(self, decisions: Decisions, where: str) -> None:
        """Raise InputError if one of these decisions is open, which `where` does not make."""
        for field in (self.open_decisions & decisions).fields:
            raise InputError(f"{field}: {where} does not search it; give what ppopt.solve finds")

    @property
    def recomputed(self) -> tuple[int, ...]:
        """Layers that recompute, per stage; empty without a model in layers."""
        return self._layers_that("recompute")

    @property
    def offloaded(self) -> tuple[int, ...]:
        """Layers that offload, per stage; empty without a model in layers."""
        return self._layers_that("offload")

    def _layers_that(self, field: str) -> tuple[int, ...]:
        if self.model is None:
            return ()
        stages = self.model.stage_layers(self.counts)
        return tuple(sum(bool(getattr(layer, field)) for layer in stage) for stage in stages)

    @cached_property
    def frozen_stages(self) -> tuple[bool, ...]:
        """Whether all layers of a stage are frozen; for an empty stage, all layers before it."""
        if self.model is None:
            return self.frozen or (False,) * self.num_stages
        stages = self.model.stage_layers(self.counts)
        starts = accumulate(self.counts, initial=0)
        last = self.model.num_forward_only_layers
        return tuple(
            all(layer.frozen for layer in stage) if stage else start <= last
            for stage, start in zip(stages, starts, strict=False)
        )

    @cached_property
    def has_operations(self) -> tuple[tuple[bool, ...], ...]:
        """Whether a stage has operations of a kind: `has_operations[kind][stage]`.

        A frozen stage has no W, and no B and BW if all stages before it are frozen, too.
        """
        frozen_stages = self.frozen_stages
        first = frozen.num_forward_only(frozen_stages)
        backward = tuple(stage >= first for stage in range(self.num_stages))
        weight = tuple(not is_frozen for is_frozen in frozen_stages)
        kinds = {OpKind.B: backward, OpKind.W: weight, OpKind.BW: backward}
        return tuple(kinds.get(kind, (True,) * self.num_stages) for kind in OpKind)

    @cached_property
    def has_all_operations(self) -> bool:
        """Whether every stage has operations of every kind: none is frozen."""
        return all(map(all, self.has_operations))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Layers of every stage; empty without a model in layers."""
        if self.model is None:
            return ()
        speeds = tuple(self.device_speed[host] for host in self.hosts[0])
        return partition.counts_of(self.model, self.partition, self.num_stages, speeds)

    @property
    def has_unequal_shares(self) -> bool:
        """Whether stages given by hand differ, so that equal chunks may be wrong."""
        return self.model is None and bool(cost_fields.unequal_share(vars(self)))

    def without_model(self) -> Pipeline:
        """The same pipeline, its costs given stage by stage with an explicit placement.

        If microbatches differ in memory, what BW allocates holds for all of them
        (`ppopt.problem.microbatches.costs_of_all`).
        """
        if self.model is None:
            return self
        return self.by_stages(self.hosts[0])

    def by_stages(self, hosts: Sequence[int]) -> Pipeline:
        """The pipeline whose stages, on these devices, state their costs: nothing is read."""
        costs = self._stated | self._allocated_for_all
        fields = dict.fromkeys(("chunks", "model", "partition", "recompute", "offload", "link"))
        return self.having(
            **fields,
            **dict.fromkeys(cost.field for cost in STAGE_COSTS)
            | cost_fields.of_slice(costs, self.num_slices),
            stages=self.num_stages,
            placement=tuple(hosts),
            first_backward=FirstBackward.SPLIT,
            frozen=self.frozen_stages if any(self.frozen_stages) else None,
        )

    @property
    def _allocated_for_all(self) -> dict[str, tuple[Fraction, ...]]:
        """Memory that BW allocates for every microbatch, if they differ in it, by field."""
        factors = set(self.microbatch_memory or ())
        rows, in_weight = self._allocated_by_backward(factors)
        if not rows:
            return {}
        unit, per_unit = self.grid.memory, numbers_at_speed_1(self).grid.memory
        each = [[Fraction(amount, unit) for amount in row] for row in rows]
        return microbatches.costs_of_all(self.costs, each, min(factors), in_weight, per_unit)

    @cached_property
    def stated_costs(self) -> frozenset[str]:
        """Fields of the costs that the stages, or the layers of the model, state."""
        return frozenset(
            cost.field
            for cost in STAGE_COSTS
            if (
                getattr(self, cost.field) is not None
                if self.model is None or cost.of_pairs
                else self.costs.has_effect(cost)
            )
        )

    @property
    def _stated(self) -> dict[str, Any]:
        """The costs of stages that are stated, for one slice, by field."""
        return {field: row for field, row in self.costs.items() if field in self.stated_costs}

    def placed(self, hosts: Sequence[int]) -> Pipeline:
        """The same stages on other devices, given as the device of every stage.

        If the partition of a model is a rule, the rule is applied again: it depends on the speeds
        of the devices. Raises NotApplicableError if chunks divide unequal shares: other placements
        then have other stages.
        """
        if self.model is None and self.num_chunks > 1:
            if unequal := cost_fields.unequal_share(vars(self)):
                raise NotApplicableError(
                    f"{unequal}: chunks cut unequal shares into other stages under every "
                    "placement; give one number for all, a placement list, or layers"
                )
            return self.by_stages(hosts)
        return self.with_layers(stages=self.num_stages, chunks=None, placement=tuple(hosts))

    def with_partition(
        self, counts: Sequence[int], model: Model | None = None, **fields: Any
    ) -> Pipeline:
        """The pipeline with another partition of its layers, `counts` per stage: nothing is read.

        `model` has the same layers with another choice of those that recompute and offload. Limits
        are those of this pipeline. `fields` are others, such as `recompute`. Raises ConflictError
        if times or memory are too large or too finely divided.
        """
        table, chosen = self.partitions, self.model if model is None else model
        if chosen is not self.model:
            table = table.having(chosen)
        own, fields["mem_limit"] = tuple(counts), self.limits
        row = self.with_layers(model=chosen, partition=own, counts=own, partitions=table, **fields)
        _ = row.ticks
        return row

    def with_layers(self, **fields: Any) -> Pipeline:
        """The pipeline `having` other values of some fields.

        Delays by size and times of pairs of a model follow from the layers of its stages.
        """
        row = self.having(**fields)
        if row.model is not None:
            derived: dict[str, Any] = row.partitions.delays_of(row.counts)
            if row.overlap is not None:
                derived |= cost_fields.of_layers(row.model, row.counts, row.first_backward)
            set_fields(row, **derived)
        return row

    def having(self, **fields: Any) -> Pipeline:
        """The pipeline with other values of some fields, in the form in which pipelines have them.

        Nothing is read or checked. Counts of layers stay unless partition or placement change.
        """
        known, names = vars(self), _FIELDS
        if not _OF_LAYOUT & fields.keys():
            names += _LAYOUT
            names += () if "partition" in fields else ("counts",)
        if fields.keys() <= _WITHOUT_COSTS:
            names += _ROW
        copied: Pipeline = object.__new__(type(self))
        shared = {name: known[name] for name in names if name in known}
        set_fields(copied, **shared | fields)
        return copied

    @cached_property
    def unlimited(self) -> Pipeline:
        """The same pipeline without memory limits."""
        return self if self.mem_limit is None else self.having(mem_limit=None)

    @cached_property
    def partitions(self) -> PartitionTable:
        """Costs of all partitions of the layers into these stages, cached with the model."""
        tables: dict[Any, PartitionTable] = vars(self.model).setdefault("_tables", {})
        ways = None if self.link is None else (self.link, self.link.backward)
        delays = self.p2p, self.backward_p2p
        stated = [each for way, each in enumerate(delays) if ways is None or ways[way] is None]
        parts = self.num_slices, self.first_backward, self._finest_grid
        key = self.hosts, self.device_speed, *parts, ways, *stated
        if key not in tables:
            if len(tables) == MAX_TABLES:
                tables.clear()
            tables[key] = PartitionTable(self)
        return tables[key]

    @cached_property
    def stage_row(self) -> StageRow:
        """The costs of the stages as integers."""
        return self.partitions.row(self) if self.model is not None else StageRow.of_stages(self)

    @cached_property
    def costs(self) -> StageCosts[Fraction]:
        """Cost of every stage for one slice of a microbatch, in the user's units, chunks divided.

        Times are those on a device of speed 1.
        """
        if self.model is not None:
            return self.partitions.costs(self)
        share = self.hosts[0] if self.named_placement else tuple(range(self.num_stages))
        stated = {cost.field: vars(self)[cost.field] for cost in STAGE_COSTS}
        return costs_of(stated, share, self.num_chunks, self.num_slices)

    @cached_property
    def limits(self) -> tuple[Fraction, ...] | None:
        """Memory limit of every device, in the user's unit; None: unlimited."""
        limit = self.mem_limit
        if limit is None or isinstance(limit, tuple):
            return limit
        return (self.peak_of_1f1b if limit == LIMIT_1F1B else limit,) * self.num_devices

    @cached_property
    def peak_of_1f1b(self) -> Fraction:
        """Largest device peak of 1F1B on one route, in the user's unit."""
        costs_at = cache(partial(self.unlimited.costs_at, EQUAL))
        each = [costs_at(memory) for _, memory in self.factors]
        return Fraction(peak_of_1f1b(each, self.hosted[0], self.num_slices), self.grid.memory)

    @property
    def links(self) -> Any:
        """Delay between every stage and the next one: [way][route][boundary], in the user's unit.

        The first way is down; up is the way back.
        """
        return times((self.ticks.down, self.ticks.up), Fraction(1, self.grid.time))

    @cached_property
    def _finest_grid(self) -> Grid:
        """The grid while the pipeline is read: also as fine as the numbers that are read need."""
        return Grid.of(self)

    @cached_property
    def ticks(self) -> Ticks:
        """All costs as integer ticks: the only duration table of the project."""
        return self.stage_row.ticks(self)

    @property
    def factors(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """Factors on the times and on the memory of every microbatch."""
        same = (Fraction(1),) * self.batches
        return tuple(
            zip(self.microbatch_times or same, self.microbatch_memory or same, strict=True)
        )

    def slice_factor(self, slice_index: int) -> Fraction:
        """Factor on the times of a slice, on top of that of its microbatch."""
        return self.slice_times[slice_index] if self.slice_times else Fraction(1)

    def reordered(self, order: Sequence[int]) -> Pipeline:
        """The pipeline with its microbatches in another order, given by their indices."""
        before = self.order if isinstance(self.order, tuple) else range(self.batches)
        factors: dict[str, Any] = {
            field: tuple(values[index] for index in order)
            for field in (microbatches.TIMES, microbatches.MEMORY)
            if (values := getattr(self, field)) is not None
        }
        return self.having(**factors, order=tuple(before[index] for index in order))

    def costs_at(self, times: Factor, memory: Factor) -> StageCosts[int]:
        """Costs of a microbatch with these factors, in ticks."""
        costs = self.ticks.costs
        if times == memory == 1:
            return costs
        rows, in_weight = self._allocated_by_backward([memory])
        allocated = rows[0] if rows else None
        return microbatches.costs_of(costs, times, memory, allocated, in_weight)

    def _allocated_by_backward(self, factors: Iterable[Factor]) -> tuple[list[list[int]], bool]:
        """Memory that BW of stages allocates for a slice of microbatches with factors, in ticks.

        Empty: what follows from `costs`. And whether W of stage 0 runs all of its backward.
        """
        if self.model is None or self.model.recompute_unit is RecomputeUnit.STAGE:
            return [], False
        in_weight = self.first_backward is FirstBackward.WEIGHT
        return [self.partitions.allocated(self.counts, factor) for factor in factors], in_weight

    def time_text(self, ticks: int) -> str:
        """Write a time with its unit, if that is known: `3.2 ms`."""
        return units.with_unit(self.ticks.time(ticks), self.time_unit)

    def memory_text(self, ticks: int) -> str:
        """Write an amount of memory with its unit, if that is known: `80 GiB`."""
        return units.with_unit(self.ticks.memory(ticks), self.memory_unit)

    def spelled_out(self) -> str:
        """Every field that differs from its default: text that tells pipelines apart."""
        values = (
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if field.compare and (value := getattr(self, field.name)) != field.default
        )
        return f"{type(self).__name__}({', '.join(values)})"

    def __repr__(self) -> str:
        named = f"{self.name}: " if self.name else ""
        parts = [
            f"{self.num_devices} devices",
            *([] if self.num_stages == self.num_devices else [f"{self.num_stages} stages"]),
            f"{self.batches} microbatches",
            self.resolved_placement if self.named_placement else "explicit placement",
            *([] if self.limits is None else ["memory limits"]),
        ]
        return f"Pipeline({named}{', '.join(parts)})"


class Model(Layers):
    """A model in layers (see `ppopt.problem.layers.Layers`) to place on devices."""

    def pipeline(
        self,
        *,
        devices: int,
        batches: int,
        placement: Any = None,
        chunks: int | None = None,
        partition: Any = None,
        **fields: Any,
    ) -> Pipeline:
        """Place the model on devices: stages of consecutive layers, divided by a partition.

        There are `devices` x `chunks` stages; with a placement list, one per entry. `partition` is
        `balanced` (the default), `even`, a list of layers per stage, or a layout as Megatron-LM
        writes it (see `ppopt.problem.partition`). `fields` are other fields of `ppopt.Pipeline`,
        such as `mem_limit` and `p2p`. Raises InputError if they make no pipeline.
        """
        stages = devices
        if placement is not None and not isinstance(placement, str):
            placement = tuple(placement)
            stages = len(placement)
        pipeline = Pipeline(
            stages=stages,
            batches=batches,
            placement=placement,
            chunks=chunks,
            model=self,
            partition=partition,
            name=self.name,
            **fields,
        )
        if pipeline.num_devices != devices:
            raise InputError(
                f"placement: the list has {pipeline.num_devices} devices; stages says {devices}"
            )
        return pipeline
