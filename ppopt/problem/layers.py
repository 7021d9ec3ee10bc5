"""The layers of a model as it is trained, in forward order, each with its costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate, groupby, pairwise
from operator import add, attrgetter, is_, sub
from typing import Any, NamedTuple, Self, TypeVar

from ppopt.errors import InputError, NotApplicableError
from ppopt.problem import exact, units
from ppopt.problem.backward_memory import BackwardPeak, RecomputeUnit
from ppopt.problem.backward_times import complete
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.exact import plain
from ppopt.problem.frozen import ZERO, costs_of_frozen, num_forward_only
from ppopt.problem.phases import Phases
from ppopt.problem.settings import Part, Setting, Shape, Unit, accepts_every_name

Value = TypeVar("Value")
MOST_LAYERS = 4096
"""Most layers of a model, counts expanded."""
LETTERS: Mapping[str, str] = {"embedding": "E", "decoder": "t", "mtp": "m", "head": "L"}
"""Role of a layer -> its letter in Megatron-LM's layouts (docs/user-guide/features/
pipeline_parallel_layout.md of NVIDIA/Megatron-LM)."""
ONLY_BETWEEN = "only stages between the first and the last may be empty"
DECODER = "decoder"
ENDS = ("embedding", "head")
"""Roles of layers that trainers do not recompute. Full recompute wraps transformer layers alone:
`_checkpointed_forward` of transformer_block.py and multi_token_prediction.py in
megatron/core/transformer of Megatron-LM, `apply` of torchtitan/distributed/activation_checkpoint.py
in torchtitan."""


def _layer(field: str, shape: Shape, meaning: str, default: Any = None, **more: Any) -> Setting:
    return Setting(field, shape, meaning, default, part=Part.LAYER, has_flag=False, **more)


def _time(field: str, meaning: str, default: str | None, key: str = "", **more: Any) -> Setting:
    return _layer(field, Shape.NUMBER, meaning, default, key=key, unit=Unit.TIME, least=0, **more)


def _step_time(field: str, meaning: str) -> Setting:
    """A time of no default but 0, once in a step."""
    return _layer(
        field, Shape.NUMBER, meaning, 0, key=field, unit=Unit.TIME, least=0, optional=True
    )


def _memory(
    field: str, meaning: str, least: int | None = 0, default: str | int = 0, **more: Any
) -> Setting:
    return _layer(field, Shape.NUMBER, meaning, default, unit=Unit.MEMORY, least=least, **more)


LAYER_SETTINGS = (
    _layer("name", Shape.LINE, "name of the layer"),
    _layer(
        "role", Shape.CHOICE, "embedding, decoder, mtp or head", DECODER, choices=tuple(LETTERS)
    ),
    _layer("count", Shape.WHOLE, "number of such layers in a row", 1, least=1),
    _time("forward", "F", "that of `phases`"),
    _time("backward", "BW, the full backward: B and W together", "2 F, or B + W"),
    _time("weight", "W, the weight gradient; B = BW - W", "half of BW"),
    _time("backward_input", "B, the input gradient", "BW - W", key="input"),
    _layer(
        "phases",
        Shape.PHASES,
        "in place of these times, what F and B do in turn, on compute and on a link: `{F: [{on: "
        "compute, time: 4}, {on: link, time: 6}], B: [{on: link, time: 6}, {on: compute, time: 5, "
        "weight: 4}]}`, `weight` being the W of a phase of B. F, B and W take the sums; pairs of F "
        "and BW follow",
    ),
    _memory("activation", "memory that F allocates, and that B and W together free"),
    _memory("memory_b", "signed change of memory by B; W frees the rest", least=None),
    _memory("static", "memory always held: weights, gradients, optimizer state"),
    _memory(
        "output",
        "memory of what it passes to the next layer for a microbatch, for `link`",
        optional=True,
    ),
    _layer(
        "workspace",
        Shape.WORKSPACE,
        "memory that F, B and BW need only while they run, or one number per kind, as "
        "`{F: 2, B: 1, W: 1, BW: 2}`; of a stage, the largest of its layers (of BW, see "
        "`recompute_unit`)",
        0,
    ),
    _memory("forward_workspace", "workspace of F", default="workspace", optional=True),
    _memory("input_workspace", "workspace of B", default="workspace", optional=True),
    _memory("weight_workspace", "workspace of W", optional=True),
    _memory("backward_workspace", "workspace of BW", default="workspace", optional=True),
    _layer(
        "recompute",
        Shape.RECOMPUTE,
        "true: F keeps only part of the activation, and the backward computes the rest again and "
        "is longer; or `{time: 1, activation: 0}`, with what `recompute_time` and `kept` are. "
        "An embedding or head recomputes only where this says so",
        "false",
    ),
    _time("recompute_time", "time by which recompute makes B and BW longer", "F", optional=True),
    _memory("kept", "part of the activation that F keeps with recompute", optional=True),
    _layer(
        "offload",
        Shape.OFFLOAD,
        "true: `offload_memory` moves to the host after F and comes back before B or BW, each way "
        "in `offload_time`; or `{memory: 1, time: 1}`, with what these are",
        "false",
    ),
    _time("offload_time", "time of each way to the host", "0", optional=True),
    _memory(
        "offload_memory",
        "part of the activation that moves to the host; 0 if no time is given",
        default="activation",
        optional=True,
    ),
    _step_time("unshard", "the all-gather of its weights before F (FSDP), once in a step"),
    _memory("unshard_memory", "memory of its gathered weights", optional=True),
    _step_time("gradient_sync", "the reduction of its gradients, once in a step"),
    _step_time("optimizer", "its optimizer step"),
    _layer(
        "frozen",
        Shape.FLAG,
        "true: it is not trained, so it has no W, gradient_sync or optimizer; where all layers "
        "before it are frozen too, no backward, and F gives its activation back at its end",
        "false",
    ),
)
"""Every setting of a layer, declared once: files, their JSON Schema and the table in
`models/README.md` are made from these records. All may be left out, but for `forward` or
`phases`."""
COSTS = tuple(setting for setting in LAYER_SETTINGS if setting.shape is Shape.NUMBER)
_FIELDS = {measure: tuple(cost.field for cost in COSTS if cost.unit is measure) for measure in Unit}
LAYER_NAMES: Mapping[str, Setting] = {
    name: setting for setting in LAYER_SETTINGS for name in setting.names
}
"""Every accepted name -> its setting."""


class ModelCosts(NamedTuple):
    """Costs per stage, in the user's units: the sums over the layers of each stage."""

    forward: tuple[Fraction, ...]
    backward: tuple[Fraction, ...]
    weight: tuple[Fraction, ...]
    backward_input: tuple[Fraction, ...]
    activation: tuple[Fraction, ...]
    memory_b: tuple[Fraction, ...]
    static: tuple[Fraction, ...]
    forward_workspace: tuple[Fraction, ...] | None
    """Largest of the layers of each stage; None: 0."""
    input_workspace: tuple[Fraction, ...] | None
    weight_workspace: tuple[Fraction, ...] | None
    backward_workspace: tuple[Fraction, ...] | None
    """If layers run one at a time, less where that of the largest is never reached."""
    recompute_time: tuple[Fraction, ...] | None
    """Of the layers that recompute; None: no layer does."""
    kept: tuple[Fraction, ...] | None
    """What F keeps of the activations; None: all."""
    recompute_memory: tuple[Fraction, ...] | None
    """What BW allocates of that which F does not keep; None: all of it. With the workspace of BW it
    is all that BW allocates (see `ppopt.problem.backward_memory`)."""
    offload_memory: tuple[Fraction, ...] | None
    """Of the layers that offload; None: no layer does."""
    offload_time: tuple[Fraction, ...] | None
    unshard: tuple[Fraction, ...] | None
    """None: no layer has any, as of the next three."""
    unshard_memory: tuple[Fraction, ...] | None
    gradient_sync: tuple[Fraction, ...] | None
    optimizer: tuple[Fraction, ...] | None


Row = tuple[Fraction, ...]
"""One number per stage."""
STEP_COSTS = ("unshard", "unshard_memory", "gradient_sync", "optimizer")
"""Costs that layers have once in a step, around the microbatches."""
OFFLOAD_COSTS = ("offload_memory", "offload_time")
"""Costs of the layers that offload."""
WORKSPACES: Mapping[str, str] = {
    "F": "forward_workspace",
    "B": "input_workspace",
    "W": "weight_workspace",
    "BW": "backward_workspace",
}
"""Kind of operation -> field of its workspace."""


def flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a layer, their workspace, recompute and offload written out as numbers.

    Raises InputError if a mapping has an unknown key.
    """
    found = dict(given)
    workspace, recompute = found.pop("workspace", None), found.pop("recompute", None)
    if workspace is not None and not isinstance(workspace, Mapping):
        workspace = dict.fromkeys(("F", "B", "BW"), workspace)
    _fill(found, "workspace", workspace or {}, WORKSPACES)
    if isinstance(recompute, Mapping):
        _fill(found, "recompute", recompute, {"time": "recompute_time", "activation": "kept"})
        recompute = True
    if recompute is not None:
        found["recompute"] = recompute
    offload = found.pop("offload", None)
    if isinstance(offload, Mapping):
        _fill(found, "offload", offload, {"time": "offload_time", "memory": "offload_memory"})
        offload = True
    if offload is not None:
        found["offload"] = offload
    return found


def _fill(
    found: dict[str, Any], name: str, given: Mapping[str, Any], fields: Mapping[str, str]
) -> None:
    """Set the fields that a mapping names, unless they are given by themselves."""
    for key, value in given.items():
        if key not in fields:
            raise InputError(f"{name}: {key!r} is unknown; use {', '.join(fields)}")
        found.setdefault(fields[key], value)


@partial(accepts_every_name, known=LAYER_NAMES)
@dataclass(frozen=True)
class Layer:
    """The smallest part of a model that no cut divides, or `count` equal ones in a row.

    Numbers are read as decimals (see `ppopt.problem.exact`), may carry a unit (see
    `ppopt.problem.units`), and are held as exact fractions. A time of the backward that is not
    given follows from the others (`ppopt.problem.backward_times.complete`). Raises InputError on
    anything that is no layer.
    """

    forward: Any = None
    """Time of F, above 0; None: that of `phases`."""
    backward: Any = None
    """Time of BW, the full backward; None: 2 F, or B + W where B is given."""
    weight: Any = None
    """Time of W; None: half of BW, or what B leaves of it."""
    backward_input: Any = None
    """Time of B; None: BW - W. `input` in files, and accepted as a name here."""
    phases: Any = None
    """What F and B do in turn, a `ppopt.problem.phases.Phases` or a mapping of files; the four
    times before are then its sums. None: not known."""
    activation: Any = 0
    """Memory that F takes and that B and W together (or BW) give back."""
    memory_b: Any = 0
    """Signed change of memory by B, at least -activation."""
    static: Any = 0
    """Memory that is always there."""
    output: Any = 0
    """Memory of a microbatch that it hands on to the next layer, for `ppopt.Pipeline.link`."""
    workspace: Any = None
    """Memory that F, B and BW need only while they run, or a mapping from kinds (`F`, `B`, `W`,
    `BW`) to it; it is held in the four fields that follow."""
    forward_workspace: Any = None
    input_workspace: Any = None
    weight_workspace: Any = None
    backward_workspace: Any = None
    recompute: Any = False
    """Whether F keeps only a part of its activation, and B or BW computes it again; a mapping of
    `time` and `activation` sets the two fields that follow."""
    recompute_given: bool = False
    """Of an embedding or a head: whether its `recompute` was on as the model was read. Only then
    may it recompute; other layers always may (see `recomputable`)."""
    recompute_time: Any = None
    """Time by which recompute makes B and BW longer; None: F."""
    kept: Any = None
    """Memory that F keeps of its activation with recompute; None: 0."""
    offload: Any = False
    """Whether a part of its activation moves to the host between F and the backward; a mapping of
    `time` and `memory` sets the two fields that follow."""
    offload_time: Any = None
    """Time of each way; None: 0."""
    offload_memory: Any = None
    """Part of the activation that moves; None: all of it if there is a time."""
    unshard: Any = 0
    """Time of the all-gather of its weights, before the first F of its stage."""
    unshard_memory: Any = 0
    """Memory of its gathered weights."""
    gradient_sync: Any = 0
    """Time of the reduction of its gradients, after the last W or BW of its stage."""
    optimizer: Any = 0
    """Time of its optimizer step."""
    frozen: bool = False
    """Whether it is not trained; see `ppopt.problem.frozen`. Other fields say what it would cost if
    it were trained; `Layers.costed` what it does cost."""
    role: str = DECODER
    """`embedding`, `decoder`, `mtp` (multi-token prediction) or `head` (with the loss)."""
    name: str = ""
    count: int = 1
    """So many such layers in a row."""
    time_unit: str | None = None
    """Unit of its times; None: that of the numbers which carry one, and if none does, unknown."""
    memory_unit: str | None = None
    """Unit of its memory, as `time_unit`."""
    rounded: tuple[str, ...] = ()
    """The fields whose input was finer than 10^-6 of the unit and was rounded to it."""

    def __repr__(self) -> str:
        """What is not the default; times and memory as numbers."""
        given = (
            (field.name, getattr(self, field.name), field.default)
            for field in dataclasses.fields(self)
            if field.init
        )
        said = [
            f"{name}={plain(value) if isinstance(value, Fraction) else value!r}"
            for name, value, default in given
            if value != default and value is not None
        ]
        return f"Layer({', '.join(said)})"

    def __post_init__(self) -> None:
        if self.role not in LETTERS:
            raise InputError(f"role: {self.role!r} is unknown; use {', '.join(LETTERS)}")
        if not isinstance(self.name, str):
            raise InputError(f"name: {self.name!r} is not text")
        if isinstance(self.count, bool) or not isinstance(self.count, int):
            raise InputError(f"count: {self.count!r} is not a whole number")
        if not isinstance(self.frozen, bool):
            raise InputError(f"frozen: {self.frozen!r} is not true or false")
        if not 1 <= self.count <= MOST_LAYERS:
            raise InputError(f"count: {self.count} is not within 1 .. {MOST_LAYERS}")
        self._write_out()
        self._set_units()
        for cost in COSTS:
            if (value := getattr(self, cost.field)) is not None:
                self._set(cost.field, self._number(value, cost.name, cost.field, cost.least))
        self._sum_phases()
        self._complete_times()
        if self.memory_b < -self.activation:
            raise InputError(
                f"memory_b: {exact.plain(self.memory_b)} gives back more than the activation "
                f"{exact.plain(self.activation)}"
            )
        self._check_recompute()
        self._check_offload()

    def _sum_phases(self) -> None:
        """Take the times of F, B, W and BW from the phases."""
        if self.phases is None:
            return
        with _of_phases():
            self._set("phases", self.phases.each(partial(self._number, field="phases")))
        for field, value in self.phases.times().items():
            given = getattr(self, field)
            if given is not None and given != value:
                name = LAYER_NAMES[field].name
                raise InputError(
                    f"{name}: {plain(given)} is not the sum {plain(value)} of its phases; leave "
                    f"{name} out"
                )
            self._set(field, value)

    def _complete_times(self) -> None:
        given = (self.forward, self.backward, self.weight, self.backward_input)
        if self.forward is None:
            raise InputError(
                "forward: missing; every layer needs the time of its forward, or phases"
            )
        for field, value in zip(
            ("backward", "weight", "backward_input"), complete(*given), strict=True
        ):
            self._set(field, value)

    def _check_recompute(self) -> None:
        if not isinstance(self.recompute, bool):
            raise InputError(
                f"recompute: {self.recompute!r} is neither true, false nor a mapping of time and "
                "activation"
            )
        given = self.role in ENDS and (self.recompute_given or self.recompute)
        self._set("recompute_given", given)
        if self.recompute_time is None:
            self._set("recompute_time", self.forward)
        if self.kept > self.activation:
            raise InputError(
                f"recompute: activation {exact.plain(self.kept)} is more than the activation "
                f"{exact.plain(self.activation)} itself"
            )

    def _check_offload(self) -> None:
        if not isinstance(self.offload, bool):
            raise InputError(
                f"offload: {self.offload!r} is neither true, false nor a mapping of time and memory"
            )
        if self.offload_memory is None:
            self._set("offload_memory", self.activation if self.offload_time else Fraction(0))
        if self.offload_memory > self.activation:
            raise InputError(
                f"offload: memory {exact.plain(self.offload_memory)} is more than the activation "
                f"{exact.plain(self.activation)}"
            )
        if bool(self.offload_memory) != bool(self.offload_time) or (
            self.offload and not self.offload_time
        ):
            raise InputError("offload: needs time and memory, both above 0")
        if self.offload and self.recompute:
            raise InputError("offload: the layer recomputes; it does one of both")

    def _write_out(self) -> None:
        """Write workspace, recompute and offload as numbers.

        Workspaces, `kept` and `offload_time` are 0 if they are not given.
        """
        fields = ("workspace", "recompute", "recompute_time", "kept", *WORKSPACES.values())
        fields += ("offload", *OFFLOAD_COSTS)
        given = {field: getattr(self, field) for field in fields}
        found = flat({field: value for field, value in given.items() if value is not None})
        self._set("workspace", None)
        for field in ("kept", "offload_time", *WORKSPACES.values()):
            self._set(field, found.get(field, 0))
        for field in ("recompute_time", "offload_memory"):
            self._set(field, found.get(field))
        for field in ("recompute", "offload"):
            self._set(field, found.get(field, False))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _set_units(self) -> None:
        """Convert numbers that carry a unit to one unit for times, and one for memory."""
        with _of_phases():
            phases = None if self.phases is None else Phases.read(self.phases)
        for measure, fields in _FIELDS.items():
            given = {field: getattr(self, field) for field in fields}
            given = {field: value for field, value in given.items() if value is not None}
            if phases is not None and measure is Unit.TIME:
                given["phases"] = phases.numbers
            found = units.resolve(measure, getattr(self, f"{measure}_unit"), given)
            if phases is not None and measure is Unit.TIME:
                self._set("phases", phases.having(found.values.pop("phases")))
            for field, value in found.values.items():
                self._set(field, value)
            self._set(f"{measure}_unit", found.unit)
            self._set("rounded", tuple(dict.fromkeys((*self.rounded, *found.rounded))))

    def quantities(self, measure: Unit) -> list[Fraction | units.Quantity]:
        """Its times, or its amounts of memory, each with its unit if that is known."""
        unit = getattr(self, f"{measure}_unit")
        values = [getattr(self, field) for field in _FIELDS[measure]]
        return values if unit is None else [units.Quantity(value, unit) for value in values]

    def _number(self, given: object, name: str, field: str, least: int | None = 0) -> Fraction:
        """Read a number of a field, which has a name in files."""
        number = exact.read(given, name)
        if number.value < 0 and least is not None:
            raise InputError(f"{name}: {exact.plain(number.value)} is negative")
        if number.rounded and field not in self.rounded:
            self._set("rounded", (*self.rounded, field))
        return number.value

    def phases_in(self, unit: str | None) -> Phases | None:
        """Its phases with their times in another unit, where that of its own is known."""
        if self.phases is None or self.time_unit is None:
            return self.phases  # type: ignore[no-any-return]
        numbers = [units.Quantity(number, self.time_unit) for number in self.phases.numbers]
        found = units.resolve(Unit.TIME, unit, {"phases": numbers})
        return self.phases.having(found.values["phases"])  # type: ignore[no-any-return]

    @property
    def recomputable(self) -> bool:
        """Whether `recompute: full` makes it recompute, and `recompute: search` may.

        So do decoder and MTP layers, as in trainers; an embedding or a head where it says so. A
        layer that offloads does not.
        """
        return not self.offload and (self.role not in ENDS or self.recompute_given)

    def costed(self, *, forward_only: bool) -> Layer:
        """The layer with the costs that it has; `forward_only`: all layers before it are frozen."""
        if not self.frozen:
            return self
        changed = costs_of_frozen(vars(self), forward_only=forward_only)
        if self.phases is not None:
            changed["phases"] = self.phases.frozen(forward_only=forward_only)
        if forward_only:
            changed |= {"recompute": False, "offload": False}
        return replace(self, **changed)

    @property
    def saved(self) -> Fraction:
        """Memory of its activation that F does not keep with recompute; 0: it never recomputes."""
        return self.activation - self.kept if self.recomputable else Fraction(0)

    @property
    def work(self) -> Fraction:
        """Time of F and BW together, recompute included: what a partition balances."""
        again = self.recompute_time if self.recompute else 0
        return self.forward + self.backward + again  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Layers:
    """Layers in forward order, counts expanded: `layers` holds every layer with count 1.

    Raises InputError, naming the layer by its number in what was given, on anything that is no
    list of layers. A layer may be given as a `Layer` or as a mapping of its settings. All layers
    are held in one unit of time and one of memory.
    """

    layers: tuple[Layer, ...]
    name: str = ""
    time_unit: str | None = None
    """Unit of times that carry none, and of all times held; None: the largest that layers carry."""
    memory_unit: str | None = None
    """The same of memory."""
    recompute_unit: RecomputeUnit = RecomputeUnit.LAYER
    """What a whole backward recomputes at once."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"name: {self.name!r} is not text")
        object.__setattr__(self, "recompute_unit", RecomputeUnit(self.recompute_unit))
        declared = {"time_unit": self.time_unit, "memory_unit": self.memory_unit}
        read = self._in_one_unit(_read_all(self.layers, declared))
        object.__setattr__(self, "layers", tuple(_expanded(read)))
        if not self.layers:
            raise InputError("layers: the list is empty; give one layer or more")

    def _in_one_unit(self, layers: list[Layer]) -> list[Layer]:
        for measure, fields in _FIELDS.items():
            key = f"{measure}_unit"
            if all(getattr(layer, key) == getattr(self, key) for layer in layers):
                continue
            given = {
                f"layers: layer {index}": layer.quantities(measure)
                for index, layer in enumerate(layers)
            }
            found = units.resolve(measure, getattr(self, key), given)
            if any(getattr(layer, key) != found.unit for layer in layers):
                layers = [
                    replace(
                        layer,
                        **{key: found.unit, **dict(zip(fields, values, strict=True))},
                        phases=layer.phases_in(found.unit)
                        if measure is Unit.TIME
                        else layer.phases,
                    )
                    for layer, values in zip(layers, found.values.values(), strict=True)
                ]
        return layers

    def __len__(self) -> int:
        return len(self.layers)

    def __hash__(self) -> int:
        layers = map_distinct(hash, self.layers)
        return hash((layers, self.name, self.time_unit, self.memory_unit, self.recompute_unit))

    def __repr__(self) -> str:
        runs = ", ".join(
            f"{layer.count} {layer.name or layer.role}" for layer in runs_of(self.layers)
        )
        return f"{type(self).__name__}({self.name or 'unnamed'}: {len(self)} layers: {runs})"

    @property
    def rounded(self) -> tuple[str, ...]:
        """Fields of layers whose input was finer than 10^-6 of the unit and was rounded to it."""
        return tuple(dict.fromkeys(field for layer in self.distinct for field in layer.rounded))

    def sample(self, measure: Unit) -> Fraction | units.Quantity:
        """One of the times, or amounts of memory; not 0 if it has no unit, unless all are."""
        every = (quantity for layer in self.distinct for quantity in layer.quantities(measure))
        return next((value for value in every if value != 0), Fraction(0))

    @cached_property
    def distinct(self) -> tuple[Layer, ...]:
        """The layers, those of a count once."""
        return distinct(self.layers)

    def each(self, value: Callable[[Layer], Value]) -> tuple[Value, ...]:
        """A value of every layer with the costs that it has; computed once for those of a count."""
        return map_distinct(value, self.costed)

    @cached_property
    def has_activation(self) -> bool:
        """Whether any layer says what activation it keeps: no memory limit makes sense else."""
        return any(layer.activation for layer in self.distinct)

    @cached_property
    def forward_only(self) -> int:
        """How many layers run no backward: the frozen ones before the first that is trained."""
        return num_forward_only(layer.frozen for layer in self.layers)

    @cached_property
    def costed(self) -> tuple[Layer, ...]:
        """The layers with the costs that they have: frozen ones do not have all that are stated.

        What F holds of the activation of a layer without backward is in `passing`.
        """
        if not any(layer.frozen for layer in self.layers):
            return self.layers
        made: dict[tuple[int, bool], Layer] = {}
        found = []
        for place, layer in enumerate(self.layers):
            key = id(layer), place < self.forward_only
            if key not in made:
                made[key] = layer.costed(forward_only=key[1])
            found.append(made[key])
        return tuple(found)

    @cached_property
    def distinct_costed(self) -> tuple[Layer, ...]:
        """The layers with the costs that they have, those of a count once."""
        return distinct(self.costed)

    @cached_property
    def passing(self) -> tuple[Fraction, ...]:
        """What F holds only while it runs of the activations of the first 0, 1, ... layers."""
        held = (
            layer.activation if place < self.forward_only else ZERO
            for place, layer in enumerate(self.layers)
        )
        return tuple(accumulate(held, initial=ZERO))

    @cached_property
    def _amounts(self) -> dict[str, tuple[Fraction, ...]]:
        """Costs of every layer of which a stage has the sum."""
        apart = (*WORKSPACES.values(), "recompute_memory")
        fields = (field for field in ModelCosts._fields if field not in apart)
        return {field: self.each(partial(_amount, field=field)) for field in fields}

    @cached_property
    def _sums(self) -> dict[str, tuple[Fraction, ...]]:
        """Sum of each cost over the first 0, 1, ... layers."""
        return {field: _first_sums(amounts) for field, amounts in self._amounts.items()}

    def _stage_sums(self, field: str, stages: Sequence[tuple[int, int]]) -> tuple[Fraction, ...]:
        """Sums of a cost over the layers `start` to `end` - 1 of every stage.

        Stages of one layer have its own objects, so that equal layers stay one object.
        """
        amounts, sums = self._amounts[field], self._sums[field]
        return tuple(
            amounts[start] if end == start + 1 else sums[end] - sums[start] for start, end in stages
        )

    @cached_property
    def _workspaces(self) -> dict[str, tuple[Fraction, ...]]:
        """Every workspace of each layer."""
        return {field: self.each(attrgetter(field)) for field in WORKSPACES.values()}

    def without(self, fields: Iterable[str]) -> Self:
        """The layers without some costs, which are then 0."""
        none: dict[str, Any] = dict.fromkeys(fields, 0)
        return replace(self, layers=tuple(replace(layer, **none) for layer in self.layers))

    def on_compute(self) -> Self:
        """The layers without phases on links: a relaxation of stages of any of them.

        Replace every F, B and BW by what it computes, and every pair by F and then the backward. A
        pair takes no less: it computes both. So nothing ends later, and nothing holds more memory.
        Raises NotApplicableError if an F computes nothing.
        """
        return replace(self, layers=tuple(map(_on_compute, self.layers)))

    def recomputing(self, layers: Callable[[Layer], bool]) -> Self:
        """The layers, of which exactly those recompute of which this holds."""
        return self._with(recompute=[layers(layer) for layer in self.layers])

    def with_recompute(self, choice: str) -> Self:
        """The layers of a choice: `none` recomputes, or all that may (`full`)."""
        full = choice == "full"
        if all(layer.recompute == (full and layer.recomputable) for layer in self.layers):
            return self
        return self.recomputing(lambda layer: full and layer.recomputable)

    def with_choice(self, recompute: Container[int], offload: Container[int]) -> Self:
        """The layers, of which exactly those at these places recompute, and offload."""
        places = range(len(self))
        return self._with(
            recompute=[place in recompute for place in places],
            offload=[place in offload for place in places],
        )

    def _with(self, **flags: Sequence[bool]) -> Self:
        """The layers with some flags, one per layer; equal layers of a count stay one object."""
        changed: dict[tuple[object, ...], Layer] = {}
        layers = []
        for layer, *values in zip(self.layers, *flags.values(), strict=True):
            own = dict(zip(flags, values, strict=True))
            key = id(layer), *values
            if key not in changed:
                same = all(getattr(layer, name) == value for name, value in own.items())
                changed[key] = layer if same else replace(layer, **own)
            layers.append(changed[key])
        if all(map(is_, layers, self.layers)):
            return self
        return replace(self, layers=tuple(layers))

    def stage_costs(self, counts: Sequence[int]) -> ModelCosts:
        """Costs of the stages that hold so many consecutive layers each: exact sums.

        Of workspaces it is the largest, and F also holds what layers without backward take. Raises
        InputError if the counts are no partition of the layers.
        """
        cuts = tuple(accumulate(self.checked(counts), initial=0))
        stages = list(pairwise(cuts))
        found: dict[str, Any] = {
            field: (ZERO,) * len(stages) if sums[-1] is ZERO else self._stage_sums(field, stages)
            for field, sums in self._sums.items()
        }
        for field, rows in self._workspaces.items():
            used = any(distinct(rows))
            found[field] = tuple(_largest(rows[s:e]) for s, e in stages) if used else None
        if any(self.passing):
            held = [self.passing[end] - self.passing[start] for start, end in stages]
            largest = found["forward_workspace"] or (ZERO,) * len(held)
            found["forward_workspace"] = tuple(map(add, largest, held))
        found["recompute_memory"] = None
        if self.recompute_unit is RecomputeUnit.LAYER and self.unit_matters:
            found |= self._backward_memory(stages, found["backward_workspace"])
        if not any(layer.recompute for layer in self.distinct_costed):
            found |= {"recompute_time": None, "kept": None, "recompute_memory": None}
        sometimes = (*STEP_COSTS, *OFFLOAD_COSTS)
        found |= {field: None for field in sometimes if not self._sums[field][-1]}
        return ModelCosts(**found)

    def _backward_memory(
        self, stages: Sequence[tuple[int, int]], largest: Row | None
    ) -> dict[str, Any]:
        """What BW allocates per stage, of layers `start` to `end` - 1, that run one at a time.

        It counts as workspace up to the largest of the layers, and the rest as recomputed.
        """
        allocated = [backward_peak(self.costed[start:end]).allocated for start, end in stages]
        workspace = tuple(map(min, largest or (ZERO,) * len(stages), allocated))
        return {
            "backward_workspace": workspace if any(workspace) else None,
            "recompute_memory": tuple(map(sub, allocated, workspace)),
        }

    @cached_property
    def unit_matters(self) -> bool:
        """Whether `recompute_unit` may change the memory of a stage."""
        return any(
            layer.backward_workspace or (layer.recompute and layer.saved)
            for layer in self.distinct_costed
        )

    def with_offload(self, choice: str) -> Self:
        """The layers of a choice: `none` offloads, or `all` that can and do not recompute."""
        every = choice == "all"
        return self._with(
            offload=[
                every and bool(layer.offload_time) and not layer.recompute for layer in self.layers
            ]
        )

    @cached_property
    def has_output(self) -> bool:
        """Whether any layer says what it hands on: no bandwidth makes sense else."""
        return any(layer.output for layer in self.layers)

    def outputs(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Size of what every stage but the last hands on; raises InputError as `stage_costs`.

        An empty stage hands on what it gets.
        """
        cuts = accumulate(self.checked(counts)[:-1])
        return tuple(self.costed[cut - 1].output for cut in cuts)

    def stage_layers(self, counts: Sequence[int]) -> tuple[tuple[Layer, ...], ...]:
        """Layers of every stage, as in `costed`; raises InputError as `stage_costs`."""
        cuts = accumulate(self.checked(counts), initial=0)
        return tuple(self.costed[start:end] for start, end in pairwise(cuts))

    def checked(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Counts of layers per stage, checked: all layers together, the first and last not 0."""
        last = len(counts) - 1
        for stage, count in enumerate(counts):
            if isinstance(count, bool) or not isinstance(count, int):
                raise InputError(f"partition: stage {stage}: {count!r} is not a whole number")
            if count < 0:
                raise InputError(f"partition: stage {stage}: {count} layers is below 0")
            if count == 0 and stage in (0, last):
                raise InputError(
                    f"partition: stage {stage} of {len(counts)} is empty; {ONLY_BETWEEN}"
                )
        if sum(counts) != len(self):
            decoders = self.num_decoders
            also = "" if decoders == len(self) else f", or the decoder layers alone, {decoders}"
            raise InputError(
                f"partition: the counts add up to {sum(counts)}; count all layers, "
                f"{len(self)}{also}"
            )
        return tuple(counts)

    @cached_property
    def num_decoders(self) -> int:
        """How many layers are decoder layers."""
        return sum(layer.role == DECODER for layer in self.layers)


@contextmanager
def _of_phases() -> Iterator[None]:
    """Let the message of an InputError begin with the field."""
    try:
        yield
    except InputError as error:
        raise InputError(f"phases: {error}") from None


def _on_compute(layer: Layer) -> Layer:
    if layer.phases is None:
        return layer
    times = layer.phases.on_compute.times()
    if not times["forward"]:
        name = layer.name or layer.role
        raise NotApplicableError(
            f"partition: search needs an F on compute in every layer; join {name} with another"
        )
    return replace(layer, phases=None, **times)


def held_by_forward(layer: Layer) -> Fraction:
    """What F keeps of the activation of a layer."""
    return layer.kept if layer.recompute else layer.activation  # type: ignore[no-any-return]


def backward_peak(layers: Iterable[Layer]) -> BackwardPeak:
    """Memory of a microbatch while BW of a stage of some layers runs, one layer at a time."""
    peak = BackwardPeak()
    for _, same in groupby(layers, id):
        layer, *others = same
        cost = held_by_forward(layer), layer.activation, layer.backward_workspace
        peak = peak.then(*cost, count=1 + len(others))
    return peak


def activation_of(layers: Iterable[Layer]) -> Fraction:
    """Activation of some layers, as without recompute."""
    return sum((layer.activation for layer in layers), Fraction(0))


def _largest(amounts: Iterable[Fraction]) -> Fraction:
    """Largest amount; the same object is compared once."""
    return max(distinct(amounts), default=ZERO)


def _first_sums(amounts: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Sums of the first 0, 1, ... amounts; the same object each if all amounts are 0."""
    if not any(distinct(amounts)):
        return (ZERO,) * (len(amounts) + 1)
    return tuple(accumulate(amounts, initial=ZERO))


def _amount(layer: Layer, field: str) -> Fraction:
    """What a layer adds to a cost of its stage."""
    if field == "recompute_time" and not layer.recompute:
        return Fraction(0)
    if field == "kept":
        return held_by_forward(layer)
    if field in OFFLOAD_COSTS and not layer.offload:
        return Fraction(0)
    return getattr(layer, field)  # type: ignore[no-any-return]


def runs_of(layers: Iterable[Layer]) -> list[Layer]:
    """Layers with equal neighbours joined into one layer of a count: what `Layers` expands."""
    runs = ((layer, sum(equal.count for equal in same)) for layer, same in groupby(layers))
    return [layer if layer.count == count else replace(layer, count=count) for layer, count in runs]


def _read_all(given: object, declared: Mapping[str, Any]) -> list[Layer]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"layers: {given!r} is not a list of layers")
    return [_read(entry, index, declared) for index, entry in enumerate(given)]


def _expanded(layers: Iterable[Layer]) -> Iterable[Layer]:
    total = 0
    for layer in layers:
        total += layer.count
        if total > MOST_LAYERS:
            raise InputError(f"layers: more than {MOST_LAYERS} layers, counts expanded")
        single = layer if layer.count == 1 else replace(layer, count=1)
        yield from (single,) * layer.count


def _read(entry: object, index: int, declared: Mapping[str, Any]) -> Layer:
    """Read a layer; if it is a mapping, its plain numbers count in the declared units."""
    if isinstance(entry, Layer):
        return entry
    if not isinstance(entry, Mapping):
        raise InputError(f"layers: layer {index}: {entry!r} is no layer; use ppopt.Layer")
    try:
        given = {str(key): value for key, value in entry.items()}
        return Layer(**{"forward": None, **declared, **given})
    except (InputError, TypeError) as error:
        name = f" ({entry['name']})" if isinstance(entry.get("name"), str) else ""
        raise InputError(f"layers: layer {index}{name}: {error}") from None
