"""The table of costs of stages and layers: one row per cost.

Everything about a cost follows from its row: its setting (flag, key in files, JSON Schema, table in
the docs), its field in `ppopt.Pipeline` and `ppopt.Layer`, and its value in ticks. The row also
says how layers of a stage add up, whether chunks, slices and device speeds divide the cost, and
whether a frozen stage has it. Schedule files and the checks of total time and memory loop over the
rows. What a cost does in a schedule is defined by a feature (`ppopt.problem.features`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from functools import partial
from operator import add, sub
from typing import Any, Generic, TypeVar

from ppopt.problem.units import Unit

T = TypeVar("T")
ZERO = Fraction(0)
Row = tuple[Any, ...]
"""One number per stage; of pairs, also one row per stage."""


class Occurrence(Enum):
    """How often a cost arises."""

    MICROBATCH = auto()
    """For every microbatch; each slice has its share."""
    STEP = auto()
    """Once in a step."""
    ALWAYS = auto()
    """Throughout."""


class OverLayers(Enum):
    """How the cost of a stage follows from the costs of its layers."""

    SUM = auto()
    MAXIMUM = auto()
    LAST = auto()
    """It is that of the last layer."""
    DERIVED = auto()
    """Layers have no such cost: that of their stage follows from other costs."""


class Needs(Enum):
    """The operation that a stage must run to have a cost; a frozen stage lacks some of them."""

    FORWARD = auto()
    BACKWARD = auto()
    WEIGHT_GRADIENT = auto()


class Factor(Enum):
    """Which factor of a microbatch multiplies a cost (`ppopt.problem.microbatches`)."""

    OWN = auto()
    """The factor of its unit, on times or on memory, if every microbatch has the cost."""
    MEMORY = auto()
    NONE = auto()


@dataclass(frozen=True)
class Default:
    """The value of a cost that is not given."""

    value_or_rule: int | str
    """Its value, or how it follows from other costs."""
    function: Callable[..., Fraction] | None = None
    """Function of other costs of the same stage or layer; None: the value, or 0."""
    fields: tuple[str, ...] = ()
    """The fields of these costs: the arguments of `function`."""

    @property
    def value(self) -> int | None:
        """Its value, if it does not follow from other costs."""
        return self.value_or_rule if isinstance(self.value_or_rule, int) else None

    @property
    def _constant(self) -> Fraction:
        return Fraction(self.value) if self.value else ZERO

    def layer_value(self, costs: Mapping[str, Fraction]) -> Fraction:
        """The cost of a layer, whose other costs are these by field."""
        if self.function is None:
            return self._constant
        return self.function(*(costs[field] for field in self.fields))

    def stage_values(self, costs: Mapping[str, Row]) -> Row:
        """The cost of stages, whose other costs are these by field, one number per stage."""
        if self.function is None:
            return (self._constant,) * len(costs["forward"])
        return tuple(map(self.function, *(costs[field] for field in self.fields)))


ZERO_BY_DEFAULT = Default("0")


@dataclass(frozen=True)
class Cost:
    """A cost of a stage or a layer: its names, unit and meaning, and how it is derived."""

    unit: Unit
    meaning: str
    """Of a stage, for help and tables; empty: stages do not have it."""
    layer_meaning: str
    """Of a layer; empty: layers do not have it."""
    key: str = ""
    """Key in files of stages; empty: `field`."""
    layer_key: str = ""
    """Key in files of layers; empty: `field`."""
    default: Default = ZERO_BY_DEFAULT
    """Of a stage."""
    layer_default: Default = Default(0)
    """Of a layer."""
    mapping: tuple[str, str] = ("", "")
    """Setting of a layer whose mapping may give it, too, and its key there."""
    per: Occurrence = Occurrence.MICROBATCH
    factor: Factor = Factor.OWN
    runs: int = 1
    """Of a time: operations of this length, per microbatch or step."""
    over_layers: OverLayers = OverLayers.SUM
    cut_by_chunks: bool = True
    """Whether chunks divide it."""
    on_compute: bool = True
    """Of a time: whether the device computes, so that its speed counts."""
    needs: Needs = Needs.FORWARD
    minimum: int | None = 0
    """Smallest number; None: any."""
    of_pairs: bool = False
    """Whether it belongs to an F and a backward that run as one: one number per stage, a matrix
    [stage of F][stage of the backward], or nothing."""
    optional: bool = True
    """Whether schedule files have it only if it is given."""
    has_flag: bool = True
    head: str = ""
    """Head of its column in the table of stages on pages; empty: the table has no such column."""
    field: str = ""
    """Name in Python: that of the field which it declares."""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "field", name)

    def __get__(self, instance: None, owner: type) -> int | None:
        """The value of the field if a pipeline does not state it, as `dataclass` asks."""
        return self.default.value

    @property
    def name(self) -> str:
        """Key in files of stages."""
        return self.key or self.field

    @property
    def layer_name(self) -> str:
        """Key in files of layers."""
        return self.layer_key or self.field

    @property
    def per_microbatch(self) -> bool:
        """Whether every microbatch has it, so that slices of microbatches cut it."""
        return self.per is Occurrence.MICROBATCH

    @property
    def multiplied_with(self) -> Unit | None:
        """Whose factor multiplies it, that on times or that on memory; None: neither."""
        if not self.per_microbatch or self.factor is Factor.NONE:
            return None
        return Unit.MEMORY if self.factor is Factor.MEMORY else self.unit


_time: Callable[..., Any] = partial(Cost, Unit.TIME)
_memory: Callable[..., Any] = partial(Cost, Unit.MEMORY)


def _same_as(field: str, rule: str) -> Default:
    return Default(rule, lambda cost: cost, (field,))


def _workspace(kind: str, default: Default, needs: Needs) -> Any:
    """Every chunk of a share may need as much as the whole share; a slice needs its part."""
    return _memory(
        f"workspace of {kind}",
        f"workspace of {kind}",
        head="workspace of F" if kind == "F" else f"of {kind}",
        default=default,
        layer_default=Default(default.value_or_rule if default.fields else 0),
        mapping=("workspace", kind),
        factor=Factor.NONE,
        over_layers=OverLayers.MAXIMUM,
        cut_by_chunks=False,
        needs=needs,
    )


@dataclass(frozen=True, kw_only=True)
class TimeFields(Generic[T]):
    """Times of F, BW, W and B.

    `ppopt.problem.backward_times` derives those that are not given.
    """

    forward: T = _time(
        "time of F, the forward pass of a stage",
        "F",
        key="forward_times",
        default=Default(1),
        layer_default=Default("that of `phases`"),
        optional=False,
        head="F",
    )
    backward: T = _time(
        "time of BW, the full backward pass: B and W together",
        "BW, the full backward: B and W together",
        key="backward_times",
        default=Default("2 F, or B + W"),
        layer_default=Default("2 F, or B + W"),
        needs=Needs.BACKWARD,
        optional=False,
        head="BW",
    )
    weight: T = _time(
        "time of W, the weight gradient",
        "W, the weight gradient; B = BW - W",
        key="weight_times",
        default=Default("half of BW"),
        layer_default=Default("half of BW"),
        needs=Needs.WEIGHT_GRADIENT,
        optional=False,
        head="W",
    )
    backward_input: T = _time(
        "time of B, the input gradient",
        "B, the input gradient",
        key="input_times",
        layer_key="input",
        default=Default("BW - W"),
        layer_default=Default("BW - W"),
        needs=Needs.BACKWARD,
        optional=False,
        head="B",
    )


@dataclass(frozen=True, kw_only=True)
class MemoryFields(Generic[T]):
    """Memory between operations."""

    activation: T = _memory(
        "memory that F allocates for a microbatch and W or BW frees",
        "memory that F allocates, and that B and W together free",
        default=Default(1),
        needs=Needs.BACKWARD,
        optional=False,
        head="activation",
    )
    memory_b: T = _memory(
        "change of memory by B, mostly negative; W frees the rest",
        "signed change of memory by B; W frees the rest",
        default=Default(0),
        needs=Needs.BACKWARD,
        minimum=None,
        optional=False,
        head="change by B",
    )
    static: T = _memory(
        "memory that is always allocated: weights, optimizer state",
        "memory always allocated: weights, gradients, optimizer state",
        default=Default(0),
        per=Occurrence.ALWAYS,
        optional=False,
        head="static",
    )


@dataclass(frozen=True, kw_only=True)
class OutputField(Generic[T]):
    """The memory of what the next stage receives, which only layers have."""

    output: T = _memory(
        "",
        "memory of its output for a microbatch, which `link` sends to the next stage",
        over_layers=OverLayers.LAST,
    )


@dataclass(frozen=True, kw_only=True)
class StageWorkspaceField(Generic[T]):
    """Memory of operations while they run; layers have it as a mapping by kind."""

    workspace: T = _memory(
        "memory that F, B and BW need only while they run",
        "",
        over_layers=OverLayers.DERIVED,
        cut_by_chunks=False,
        factor=Factor.NONE,
    )


@dataclass(frozen=True, kw_only=True)
class WorkspaceFields(Generic[T]):
    """Memory of operations of each kind while they run."""

    forward_workspace: T = _workspace("F", _same_as("workspace", "workspace"), Needs.FORWARD)
    input_workspace: T = _workspace("B", _same_as("workspace", "workspace"), Needs.BACKWARD)
    weight_workspace: T = _workspace("W", ZERO_BY_DEFAULT, Needs.WEIGHT_GRADIENT)
    backward_workspace: T = _workspace("BW", _same_as("workspace", "workspace"), Needs.BACKWARD)


@dataclass(frozen=True, kw_only=True)
class RecomputeFields(Generic[T]):
    """What recompute costs and saves."""

    recompute_time: T = _time(
        "time that recompute adds to B and BW",
        "time that recompute adds to B and BW",
        layer_default=_same_as("forward", "F"),
        mapping=("recompute", "time"),
        needs=Needs.BACKWARD,
        head="recompute",
    )
    kept: T = _memory(
        "activation that is kept after F with recompute; B allocates the rest at its start, BW "
        "allocates `recompute_memory`",
        "part of the activation that F keeps with recompute",
        default=_same_as("activation", "activation"),
        mapping=("recompute", "activation"),
        needs=Needs.BACKWARD,
        head="kept by F",
    )


@dataclass(frozen=True, kw_only=True)
class RecomputeMemoryField(Generic[T]):
    """What BW allocates, which only stages have: it follows from those of their layers."""

    recompute_memory: T = _memory(
        "memory that BW allocates at its start for recomputed activations, in addition to its "
        "workspace; less than activation - kept if layers recompute one at a time",
        "",
        default=Default("activation - kept", sub, ("activation", "kept")),
        over_layers=OverLayers.DERIVED,
        needs=Needs.BACKWARD,
        has_flag=False,
        head="recomputed by BW",
    )


@dataclass(frozen=True, kw_only=True)
class OffloadFields(Generic[T]):
    """Moves of activations to the host and back."""

    offload_memory: T = _memory(
        "part of the activation of a microbatch that moves to the host after F, and back before B "
        "or BW",
        "part of the activation that moves to the host; 0 if no time is given",
        layer_default=Default(
            "activation",
            lambda all_of_it, time: all_of_it if time else ZERO,
            ("activation", "offload_time"),
        ),
        mapping=("offload", "memory"),
        needs=Needs.BACKWARD,
        head="to the host",
    )
    offload_time: T = _time(
        "time to move offload_memory, per direction",
        "time to move offload_memory, per direction",
        layer_default=ZERO_BY_DEFAULT,
        mapping=("offload", "time"),
        factor=Factor.MEMORY,
        runs=2,
        on_compute=False,
        needs=Needs.BACKWARD,
        head="each way",
    )


@dataclass(frozen=True, kw_only=True)
class PairFields(Generic[T]):
    """Times of an F and a backward run as one, without recompute; only stages have them."""

    overlap: T = _time(
        "time of an F and a BW of different microbatches that run as one operation, above 0; "
        "strategies with overlap and searches use it. The pair saves F + BW - overlap_times: with "
        "F = 1, BW = 2 and 2.5, it saves 0.5. For two stages, the smaller saving counts. Without "
        "overlap_input_times, F with B saves as much. In files also a matrix [stage of F]"
        "[stage of BW]",
        "",
        key="overlap_times",
        default=Default("F + BW", add, ("forward", "backward")),
        over_layers=OverLayers.DERIVED,
        of_pairs=True,
    )
    overlap_input: T = _time(
        "like `overlap_times`, for F with B: per stage, or in files a matrix [stage of F][stage of "
        "B]",
        "",
        key="overlap_input_times",
        default=Default("by what F and BW save"),
        over_layers=OverLayers.DERIVED,
        of_pairs=True,
    )


@dataclass(frozen=True, kw_only=True)
class StepFields(Generic[T]):
    """Costs of a stage that arise once in a step, before or after the microbatches."""

    unshard: T = _time(
        "time of the all-gather of a stage's weights before its first F (FSDP), on the collective "
        "queue of its device",
        "the all-gather of its weights before F (FSDP), once per step",
        per=Occurrence.STEP,
        on_compute=False,
    )
    unshard_memory: T = _memory(
        "memory of a stage's gathered weights, from the start of unshard to the end of "
        "gradient_sync",
        "memory of its gathered weights",
        per=Occurrence.STEP,
    )
    gradient_sync: T = _time(
        "time of the reduction of a stage's gradients after its last W or BW, on the collective "
        "queue of its device",
        "the reduction of its gradients, once per step",
        per=Occurrence.STEP,
        on_compute=False,
        needs=Needs.WEIGHT_GRADIENT,
    )
    optimizer: T = _time(
        "time of a stage's optimizer step; a device runs one operation for all its stages, after "
        "their gradient_sync",
        "its optimizer step",
        per=Occurrence.STEP,
        needs=Needs.WEIGHT_GRADIENT,
    )


class StageFields(
    StepFields[T],
    PairFields[T],
    OffloadFields[T],
    RecomputeMemoryField[T],
    RecomputeFields[T],
    WorkspaceFields[T],
    StageWorkspaceField[T],
    MemoryFields[T],
    TimeFields[T],
):
    """The costs of stages, those of the last base first. A cost follows those of its default."""


class LayerFields(
    StepFields[T],
    OffloadFields[T],
    RecomputeFields[T],
    WorkspaceFields[T],
    OutputField[T],
    MemoryFields[T],
    TimeFields[T],
):
    """The costs of layers, those of the last base first: the order of their files."""


def costs_in(*groups: type) -> tuple[Cost, ...]:
    """The costs which classes of fields, and their bases, declare."""
    classes = (base for group in groups for base in reversed(group.__mro__))
    return tuple(cost for base in classes for cost in vars(base).values() if isinstance(cost, Cost))


COSTS = costs_in(StageFields, OutputField)
STAGE_COSTS = costs_in(StageFields)
LAYER_COSTS = costs_in(LayerFields)
AUXILIARY_TIMES = tuple(
    cost for cost in costs_in(OffloadFields, StepFields) if cost.unit is Unit.TIME
)
"""Times of operations other than F, B, W and BW."""
STEP_FIELDS = tuple(cost.field for cost in costs_in(StepFields))
"""Costs that arise once in a step, around the microbatches."""
