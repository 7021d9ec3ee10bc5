"""Input whose exact grid would be too fine: its numbers are rounded once, as they are read.

Sums of times, and of memory, are below 2^53 ticks (`ppopt.problem.stage_row`). Input that needs
finer ticks has its numbers rounded to some digits, counted from the largest number of their kind,
and to multiples of 1 or of a smaller power of ten. Speeds and bandwidths divide, so their
reciprocals are rounded. From there on all numbers are exact: the pipeline is that of the rounded
input. A number above 0 stays above 0, and a limit does not grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, log10
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from ppopt.problem import exact, microbatches
from ppopt.problem.cost_table import STAGE_COSTS, ZERO
from ppopt.problem.costs import flat
from ppopt.problem.grid import Grid, numbers_at_speed_1
from ppopt.problem.layer import Layer
from ppopt.problem.layers import Layers
from ppopt.problem.link import Link, ways_of
from ppopt.problem.settings import SETTINGS
from ppopt.problem.stage_row import TooFineError
from ppopt.problem.units import Unit

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline

Fields = dict[str, Any]
ATTEMPTS = (
    *((2520, quarters) for quarters in range(48, 27, -1)),
    *((1, quarters) for quarters in range(35, 7, -1)),
)
"""By how much the grid is finer than the numbers need, and quarters of digits: the four kinds of
numbers that multiply each other lose a digit in turn. All numbers up to 10 divide 2,520, so that
pipelines with other chunks and slices have whole ticks, too."""
RESERVE = 64
"""Sums of rounded numbers stay below 2^53 / RESERVE ticks: searches add up the largest costs of all
layers, and other partitions have larger stages."""
_LIMIT = "mem_limit"
_COSTS = frozenset(cost.field for cost in STAGE_COSTS)


def rounded(pipeline: Pipeline, error: TooFineError) -> Pipeline:
    """The pipeline with as many digits as its sums permit; `error` says what is too fine.

    Raises TooFineError if two digits are too many.
    """
    attempts = {unit: iter(ATTEMPTS) for unit in Unit}
    digits: dict[Unit, int] = {}
    spare = dict.fromkeys(Unit, 1)
    while (attempt := next(attempts[error.unit], None)) is not None:
        spare[error.unit], digits[error.unit] = attempt
        try:
            return _with_digits(pipeline, digits, spare)
        except TooFineError as still_too_fine:
            error = still_too_fine
    raise error


def stated_numbers(pipeline: Pipeline) -> Iterator[tuple[str, Fraction]]:
    """Every number on which the grid depends, with its field; those of equal layers once."""
    fields = [*_fields(pipeline, Unit.TIME), *_fields(pipeline, Unit.MEMORY), "device_speed"]
    for field in (*fields, microbatches.TIMES, microbatches.MEMORY, microbatches.SLICE_TIMES):
        values = getattr(pipeline, field)
        yield from ((field, number) for number in flat(values) if number is not None)
    for layer in () if pipeline.model is None else pipeline.model.distinct:
        yield from (pair for unit in Unit for pair in layer.numbers(unit))
    for way in ways_of(pipeline.link).values():
        yield from (("link.latency", way.latency), ("link.bandwidth", way.bandwidth))


def _fields(pipeline: Pipeline, unit: Unit) -> list[str]:
    """The fields of times, or of amounts of memory, which do not follow from layers."""
    derived = {*ways_of(pipeline.link), *(() if pipeline.model is None else _COSTS)}
    fields = (setting.field for setting in SETTINGS if setting.unit is unit)
    return [
        field
        for field in fields
        if field not in derived and isinstance(getattr(pipeline, field), Fraction | tuple)
    ]


def _with_digits(
    pipeline: Pipeline, digits: Mapping[Unit, int], spare: Mapping[Unit, int]
) -> Pipeline:
    """The pipeline with rounded numbers of some units; raises TooFineError if that is too fine."""
    fields: Fields = {}
    for unit, number in digits.items():
        fields |= _rounded_fields(pipeline.having(**fields), unit, number)
    own = pipeline.having(**fields, grid=None)
    grid = Grid(*(ticks * spare[unit] for unit, ticks in zip(Unit, Grid.of(own), strict=True)))
    reserve = [RESERVE if unit in digits else 1 for unit in Unit]
    changes: dict[str, Fraction] = {}
    for (field, before), (_, now) in zip(
        stated_numbers(pipeline), stated_numbers(own), strict=True
    ):
        changes[field] = max(changes.get(field, ZERO), abs(now - before))
    fields["rounded_by"] = tuple((own, _upper(change)) for own, change in changes.items() if change)
    _ = replace(pipeline, **fields, grid=Grid(*map(mul, grid, reserve)))
    return replace(pipeline, **fields, grid=grid)


def _upper(change: Fraction) -> Fraction:
    """An upper bound of a change, of two digits and a denominator of at most 10^15."""
    step = max(_power_of_10(floor(log10(change)) - 1), _power_of_10(-15))
    return ceil(change / step) * step


def _power_of_10(exponent: int) -> Fraction:
    return Fraction(10) ** exponent


def _rounded_fields(pipeline: Pipeline, unit: Unit, quarters: int) -> Fields:
    """The fields on which times, or amounts of memory, depend."""
    digits, of_divisors, of_factors, of_sizes = ((quarters + 3 - kind) // 4 for kind in range(4))
    model, ways = pipeline.model, ways_of(pipeline.link).values()
    stated = {field: getattr(pipeline, field) for field in _fields(pipeline, unit)}
    layers = () if model is None else model.distinct
    numbers = [*flat(tuple(stated.values()))]
    numbers += [number for layer in layers for _, number in layer.numbers(unit)]
    numbers += [way.latency for way in ways if unit is Unit.TIME]
    rounding = _Rounding.of(numbers, digits)
    fields = {field: rounding.each(value, field) for field, value in stated.items()}
    if fields.get("backward"):
        fields["backward"] = tuple(map(_whole_backward, *_backwards(stated), *_backwards(fields)))
    if model is not None:
        fields["model"] = model.mapped(lambda layer: _rounded_layer(layer, unit, rounding))
    if unit is Unit.TIME:
        fields["device_speed"] = _reciprocals(pipeline.device_speed, of_divisors)
        if ways:
            fields |= _by_size(fields["model"], pipeline.link, rounding, of_sizes, of_divisors)
    return fields | _factors(pipeline, unit, of_factors)


def _backwards(fields: Fields) -> list[Any]:
    return [fields[field] for field in ("backward", "weight", "backward_input")]


def _whole_backward(
    full: Fraction, weight: Fraction, partial: Fraction, *now: Fraction
) -> Fraction:
    """Rounded time of BW, `now` with those of W and B; if it was their sum, it stays their sum."""
    return now[1] + now[2] if full == weight + partial else now[0]


def _rounded_layer(layer: Layer, unit: Unit, rounding: _Rounding) -> Layer:
    changed = layer.changed(unit, rounding.nearest)
    if unit is Unit.TIME and layer.phases is not None:
        changed |= dict.fromkeys(("forward", "backward", "weight", "backward_input"))
    elif unit is Unit.TIME:
        changed["backward"] = _whole_backward(*_backwards(vars(layer)), *_backwards(changed))
    return replace(layer, **changed)


def _by_size(
    model: Layers, link: Link, rounding: _Rounding, digits: int, of_divisors: int
) -> Fields:
    """Outputs of layers, and the link on which they move."""
    outputs = _Rounding.of([layer.output for layer in model.distinct], digits)
    ways = [way for way in (link, link.backward) if way is not None]
    bandwidths = _reciprocals([way.bandwidth for way in ways], of_divisors)
    latencies = (rounding.nearest(way.latency) for way in ways)
    first, *back = map(Link, latencies, bandwidths)
    return {
        "model": model.mapped(lambda layer: replace(layer, output=outputs.nearest(layer.output))),
        "link": replace(first, backward=back[0] if back else None),
    }


def _factors(pipeline: Pipeline, unit: Unit, digits: int) -> Fields:
    """Factors of microbatches and slices that multiply times, or amounts of memory."""
    fields: Fields = {}
    if unit is Unit.MEMORY or numbers_at_speed_1(pipeline).offloads:
        fields[microbatches.MEMORY] = pipeline.microbatch_memory
    if unit is Unit.TIME:
        fields[microbatches.TIMES] = pipeline.microbatch_times
    fields = {
        name: _Rounding.of(values, digits).each(values, name)
        for name, values in fields.items()
        if values is not None
    }
    slices = pipeline.slice_times
    if unit is Unit.TIME and slices and (step := _Rounding.of(slices, digits).step):
        fields[microbatches.SLICE_TIMES] = microbatches.with_mean_1(slices, step)
    return fields


def _reciprocals(numbers: Sequence[Fraction], digits: int) -> tuple[Fraction, ...]:
    """Numbers that divide: their reciprocals are rounded."""
    each = [1 / number for number in numbers]
    rounding = _Rounding.of(each, digits)
    return tuple(1 / rounding.nearest(number) for number in each)


class _Rounding(NamedTuple):
    """Rounds numbers to multiples of a step; 0: it leaves them as they are."""

    step: Fraction

    @classmethod
    def of(cls, numbers: Iterable[Fraction], digits: int) -> _Rounding:
        """A step so that the largest number has some digits.

        It is 0 if all numbers are multiples of a fraction that is as large.
        """
        numbers = tuple(numbers)
        largest = max(map(abs, numbers), default=ZERO)
        exponent = floor(log10(largest)) if largest else 0
        step = min(Fraction(1), _power_of_10(exponent + 1 - digits))
        return cls(ZERO if exact.common_denominator(numbers) * step <= 1 else step)

    def nearest(self, number: Fraction, field: str = "") -> Fraction:
        """The nearest multiple, of a limit that below; at least one step if it is not 0."""
        if not self.step or not number:
            return number
        if field == _LIMIT:
            return floor(number / self.step) * self.step
        steps = floor(number / self.step + Fraction(1, 2))
        return self.step * (steps or (1 if number > 0 else -1))

    def each(self, values: Any, field: str) -> Any:
        """The same for numbers in rows of any depth."""
        if isinstance(values, tuple):
            return tuple(self.each(value, field) for value in values)
        return self.nearest(values, field)
