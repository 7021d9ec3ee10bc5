"""Config files: YAML, JSON, TOML or CSV into settings, and the JSON Schema of such files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any

from ppopt.errors import Faults, InputError
from ppopt.formats.documents import label, parse_json, parse_toml, read_text
from ppopt.formats.fields import abbreviated, text, unknown_key, within
from ppopt.formats.json_forms import (
    DRAFT,
    FLAG,
    Form,
    Schema,
    alternative,
    any_of,
    list_schema,
    listed,
    mapping,
    object_schema,
    or_null,
)
from ppopt.formats.layer_table import parse_csv
from ppopt.formats.yaml_text import parse_yaml
from ppopt.problem import exact, link, modules
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.layer_settings import LAYER_NAMES, LAYER_SETTINGS, flat
from ppopt.problem.phases import PARTS, Machine, Phase, Phases
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.setting import Setting, SettingScope, Shape
from ppopt.problem.settings import LIMIT_1F1B, NAMED, SETTINGS, same_setting
from ppopt.problem.training_sizes import TEXTS, TrainingSizes, read_training
from ppopt.problem.units import Unit, attached

LARGEST_FILE = 2**20
"""Bytes of a config: the p2p matrix of 256 devices fits; YAML reads this much in seconds."""
REPLACES = {
    "backward": ("backward_input",),
    "p2p": ("link",),
    "link": ("p2p", "backward_p2p"),
    "partition": ("partition_order",),
}
"""A setting of a flag -> settings of a file that it overrides."""
_OF_MODEL = ("model", "name", "recompute_unit", "stages")
"""Settings of a pipeline that come from its model, or from its number of devices."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_DERIVE = "`ppopt init model.yaml --from {} --gpu h100` derives a config from it"
SUFFIXES = {
    ".yaml": parse_yaml,
    ".yml": parse_yaml,
    ".json": parse_json,
    ".toml": parse_toml,
    ".csv": parse_csv,
}
"""Suffix of a config -> parser of its text."""


def read_config(path: Path) -> dict[str, Any]:
    """Read a config file (.yaml, .json, .toml, or .csv) into settings by their names in Python.

    Fractions are read as Decimal, `output` as a list of names, `mem_limit: true` as `1f1b`, and the
    documentation of the file as one mapping under `about`; null means not given. Values are checked
    one by one: `pipeline_of` checks them together. Raises InputError, naming the file.
    """
    if path.is_dir():
        raise InputError(
            f"{label(path)}: is a folder, not a config; if it is that of a Hugging Face model, "
            f"{_DERIVE.format(label(path))}"
        )
    return parse_config(read_text(path, LARGEST_FILE), path.suffix, label(path))


def parse_config(content: str, suffix: str, where: str) -> dict[str, Any]:
    """Read the text of a config whose file name ends in `suffix`; see `read_config`."""
    if suffix.lower() not in SUFFIXES:
        raise InputError(f"{where}: unknown kind of config; name it {', '.join(SUFFIXES)}")
    return settings_of(SUFFIXES[suffix.lower()](content, where), where)


def settings_of(document: object, where: str) -> dict[str, Any]:
    """Read the settings of a parsed config; see `read_config`."""
    if document is None:
        raise InputError(f"{where}: holds no settings; write `stages: 4` and so on")
    if not isinstance(document, dict):
        raise InputError(f"{where}: holds {abbreviated(document)}, not settings; write `stages: 4`")
    if {"ops", "pipeline"} <= document.keys():
        raise InputError(
            f"{where}: is a schedule, not a config; `ppopt view` shows it, and `ppopt solve "
            "--hint` starts from it and takes its pipeline"
        )
    if {"architectures", "model_type"} & document.keys():
        raise InputError(f"{where}: is a model's config.json; {_DERIVE.format(where)}")
    return within(where, canonical, document)


def canonical(document: Mapping[str, object]) -> dict[str, Any]:
    """Check settings under any of their names, and name them as in Python; see `read_config`.

    Raises one InputError that lists unknown keys, settings given twice, and values of the wrong
    type.
    """
    settings: dict[str, Any] = {}
    about: dict[str, Any] = {}
    keys: dict[str, str] = {}
    faults = Faults()
    for key, value in document.items():
        with faults.collected():
            setting = NAMED.get(key.replace("-", "_"))
            if setting is None and faults.full:
                raise InputError("unknown key")  # the nearest key takes half a millisecond
            setting = setting or unknown_key(key, NAMED)
            if setting.field in keys:
                raise same_setting(keys[setting.field], key)
            keys[setting.field] = key
            if value is not None:
                target = about if setting.scope is SettingScope.ABOUT else settings
                target[setting.field] = within(key, _form(setting).read, value)
    faults.check()
    return settings | ({"about": about} if about else {})


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers of settings; the upper one overrides the lower one, also by `REPLACES`.

    If the upper layer declares another unit, the numbers of the lower one keep theirs.
    """
    void = {old for name, replaced in REPLACES.items() if name in upper for old in replaced}
    retained = {name: value for name, value in lower.items() if name not in void}
    for measure in Unit:
        key = f"{measure}_unit"
        unit = lower.get(key)
        if unit is not None and upper.get(key, unit) != unit:
            retained = _attached(retained, measure, unit, SETTINGS)
            if "model" in retained:
                layers = (
                    _attached(layer, measure, unit, LAYER_SETTINGS) for layer in retained["model"]
                )
                retained["model"] = list(layers)
            if "link" in retained:
                retained["link"] = link.in_unit(retained["link"], measure, unit, upper[key])
    return retained | dict(upper)


def _attached(
    values: dict[str, Any], measure: Unit, unit: str, settings: Iterable[Setting]
) -> dict[str, Any]:
    """Add a unit to the numbers of a measure that have none."""
    if measure is Unit.TIME and "phases" in values:
        phases = Phases.read(values["phases"]).each(lambda number, _: attached(number, unit))
        values = values | {"phases": phases.in_file}
    return values | {
        setting.field: attached(values[setting.field], unit)
        for setting in settings
        if setting.unit is measure and values.get(setting.field, LIMIT_1F1B) != LIMIT_1F1B
    }


NO_LAYERS = (
    "layers: a plan needs a model in layers: `ppopt init` writes one, `ppopt profile --layers` "
    "measures one; stages of given times are placed by `ppopt solve --placement search`"
)
"""Message for a pipeline of stages, which have no layers."""


def model_of(settings: Mapping[str, Any]) -> Model:
    """Build the model in layers that settings describe; raises InputError if there is none."""
    if settings.get("model") is None:
        raise InputError(NO_LAYERS)
    units = {key: settings.get(key) for key in ("time_unit", "memory_unit")}
    unit = settings.get("recompute_unit") or RecomputeUnit.LAYER
    return Model(settings["model"], settings.get("name") or "", **units, recompute_unit=unit)


def pipeline_of(settings: Mapping[str, Any]) -> Pipeline:
    """Build the pipeline of settings, named as in Python; all other settings are ignored.

    With a model in layers, `stages` is the number of devices under every placement.

    Raises InputError if they are no pipeline, or if the number of stages or batches is missing.
    """
    fields = {
        setting.field: settings[setting.field]
        for setting in SETTINGS
        if setting.scope is SettingScope.PIPELINE and settings.get(setting.field) is not None
    }
    where = fields.get("placement")
    if isinstance(where, list | tuple):
        fields.setdefault("stages", len(set(where)) if "model" in fields else len(where))
    for name in ("stages", "batches"):
        if name not in fields:
            raise InputError(missing(name))
    if "model" in fields:
        model = model_of(fields)
        options = {name: fields[name] for name in fields if name not in _OF_MODEL}
        return model.pipeline(devices=fields["stages"], **options)
    return Pipeline(**fields)


def missing(name: str) -> str:
    """Message for a missing number, with where to write it."""
    example = {"stages": 4, "batches": 8}[name]
    return f"{name}: missing; give --{name} {example}, or `{name}: {example}` in the config"


def _whole(value: object, minimum: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{abbreviated(value)} is not a whole number")
    if value.bit_length() > 31:
        raise InputError("the number is out of range (at most 2^31)")
    if minimum is not None and value < minimum:
        raise InputError(f"{value} is below {minimum}")
    return value


def _line(value: object) -> str:
    if _CONTROL.search(text(value)):
        raise InputError(f"{abbreviated(value)} holds a control character; write one line of text")
    return text(value)


def _date(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else _line(value)


def _count(value: object) -> object:
    """Check that a value may be a number, or text of one; `ppopt.problem.exact` reads it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise InputError(f"{abbreviated(value)} is not a number")
    if isinstance(value, str) and (len(value) > 60 or _CONTROL.search(value)):
        raise InputError(f"{abbreviated(value)} is not a number")
    return value


def _number(value: object) -> object:
    """Check that a value may be a time or an amount of memory."""
    if isinstance(value, int) and abs(value) > exact.LARGEST:
        raise InputError("the number is too large; use a larger unit (at most 10^12)")
    return _count(value)


def _limit(value: object) -> object:
    if value is True or (isinstance(value, str) and value.strip().lower() == LIMIT_1F1B):
        return LIMIT_1F1B
    return _number(value)


def _layers(value: object) -> list[dict[str, Any]]:
    """Check a list of layers, each a mapping of its settings; name these as in Python."""
    if not isinstance(value, list):
        raise InputError(
            f"{abbreviated(value)} is not a list of layers; write `- forward: 1` for each"
        )
    layers: list[dict[str, Any]] = []
    faults = Faults()
    for index, entry in enumerate(value):
        with faults.collected():
            layers.append(within(f"layer {index}", _layer, entry))
    faults.check()
    return layers


def _layer(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{abbreviated(value)} is no layer; write `forward: 1` and so on")
    settings: dict[str, Any] = {}
    for key, entry in value.items():
        setting = LAYER_NAMES.get(str(key).replace("-", "_")) or unknown_key(str(key), LAYER_NAMES)
        if setting.field in settings:
            raise InputError(f"{key}: {setting.name} is given twice; keep one")
        if entry is not None:
            settings[setting.field] = within(str(key), _form(setting).read, entry)
    return flat(settings)


def _named_number(number: object, name: str) -> object:
    return within(name, _number, number)


def _phases(value: object) -> object:
    return Phases.read(value).each(_named_number).in_file


def _modules(value: object) -> object:
    """Check the numbers of modules, each a mapping of its keys."""
    documents = [module.in_file for module in modules.read(value)]
    for document in documents:
        for key in (*modules.TIMES, *modules.MEMORY):
            if document.get(key) is not None:
                _named_number(document[key], key)
    return documents


def _link(value: object) -> object:
    if not isinstance(value, dict | str):
        raise InputError(
            f"{abbreviated(value)} is no link; write {{latency: 10us, bandwidth: 50GB/s}}"
        )
    return link.checked(value)


def _choice(value: object, known: Sequence[str | int]) -> str:
    if value not in known:
        *choices, last = map(str, known)
        raise InputError(f"{abbreviated(value)} is unknown; use {', '.join(choices)} or {last}")
    return str(value)


def _seconds(value: object) -> float:
    seconds = float(exact.read(_number(value), "seconds").value)
    if seconds <= 0:
        raise InputError(f"{abbreviated(value)} is not above 0, or below 10^-6; give seconds")
    return seconds


def _files(value: object) -> list[str]:
    names = [_line(name) for name in (value if isinstance(value, list) else [value])]
    if not all(names):
        raise InputError("a file name is empty")
    return names


_INTEGER: Schema = {"type": "integer"}
_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_LINE = Form(_line, schema={"type": "string"})
_list = partial(listed, make=list)
_LINES = _list(_LINE)
_TRAINING: Schema = {
    **dict.fromkeys(TrainingSizes._fields, or_null(_POSITIVE)),
    **dict.fromkeys(TEXTS, or_null(_LINES.schema)),
}


@cache
def _form(setting: Setting) -> Form:
    """The form of the values of a setting: their check and their schema; numbers may be text."""
    if setting.shape is Shape.LAYERS:
        return Form(_layers, schema=list_schema(_layer_schema()))
    form, choices = _forms(setting)[setting.shape], {"enum": list(setting.choices)}
    return (
        replace(form, schema=choices)
        if setting.choices and setting.shape is not Shape.PLACEMENT
        else form
    )


def _forms(setting: Setting) -> Mapping[Shape, Form]:
    """The form of every shape, if a setting has it."""
    minimum = {} if setting.minimum is None else {"minimum": setting.minimum}
    whole = Form(partial(_whole, minimum=setting.minimum), schema=_INTEGER | minimum)
    number = Form(_number, schema=any_of({"type": "number"} | minimum, _LINE.schema))
    numbers = alternative(number, _list(number))
    matrix = alternative(number, _list(numbers))
    flag_or_parts = alternative(FLAG, _LINES, mapping(number))
    return {
        Shape.WHOLE: whole,
        Shape.SECONDS: Form(
            _seconds, schema=any_of({"type": "number", "exclusiveMinimum": 0}, _LINE.schema)
        ),
        Shape.NUMBER: number,
        Shape.COUNT: replace(number, read=_count),
        **dict.fromkeys((Shape.STAGES, Shape.PER_DEVICE), numbers),
        **dict.fromkeys((Shape.PAIRS, Shape.LINKS), matrix),
        Shape.DEVICES: alternative(
            Form(_limit, schema=any_of({"const": True}, number.schema)), _list(number)
        ),
        Shape.WORKSPACE: alternative(number, mappings=mapping(number)),
        **dict.fromkeys((Shape.RECOMPUTE, Shape.OFFLOAD), flag_or_parts),
        Shape.NAMES: alternative(_LINE, _LINES),
        Shape.PLACEMENT: alternative(
            Form(_line, schema={"enum": list(setting.choices)}), _list(whole)
        ),
        Shape.PARTITION: _partition(whole),
        Shape.LENGTHS: Form(schema=list_schema(_POSITIVE, list_schema(_INTEGER))),
        Shape.CHOICE: Form(partial(_choice, known=setting.choices)),
        Shape.FLAG: FLAG,
        Shape.SWITCHES: alternative(FLAG, _list(FLAG)),
        Shape.FILES: Form(_files, schema=any_of(_LINE.schema, _LINES.schema)),
        Shape.LINK: Form(_link, schema=any_of(_LINE.schema, _link_schema(number.schema))),
        Shape.MODULES: Form(_modules, schema=list_schema(_module_schema(number.schema))),
        Shape.PHASES: Form(_phases, schema=_phases_schema(number.schema)),
        Shape.TRAINING: Form(
            lambda value: read_training(value).in_file(), schema=object_schema(_TRAINING)
        ),
        Shape.LINE: _LINE,
        Shape.DATE: replace(_LINE, read=_date),
    }


def _partition(whole: Form) -> Form:
    """Counts, names per stage, or the text of a rule, layout or pattern."""
    counts = alternative(_LINE, _list(whole))
    names = alternative(_LINE, _list(alternative(_LINE, _LINES)))

    def read(value: object) -> object:
        is_of_names = isinstance(value, list) and any(isinstance(entry, list) for entry in value)
        return (names if is_of_names else counts).read(value)

    return Form(read, schema=any_of(counts.schema, _LINES.schema))


def schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of config files.

    It has every key under all its names, and the types of values. `pipeline_of` checks constraints
    between settings (lengths of lists, times of B and BW).
    """
    properties: Schema = {}
    for setting in SETTINGS:
        properties[setting.name] = _property(setting)
        names = (form for name in setting.names for form in (name, name.replace("_", "-")))
        same = {"$ref": f"#/properties/{setting.name}"}
        properties |= {name: same for name in names if name != setting.name}
    return {**DRAFT, "title": "ppopt config", **object_schema(properties)}


def _layer_schema() -> Schema:
    names = {name: setting for setting in LAYER_SETTINGS for name in setting.names}
    properties = {name: _property(setting) for name, setting in names.items()}
    needed = {"anyOf": [{"required": ["forward"]}, {"required": ["phases"]}]}
    return object_schema(properties) | needed


def _property(setting: Setting) -> Schema:
    default = {"default": setting.default} if setting.has_value else {}
    return {"description": setting.described, **default, **or_null(_form(setting).schema)}


def _module_schema(number: Schema) -> Schema:
    line = _LINE.schema
    numbers = dict.fromkeys((*modules.TIMES, *modules.MEMORY), or_null(number))
    texts = {"name": line, "inside": line, "excludes": any_of(line, _LINES.schema)}
    return object_schema(texts | numbers, ["name"])


def _phases_schema(number: Schema) -> Schema:
    numbers = dict.fromkeys(Phase._fields, or_null(number))
    phase = object_schema(numbers | {"on": {"enum": list(Machine)}}, ["on", "time"])
    return object_schema(dict.fromkeys(PARTS, list_schema(phase) | {"minItems": 1}), list(PARTS))


def _link_schema(number: Schema) -> Schema:
    members = dict.fromkeys(("latency", "bandwidth"), number)
    return object_schema({**members, "backward": object_schema(members)}, ["bandwidth"])
