"""Measures the live memory of operations: the storages that they allocate and that stay alive.

A `TorchDispatchMode` sees every tensor that an operation creates, on any device and in the threads
of the backward too. Weak references tell which of them are still alive. Sizes are bytes of
storages, without the allocator's rounding and without workspace inside kernels.

Compiled code does not run under such a mode: `torch.compile` falls back to eager there, and with
`fullgraph=True` it raises an error. A stage whose graph of the backward has a node of compiled code
is measured without the mode: what its F keeps are its outputs and what the nodes of the graph saved
(`backward_graph`).

The loss belongs to the forward before it: memory that the loss saves for the backward counts for F.

PyTorch also has memory that belongs to no single operation, which is counted separately. It
allocates the receive buffers of all microbatches at once. It frees sent tensors and the outputs of
the last stage only at the end of the step (schedules.py waits for sends there).
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
from ppopt.torch.backward_graph import (
    adds_compiled_nodes,
    has_compiled_nodes,
    is_compiled,
    saved_tensors,
)


class _StorageTracker(TorchDispatchMode):
    """Records the storages that are allocated while it is entered, by address."""

    def __init__(self) -> None:
        super().__init__()
        self.references: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        input_addresses = set(_storages((args, kwargs)))
        for address, storage in _storages(output).items():
            if address not in input_addresses:  # neither a view nor an in-place operation
                self.references[address] = (StorageWeakRef(storage), storage.nbytes())
        return output

    def add(self, storages: Mapping[int, Any]) -> None:
        """Record storages that were not allocated under this mode."""
        for address, storage in storages.items():
            self.references[address] = (StorageWeakRef(storage), storage.nbytes())

    def alive(self) -> dict[int, int]:
        """Bytes of every storage that is still alive, by address."""
        return {
            address: size
            for address, (reference, size) in self.references.items()
            if not reference.expired()
        }


class MemoryMeter:
    """Measures the memory of the operations of one rank's stages over one step."""

    def __init__(self) -> None:
        self._trackers: dict[tuple[int, int], _StorageTracker] = {}
        self._after: dict[tuple[int, int], dict[OpKind, dict[int, int]]] = {}
        self._compiled: dict[int, bool] = {}
        """Stage -> whether its graph has nodes of compiled code."""
        self._first: dict[int, int] = {}
        """Per stage that is not compiled, the microbatch that showed it, which is not measured."""
        self._loss_is_compiled: bool | None = None
        """None: no loss was computed yet."""
        self._without_loss: dict[int, dict[int, int]] = {}
        """Per microbatch, the live storages after F of the last stage, before its loss."""

    def run(self, stage: Any, kind: OpKind, microbatch: int, run: Callable[[], Any]) -> Any:
        """Run an operation; record its allocations, and which of them are alive after it.

        The first forward of a stage shows whether it is compiled. If it is not, its microbatch is
        not measured, unless it is the only one.
        """
        index = stage.stage_index
        tracker = self._trackers.setdefault((index, microbatch), _StorageTracker())
        if index not in self._compiled and (stage.chunks == 1 or is_compiled(stage.submod)):
            self._compiled[index] = is_compiled(stage.submod)
        if self._compiled.get(index) is False and microbatch != self._first.get(index):
            with tracker:
                output = run()
        else:
            output = run()
            if index not in self._compiled:
                self._compiled[index] = has_compiled_nodes(output)
                if not self._compiled[index]:
                    self._first[index] = microbatch
            outputs = output if kind is OpKind.F else stage.bwd_cache.get(microbatch)
            tracker.add(
                _saved_by_graph(stage, outputs) if self._compiled[index] else _storages(outputs)
            )
        if microbatch != self._first.get(index):
            self._after.setdefault((index, microbatch), {})[kind] = _alive(stage, tracker)
        return output

    def run_loss(
        self, stage: Any, microbatch: int, arguments: Sequence[Any], run: Callable[[], Any]
    ) -> Any:
        """Run the loss of a microbatch, which F of the last stage ran before.

        `arguments` are those of the loss. The first loss shows whether it is compiled; it is
        measured like a compiled one.
        """
        index = stage.stage_index
        tracker = self._trackers[index, microbatch]
        if self._loss_is_compiled is False:
            with tracker:
                loss = run()
        else:
            loss = run()
            self._loss_is_compiled = adds_compiled_nodes(loss, arguments)
            known = _storages([arguments, list(saved_tensors(arguments))])
            saved = _storages([loss, list(saved_tensors(loss))])
            tracker.add({key: storage for key, storage in saved.items() if key not in known})
        after = self._after.get((index, microbatch))
        if after is not None:
            self._without_loss[microbatch] = after[OpKind.F]
            after[OpKind.F] = _alive(stage, tracker)
        return loss

    def stage_memory(self, stages: Iterable[Any]) -> dict[int, StageMemory]:
        """Memory of the stages that completed a microbatch."""
        sizes = {}
        for stage in stages:
            ran = {
                microbatch: after
                for (index, microbatch), after in sorted(self._after.items())
                if index == stage.stage_index and (OpKind.W in after or OpKind.BW in after)
            }
            if ran:
                sizes[stage.stage_index] = self._stage_memory(stage, ran)
        return sizes

    def _stage_memory(
        self, stage: Any, ran: Mapping[int, Mapping[OpKind, Mapping[int, int]]]
    ) -> StageMemory:
        last = max(ran)  # the first microbatches include one-time allocations
        activation, retained = _released(ran[last])
        split = [_change(after) for after in ran.values() if OpKind.B in after]
        weights = sum(2 * w.numel() * w.element_size() for w in stage.submod.parameters())
        per_microbatch = retained + self._buffers(stage) // stage.chunks
        memory_b = split[-1] if split else None
        loss = 0
        if stage.is_last and last in self._without_loss:
            loss = activation - _released({**ran[last], OpKind.F: self._without_loss[last]})[0]
        return StageMemory(activation, weights, per_microbatch, memory_b, loss)

    def _buffers(self, stage: Any) -> int:
        """Bytes of the stage's receive buffers, without tensors handed over on the same rank."""
        buffers = _storages([_receive_buffers(stage.args_recv_info, stage.grad_recv_info)])
        allocated = {
            address for tracker in self._trackers.values() for address in tracker.references
        }
        return sum(s.nbytes() for address, s in buffers.items() if address not in allocated)


def _receive_buffers(*directions: Mapping[int, Iterable[Any]]) -> list[Any]:
    """The buffers of all receives.

    The first stage receives nothing: its entries, for the inputs of the model, have no buffer
    (None, or before PyTorch 2.12 no such attribute).
    """
    return [
        getattr(info, "buffer", None)
        for by_microbatch in directions
        for infos in by_microbatch.values()
        for info in infos
    ]


def _alive(stage: Any, tracker: _StorageTracker) -> dict[int, int]:
    """The tracked storages that are still alive, without gradients of weights."""
    grads = set(_storages([weight.grad for weight in stage.submod.parameters()]))
    return {address: size for address, size in tracker.alive().items() if address not in grads}


def _released(after: Mapping[OpKind, Mapping[int, int]]) -> tuple[int, int]:
    """Bytes that F allocates and the backward frees, and bytes freed at the end of the step."""
    end = after[OpKind.W] if OpKind.W in after else after[OpKind.BW]
    taken = sum(size for address, size in after[OpKind.F].items() if address not in end)
    return taken, sum(end.values())


def _change(after: Mapping[OpKind, Mapping[int, int]]) -> int:
    """Signed change by B of the bytes that W frees."""
    end = after[OpKind.W]
    before, now = (
        sum(size for address, size in after[kind].items() if address not in end)
        for kind in (OpKind.F, OpKind.B)
    )
    return now - before


def _saved_by_graph(stage: Any, tensors: Any) -> dict[int, Any]:
    """Storages of tensors and of those saved for their backward, without weights and inputs."""
    received = _receive_buffers(stage.args_recv_info)
    known = _storages([*stage.submod.parameters(), *stage.submod.buffers(), *received])
    for _, inputs in stage.fwd_cache.values():
        known |= _storages(inputs)
    storages = _storages([tensors, list(saved_tensors(tensors))])
    return {address: storage for address, storage in storages.items() if address not in known}


def _storages(tree: Any) -> dict[int, Any]:
    storages = [
        leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)
    ]
    return {storage._cdata: storage for storage in storages}
