"""GPUs by name: peaks and memory, as their makers publish them (`gpus.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.fields import shown
from ppopt.problem.settings import nearest


class Precision(StrEnum):
    """Number format of the products of matrices."""

    BF16 = "bf16"
    FP8 = "fp8"


class Gpu(NamedTuple):
    """What a GPU can do."""

    name: str
    bf16: float
    """Dense FLOP/s."""
    fp8: float | None
    """Dense FLOP/s; None: it has no FP8."""
    memory: int
    """GiB."""
    memory_speed: float
    """Bytes/s."""
    source: str

    def peak(self, precision: Precision) -> float:
        """Dense FLOP/s at a precision; raises InputError if the GPU does not have it."""
        peak = self.bf16 if precision is Precision.BF16 else self.fp8
        if peak is None:
            raise InputError(f"precision: {self.name} has no {precision}; leave it at bf16")
        return peak


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every GPU by name."""
    text = (files("ppopt.derivation") / "gpus.toml").read_text(encoding="utf-8")
    return {
        name: Gpu(name=name, fp8=found.pop("fp8", None), **found)
        for name, found in tomllib.loads(text).items()
    }


def gpu_named(name: str) -> Gpu:
    """A GPU by its name, in any case; raises InputError if there is none."""
    found = gpus().get(name.lower())
    if found is None:
        raise InputError(
            f"gpu: {shown(name)} is unknown; did you mean {nearest(name.lower(), gpus())}? "
            f"known are {', '.join(gpus())}"
        )
    return found
