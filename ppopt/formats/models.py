"""Models that come with ppopt: the configs of the folder `models`, by name."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.config import parse_config
from ppopt.formats.fields import nearest, shown

_SUFFIX = ".yaml"


@cache
def _folder() -> Traversable:
    """Return the models inside an installed package, or those beside it in a checkout."""
    packaged = files("ppopt") / "_models"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "models"


@cache
def model_names() -> tuple[str, ...]:
    """Names of all models, sorted, numbers within names by value."""
    names = (entry.name for entry in _folder().iterdir())
    models = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
    return tuple(sorted(models, key=_by_value))


def _by_value(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


def read_model(name: str) -> dict[str, Any]:
    """Read the settings of a model; see `ppopt.formats.config.read_config`.

    Raises InputError on a name that `model_names` lacks.
    """
    if name not in model_names():
        raise InputError(
            f"model: {shown(name)} is unknown; did you mean {nearest(name, model_names())}? "
            "`ppopt models` lists all; a file of your own goes with --config"
        )
    text = (_folder() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return {"name": name, **parse_config(text, _SUFFIX, f"model {name}")}


def summary(name: str) -> str:
    """Describe a model on one line: name, size and what it is."""
    settings = read_model(name)
    width = max(map(len, model_names()))
    return (
        f"{name:<{width}}  {settings['stages']:>3} stages  {settings['batches']:>4} microbatches  "
        f"{settings['about']['description']}"
    )
