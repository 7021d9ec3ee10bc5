"""Config files: YAML, JSON or TOML into settings under their canonical names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, parse_toml, read_text
from ppopt.formats.fields import flag, shown, text, unknown_key, within
from ppopt.formats.yaml_text import parse_yaml
from ppopt.problem import exact
from ppopt.problem.pipeline import LIMIT_1F1B, Pipeline

LARGEST_FILE = 2**20
"""Bytes of a config: the p2p matrix of 256 devices fits; YAML reads this much in seconds."""
_READ_ONLY = ("rounded", "tick_divisor")
PIPELINE_FIELDS = tuple(field.name for field in fields(Pipeline) if field.name not in _READ_ONLY)
"""The settings that say what the pipeline is; the others say what to do with it."""
OBJECTIVES = ("makespan", "device-span")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{shown(value)} is not a whole number")
    if value.bit_length() > 31:
        raise InputError("the number is out of range (at most 2^31)")
    return value


def _at_least(least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        number = _whole(value)
        if number < least:
            raise InputError(f"{number} is below {least}")
        return number

    return check


def _line(value: object) -> str:
    if _CONTROL.search(text(value)):
        raise InputError(f"{shown(value)} holds a control character; write one line of text")
    return text(value)


def _date(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else _line(value)


def _number(value: object) -> object:
    """Check that a value may be a number, as one or as text; `ppopt.problem.exact` reads it."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise InputError(f"{shown(value)} is not a number")
    if isinstance(value, str) and (len(value) > 60 or _CONTROL.search(value)):
        raise InputError(f"{shown(value)} is not a number")
    if isinstance(value, int) and abs(value) > exact.LARGEST:
        raise InputError("the number is too large; use a larger unit (at most 10^12)")
    return value


def _list_of(check: Callable[[object], object]) -> Callable[[object], object]:
    def check_all(value: object) -> object:
        if not isinstance(value, list):
            return check(value)
        return [within(f"entry {index}", check, entry) for index, entry in enumerate(value)]

    return check_all


_numbers = _list_of(_number)
_matrix = _list_of(_numbers)


def _placement(value: object) -> object:
    return _list_of(_whole)(value) if isinstance(value, list) else _line(value)


def _limit(value: object) -> object:
    if value is True or (isinstance(value, str) and value.strip().lower() == LIMIT_1F1B):
        return LIMIT_1F1B
    return _numbers(value)


def _objective(value: object) -> str:
    if value not in OBJECTIVES:
        raise InputError(f"{shown(value)} is unknown; use {' or '.join(OBJECTIVES)}")
    return str(value)


def _seconds(value: object) -> float:
    seconds = float(exact.read(_number(value), "seconds").value)
    if seconds <= 0:
        raise InputError(f"{shown(value)} is not above 0; give seconds")
    return seconds


def _files(value: object) -> list[str]:
    names = [_line(name) for name in (value if isinstance(value, list) else [value])]
    if not all(names):
        raise InputError("a file name is empty")
    return names


class _Setting(NamedTuple):
    check: Callable[[object], object]
    """Returns the canonical value, or raises InputError."""
    spellings: tuple[str, ...] = ()
    """Further names of the setting in files."""


SETTINGS: dict[str, _Setting] = {
    "stages": _Setting(_whole, ("num_stages",)),
    "batches": _Setting(_whole, ("num_batches", "num_microbatches", "microbatches")),
    "chunks": _Setting(_whole, ("num_chunks",)),
    "placement": _Setting(_placement),
    "forward": _Setting(_numbers, ("forward_times",)),
    "backward": _Setting(_numbers, ("backward_times",)),
    "weight": _Setting(_numbers, ("weight_times",)),
    "backward_input": _Setting(_numbers, ("input_times",)),
    "p2p": _Setting(_matrix, ("p2p_time",)),
    "activation": _Setting(_numbers),
    "memory_b": _Setting(_numbers),
    "static": _Setting(_numbers),
    "mem_limit": _Setting(_limit),
    "overlap": _Setting(_numbers, ("overlap_times",)),
    "slices": _Setting(_whole, ("num_slices",)),
    "routes": _Setting(_whole),
    "name": _Setting(_line),
    "objective": _Setting(_objective),
    "fused": _Setting(flag),
    "time_limit": _Setting(_seconds),
    "workers": _Setting(_at_least(1)),
    "seed": _Setting(_at_least(0)),
    "group_size": _Setting(_at_least(1)),
    "waves": _Setting(_at_least(1)),
    "output": _Setting(_files, ("output_file",)),
}
"""Canonical name of every setting: those of Pipeline first, then those of a run."""

ABOUT: dict[str, Callable[[object], str]] = {
    "source": _line,
    "description": _line,
    "time_unit": _line,
    "memory_unit": _line,
    "date": _date,
}
"""Keys that document a file: they come back together, under `about`."""

_CANONICAL = {
    spelling: name for name, setting in SETTINGS.items() for spelling in (name, *setting.spellings)
}


def read_config(path: Path) -> dict[str, Any]:
    """Read a config file (.yaml, .yml, .json or .toml) into settings by canonical name.

    Fractions come as Decimal, `output` as a list of names, `mem_limit: true` as `1f1b`, and the
    keys of `ABOUT` as one mapping under `about`; null means not given. Values are checked one
    by one: `pipeline_of` checks them together. Raises InputError, naming the file.
    """
    return parse_config(read_text(path, LARGEST_FILE), path.suffix, label(path))


def parse_config(content: str, suffix: str, where: str) -> dict[str, Any]:
    """Read the text of a config whose file name ends in `suffix`; see `read_config`."""
    parsers = {".yaml": parse_yaml, ".yml": parse_yaml, ".json": parse_json, ".toml": parse_toml}
    if suffix.lower() not in parsers:
        raise InputError(f"{where}: unknown kind of config; name it .yaml, .yml, .json or .toml")
    document = parsers[suffix.lower()](content, where)
    if document is None:
        raise InputError(f"{where}: holds no settings; write `stages: 4` and so on")
    if not isinstance(document, dict):
        raise InputError(f"{where}: holds {shown(document)}, not settings; write `stages: 4`")
    return within(where, canonical, document)


def canonical(document: Mapping[str, Any]) -> dict[str, Any]:
    """Check settings under any of their spellings, and name them canonically; see `read_config`.

    Raises InputError on unknown keys, settings given twice, and values of the wrong kind.
    """
    settings: dict[str, Any] = {}
    about: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for key, value in document.items():
        name = _name_of(key)
        if name in spelled:
            raise InputError(f"{spelled[name]} and {key} are the same setting; keep one")
        spelled[name] = key
        if value is None:
            continue
        if name in ABOUT:
            about[name] = within(key, ABOUT[name], value)
        else:
            settings[name] = within(key, SETTINGS[name].check, value)
    return settings | ({"about": about} if about else {})


def _name_of(key: str) -> str:
    word = key.replace("-", "_")
    if word in ABOUT:
        return word
    if word not in _CANONICAL:
        unknown_key(key, (*_CANONICAL, *ABOUT))
    return _CANONICAL[word]


def pipeline_of(settings: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline that canonical settings describe; other settings are left alone.

    Raises InputError where they are no pipeline, or the number of stages or batches is missing.
    """
    given = {name: settings[name] for name in PIPELINE_FIELDS if settings.get(name) is not None}
    where = given.get("placement")
    if isinstance(where, list | tuple):
        given.setdefault("stages", len(where))
    for name in ("stages", "batches"):
        if name not in given:
            raise InputError(f"{name}: missing; give --{name} or `{name}:` in the config")
    return Pipeline(**given)
