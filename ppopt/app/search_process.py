"""A search in a process of its own, which ends with the page that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from ppopt.errors import InputError, NotApplicableError, RunError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.choices.process_pool import SearchEngine
from ppopt.solver.engines.engine import Link, SearchDone
from ppopt.solver.result import Progress, Result

POLL = 0.1
"""Maximum seconds between two messages."""
_SEARCH = 0
"""Id of the only task of the engine."""


class Task(NamedTuple):
    """One search."""

    pipeline: Pipeline
    objective: Objective
    backward_kind: BackwardKind
    time_limit: float
    workers: int
    seed: int

    def perform(self, link: Link) -> SearchDone[Result]:
        """Search, until the link ends it."""
        from ppopt.solver.solve import solve  # noqa: PLC0415  in the process of the search

        try:
            result = solve(**self._asdict(), progress=link.progress, stop=link.stop)
            return SearchDone(outcome=result)
        except (InputError, NotApplicableError) as error:
            return SearchDone(outcome=error)


class SearchProcess:
    """A search under way."""

    def __init__(self, task: Task) -> None:
        self._engine = SearchEngine(1)
        self._engine.submit(_SEARCH, task)

    async def messages(self) -> AsyncIterator[Progress | Result | None]:
        """Its progress as it comes, None if there is none yet, and last its result.

        Raises InputError if there is nothing to search, RunError if the process fails.
        """
        while not (ended := await asyncio.to_thread(self._engine.wait, POLL)):
            yield self._engine.states.get(_SEARCH)
        ((_, done),) = ended
        if not isinstance(done, SearchDone):
            raise RunError(f"search: {done.failed}")
        yield done.result

    def stop(self) -> None:
        """Let it end with the best schedule so far."""
        self._engine.stop()

    def close(self) -> None:
        """End the process."""
        self._engine.close()
