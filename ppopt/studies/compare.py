"""Compares every strategy that applies with the optimum, under the same cost model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from ppopt.cancellation import DrivenResult, checkpoint, driven, over, scope, shield
from ppopt.errors import check_type
from ppopt.notebook_view import NotebookView
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.exact import plain, ratio
from ppopt.problem.hosting import Layout
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.metrics import Metrics, communication
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import TIME_LIMIT, SolveOptions, checked_options
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Progress, Result, Status, Stop
from ppopt.solver.search import problem_of
from ppopt.solver.solve import solve_problem
from ppopt.strategies import Options
from ppopt.studies import robustness
from ppopt.studies.baselines import StrategyBatch
from ppopt.studies.current_schedule import can_start_from, current_schedule
from ppopt.studies.evaluate import objective_value
from ppopt.studies.headline import DEFAULT_RUNTIME, BestSchedule, Headline, headline
from ppopt.studies.robustness import Jitter

if TYPE_CHECKING:
    from pandas import DataFrame

CHOICE_SHARE = 0.5
"""Share of the time limit that all strategies together may take to search partition and recompute.
"""
TimedSchedule = tuple[Schedule, float]
"""A schedule and the seconds that it took to make."""


@dataclass(frozen=True)
class ComparisonRow:
    """One row of a comparison: a schedule and its metrics."""

    schedule: Schedule
    seconds: float
    """Time to make the schedule."""
    figures: Metrics
    value: Fraction
    """Objective, in the user's unit of time."""
    fits_limit: bool
    ratio_to_best: float | None
    """Value divided by that of the best row within the limit; None if there is no such row."""
    ratio_to_optimum: float | None
    """Value divided by the optimum of the same placement; None if that is not proved, or 0."""
    optimum_proved: bool
    """Whether the optimum of the same placement is proved."""
    communication: int
    """Activations and gradients sent between devices; see `metrics.communication`."""
    jitter: Jitter | None
    """Objective under random times; None unless requested."""

    def __repr__(self) -> str:
        over = "" if self.fits_limit else ", over the limit"
        return f"ComparisonRow({self.schedule.origin.strategy}: {plain(self.value)}{over})"


@dataclass(frozen=True)
class Comparison(DrivenResult, NotebookView):
    """Result of `ppopt.compare`: rows, searches, and strategies left out."""

    rows: tuple[ComparisonRow, ...]
    """Rows within the limit first, each part by value."""
    optima: tuple[Result, ...]
    """The searches for optimal schedules, that of the pipeline's own placement first; `schedule` of
    one is None if it found none."""
    skipped: tuple[tuple[str, str], ...]
    """Strategies that do not apply, each with the reason."""
    current: Schedule | None = None
    """Schedule that the user runs today; None: none is named, and 1F1B does not apply."""
    runtime: str = DEFAULT_RUNTIME
    """Runtime of the second row of the headline."""

    @property
    def optimum(self) -> Result:
        """The search of the pipeline's own placement."""
        return self.optima[0]

    @property
    def status(self) -> Status:
        """Status of the search of the pipeline's own placement.

        Feasible if that search found nothing, but a strategy of any placement is within the limit.
        """
        any_fits = any(row.fits_limit for row in self.rows)
        unknown = self.optimum.status is Status.UNKNOWN
        return Status.FEASIBLE if unknown and any_fits else self.optimum.status

    @property
    def drawn_schedules(self) -> list[Schedule]:
        """Schedules of all rows, and the current one if it is in no row."""
        schedules = [row.schedule for row in self.rows]
        current = self.current
        if current is None:
            return schedules
        resolved = _with_limits(current)
        is_drawn = any(_with_limits(schedule) == resolved for schedule in schedules)
        return schedules if is_drawn else [*schedules, current]

    def search(self, row: ComparisonRow) -> Result | None:
        """Search that found the schedule of a row; None for a strategy."""
        return next((optimum for optimum in self.optima if optimum.schedule is row.schedule), None)

    @cached_property
    def headline(self) -> Headline:
        """The current schedule, the best row that the runtime runs, and the best row of all."""
        schedules = [row.schedule for row in self.rows if row.fits_limit]
        best = BestSchedule(schedules[0], self._bound_of(schedules[0])) if schedules else None
        return headline(self.current, schedules, best, self.optimum.objective, self.runtime)

    def _bound_of(self, best: Schedule) -> Fraction | None:
        """Lower bound of all placements searched; None if that of the best row is not one.

        A search of some backwards bounds no others, so a strategy may be below it.
        """
        feasible = [search for search in self.optima if search.status is not Status.INFEASIBLE]
        bounds = [search.lower_bound for search in feasible if search.lower_bound is not None]
        if best.pipeline.layout not in [search.pipeline.layout for search in self.optima]:
            return None
        bound = min(bounds, default=None)
        if bound is None or bound > objective_value(best, self.optimum.objective):
            return None
        return bound

    @property
    def baselines(self) -> list[ComparisonRow]:
        """Rows of strategies."""
        return [row for row in self.rows if self.search(row) is None]

    def to_frame(self) -> DataFrame:
        """One row per schedule, in the user's units, as a pandas DataFrame.

        `strategy` is `searched` for the best schedule found. Needs
        pandas (the extra `frame`).
        """
        from pandas import DataFrame  # noqa: PLC0415  optional

        return DataFrame([self._frame_row(row) for row in self.rows])

    def _frame_row(self, row: ComparisonRow) -> dict[str, Any]:
        pipeline, figures = row.schedule.pipeline, row.figures
        return {
            "strategy": row.schedule.origin.strategy,
            "placement": pipeline.resolved_placement,
            "chunks": pipeline.num_chunks,
            "value": plain(row.value),
            "makespan": figures.makespan,
            "bubble_rate": figures.bubble_rate(row.schedule.objective),
            "peak_memory": max(figures.peak_memory),
            "fits_limit": row.fits_limit,
            "ratio_to_best": row.ratio_to_best,
        }

    def __repr__(self) -> str:
        best = next((row for row in self.rows if row.fits_limit), None)
        text = "none fits the limit" if best is None else f"best {best!r}"
        return f"Comparison({len(self.rows)} schedules, {len(self.skipped)} skipped; {text})"

    @property
    def steadiest(self) -> ComparisonRow | None:
        """Row within the limit that degrades least under random times."""
        return min(self._jittered, key=lambda row: _of(row).degradation, default=None)

    @property
    def fragile(self) -> tuple[ComparisonRow, ComparisonRow] | None:
        """Row that is best nominally and row that is best on average; None if they do not differ.

        They differ if their means differ by more than twice the standard error of the difference.
        """
        if not self._jittered:
            return None
        best = min(self._jittered, key=lambda row: row.value)
        rival = min(self._jittered, key=lambda row: _of(row).mean)
        apart = _of(best).mean - _of(rival).mean
        error = math.hypot(_of(best).standard_error, _of(rival).standard_error)
        return (best, rival) if apart > 2 * error else None

    @property
    def _jittered(self) -> list[ComparisonRow]:
        return [row for row in self.rows if row.jitter is not None and row.fits_limit]


@driven
def compare(
    pipeline: Pipeline,
    *,
    also: Sequence[Pipeline] = (),
    strategies: Collection[str] | None = None,
    current: Schedule | str | None = None,
    runtime: str = DEFAULT_RUNTIME,
    mem_limit: Any = None,
    placement: str | Sequence[str] | None = None,
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    options: Options | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    hint: Schedule | None = None,
    jitter: float | None = None,
    progress: Callable[[Progress | str], None] | None = None,
    stop: Stop | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
) -> Comparison:
    """Compare strategies with the best schedule found.

    Every strategy has its own chunks and placement. The best schedule is searched for the
    pipeline's own placement and limit, and for every pipeline of `also`: the same with another
    placement. `placement` names placements to search instead of the pipeline's own, as a list or as
    on the command line: `linear,v`. `strategies` names the strategies to evaluate; None: all. The
    other arguments are those of `ppopt.solve`, with `options` of strategies (`ppopt.Options`).
    `hint` is for the search of the pipeline's own placement; `stop` is asked in every search.

    `current` and `runtime` are for `Comparison.headline`: what the user runs today, as in
    `ppopt.plan`, and the trainer: `torch`, `megatron` or `primus`.

    If the pipeline leaves its partition or recompute open, every strategy has the best found for it
    (`ppopt.best_choice`), and so has the optimum. `time_limit` seconds, from `began` (of
    `time.monotonic`) or else from now, cover all searches together, including those for strategies
    (at most `CHOICE_SHARE` of the limit). Strategies for which no time is left are skipped, but for
    the first that applies. Ctrl-C ends all of these, and keeps the rows that are done. With
    `jitter` every order also runs under random times of that relative standard deviation
    (`ppopt.studies.robustness`). Raises InputError on misuse, and if the placement is open.
    """
    check_type("pipeline", pipeline, Pipeline)
    request = checked_options(time_limit, workers, seed, stop=stop, params=params, began=began)
    pipelines = [_limited(each, mem_limit) for each in (*_placed(pipeline, placement), *also)]
    kind, tell = BackwardKind.read(backward_kind), progress or (lambda _: None)
    comparing = _Comparing(pipelines, Objective(objective), kind, request, tell, jitter)
    own = current_schedule(current, pipelines[0], comparing.objective, options)
    evaluated, skipped = comparing.evaluate(strategies, options or Options())
    starts = [schedule for schedule, _ in evaluated]
    optima = comparing.search(starts, hint, None if current is None else own)
    return Comparison(
        comparing.rows(evaluated, optima), tuple(optima.values()), skipped, own, runtime
    )


@dataclass(frozen=True)
class _Comparing:
    """The steps of a comparison; each ends with its time, or with Ctrl-C."""

    pipelines: Sequence[Pipeline]
    """Pipelines to search, which differ in placement; strategies are evaluated on the first."""
    objective: Objective
    kind: BackwardKind
    request: SolveOptions
    tell: Callable[[Progress | str], None]
    deviation: float | None
    """Relative standard deviation of random times; None: there are none."""

    def __post_init__(self) -> None:
        for pipeline in self.pipelines:
            pipeline.refuse_open(Decisions.PLACEMENT, "compare")
        if self.deviation is not None:
            robustness.check_deviation(self.deviation)

    def evaluate(
        self, names: Collection[str] | None, options: Options
    ) -> tuple[list[TimedSchedule], tuple[tuple[str, str], ...]]:
        """Schedules of the strategies, and the skipped strategies, each with the reason."""
        seconds = CHOICE_SHARE * self.request.time_limit - self.request.spent
        with self.request.scope():
            batch = StrategyBatch(self.pipelines[:1], self.objective, options, self.kind, names)
            batch.evaluate(self.tell, search_seconds=seconds, at_least_one=True)
        return batch.schedules, batch.skipped

    def search(
        self, schedules: Sequence[Schedule], hint: Schedule | None, current: Schedule | None
    ) -> dict[Layout, Result]:
        """Search every pipeline, each for an equal part of the time left.

        If partition, recompute or order is open, a search starts from the best strategy of its
        placement, for which they were searched, too, so that no such row is better than the optimum
        found. After Ctrl-C, which ends a search at once, every search starts from the best
        strategy. The search of its placement also starts from `current`, unless that is over the
        limits. `hint` is for the first search.
        """
        problems = {
            each.layout: problem_of(each, self.objective, self.kind) for each in self.pipelines
        }
        results: dict[Layout, Result] = {}
        with scope(inf):
            for (layout, problem), turn in self.request.turns(list(problems.items())):
                place = f"placement {len(results) + 1} of {len(problems)}, "
                own = self._told_at(turn, place if len(problems) > 1 else "")
                requested = None if results else hint
                start = requested or _start(problem, schedules, current)
                with shield():
                    results[layout] = solve_problem(
                        problem, own, start, optional_hint=requested is None
                    )
                checkpoint()
        return results

    def _told_at(self, options: SolveOptions, place: str) -> SolveOptions:
        """The options of a search, with progress whose phases begin with a text."""
        return replace(
            options, progress=lambda state: self.tell(state._replace(phase=place + state.phase))
        )

    def rows(
        self, evaluated: Sequence[TimedSchedule], optima: Mapping[Layout, Result]
    ) -> tuple[ComparisonRow, ...]:
        """Rows of all schedules, with random times if requested: after Ctrl-C not of all."""
        searched = [
            (optimum.schedule, optimum.solve_seconds)
            for optimum in optima.values()
            if optimum.schedule is not None
        ]
        rows = _rows([*searched, *evaluated], self.objective, optima)
        if self.deviation is None:
            return rows
        done = list(rows)
        with scope(inf):
            for index, row in enumerate(rows):
                checkpoint()
                self.tell(f"random times: {row.schedule.origin.strategy}")
                jitter = robustness.jitter(
                    row.schedule, self.deviation, self.objective, seed=self.request.seed
                )
                done[index] = replace(row, jitter=jitter)
        return tuple(done)


def _with_limits(schedule: Schedule) -> Schedule:
    """The schedule with the limits of its devices as numbers, also where they are those of 1F1B."""
    pipeline = schedule.pipeline
    return replace(schedule, pipeline=pipeline.having(mem_limit=pipeline.limits))


def _limited(pipeline: Pipeline, mem_limit: Any) -> Pipeline:
    """Pipeline with a limit that is the same for every partition."""
    if mem_limit is not None:
        pipeline = replace(pipeline, mem_limit=mem_limit)
    if pipeline.open_decisions & Decisions.OF_STRATEGY and pipeline.limits is not None:
        pipeline = pipeline.having(mem_limit=pipeline.limits)
    return pipeline


def _start(
    problem: Problem, schedules: Sequence[Schedule], current: Schedule | None
) -> Schedule | None:
    """Best schedule within the limits and with the placement of a search, from which it starts."""
    pipeline = problem.pipeline
    decisions = pipeline.open_decisions & (Decisions.OF_STRATEGY | Decisions.ORDER)
    if not (decisions or over()):
        schedules = []
    if current is not None and can_start_from(current):
        schedules = [*schedules, current]
    starts = [
        schedule
        for schedule in schedules
        if schedule.pipeline.layout == pipeline.layout and schedule.fits_limits
    ]
    objective = problem.objective
    return min(starts, key=lambda schedule: objective_value(schedule, objective), default=None)


def _rows(
    evaluated: Sequence[TimedSchedule], objective: Objective, optima: Mapping[Layout, Result]
) -> tuple[ComparisonRow, ...]:
    rows = [_row(timed, objective, optima.get(timed[0].pipeline.layout)) for timed in evaluated]
    fitting = [row.value for row in rows if row.fits_limit]
    best = min(fitting, default=None)
    rated = [replace(row, ratio_to_best=ratio(row.value, best) if best else None) for row in rows]
    return tuple(sorted(rated, key=lambda row: (not row.fits_limit, row.value)))


def _row(timed: TimedSchedule, objective: Objective, optimum: Result | None) -> ComparisonRow:
    schedule, seconds = timed
    value = objective_value(schedule, objective)
    proved = optimum is not None and optimum.status is Status.OPTIMAL
    reference = optimum.value if optimum is not None and proved else None
    return ComparisonRow(
        schedule=schedule,
        seconds=seconds,
        figures=schedule.metrics,
        value=value,
        fits_limit=schedule.fits_limits,
        ratio_to_best=None,
        ratio_to_optimum=ratio(value, reference) if reference else None,
        optimum_proved=proved,
        communication=communication(schedule.pipeline),
        jitter=None,
    )


def _of(row: ComparisonRow) -> Jitter:
    assert row.jitter is not None
    return row.jitter


def _placed(pipeline: Pipeline, placement: str | Sequence[str] | None) -> Iterator[Pipeline]:
    """Pipeline in every placement that is named; in its own if none is."""
    if placement is None:
        yield pipeline
        return
    names = placement.split(",") if isinstance(placement, str) else placement
    for name in (word.strip() for word in names):
        chunks = None if name == "linear" else pipeline.chunks
        yield replace(pipeline, placement=name, chunks=chunks)
