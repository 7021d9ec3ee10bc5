"""What a plan says, as text: slowdown, memory, gain, what was searched, and how to use it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR
from itertools import accumulate
from pathlib import Path

from ppopt.formats.figures import limits
from ppopt.formats.megatron_schedule import COMBINED, STRATEGIES
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.traits import Trait
from ppopt.report.labels import describe_skipped
from ppopt.report.numbers import measured, significant, spread
from ppopt.report.placement_text import describe_placing, short_placement
from ppopt.report.plan_objects import common_p2p_time, speedup_over, trainer_text
from ppopt.report.throughput_text import gain_text, max_gain_text, throughput_gain
from ppopt.schedule.origin import SEARCHED
from ppopt.studies.first_schedules import FirstRow
from ppopt.studies.plan_baselines import KNOWN
from ppopt.studies.plan_result import LeastMemory, Plan, PlanBaseline, RowStatus
from ppopt.studies.plan_space import ANY_RUNTIME, PLACEMENTS, PlanConfiguration

TWO_ROUTES = "--routes 2 --partition balanced"
"""Flags of a plan with two routes."""
BEST = "best"
"""Word of the best row."""
_STATUS_TEXTS = {
    RowStatus.OPTIMAL: "searched",
    RowStatus.FEASIBLE: "searched",
    RowStatus.UNKNOWN: "searched",
    RowStatus.EVALUATED: "evaluated",
    RowStatus.PRUNED: "excluded",
    RowStatus.INFEASIBLE: "over the limit",
}
_MEANINGS = {
    "evaluated": "hand strategies alone, so a search may find a faster schedule",
    "excluded": "the bound proves that no schedule is faster than the best",
}
FEW_NAMES = 5
"""Names of a list that are shown; --json has all."""


_DIMENSIONS = {
    "placement": ("placements", "placement"),
    "chunks": ("chunks", "chunks"),
    "recompute": ("recompute", "recompute"),
    "schedules": ("strategies", "strategy"),
    "microbatches": ("batches", "batches"),
}
"""Dimensions of a plan: the field of its space, and that of a configuration."""


def describe_plan(plan: Plan, files: Sequence[Path]) -> Iterator[str]:
    """What the tables of a plan do not say, a sentence each; empty ones are to be left out.

    `files` are those of `describe_use`.
    """
    yield status_legend([status_word(row.status, row.searches) for row in plan.rows[1:]])
    yield describe_limit(plan)
    yield describe_gain(plan)
    yield describe_late(plan.late_baselines)
    yield describe_better_outside(plan)
    yield describe_least_memory(plan.least_memory, plan.pipeline.memory_unit)
    yield describe_within(plan)
    yield describe_more_memory(plan)
    yield describe_space(plan)
    yield describe_beyond(plan)
    yield describe_no_limit(plan)
    yield from describe_use(plan, files)
    yield from describe_skipped(plan.skipped)


def status_word(status: RowStatus, searches: int) -> str:
    """How far a configuration or combination other than the best was searched, in a table."""
    if status is RowStatus.UNKNOWN and not searches:
        return "not searched"
    return _STATUS_TEXTS[status]


def status_legend(statuses: Collection[str]) -> str:
    """Meanings of those statuses of a table that need an explanation; empty if none does."""
    return "; ".join(
        f"{status}: {text}" for status, text in _MEANINGS.items() if status in statuses
    )


def describe_limit(plan: Plan) -> str:
    """The memory limit within which there is no schedule, and a limit that is enough; or empty."""
    pipeline = plan.pipeline
    device_limits = limits(pipeline)
    if plan.least_memory_row is None or device_limits is None:
        return ""
    limit = spread(device_limits, pipeline.memory_unit)
    return f"memory limit: {limit}; {describe_enough(plan.least_memory_row)}"


def describe_enough(row: FirstRow) -> str:
    """A memory limit that is enough, with its schedule."""
    memory = significant(row.peak, row.schedule.pipeline.memory_unit, ROUND_CEILING)
    configuration = describe_configuration(row.configuration)
    return f"{memory} per device is enough: {configuration}, one microbatch at a time"


def describe_least_memory(min_memory: LeastMemory | None, unit: str | None) -> str:
    """The minimum memory with which the best configuration is as fast; empty if not looked for."""
    if min_memory is None:
        return ""
    memory = significant(min_memory.memory, unit, ROUND_CEILING)
    text = f"runs at this speed in {memory} per device"
    if not min_memory.lower_bound:
        return f"{text}; less memory may be enough"
    below = "less"
    if min_memory.memory != min_memory.lower_bound:
        below = f"below {significant(min_memory.lower_bound, unit, ROUND_FLOOR)}"
    return f"{text}; {below} is proved impossible for this configuration"


def describe_configuration(configuration: PlanConfiguration) -> str:
    """A configuration: `1f1b, v/2, recompute none`."""
    strategy = [] if configuration.strategy == SEARCHED else [configuration.strategy]
    where = short_placement(configuration.placement, configuration.chunks)
    return ", ".join([*strategy, where, f"recompute {configuration.recompute}"])


def describe_within(plan: Plan) -> str:
    """The least memory that is almost as fast; empty if it was not looked for."""
    within, best = plan.within, plan.rows[0].per_microbatch
    if within is None or best is None:
        return ""
    pipeline = plan.pipeline
    unit = pipeline.memory_unit
    gain = throughput_gain(best, within.value / within.configuration.batches)
    value = significant(within.value, pipeline.time_unit)
    memory = significant(within.memory, unit, ROUND_CEILING)
    configuration = describe_configuration(within.configuration)
    text = (
        f"minimum memory within the slowdown: {memory} per device, {gain_text(gain)} "
        f"({value}, {configuration})"
    )
    low = within.lower_bound
    if low is None:
        return f"{text}; less memory may be enough"
    if low == within.memory:
        return f"{text}; proved"
    return f"{text}; below {significant(low, unit, ROUND_FLOOR)} it is proved impossible"


def describe_more_memory(plan: Plan) -> str:
    """The gain with 10 % more memory; empty without a limit."""
    more, value = plan.more_memory, plan.value
    if more is None or value is None:
        return ""
    pipeline = plan.pipeline
    memory = f"up to {significant(max(more.limits), pipeline.memory_unit)} per device"
    limit = f"with a 10 % higher limit ({memory})"
    times = (more.value, more.lower_bound)
    gain, max_gain = (throughput_gain(value, time) for time in times if time is not None)
    if not max_gain:
        return f"{limit}: no more throughput (proved)"
    possible = max_gain_text(max_gain)
    if not gain:
        bounded = f"; {possible}" if SEARCHED in plan.space.strategies else ""
        return f"{limit}: no faster schedule found{bounded}"
    makespan = significant(more.value, pipeline.time_unit)
    return f"{limit}: {gain_text(gain)} ({makespan} found), {possible}"


def describe_gain(plan: Plan) -> str:
    """How much more throughput the plan has than baselines; empty if none is known."""
    own = plan.rows[0].configuration.strategy
    compared = [
        (baseline, speedup)
        for baseline in plan.baselines
        if baseline.in_space and baseline.strategy != own
        and (speedup := speedup_over(baseline, plan)) is not None
    ]  # fmt: skip
    named = compared[:1] + [entry for entry in compared[1:] if entry[0].strategy in KNOWN]
    if not named:
        return ""
    baseline, speedup = named[0]
    if speedup < 1:
        name = _describe_baseline(baseline)
        return f"loss: {gain_text(speedup - 1)} than {name}; raise --time-limit"
    each = "each with" if len(named) > 1 else "with"
    gains = ", ".join(_gain_over(*entry) for entry in named)
    return f"gain: {gains}, {each} the best partition found for it"


def _gain_over(baseline: PlanBaseline, speedup: float) -> str:
    than = "as" if speedup == 1 else "than"
    return f"{gain_text(speedup - 1)} {than} {_describe_baseline(baseline)}"


def _describe_baseline(baseline: PlanBaseline) -> str:
    """A baseline with its chunks and recompute."""
    chunks = baseline.schedule.pipeline.num_chunks
    name = baseline.strategy + (f"/{chunks}" if chunks > 1 else "")
    usual = baseline.recompute in ("none", "layers")
    return name if usual else f"{name} with recompute {baseline.recompute}"


def describe_late(late: Sequence[str]) -> str:
    """Baselines that the gain does not count, as there was no time for them."""
    if not late:
        return ""
    more = len(late) - FEW_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return f"skipped {', '.join(late[:FEW_NAMES])}{rest}: time limit reached"


def describe_better_outside(plan: Plan) -> str:
    """A baseline outside of the space that is better than the plan; empty without one."""
    for baseline in plan.baselines:
        speedup = speedup_over(baseline, plan) or 1
        if baseline.in_space or speedup >= 1:
            continue
        where = describe_placing(baseline.schedule.pipeline)
        gain = gain_text(1 / speedup - 1)
        text = f"not searched, but faster: {baseline.strategy} ({where}), {gain}"
        flags = _widening_flags(plan, baseline)
        return f"{text}; try `{flags}`" if flags else text
    return ""


def _widening_flags(plan: Plan, baseline: PlanBaseline) -> str:
    """The flags that add a baseline to the space of a plan; empty if no flags do."""
    space, pipeline = plan.space, baseline.schedule.pipeline
    placement, chunks = pipeline.resolved_placement, pipeline.num_chunks
    if placement not in PLACEMENTS or space.runtime != ANY_RUNTIME:
        return ""
    flags = [] if SEARCHED in space.strategies else [f"--strategies {baseline.strategy}"]
    flags += [] if placement in space.placements else [f"--placement {placement}"]
    flags += [] if chunks in space.chunks else [f"--chunks {chunks}"]
    flags += [TWO_ROUTES] if pipeline.routes > _routes(plan) else []
    return " ".join(flags)


def describe_space(plan: Plan) -> str:
    """What the plan searched and what it kept as given, in one line."""
    space, pipeline = plan.space, plan.pipeline
    fixed = ["one route" if _routes(plan) == 1 else "two routes"]
    searched = list((space.open_decisions & ~Decisions.ORDER).names)
    for name, (values, field) in _DIMENSIONS.items():
        used = {getattr(row.configuration, field) for row in plan.rows}
        used_values = [value for value in getattr(space, values) if value in used]
        text = f"{name} {', '.join(map(str, used_values))}"
        if len(used_values) > 1 or used_values == [SEARCH]:
            searched.append(text)
        elif used_values != [SEARCHED]:
            fixed.append(text)
    if Trait.MICROBATCHES in pipeline.traits:
        where = searched if Decisions.ORDER in space.open_decisions else fixed
        where.append("order of microbatches")
    p2p_time = common_p2p_time(pipeline)
    if p2p_time is not None:
        fixed.append(f"p2p time {measured(p2p_time, pipeline.time_unit)}")
    rest = f"fixed: {'; '.join(fixed)}"
    return f"searched: {'; '.join(searched)}; {rest}" if searched else rest


def _routes(plan: Plan) -> int:
    return int(plan.space.fields.get("routes", 1))


def describe_no_limit(plan: Plan) -> str:
    """How to set a memory limit; empty if there is one, or if memory has no unit."""
    pipeline = plan.pipeline
    if plan.value is None or pipeline.memory_unit is None or pipeline.limits is not None:
        return ""
    return "no memory limit: add one, such as --mem-limit 80GiB"


def describe_use(plan: Plan, files: Sequence[Path] = ()) -> list[str]:
    """How to use the best plan, a line each; nothing if there is none.

    `files`: the files that were written, perhaps a schedule (`.json`) among them.
    """
    if plan.value is None:
        return []
    schedules = [path for path in files if path.suffix.lower() == ".json"]
    file = str(schedules[0].with_suffix("")) if schedules else "best"
    lines = [f"to use {file}.json:"]
    if not schedules:
        written = f"{', '.join(map(str, files))} written; " if files else ""
        lines = [f"{written}to use the plan, add -o best.json, then:"]
    text, strategy = trainer_text(plan), plan.rows[0].configuration.strategy
    arguments = text["megatron_arguments"]
    if arguments is not None:
        part = "" if strategy in STRATEGIES + COMBINED else " (partition only)"
        lines.append(f"  Megatron-LM{part}: " + " ".join(arguments.split("\n")).strip())
    if text["torchtitan"] is not None:
        lines.append(f"  torchtitan: ppopt export {file}.json --to torchtitan -o parallelism.toml")
    if text["deepspeed"] is not None:
        part = "" if strategy == "1f1b" else " (partition only)"
        parts = [0, *accumulate(plan.pipeline.counts)]
        lines.append(f"  DeepSpeed{part}: a PipelineModule of parts {parts}; --json has its class")
    lines.append(f"  PyTorch: ppopt export {file}.json --to torch-csv -o {file}.csv")
    return lines


def describe_beyond(plan: Plan) -> str:
    """Where better schedules may be that the plan did not look at, and what to type."""
    space = plan.space
    if plan.value is None or space.strategies != (SEARCHED,):
        return ""
    chunks = ",".join(map(str, (*space.chunks, max(space.chunks) + 1)))
    is_open = Decisions.PARTITION in space.open_decisions
    fixed = [] if is_open else ["other partitions (--partition search)"]
    fixed.append(f"more chunks (--chunks {chunks})")
    if len(space.placements) < len(PLACEMENTS):
        fixed.append(f"other placements (--placement {','.join(PLACEMENTS)})")
    if _routes(plan) == 1 and space.runtime == ANY_RUNTIME:
        fixed.append(f"two routes ({TWO_ROUTES})")
    return f"not searched: {', '.join(fixed)}"
