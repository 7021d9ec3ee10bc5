"""Models that come with ppopt: the configs of the folder `models`, by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.config import SUFFIXES, model_of, parse_config, pipeline_of, read_config
from ppopt.formats.documents import by_value, label
from ppopt.formats.fields import abbreviated, within
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.settings import nearest

_SUFFIX = ".yaml"


@cache
def _folder() -> Traversable:
    """Return the models inside an installed package, or those of a checkout."""
    packaged = files("ppopt") / "_models"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "models"


@cache
def model_names() -> tuple[str, ...]:
    """Names of all models, sorted, numbers within names by value."""
    names = (entry.name for entry in _folder().iterdir())
    models = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return tuple(sorted(models, key=by_value))


def read_settings(name: str) -> dict[str, Any]:
    """Read the settings of a model; see `ppopt.formats.config.read_config`.

    Raises InputError on a name that `model_names` lacks.
    """
    if name not in model_names():
        raise InputError(
            f"model: {abbreviated(name)} is unknown; did you mean {nearest(name, model_names())}? "
            "`ppopt models` lists all; a file of your own goes with --config"
        )
    text = (_folder() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return {"name": name, **parse_config(text, _SUFFIX, f"model {name}")}


def models() -> dict[str, str]:
    """Every model by name: its size and description."""
    descriptions = {}
    for name in model_names():
        settings = read_settings(name)
        size = f"{settings['stages']:>3} stages"
        if "model" in settings:
            size = f"{len(model_of(settings)):>3} layers"
        about = settings["about"]["description"]
        descriptions[name] = f"{size}  {settings['batches']:>4} microbatches  {about}"
    return descriptions


def read_model(source: str | Path) -> Model:
    """Read the model in layers of a config file, or of a model that comes with ppopt by its name.

    Only the layers: stages, batches and mem_limit of the file are ignored; `Model.pipeline` needs
    them, and `read_pipeline` reads them. Raises InputError if there is no such file or model, or if
    it has no layers.
    """
    settings, where = _settings(source)
    return within(where, model_of, settings)


def read_pipeline(source: str | Path) -> Pipeline:
    """Read the pipeline of a config file (.yaml, .yml, .json, .toml), or of a model by its name.

    It includes stages, batches and mem_limit, which `read_model` ignores. Raises InputError if
    there is no such file or model, or if it is no pipeline.
    """
    settings, where = _settings(source)
    return within(where, pipeline_of, settings)


def _settings(source: str | Path) -> tuple[dict[str, Any], str]:
    """Settings of a file or of a model by its name, and its name for messages."""
    path = Path(source)
    if isinstance(source, Path) or path.suffix.lower() in SUFFIXES:
        return read_config(path), label(path)
    return read_settings(source), f"model {source}"
