"""The rows of a sweep: every combination of the values of its settings, less what is left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.config import canonical, merged, pipeline_of
from ppopt.formats.fields import unknown_key
from ppopt.problem import exact
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.settings import NAMED, SETTINGS, Part, Setting, same_setting
from ppopt.schedule.origin import SEARCHED
from ppopt.strategies import resolve
from ppopt.studies.conditions import Condition
from ppopt.studies.job import SolveJob, job_of
from ppopt.studies.overrides import Value
from ppopt.studies.records import canonical as json_text

STRATEGY = "strategy"
"""The key of a sweep that is no setting: `optimal`, or a hand strategy."""
MOST_ROWS = 1_000_000
EFFORT = ("time_limit", "workers")
"""Settings that say how much is done for a row, and not what."""
_FLAGS = {
    setting.flag.removeprefix("--").replace("-", "_"): setting
    for setting in SETTINGS
    if setting.has_flag and setting.field != "output"
}
Overrides = Mapping[str, Any]
"""Settings of one row, by the names of their flags with `_`, as JSON may hold them."""


class _Point(NamedTuple):
    """One value of an axis."""

    shown: Any
    """As JSON may hold it."""
    settings: Mapping[str, Any]
    """The setting by its name in Python; None: not given."""


class Axis(NamedTuple):
    """One setting of a sweep and its values."""

    name: str
    points: tuple[_Point, ...]


def axis(key: str, values: Iterable[Any]) -> Axis:
    """The axis of a key with `-` or `_`; raises InputError on an unknown key or a wrong value.

    Keys are the names of flags, or any name of their settings. A value given twice counts once.
    """
    name, setting = _named(key)
    points = {
        json_text(shown := _shown(key, value)): _Point(shown, _settings_of(setting, value))
        for value in map(_as_in_a_file, values)
    }
    if not points:
        raise InputError(f"{key}: there is no value; give one or more")
    return Axis(name, tuple(points.values()))


def _named(key: str) -> tuple[str, Setting | None]:
    word = key.replace("-", "_")
    if word == STRATEGY:
        return STRATEGY, None
    known = _FLAGS | {
        name: setting for name, setting in NAMED.items() if name not in _FLAGS and setting.has_flag
    }
    if word not in known or known[word].field == "output":
        unknown_key(key, (STRATEGY, *_FLAGS))
    setting = known[word]
    return setting.flag.removeprefix("--").replace("-", "_"), setting


def _settings_of(setting: Setting | None, value: Value) -> Mapping[str, Any]:
    if setting is None:
        if value != SEARCHED:
            resolve(str(value))
        return {STRATEGY: str(value)}
    return canonical({setting.name: value}) or {setting.field: None}


def _as_in_a_file(value: Any) -> Any:
    """A value as the reader of a config file gives it: fractions as decimals."""
    if isinstance(value, float):
        return Decimal(repr(value))
    return [_as_in_a_file(one) for one in value] if isinstance(value, list | tuple) else value


def _shown(key: str, value: Any) -> Any:
    """A value as JSON may hold it; raises InputError where it is no value of a setting."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        return [_shown(key, one) for one in value]
    return exact.plain(exact.fraction(value, key))


@dataclass(frozen=True)
class Base:
    """What all rows of a sweep share: settings by their names in Python, or a pipeline."""

    settings: Mapping[str, Any]
    pipeline: Pipeline | None = None

    def job(self, given: Mapping[str, Any]) -> SolveJob:
        """The job of a row; raises InputError where its settings do not go together."""
        void = {name for name, value in given.items() if value is None}
        kept = {name: value for name, value in self.settings.items() if name not in void}
        new = {name: value for name, value in given.items() if name not in (*void, STRATEGY)}
        settings = merged(kept, new)
        if self.pipeline is None:
            pipeline = pipeline_of(settings)
        else:
            fields = {one.field for one in SETTINGS if one.part is Part.PIPELINE} & given.keys()
            pipeline = replace(self.pipeline, **{name: given[name] for name in fields})
        return job_of(pipeline, settings, given.get(STRATEGY, SEARCHED))

    @property
    def name(self) -> str:
        """Name of the model or the pipeline, or `sweep`."""
        own = self.settings.get("name") if self.pipeline is None else self.pipeline.name
        return own or "sweep"

    @property
    def digest(self) -> str:
        """What tells it apart from others, whatever effort is spent on its rows."""
        left_out = (*EFFORT, "output", "about", "name")
        kept = {key: value for key, value in self.settings.items() if key not in left_out}
        said = None if self.pipeline is None else self.pipeline.spelled_out()
        text = f"({sorted(kept.items())!r}, {said})"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def values(self) -> dict[str, Any]:
        """Its settings as a condition may name them."""
        own: dict[str, Any] = {}
        for setting in SETTINGS:
            value = self.settings.get(setting.field)
            if value is None and self.pipeline is not None and setting.part is Part.PIPELINE:
                value = getattr(self.pipeline, setting.field)
            flag = setting.flag.removeprefix("--").replace("-", "_")
            own[flag if setting.has_flag else setting.name] = value
        return {STRATEGY: SEARCHED} | own


def base_of(source: Model | Pipeline, settings: Mapping[str, Any]) -> Base:
    """The base of a model or a pipeline with further settings under any of their names.

    Raises InputError on unknown or wrong settings.
    """
    known = canonical({key: _as_in_a_file(value) for key, value in settings.items()})
    if isinstance(source, Pipeline):
        return Base(known, source)
    units = {key: getattr(source, key) for key in ("time_unit", "memory_unit")}
    own = {"model": source.layers, "name": source.name, **units}
    return Base({key: value for key, value in own.items() if value} | known)


class Row(NamedTuple):
    """One combination."""

    overrides: Overrides
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """A base, and the settings that vary."""

    base: Base
    axes: tuple[Axis, ...]
    conditions: tuple[Condition, ...] = ()
    """All must hold for a row."""
    shard: tuple[int, int] = (1, 1)
    """(I, N): every N-th row, beginning with the I-th."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for one in self.axes:
            if one.name in seen:
                raise same_setting(one.name, one.name)
            seen.add(one.name)
        if self.size > MOST_ROWS:
            raise InputError(
                f"the grid has {self.size} combinations, at most {MOST_ROWS} are taken; leave "
                "some out, or make several sweeps"
            )
        number, shards = self.shard
        if not 1 <= number <= shards:
            raise InputError(f"shard: {number}/{shards} is not between 1/{shards} and the last")
        known = self.base.values()
        for condition in self.conditions:
            for name in condition.names - known.keys():
                raise InputError(
                    f"where: {condition.shown}: {name:.40} is no setting; put text in quotes, as "
                    "in placement == 'v'"
                )

    @property
    def size(self) -> int:
        """Combinations, those left out included."""
        return prod(len(one.points) for one in self.axes)

    def rows(self) -> list[Row]:
        """The rows of this shard in order, the last setting varying fastest."""
        number, shards = self.shard
        return list(self._kept())[number - 1 :: shards]

    def _kept(self) -> Iterator[Row]:
        known = self.base.values() if self.conditions else {}
        names = [one.name for one in self.axes]
        for points in product(*(one.points for one in self.axes)):
            overrides = dict(zip(names, (point.shown for point in points), strict=True))
            if all(condition.holds(known | overrides) for condition in self.conditions):
                settings = {key: one for point in points for key, one in point.settings.items()}
                yield Row(overrides, settings)

    @property
    def study_name(self) -> str:
        """A name of its own: the same sweep has the same, whatever its shard and effort."""
        said = (
            self.base.digest,
            [(one.name, [point.shown for point in one.points]) for one in self.axes],
            [condition.text for condition in self.conditions],
        )
        digest = hashlib.sha256(repr(said).encode()).hexdigest()[:8]
        return f"{'-'.join(self.base.name.split())}-{digest}"


def grid_of(
    base: Base,
    axes: Mapping[str, Iterable[Any]],
    where: Sequence[str] = (),
    shard: tuple[int, int] = (1, 1),
) -> Grid:
    """A grid from keys and their values; raises InputError."""
    return Grid(
        base,
        tuple(axis(key, values) for key, values in axes.items()),
        tuple(map(Condition, where)),
        shard,
    )
