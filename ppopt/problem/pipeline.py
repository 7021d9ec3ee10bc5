"""The problem: a pipeline's stages, where they sit, what they cost and what memory they take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from ppopt.errors import ConflictError, Faults, InputError, NotApplicableError
from ppopt.problem import exact, link, partition, placement, units
from ppopt.problem.backward_times import check_overlap, derive
from ppopt.problem.costs import Links, StageCosts, Ticks, costs_of, links_of, ticks_of
from ppopt.problem.field_values import (
    LARGEST_GRID,
    FieldReader,
    as_list,
    is_1f1b,
    is_exact,
    whole,
)
from ppopt.problem.first_backward import FirstBackward, in_weight
from ppopt.problem.layers import Layers
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.memory import check_memory, peak_of_1f1b, static_of
from ppopt.problem.operation import NUM_KINDS, Op, OpKind
from ppopt.problem.settings import (
    COUNTS,
    LIMIT_1F1B,
    SETTINGS,
    STAGE_COSTS,
    Unit,
    accepts_every_name,
)

SEARCH_RECOMPUTE = "search"
"""The value of `recompute` that means: chosen with the schedule."""
MOST_DEVICES = 1024
"""Most devices of a pipeline."""
Layout = tuple[tuple[tuple[int, ...], ...], int]


@accepts_every_name
@dataclass(frozen=True)
class Pipeline:
    """A pipeline, given as its user gives it: exact, checked and frozen.

    A field may be given under any of its names in files (`forward_times` for `forward`; see
    `ppopt.problem.settings`). Values are one number for all or a list. With a named placement a
    list has one entry per device, the device's whole share of the model, and `chunks` cuts every
    share into equal stages; with an explicit placement it has one entry per stage. Of a `model` in
    layers the costs are sums over the layers of each stage, one entry per stage under every
    placement, whatever number of chunks. Numbers are read as decimals (see `ppopt.problem.exact`)
    and may carry a unit, as in `"3.2ms"` or `"80GiB"` (see `ppopt.problem.units`). Raises
    InputError on anything that is no pipeline; ConflictError where its parts, each of them right,
    do not go together.
    """

    stages: int
    """Devices when the placement is named; the number of stages when it is a list."""
    batches: int
    """Microbatches, both routes together."""
    chunks: int | None = None
    """Stages per device; None: 1, or 2 where the placement is `interleaved` or `v`."""
    placement: Any = None
    """`linear`, `interleaved`, `v`, or the device of every stage; None: linear, or interleaved
    where `chunks` is above 1. `search`: `ppopt.solve` chooses it with the schedule."""
    model: Any = None
    """None; or the `Model` whose layers the stages hold (its list of layers will do), in place of
    costs per stage."""
    partition: Any = None
    """Of a model: `balanced` (None), `even`, layers per stage, or a layout; see
    `ppopt.problem.partition`."""
    recompute: Any = None
    """Of a model: `none` of its layers recomputes, or all do (`full`); it is None once the layers
    of the model say so. `search`: `ppopt.solve` chooses. None: as the layers say."""
    forward: Any = 1
    """Time of F, above 0."""
    backward: Any = None
    """Time of BW, the full backward; None: 2 F, or B + W where `backward_input` is given."""
    weight: Any = None
    """Time of W; None: half of BW, or what B leaves of it where `backward_input` is given."""
    backward_input: Any = None
    """Time of B; None: BW - W."""
    p2p: Any = 0
    """Delay between devices: one number; a list with the delay after every stage but the last; or a
    matrix [from device][to device], zero diagonal."""
    backward_p2p: Any = None
    """The same on the way back; its list too has the boundary after stage 0 first. None: `p2p`."""
    link: Any = None
    """Of a model: the delays by size, a `ppopt.problem.link.Link` or a mapping of `latency`,
    `bandwidth` and perhaps `backward`, in place of `p2p`, which then holds the list. After a stage
    whose last layer hands on `output` (a slice of it: its part) it is latency + output / bandwidth.
    """
    link_mode: Any = LinkMode.DELAY
    """`delay`; or `streams`: transfers of two devices run one at a time (see
    `ppopt.problem.link_mode`), on one route and without slices."""
    first_backward: Any = FirstBackward.SPLIT
    """Of a model: `split`, or `weight`: B of the first stage does nothing and its W runs the whole
    backward, as in PyTorch's runtime (see `ppopt.problem.first_backward`)."""
    activation: Any = 1
    """Memory that F takes (or keeps a part of) and that B and W together (or BW) give back."""
    memory_b: Any = 0
    """Signed change of memory by B, at least -activation; W gives back the rest."""
    static: Any = 0
    """Memory that is always there (weights, optimizer state)."""
    workspace: Any = None
    """Memory that F, B and BW need only while they run: taken at the start and given at the end.
    Chunks do not divide it. None: 0."""
    forward_workspace: Any = None
    """Workspace of F; None: `workspace`."""
    input_workspace: Any = None
    """Workspace of B; None: `workspace`."""
    weight_workspace: Any = None
    """Workspace of W; None: 0."""
    backward_workspace: Any = None
    """Workspace of BW; None: `workspace`."""
    recompute_time: Any = None
    """Time by which recompute makes B and BW longer; None: 0."""
    kept: Any = None
    """Memory that F keeps of its activation; B, or BW, takes the rest at its start. None: all."""
    device_speed: Any = 1
    """Speed of the devices, one number or one per device, above 0: an operation of a stage takes
    its time / the speed of its device. Where routes run a stage on two devices, these have one."""
    mem_limit: Any = None
    """None; `1f1b`; one number for every device; or a list, one number per device."""
    overlap: Any = None
    """Time of an F and a BW run as one, at least the longer of them; None: F + BW, and no search
    overlaps them (see `ppopt.problem.costs.Ticks.pair_time`)."""
    slices: int | None = None
    """Equal parts of every microbatch along the sequence, in causal order; None: 1."""
    routes: int = 1
    """2: half of the microbatches run the stages in mirrored placement (bidirectional)."""
    time_unit: str | None = None
    """ns, us, ms or s; None: that of the numbers which carry one, and if none does, unknown."""
    memory_unit: str | None = None
    """B, KB, MB, GB, KiB, MiB or GiB; None: as for `time_unit`."""
    tokens_per_microbatch: Any = None
    """Tokens of one microbatch; None: unknown."""
    flops_per_microbatch: Any = None
    """Floating-point operations that the whole model needs for F and BW of one microbatch, without
    recomputation; None: unknown."""
    peak_flops: Any = None
    """Floating-point operations per second of one device, of speed 1, at most; None: unknown."""
    name: str = ""
    rounded: tuple[str, ...] = ()
    """The fields whose input was finer than 10^-6 of the unit and was rounded to it."""
    tick_divisor: int = 1
    """Ticks in the common tick of the times; above 1 only for a schedule file whose operations
    start between those."""

    def __post_init__(self) -> None:
        for field in ("stages", "batches"):
            self._set(field, whole(getattr(self, field), field))
        self._set_placement()
        if self.num_devices > MOST_DEVICES:
            raise InputError(f"stages: {self.num_devices} devices are above {MOST_DEVICES}")
        if self.slices is not None:
            self._set("slices", whole(self.slices, "slices"))
        pieces = self.batches * self.num_slices
        if self.stages * self.num_chunks * pieces > LARGEST_GRID:
            raise ConflictError(
                f"stages x microbatches is above {LARGEST_GRID}: "
                f"{self.stages * self.num_chunks} x {pieces}; use fewer batches"
            )
        if not isinstance(self.name, str):
            raise InputError(f"name: {self.name!r} is not text")
        if isinstance(self.routes, bool) or self.routes not in (1, 2):
            raise InputError(f"routes: {self.routes!r} is neither 1 nor 2")
        if self.routes == 2 and self.batches % 2:
            raise ConflictError(f"batches: {self.batches} is odd; two routes need an even number")
        self._set_link_mode()
        self._set_first_backward()
        self._set_counts()
        reader = FieldReader(self.rounded)
        self._set_units(reader)
        self._set("device_speed", reader.speeds(self.device_speed, self.hosts, self.num_devices))
        faults = Faults()
        with faults.collected():
            if self.model is None:
                self._set_costs(reader)
            else:
                self._set_costs_of_layers(reader)
        for read in (self._set_p2p, self._set_limit):
            with faults.collected():
                read(reader)
        faults.check()
        self._set("rounded", reader.rounded)
        _ = self.ticks

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _set_link_mode(self) -> None:
        self._set("link_mode", LinkMode.read(self.link_mode))
        if self.streams and (self.routes == 2 or self.num_slices > 1):
            what = "two routes" if self.routes == 2 else "slices"
            raise ConflictError(
                f"link_mode: streams are PyTorch's, which has no {what}; use link_mode delay"
            )

    def _set_first_backward(self) -> None:
        self._set("first_backward", FirstBackward.read(self.first_backward))
        if self.first_backward is FirstBackward.SPLIT:
            return
        if self.model is None:
            raise InputError(
                "first_backward: goes with a model in layers; of stages, give stage 0 B = 0 and W "
                "the whole backward"
            )
        if self.routes == 2:
            raise ConflictError("first_backward: it is PyTorch's, which has no two routes")
        for what, given in (("partition", self.partition), ("recompute", self.recompute)):
            if given == partition.SEARCH:
                raise ConflictError(
                    f"first_backward: a search of {what} does not know it; give the {what} that it "
                    "finds without, then solve again"
                )

    @property
    def streams(self) -> bool:
        """Whether transfers of two devices run one at a time."""
        return self.link_mode is LinkMode.STREAMS

    def _set_counts(self) -> None:
        for setting in COUNTS:
            if (number := getattr(self, setting.field)) is not None:
                self._set(setting.field, exact.count(number, setting.field))

    def _set_units(self, reader: FieldReader) -> None:
        """Convert numbers that carry a unit to the pipeline's, which they declare if none is."""
        for measure in Unit:
            key, given = f"{measure}_unit", self._given(measure)
            declared = getattr(self, key) or getattr(self.model, key, None)
            standing = {
                one.field: one.name for one in SETTINGS if given.get(one.field, self) == one.default
            }
            found = units.resolve(measure, declared, given, ("mem_limit",), standing)
            for field in given.keys() - {"layers"}:
                self._set(field, found.values[field])
            self._set(key, found.unit)
            reader.note(found.rounded)
            if self.model is not None and getattr(self.model, key) != found.unit:
                self._set("model", replace(self.model, **{key: found.unit}))

    def _given(self, measure: Unit) -> dict[str, Any]:
        """Every number of a measure that was given, by field; of layers, one number."""
        given = {
            setting.field: value
            for setting in SETTINGS
            if setting.unit is measure
            and (self.model is None or setting not in STAGE_COSTS)
            and (value := getattr(self, setting.field)) is not None
            and not is_1f1b(value)
        }
        return given if self.model is None else given | {"layers": self.model.sample(measure)}

    def _set_placement(self) -> None:
        if self.chunks is not None:
            self._set("chunks", whole(self.chunks, "chunks"))
        self._set_partition()
        where = self.placement
        if where is None or isinstance(where, str):
            if where is not None and where not in placement.NAMED:
                raise InputError(
                    f"placement: {where!r} is unknown; use {', '.join(placement.NAMED)}, "
                    "or a list of devices such as 0,1,1,0"
                )
            if where == "linear" and (self.chunks or 1) > 1:
                raise InputError(
                    f"chunks: {self.chunks} does not go with placement linear; "
                    "use placement interleaved or v"
                )
            return
        if self.chunks is not None:
            raise InputError("chunks: does not go with a placement list; leave it out")
        devices = placement.explicit(as_list(where, "placement"))
        if len(devices) != self.stages:
            raise InputError(
                f"placement: has {len(devices)} entries for {self.stages} stages; "
                "give one per stage"
            )
        self._set("placement", devices)

    def _set_partition(self) -> None:
        """Check the model and its partition, each by itself."""
        if self.model is None:
            if self.partition is not None:
                raise InputError(
                    "partition: needs a model in layers; give `layers:` in a file, or ppopt.Model"
                )
            if self.recompute is not None:
                raise InputError(
                    "recompute: needs a model in layers; give `layers:` in a file, or ppopt.Model; "
                    "stages take recompute_time and kept"
                )
            return
        if not isinstance(self.model, Model):
            model = Model(self.model, time_unit=self.time_unit, memory_unit=self.memory_unit)
            self._set("model", model)
        self._set_recompute()
        self._set("partition", partition.normal(self.partition))

    def _set_recompute(self) -> None:
        if self.recompute is None:
            return
        if self.recompute == SEARCH_RECOMPUTE:
            return
        if self.recompute not in ("none", "full"):
            raise InputError(f"recompute: {self.recompute!r} is unknown; use none, full or search")
        self._set("model", self.model.with_recompute(self.recompute))
        self._set("recompute", None)

    def refuse_recompute_search(self, what: str) -> None:
        """Raise InputError where recompute is to be searched, which `what` does not do."""
        if self.recompute == SEARCH_RECOMPUTE:
            raise InputError(f"recompute: {what} does not search it; use none or full, or solve")

    @property
    def recomputed(self) -> tuple[int, ...]:
        """Layers that recompute, per stage; empty without a model in layers."""
        if self.model is None:
            return ()
        stages = self.model.stage_layers(self.counts)
        return tuple(sum(layer.recompute for layer in stage) for stage in stages)

    def _set_costs(self, reader: FieldReader) -> None:
        faults = Faults()
        for cost in STAGE_COSTS:
            given = getattr(self, cost.field)
            if given is not None or cost.has_value:
                signed = cost.least is None
                with faults.collected():
                    values = reader.per_stage(cost.field, given, self.stages, signed=signed)
                    self._set(cost.field, values)
        faults.check()
        self._derive_times()
        check_memory(self.activation, self.memory_b, self.kept)

    def _set_costs_of_layers(self, reader: FieldReader) -> None:
        """Sum the costs over the layers of every stage; costs given beside layers are refused.

        A cost that layers do not have takes its default on every stage.
        """
        defaults = self.__dataclass_fields__
        for cost in STAGE_COSTS:
            given = getattr(self, cost.field)
            if given != defaults[cost.field].default and not is_exact(given):
                raise InputError(f"{cost.name}: the layers give the costs; leave it out")
            if cost.has_value:
                self._set(cost.field, reader.numbers(cost.field, [cost.default]) * self.num_stages)
        costs = self.model.stage_costs(self.counts)._asdict()
        if self.first_backward is FirstBackward.WEIGHT:
            costs = in_weight(costs)
        for field, values in costs.items():
            self._set(field, values)
        reader.note(self.model.rounded)

    def _derive_times(self) -> None:
        backward = derive(self.forward, self.backward, self.weight, self.backward_input)
        self._set("backward", backward.full)
        self._set("weight", backward.weight)
        self._set("backward_input", backward.partial)
        if self.overlap is not None:
            check_overlap(self.forward, self.backward, self.overlap)

    def _set_p2p(self, reader: FieldReader) -> None:
        if self.link is not None:
            self._set_p2p_by_size()
        for field in ("p2p",) if self.backward_p2p is None else ("p2p", "backward_p2p"):
            given = getattr(self, field)
            self._set(field, reader.delays(field, given, self.num_stages, self.num_devices))

    def _set_p2p_by_size(self) -> None:
        """Delays of the boundaries from what the layers hand on.

        Delays of another partition, which `replace` hands on, are replaced.
        """
        if self.model is None:
            raise InputError("link: needs a model in layers with `output`; stages take p2p_time")
        if not self.model.has_output:
            raise InputError("link: no layer gives its output; give `output` in the layers")
        self._set("link", link.read_link(self.link, self.time_unit, self.memory_unit))
        ways = {"p2p": self.link, "backward_p2p": self.link.backward}
        sizes = [size / self.num_slices for size in self.model.outputs(self.counts)]
        for field, way in ways.items():
            if way is not None:
                given = getattr(self, field)
                if given != 0 and not is_exact(given):
                    raise InputError(f"{field}_time: link gives it; keep one of both")
                self._set(field, way.delays(sizes))

    def _set_limit(self, reader: FieldReader) -> None:
        if self.mem_limit is not None and self.model is not None and not self.model.has_activation:
            raise InputError(
                "mem_limit: no layer gives its activation; give `activation` in the layers, or "
                "leave the limit out"
            )
        self._set("mem_limit", reader.limit(self.mem_limit, self.num_devices))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Layers of every stage; empty without a model in layers."""
        if self.model is None:
            return ()
        speeds = tuple(self.device_speed[host] for host in self.hosts[0])
        return partition.counts_of(self.model, self.partition, self.num_stages, speeds)

    @cached_property
    def num_chunks(self) -> int:
        """Stages of each device under a named placement (1 with an explicit placement)."""
        if self.chunks is not None or not self.named_placement:
            return self.chunks or 1
        return self.chunks_of_partition or placement.DEFAULT_CHUNKS.get(self.placement, 1)

    @cached_property
    def chunks_of_partition(self) -> int | None:
        """Stages per device that counts or a layout make; None where they leave it open."""
        found = None if self.model is None else partition.stages_of(self.partition)
        if found is None or found % self.stages or self.placement == "linear":
            return None
        return found // self.stages

    @property
    def num_slices(self) -> int:
        """Parts of every microbatch along the sequence."""
        return self.slices or 1

    @property
    def named_placement(self) -> bool:
        """Whether the placement follows a named rule (a list is explicit)."""
        return self.placement is None or isinstance(self.placement, str)

    @property
    def resolved_placement(self) -> Any:
        """The placement with its default resolved: a name, or the list."""
        if self.placement is not None:
            return self.placement
        return "linear" if self.num_chunks == 1 else "interleaved"

    @cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """Device of every stage, per route: `hosts[route][stage]`."""
        if self.named_placement:
            first = placement.named(self.resolved_placement, self.stages, self.num_chunks)
        else:
            first = self.placement
        last = max(first)
        mirrored = tuple(last - device for device in first)
        return (first, mirrored)[: self.routes]

    @property
    def has_unequal_shares(self) -> bool:
        """Whether stages are given by hand and differ, so that equal chunks may be a wrong cut."""
        given = (getattr(self, cost.field) for cost in STAGE_COSTS)
        shares = zip(*(values for values in given if values is not None), strict=True)
        return self.model is None and len(set(shares)) > 1

    @property
    def layout(self) -> Layout:
        """Where every stage sits, per route, and the slices of a microbatch.

        Schedules of one layout are of one search space.
        """
        return self.hosts, self.num_slices

    @cached_property
    def num_stages(self) -> int:
        """Stages S, chunks counted."""
        return len(self.hosts[0])

    @cached_property
    def num_devices(self) -> int:
        """Devices D."""
        return self.stages if self.named_placement else max(self.placement) + 1

    @cached_property
    def hosted(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Stages of every device, ascending, per route: `hosted[route][device]`."""
        return tuple(_hosted(row, self.num_devices) for row in self.hosts)

    def without_model(self) -> Pipeline:
        """The same pipeline, its costs given stage by stage with an explicit placement."""
        if self.model is None:
            return self
        return replace(
            self,
            stages=self.num_stages,
            placement=self.hosts[0],
            chunks=None,
            model=None,
            partition=None,
            link=None,
            first_backward=FirstBackward.SPLIT,
        )

    def placed(self, hosts: Sequence[int]) -> Pipeline:
        """The same stages on other devices, by a list with the device of every stage.

        Where the partition of a model is a rule, the rule is applied again: it depends on the
        speeds of the devices. Raises NotApplicableError where chunks cut shares that differ:
        other placements then have other stages.
        """
        costs: dict[str, Any] = {}
        if self.named_placement and self.model is None and self.num_chunks > 1:
            for cost in STAGE_COSTS:
                values = getattr(self, cost.field)
                if values is not None and len(set(values)) > 1:
                    raise NotApplicableError(
                        f"{cost.name}: chunks cut unequal shares into other stages under every "
                        "placement; give one number for all, a placement list, or layers"
                    )
                costs[cost.field] = None if values is None else values[0] / self.num_chunks
        return replace(self, stages=self.num_stages, chunks=None, placement=tuple(hosts), **costs)

    def route(self, microbatch: int) -> int:
        """Route of a microbatch: the first half takes route 0, the second half route 1."""
        return microbatch * self.routes // self.batches

    def device(self, stage: int, microbatch: int) -> int:
        """Device that runs the operations of a stage for a microbatch."""
        return self.hosts[self.route(microbatch)][stage]

    def code(self, kind: Any, stage: Any, microbatch: Any, slice: Any = 0) -> Any:  # noqa: A002
        """Number of an operation, 0 .. num_codes - 1; works on integers and on arrays."""
        place = (kind * self.num_stages + stage) * self.batches + microbatch
        return place * self.num_slices + slice

    def op(self, code: int) -> Op:
        """Operation with this number: the inverse of `code`."""
        rest, part = divmod(int(code), self.num_slices)
        rest, microbatch = divmod(rest, self.batches)
        kind, stage = divmod(rest, self.num_stages)
        return Op(OpKind(kind), stage, microbatch, part)

    @property
    def num_codes(self) -> int:
        """Numbers that `code` can give: kinds x stages x microbatches x slices."""
        return NUM_KINDS * self.num_stages * self.batches * self.num_slices

    @cached_property
    def costs(self) -> StageCosts:
        """Cost of every stage for one slice of a microbatch, in the user's units, chunks cut.

        Times are those on a device of speed 1.
        """
        shared = self.named_placement and self.model is None
        share = self.hosts[0] if shared else tuple(range(self.num_stages))
        chunks = self.num_chunks if shared else 1
        given = {field: getattr(self, field) for field in StageCosts._fields}
        return costs_of(given, share, chunks, self.num_slices)

    @cached_property
    def limits(self) -> tuple[Fraction, ...] | None:
        """Memory limit of every device, in the user's unit; None: unlimited."""
        if self.mem_limit is None:
            return None
        if self.mem_limit == LIMIT_1F1B:
            peak = peak_of_1f1b(self.costs, self.hosted[0], self.batches, self.num_slices)
            return (peak,) * self.num_devices
        if isinstance(self.mem_limit, tuple):
            return self.mem_limit
        return (self.mem_limit,) * self.num_devices

    def static_of(self, device: int) -> Fraction:
        """Memory always held by a device: the static memory of its stages, on every route."""
        return static_of(self.costs, [stage for hosted in self.hosted for stage in hosted[device]])

    @cached_property
    def links(self) -> Links:
        """Delay between every stage and the next one, per route, both ways, in the user's unit."""
        back = self.p2p if self.backward_p2p is None else self.backward_p2p
        return links_of(self.hosts, self.p2p, back)

    @cached_property
    def ticks(self) -> Ticks:
        """All costs as integer ticks: the one duration table of the project."""
        static = tuple(self.static_of(device) for device in range(self.num_devices))
        speeds = tuple(self.device_speed[host] for host in self.hosts[0])
        pieces = self.batches * self.num_slices
        rest = (static, self.limits, pieces, self.tick_divisor)
        return ticks_of(self.costs, speeds, self.links, *rest)

    def time_text(self, ticks: int) -> str:
        """Write a time with its unit, where that is known: `3.2 ms`."""
        return with_unit(self.ticks.time(ticks), self.time_unit)

    def memory_text(self, ticks: int) -> str:
        """Write an amount of memory with its unit, where that is known: `80 GiB`."""
        return with_unit(self.ticks.memory(ticks), self.memory_unit)

    def spelled_out(self) -> str:
        """Every field with its value: the words that tell pipelines apart."""
        values = (
            f"{one.name}={getattr(self, one.name)!r}"
            for one in dataclasses.fields(self)
            if one.repr
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
    """The model as it is trained: layers (see `ppopt.problem.layers.Layers`) to put on devices."""

    def pipeline(
        self,
        *,
        devices: int,
        batches: int,
        placement: Any = None,
        chunks: int | None = None,
        partition: Any = None,
        **more: Any,
    ) -> Pipeline:
        """Place the model on devices: stages of consecutive layers, cut by a partition.

        There are `devices` x `chunks` stages; with a placement list, one per entry. `partition` is
        `balanced` (the default), `even`, a list of layers per stage, or a layout as Megatron-LM
        writes it (see `ppopt.problem.partition`). `more` are further fields of `ppopt.Pipeline`,
        such as `mem_limit` and `p2p`. Raises InputError where that is no pipeline.
        """
        stages = devices
        if placement is not None and not isinstance(placement, str):
            placement = tuple(placement)
            stages = len(placement)
        made = Pipeline(
            stages=stages,
            batches=batches,
            placement=placement,
            chunks=chunks,
            model=self,
            partition=partition,
            name=self.name,
            **more,
        )
        if made.num_devices != devices:
            raise InputError(
                f"placement: the list has {made.num_devices} devices; stages says {devices}"
            )
        return made


def with_unit(value: Fraction, unit: str | None) -> str:
    """Write an amount with its unit, where that is known."""
    return str(exact.plain(value)) if unit is None else f"{exact.plain(value)} {unit}"


def _hosted(hosts: Sequence[int], devices: int) -> tuple[tuple[int, ...], ...]:
    """Stages of every device, ascending."""
    found: list[list[int]] = [[] for _ in range(devices)]
    for stage, device in enumerate(hosts):
        found[device].append(stage)
    return tuple(map(tuple, found))
