"""A layer of a model: the smallest part that a partition cannot divide, with its costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ppopt.errors import InputError, NotApplicableError
from ppopt.problem import exact, modules, units
from ppopt.problem.backward_times import complete
from ppopt.problem.cost_table import LAYER_COSTS, LayerFields
from ppopt.problem.decisions import Decisions
from ppopt.problem.exact import plain
from ppopt.problem.frozen import costs_of_frozen
from ppopt.problem.layer_settings import DECODER, LAYER_NAMES, LETTERS, flat
from ppopt.problem.phases import Phases
from ppopt.problem.setting_fields import accepts_every_name
from ppopt.problem.units import Unit

MAX_LAYERS = 4096
"""Maximum number of layers of a model, counts expanded."""
ENDS = ("embedding", "head")
"""Roles of layers that trainers do not recompute. Full recompute wraps transformer layers alone:
`_checkpointed_forward` of transformer_block.py and multi_token_prediction.py in
megatron/core/transformer of Megatron-LM, `apply` of torchtitan/distributed/activation_checkpoint.py
in torchtitan."""
COST_FIELDS = {
    unit: tuple(cost.field for cost in LAYER_COSTS if cost.unit is unit) for unit in Unit
}
"""Unit -> fields of the costs of a layer that are measured in it."""

_NOT_STATED: Any = None


@partial(accepts_every_name, known=LAYER_NAMES)
@dataclass(frozen=True)
class Layer(LayerFields[Fraction]):
    """The smallest part of a model that a partition cannot divide, or `count` equal ones in a row.

    Its costs are those of `ppopt.problem.cost_table`. `forward` is required, or `phases`. Numbers
    are read as decimals (see `ppopt.problem.exact`), may have a unit (see `ppopt.problem.units`),
    and are stored as exact fractions. A time of the backward that is not given follows from the
    others (`ppopt.problem.backward_times.complete`). Raises InputError on anything that is no
    layer.
    """

    forward: Fraction = _NOT_STATED
    """Time of F. None: that of `phases`."""
    activation: Fraction = _NOT_STATED
    """Memory that F allocates, and that B and W together free. None: 0."""
    phases: Any = None
    """The steps of F and B in turn, a `ppopt.problem.phases.Phases` or a mapping as in files; the
    times of F, BW, W and B are then its sums. None: unknown."""
    workspace: Any = None
    """Memory that F, B and BW need only while they run, or a mapping from kinds (`F`, `B`, `W`,
    `BW`) to it; it sets the fields of the workspaces."""
    modules: Any = ()
    """Parts that recompute or offload on their own: `ppopt.problem.modules.Module`, or mappings."""
    recompute: Any = False
    """Whether F retains only a part of its activation, and B or BW computes the rest again; a
    mapping of `time` and `activation` sets `recompute_time` and `kept`. Or the names of the
    modules that do so, a tuple."""
    recompute_given: bool = False
    """Of an embedding or a head: whether its `recompute` was on when the model was read. Only then
    may it recompute; other layers always may (see `recomputable`)."""
    offload: Any = False
    """Whether a part of its activation moves to the host between F and the backward; a mapping of
    `time` and `memory` sets `offload_time` and `offload_memory`. Or the names of the
    modules that do so, a tuple."""
    frozen: bool = False
    """Whether it is not trained; see `ppopt.problem.frozen`. Other fields have its costs as if it
    were trained; `Layers.costed` has its actual costs."""
    role: str = DECODER
    """`embedding`, `decoder`, `mtp` (multi-token prediction) or `head` (with the loss)."""
    name: str = ""
    count: int = 1
    """Number of such layers in a row."""
    time_unit: str | None = None
    """Unit of its times; None: that of the numbers which carry one, and if none does, unknown."""
    memory_unit: str | None = None
    """Unit of its memory, as `time_unit`."""
    rounded: tuple[str, ...] = ()
    """The fields whose input was finer than 10^-6 of the unit and was rounded to it."""

    if TYPE_CHECKING:

        def __init__(self, forward: object = None, **fields: Any) -> None: ...

    def __repr__(self) -> str:
        """Fields that differ from their defaults; times and memory as numbers."""
        usual = {cost.field: cost.layer_default.value for cost in LAYER_COSTS}
        parts = [
            f"{field.name}={plain(value) if isinstance(value, Fraction) else value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) is not None
            and value != usual.get(field.name, field.default)
        ]
        return f"Layer({', '.join(parts)})"

    def __post_init__(self) -> None:
        if self.role not in LETTERS:
            raise InputError(f"role: {self.role!r} is unknown; use {', '.join(LETTERS)}")
        if not isinstance(self.name, str):
            raise InputError(f"name: {self.name!r} is not text")
        if isinstance(self.count, bool) or not isinstance(self.count, int):
            raise InputError(f"count: {self.count!r} is not a whole number")
        if not isinstance(self.frozen, bool):
            raise InputError(f"frozen: {self.frozen!r} is not true or false")
        if not 1 <= self.count <= MAX_LAYERS:
            raise InputError(f"count: {self.count} is not within 1 .. {MAX_LAYERS}")
        self._write_out()
        with _named("modules"):
            self._set("modules", modules.read(self.modules or ()))
        self._set_units()
        for cost in LAYER_COSTS:
            if (value := getattr(self, cost.field)) is not None:
                self._set(
                    cost.field, self._number(value, cost.layer_name, cost.field, cost.minimum)
                )
        self._read_modules()
        self._sum_phases()
        self._complete()
        if self.memory_b < -self.activation:
            raise InputError(
                f"memory_b: {exact.plain(self.memory_b)} frees more than the activation "
                f"{exact.plain(self.activation)}"
            )
        self._check_recompute()
        self._check_offload()

    def _read_modules(self) -> None:
        """Read the numbers of the modules."""

        def number(value: Any, key: str) -> Fraction:
            return self._number(value, f"modules: {key}", "modules")

        self._set("modules", modules.in_units(self.modules, number))

    def _sum_phases(self) -> None:
        """Take the times of F, B, W and BW from the phases."""
        if self.phases is None:
            return
        with _named("phases"):
            self._set("phases", self.phases.each(partial(self._number, field="phases")))
        for field, value in self.phases.times().items():
            stated = getattr(self, field)
            if stated is not None and stated != value:
                name = LAYER_NAMES[field].name
                raise InputError(
                    f"{name}: {plain(stated)} is not the sum {plain(value)} of its phases; leave "
                    f"{name} out"
                )
            self._set(field, value)

    def _complete(self) -> None:
        """Derive costs that are not given from the others."""
        times = (self.forward, self.backward, self.weight, self.backward_input)
        if self.forward is None:
            raise InputError(
                "forward: missing; every layer needs the time of its forward, or phases"
            )
        for field, value in zip(
            ("backward", "weight", "backward_input"), complete(*times), strict=True
        ):
            self._set(field, value)
        for cost in LAYER_COSTS:
            if getattr(self, cost.field) is None:
                self._set(cost.field, cost.layer_default.layer_value(vars(self)))

    def _check_recompute(self) -> None:
        with _named("recompute"):
            chosen = modules.chosen_names(self.recompute)
            self._set("recompute", modules.in_order(self.modules, chosen))
        may_recompute = self.role in ENDS and (self.recompute_given or self.recompute is True)
        self._set("recompute_given", may_recompute)
        if self.kept > self.activation:
            raise InputError(
                f"recompute: activation {exact.plain(self.kept)} is more than the activation "
                f"{exact.plain(self.activation)} itself"
            )

    def _check_offload(self) -> None:
        with _named("offload"):
            chosen = modules.chosen_names(self.offload)
            self._set("offload", modules.in_order(self.modules, chosen))
        if self.offload_memory > self.activation:
            raise InputError(
                f"offload: memory {exact.plain(self.offload_memory)} is more than the activation "
                f"{exact.plain(self.activation)}"
            )
        if bool(self.offload_memory) != bool(self.offload_time) or (
            self.offload is True and not self.offload_time
        ):
            raise InputError("offload: needs time and memory, both above 0")
        if self.offload and self.recompute and True in (self.offload, self.recompute):
            raise InputError("offload: the layer recomputes; it does one of both")
        modules.check_sets(self.modules, self.recompute, self.offload)
        if self.in_force["offload_memory"] > self.in_force["kept"] or self.in_force["kept"] < 0:
            raise InputError(
                "modules: the memory of those that recompute or offload is more than the "
                f"activation {exact.plain(self.activation)}"
            )

    def _write_out(self) -> None:
        """Write workspace, recompute and offload as numbers."""
        values = flat({field: value for field, value in vars(self).items() if value is not None})
        self._set("workspace", None)
        for field in ("recompute", "offload"):
            self._set(field, values.get(field, False))
        for cost in LAYER_COSTS:
            self._set(cost.field, values.get(cost.field))

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _set_units(self) -> None:
        """Convert numbers with a unit to one unit of time and one of memory."""
        with _named("phases"):
            phases = None if self.phases is None else Phases.read(self.phases)
        for measure, fields in COST_FIELDS.items():
            values = {field: getattr(self, field) for field in fields}
            values = {field: value for field, value in values.items() if value is not None}
            if phases is not None and measure is Unit.TIME:
                values["phases"] = phases.numbers
            keys = modules.TIMES if measure is Unit.TIME else modules.MEMORY
            values["modules"] = modules.numbers_of(self.modules, keys)
            resolved = units.resolve(measure, getattr(self, f"{measure}_unit"), values)
            if phases is not None and measure is Unit.TIME:
                self._set("phases", phases.having(resolved.values.pop("phases")))
            own = modules.with_numbers(self.modules, keys, resolved.values.pop("modules"))
            for field, value in (resolved.values | {"modules": own}).items():
                self._set(field, value)
            self._set(f"{measure}_unit", resolved.unit)
            self._set("rounded", tuple(dict.fromkeys((*self.rounded, *resolved.rounded))))

    def quantities(self, measure: Unit) -> list[Fraction | units.NumberWithUnit]:
        """Its times, or its amounts of memory, each with its unit if that is known."""
        unit = getattr(self, f"{measure}_unit")
        values = [getattr(self, field) for field in COST_FIELDS[measure]]
        return values if unit is None else [units.NumberWithUnit(value, unit) for value in values]

    def _number(self, value: object, name: str, field: str, minimum: int | None = 0) -> Fraction:
        """Read a number of a field; `name` is its name in files."""
        number = exact.read(value, name)
        if number.value < 0 and minimum is not None:
            raise InputError(f"{name}: {exact.plain(number.value)} is negative")
        if number.rounded and field not in self.rounded:
            self._set("rounded", (*self.rounded, field))
        return number.value

    def in_unit(self, measure: Unit, unit: str | None) -> Layer:
        """The layer with its times, or its memory, in a unit; unchanged if its own is unknown."""
        key, scales = f"{measure}_unit", units.SCALES[measure]
        own: str | None = getattr(self, key)
        changed: dict[str, Any] = {key: unit}
        if own == unit or unit is None:
            return self
        if own is not None:
            factor = scales[own] / scales[unit]
            changed |= self.changed(measure, lambda number, _: factor * number)
        return replace(self, **changed)

    def changed(self, measure: Unit, change: Callable[[Fraction, str], Fraction]) -> dict[str, Any]:
        """Fields of its times, or its memory, with every number changed; `change` gets its name."""
        fields: dict[str, Any] = {
            field: change(getattr(self, field), field) for field in COST_FIELDS[measure]
        }
        if self.phases is not None and measure is Unit.TIME:
            fields["phases"] = self.phases.each(change)
        keys = modules.TIMES if measure is Unit.TIME else modules.MEMORY
        fields["modules"] = tuple(module.each(change, keys) for module in self.modules)
        return fields

    def numbers(self, measure: Unit) -> Iterator[tuple[str, Fraction]]:
        """Its times, or its amounts of memory, with their fields."""
        yield from ((field, getattr(self, field)) for field in COST_FIELDS[measure])
        if self.phases is not None and measure is Unit.TIME:
            yield from (("phases", number) for number in self.phases.numbers)
        keys = modules.TIMES if measure is Unit.TIME else modules.MEMORY
        yield from (("modules", number) for number in modules.numbers_of(self.modules, keys))

    def having(self, **chosen: modules.Chosen) -> Layer:
        """The layer with other values of `recompute` and `offload`; its costs are not read again.

        Raises InputError if it cannot offload, or does both.
        """
        layer = copy(self)
        vars(layer).pop("in_force", None)
        vars(layer).update(chosen)
        layer._check_recompute()
        layer._check_offload()
        return layer

    def undecided(self, decisions: Decisions) -> Layer:
        """The layer that does nothing of what these decisions are about."""
        return self.having(**dict.fromkeys((decisions & Decisions.OF_MODEL).fields, False))

    @property
    def recomputable(self) -> bool:
        """Whether `recompute: full` makes it recompute, and `recompute: search` may.

        This holds for decoder and MTP layers, as in trainers, and for an embedding or a head whose
        `recompute` is on. It does not hold for a layer that offloads.
        """
        return not self.offload and (self.role not in ENDS or self.recompute_given)

    def costed(self, *, forward_only: bool) -> Layer:
        """The layer with its actual costs; `forward_only`: all layers before it are frozen."""
        if not self.frozen:
            return self
        changed = costs_of_frozen(vars(self), forward_only=forward_only)
        if self.phases is not None:
            changed["phases"] = self.phases.frozen(forward_only=forward_only)
        if forward_only:
            changed |= {"recompute": False, "offload": False, "modules": ()}
        return replace(self, **changed)

    @cached_property
    def in_force(self) -> Mapping[str, Fraction]:
        """The costs that depend on what the layer recomputes and offloads, by field.

        Sets of modules add up times and memory; the workspace of B and BW is the larger one of the
        layer and of the set.
        """
        recomputed = self._selected("recompute")
        offloaded = self._selected("offload")
        largest = max((module.workspace for module in recomputed), default=Fraction(0))
        return {
            "recompute_time": _sum(module.time for module in recomputed),
            "kept": self.activation - _sum(module.memory for module in recomputed),
            "offload_memory": _sum(module.offload_memory for module in offloaded),
            "offload_time": _sum(module.offload_time for module in offloaded),
            "input_workspace": max(self.input_workspace, largest),
            "backward_workspace": max(self.backward_workspace, largest),
        }

    def _selected(self, field: str) -> modules.Modules:
        """The modules that recompute, or offload; a whole layer is one module."""
        chosen = getattr(self, field)
        if isinstance(chosen, bool):
            return (self._whole,) if chosen else ()
        return modules.selected(self.modules, chosen)

    @property
    def _whole(self) -> modules.Module:
        """The layer as one module."""
        memory = self.activation - self.kept
        moves = self.offload_time, self.offload_memory
        return modules.Module("", self.recompute_time, memory, Fraction(0), *moves)

    @property
    def largest(self) -> Mapping[str, Fraction]:
        """Upper bounds on the costs of `in_force` over all that it may recompute, by field."""
        every = (self._whole, *self.modules)
        workspace = max(module.workspace for module in every)
        return {
            "recompute_time": _sum(module.time or 0 for module in every),
            "kept": self.activation,
            "offload_memory": self.activation,
            "offload_time": _sum(module.offload_time or 0 for module in every),
            "input_workspace": max(self.input_workspace, workspace),
            "backward_workspace": max(self.backward_workspace, workspace),
        }

    @property
    def saved(self) -> Fraction:
        """Activation that F does not retain with recompute; 0 if the layer never recomputes."""
        return self.activation - self.kept if self.recomputable else Fraction(0)

    @property
    def work(self) -> Fraction:
        """Time of F and BW together, recompute included: what a partition balances."""
        return self.forward + self.backward + self.in_force["recompute_time"]


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Let the message of an InputError begin with the field."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{field}: {error}") from None


def on_compute(layer: Layer) -> Layer:
    """The layer without phases on a link; raises NotApplicableError if its F computes nothing."""
    if layer.phases is None:
        return layer
    times = layer.phases.on_compute.times()
    if not times["forward"]:
        name = layer.name or layer.role
        raise NotApplicableError(
            f"partition: search needs an F on compute in every layer; join {name} with another"
        )
    return replace(layer, phases=None, **times)


def _sum(numbers: Iterable[Any]) -> Fraction:
    return sum(numbers, Fraction(0))


def runs_of(layers: Iterable[Layer]) -> list[Layer]:
    """Layers with equal neighbours joined into one layer with a count, as `Layers` expands them."""
    runs = ((layer, sum(equal.count for equal in same)) for layer, same in groupby(layers))
    return [layer if layer.count == count else replace(layer, count=count) for layer, count in runs]
