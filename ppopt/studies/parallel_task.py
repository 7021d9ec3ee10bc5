"""A combination of a plan over the parallelism as a unit of work, and its state.

A search of a combination runs in this or in another process. Its state is stored, in a study with
one trial for each combination: its plan, its bound, and the seconds of all its searches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import NamedTuple

from ppopt.cancellation import shield, within
from ppopt.errors import InputError, VerificationError
from ppopt.formats.fields import flag
from ppopt.formats.figures import ScheduleFigures
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import gap_of, min_known, plain_or_none
from ppopt.problem.objective import Objective
from ppopt.schedule.schedule import Schedule
from ppopt.solver.engines.engine import ALONE, Done, Link
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Status
from ppopt.solver.search import load_portfolio
from ppopt.studies import outcome, plan_record
from ppopt.studies.first_schedules import FirstRow, best_of_each, first_rows
from ppopt.studies.outcome import PLAN, fraction
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.plan import search_plan_space
from ppopt.studies.plan_result import Plan
from ppopt.studies.plan_space import PlanSpace
from ppopt.studies.records import (
    Check,
    DamagedError,
    StoredResult,
    SweepRow,
    damage,
    one_line,
    packed,
    seconds,
    section_of,
)
from ppopt.studies.storage import Storage, StorageError
from ppopt.versions import version

IMPORT_SHARE = 0.5
"""Maximum share of the seconds of a search to import its methods, once in a process. Without them a
first search improves nothing."""


class CombinationState(NamedTuple):
    """State of a combination; times of a step, in ms."""

    lower_bound: Fraction | None
    """Lower bound of its steps; None: no schedule is within the memory limit."""
    plan: Plan | None = None
    """Best plan, with or without a schedule; None: it was not searched."""
    first: tuple[FirstRow, ...] = ()
    """First schedules before a search, the fastest first."""
    evaluated: bool = False
    """Whether all first schedules were evaluated, not only those that most trainers run."""
    seconds: float = 0.0
    """Total seconds of its searches."""
    exhausted: bool = False
    """Whether the last search ended before its time was up: more time cannot help."""
    known_value: Fraction | None = None
    """Step of another combination that the last search had to beat."""

    @property
    def value(self) -> Fraction | None:
        """Shortest step known."""
        planned = None if self.plan is None else self.plan.value
        return min_known((planned, *(row.step for row in self.first)))

    def after(self, plan: Plan, seconds: float) -> CombinationState:
        """State after a further search: the better plan and the better bound.

        The search has started from the first schedules, the best of which is in the plan.
        """
        bound = self.lower_bound
        if plan.status is Status.INFEASIBLE:
            bound = None
        elif bound is not None and plan.lower_bound is not None:
            bound = max(bound, plan.lower_bound)
        known = None if self.plan is None else self.plan.value
        better = plan.value is not None and (known is None or plan.value < known)
        better_plan = plan if self.plan is None or better else self.plan
        return self._replace(
            lower_bound=bound, plan=better_plan, first=(), seconds=self.seconds + seconds
        )


@dataclass(frozen=True)
class CombinationDone(Done):
    """Outcome of an evaluation or a search of a combination."""

    state: CombinationState | None = None
    result: StoredResult | None = None
    """Result to store; None: the search is not stored."""


@dataclass(frozen=True)
class FirstTask:
    """The evaluation of strategies on a combination; see `steps_of`."""

    space: PlanSpace
    state: CombinationState
    """State with the rows of earlier evaluations."""
    seconds: float | None = None
    """Time limit of the evaluation of further strategies; None: only those that most trainers
    run."""
    workers = 1

    def perform(self, _: Link = ALONE) -> CombinationDone:
        """Evaluate strategies; the outcome includes the known rows."""
        rows, further = [*self.state.first], self.seconds is not None
        try:
            with shield(), within(inf if self.seconds is None else self.seconds) as evaluation:
                rows.extend(first_rows(self.space, further=further))
        except VerificationError as error:
            return CombinationDone(failed=one_line(error))
        evaluated = further and not evaluation.ended
        first = best_of_each(rows)
        return CombinationDone(state=self.state._replace(first=first, evaluated=evaluated))


@dataclass(frozen=True)
class CombinationTask:
    """A search of a combination for a number of seconds, from its best schedule on."""

    space: PlanSpace
    state: CombinationState
    seconds: float
    known_value: Fraction | None
    """Shortest step of all combinations; None: none is known."""
    first_improvement: float
    """Share of the time for improving known schedules before other work; see `PlanSearch`."""
    options: SolveOptions
    """Workers, seed and parameters."""
    key: str | None = None
    """Key of the result to store; None: it is not stored."""

    @property
    def workers(self) -> int:
        """Number of processors that the search uses."""
        return self.options.workers

    def perform(self, link: Link = ALONE) -> CombinationDone:
        """Search the combination."""
        with shield(), within(self.seconds):
            options = self.options.in_scope(link.progress)
        load_portfolio(IMPORT_SHARE * self.seconds)
        batches = self.space.batches[0]
        try:
            plan = search_plan_space(
                self.space,
                Objective.MAKESPAN,
                BackwardKind.MIXED,
                options,
                known_value=None if self.known_value is None else self.known_value / batches,
                starts=_schedules(self.state),
                evaluates=not self.state.evaluated,
                first_improvement=self.first_improvement,
            )
        except (InputError, VerificationError) as error:
            return CombinationDone(failed=one_line(error))
        spent = options.spent
        state = self.state.after(plan, spent)._replace(
            exhausted=spent < self.seconds and not plan.interrupted, known_value=self.known_value
        )
        stored = None if self.key is None else to_record(self.key, state, self.options)
        return CombinationDone(result=stored, state=state, interrupted=plan.interrupted)


def _schedules(state: CombinationState) -> tuple[Schedule, ...]:
    """Schedules known of a combination: first ones, and those of all configurations."""
    rows = () if state.plan is None else state.plan.rows
    first = (row.schedule for row in state.first)
    return (*first, *(row.schedule for row in rows if row.schedule is not None))


def space_text(space: PlanSpace) -> str:
    """Text of all that determines the schedules of a plan space."""
    return repr((
        space.model.layers, space.devices, space.batches, space.placements, space.chunks,
        space.recompute, space.strategies, space.runtime, space.options, space.partition,
        sorted(space.fields.items()),
    ))  # fmt: skip


# Stored, and read back.


def to_record(key: str, state: CombinationState, options: SolveOptions) -> StoredResult:
    """Stored form of a state: the result of its best schedule, and the whole plan."""
    plan = state.plan
    assert plan is not None
    first = plan.rows[0]
    bound, known = state.lower_bound, state.known_value
    document = outcome.to_document(outcome.with_spent_time(first.result))
    document[PLAN] = {
        "lower_bound": None if bound is None else str(bound),
        "seconds": state.seconds,
        "exhausted": state.exhausted,
        "known_value": None if known is None else str(known),
        "plan": plan_record.to_object(plan),
    }
    return StoredResult(
        key=key,
        strategy=first.configuration.strategy,
        status=plan.status,
        closed=plan.status in (Status.OPTIMAL, Status.INFEASIBLE),
        time_limit=state.seconds,
        workers=options.workers,
        seconds=state.seconds,
        version=version(),
        record=packed(document),
    )


def from_record(record: StoredResult, space: PlanSpace, options: SolveOptions) -> CombinationState:
    """State in a stored result; raises DamagedError if it is wrong."""
    with damage("a stored result"):
        checks: dict[str, Check] = {
            "lower_bound": fraction,
            "plan": partial(plan_record.from_object, space=space, options=options),
            "seconds": seconds,
            "exhausted": flag,
            "known_value": fraction,
        }
        state = CombinationState(**section_of(outcome.document(record).get(PLAN), checks))
        if state.value is not None and (
            state.lower_bound is None or state.lower_bound > state.value
        ):
            raise InputError(f"the bound {state.lower_bound} is not below the value {state.value}")
    return state


def figures(state: CombinationState, options: SolveOptions) -> ScheduleFigures:
    """Figures of the best schedule of a combination."""
    plan = state.plan
    assert plan is not None
    first, value, bound = plan.rows[0], state.value, state.lower_bound
    job = plan_record.job_of_configuration(plan.space, first.configuration, options)
    result = replace(outcome.with_spent_time(first.result), solve_seconds=state.seconds)
    return replace(
        outcome.row(job, result),
        status=plan.status.value,
        lower_bound=plain_or_none(bound),
        gap=gap_of(value, bound),
        proof=plan.proof,
    )


class StudyOptions(NamedTuple):
    """Where the combinations of a plan are stored."""

    storage: str
    """URL of the storage."""
    name: str | None = None
    """Name of the study; None: derived from the space."""
    command: str | None = None
    """Command line that requests the plan; it is stored to show how to continue."""


class StorageReport(NamedTuple):
    """Report on the storage of a plan."""

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

    If the storage cannot be written, the plan continues without it.
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
        """Report on the storage so far."""
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
        row_figures = figures(done.state, self._options)
        key = self.keys[combination]
        row = SweepRow(combination._asdict(), row_figures, None, cached=False, key=key)
        try:
            self._storage.finish(self._study, row, done.result)
        except StorageError as error:
            self._not_stored = str(error)


def _digest(content: object) -> str:
    return hashlib.sha256(repr((version(), content)).encode()).hexdigest()
