"""What a page of the app asks for, as the query of its address, and the same as a command.

The keys are the names of settings in files; `model` names a model that comes with ppopt, `config`
is the text of a config file, which the other keys override, and `strategies` lists the strategies
that are drawn.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ppopt.app.limits import Limits
from ppopt.errors import InputError
from ppopt.formats.config import canonical, merged, pipeline_of, settings_of
from ppopt.formats.models import read_settings
from ppopt.formats.typed_values import typed_value
from ppopt.formats.yaml_text import parse_yaml
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.setting import Setting, SettingScope, Shape
from ppopt.problem.settings import NAMED, SETTINGS
from ppopt.strategies import OPTIONS, Options, resolve

MODEL, CONFIG, STRATEGIES = "model", "config", "strategies"
STEPS = ("time_limit", "seed")
"""Settings of a search alone: what is drawn does not depend on them."""
SEARCH = ("objective", "backward_kind", *STEPS)
FIRST_STRATEGIES = ("1f1b", "interleaved", "zb-h1", "zbv")
"""What is drawn where the query does not say."""
_FILE = "pipeline.yaml"


FIELDS = {
    setting.name: setting
    for setting in SETTINGS
    if setting.has_flag
    and (setting.scope is SettingScope.PIPELINE or setting.field in (*SEARCH, *OPTIONS))
}
"""The settings of the form by their names in files."""


@dataclass(frozen=True)
class Query:
    """One query, read."""

    pairs: tuple[tuple[str, str], ...]
    """The keys that are given with their text, in the order of the form."""
    settings: Mapping[str, Any]
    """By their names in Python (`ppopt.formats.config`)."""
    strategies: tuple[str, ...]

    @classmethod
    def read(cls, query: Mapping[str, str], limits: Limits) -> Query:
        """Read a query; raises InputError on what it cannot mean, and on what is too large."""
        keys = (MODEL, CONFIG, *FIELDS, STRATEGIES)
        unknown = [key for key in query if key not in keys]
        if unknown:
            raise InputError(f"{unknown[0][:60]}: unknown; the keys are the names of settings")
        values = {key: query[key] for key in keys if query.get(key, "").strip()}
        settings: dict[str, Any] = {}
        if MODEL in values:
            settings = read_settings(values[MODEL])
        typed = {key: typed_value(FIELDS[key], values[key]) for key in values if key in FIELDS}
        for layer in (_config(values.get(CONFIG, "")), canonical(typed)):
            settings = merged(settings, layer)
        sizes = (settings.get(name) for name in ("stages", "batches", "chunks"))
        limits.check_size(*sizes)
        chosen = query.get(STRATEGIES)
        listed = ",".join(FIRST_STRATEGIES) if chosen is None else chosen
        names = dict.fromkeys(resolve(word.strip()).name for word in listed.split(",") if word)
        return cls(tuple(values.items()), settings, tuple(names))

    def pipeline(self) -> Pipeline:
        """The pipeline; raises InputError if there is none."""
        return pipeline_of(self.settings)

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return Objective(self.settings.get("objective", Objective.MAKESPAN))

    @property
    def backward_kind(self) -> BackwardKind:
        """The kind of backwards of a search."""
        return BackwardKind.read(self.settings.get("backward_kind"), None)

    @property
    def options(self) -> Options:
        """Options of strategies."""
        return Options(**{name: self.settings.get(name) for name in OPTIONS})

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What the best schedule depends on."""
        apart = (STRATEGIES, *STEPS)
        return tuple(pair for pair in self.pairs if pair[0] not in apart)

    def command(self) -> str:
        """The command that compares the same on the command line.

        The text of a config is to be saved as the file that it names.
        """
        arguments = ["ppopt", "compare"]
        for key, text in self.pairs:
            if key == CONFIG:
                arguments += ["--config", _FILE]
            elif key == MODEL:
                arguments += ["--model", text]
            elif key != STRATEGIES:
                arguments += _flag(FIELDS[key], text)
        return shlex.join([*arguments, "--strategies", ",".join(self.strategies)])


def _flag(setting: Setting, text: str) -> list[str]:
    if setting.shape is Shape.DEVICES and text.strip().lower() == "1f1b":
        return [setting.flag]
    return [setting.flag, text] if not text.startswith("-") else [f"{setting.flag}={text}"]


def _config(text: str) -> dict[str, Any]:
    """The settings of the text of a config: layers alone, or all that a file may hold."""
    if not text.strip():
        return {}
    document = parse_yaml(text, CONFIG)
    if isinstance(document, list):
        return canonical({NAMED["layers"].name: document})
    settings = settings_of(document, CONFIG)
    settings.pop("output", None)
    return settings
