"""What operations keep in memory, counted by the storages that they make.

A mode of PyTorch's dispatcher sees every tensor that an operation makes, on any device and in the
threads of the backward too; weak references tell which of them still live. Counted are bytes of
storages: no rounding of an allocator, no workspace inside a kernel. What PyTorch 2.13 does with
them beyond the schedule's operations is counted apart: it allocates buffers for the receives of
all microbatches at once, and keeps what it sends, and the outputs of the last stage, until the
step ends (schedules.py waits for sends there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import StageMemory


class _Made(TorchDispatchMode):
    """Notes the storages that are made while it is entered, by their address."""

    def __init__(self) -> None:
        super().__init__()
        self.references: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        given = set(_storages((args, kwargs)))
        for address, storage in _storages(found).items():
            if address not in given:  # no view, and not in place
                self.references[address] = (StorageWeakRef(storage), storage.nbytes())
        return found

    def alive(self) -> dict[int, int]:
        """Bytes of the storages that still live."""
        return {
            address: size
            for address, (reference, size) in self.references.items()
            if not reference.expired()
        }


class Meter:
    """Memory of the operations of one rank's stages, over one step."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], _Made] = {}
        self._after: dict[tuple[int, int], dict[OpKind, dict[int, int]]] = {}

    def run(self, stage: Any, kind: OpKind, microbatch: int, run: Callable[[], Any]) -> Any:
        """Run an operation, and note what it makes and what lives after it."""
        key = stage.stage_index, microbatch
        made = self._made.setdefault(key, _Made())
        with made:
            found = run()
        own = set(_storages([weight.grad for weight in stage.submod.parameters()]))
        alive = {address: size for address, size in made.alive().items() if address not in own}
        self._after.setdefault(key, {})[kind] = alive
        return found

    def stage_memory(self, stages: Iterable[Any]) -> dict[int, StageMemory]:
        """Memory of the stages that ran a microbatch to its end."""
        found = {}
        for stage in stages:
            ran = [
                after
                for (index, _), after in sorted(self._after.items())
                if index == stage.stage_index and (OpKind.W in after or OpKind.BW in after)
            ]
            if ran:
                found[stage.stage_index] = self._stage_memory(stage, ran)
        return found

    def _stage_memory(
        self, stage: Any, ran: Sequence[Mapping[OpKind, Mapping[int, int]]]
    ) -> StageMemory:
        activation, left = _released(ran[-1])  # the first ones make what is made once
        split = [_change(after) for after in ran if OpKind.B in after]
        weights = sum(2 * w.numel() * w.element_size() for w in stage.submod.parameters())
        per_microbatch = left + self._buffers(stage) // len(ran)
        return StageMemory(activation, weights, per_microbatch, split[-1] if split else None)

    def _buffers(self, stage: Any) -> int:
        """Bytes of the stage's buffers for receives; local neighbours hand over what they made."""
        infos = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
        buffers = _storages([info.buffer for entry in infos for info in entry])
        made = {address for mode in self._made.values() for address in mode.references}
        return sum(s.nbytes() for address, s in buffers.items() if address not in made)


def _released(after: Mapping[OpKind, Mapping[int, int]]) -> tuple[int, int]:
    """Bytes that F takes and the backward gives back, and those that stay until the step ends."""
    end = after[OpKind.W] if OpKind.W in after else after[OpKind.BW]
    taken = sum(size for address, size in after[OpKind.F].items() if address not in end)
    return taken, sum(end.values())


def _change(after: Mapping[OpKind, Mapping[int, int]]) -> int:
    """Signed change by B, of what is gone after W."""
    end = after[OpKind.W]
    before, now = (
        sum(size for address, size in after[kind].items() if address not in end)
        for kind in (OpKind.F, OpKind.B)
    )
    return now - before


def _storages(tree: Any) -> dict[int, Any]:
    found = [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return {storage._cdata: storage for storage in found}
