"""The plan: the best configuration to train with, and a bound over all configurations asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.config import missing
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.settings import LIMIT_1F1B
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.deadline import Callback, Stop
from ppopt.solver.options import TIME_LIMIT, SolveOptions, checked_options
from ppopt.solver.parameters import SolveParams
from ppopt.strategies import Options
from ppopt.studies.plan_result import Plan
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import (
    CHUNKS,
    PLACEMENTS,
    PlanSpace,
    default_recompute,
    default_strategies,
    fields_of,
)


@interrupts.recorded(inner=True)
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

    The model, and where it trains: of a pipeline (as of `ppopt.read_pipeline`) its devices,
    microbatches, limits and links, where the arguments give no others.

    Every combination of `batches`, `placement`, `chunks`, `recompute` and `strategies` (one value
    or a list each, words also as one text: `linear,v`) that goes together is a configuration; its
    partition is searched with its schedule, unless `partition` gives one.

    `recompute` is of `none`, `full`, `search` (chosen per stage with the schedule) and `layers`
    (as the layers say). None means `layers` if any layer recomputes. Else it means `none`, and with
    a memory limit also `full` and, but for Megatron-LM, `search`.
    `strategies` are `optimal` (the best schedule of any order; the default) and hand strategies,
    with their `options`. `runtime` is what is to run the schedule: `megatron` (Megatron-LM) runs
    1F1B and interleaved 1F1B only, on partitions that it takes; `torch` schedules of one route
    without slices. Configurations of several batch counts compare by the time per microbatch.
    `within` is a share: the plan then also says with how little memory any configuration found is
    at most so much slower than the best (0.01: 1 %).
    `mem_limit` is one number, a list with one number per device, or `1f1b`: the largest device peak
    of 1F1B on the balanced partition of the first batch count. `fields` are further fields of
    `ppopt.Pipeline`, such as `p2p`. The other arguments are those of `ppopt.solve`; `time_limit` is
    for the whole plan, from `began` on. With one worker a plan that ends by proof repeats itself.
    Ctrl-C ends it with the best so far. Raises InputError on misuse, also where no configuration
    can be set up; "infeasible" is a result.
    """
    request = checked_options(
        time_limit, workers, seed, progress=progress, stop=stop, params=params, began=began
    )
    share_within = None if within is None else _share("within", within)
    if isinstance(model, Pipeline):
        devices, batches = devices or model.num_devices, batches or model.batches
        mem_limit = model.mem_limit if mem_limit is None else mem_limit
        fields, model = fields_of(model) | fields, model.model
    if not isinstance(model, Model):
        raise InputError("layers: a plan needs a model in layers; give `layers:` in a file")
    if devices is None or batches is None:
        raise InputError(missing("stages" if devices is None else "batches"))
    if fields.get("routes", 1) == 2 and partition == SEARCH:
        raise InputError(
            "routes: partitions are searched for one route alone; a plan of two routes takes a "
            "partition by rule: --routes 2 --partition balanced (or even, or counts)"
        )
    counts = _listed(batches)
    limit = _limit(model, devices, counts, mem_limit, fields)
    limited = limit is not None
    default = default_recompute(model, runtime, limited=limited)
    space = PlanSpace(
        model=model,
        devices=devices,
        batches=counts,
        placements=_listed(placement),
        chunks=_listed(chunks),
        recompute=default if recompute is None else _listed(recompute),
        strategies=default_strategies(runtime) if strategies is None else _listed(strategies),
        runtime=runtime,
        options=options or Options(),
        partition=partition,
        fields={**fields, "mem_limit": limit} if limited else fields,
    )
    kind, shares = BackwardKind.read(backward_kind), params.plan
    share = 1 - shares.less - shares.refining - (shares.more if limited else 0)
    share -= 0 if share_within is None else shares.within
    search = PlanSearch(space, Objective(objective), kind, request, share)
    search.begin()
    found = search.run()
    steps: tuple[Callable[[Plan], Plan], ...] = (
        lambda _: search.refined(),
        lambda _: search.with_less_memory(),
        lambda found: search.with_memory_within(found, share_within),
        search.with_more_memory,
        search.with_hands,
    )
    for step in steps:
        if found.value is None or found.interrupted:
            return found
        found = step(found)
    return found


def search_space(
    space: PlanSpace,
    objective: Objective,
    kind: BackwardKind,
    options: SolveOptions,
    *,
    known: Fraction | None = None,
    start: Schedule | None = None,
) -> Plan:
    """The best plan of a space, without what `plan` tells beside it.

    `known` is a time per microbatch that is possible elsewhere: configurations that are no better
    are closed, and the bound of the plan goes no higher. `start` is the best schedule of an earlier
    search of the space. Raises InputError where nothing can be set up.
    """
    search = PlanSearch(space, objective, kind, options)
    search.know(known, start)
    search.begin()
    return search.run()


def _share(name: str, given: Fraction | float) -> Fraction:
    """A share as a fraction; raises InputError below 0 and on anything but a number."""
    found = exact.read(given, name).value
    if found < 0:
        raise InputError(f"{name}: {given} is below 0; give a share such as 0.01")
    return found


def _listed(given: Any) -> tuple[Any, ...]:
    """One value as a list of it; text may list several, as on the command line: `linear,v`."""
    if isinstance(given, str):
        return tuple(part.strip() for part in given.split(","))
    return (given,) if isinstance(given, int) else tuple(given)


def _limit(
    model: Model, devices: int, batches: Sequence[int], limit: Any, fields: dict[str, Any]
) -> Any:
    """The memory limit of all configurations: `1f1b` becomes that of a balanced partition."""
    if not isinstance(limit, str) or limit.strip().lower() != LIMIT_1F1B or not batches:
        return limit
    balanced = model.pipeline(devices=devices, batches=batches[0], mem_limit=LIMIT_1F1B, **fields)
    return balanced.limits
