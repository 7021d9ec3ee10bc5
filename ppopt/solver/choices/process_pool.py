"""Searches several configurations at once, each in a process.

Heuristics are Python code, which uses one processor. So a search over configurations with several
workers gives each configuration to a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from ppopt.cancellation import over, seconds_left
from ppopt.solver.child_process import interpreter
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.engines.engine import Ended, Engine, SearchDone, TaskId, run_tasks
from ppopt.solver.engines.local import LocalEngine
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Result

MAX_PROCESSES = 16
"""Maximum number of processes; each needs about 150 MB."""
MIN_WORKERS = 2
"""Minimum workers of a search in a process: with one worker a search would be reproducible, and for
that omits what the clock ends."""
WARM_UP = 1.0
"""Seconds of a search before its processes start: starting one takes about as long."""
MIN_SECONDS = 3.0
"""Minimum number of remaining seconds to start processes."""
GRACE = 2.0
"""Seconds that processes have for their results after a stop; then they are killed."""

Searches = Iterator[tuple[TaskId, SearchTask]]
Receive = Callable[[TaskId, Result], None]


class SearchEngine(LocalEngine):
    """Engine of searches, which end when they are next polled: with a first schedule at least."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs, retries=0, max_starts=2 * jobs)

    def stop(self) -> None:
        """Cut all searches at any bound."""
        for worker in self.workers:
            worker.send(0)


class ProcessPool:
    """The processes of a request, started as soon as the time that is left is worth it."""

    def __init__(self, options: SolveOptions) -> None:
        self._options = options
        self._engine: SearchEngine | None = None
        """None: not started."""

    def engine(self, min_workers: int) -> Engine | None:
        """Engine of several searches at once of so many workers; None: one after the other."""
        workers = self._options.workers
        if workers < 2 * min_workers or over():
            return None
        worthwhile = self._options.spent >= WARM_UP and seconds_left() >= MIN_SECONDS
        if self._engine is None and worthwhile and interpreter() is not None:
            self._engine = SearchEngine(min(workers, MAX_PROCESSES))
        return self._engine if self._at_once(min_workers) > 1 else None

    def _at_once(self, min_workers: int) -> int:
        slots = 0 if self._engine is None else self._engine.slots
        return max(1, min(slots, self._options.workers // min_workers))

    def at_once(self, min_workers: int) -> int:
        """Number of searches at once if each has at least so many workers."""
        return 1 if self.engine(min_workers) is None else self._at_once(min_workers)

    def run(
        self,
        engine: Engine,
        searches: Searches,
        receive: Receive,
        ends: Callable[[], bool] = over,
        min_workers: int = 1,
    ) -> None:
        """Search until none is left, or until `ends()`; each has at least `min_workers` workers.

        Some processes may then have nothing to do. `receive` gets each result; there is none of a
        search whose process died. Raises VerificationError if a search does.
        """

        def take(ended: Ended) -> None:
            for task_id, done in ended:
                if isinstance(done, SearchDone):
                    receive(task_id, done.result)

        at_once = self._options.workers // min_workers
        following = self._detached(searches, min_workers)
        run_tasks(engine, lambda: next(following, None), take, ends, at_once=at_once, grace=GRACE)

    def _detached(self, searches: Searches, min_workers: int) -> Searches:
        """Searches with an equal part of the workers."""
        for task_id, task in searches:
            workers = self._options.workers // self._at_once(min_workers)
            yield task_id, task.detached(max(MIN_WORKERS, workers))

    @contextmanager
    def aside(self, engine: Engine, searches: Searches, receive: Receive) -> Iterator[None]:
        """Search in all processes but one worker's during a block, which ends the searches."""
        try:
            number = min(engine.slots, self._options.workers - 1)
            for task_id, task in islice(self._detached(searches, 1), number):
                engine.submit(task_id, task)
            yield
        finally:
            self.run(engine, iter(()), receive, lambda: True)

    def close(self) -> None:
        """End the processes; a later search may start new ones."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
