"""The object that `ppopt plan` prints with --json."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any

from ppopt.errors import NotApplicableError
from ppopt.formats.megatron_schedule import stated_group_size
from ppopt.formats.trainer_partition import deepspeed_module, megatron_arguments, torchtitan_keys
from ppopt.problem.exact import plain, plain_or_none
from ppopt.problem.pipeline import Pipeline
from ppopt.report.objects import of_result
from ppopt.studies.plan_result import (
    LeastMemory,
    MoreMemory,
    Plan,
    PlanBaseline,
    PlanRow,
    WithinShare,
)

_OF_ROW = (
    *("makespan", "device_span", "bubble_rate", "peak_memory", "time_unit", "memory_unit"),
    *("exposed", "tokens_per_second", "mfu", "partition", "layout", "proof"),
)


def of_plan(plan: Plan) -> dict[str, Any]:
    """Object of `ppopt plan`: the keys of `ppopt solve` for the best plan, and more.

    `lower_bound` and `gap` are over the whole space; of several batch counts they are of the time
    per microbatch, for as many microbatches as the best plan has. `rows`, best first: one object
    per configuration, whose `recompute` is the choice (`none`, `full`, `layers`), and
    `recompute_layers` what it makes, per stage. With `given_up` its value is that of a schedule
    found before its bound showed that it is not the best; it was not searched further.
    `least_memory` is of the best configuration: the largest device peak of its schedule (`value`),
    and what no schedule as fast is below (`lower_bound`); equal where the least is proved. `within`
    has the configuration of least memory found that is at most a share slower, if that was asked
    for, else null: its `value`, `memory`, and what no schedule so fast is below (`lower_bound`, or
    null). `more_memory` says what 10 % more memory brings; `hands` are hand strategies, each on the
    best partition found for it, the best first: `speedup` is how many times its throughput the plan
    gives, and `within` whether the plan could have chosen it; `late_hands` names those for which no
    time was left; `use` has the text of what trainers read of the best partition. Times and memory
    that are not known are null.
    """
    first = plan.rows[0]
    found = of_result(first.result, None)
    batches = first.configuration.batches
    if plan.best is None:
        found |= dict.fromkeys(("partition", "layout", "placement", "chunks", "recompute"))
    return found | {
        "status": plan.status.value,
        "value": plain_or_none(plan.value),
        "lower_bound": plain_or_none(plan.lower_bound),
        "gap": plain_or_none(plan.gap),
        "proof": plan.proof,
        "strategy": first.configuration.strategy,
        "batches": batches,
        "value_per_microbatch": plain_or_none(first.per_microbatch),
        "bound_per_microbatch": plain_or_none(
            None if plan.lower_bound is None else plan.lower_bound / batches
        ),
        "least_memory": _least_memory(plan.least_memory),
        "within": _within(plan.within),
        "more_memory": _more(plan.more_memory),
        "hands": [_hand(hand, plan) for hand in plan.baselines],
        "late_hands": list(plan.late_baselines),
        "use": _use(plan),
        "rows": [_row(row, plan) for row in plan.rows],
        "skipped": [{"configuration": name, "reason": reason} for name, reason in plan.skipped],
        "space": _space(plan),
        "solve_seconds": round(plan.solve_seconds, 3),
    }


def _row(row: PlanRow, plan: Plan) -> dict[str, Any]:
    """A row: the configuration, how it ended, and the figures of its best schedule."""
    shown, configuration = of_result(row.result, None), row.configuration
    return {
        **configuration._asdict(),
        "status": row.status.value,
        "value": plain_or_none(row.value),
        "lower_bound": plain_or_none(row.lower_bound),
        "value_per_microbatch": plain_or_none(row.per_microbatch),
        "bound_per_microbatch": plain_or_none(row.bound_per_microbatch),
        "ratio_to_best": _ratio(row, plan),
        **{key: shown[key] for key in _OF_ROW},
        "recompute_layers": shown["recompute"],
        "searches": row.searches,
        "given_up": row.given_up,
    }


def _hand(hand: PlanBaseline, plan: Plan) -> dict[str, Any]:
    pipeline = hand.schedule.pipeline
    return {
        "strategy": hand.strategy,
        "placement": pipeline.resolved_placement,
        "chunks": pipeline.num_chunks,
        "routes": pipeline.routes,
        "recompute": hand.recompute,
        "partition": list(pipeline.counts),
        "value": plain(hand.value),
        "speedup": plain(hand.value / plan.value) if plan.value else None,
        "within": hand.in_space,
    }


def _least_memory(found: LeastMemory | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"value": plain(found.memory), "lower_bound": plain(found.lower_bound)}


def _within(found: WithinShare | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        **found.configuration._asdict(),
        "value": plain(found.value),
        "memory": plain(found.memory),
        "lower_bound": plain_or_none(found.lower_bound),
    }


def _more(found: MoreMemory | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "mem_limit": [plain(limit) for limit in found.limits],
        "value": plain(found.value),
        "lower_bound": plain(found.lower_bound),
    }


def _use(plan: Plan) -> dict[str, str | None]:
    """What trainers read of the best partition; null if they do not take it."""
    schedule = plan.schedule
    group = None if schedule is None else stated_group_size(schedule)
    writers: dict[str, Callable[[Pipeline], str]] = {
        "megatron_arguments": lambda pipeline: megatron_arguments(pipeline, group),
        "torchtitan": torchtitan_keys,
        "deepspeed": deepspeed_module,
    }
    found: dict[str, str | None] = dict.fromkeys(writers)
    if plan.best is not None:
        for name, write in writers.items():
            with suppress(NotApplicableError):
                found[name] = write(plan.best.pipeline)
    return found


def _ratio(row: PlanRow, plan: Plan) -> int | float | None:
    """Time per microbatch over that of the best configuration."""
    best = plan.best
    if best is None or row.per_microbatch is None or not best.per_microbatch:
        return None
    return plain(row.per_microbatch / best.per_microbatch)


def _space(plan: Plan) -> dict[str, Any]:
    space = plan.space
    partition = space.partition
    return {
        "devices": space.devices,
        "batches": list(space.batches),
        "placement": list(space.placements),
        "chunks": list(space.chunks),
        "recompute": list(space.recompute),
        "strategies": list(space.strategies),
        "runtime": space.runtime,
        "routes": space.fields.get("routes", 1),
        "p2p_time": _links(plan.rows[0].result.pipeline),
        "partition": partition if isinstance(partition, str) else list(partition),
        "configurations": len(plan.rows),
    }


def _links(pipeline: Pipeline) -> int | float | None:
    """The time of every link, if there is one for all."""
    if pipeline.link is not None or not isinstance(pipeline.p2p, Fraction | int | float):
        return None
    return plain(Fraction(pipeline.p2p))
