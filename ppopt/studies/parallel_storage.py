"""The storage of a plan over the parallelism: the state of every combination that was searched."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from ppopt.solver.options import SolveOptions
from ppopt.studies.job import version
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.parallel_task import (
    CombinationDone,
    CombinationState,
    figures,
    from_record,
    space_text,
)
from ppopt.studies.plan_space import PlanSpace
from ppopt.studies.records import DamagedError, SweepRow, one_line
from ppopt.studies.storage import Storage, StorageError


class StudyOptions(NamedTuple):
    """Where the combinations of a plan are stored."""

    storage: str
    """URL of the storage."""
    name: str | None = None
    """Name of the study; None: made from the space."""
    command: str | None = None
    """Command line that requests the plan; it is stored, to tell how to continue."""


class StorageReport(NamedTuple):
    """What became of the storage of a plan."""

    storage: str
    """URL of the storage."""
    study: str
    loaded: int
    """Number of combinations whose state was stored before."""
    not_stored: str | None
    """Why the storage could not be written; None: it was."""
    damaged: tuple[str, ...]
    """Why stored states could not be used; their combinations were searched again."""


class CombinationStorage:
    """Reads and writes the states of combinations; the study has one trial for each.

    If the storage cannot be written, the plan goes on without it.
    """

    def __init__(
        self,
        storage: Storage,
        study: StudyOptions,
        space: ParallelSpace,
        spaces: Mapping[Parallelism, PlanSpace],
        options: SolveOptions,
    ) -> None:
        self._storage, self._spaces, self._options = storage, spaces, options
        texts = {each: space_text(plan_space) for each, plan_space in spaces.items()}
        self.keys = {each: _digest((text, options.seed)) for each, text in texts.items()}
        """Keys of the results: equal for interchangeable ones."""
        base = _digest((space, sorted(self.keys.values())))[:16]
        self.name = study.name or f"plan-{space.architecture.name}-{base[:8]}"
        self._study = storage.study(self.name, base)
        storage.request_rows(self._study, [each._asdict() for each in spaces], study.command)
        self._loaded = 0
        self._not_stored: str | None = None
        self._damaged: list[str] = []

    @property
    def report(self) -> StorageReport:
        """What became of the storage so far."""
        return StorageReport(
            self._storage.url, self.name, self._loaded, self._not_stored, tuple(self._damaged)
        )

    def load(self) -> dict[Parallelism, CombinationState]:
        """Stored states of combinations, checked."""
        states = {}
        for combination, key in self.keys.items():
            try:
                record = self._storage.result(key)
                if record is not None:
                    states[combination] = from_record(
                        record, self._spaces[combination], self._options
                    )
            except DamagedError as error:
                self._damaged.append(one_line(error))
        self._loaded = len(states)
        return states

    def save(self, combination: Parallelism, done: CombinationDone) -> None:
        """Store the state of a combination after a search."""
        if done.state is None or self._not_stored:
            return
        shown = figures(done.state, self._options)
        key = self.keys[combination]
        row = SweepRow(combination._asdict(), shown, None, cached=False, key=key)
        try:
            self._storage.finish(self._study, row, done.result)
        except StorageError as error:
            self._not_stored = str(error)


def _digest(content: object) -> str:
    return hashlib.sha256(repr((version(), content)).encode()).hexdigest()
