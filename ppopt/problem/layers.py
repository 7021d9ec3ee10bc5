"""The layers of a model in forward order, with their costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from operator import is_
from typing import Any, Self, TypeVar

from ppopt.errors import InputError
from ppopt.problem import units
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import ZERO
from ppopt.problem.decisions import Decisions
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.frozen import num_forward_only
from ppopt.problem.layer import (
    MAX_LAYERS,
    Layer,
    on_compute,
    runs_of,
)
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.modules import Chosen
from ppopt.problem.units import Unit

Value = TypeVar("Value")
SELECTIVE = ("core_attn",)
"""The modules that `recompute: selective` recomputes, as in Megatron-LM."""
ONLY_BETWEEN = "only stages between the first and the last may be empty"


@dataclass(frozen=True)
class Layers:
    """Layers in forward order, counts expanded: `layers` has every layer with count 1.

    Raises InputError, naming the layer by its number in the input, on anything that is no list of
    layers. A layer may be given as a `Layer` or as a mapping of its settings. All layers are in one
    unit of time and one of memory.
    """

    layers: tuple[Layer, ...]
    name: str = ""
    time_unit: str | None = None
    """Unit of times that have none, and of all times stored; None: the largest unit of a layer."""
    memory_unit: str | None = None
    """The same for memory."""
    recompute_unit: RecomputeUnit = RecomputeUnit.LAYER
    """The unit that a whole backward recomputes at once."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"name: {self.name!r} is not text")
        object.__setattr__(self, "recompute_unit", RecomputeUnit(self.recompute_unit))
        declared = {"time_unit": self.time_unit, "memory_unit": self.memory_unit}
        if not isinstance(self.layers, Sequence) or isinstance(self.layers, str):
            raise InputError(f"layers: {self.layers!r} is not a list of layers")
        read = [_read(entry, index, declared) for index, entry in enumerate(self.layers)]
        read = self._in_one_unit(read)
        object.__setattr__(self, "layers", tuple(_expanded(read)))
        if not self.layers:
            raise InputError("layers: the list is empty; give one layer or more")

    def _in_one_unit(self, layers: list[Layer]) -> list[Layer]:
        for measure in Unit:
            key = f"{measure}_unit"
            if all(getattr(layer, key) == getattr(self, key) for layer in layers):
                continue
            quantities = {
                f"layers: layer {index}": layer.quantities(measure)
                for index, layer in enumerate(layers)
            }
            unit = units.resolve(measure, getattr(self, key), quantities).unit
            layers = [layer.in_unit(measure, unit) for layer in layers]
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

    def sample(self, measure: Unit) -> Fraction | units.NumberWithUnit:
        """A time, or an amount of memory, other than 0 if there is one."""
        every = (quantity for layer in self.distinct for quantity in layer.quantities(measure))
        return next((value for value in every if value != 0), ZERO)

    @cached_property
    def distinct(self) -> tuple[Layer, ...]:
        """The layers, those of a count once."""
        return distinct(self.layers)

    def __getstate__(self) -> dict[str, Any]:
        """What other processes need; tables of partitions are large, and are built again."""
        return {name: value for name, value in vars(self).items() if name != "_tables"}

    def each(self, value: Callable[[Layer], Value]) -> tuple[Value, ...]:
        """A value of every layer, with its actual costs; computed once per distinct layer."""
        return map_distinct(value, self.costed)

    @cached_property
    def has_activation(self) -> bool:
        """Whether any layer states an activation: a memory limit needs one."""
        return any(layer.activation for layer in self.distinct)

    @cached_property
    def num_forward_only_layers(self) -> int:
        """Number of layers without a backward: the frozen ones before the first trained one."""
        return num_forward_only(layer.frozen for layer in self.layers)

    @cached_property
    def costed(self) -> tuple[Layer, ...]:
        """The layers with their actual costs: frozen layers do not have all stated costs.

        The activation that F of a layer without backward allocates is in `passing`.
        """
        if not any(layer.frozen for layer in self.layers):
            return self.layers
        costed_layers: dict[tuple[int, bool], Layer] = {}
        layers = []
        for index, layer in enumerate(self.layers):
            key = id(layer), index < self.num_forward_only_layers
            if key not in costed_layers:
                costed_layers[key] = layer.costed(forward_only=key[1])
            layers.append(costed_layers[key])
        return tuple(layers)

    @cached_property
    def distinct_costed(self) -> tuple[Layer, ...]:
        """The layers with their actual costs, those of a count once."""
        return distinct(self.costed)

    @cached_property
    def distinct_index(self) -> tuple[int, ...]:
        """Index of every layer among `distinct_costed`."""
        index = {id(layer): position for position, layer in enumerate(self.distinct_costed)}
        return tuple(index[id(layer)] for layer in self.costed)

    @cached_property
    def passing(self) -> tuple[Fraction, ...]:
        """Activation that F of each layer allocates only while it runs."""
        first = self.num_forward_only_layers
        front = (layer.activation for layer in self.layers[:first])
        return (*front, *(ZERO,) * (len(self) - first))

    @property
    def phase_times(self) -> list[Fraction]:
        """Times and weights of all phases of layers."""
        phases = (layer.phases for layer in self.distinct_costed if layer.phases)
        return [number for each in phases for number in each.numbers]

    def without(self, fields: Iterable[str]) -> Self:
        """The layers without some costs, which are then 0."""
        none: dict[str, Any] = dict.fromkeys(fields, ZERO)
        return self.mapped(lambda layer: replace(layer, **none))

    def on_compute(self) -> Self:
        """The layers without phases on links: a relaxation of stages of any of them.

        Replace every F, B and BW by its phases on compute, and every pair by F and then the
        backward. A pair is no shorter: it computes both. So nothing ends later, and nothing needs
        more memory. Raises NotApplicableError if an F computes nothing.
        """
        return replace(self, layers=map_distinct(on_compute, self.layers))

    def recomputing(self, layers: Callable[[Layer], bool]) -> Self:
        """The layers with recompute exactly where the predicate is true."""
        return self._with(recompute=[layers(layer) for layer in self.layers])

    def with_recompute(self, choice: str) -> Self:
        """The layers where none recomputes (`none`), or all that may (`full`), or modules.

        `selective` is core attention; names joined by `+` are modules.
        """
        if choice not in ("none", "full"):
            names = SELECTIVE if choice == "selective" else tuple(choice.split("+"))
            return self.with_modules("recompute", names)
        return self.recomputing(lambda layer: choice == "full" and layer.recomputable)

    def undecided(self, decisions: Decisions) -> Self:
        """The layers that do nothing of what these decisions are about."""
        fields = (decisions & Decisions.OF_MODEL).fields
        return self._with(**{field: [False] * len(self) for field in fields})

    def decided_as(self, chosen: Layers | None, decisions: Decisions) -> Self:
        """The layers, in which these decisions are made as in as many layers.

        Raises InputError if there are not as many.
        """
        if chosen is None or len(chosen) != len(self):
            raise InputError("layers: they are not those that are asked for")
        fields = (decisions & Decisions.OF_MODEL).fields
        return self._with(
            **{field: [getattr(layer, field) for layer in chosen.layers] for field in fields}
        )

    def with_choice(self, recompute: Mapping[int, Chosen], offload: Mapping[int, Chosen]) -> Self:
        """The layers that recompute, and that offload, exactly this, by index."""
        indices = range(len(self))
        return self._with(
            recompute=[recompute.get(index, False) for index in indices],
            offload=[offload.get(index, False) for index in indices],
        )

    def with_modules(self, field: str, names: Sequence[str]) -> Self:
        """The layers in which these modules recompute, or offload, where a layer has them.

        Raises InputError if no layer has a module of a name.
        """
        of_layer = map_distinct(lambda layer: {own.name for own in layer.modules}, self.layers)
        known = set().union(*of_layer)
        for name in names:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none; give `modules` in the layers"
                raise InputError(f"{field}_modules: no layer has a module {name}; known: {listed}")
        chosen = [tuple(name for name in names if name in own) or False for own in of_layer]
        return self._with(**{field: chosen})

    def _with(self, **flags: Sequence[Chosen]) -> Self:
        """The layers with some flags, one per layer; equal layers of a count stay one object."""
        changed: dict[tuple[object, ...], Layer] = {}
        layers = []
        for layer, *values in zip(self.layers, *flags.values(), strict=True):
            own = dict(zip(flags, values, strict=True))
            key = id(layer), *values
            if key not in changed:
                same = all(getattr(layer, name) == value for name, value in own.items())
                changed[key] = layer if same else layer.having(**own)
            layers.append(changed[key])
        return self._having(layers)

    def mapped(self, change: Callable[[Layer], Layer]) -> Self:
        """The layers, each of them changed; equal layers of a count stay one object."""
        return self._having(map_distinct(change, self.layers))

    def _having(self, layers: Sequence[Layer]) -> Self:
        """Other layers in the units of these; nothing is read."""
        if all(map(is_, layers, self.layers)):
            return self
        model: Self = object.__new__(type(self))
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        vars(model).update(fields, layers=tuple(layers))
        return model

    @cached_property
    def unit_matters(self) -> bool:
        """Whether `recompute_unit` may change the memory of a stage."""
        return any(
            layer.in_force["backward_workspace"] or layer.in_force["kept"] < layer.activation
            for layer in self.distinct_costed
        )

    def with_offload(self, choice: str) -> Self:
        """The layers where `none` offloads, or `all` that can and do not recompute."""
        every = choice == "all"
        return self._with(
            offload=[
                every and bool(layer.offload_time) and not layer.recompute for layer in self.layers
            ]
        )

    @cached_property
    def has_output(self) -> bool:
        """Whether any layer states its output: a bandwidth needs one."""
        return any(layer.output for layer in self.layers)

    def stage_layers(self, counts: Sequence[int]) -> tuple[tuple[Layer, ...], ...]:
        """Layers of every stage, as in `costed`; raises InputError as `checked`."""
        cuts = accumulate(self.checked(counts), initial=0)
        return tuple(self.costed[start:end] for start, end in pairwise(cuts))

    def checked(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Counts of layers per stage, checked: they add up to all layers; the ends are not 0."""
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
        """Number of decoder layers."""
        return sum(layer.role == DECODER for layer in self.layers)


def _expanded(layers: Iterable[Layer]) -> Iterable[Layer]:
    total = 0
    for layer in layers:
        total += layer.count
        if total > MAX_LAYERS:
            raise InputError(f"layers: more than {MAX_LAYERS} layers, counts expanded")
        single = copy(layer)
        vars(single)["count"] = 1
        yield from (single,) * layer.count


def _read(entry: object, index: int, declared: Mapping[str, Any]) -> Layer:
    """Read a layer; the plain numbers of a mapping are in the declared units."""
    if isinstance(entry, Layer):
        return entry
    if not isinstance(entry, Mapping):
        raise InputError(f"layers: layer {index}: {entry!r} is no layer; use ppopt.Layer")
    try:
        settings = {str(key): value for key, value in entry.items()}
        return Layer(**{"forward": None, **declared, **settings})
    except (InputError, TypeError) as error:
        name = f" ({entry['name']})" if isinstance(entry.get("name"), str) else ""
        raise InputError(f"layers: layer {index}{name}: {error}") from None
