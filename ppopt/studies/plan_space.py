"""The configurations of a plan: every combination of its dimensions that can be set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Model, Pipeline

PLACEMENTS = ("linear", "interleaved", "v")
"""The placements of a plan, and its default."""
CHUNKS = (1, 2)
"""Default stages per device."""
AS_GIVEN = "layers"
"""The value of `recompute` that means: as the layers of the model say."""
RECOMPUTE = ("none", "full", "search", AS_GIVEN)
"""What `recompute` may be in a plan."""


class PlanConfiguration(NamedTuple):
    """One combination of the dimensions of a plan."""

    batches: int
    """Microbatches."""
    placement: str
    chunks: int
    """Stages per device."""
    recompute: str
    """Which layers recompute: `none`, `full`, `search` (chosen per stage with the schedule), or
    `layers` (as the layers of the model say)."""

    def __str__(self) -> str:
        chunks = f"/{self.chunks}" if self.chunks > 1 else ""
        recompute = "" if self.recompute == AS_GIVEN else f", recompute {self.recompute}"
        return f"{self.placement}{chunks}{recompute}, {self.batches} microbatches"


@dataclass(frozen=True)
class PlanSpace:
    """What a plan chooses from: lists per dimension, and what is the same in all configurations.

    Raises InputError where a list is empty or holds something unknown, and where no combination of
    placements and chunks goes together.
    """

    model: Model
    devices: int
    batches: tuple[int, ...]
    placements: tuple[str, ...] = PLACEMENTS
    chunks: tuple[int, ...] = CHUNKS
    recompute: tuple[str, ...] = (AS_GIVEN,)
    partition: Any = SEARCH
    """`search`, or a partition as `ppopt.Pipeline` takes it, for every configuration."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every `ppopt.Pipeline`, such as `p2p` and `mem_limit`."""

    def __post_init__(self) -> None:
        _check("placement", self.placements, PLACEMENTS)
        _check("recompute", self.recompute, RECOMPUTE)
        for name in ("batches", "chunks"):
            if not getattr(self, name):
                raise InputError(f"{name}: the list is empty")
        if not any(_go_together(*one) for one in product(self.placements, self.chunks)):
            raise InputError(
                "chunks: linear has 1 per device, interleaved and v 2 or more; no placement and "
                f"chunks of {', '.join(self.placements)} and {', '.join(map(str, self.chunks))} "
                "go together"
            )

    def __iter__(self) -> Iterator[PlanConfiguration]:
        dimensions = (self.batches, self.placements, self.chunks, self.recompute)
        for one in dict.fromkeys(product(*dimensions)):
            configuration = PlanConfiguration(*one)
            if _go_together(configuration.placement, configuration.chunks):
                yield configuration

    def pipeline(self, configuration: PlanConfiguration) -> Pipeline:
        """The pipeline of a configuration; raises InputError where it cannot be set up."""
        recompute = configuration.recompute
        return self.model.pipeline(
            devices=self.devices,
            batches=configuration.batches,
            placement=configuration.placement,
            chunks=configuration.chunks,
            partition=self.partition,
            recompute=None if recompute == AS_GIVEN else recompute,
            **self.fields,
        )


def default_recompute(model: Model, *, limited: bool) -> tuple[str, ...]:
    """What a plan tries where it is not told: recompute saves memory only, and takes time.

    A model that says which layers recompute is taken at its word.
    """
    if any(layer.recompute for layer in model.layers):
        return (AS_GIVEN,)
    return ("none", "full", "search") if limited else ("none",)


def _go_together(placement: str, chunks: int) -> bool:
    return (chunks == 1) == (placement == "linear")


def _check(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not given:
        raise InputError(f"{name}: the list is empty")
    for one in given:
        if one not in known:
            raise InputError(f"{name}: {one!r} is unknown; a plan chooses from {', '.join(known)}")
