"""The rows of a sweep: combinations of values of settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice, product
from math import prod
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.config import canonical, merged, pipeline_of
from ppopt.formats.fields import unknown_key
from ppopt.problem import exact
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.setting import Setting, SettingScope
from ppopt.problem.settings import NAMED, SETTINGS, same_setting
from ppopt.schedule.origin import SEARCHED
from ppopt.strategies import canonical_name
from ppopt.studies.overrides import Value
from ppopt.studies.records import canonical as json_text
from ppopt.studies.solve_job import SolveJob, job_of

STRATEGY = "strategy"
"""Key of a sweep that is not a setting: `searched`, or the name of a strategy."""
MAX_ROWS = 1_000_000
EFFORT = ("time_limit", "workers")
"""Settings of the effort for a row; they do not identify the row."""


def _key_of(setting: Setting) -> str:
    """Name of the flag of a setting, with `_`."""
    return setting.flag.removeprefix("--").replace("-", "_")


_VARYING = [setting for setting in SETTINGS if setting.has_flag and setting.field != "output"]
_FLAGS = {_key_of(setting): setting for setting in _VARYING}
_KNOWN = {name: setting for name, setting in NAMED.items() if setting in _VARYING} | _FLAGS
"""Settings by their flags, and by all of their names."""
Settings = Mapping[str, Any]
"""Values of settings by their names in Python."""
Overrides = Settings
"""Settings of one row, by the names of their flags with `_`, in JSON form."""


class _Point(NamedTuple):
    """One value of an axis."""

    json_form: Any
    """Value in JSON form."""
    settings: Settings
    """Setting by its name in Python; None: not set."""


class Axis(NamedTuple):
    """One setting of a sweep and its values."""

    name: str
    points: tuple[_Point, ...]


def axis(key: str, values: Iterable[Any]) -> Axis:
    """Axis of a key with `-` or `_`; raises InputError on an unknown key or a wrong value.

    Keys are the names of flags, or any name of their settings. Equal values count once.
    """
    name, setting = _named(key)
    points = {
        json_text(json_form := _json_form(key, value)): _Point(
            json_form, _settings_of(setting, value)
        )
        for value in map(_as_in_a_file if setting else _strategy, values)
    }
    if not points:
        raise InputError(f"{key}: there is no value; give one or more")
    return Axis(name, tuple(points.values()))


def _named(key: str) -> tuple[str, Setting | None]:
    word = key.replace("-", "_")
    if word == STRATEGY:
        return STRATEGY, None
    if word not in _KNOWN:
        unknown_key(key, (STRATEGY, *_FLAGS))
    return _key_of(_KNOWN[word]), _KNOWN[word]


def _settings_of(setting: Setting | None, value: Value) -> Settings:
    if setting is None:
        return {STRATEGY: value}
    return canonical({setting.name: value}) or {setting.field: None}


def _strategy(value: Any) -> str:
    """Name of a strategy, or `searched`; raises InputError if it is unknown."""
    return canonical_name(str(value))


def _as_in_a_file(value: Any) -> Any:
    """Convert floats to decimals, as the reader of a config file does."""
    if isinstance(value, float):
        return Decimal(repr(value))
    return [_as_in_a_file(entry) for entry in value] if isinstance(value, list | tuple) else value


def _json_form(key: str, value: Any) -> Any:
    """Value in JSON form; raises InputError if it is no value of a setting."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, list):
        return [_json_form(key, entry) for entry in value]
    return exact.plain(exact.fraction(value, key))


@dataclass(frozen=True)
class Base:
    """Settings, by their names in Python, or a pipeline, which all rows of a sweep share."""

    settings: Settings
    pipeline: Pipeline | None = None

    def job(self, changes: Settings) -> SolveJob:
        """Job of a row; raises InputError if its settings are incompatible."""
        unset = {name for name, value in changes.items() if value is None}
        inherited = {name: value for name, value in self.settings.items() if name not in unset}
        new = {name: value for name, value in changes.items() if name not in (*unset, STRATEGY)}
        settings = merged(inherited, new)
        if self.pipeline is None:
            pipeline = pipeline_of(settings)
        else:
            fields = {
                setting.field for setting in SETTINGS if setting.scope is SettingScope.PIPELINE
            } & changes.keys()
            pipeline = replace(self.pipeline, **{name: changes[name] for name in fields})
        return job_of(pipeline, settings, changes.get(STRATEGY, SEARCHED))

    @property
    def name(self) -> str:
        """Name of the model or the pipeline, or `sweep`."""
        name = self.settings.get("name") if self.pipeline is None else self.pipeline.name
        return name or "sweep"

    @property
    def digest(self) -> str:
        """Hash of the base, without settings of effort and appearance."""
        left_out = (*EFFORT, "output", "about", "name")
        content = {key: value for key, value in self.settings.items() if key not in left_out}
        description = None if self.pipeline is None else self.pipeline.spelled_out()
        text = f"({sorted(content.items())!r}, {description})"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def base_of(source: Model | Pipeline, settings: Settings) -> Base:
    """Base of a model or a pipeline with further settings under any of their names.

    Raises InputError on unknown or wrong settings.
    """
    extra = canonical({key: _as_in_a_file(value) for key, value in settings.items()})
    if isinstance(source, Pipeline):
        return Base(extra, source)
    units = {key: getattr(source, key) for key in ("time_unit", "memory_unit")}
    fields = {"model": source.layers, "name": source.name, **units}
    return Base({key: value for key, value in fields.items() if value} | extra)


class Row(NamedTuple):
    """One combination of values."""

    overrides: Overrides
    settings: Settings


@dataclass(frozen=True)
class Grid:
    """A base, and the settings that vary."""

    base: Base
    axes: tuple[Axis, ...]
    shard: tuple[int, int] = (1, 1)
    """(I, N): only rows I, I + N, I + 2N, ..."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for axis in self.axes:
            if axis.name in seen:
                raise same_setting(axis.name, axis.name)
            seen.add(axis.name)
        if self.size > MAX_ROWS:
            raise InputError(
                f"the grid has {self.size} combinations, at most {MAX_ROWS} are taken; leave "
                "some out, or make several sweeps"
            )
        index, shards = self.shard
        if not 1 <= index <= shards:
            raise InputError(f"shard: {index}/{shards} is not between 1/{shards} and the last")

    @property
    def size(self) -> int:
        """Number of combinations."""
        return prod(len(axis.points) for axis in self.axes)

    def rows(self) -> list[Row]:
        """Rows of this shard in order, the last setting varying fastest."""
        index, shards = self.shard
        names = [axis.name for axis in self.axes]
        combinations = product(*(axis.points for axis in self.axes))
        return [
            Row(
                overrides=dict(zip(names, (point.json_form for point in points), strict=True)),
                settings={key: value for point in points for key, value in point.settings.items()},
            )
            for points in islice(combinations, index - 1, None, shards)
        ]

    @property
    def study_name(self) -> str:
        """Default study name, derived from the grid, but not from shard or effort."""
        identity = (
            self.base.digest,
            [(axis.name, [point.json_form for point in axis.points]) for axis in self.axes],
        )
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:8]
        return f"{'-'.join(self.base.name.split())}-{digest}"


def grid_of(
    base: Base,
    axes: Mapping[str, Iterable[Any]],
    shard: tuple[int, int] = (1, 1),
) -> Grid:
    """Make a grid from keys and their values; raises InputError."""
    return Grid(base, tuple(axis(key, values) for key, values in axes.items()), shard)
