"""The plan: the best configuration to train with, and a bound over all configurations requested.

A configuration is one combination of microbatches, placement, chunks, recompute and strategy
(`plan_space`). Its open decisions, such as its partition, are a choice (`ppopt.solver.choices`). A
candidate is a configuration with the state of its search (`plan_candidate`). One search finds the
best schedule of all candidates (`plan_search`); reports query it afterwards (`plan_reports`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

from ppopt.cancellation import driven
from ppopt.errors import InputError, check_type
from ppopt.formats.config import missing
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
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
from ppopt.studies.first_schedules import least_memory_row
from ppopt.studies.plan_reports import PlanReports, share_of_search
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
    configuration (each argument is one value, a list, or text with commas: `linear,v`). The
    partition of a configuration is searched with its schedule, unless `partition` gives one.

    `recompute` is any of `none`, `full`, `search` (chosen per stage with the schedule) and `layers`
    (as set per layer). Default: `layers` if any layer sets recompute; else `none`, and with a
    memory limit also `full` and (but for Megatron-LM) `search`.

    With `order="search"` the order of microbatches that differ is chosen, too.

    `strategies` are `searched` (the best schedule of any order; the default) and names of
    strategies, with their `options`. `runtime` is what is to run the schedule: `megatron`
    (Megatron-LM) runs 1F1B and interleaved 1F1B only, on partitions that it supports; `torch` runs
    schedules of one route without slices. Configurations with different batch counts are compared
    by the time per microbatch.

    `current` is what the user runs today (`Plan.headline`): a schedule of the same model, devices
    and microbatches, or a strategy, perhaps with its partition, chunks and recompute:
    `interleaved chunks=2 partition=even`. Default: 1F1B with the partition of the plan, or the
    balanced one, and the first recompute mode that fits the limits.

    `within` is a slowdown such as 0.01: the plan then also reports the minimum memory at which a
    configuration is at most 1 % slower than the best.

    `placement` may also be the list of the devices of the stages that a named placement has.

    `mem_limit` is one number, a list with one number per device, or `1f1b`: the largest device peak
    of 1F1B on the balanced partition of the first batch count. `fields` are further fields of
    `ppopt.Pipeline`, such as `p2p`. The other arguments are those of `ppopt.solve`; `time_limit` is
    for the whole plan, from `began` on. With one worker, a plan that ends by proof is reproducible.
    Ctrl-C ends the plan with the best so far. Raises InputError on misuse, also if no configuration
    can be set up; "infeasible" is a result.
    """
    check_type("model", model, Model, Pipeline)
    request = checked_options(
        time_limit, workers, seed, progress=progress, stop=stop, params=params, began=began
    )
    slowdown = None if within is None else _share("within", within)
    if isinstance(model, Pipeline):
        devices, batches = devices or model.num_devices, batches or model.batches
        mem_limit = model.mem_limit if mem_limit is None else mem_limit
        fields, model = fields_of(model) | fields, model.model
    if not isinstance(model, Model):
        raise InputError(
            "layers: a plan needs a model in layers; give `layers:` in a file (of measured stages, "
            "`ppopt profile --layers` writes them)"
        )
    if devices is None or batches is None:
        raise InputError(missing("stages" if devices is None else "batches"))
    names, chunks = _placements(_listed(placement), chunks)
    space = _space(
        model,
        runtime,
        fields,
        mem_limit,
        devices=devices,
        batches=_listed(batches),
        placements=names,
        chunks=chunks,
        recompute=None if recompute is None else _listed(recompute),
        strategies=_listed(strategies)
        if strategies is not None
        else default_strategies(runtime, training_of(fields)),
        options=options or Options(),
        partition=partition,
    )
    kind, objective = BackwardKind.read(backward_kind), Objective(objective)
    own_schedule = space.current_schedule(current, objective)
    share = share_of_search(
        params.plan, limited="mem_limit" in space.fields, within=slowdown is not None
    )
    search = PlanSearch(space, objective, kind, request, share)
    reports = PlanReports(search)
    reports.start_from_baselines()
    if own_schedule is not None and can_start_from(own_schedule):
        search.start_from([own_schedule])
    result = reports.add_to(search.run(), slowdown)
    if result.value is None:
        row = least_memory_row(space)
        if row.schedule.fits_limits:
            search.start_from([row.schedule])
            result = search.plan()
        else:
            result = replace(result, least_memory_row=row)
    return replace(result, current=own_schedule)


def _space(
    model: Model,
    runtime: str,
    fields: dict[str, Any],
    mem_limit: Any,
    *,
    devices: int,
    batches: tuple[int, ...],
    partition: Any,
    recompute: tuple[str, ...] | None,
    **dimensions: Any,
) -> PlanSpace:
    """Space of a plan, by default with `default_recompute`; raises InputError if it is invalid."""
    if fields.get("routes", 1) == 2 and partition == SEARCH:
        raise InputError(
            "routes: partitions are searched for one route alone; a plan of two routes takes a "
            "partition by rule: --routes 2 --partition balanced (or even, or counts)"
        )
    fields = fields if mem_limit is None else {**fields, "mem_limit": mem_limit}
    model, fields = rounded_once(model, devices, max(batches, default=1), fields)
    limit = _limit(model, devices, batches, fields.pop("mem_limit", None), fields)
    if recompute is None:
        recompute = default_recompute(model, limited=limit is not None)
    return PlanSpace(
        model=model,
        devices=devices,
        batches=batches,
        recompute=recompute,
        runtime=runtime,
        partition=partition,
        fields=fields if limit is None else {**fields, "mem_limit": limit},
        **dimensions,
    )


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
    usual_known: bool = False,
) -> Plan:
    """Search a plan space, without the additional reports of `plan`.

    `known_value` is a time per microbatch already achieved elsewhere: configurations that cannot
    beat it are closed, and the bound of the plan is capped at it. `starts` are known schedules of
    the space. `evaluates`: whether the search starts from strategies, too; `usual_known`: whether
    `starts` has those of `ppopt.studies.first_schedules`. Raises InputError if nothing can be set
    up.
    """
    search = PlanSearch(space, objective, backward_kind, options)
    if known_value is not None:
        grid = search.set_up.problem.pipeline.grid
        search.known_value = ceil(known_value * grid.time * space.weight(1))
    search.usual_known = usual_known
    search.start_from(starts)
    if evaluates and SEARCHED in space.strategies:
        PlanReports(search).start_from_baselines()
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
    return (value,) if isinstance(value, int) else tuple(value)


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
