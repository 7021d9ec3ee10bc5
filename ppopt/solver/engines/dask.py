"""Runs tasks on a cluster by Dask's `distributed` (the extra `dask`).

A task is submitted under a key of its content, so that a scheduler that already has it does not run
it twice. If a worker dies, Dask reassigns its task to another worker; after `allowed-failures`
deaths (3 by default) the row has failed. Workers need ppopt in the same version, and nothing else:
the process that started the sweep writes the storage.

Start workers with one thread each, or with as many as a search uses, declared as a resource: `dask
worker ADDRESS --nthreads 4 --resources threads=4`.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ppopt.errors import InputError
from ppopt.solver.engines.engine import (
    ALONE,
    STOPPED,
    Done,
    Ended,
    Engine,
    TaskId,
    TaskProtocol,
)
from ppopt.versions import version

if TYPE_CHECKING:
    from distributed import Client, Future

RESOURCE = "threads"
"""Dask resource: a search needs one unit per worker thread, if the machines declare it."""
MIN_SUBMITTED = 16
"""Minimum number of submitted tasks, for a cluster whose workers have not started yet."""
LOOK = 5.0
"""Seconds between two checks of the size of the cluster."""
FETCH = 5.0
"""Seconds that the result of an ended task may take to arrive."""
PAUSE = 0.005
"""Seconds between two checks for ended tasks."""


def connect(
    address: str | None = None, scheduler_file: str | None = None, seconds: float = 20
) -> Client:
    """Connect to a running scheduler within `seconds`; raises InputError if none answers."""
    try:
        from distributed import Client  # noqa: PLC0415  an extra, slow to load
    except ImportError:
        raise InputError(
            "dask: needs distributed; install it with `pip install 'ppopt-pipeline[dask]'`"
        ) from None
    where = address or scheduler_file
    if scheduler_file is not None and not Path(scheduler_file).is_file():
        raise InputError(f"dask: there is no scheduler file {scheduler_file}; start the scheduler")
    try:
        return Client(address, scheduler_file=scheduler_file, set_as_default=False, timeout=seconds)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"dask: no scheduler answers at {where}: {error}") from None


class DaskEngine(Engine):
    """Engine that runs tasks on the cluster of a client, and leaves the client open.

    A task that raises an unexpected exception is retried `retries` times.
    """

    ahead = 3
    """Workers fetch the next task ahead of time."""

    def __init__(self, client: Client, retries: int) -> None:
        from distributed import as_completed  # noqa: PLC0415  an extra, slow to load

        self._client, self._retries = client, retries
        self._ended = as_completed(loop=client.loop, raise_errors=False)
        self._task_ids: dict[Future, TaskId] = {}
        self._version = version()
        self._next_look = time.monotonic()
        self._slots = 0
        self._declared = False

    @property
    def busy(self) -> int:
        """Number of tasks submitted and not returned."""
        return len(self._task_ids)

    @property
    def free(self) -> int:
        """Number of tasks that it can accept now."""
        return max(super().free, MIN_SUBMITTED - self.busy)

    @property
    def slots(self) -> int:
        """Number of threads of the cluster, or 1 while it has none."""
        self._look()
        return max(1, self._slots)

    def _look(self) -> None:
        """Update the size of the cluster every `LOOK` seconds: workers come and go."""
        if self._next_look > time.monotonic():
            return
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        self._slots = sum(worker["nthreads"] for worker in workers)
        self._declared = any(RESOURCE in worker["resources"] for worker in workers)
        self._next_look = time.monotonic() + LOOK

    def submit(self, task_id: TaskId, task: TaskProtocol) -> None:
        """Submit a task, under a key of everything that its result depends on."""
        digest = hashlib.sha256(pickle.dumps((self._version, task))).hexdigest()
        future = self._client.submit(
            _perform,
            task,
            key=f"ppopt-{digest}",
            pure=True,
            retries=self._retries,
            resources={RESOURCE: task.workers} if self._declared else None,
        )
        self._task_ids[future] = task_id
        self._ended.add(future)

    def wait(self, seconds: float) -> Ended:
        """Return outcomes of ended tasks; waits for the first, at most `seconds`."""
        end = time.monotonic() + seconds
        while not self._ended.has_ready():
            if time.monotonic() >= end:
                return []
            time.sleep(PAUSE)
        ended = []
        for future in self._ended.next_batch(block=False):
            done = self._done(future)
            if done is None:
                self._ended.add(future)
            elif future in self._task_ids:
                ended.append((self._task_ids.pop(future), done))
        return ended

    def _done(self, future: Future) -> Done | None:
        """Outcome of a task; None if it was lost with its worker and is run again."""
        if future.status == "error":
            return Done(failed=_cause(future.exception()))
        if future.status == "cancelled":
            return STOPPED
        try:
            done: Done = future.result(timeout=FETCH)
            theirs = done.version
        except TimeoutError:
            return None
        except Exception as error:
            return Done(failed=_cause(error))
        if theirs != self._version:
            return Done(failed=f"its worker has ppopt {theirs}, not {self._version} as here")
        return done

    def stop(self) -> None:
        """Cancel unfinished tasks: a search in a Dask thread cannot be ended."""
        self._client.cancel(list(self._task_ids), force=True)

    def drop(self) -> None:
        """Cancel and discard all tasks."""
        self._client.cancel(list(self._task_ids), force=True)
        self._task_ids.clear()


def _perform(task: TaskProtocol) -> Done:
    """Run a task on a worker."""
    return task.perform(ALONE)


def _cause(error: BaseException) -> str:
    """Reason for a missing result, in one line."""
    if type(error).__name__ == "KilledWorker":
        return "its workers died, each time it was tried"
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
