"""Tasks on a cluster, by Dask's `distributed` (the extra `dask`).

A task is submitted under a key of its content, so that a scheduler that has it already does not do
it twice. A worker that dies takes its task with it: Dask gives the task to another, and after its
`allowed-failures` (3 by default) the row has failed. Workers need ppopt in the same version, and
nothing else: the storage is written where the sweep was started.

Start workers with one thread each, or with as many as searches shall take, declared as a resource:
`dask worker ADDRESS --nthreads 4 --resources threads=4`.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ppopt.errors import InputError
from ppopt.solver.deadline import Deadline
from ppopt.studies.engines.engine import STOPPED
from ppopt.studies.job import version
from ppopt.studies.task import Done, Task, perform

if TYPE_CHECKING:
    from distributed import Client, Future

RESOURCE = "threads"
"""The resource that a search takes one of per worker of its own, where machines declare it."""
AHEAD = 3
"""Tasks that the scheduler has per thread of the cluster: workers fetch the next ahead of time."""
LEAST = 16
"""The same for a cluster whose workers are still to come."""
LOOK = 5.0
"""Seconds between two looks at the size of the cluster."""
FETCH = 5.0
"""Seconds that the result of a task that has ended may take to arrive."""
PAUSE = 0.005
"""Seconds between two looks at what has ended."""


def connect(
    address: str | None = None, scheduler_file: str | None = None, seconds: float = 20
) -> Client:
    """A client of a running scheduler, which has so long to answer; raises InputError."""
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


class DaskEngine:
    """Tasks on the cluster of a client, which stays open.

    A task that raises what it should not is tried again `retries` times.
    """

    def __init__(self, client: Client, retries: int) -> None:
        from distributed import as_completed  # noqa: PLC0415  an extra, slow to load

        self._client, self._retries = client, retries
        self._ended = as_completed(loop=client.loop, raise_errors=False)
        self._numbers: dict[Future, int] = {}
        self._version = version()
        self._next_look = Deadline.after(0.0)
        self._slots = 0
        self._declared = False

    @property
    def busy(self) -> int:
        """How many tasks it has that have not come back."""
        return len(self._numbers)

    @property
    def free(self) -> int:
        """How many more tasks it takes now."""
        self._look()
        return max(LEAST, AHEAD * self._slots) - self.busy

    def _look(self) -> None:
        """See how large the cluster is, now and then: workers come and go."""
        if not self._next_look.over:
            return
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        self._slots = sum(worker["nthreads"] for worker in workers)
        self._declared = any(RESOURCE in worker["resources"] for worker in workers)
        self._next_look = Deadline.after(LOOK)

    def submit(self, number: int, task: Task) -> None:
        """Hand over a task, under a key of all that its figures depend on."""
        job = task.job
        digest = hashlib.sha256(
            repr((job.key, job, job.pipeline.spelled_out())).encode()
        ).hexdigest()
        future = self._client.submit(
            perform,
            task,
            key=f"ppopt-{digest}",
            pure=True,
            retries=self._retries,
            resources={RESOURCE: job.workers} if self._declared else None,
        )
        self._numbers[future] = number
        self._ended.add(future)

    def wait(self, seconds: float) -> list[tuple[int, Done]]:
        """Tasks that have ended, by their numbers; waits for the first, at most so long."""
        deadline = Deadline.after(seconds)
        while not self._ended.has_ready():
            if deadline.over:
                return []
            time.sleep(PAUSE)
        found = []
        for future in self._ended.next_batch(block=False):
            done = self._done(future)
            if done is None:
                self._ended.add(future)
            else:
                found.append((self._numbers.pop(future), done))
        return found

    def _done(self, future: Future) -> Done | None:
        """What a task came to; None where that was lost with its worker, and is done again."""
        if future.status == "error":
            return Done(failed=_cause(future.exception()))
        if future.status == "cancelled":
            return STOPPED
        try:
            done: Done = future.result(timeout=FETCH)
        except TimeoutError:
            return None
        except Exception as error:
            return Done(failed=_cause(error))
        if done.result is not None and done.result.version != self._version:
            theirs = done.result.version
            return Done(failed=f"its worker has ppopt {theirs}, not {self._version} as here")
        return done

    def stop(self) -> None:
        """Give up what has not come back: a search in a thread cannot be ended."""
        self._client.cancel(list(self._numbers), force=True)

    def close(self) -> None:
        """Forget all tasks."""
        self._client.cancel(list(self._numbers), force=True)
        self._numbers.clear()


def _cause(error: BaseException) -> str:
    """Why there is no result, in one line."""
    if type(error).__name__ == "KilledWorker":
        return "its workers died, each time it was tried"
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
