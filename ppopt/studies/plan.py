"""The plan: the best configuration to train with, and a bound over all configurations requested.

A configuration is one combination of microbatches, placement, chunks, recompute and strategy
(`plan_space`). Its open decisions, such as its partition, are a choice (`ppopt.solver.choices`). A
candidate is a configuration with the state of its search (`plan_candidate`). One search finds the
best schedule of all candidates (`plan_search`); reports query it afterwards (`plan_reports`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

from ppopt.cancellation import driven, part
from ppopt.errors import InputError, check_type
from ppopt.formats.config import NO_LAYERS, missing
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.field_values import whole
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.placement import explicit, name_and_chunks
from ppopt.problem.settings import LIMIT_1F1B
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.options import TIME_LIMIT, SolveOptions, checked_options
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Callback, Stop
from ppopt.strategies import Options
from ppopt.studies.current_schedule import can_start_from
from ppopt.studies.first_schedules import least_memory_row, usual_schedules
from ppopt.studies.plan_reports import PlanReports, share_of_reports
from ppopt.studies.plan_result import Plan
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import (
    CHUNKS,
    PLACEMENTS,
    PlanSpace,
    default_recompute,
    default_strategies,
    fields_of,
    rounded_once,
    training_of,
)


@driven
def plan(
    model: Model | Pipeline,
    *,
    devices: int | None = None,
    batches: int | Sequence[int] | None = None,
    mem_limit: Any = None,
    placement: str | Sequence[str] = PLACEMENTS,
    chunks: int | Sequence[int] = CHUNKS,
    recompute: str | Sequence[str] | None = None,
    strategies: str | Sequence[str] | None = None,
    current: Schedule | str | None = None,
    runtime: str = "any",
    within: Fraction | float | None = None,
    partition: Any = SEARCH,
    options: Options | None = None,
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    progress: Callback | None = None,
    stop: Stop | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
    **fields: Any,
) -> Plan:
    """Find the best configuration to train a model with, and its schedule.

    `model` is a model, or a pipeline (from `ppopt.read_pipeline`) whose devices, microbatches,
    limits and links are the defaults of the arguments.

    Every valid combination of `batches`, `placement`, `chunks`, `recompute` and `strategies` is a
    configuration (each argument is one value, a list, or text with commas: `linear,v`). See
    `ppopt.PlanSpace` for their values and defaults, and for `runtime`, `options` and `partition`.
    Configurations with different batch counts are compared by the time per microbatch.

    `current` is what the user runs today (`Plan.headline`): a schedule of the same model, devices
    and microbatches, or a strategy, perhaps with its partition, chunks and recompute:
    `interleaved chunks=2 partition=even`. Default: 1F1B. `within` is a slowdown such as 0.01: the
    plan then also reports the minimum memory of a configuration at most 1 % slower than the best.

    `mem_limit` is one number, a list with one number per device, or `1f1b`: the largest device peak
    of 1F1B on the balanced partition. `fields` are further fields of `ppopt.Pipeline`. The other
    arguments are those of `ppopt.solve`; Ctrl-C ends the plan with the best so far. Raises
    InputError on misuse, also if no configuration can be set up; "infeasible" is a result.
    """
    check_type("model", model, Model, Pipeline)
    request = checked_options(
        time_limit, workers, seed, progress=progress, stop=stop, params=params, began=began
    )
    space = _space(
        model, fields, devices=devices, batches=batches, mem_limit=mem_limit, placement=placement,
        chunks=chunks, recompute=recompute, strategies=strategies, runtime=runtime,
        partition=partition, options=options or Options(),
    )  # fmt: skip
    slowdown = None if within is None else _share("within", within)
    kind, objective = BackwardKind.read(backward_kind), Objective(objective)
    own_schedule = space.current_schedule(current, objective)
    result = _planned(space, objective, kind, request, own_schedule, slowdown)
    return replace(result, current=own_schedule)


def _space(
    model: Model | Pipeline,
    fields: dict[str, Any],
    *,
    devices: int | None,
    batches: Any,
    mem_limit: Any,
    placement: Any,
    chunks: Any,
    recompute: Any,
    strategies: Any,
    runtime: str,
    partition: Any,
    options: Options,
) -> PlanSpace:
    """Space of a plan with the arguments of `plan`; raises InputError if it is invalid."""
    if isinstance(model, Pipeline):
        devices, batches = devices or model.num_devices, batches or model.batches
        mem_limit = model.mem_limit if mem_limit is None else mem_limit
        fields, model = fields_of(model) | fields, model.model
    if not isinstance(model, Model):
        raise InputError(NO_LAYERS)
    if devices is None or batches is None:
        raise InputError(missing("stages" if devices is None else "batches"))
    placements, chunks = _placements(_listed(placement), chunks)
    if fields.get("routes", 1) == 2 and partition == SEARCH:
        raise InputError(
            "routes: partitions are searched for one route alone; a plan of two routes takes a "
            "partition by rule: --routes 2 --partition balanced (or even, or counts)"
        )
    if strategies is None:
        strategies = default_strategies(runtime, training_of(fields))
    batches = tuple(whole(number, "batches") for number in _listed(batches))
    fields = fields if mem_limit is None else {**fields, "mem_limit": mem_limit}
    model, fields = rounded_once(model, devices, max(batches, default=1), fields)
    limit = _limit(model, devices, batches, fields.pop("mem_limit", None), fields)
    if recompute is None:
        recompute = default_recompute(model, limited=limit is not None)
    return PlanSpace(
        model=model, devices=devices, batches=batches, placements=placements,
        chunks=chunks, recompute=_listed(recompute), strategies=_listed(strategies),
        runtime=runtime, options=options, partition=partition,
        fields=fields if limit is None else {**fields, "mem_limit": limit},
    )  # fmt: skip


def _planned(
    space: PlanSpace,
    objective: Objective,
    kind: BackwardKind,
    request: SolveOptions,
    current: Schedule | None,
    slowdown: Fraction | None,
) -> Plan:
    """Plan of a space with all reports; `current` is a schedule to start from."""
    params = request.params.plan
    later = share_of_reports(space, slowdown, params)
    with request.scope():
        with part(1 - params.min_memory_share - later):
            starts = usual_schedules(space, objective, kind, request)
            search = PlanSearch(space, objective, kind, request, starts)
            search.start_from_baselines()
            if current is not None and can_start_from(current):
                search.start_from([current])
            with part(1 - params.late_baseline_share):
                search.run()
            search.start_from_late_baselines()
        result = PlanReports(search, slowdown).plan()
    if result.value is not None:
        return result
    row = least_memory_row(space)
    if not row.schedule.fits_limits:
        return replace(result, least_memory_row=row)
    search.start_from([row.schedule])
    return search.plan()


@driven
def search_plan_space(
    space: PlanSpace,
    objective: Objective,
    backward_kind: BackwardKind,
    options: SolveOptions,
    *,
    known_value: Fraction | None = None,
    starts: Sequence[Schedule] = (),
    evaluates: bool = True,
    first_improvement: float | None = None,
) -> Plan:
    """Search a plan space, without the additional reports of `plan`.

    `known_value` is a time per microbatch already achieved elsewhere: configurations that cannot
    beat it are closed, and the bound of the plan is capped at it. `starts` are known schedules of
    the space, the best first. `evaluates`: whether the search starts from strategies, too.
    `first_improvement`: share of the time for improving known schedules before any other.
    Raises InputError if nothing can be set up.
    """
    if first_improvement is not None:
        params = options.params
        own = params.plan.configurations._replace(first=0, first_improving=first_improvement)
        params = replace(params, plan=params.plan._replace(configurations=own))
        options = replace(options, params=params)
    with options.scope():
        if evaluates:
            starts = [*starts, *usual_schedules(space, objective, backward_kind, options)]
        search = PlanSearch(space, objective, backward_kind, options, starts)
        if known_value is not None:
            grid = search.set_up.problem.pipeline.grid
            search.state.cutoff = ceil(known_value * grid.time * space.weight(1))
        if evaluates and SEARCHED in space.strategies:
            search.start_from_baselines()
        return search.run()


def _share(name: str, value: Fraction | float) -> Fraction:
    """Read a share as a fraction; raises InputError below 0 and on anything but a number."""
    share = exact.read(value, name).value
    if share < 0:
        raise InputError(f"{name}: {value} is below 0; give a share such as 0.01")
    return share


def _listed(value: Any) -> tuple[Any, ...]:
    """Convert a value, a list, or text with commas (`linear,v`) to a tuple."""
    if isinstance(value, str):
        return tuple(entry.strip() for entry in value.split(","))
    return tuple(value) if isinstance(value, Iterable) else (value,)


def _placements(entries: tuple[Any, ...], chunks: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of placements, and numbers of chunks; a list of devices is the placement it equals.

    Raises InputError if a list of devices has no name.
    """
    if not entries or isinstance(entries[0], str):
        return entries, _listed(chunks)
    named = name_and_chunks(explicit(entries))
    if named is None:
        raise InputError(
            f"placement: {','.join(map(str, entries))} has no name; a plan chooses from "
            f"{', '.join(PLACEMENTS)}; leave the list out"
        )
    return (named[0],), (named[1],)


def _limit(
    model: Model, devices: int, batches: Sequence[int], limit: Any, fields: dict[str, Any]
) -> Any:
    """Memory limit of all configurations; `1f1b` becomes that of a balanced partition."""
    if not isinstance(limit, str) or limit.strip().lower() != LIMIT_1F1B or not batches:
        return limit
    balanced = model.pipeline(devices=devices, batches=batches[0], mem_limit=LIMIT_1F1B, **fields)
    return balanced.limits
