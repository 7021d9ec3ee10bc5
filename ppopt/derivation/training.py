"""How a model is trained: its parallelism and the shape of a microbatch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ppopt.derivation.architecture import Architecture, Experts
from ppopt.derivation.gpus import Precision
from ppopt.errors import ConflictError, InputError
from ppopt.formats.fields import shown, whole, within

MOST = 2**31


@dataclass(frozen=True)
class Training:
    """How a model is trained, in Megatron-LM's terms. Raises InputError on what is no training.

    A device of the pipeline stands for tensor x context GPUs; data copies of the pipeline run side
    by side.
    """

    devices: int = 4
    """Pipeline ranks."""
    batches: int = 16
    """Microbatches of a step, per copy of the pipeline."""
    tensor: int = 1
    """Ranks that share every matrix, with sequence parallelism (arXiv 2205.05198)."""
    context: int = 1
    """Ranks that share every sequence."""
    data: int = 1
    """Copies of the pipeline. Optimizer states are sharded over data x context ranks."""
    expert: int = 1
    """Ranks, of the data x context ones, over which experts are spread."""
    sequence: int = 4096
    """Tokens of a sequence."""
    microbatch: int = 1
    """Sequences of a microbatch."""
    precision: Precision = Precision.BF16
    """Of the products of matrices; all else is in BF16, optimizer states in FP32."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "precision":
                within(field.name, whole, getattr(self, field.name), 1, MOST)
        if self.precision not in tuple(Precision):
            raise InputError(f"precision: {shown(self.precision)} is neither bf16 nor fp8")
        vars(self)["precision"] = Precision(self.precision)
        if self.sequence % (self.context * self.tensor):
            raise ConflictError(
                f"sequence: {self.sequence} tokens cannot be shared by {self.context} x "
                f"{self.tensor} ranks of context and tensor; give a multiple"
            )
        if self.ranks % self.expert:
            raise ConflictError(
                f"expert: {self.expert} does not divide data x context = {self.ranks}, the ranks "
                "over which experts are spread"
            )

    @property
    def ranks(self) -> int:
        """Ranks over which optimizer states are sharded."""
        return self.data * self.context

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.devices * self.tensor * self.context * self.data

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on a rank, before tensor parallelism."""
        return self.microbatch * self.sequence // self.context

    @property
    def all_tokens(self) -> int:
        """Tokens of a microbatch on all ranks."""
        return self.microbatch * self.sequence

    def check(self, architecture: Architecture) -> None:
        """Raise ConflictError if the ranks cannot share what the architecture has."""
        for run in architecture.runs:
            attention = run.decoder.attention
            if attention.heads % self.tensor:
                raise ConflictError(
                    f"tensor: {self.tensor} ranks cannot share {attention.heads} heads; give a "
                    "divisor"
                )
            if attention.groups % self.tensor:
                raise ConflictError(
                    f"tensor: {self.tensor} ranks would copy {attention.groups} heads of keys and "
                    f"values, which is not derived; give a divisor of {attention.groups}"
                )
        experts = [
            run.decoder.feed_forward.number
            for run in architecture.runs
            if isinstance(run.decoder.feed_forward, Experts)
        ]
        if self.expert > 1 and not experts:
            raise ConflictError("expert: the model has no experts; leave it out")
        for number in experts:
            if number % self.expert:
                raise ConflictError(
                    f"expert: {self.expert} ranks cannot share {number} experts; give a divisor"
                )

    def words(self) -> str:
        """The ranks that are more than one, in words."""
        ranks = {name: getattr(self, name) for name in ("tensor", "context", "data", "expert")}
        return ", ".join(f"{name} {size}" for name, size in ranks.items() if size > 1) or "none"
