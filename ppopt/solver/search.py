"""The search: infeasibility, construction, bounds from few devices, then CP-SAT on all."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from itertools import count
from typing import TYPE_CHECKING, Any

from ppopt import processors
from ppopt.errors import InputError
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Objective, Problem
from ppopt.rechecker.certificate import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver import warm_start as hints
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.cp_sat import pairs
from ppopt.solver.heuristics import steady_state
from ppopt.solver.heuristics.improve import Improver
from ppopt.solver.incumbent import LARGEST_MODEL, Progress, Search
from ppopt.solver.result import Hinted, Provenance, Result, Status
from ppopt.solver.warm_start import Start
from ppopt.verifier import checked

if TYPE_CHECKING:
    from ppopt.solver.bounds.subset_dynamic_program import Few
    from ppopt.solver.budget import Budget
    from ppopt.solver.exact.dynamic_program import Sweeps
    from ppopt.solver.remote import Beside

TIME_LIMIT = 60.0
"""Default seconds of a search."""
PRESOLVE = 0.0005
"""Seconds per operation by which CP-SAT may overrun its limit while it simplifies a model."""
SMALL_MODEL = 600
"""Most operations for which the best is searched by the full model; of larger ones
that model is asked for given values."""
TINY_MODEL = 200
"""Most operations for which the full model comes first: it often proves them at once."""
TINY_SECONDS = 0.5
"""Seconds of that."""
FIRST_ROUND = 0.5
"""Most seconds of bounds, and of local search, in the first round; each has twice as many as the
one before."""
FIRST_EACH = 5e-4
"""Most seconds of that per operation: what proves a small pipeline may come late in a round."""
BOUNDS_SHARE = 2
"""Seconds of bounds in the later rounds, as a multiple of those of local search. Where no whole
model is asked, only as many after a round that raised no bound: windows make more of them."""
FEW_FIRST = 1
"""Seconds of sweeps of few devices of several stages in the first round, likewise; with several
workers they go on beside the search."""
FEW_SHARE = 12
"""Seconds of them in a round of one worker, likewise, while they find out anything."""
FEW_IN_VAIN = 2
"""Seconds of that in the round after one that found out nothing, likewise."""
FEW_MOST = 0.25
"""Most seconds of that in a round, as a part of those of the whole search."""
SWEEPS_SHARE = 2
"""Seconds of sweeps through partial schedules in a round, likewise."""
GUESS_SHARE = 2
"""Seconds of following the most promising of them, from the second round on, likewise."""
RECUT_SHARE = 3
"""Seconds of local search by windows in a round, as a multiple of the others."""
CYCLES_FROM = 1
"""Round in which cyclic schedules are searched."""
CYCLES_SHARE = 4
"""Seconds of that, as a multiple of those of local search."""
MODEL_SHARE = 12
"""Seconds of the whole model in a round, as a multiple of those of local search."""
QUESTIONS_SHARE = 4
"""Seconds of questions about a larger model in a round, likewise."""
MOST_OPERATIONS = 2_000_000
"""Most operations that a search takes on."""
MOST_WORKERS = 1024


def solve(
    pipeline: Pipeline,
    *,
    mem_limit: Any = None,
    objective: Objective | str = Objective.MAKESPAN,
    fused: bool = False,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    hint: Schedule | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Search the schedule of least makespan or device span within the memory limits.

    The search space: every backward split into B and W (default) or every backward whole (`fused`);
    any order on every device. `mem_limit`, when given, replaces the pipeline's own. `time_limit` in
    seconds; `workers` default to the processors available: with more than one, and several stages
    per device, part of the search is done by a process of its own. `hint` is a schedule to start
    from (see `ppopt.solver.warm_start`): the result is never worse than a hint of the search space
    that keeps the limits, and says by how much it is better. Ctrl-C ends the search and returns the
    best so far. Raises InputError on misuse only; "infeasible" is a result.
    """
    began = time.monotonic()
    if mem_limit is not None:
        pipeline = replace(pipeline, mem_limit=mem_limit)
    provenance = provenance_of(time_limit, workers, seed)
    problem = problem_of(pipeline, Objective(objective), fused=fused)
    start = Start() if hint is None else Start(hints.read(problem, hint))
    return search_from(start, problem, provenance, progress, began)


def problem_of(pipeline: Pipeline, objective: Objective, *, fused: bool) -> Problem:
    """State what is searched; raises InputError where it is too large."""
    problem = Problem(pipeline, objective, fused)
    if problem.operations > MOST_OPERATIONS:
        raise InputError(
            f"batches: {pipeline.batches} make {problem.operations} operations, a search takes at "
            f"most {MOST_OPERATIONS}; use fewer batches: the middle of a long run repeats"
        )
    return problem


def provenance_of(time_limit: float, workers: int | None, seed: int) -> Provenance:
    """Check how a search is to be done, and note what it takes to repeat it; raises InputError."""
    workers = processors.available() if workers is None else workers
    _check(time_limit, workers, seed)
    return Provenance(seed, workers, time_limit, versions())


def search_from(
    start: Start,
    problem: Problem,
    provenance: Provenance,
    progress: Callable[[Progress], None] | None = None,
    began: float | None = None,
) -> Result:
    """Search with what is known before: schedules, and a bound that holds for this problem.

    The time limit of `provenance` counts from `began` (of `time.monotonic`), by default from now.
    """
    began = time.monotonic() if began is None else began
    search = Search(
        problem,
        began,
        began + provenance.time_limit,
        progress or (lambda _: None),
        head_body_tail.device_bound(problem.pipeline, problem.objective, fused=problem.fused),
    )
    _run(search, provenance, start)
    with interrupts.noted() as pressed:
        hinted = start.told(problem, followed=not search.infeasible)
        result = _result(search, provenance, hinted)
    return replace(result, interrupted=True) if pressed else result


def _check(time_limit: float, workers: int, seed: int) -> None:
    if not 0 < time_limit < float("inf"):
        raise InputError(f"time_limit: {time_limit} is not above 0 seconds, or not finite")
    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"workers: {workers} is not between 1 and {MOST_WORKERS}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed} is not between 0 and 2^31 - 1")


def _run(search: Search, provenance: Provenance, start: Start) -> None:
    problem = search.problem
    search.infeasible = head_body_tail.infeasibility(problem.pipeline, fused=problem.fused) or ""
    try:
        hints.begin(search, start)
        if not search.over:
            _run_phases(search, provenance)
    except KeyboardInterrupt:
        search.interrupted = True


def _run_phases(search: Search, provenance: Provenance) -> None:
    """Construct; what proves a tiny pipeline; then, where that does not, rounds of all parts."""
    _repeat(search, provenance)
    improver = Improver(search, provenance.seed)
    improver.construct()
    if search.over:
        return
    if search.value is None:
        _search_model(search, provenance, search.left)
        return
    if pairs.count(search.problem.pipeline) > pairs.MOST_PAIRS and _has_pairs(search.problem):
        return
    with interrupts.held():
        from ppopt.solver.bounds.subset_dynamic_program import Few  # noqa: PLC0415
        from ppopt.solver.remote import Beside  # noqa: PLC0415  ortools takes long to load
    if _is_local(search.problem):
        improver.settle_first()
    few = Few(search)
    with Beside(search) as beside:
        _search_tiny(search, provenance, few, beside)
        _run_rounds(search, provenance, improver, few, beside)


def _has_pairs(problem: Problem) -> bool:
    """Whether operations may run in pairs."""
    return pairs.useful(problem.pipeline, fused=problem.fused)


def _is_local(problem: Problem) -> bool:
    """Whether local search applies: it knows neither pairs nor slices."""
    return problem.pipeline.num_slices == 1 and not _has_pairs(problem)


def _run_rounds(
    search: Search, provenance: Provenance, improver: Improver, few: Few, beside: Beside
) -> None:
    """Rounds of bounds, of local search where it applies, and of the whole model."""
    with interrupts.held():
        from ppopt.solver.bounds.relaxation_bound import Relaxations  # noqa: PLC0415
        from ppopt.solver.exact.dynamic_program import Sweeps  # noqa: PLC0415  ortools takes long to load
    problem, local = search.problem, _is_local(search.problem)
    sliced = problem.pipeline.num_slices > 1
    small = problem.operations <= SMALL_MODEL or not local
    relaxations, sweeps = Relaxations(search), Sweeps(search)
    for turn in count():
        if search.over:
            return
        seconds = _seconds(problem, turn)
        _ask_few(search, provenance, few, beside, turn)
        if not sliced:
            vain = problem.operations > LARGEST_MODEL and not relaxations.fruitful
            share = BOUNDS_SHARE if turn and not vain else 1
            relaxations.raise_bound(_budget(search, provenance, share * seconds))
        if local:
            improver.settle(min(1.0, seconds / FIRST_ROUND))
            improver.climb(seconds if provenance.workers > 1 else search.left)
        _sweep(search, provenance, sweeps, turn)
        if local:
            _recut(search, provenance, improver, turn)
        if small:
            _search_model(search, provenance, MODEL_SHARE * seconds, turn)
        else:
            _decide(search, provenance, QUESTIONS_SHARE * seconds, turn)
        idle = not local and (relaxations.settled or sliced)
        if idle and problem.operations > LARGEST_MODEL:
            return


def _seconds(problem: Problem, turn: int) -> float:
    """Seconds of bounds, and of local search, in a round."""
    return min(FIRST_ROUND, FIRST_EACH * problem.operations) * 2.0**turn


def _ask_few(search: Search, provenance: Provenance, few: Few, beside: Beside, turn: int) -> None:
    """Sweeps of few devices of several stages: with several workers, after a start, beside."""
    if beside.sweeps:
        return
    several = provenance.workers > 1
    share = FEW_FIRST if several and not turn else FEW_SHARE if few.fruitful else FEW_IN_VAIN
    most = FEW_MOST * (search.deadline - search.began)
    few.raise_bound(_budget(search, provenance, min(share * _seconds(search.problem, turn), most)))
    if several and few.open and not search.over:
        beside.begin()


def _sweep(search: Search, provenance: Provenance, sweeps: Sweeps, turn: int) -> None:
    """Partial schedules: from the second round on the most promising; all, while they are few."""
    seconds = _seconds(search.problem, turn)
    if turn:
        sweeps.guess(_budget(search, provenance, GUESS_SHARE * seconds))
    sweeps.follow(_budget(search, provenance, SWEEPS_SHARE * seconds))


def _recut(search: Search, provenance: Provenance, improver: Improver, turn: int) -> None:
    """Local search by windows; before it, once, cyclic schedules for it to start from."""
    seconds = _seconds(search.problem, turn)
    if turn == CYCLES_FROM:
        improver.repeat(_budget(search, provenance, CYCLES_SHARE * seconds))
    improver.recut(lambda part: _budget(search, provenance, part * RECUT_SHARE * seconds))


def _repeat(search: Search, provenance: Provenance) -> None:
    """Begin a long run from the middle of a short one: construction takes long there."""
    if _has_pairs(search.problem):
        return

    def solve_short(short: Problem, seconds: float) -> Result:
        return search_from(Start(), short, replace(provenance, time_limit=seconds))

    steady_state.offer(search, solve_short)


def _budget(search: Search, provenance: Provenance, seconds: float) -> Budget:
    with interrupts.held():
        from ppopt.solver.budget import Budget  # noqa: PLC0415  ortools takes long to load
    return Budget.of(search, provenance.workers, provenance.seed, seconds)


def _search_model(
    search: Search, provenance: Provenance, seconds: float, turn: int = 0, *, linear: bool = False
) -> None:
    """CP-SAT on the whole problem, from the best schedule and below it.

    By reasoning about orders, or by linear relaxations, which prove tiny models sooner.
    """
    if search.over or search.problem.operations > LARGEST_MODEL:
        return
    with interrupts.held():
        from ppopt.solver.exact import full_model  # noqa: PLC0415  ortools takes long to load
    focus = () if linear else full_model.FOCUSES[turn % len(full_model.FOCUSES)]
    limits = _budget(search, provenance, seconds).limits(focus=focus)
    limits = replace(limits.turned(turn), linear=linear)
    presolve = PRESOLVE * search.problem.operations
    if limits.seconds > presolve:
        limits = replace(limits, seconds=limits.seconds - presolve)
    else:
        limits = replace(limits, presolve=False)
    while full_model.search(search, limits) and not search.over:
        limits = replace(limits, seconds=min(limits.seconds, search.left))


def _search_tiny(search: Search, provenance: Provenance, few: Few, beside: Beside) -> None:
    """The full model, and with several workers sweeps beside it."""
    if search.over or search.problem.operations > TINY_MODEL:
        return
    if provenance.workers > 1 and few.open:
        beside.begin()
    _search_model(search, provenance, TINY_SECONDS, linear=True)


def _decide(search: Search, provenance: Provenance, seconds: float, turn: int) -> None:
    """CP-SAT asked for schedules of given values."""
    if search.over:
        return
    with interrupts.held():
        from ppopt.solver.exact import value_questions  # noqa: PLC0415  ortools takes long to load
    value_questions.search(search, _budget(search, provenance, seconds), turn)


def _result(search: Search, provenance: Provenance, hint: Hinted | None) -> Result:
    problem, ticks = search.problem, search.problem.pipeline.ticks
    status = _status(search)
    result = Result(
        pipeline=problem.pipeline,
        objective=problem.objective,
        fused=problem.fused,
        status=status,
        schedule=None,
        value=None if search.value is None else ticks.time(search.value),
        lower_bound=None if search.infeasible else ticks.time(search.bound.value),
        proof=_proof(search),
        certificate=Certificate(Argument.MEMORY) if search.infeasible else search.bound.certificate,
        provenance=provenance,
        solve_seconds=time.monotonic() - search.began,
        interrupted=search.interrupted,
        hint=hint,
    )
    if search.best is None:
        return result
    made = replace(search.best, origin=result.origin(), from_file=False)
    return replace(result, schedule=checked(made))


def _proof(search: Search) -> str:
    problem = search.problem
    if search.infeasible:
        return search.infeasible
    return search.bound.proof + head_body_tail.space(problem.pipeline, fused=problem.fused)


def _status(search: Search) -> Status:
    if search.infeasible:
        return Status.INFEASIBLE
    if search.best is None:
        return Status.UNKNOWN
    return Status.OPTIMAL if search.closed else Status.FEASIBLE


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    found = {name: metadata.version(name) for name in ("ortools", "numpy")}
    return {
        "ppopt": metadata.version("ppopt-pipeline"),
        "python": platform.python_version(),
        **found,
    }
