"""A part of a layer: kernels, collectives and stashed memory for a microbatch on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add, attrgetter
from typing import NamedTuple

from ppopt.derivation.collectives import Collective
from ppopt.derivation.kernels import Kernel

VISIBLE = 0.25
"""Share of an exchange that overlaps with compute and is exposed all the same: its first and last
part, and compute that it slows down."""


class PerKind(NamedTuple):
    """Collectives of each kind of operation."""

    forward: tuple[Collective, ...] = ()
    input: tuple[Collective, ...] = ()
    """Of B."""
    weight: tuple[Collective, ...] = ()
    backward: tuple[Collective, ...] = ()
    """Of BW."""

    def __add__(self, addend: PerKind) -> PerKind:  # type: ignore[override]
        """Those of both."""
        return PerKind(*(first + second for first, second in zip(self, addend, strict=True)))

    def hidden_behind(self, seconds: float) -> PerKind:
        """With compute that overlaps with each collective."""
        return PerKind(
            *(
                tuple(each._replace(hidden=seconds, visible=VISIBLE) for each in collectives)
                for collectives in self
            )
        )

    def named(self, name: str) -> PerKind:
        """Those of a name."""
        return PerKind(*(tuple(each for each in kind if each.name == name) for kind in self))


NO_COLLECTIVES = PerKind()


class StashedInput(NamedTuple):
    """An input of matrices that F stashes for their W, and its bytes."""

    tensor: str
    size: float


class ModuleCosts(NamedTuple):
    """A module that recomputes or offloads on its own, in Megatron-LM's names.

    They are those of `--recompute-modules` and of `--offload-modules`, which moves the input of
    `core_attn` (queries, keys and values), of `moe_act` and of `expert_fc1`.
    `core_attn`, `mlp`, `moe` and `shared_experts` keep their input and compute the rest again;
    `layernorm`, `mla_up_proj` and `moe_act` discard their output (megatron/core/transformer/
    transformer_config.py, `recompute_modules`).
    """

    name: str
    forward: tuple[Kernel, ...]
    """Kernels that run again."""
    collectives: tuple[Collective, ...] = ()
    """Collectives that run again."""
    freed: float = 0.0
    """Bytes that F does not stash."""
    inside: str = ""
    """Name of the module that contains it."""
    number: int = 1
    """Number of checkpoints: a norm each."""
    offloaded: float = 0.0
    """Bytes of its input, which move to the host if it offloads; 0: it does not."""

    @classmethod
    def of(
        cls,
        name: str,
        part: LayerPart,
        freed: float,
        inside: str = "",
        number: int = 1,
        offloaded: float = 0.0,
    ) -> ModuleCosts:
        """All of a part."""
        run = part.forward, part.collectives.forward
        return cls(name, *run, max(0.0, freed), inside, number, offloaded)


@dataclass(frozen=True)
class LayerPart:
    """A part of a layer: an attention, a feed-forward network, a norm."""

    name: str
    forward: tuple[Kernel, ...] = ()
    input: tuple[Kernel, ...] = ()
    """Kernels of B."""
    weight: tuple[Kernel, ...] = ()
    """Kernels of W. Those of BW are those of B and of W."""
    collectives: PerKind = NO_COLLECTIVES
    inputs: tuple[StashedInput, ...] = ()
    """Stashed inputs of matrices; equal ones are a single tensor."""
    stashed_otherwise: float = 0.0
    """Bytes of other tensors that F stashes for the backward."""
    parameters: float = 0.0
    """Parameters of matrices on a rank, without `routed`."""
    routed: float = 0.0
    """Parameters on a rank of experts that a router selects."""
    trained: bool = True
    """Whether its parameters are trained."""
    in_bf16: bool = False
    """Whether its products stay in BF16 in a training of lower precision."""
    adapters: float = 0.0
    """Parameters of low-rank adapters, which are trained."""
    shared: float = 0.0
    """Parameters of another layer to whose gradient it adds."""

    modules: tuple[ModuleCosts, ...] = ()
    """What recomputes on its own."""
    between_exchanges: bool = False
    """Whether it computes experts, between two exchanges of tokens."""
    small_kernels: int = 0
    """Further kernels of F, and as many of B, which take time of the CPU alone."""

    @property
    def stashed(self) -> float:
        """Bytes that F stashes for the backward."""
        return self.stashed_otherwise + sum(tensor.size for tensor in set(self.inputs))

    def __add__(self, addend: LayerPart) -> LayerPart:
        """Both as one part, by the name of the first."""
        return summed(self.name, (self, addend))


NOT_SUMMED = ("name", "trained", "in_bf16", "between_exchanges")
SUMMED = tuple(entry.name for entry in fields(LayerPart) if entry.name not in NOT_SUMMED)
"""Fields of a part that add up."""


def summed(name: str, parts: Sequence[LayerPart]) -> LayerPart:
    """Several parts as one."""
    columns = zip(*map(attrgetter(*SUMMED), parts), strict=True)
    sums = (reduce(add, column) for column in columns)
    return replace(parts[0], name=name, **dict(zip(SUMMED, sums, strict=True)))
