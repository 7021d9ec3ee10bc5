"""The parallelism a plan chooses from, on a fixed number of GPUs and a fixed batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from ppopt.derivation.architecture import Architecture
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.layer_costs import EFFICIENCY
from ppopt.derivation.training import Training
from ppopt.errors import ConflictError, InputError, NotApplicableError, not_applicable


class Parallelism(NamedTuple):
    """One combination of the dimensions."""

    tensor: int
    microbatch: int
    """Sequences of a microbatch."""
    data: int

    def __str__(self) -> str:
        return f"tensor {self.tensor}, microbatch {self.microbatch}, data {self.data}"


@dataclass(frozen=True)
class ParallelSpace:
    """What is chosen from, and what is the same in all combinations.

    Every combination trains the same sequences per step on the same GPUs: its pipeline has
    gpus / (tensor x context x data) devices and global_batch / (data x microbatch) microbatches.
    Raises InputError where a list is empty or a number is below 1.
    """

    architecture: Architecture
    gpu: Gpu
    gpus: int
    """GPUs in all."""
    global_batch: int
    """Sequences of a step, over all copies of the pipeline."""
    tensor: tuple[int, ...] = (1,)
    microbatch: tuple[int, ...] = (1,)
    data: tuple[int, ...] = (1,)
    training: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every `Training`: context, expert, sequence, precision."""
    efficiency: tuple[float, ...] = (EFFICIENCY,)
    """Share of the GPU's peak: one for all, or one for each of `tensor`."""
    link: str | None = None

    def __post_init__(self) -> None:
        lists = {"tensor": self.tensor, "microbatch": self.microbatch, "data": self.data}
        for name, numbers in lists.items():
            if not numbers:
                raise InputError(f"{name}: the list is empty")
        if len(self.efficiency) not in (1, len(self.tensor)):
            raise InputError(
                f"efficiency: {len(self.efficiency)} values; give one, or one for each of the "
                f"{len(self.tensor)} of tensor"
            )
        lists |= {"gpus": (self.gpus,), "global_batch": (self.global_batch,)}
        for name, numbers in lists.items():
            if min(numbers) < 1:
                raise InputError(f"{name}: {min(numbers)} is below 1")

    def models(self) -> tuple[dict[Parallelism, DerivedModel], dict[Parallelism, str]]:
        """The derived model of every combination that there is, and why others are not."""
        found, skipped = {}, {}
        for one in dict.fromkeys(map(Parallelism._make, self._product())):
            try:
                found[one] = self.model(one)
            except NotApplicableError as error:
                skipped[one] = str(error)
        return found, skipped

    def _product(self) -> product[tuple[int, ...]]:
        return product(self.tensor, self.microbatch, self.data)

    def model(self, one: Parallelism) -> DerivedModel:
        """The derived model of a combination; raises NotApplicableError where there is none."""
        with not_applicable():
            context = self.training.get("context", 1)
            devices = _divided(
                "gpus", self.gpus, one.tensor * context * one.data, "tensor x context x data"
            )
            batches = _divided(
                "global_batch", self.global_batch, one.data * one.microbatch, "data x microbatch"
            )
            training = Training(devices, batches, **one._asdict(), **self.training)
            return DerivedModel(
                self.architecture, training, self.gpu, self._efficiency(one), link=self.link
            )

    def _efficiency(self, one: Parallelism) -> float:
        """The efficiency of a combination."""
        each = len(self.efficiency) > 1
        return self.efficiency[self.tensor.index(one.tensor) if each else 0]


def _divided(name: str, number: int, by: int, words: str) -> int:
    """How often a number holds another; raises ConflictError where there is a rest."""
    found, rest = divmod(number, by)
    if rest or not found:
        raise ConflictError(f"{name}: {number} is no multiple of {words} = {by}")
    return found
