"""The parallelism that a plan chooses from, on a fixed number of GPUs and a fixed batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import gcd
from typing import Any, NamedTuple

from ppopt.derivation.architecture import Architecture, Experts
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.layer_costs import EFFICIENCY
from ppopt.derivation.training import Training
from ppopt.errors import ConflictError, InputError, NotApplicableError, not_applicable

MAX_TENSOR = 8
"""Largest tensor parallel size of a space of all sizes: the GPUs of one server (Megatron-LM, arXiv
2104.04473, takeaway 1)."""


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
    """Search space of the parallelism: dimensions, and settings that all combinations share.

    Every combination trains the same sequences per step on the same GPUs: its pipeline has gpus /
    (tensor x context x data) devices and global_batch / (data x microbatch) microbatches. Raises
    InputError if a list is empty or a number is below 1.
    """

    architecture: Architecture
    gpu: Gpu
    gpus: int
    """Total number of GPUs."""
    global_batch: int
    """Sequences of a step, over all copies of the pipeline."""
    tensor: tuple[int, ...] = (1,)
    microbatch: tuple[int, ...] = (1,)
    data: tuple[int, ...] = (1,)
    training: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every `Training`: context, expert, sequence, precision."""
    efficiency: tuple[float, ...] = (EFFICIENCY,)
    """Achieved share of the GPU's peak: one for all, or one for each of `tensor`."""
    link: str | None = None
    all_sizes: bool = False
    """Whether the lists have every size (`of_all_sizes`): invalid combinations are left out without
    a report, and without `expert` in `training` as many ranks as can share the experts."""

    @classmethod
    def of_all_sizes(
        cls, architecture: Architecture, gpu: Gpu, gpus: int, global_batch: int, **more: Any
    ) -> ParallelSpace:
        """Space of all tensor parallel sizes in a server and all data parallel sizes."""
        sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
        return cls(
            architecture, gpu, gpus, global_batch, all_sizes=True,
            tensor=tuple(size for size in sizes if size <= MAX_TENSOR) or (1,),
            data=tuple(sizes) or (1,), **more,
        )  # fmt: skip

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
        """Derived models of all valid combinations, and invalid ones, each with the reason."""
        models, skipped = {}, {}
        for combination in dict.fromkeys(map(Parallelism._make, self._product())):
            try:
                models[combination] = self.model(combination)
            except NotApplicableError as error:
                skipped[combination] = str(error)
        return models, {} if models and self.all_sizes else skipped

    def _product(self) -> product[tuple[int, ...]]:
        return product(self.tensor, self.microbatch, self.data)

    def model(self, combination: Parallelism) -> DerivedModel:
        """Derived model of a combination; raises NotApplicableError if it is invalid."""
        with not_applicable():
            context = self.training.get("context", 1)
            devices = _divided(
                "gpus",
                self.gpus,
                combination.tensor * context * combination.data,
                "tensor x context x data",
            )
            batches = _divided(
                "global_batch",
                self.global_batch,
                combination.data * combination.microbatch,
                "data x microbatch",
            )
            fields = {**self.training, **combination._asdict()}
            if self.all_sizes:
                fields = {"expert": self._most_expert_ranks(combination.data * context)} | fields
            training = Training(devices, batches, **fields)
            return DerivedModel(
                self.architecture, training, self.gpu, self._efficiency(combination), link=self.link
            )

    def _most_expert_ranks(self, ranks: int) -> int:
        """Most of some ranks over which the experts of all layers can be spread; 1: no experts."""
        decoders = (run.decoder.feed_forward for run in self.architecture.runs)
        numbers = [experts.number for experts in decoders if isinstance(experts, Experts)]
        return gcd(ranks, *numbers) if numbers else 1

    def _efficiency(self, combination: Parallelism) -> float:
        """Efficiency of a combination."""
        each = len(self.efficiency) > 1
        return self.efficiency[self.tensor.index(combination.tensor) if each else 0]


def _divided(name: str, number: int, divisor: int, divisor_text: str) -> int:
    """Exact quotient; raises ConflictError if there is a remainder, or the quotient is 0."""
    quotient, remainder = divmod(number, divisor)
    if remainder or not quotient:
        raise ConflictError(f"{name}: {number} is no multiple of {divisor_text} = {divisor}")
    return quotient
