"""Plans of the models in `models/`, against hand-made configurations and one solve after another.

    python -m benchmarks.plans --seconds 30 --one-by-one --jobs 2 -o records/DATE-plans.md

A model per row, its devices and microbatches as in its file, 80 GiB a device. `plan`
searches linear, interleaved and V placement, one and two chunks, and recompute `none`, `full` and
`search`, for `--seconds`. `ruled out` is the share of configurations that bounds alone rule out.
`by hand` is 1F1B (or interleaved 1F1B) on the published partition of that model, if there is
one, else on the even partition: the layout of DeepSeek-V3 is that of Megatron-LM's documentation
(docs/user-guide/features/pipeline_parallel_layout.md of NVIDIA/Megatron-LM).

With `--one-by-one`, the same configurations are solved one after the other, each for as many
seconds as the whole plan: what a loop around `ppopt solve` does. `its s` is what that takes, and
`times` how often the plan's seconds go into it; `its cpu` and `cpu` are seconds of processors, and
`more %` is how much longer the plan's schedule is (below 0: shorter). Every plan and every solve is
a line of the `.jsonl` next to the record as soon as it ends: what is there is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import ppopt
from benchmarks.record import Row, add_line, format_value, heading, number, read_lines, table
from ppopt import NotApplicableError, Pipeline, Plan, PlanSpace, Result
from ppopt.errors import not_applicable
from ppopt.formats.files import write
from ppopt.studies.plan_space import PlanConfiguration

LIMIT = "80GiB"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "internvl2-26b", "llama-3.1-8b-128k")
PUBLISHED = {"deepseek-v3": (("1f1b", "Et*4|(t*4|)*14tmL"), ("interleaved", "Et*3|(tt|)*29,m|L"))}
"""Strategy and partition of published configurations; interleaved has two chunks."""
BY_HAND = (("1f1b", "even"), ("1f1b", "balanced"), ("interleaved", "even"))
"""Where none is published: what a user would set up without a search."""
COLUMNS = (
    *("model", "p x m", "plan", "best", "gap %", "ruled out", "s", "cpu"),
    *("by hand", "gain %", "one by one", "its s", "its cpu", "times", "more %"),
)
RECOMPUTE = ("none", "full", "search")
PLAN = "plan"


class Task(NamedTuple):
    """A plan, or the solve of one configuration."""

    model: str
    part: str
    """`plan`, or a configuration in words."""
    seconds: float
    limit: str
    workers: int = 1


class Baseline(NamedTuple):
    """The best configuration made by hand that keeps the limit."""

    description: str
    value: Fraction


def space_of(pipeline: Pipeline, limit: str) -> PlanSpace:
    """The configurations of a model with the devices and microbatches of its file."""
    link = {"p2p": pipeline.p2p} if pipeline.link is None else {"link": pipeline.link}
    return PlanSpace(
        model=pipeline.model,
        devices=pipeline.num_devices,
        batches=(pipeline.batches,),
        recompute=RECOMPUTE,
        fields={"mem_limit": limit, **link},
    )


def plan_of(space: PlanSpace, seconds: float, workers: int) -> Plan:
    """The plan of that space."""
    return ppopt.plan(
        space.model,
        devices=space.devices,
        batches=space.batches,
        recompute=space.recompute,
        **space.fields,
        time_limit=seconds,
        workers=workers,
    )


def best_configured(name: str, pipeline: Pipeline, limit: str) -> Baseline | None:
    """The best of the configurations made by hand, with all recomputing or none."""
    baselines = []
    for strategy, partition in PUBLISHED.get(name, BY_HAND):
        for recompute in ("none", "full"):
            try:
                with not_applicable():
                    configured = replace(
                        pipeline, partition=partition, recompute=recompute, mem_limit=limit
                    )
                schedule = ppopt.evaluate(configured, strategy)
            except NotApplicableError:
                continue
            if schedule.fits_limits:
                value = schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
                baselines.append(Baseline(f"{strategy}, {partition}, {recompute}", value))
    return min(baselines, key=lambda baseline: baseline.value, default=None)


def done(task: Task) -> Row:
    """The line of a task in the record."""
    pipeline = ppopt.read_pipeline(task.model)
    space = space_of(pipeline, task.limit)
    result: Plan | Result
    began, busy = time.monotonic(), _processor_seconds()
    if task.part == PLAN:
        result = plan_of(space, task.seconds, task.workers)
    else:
        candidate = next(candidate for candidate in space if str(candidate) == task.part)
        result = ppopt.solve(
            space.pipeline(candidate), time_limit=task.seconds, workers=task.workers
        )
    times = {"s": time.monotonic() - began, "cpu": _processor_seconds() - busy}
    figures = {"value": number(result.value), "lower_bound": number(result.lower_bound)}
    more = _planned(result, pipeline, task) if isinstance(result, Plan) else {}
    return task._asdict() | times | figures | more


def _processor_seconds() -> float:
    """Seconds of processors of this process and its ended children."""
    return sum(os.times()[:4])


def _planned(plan: Plan, pipeline: Pipeline, task: Task) -> Row:
    alone = sum(row.ruled_out_by_bounds for row in plan.rows)
    alone += sum(row.status == "infeasible" and not row.searches for row in plan.rows)
    baseline = best_configured(task.model, pipeline, task.limit)
    more = plan.more_memory
    return {
        "best": None if plan.best is None else str(plan.best.configuration),
        "ruled_out": f"{alone} of {len(plan.rows)}",
        "hand": None if baseline is None else [number(baseline.value), baseline.description],
        "more_memory": None if more is None else [number(more.value), number(more.lower_bound)],
    }


def tasks(
    names: Sequence[str], seconds: float, limit: str, workers: int, *, loop: bool
) -> Iterator[Task]:
    """Everything there is to do, model after model."""
    for name in names:
        yield Task(name, PLAN, seconds, limit, workers)
        space: Sequence[PlanConfiguration] = ()
        if loop:
            space = tuple(space_of(ppopt.read_pipeline(name), limit))
        yield from (Task(name, str(part), seconds, limit, workers) for part in space)


def cells(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """The cells of a model in the table, of its plan and the solves that there are."""
    pipeline = ppopt.read_pipeline(name)
    plan = next(row for row in rows if row["part"] == PLAN)
    solves = [row for row in rows if row["part"] != PLAN]
    values = [row["value"] for row in solves if row["value"] is not None]
    value, baseline, alone = plan["value"], plan["hand"], min(values, default=None)
    known = value is not None
    took = sum(row["s"] for row in solves)
    whole = len(solves) == len(tuple(space_of(pipeline, LIMIT)))
    return (
        name,
        f"{pipeline.num_devices} x {pipeline.batches}",
        plan["best"] or "-",
        format_value(value),
        format_value(100 * (1 - plan["lower_bound"] / value) if known else None),
        plan["ruled_out"],
        f"{plan['s']:.1f}",
        f"{plan['cpu']:.1f}",
        "-" if baseline is None else f"{baseline[0]:.2f} ({baseline[1]})",
        format_value(100 * (baseline[0] / value - 1) if known and baseline is not None else None),
        format_value(alone) + ("" if whole or not solves else f" ({len(solves)} solved so far)"),
        f"{took:.1f}" if solves else "-",
        f"{sum(row['cpu'] for row in solves):.1f}" if solves else "-",
        f"{took / plan['s']:.1f}" if solves else "-",
        format_value(100 * (value / alone - 1) if known and alone is not None else None),
    )


def lines(names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    """The table of what is done."""
    own = {name: [row for row in rows if row["model"] == name] for name in names}
    planned = [name for name in names if any(row["part"] == PLAN for row in own[name])]
    return table(COLUMNS, (cells(name, own[name]) for name in planned))


def of_row(row: Row) -> Task:
    """The task that a line of the record is of."""
    return Task(**{name: row[name] for name in Task._fields if name in row})


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is not done yet, and write the record after each."""
    parser = argparse.ArgumentParser(description="plans of the models that come along")
    parser.add_argument("models", nargs="*", default=MODELS, help="names, see `ppopt models`")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each plan (default 30)")
    parser.add_argument("--mem-limit", default=LIMIT, help=f"memory of a device (default {LIMIT})")
    parser.add_argument("--workers", type=int, default=1, help="of each search (default 1)")
    parser.add_argument("--one-by-one", action="store_true", help="solve each configuration, too")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    options = parser.parse_args(arguments)
    head = (
        heading("Plans", "ortools", "numpy"),
        f"\n{(__doc__ or '').strip()}\n\nSeconds of each plan: {options.seconds:g}, {options.jobs} "
        f"at a time, {options.workers} workers. Memory: {options.mem_limit}. Makespan in ms.\n",
    )
    log = options.output and options.output.with_suffix(".jsonl")
    known = {of_row(row): row for row in read_lines(log)}
    wanted = options.models, options.seconds, options.mem_limit, options.workers
    asked = list(tasks(*wanted, loop=options.one_by_one))
    with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
        waiting = [task for task in asked if task not in known]
        for ended in as_completed(pool.submit(done, task) for task in waiting):
            row = ended.result()
            known[of_row(row)] = row
            print(json.dumps(row), flush=True)
            add_line(log, row)
    text = "\n".join(lines(options.models, [known[task] for task in asked if task in known]))
    print(text)
    if options.output is not None:
        write(options.output, "\n".join((*head, text)) + "\n")


if __name__ == "__main__":
    main()
