"""Every cost of stages and layers, declared once.

A row is all that a cost needs on its way from a file into ticks. From the rows follow the settings
of stages and layers (flags, keys in files, JSON Schema, tables of the docs), the fields of
`ppopt.Pipeline` and `ppopt.Layer`, costs in the user's units and in ticks, sums over the layers of
a stage, what chunks, slices and speeds divide, what frozen stages lack, schedule files, and the
sums of all times and of all memory. What a cost does in a schedule is said by a feature
(`ppopt.problem.features`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from fractions import Fraction
from operator import add, sub
from typing import TYPE_CHECKING, Any, NamedTuple

from ppopt.problem.units import Unit

ZERO = Fraction(0)
Row = tuple[Any, ...]
"""One number per stage; of pairs, perhaps a row per stage."""


class Per(Enum):
    """How often a cost arises."""

    MICROBATCH = auto()
    """For every microbatch; a slice of one has its part."""
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
    """What a stage must run to have a cost. A frozen stage does not run all of these."""

    FORWARD = auto()
    BACKWARD = auto()
    WEIGHT_GRADIENT = auto()


class Derived(NamedTuple):
    """A cost that follows from other costs of the same stage or layer."""

    function: Callable[..., Fraction] = lambda: ZERO
    fields: tuple[str, ...] = ()
    """The costs from which it follows: the arguments of `function`."""

    def of_layer(self, costs: Mapping[str, Fraction]) -> Fraction:
        """The cost of a layer, whose other costs are these by field."""
        return self.function(*(costs[field] for field in self.fields))

    def of_stages(self, costs: Mapping[str, Row]) -> Row:
        """The cost of stages, whose other costs are these by field, one number per stage."""
        if not self.fields:
            return (self.function(),) * len(costs["forward"])
        return tuple(map(self.function, *(costs[field] for field in self.fields)))


NOTHING = Derived()


def _same_as(field: str) -> Derived:
    return Derived(lambda cost: cost, (field,))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A cost of a stage or a layer: its names, unit and meaning, and how it is derived."""

    field: str
    """Name in Python."""
    unit: Unit
    meaning: str = ""
    """Of a stage, for help and tables; empty: stages do not have it."""
    layer_meaning: str = ""
    """Of a layer; empty: layers do not have it."""
    key: str = ""
    """Key in files of stages; empty: `field`."""
    layer_key: str = ""
    """Key in files of layers; empty: `field`."""
    default: int | str = "0"
    """Of a stage: the value if it is not given, or how that follows from other costs, in words."""
    layer_default: int | str = 0
    """The same of a layer."""
    value: Derived | None = NOTHING
    """Of a stage: what it is if it is not given; None: no costs, an empty row."""
    layer_value: Derived = NOTHING
    """The same of a layer."""
    mapping: str = ""
    """Setting of a layer that may give it in a mapping; empty: none does."""
    mapping_key: str = ""
    """Its key in that mapping."""
    counted_if: str = ""
    """Flag of a layer without which the layer has `value`; empty: its own cost always counts."""
    per: Per = Per.MICROBATCH
    runs: int = 1
    """Of a time: operations of this length, per microbatch or step."""
    over_layers: OverLayers = OverLayers.SUM
    cut_by_chunks: bool = True
    """Whether chunks divide it."""
    on_compute: bool = True
    """Of a time: whether the device computes, so that its speed counts."""
    needs: Needs = Needs.FORWARD
    signed: bool = False
    """Whether it may be below 0."""
    of_pairs: bool = False
    """Whether it is of an F and a backward run as one: one number per stage, or a matrix [stage of
    F][stage of the backward]."""
    optional: bool = True
    """Whether schedule files have it only if it is not the default."""
    has_flag: bool = True

    @property
    def name(self) -> str:
        """Key in files of stages."""
        return self.key or self.field

    @property
    def layer_name(self) -> str:
        """Key in files of layers."""
        return self.layer_key or self.field

    @property
    def least(self) -> int | None:
        """Smallest number; None: any."""
        return None if self.signed else 0

    @property
    def per_microbatch(self) -> bool:
        """Whether every microbatch has it, so that slices of microbatches cut it."""
        return self.per is Per.MICROBATCH

    @property
    def has_value(self) -> bool:
        """Whether the default of a stage is a number, and not words."""
        return isinstance(self.default, int)

    @property
    def initial(self) -> int | None:
        """Field of a pipeline to which nothing is given."""
        return self.default if isinstance(self.default, int) else None

    @property
    def layer_initial(self) -> int | None:
        """Field of a layer to which nothing is given."""
        default = self.layer_default
        return default if isinstance(default, int) and not self.mapping else None


TIMES = (
    Cost(
        field="forward",
        unit=Unit.TIME,
        meaning="time of F, the forward pass of a stage",
        layer_meaning="F",
        key="forward_times",
        default=1,
        layer_default="that of `phases`",
        optional=False,
    ),
    Cost(
        field="backward",
        unit=Unit.TIME,
        meaning="time of BW, the full backward pass: B and W together",
        layer_meaning="BW, the full backward: B and W together",
        key="backward_times",
        default="2 F, or B + W",
        layer_default="2 F, or B + W",
        needs=Needs.BACKWARD,
        optional=False,
    ),
    Cost(
        field="weight",
        unit=Unit.TIME,
        meaning="time of W, the weight gradient",
        layer_meaning="W, the weight gradient; B = BW - W",
        key="weight_times",
        default="half of BW",
        layer_default="half of BW",
        needs=Needs.WEIGHT_GRADIENT,
        optional=False,
    ),
    Cost(
        field="backward_input",
        unit=Unit.TIME,
        meaning="time of B, the input gradient",
        layer_meaning="B, the input gradient",
        key="input_times",
        layer_key="input",
        default="BW - W",
        layer_default="BW - W",
        needs=Needs.BACKWARD,
        optional=False,
    ),
)
"""Times of F, BW, W and B; `ppopt.problem.backward_times` derives what is not given of them."""
MEMORY = (
    Cost(
        field="activation",
        unit=Unit.MEMORY,
        meaning="memory that F allocates for a microbatch and W or BW frees",
        layer_meaning="memory that F allocates, and that B and W together free",
        default=1,
        needs=Needs.BACKWARD,
        optional=False,
    ),
    Cost(
        field="memory_b",
        unit=Unit.MEMORY,
        meaning="change of memory by B, mostly negative; W frees the rest",
        layer_meaning="signed change of memory by B; W frees the rest",
        default=0,
        needs=Needs.BACKWARD,
        signed=True,
        optional=False,
    ),
    Cost(
        field="static",
        unit=Unit.MEMORY,
        meaning="memory that is always held: weights, optimizer state",
        layer_meaning="memory always held: weights, gradients, optimizer state",
        default=0,
        per=Per.ALWAYS,
        optional=False,
    ),
    Cost(
        field="output",
        unit=Unit.MEMORY,
        layer_meaning="memory of what it passes to the next layer for a microbatch, for `link`",
        over_layers=OverLayers.LAST,
    ),
)
"""Memory that is allocated whether an operation runs or not, and what it passes on."""
WORKSPACES = (
    Cost(
        field="workspace",
        unit=Unit.MEMORY,
        meaning="memory that F, B and BW need only while they run",
        over_layers=OverLayers.DERIVED,
        cut_by_chunks=False,
    ),
    Cost(
        field="forward_workspace",
        unit=Unit.MEMORY,
        meaning="workspace of F",
        layer_meaning="workspace of F",
        default="workspace",
        layer_default="workspace",
        value=_same_as("workspace"),
        mapping="workspace",
        mapping_key="F",
        over_layers=OverLayers.MAXIMUM,
        cut_by_chunks=False,
    ),
    Cost(
        field="input_workspace",
        unit=Unit.MEMORY,
        meaning="workspace of B",
        layer_meaning="workspace of B",
        default="workspace",
        layer_default="workspace",
        value=_same_as("workspace"),
        mapping="workspace",
        mapping_key="B",
        over_layers=OverLayers.MAXIMUM,
        cut_by_chunks=False,
        needs=Needs.BACKWARD,
    ),
    Cost(
        field="weight_workspace",
        unit=Unit.MEMORY,
        meaning="workspace of W",
        layer_meaning="workspace of W",
        mapping="workspace",
        mapping_key="W",
        over_layers=OverLayers.MAXIMUM,
        cut_by_chunks=False,
        needs=Needs.WEIGHT_GRADIENT,
    ),
    Cost(
        field="backward_workspace",
        unit=Unit.MEMORY,
        meaning="workspace of BW",
        layer_meaning="workspace of BW",
        default="workspace",
        layer_default="workspace",
        value=_same_as("workspace"),
        mapping="workspace",
        mapping_key="BW",
        over_layers=OverLayers.MAXIMUM,
        cut_by_chunks=False,
        needs=Needs.BACKWARD,
    ),
)
"""Memory of operations while they run. Every chunk of a share may need as much as all of it; a
slice needs its part. `workspace` is the default of those of F, B and BW; layers have a mapping."""
RECOMPUTE = (
    Cost(
        field="recompute_time",
        unit=Unit.TIME,
        meaning="time by which recompute makes B and BW longer, on top of their own times",
        layer_meaning="time by which recompute makes B and BW longer",
        layer_default="F",
        layer_value=_same_as("forward"),
        mapping="recompute",
        mapping_key="time",
        counted_if="recompute",
        needs=Needs.BACKWARD,
    ),
    Cost(
        field="kept",
        unit=Unit.MEMORY,
        meaning="part of the activation that F keeps; B allocates the rest at its start, BW "
        "allocates `recompute_memory`",
        layer_meaning="part of the activation that F keeps with recompute",
        default="activation",
        value=_same_as("activation"),
        mapping="recompute",
        mapping_key="activation",
        counted_if="recompute",
        needs=Needs.BACKWARD,
    ),
    Cost(
        field="recompute_memory",
        unit=Unit.MEMORY,
        meaning="memory that BW allocates at its start, besides its workspace, for what F did not "
        "keep: less than all of it if its layers recompute one at a time",
        default="activation - kept",
        value=Derived(sub, ("activation", "kept")),
        over_layers=OverLayers.DERIVED,
        needs=Needs.BACKWARD,
        has_flag=False,
    ),
)
OFFLOAD = (
    Cost(
        field="offload_memory",
        unit=Unit.MEMORY,
        meaning="part of the activation of a microbatch that moves to the host after F and comes "
        "back before B or BW",
        layer_meaning="part of the activation that moves to the host; 0 if no time is given",
        layer_default="activation",
        layer_value=Derived(
            lambda activation, time: activation if time else ZERO, ("activation", "offload_time")
        ),
        mapping="offload",
        mapping_key="memory",
        counted_if="offload",
        needs=Needs.BACKWARD,
    ),
    Cost(
        field="offload_time",
        unit=Unit.TIME,
        meaning="time to move offload_memory, each way",
        layer_meaning="time of each way to the host",
        layer_default="0",
        mapping="offload",
        mapping_key="time",
        counted_if="offload",
        runs=2,
        on_compute=False,
        needs=Needs.BACKWARD,
    ),
)
PAIRS = (
    Cost(
        field="overlap",
        unit=Unit.TIME,
        meaning="time of an F and a BW of different microbatches that run as one operation, above "
        "0; strategies with overlap and searches use it. If they belong to two stages: the sum of "
        "both times less the smaller saving of the two stages; a B in place of BW saves as much, "
        "without overlap_input_times. In files also a matrix [stage of F][stage of BW]",
        key="overlap_times",
        default="F + BW",
        value=Derived(add, ("forward", "backward")),
        over_layers=OverLayers.DERIVED,
        of_pairs=True,
    ),
    Cost(
        field="overlap_input",
        unit=Unit.TIME,
        meaning="the same of an F and a B, for `overlap_times`: per stage, or in files a matrix "
        "[stage of F][stage of B]",
        key="overlap_input_times",
        default="by what F and BW save",
        value=None,
        over_layers=OverLayers.DERIVED,
        of_pairs=True,
    ),
)
"""Times of an F and a backward run as one, without recompute."""
STEP = (
    Cost(
        field="unshard",
        unit=Unit.TIME,
        meaning="time of the all-gather of a stage's weights before its first F (FSDP), on the "
        "collective queue of its device",
        layer_meaning="the all-gather of its weights before F (FSDP), once in a step",
        per=Per.STEP,
        on_compute=False,
    ),
    Cost(
        field="unshard_memory",
        unit=Unit.MEMORY,
        meaning="memory of a stage's gathered weights, from the start of unshard to the end of "
        "gradient_sync",
        layer_meaning="memory of its gathered weights",
        per=Per.STEP,
    ),
    Cost(
        field="gradient_sync",
        unit=Unit.TIME,
        meaning="time of the reduction of a stage's gradients after its last W or BW, on the "
        "collective queue of its device",
        layer_meaning="the reduction of its gradients, once in a step",
        per=Per.STEP,
        on_compute=False,
        needs=Needs.WEIGHT_GRADIENT,
    ),
    Cost(
        field="optimizer",
        unit=Unit.TIME,
        meaning="time of a stage's optimizer step; a device runs one operation for all its stages, "
        "after their gradient_sync",
        layer_meaning="its optimizer step",
        per=Per.STEP,
        needs=Needs.WEIGHT_GRADIENT,
    ),
)
"""What a stage has around the microbatches."""
COSTS: tuple[Cost, ...] = (*(*TIMES, *MEMORY, *WORKSPACES, *RECOMPUTE, *OFFLOAD, *PAIRS, *STEP),)
"""All costs. A cost of stages stands behind those from which its default follows."""


def of_stages(costs: Iterable[Cost]) -> tuple[Cost, ...]:
    """Those costs that stages have."""
    return tuple(cost for cost in costs if cost.meaning)


def of_layers(costs: Iterable[Cost]) -> tuple[Cost, ...]:
    """Those costs that layers have."""
    return tuple(cost for cost in costs if cost.layer_meaning)


STAGE_COSTS = of_stages(COSTS)
OTHER_TIMES = tuple(
    cost
    for cost in STAGE_COSTS
    if cost.unit is Unit.TIME and cost not in (*TIMES, *RECOMPUTE, *PAIRS)
)
"""Times of operations besides F, B, W and BW."""
STEP_FIELDS = tuple(cost.field for cost in STAGE_COSTS if cost.per is Per.STEP)
"""Costs that arise once in a step, around the microbatches."""
LAYER_COSTS = of_layers((*TIMES, *MEMORY, *WORKSPACES, *RECOMPUTE, *OFFLOAD[::-1], *STEP))
"""Costs of layers, in the order of their files. A cost stands behind those from which its default
follows."""


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class CostFields:
        """The fields of all costs, as type checkers see them in `ppopt.Pipeline` and `Layer`."""

        forward: Any = None
        backward: Any = None
        weight: Any = None
        backward_input: Any = None
        activation: Any = None
        memory_b: Any = None
        static: Any = None
        output: Any = None
        workspace: Any = None
        forward_workspace: Any = None
        input_workspace: Any = None
        weight_workspace: Any = None
        backward_workspace: Any = None
        recompute_time: Any = None
        kept: Any = None
        recompute_memory: Any = None
        offload_memory: Any = None
        offload_time: Any = None
        overlap: Any = None
        overlap_input: Any = None
        unshard: Any = None
        unshard_memory: Any = None
        gradient_sync: Any = None
        optimizer: Any = None

else:

    class CostFields:
        """A class with a field per cost, which `ppopt.problem.settings.with_fields` adds."""
