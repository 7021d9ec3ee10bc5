"""The costs of a layer of a derived model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ppopt.derivation.layer_part import LayerPart
from ppopt.problem.phases import Phases


class Times(NamedTuple):
    """Milliseconds of F, B, W and BW."""

    forward: float = 0.0
    input: float = 0.0
    weight: float = 0.0
    backward: float = 0.0

    def __add__(self, addend: Times) -> Times:  # type: ignore[override]
        """Sums by kind."""
        return Times(*(first + second for first, second in zip(self, addend, strict=True)))


class LayerTimes(NamedTuple):
    """The parts of the times of a layer, in ms."""

    computing: Times
    """Kernels."""
    communication: Times
    """Exposed collectives of tensor, context and expert parallelism."""
    waiting: Times
    """For the CPU, which launches kernels."""
    streaming: Times
    """For weights that are gathered, and gradients that are reduced, in every microbatch."""
    with_recompute: float
    """BW that recomputes the layer."""

    @property
    def total(self) -> Times:
        """Times of the layer."""
        return self.computing + self.communication + self.waiting + self.streaming


class StepCosts(NamedTuple):
    """What a layer costs once in a step: ms, and MiB of gathered parameters."""

    unshard: float = 0.0
    unshard_memory: int = 0
    gradient_sync: float = 0.0
    optimizer: float = 0.0


NO_STEP_COSTS = StepCosts()


class DerivedModule(NamedTuple):
    """A module of a layer that recomputes or offloads on its own."""

    name: str
    time: float | None
    """Milliseconds that recompute adds to a backward; None: it does not recompute."""
    memory: int
    """MiB that F does not stash if it recomputes."""
    inside: str = ""
    """Name of the module that contains it."""
    offload_time: float = 0
    """Milliseconds of a move to the host, and back; 0: it does not offload."""
    offload_memory: int = 0
    """MiB that move."""


@dataclass(frozen=True)
class DerivedLayer:
    """A layer of a model file: times in ms, memory in MiB."""

    name: str
    role: str
    count: int
    forward: float
    """F, in ms, rounded to `SHORTEST`; kernels and collectives, as all times."""
    input: float
    """B."""
    weight: float
    """W."""
    backward: float
    """BW."""
    communication: Times
    """The part of the times that is exposed communication."""
    activation: int
    static: int
    output: float = 0
    workspace: tuple[int, int] = (0, 0)
    """Of F, and of B and BW."""
    recompute: float = 0
    """Time that recompute adds to a backward."""
    stashed: int = 0
    """Activation that F stashes with recompute."""
    offload: float = 0
    """Time to move the activation to the host, and back; 0: it does not offload."""
    step: StepCosts = NO_STEP_COSTS
    frozen: bool = False
    flops: float = 0
    """FLOPs of F and BW of a microbatch, of all ranks; not in the file, their sum is."""
    parts: tuple[LayerPart, ...] = ()
    modules: tuple[DerivedModule, ...] = ()
    phases: Phases | None = None
    """Steps of F and of the backward, if exchanges of tokens overlap with another microbatch."""
