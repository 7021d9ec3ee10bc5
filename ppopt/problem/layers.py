"""The layers of a model in forward order, with their costs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import accumulate, pairwise
from operator import add, attrgetter, is_, sub
from typing import Any, Self, TypeVar

from ppopt.errors import InputError
from ppopt.problem import units
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS, ZERO, Cost, OverLayers
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.frozen import num_forward_only
from ppopt.problem.layer import (
    MAX_LAYERS,
    Layer,
    backward_peak,
    on_compute,
    runs_of,
)
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.units import Unit

Value = TypeVar("Value")
ONLY_BETWEEN = "only stages between the first and the last may be empty"


Row = tuple[Fraction, ...]
"""One number per layer, or per stage."""
Stages = Sequence[tuple[int, int]]
"""The first layer of every stage, and the one after its last."""


class LayerCosts:
    """Costs of runs of consecutive layers."""

    def __init__(self, layers: Sequence[Layer], passing: Row, *, one_at_a_time: bool) -> None:
        """`passing` is what F of the first 0, 1, ... layers also allocates while it runs.

        `one_at_a_time`: BW recomputes and runs one layer at a time.
        """
        self._layers, self._passing, self._one_at_a_time = layers, passing, one_at_a_time
        self.amounts: dict[str, Row] = {
            cost.field: map_distinct(partial(Layer.amount, cost=cost), layers)
            for cost in LAYER_COSTS
        }
        """What each layer adds to the costs of its stage, by field."""
        self._sums = {
            field: tuple(accumulate(amounts, initial=ZERO)) if any(distinct(amounts)) else ()
            for field, amounts in self.amounts.items()
        }
        """Sums of the first 0, 1, ... amounts by field; empty: all are 0."""

    def of(self, stages: Stages) -> dict[str, Row | None]:
        """Costs of stages by field; None: no layer has any."""
        rows: dict[str, Any] = {
            cost.field: self._row(cost, stages) if self._exists(cost) else None
            for cost in LAYER_COSTS
            if cost.over_layers is not OverLayers.LAST
        }
        if any(self._passing):
            passing = [self._passing[end] - self._passing[start] for start, end in stages]
            largest = rows["forward_workspace"] or (ZERO,) * len(stages)
            rows["forward_workspace"] = tuple(map(add, largest, passing))
        rows["recompute_memory"] = None
        if self._one_at_a_time:
            rows |= self._backward_memory(stages, rows["backward_workspace"])
        if rows["kept"] is None:
            rows["recompute_memory"] = None
        return rows

    def _exists(self, cost: Cost) -> bool:
        """Whether stages have a cost: some layer has it, or schedule files always state it."""
        if cost.counted_if:
            return any(map(attrgetter(cost.counted_if), distinct(self._layers)))
        return not cost.optional or any(distinct(self.amounts[cost.field]))

    def _row(self, cost: Cost, stages: Stages) -> Row:
        """A cost of stages. For a stage of one layer it is the same object as that of the layer."""
        amounts, sums = self.amounts[cost.field], self._sums[cost.field]
        if cost.over_layers is OverLayers.MAXIMUM:
            return tuple(max(distinct(amounts[s:e]), default=ZERO) for s, e in stages)
        if not sums:
            return (ZERO,) * len(stages)
        return tuple(
            amounts[start] if end == start + 1 else sums[end] - sums[start] for start, end in stages
        )

    def backward_allocations(self, stages: Stages, factor: Fraction) -> Row | None:
        """Memory that BW of stages allocates for a microbatch with a factor on its memory.

        None if BW does not run one layer at a time.
        """
        if not self._one_at_a_time:
            return None
        runs = (self._layers[start:end] for start, end in stages)
        return tuple(backward_peak(run, factor).allocated for run in runs)

    def _backward_memory(self, stages: Stages, largest: Row | None) -> dict[str, Any]:
        """Memory that BW allocates per stage, of layers that recompute and run one at a time.

        It counts as workspace up to the largest workspace of the layers; the rest counts as
        recomputed.
        """
        allocated = [backward_peak(self._layers[start:end]).allocated for start, end in stages]
        workspace = tuple(map(min, largest or (ZERO,) * len(stages), allocated))
        return {
            "backward_workspace": workspace if any(workspace) else None,
            "recompute_memory": tuple(map(sub, allocated, workspace)),
        }


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
        return next((value for value in every if value != 0), Fraction(0))

    @cached_property
    def distinct(self) -> tuple[Layer, ...]:
        """The layers, those of a count once."""
        return distinct(self.layers)

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
    def passing(self) -> tuple[Fraction, ...]:
        """Activation that F allocates only while it runs, of the first 0, 1, ... layers."""
        forward_memory = (
            layer.activation if index < self.num_forward_only_layers else ZERO
            for index, layer in enumerate(self.layers)
        )
        return tuple(accumulate(forward_memory, initial=ZERO))

    @cached_property
    def costs(self) -> LayerCosts:
        """Costs of runs of the layers, from their actual costs."""
        by_layer = self.recompute_unit is RecomputeUnit.LAYER and self.unit_matters
        return LayerCosts(self.costed, self.passing, one_at_a_time=by_layer)

    def without(self, fields: Iterable[str]) -> Self:
        """The layers without some costs, which are then 0."""
        none: dict[str, Any] = dict.fromkeys(fields, 0)
        return replace(self, layers=tuple(replace(layer, **none) for layer in self.layers))

    def on_compute(self) -> Self:
        """The layers without phases on links: a relaxation of stages of any of them.

        Replace every F, B and BW by its phases on compute, and every pair by F and then the
        backward. A pair is no shorter: it computes both. So nothing ends later, and nothing needs
        more memory. Raises NotApplicableError if an F computes nothing.
        """
        return replace(self, layers=tuple(map(on_compute, self.layers)))

    def recomputing(self, layers: Callable[[Layer], bool]) -> Self:
        """The layers with recompute exactly where the predicate is true."""
        return self._with(recompute=[layers(layer) for layer in self.layers])

    def with_recompute(self, choice: str) -> Self:
        """The layers where none recomputes (`none`), or all that may (`full`)."""
        return self.recomputing(lambda layer: choice == "full" and layer.recomputable)

    def with_choice(self, recompute: Container[int], offload: Container[int]) -> Self:
        """The layers with recompute, and with offload, exactly at these indices."""
        indices = range(len(self))
        return self._with(
            recompute=[index in recompute for index in indices],
            offload=[index in offload for index in indices],
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

    def stage_costs(self, counts: Sequence[int]) -> dict[str, tuple[Fraction, ...] | None]:
        """Costs of stages of `counts` consecutive layers each, by field; None: 0.

        Raises InputError if the counts are no partition of the layers.
        """
        cuts = accumulate(self.checked(counts), initial=0)
        return self.costs.of(list(pairwise(cuts)))

    def backward_allocations(
        self, counts: Sequence[int], factor: Fraction
    ) -> tuple[Fraction, ...] | None:
        """Memory that BW of the stages allocates for a microbatch with a factor on its memory.

        None if it is the factor times `recompute_memory`, plus the workspace.
        """
        cuts = accumulate(counts, initial=0)
        return self.costs.backward_allocations(list(pairwise(cuts)), factor)

    @cached_property
    def unit_matters(self) -> bool:
        """Whether `recompute_unit` may change the memory of a stage."""
        return any(
            layer.backward_workspace or (layer.recompute and layer.saved)
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

    def outputs(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Output size of every stage but the last; raises InputError as `stage_costs`.

        An empty stage passes its input on.
        """
        cuts = accumulate(self.checked(counts)[:-1])
        return tuple(self.costed[cut - 1].output for cut in cuts)

    def stage_layers(self, counts: Sequence[int]) -> tuple[tuple[Layer, ...], ...]:
        """Layers of every stage, as in `costed`; raises InputError as `stage_costs`."""
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
        single = layer if layer.count == 1 else replace(layer, count=1)
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
