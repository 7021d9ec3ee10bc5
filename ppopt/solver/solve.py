"""`ppopt.solve`: finds the best schedule, with the open decisions of the pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ppopt.cancellation import driven
from ppopt.errors import InputError, check_type
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.origin import HintRecord
from ppopt.schedule.schedule import Schedule
from ppopt.solver import warm_start as warm_starts
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import proof_scope
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.heuristics.first_schedules import USUAL, FirstSchedules
from ppopt.solver.options import TIME_LIMIT, SolveOptions, checked_options
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Callback, Result, Stop
from ppopt.solver.search import problem_of, search_from
from ppopt.solver.warm_start import WarmStart


@driven
def solve(
    pipeline: Pipeline,
    *,
    mem_limit: Any = None,
    placement: str | None = None,
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    hint: Schedule | None = None,
    progress: Callback | None = None,
    stop: Stop | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
) -> Result:
    """Search for the schedule with the minimum makespan or device span within the memory limits.

    Starts are whole ticks: the unit of time is divided so that all times are integers. Other starts
    gain nothing for makespan, and less than a tick for device span. The search space contains any
    order on every device. Every stage and microbatch has either BW or B and W (`backward_kind`
    mixed, the default), B and W (split), or BW (whole).

    `mem_limit` replaces the limit of the pipeline. `time_limit` is in seconds, from
    `began` (of `time.monotonic`) or else from now. `workers` defaults to the processors available;
    with more than one, and several stages per device, part of the search runs in a child process.

    With `partition="search"` in the pipeline, the partition is chosen with the schedule, and the
    bound covers all partitions (`ppopt.solver.partitions`). With `placement="search"`, here or in
    the pipeline, the placement is chosen with the schedule, and the bound covers all placements
    that use all devices (`ppopt.solver.placements`). With `recompute="search"` the layers that
    recompute are chosen per stage, and the bound covers all choices (`ppopt.solver.recompute`).
    With `order="search"` the order of different microbatches is chosen, and the bound covers all
    orders (`ppopt.solver.microbatch_orders`). These can be combined: partitions and recompute are
    then searched for each placement, and all of them in every order.

    `hint` is a schedule to start from (see `ppopt.solver.warm_start`): the result is never worse
    than a hint that is in the search space and within the limits, and reports the improvement. A
    search of partition, placement or recompute also starts from those of the hint. `progress` is
    called whenever the value or the bound improves. `stop` (see `ppopt.stop`) is polled between
    steps. Ctrl-C ends the search and returns the best schedule so far. Raises InputError on misuse
    only; "infeasible" is a result.
    """
    check_type("pipeline", pipeline, Pipeline)
    options = checked_options(
        time_limit, workers, seed, progress=progress, stop=stop, params=params, began=began
    )
    if mem_limit is not None:
        pipeline = replace(pipeline, mem_limit=mem_limit)
    kind = BackwardKind.read(backward_kind)
    problem = problem_of(pipeline, Objective(objective), kind)
    if placement not in (None, SEARCH):
        raise InputError(f"placement: {placement!r} is not search; give it to ppopt.Pipeline")
    extra_decisions = Decisions.NONE if placement is None else Decisions.PLACEMENT
    return solve_problem(problem, options, hint, extra_decisions)


def solve_problem(
    problem: Problem,
    options: SolveOptions,
    hint: Schedule | None = None,
    extra_decisions: Decisions = Decisions.NONE,
    *,
    optional_hint: bool = False,
) -> Result:
    """Search as `solve` does, as part of a request that has these options.

    `extra_decisions` are open in addition to those of the pipeline. An optional hint is left out if
    it belongs to none of the configurations.
    """
    _check_names(options.params.without)
    starts = () if hint is not None else _first_schedules(problem)
    with options.scope():
        candidates = choice_of(problem, extra_decisions)
    if candidates is None:
        start = WarmStart() if hint is None else WarmStart(warm_starts.read_hint(problem, hint))
        return search_from(start, problem, options)
    search = ConfigurationSearch(candidates, problem, options, start_schedules=starts)
    if hint is not None and not (optional_hint and candidates.key(hint.pipeline) is None):
        search.begin_from(*_known_configuration(candidates, problem, hint))
    return search.run()


def search_decisions(start: WarmStart, problem: Problem, options: SolveOptions) -> Result:
    """Search from known schedules and a known bound, with the open decisions of the pipeline."""
    with options.scope():
        choice = choice_of(problem)
    if choice is None:
        return search_from(start, problem, options)
    return ConfigurationSearch(
        choice, problem, options, start_schedules=start.schedules,
        lower_bound=0 if start.bound is None else start.bound.value,
    ).run()  # fmt: skip


def earlier_bound(problem: Problem, result: Result) -> Bound | None:
    """Bound of a result of a problem, from which a later search can start; None: infeasible.

    Without open decisions, the proof has no text on what it covers: the later search adds it.
    """
    if result.bound_ticks is None:
        return None
    bound = Bound(result.bound_ticks, result.proof, result.certificate)
    if problem.pipeline.open_decisions:
        return bound
    covered = proof_scope.bound_scope(problem, bound)
    return bound._replace(proof=bound.proof.removesuffix(covered))


def _first_schedules(problem: Problem) -> tuple[Schedule, ...]:
    """The schedule of the usual strategy, if partition or recompute is open and one fits."""
    pipeline = problem.pipeline
    if pipeline.model is None or pipeline.resolved_placement not in USUAL:
        return ()
    if not pipeline.open_decisions & (Decisions.PARTITION | Decisions.RECOMPUTE):
        return ()
    return tuple(FirstSchedules(pipeline, problem.objective, problem.backward_kind).usual())


def _known_configuration(
    candidates: Choice, problem: Problem, hint: Schedule
) -> tuple[Schedule, HintRecord]:
    """Hint with the pipeline of its configuration, and its record for the result.

    Raises InputError if the hint belongs to none of the configurations.
    """
    hint_pipeline, asked = hint.pipeline, problem.pipeline
    if asked.model is not None and hint_pipeline.model is None:
        raise InputError("hint: its stages have no layers; give a schedule of a model in layers")
    same = all(
        left == right
        for left, right in (
            (hint_pipeline.num_stages, asked.num_stages),
            (hint_pipeline.num_devices, asked.num_devices),
            (len(hint_pipeline.model or ()), len(asked.model or ())),
        )
    )
    key = candidates.key(hint_pipeline) if same else None
    if key is None:
        raise InputError(
            f"hint: its {candidates.name} is none of those searched; give one of the same layers "
            "and devices"
        )
    own = replace(problem, pipeline=candidates.pipeline(key))
    converted = warm_starts.read_hint(own, hint)
    schedule = converted.schedule
    if converted.orders is not None:
        schedule = timing.schedule(own.pipeline, converted.orders, problem.objective)
    return schedule, converted.record(own, followed=True)


def _check_names(without: frozenset[str]) -> None:
    if without:
        from ppopt.solver.portfolio import NAMES  # noqa: PLC0415  ortools takes long to load

        unknown = sorted(without - set(NAMES))
        if unknown:
            raise InputError(f"without: no method is called {unknown[0]!r}; known: {list(NAMES)}")
