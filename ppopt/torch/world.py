"""A process group on this machine, one worker process per device: gloo, or NCCL on GPUs."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any

from ppopt.errors import InputError, RunError

PATIENCE = 120.0
"""Default limit in seconds for a job, and for ranks that wait for each other."""
_MAX_FRAMES, _MAX_CHARACTERS = 8, 4000
"""Limits of the traceback that is reported for a rank."""
MAX_RANKS = 64
"""Limit of processes; each takes about 200 MB."""


class World:
    """A process group of `size` worker processes that run one job after the other.

        with World(4) as world:
            results = world.run(job, [arguments of rank 0, ...])

    The processes start in the background; the first job waits for them. A job is a module-level
    function, called on every rank as `job(rank, *arguments)`. Its results are returned in the order
    of the ranks. An InputError of a rank is raised here. If a rank fails otherwise or takes longer
    than `patience` seconds, RunError is raised with the rank's traceback. Either ends all
    processes.
    """

    def __init__(self, size: int, patience: float = PATIENCE, accelerator: str = "cpu") -> None:
        if not 1 <= size <= MAX_RANKS:
            raise InputError(f"run: {size} processes; from 1 to {MAX_RANKS} can be started here")
        if accelerator not in ("cpu", "cuda"):
            raise InputError(f"device: {accelerator} is unknown; use cpu or cuda")
        if accelerator == "cuda":
            _check_gpus(size)
        self.size = size
        self.accelerator = accelerator
        """`cpu`, or `cuda`: rank r has GPU r."""
        self.patience = patience
        """Limit in seconds for a job."""
        self._folder = tempfile.TemporaryDirectory(prefix="ppopt-")
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._ready = False

    def device(self, rank: int) -> str:
        """PyTorch's name of the device of a rank."""
        return "cpu" if self.accelerator == "cpu" else f"{self.accelerator}:{rank}"

    def __enter__(self) -> World:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "ppopt.torch.execution"])
        _start_server()
        try:
            for rank in range(self.size):
                self._start(context, rank)
        except BaseException:
            self._end()
            self._folder.cleanup()
            raise
        return self

    def _start(self, context: Any, rank: int) -> None:
        ours, theirs = context.Pipe()
        store = str(Path(self._folder.name) / "store")
        arguments = (rank, self.size, store, theirs, self.patience, self.device(rank))
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._send([None] * self.size)
        else:
            self._end()
        for process in self._processes:
            process.join(timeout=10)
        self._end()
        self._folder.cleanup()

    def run(self, job: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a job on every rank and wait for all results."""
        if not self._ready:
            self._collect()
            self._ready = True
        self._send([(job, tuple(values)) for values in arguments])
        return self._collect()

    def _send(self, messages: Sequence[object]) -> None:
        for pipe, message in zip(self._pipes, messages, strict=True):
            try:
                pipe.send(message)
            except OSError:
                continue

    def _collect(self) -> list[Any]:
        """Receive one answer from every rank; end all processes on the first failure."""
        answers: list[Any] = [None] * self.size
        waiting = dict(enumerate(self._pipes))
        until = monotonic() + self.patience
        while waiting:
            ready = multiprocessing.connection.wait(waiting.values(), until - monotonic())
            if not ready:
                self._end()
                raise RunError(f"rank {min(waiting)} has not answered in {self.patience:g} s")
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                answers[rank] = self._answer(rank)
                del waiting[rank]
        return answers

    def _answer(self, rank: int) -> Any:
        try:
            failure, result = self._pipes[rank].recv()
        except EOFError:
            failure, result = "its process ended", None
        if isinstance(failure, InputError):
            self._end()
            raise failure
        if failure is not None:
            self._end()
            raise RunError(f"rank {rank}: {failure}")
        return result

    def _end(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.terminate()


def _start_server() -> None:
    """Start the process that ranks are forked from, with Ctrl-C blocked in it and in the ranks.

    A new process inherits the blocked signals, so only the parent handles Ctrl-C.
    """
    resource_tracker.ensure_running()  # first, as it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this process when its parent ends, even if it is waiting.

    A parent that was interrupted while it started this process does not know of it.
    """
    _join_parent()
    os._exit(1)


def _join_parent(seconds: float | None = None) -> bool:
    """Wait for the parent to end; return whether it did."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join(seconds)
    return not parent.is_alive()


def _check_gpus(ranks: int) -> None:
    """Raise InputError unless there is a GPU for every rank: NCCL refuses two ranks on one."""
    import torch  # noqa: PLC0415  not needed without a GPU

    num_gpus = torch.cuda.device_count()
    if num_gpus < ranks:
        raise InputError(
            f"device: {ranks} ranks need as many GPUs, PyTorch sees {num_gpus}; use --device cpu, "
            "or start one process per GPU with torchrun and ppopt.torch.runtime"
        )


def _serve(
    rank: int, size: int, store: str, pipe: Connection, patience: float, device: str
) -> None:
    """Join the process group, then run jobs until None is received."""
    if _join_parent(0):
        return  # PyTorch would wait for the folder of the store, holding the GIL
    Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(2, 1)  # stdout is for the command's result, not for what a model prints
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    import torch  # noqa: PLC0415  not needed in the parent
    from torch import distributed  # noqa: PLC0415

    torch.set_num_threads(1)
    try:
        gpu = None if device == "cpu" else torch.device(device)
        if gpu is not None:
            torch.cuda.set_device(gpu)
        distributed.init_process_group(
            "gloo" if gpu is None else "nccl",
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience),
            device_id=gpu,
        )
        pipe.send((None, None))
        while (message := pipe.recv()) is not None:
            job, arguments = message
            pipe.send((None, job(rank, *arguments)))
    except EOFError:
        pass
    except InputError as error:
        pipe.send((error, None))
    except Exception:
        pipe.send((traceback.format_exc(limit=-_MAX_FRAMES)[-_MAX_CHARACTERS:], None))
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
