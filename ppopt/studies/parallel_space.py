"""The parallelism that a plan chooses from, on a fixed number of GPUs and a fixed batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from math import gcd, isqrt
from typing import Any, NamedTuple

from ppopt.derivation.architecture import Architecture, Experts
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.layer_costs import AS_DERIVED, Scale
from ppopt.derivation.training import Overlap, Training
from ppopt.errors import ConflictError, InputError, not_applicable
from ppopt.problem.hosting import MAX_DEVICES
from ppopt.problem.sequence_lengths import Lengths

DIMENSIONS = ("tensor", "context", "data", "expert", "microbatch")
"""Dimensions of the parallelism, as fields of `ParallelSpace`."""
MAX_COMBINATIONS = 4096
"""Maximum number of combinations of a space: each takes some hundredths of a second to derive."""
MICROBATCHES = (1, 2, 4)
"""Sequences of a microbatch by default."""
NO_OVERLAP = "none"
OVERLAPS = (
    (NO_OVERLAP,),
    (Overlap.DISPATCH,),
    (Overlap.DISPATCH, Overlap.WEIGHT),
)
"""Overlaps of exchanges of tokens with their experts, each as the names of the option."""
MIN_TOKENS_PER_RANK = 4096
"""Minimum tokens of a sequence on a rank, for the default context parallel sizes."""


class Parallelism(NamedTuple):
    """One combination of the dimensions."""

    tensor: int
    microbatch: int
    """Sequences of a microbatch."""
    data: int
    context: int = 1
    expert: int = 1
    overlap: str = NO_OVERLAP
    """Overlap of exchanges of tokens with their experts, one of `OVERLAPS` with commas."""

    def __str__(self) -> str:
        suffix = "".join(
            f", {name} {getattr(self, name)}"
            for name in ("context", "expert", "overlap")
            if getattr(self, name) not in (1, NO_OVERLAP)
        )
        return f"tensor {self.tensor}, microbatch {self.microbatch}, data {self.data}{suffix}"


@dataclass(frozen=True)
class ParallelSpace:
    """Search space of the parallelism: dimensions, and settings that all combinations share.

    Every combination trains the same sequences per step on the same GPUs: its pipeline has gpus /
    (tensor x context x data) devices and global_batch / (data x microbatch) microbatches. A
    dimension is a list of sizes, or None for all useful sizes:

    - tensor, context: tensor x context divides the GPUs and is within a node; a rank has at least
      `MIN_TOKENS_PER_RANK` tokens of a sequence, or context is 1;
    - data: divides the remaining GPUs, and the sequences of a step;
    - expert: divides the experts of all layers and the ranks that share them, data x context;
    - microbatch: `MICROBATCHES` that divide the sequences of a data parallel rank.

    If `training` overlaps exchanges of experts (`Overlap.DISPATCH`), every combination with several
    expert ranks is there without overlap, too, and so is that without delayed W.

    Raises InputError if a list is empty, a number is below 1, or there are too many combinations.
    """

    architecture: Architecture
    gpu: Gpu
    gpus: int
    """Total number of GPUs."""
    global_batch: int
    """Sequences of a step, over all copies of the pipeline."""
    tensor: tuple[int, ...] | None = None
    context: tuple[int, ...] | None = None
    data: tuple[int, ...] | None = None
    expert: tuple[int, ...] | None = None
    microbatch: tuple[int, ...] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every `Training`: sequence, precision, zero and others."""
    efficiency: tuple[float, ...] = ()
    """Share of the GPU's peak that large matrix products reach: one for all, or one for each of
    `tensor`; empty: the GPU's own value."""
    scale: Scale = AS_DERIVED
    """Factors of calibration on times."""
    link: str | None = None
    microbatch_tokens: Lengths | None = None
    """Lengths of the documents of every microbatch of a data parallel rank; None: every microbatch
    has as many sequences as `microbatch` says."""

    def __post_init__(self) -> None:
        _ = self._overlap
        lists = {name: getattr(self, name) for name in DIMENSIONS}
        for name, numbers in lists.items():
            if numbers is not None and not numbers:
                raise InputError(f"{name}: the list is empty")
        tensors = len(self.tensor or ())
        if len(self.efficiency) not in (0, 1, tensors):
            raise InputError(
                f"efficiency: {len(self.efficiency)} values; give one, or one for each of the "
                f"{tensors} of tensor"
            )
        lists |= {"gpus": (self.gpus,), "global_batch": (self.global_batch,)}
        for name, numbers in lists.items():
            if numbers is not None and min(numbers) < 1:
                raise InputError(f"{name}: {min(numbers)} is below 1")
        self._check_size()

    def _check_size(self) -> None:
        """Raise InputError if there are too many combinations."""
        count = sum(1 for _ in islice(self.combinations(), MAX_COMBINATIONS + 1))
        if count > MAX_COMBINATIONS:
            raise InputError(
                f"tensor, context, data, expert, microbatch: more than {MAX_COMBINATIONS} "
                "combinations; give shorter lists"
            )

    @property
    def size(self) -> int:
        """Number of combinations, invalid ones included."""
        return sum(1 for _ in self.combinations())

    def combinations(self) -> Iterator[Parallelism]:
        """All combinations; sizes from the user's lists may be invalid."""
        for tensor in self.tensor or self._tensor_sizes():
            for context in self.context or self._context_sizes(tensor):
                for data in self.data or self._data_sizes(tensor * context):
                    for expert in self.expert or self._expert_sizes(tensor, data * context):
                        for microbatch in self.microbatch or self._microbatch_sizes(data):
                            for overlap in self._overlaps(expert):
                                yield Parallelism(
                                    tensor, microbatch, data, context, expert, overlap
                                )

    def _tensor_sizes(self) -> list[int]:
        return [size for size in _divisors(self.gpus) if self._is_within_node(size)]

    def _context_sizes(self, tensor: int) -> list[int]:
        if self.gpus % tensor:
            return [1]
        sequence = self.training.get("sequence", Training.sequence)
        return [
            size
            for size in _divisors(self.gpus // tensor)
            if size == 1
            or (self._is_within_node(tensor * size) and sequence >= size * MIN_TOKENS_PER_RANK)
        ]

    def _is_within_node(self, ranks: int) -> bool:
        """Whether every group of consecutive ranks is within a node."""
        return min(self.gpus, self._node) % ranks == 0

    @property
    def _node(self) -> int:
        """Number of GPUs of a node."""
        return self.training.get("gpus_per_node") or self.gpu.gpus_per_node

    def _data_sizes(self, ranks: int) -> list[int]:
        return [1] if self.gpus % ranks else _divisors(gcd(self.gpus // ranks, self.global_batch))

    def _expert_sizes(self, tensor: int, ranks: int) -> list[int]:
        """Divisors of the experts and of the ranks that share them (`Training.expert_tensor`)."""
        ranks = tensor * ranks // (self.training.get("expert_tensor") or tensor)
        decoders = (run.decoder for run in self.architecture.runs)
        networks = (each for decoder in decoders for each in decoder.feed_forwards)
        numbers = [each.number for each in networks if isinstance(each, Experts)]
        return _divisors(gcd(ranks, *numbers)) if numbers and ranks else [1]

    @property
    def _overlap(self) -> tuple[Overlap, ...]:
        """Exchanges that may overlap."""
        return Training(overlap=self.training.get("overlap", ())).overlap

    def _overlaps(self, expert: int) -> list[str]:
        """Overlaps of exchanges with experts that the training allows."""
        allowed = {NO_OVERLAP, *self._overlap} if expert > 1 else {NO_OVERLAP}
        return [",".join(names) for names in OVERLAPS if allowed.issuperset(names)]

    def _microbatch_sizes(self, data: int) -> list[int]:
        sequences = 1 if self.microbatch_tokens else self.global_batch // data
        return [size for size in MICROBATCHES if sequences % size == 0]

    @property
    def not_searched(self) -> tuple[str, ...]:
        """Sizes that the default of a dimension leaves out, each with the option that adds them."""
        left_out = {
            "tensor": f"tensor x context that is not within a node of {self._node}",
            "context": f"context with fewer than {MIN_TOKENS_PER_RANK} tokens per rank",
            "microbatch": f"microbatches other than {', '.join(map(str, MICROBATCHES))}",
        }
        return tuple(
            f"{text} (--{name})" for name, text in left_out.items() if getattr(self, name) is None
        )

    def model(self, combination: Parallelism) -> DerivedModel:
        """Derived model of a combination; raises NotApplicableError if it is invalid."""
        with not_applicable():
            devices = _divided(
                "gpus",
                self.gpus,
                combination.tensor * combination.context * combination.data,
                "tensor x context x data",
            )
            if devices > MAX_DEVICES:
                raise ConflictError(f"stages: {devices} devices are above {MAX_DEVICES}")
            batches = _divided(
                "global_batch",
                self.global_batch,
                combination.data * combination.microbatch,
                "data x microbatch",
            )
            self._check_lengths(batches, combination.microbatch)
            exchanges = {name for names in OVERLAPS for name in names}
            shared = [name for name in self._overlap if name not in exchanges]
            own = [name for name in combination.overlap.split(",") if name != NO_OVERLAP]
            sizes = combination._asdict() | {"overlap": (*shared, *own)}
            training = Training(devices, batches, **{**self.training, **sizes})
            return DerivedModel(
                self.architecture, training, self.gpu, self._efficiency(combination), self.scale,
                link=self.link,
            )  # fmt: skip

    def _check_lengths(self, batches: int, sequences: int) -> None:
        """Raise ConflictError if lengths are not those of these microbatches."""
        if self.microbatch_tokens is None:
            return
        if sequences > 1:
            raise ConflictError("microbatch: every entry of microbatch_tokens is a microbatch of 1")
        if len(self.microbatch_tokens) != batches:
            raise ConflictError(
                f"microbatch_tokens: has {len(self.microbatch_tokens)} entries for {batches} "
                "microbatches"
            )

    @property
    def tokens(self) -> Fraction:
        """Tokens of a step, over all copies of the pipeline."""
        lengths = self.microbatch_tokens
        if lengths is None:
            sequence: int = self.training.get("sequence", Training.sequence)
            return Fraction(self.global_batch * sequence)
        return Fraction(self.global_batch * sum(map(sum, lengths)), len(lengths))

    def _efficiency(self, combination: Parallelism) -> float | None:
        """Efficiency of a combination; None: the GPU's own value."""
        if self.tensor is None or len(self.efficiency) <= 1:
            return next(iter(self.efficiency), None)
        return self.efficiency[self.tensor.index(combination.tensor)]


def _divisors(value: int) -> list[int]:
    """Divisors of a number above 0, in order."""
    small = [size for size in range(1, isqrt(value) + 1) if value % size == 0]
    return sorted({*small, *(value // size for size in small)})


def _divided(name: str, dividend: int, divisor: int, divisor_text: str) -> int:
    """Exact quotient; raises ConflictError if there is a remainder, or the quotient is 0."""
    quotient, remainder = divmod(dividend, divisor)
    if remainder or not quotient:
        raise ConflictError(f"{name}: {dividend} is no multiple of {divisor_text} = {divisor}")
    return quotient
