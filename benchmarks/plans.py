"""Plans of the models in `models/`, beside hand-made configurations and one solve after another.

    python -m benchmarks.plans --seconds 120 -o benchmarks/records/DATE-plans.md

A model per row, its devices and microbatches as in its file, 80 GiB a device, one worker. `plan`
searches linear, interleaved and V placement, one and two chunks, and recompute `none`, `full` and
`search`, for `--seconds`. `ruled out` is the share of configurations that bounds alone rule out.
`by hand` is 1F1B (or interleaved 1F1B) on the published partition of that model, where there is
one, else on the even partition: the layout of DeepSeek-V3 is that of Megatron-LM's documentation
(docs/user-guide/features/pipeline_parallel_layout.md of NVIDIA/Megatron-LM).

With `--one-by-one`, the same configurations are solved one after the other, each for as many
seconds as the whole plan: what a loop around `ppopt solve` does. `its s` is what that takes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import ppopt
from benchmarks.machine import heading
from ppopt import InputError, Pipeline, Plan
from ppopt.formats.files import write

LIMIT = "80GiB"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "internvl2-26b", "llama-3.1-8b-128k")
PUBLISHED = {"deepseek-v3": (("1f1b", "Et*4|(t*4|)*14tmL"), ("interleaved", "Et*3|(tt|)*29,m|L"))}
"""Strategy and partition of published configurations; interleaved has two chunks."""
BY_HAND = (("1f1b", "even"), ("1f1b", "balanced"), ("interleaved", "even"))
"""Where none is published: what a user would set up without a search."""
COLUMNS = (
    *("model", "p x m", "plan", "best", "gap %", "ruled out", "s"),
    *("by hand", "gain %", "one by one", "its s", "times"),
)


class Hand(NamedTuple):
    """The best configuration made by hand that keeps the limit."""

    words: str
    value: Fraction


def plan_of(pipeline: Pipeline, seconds: float, limit: str) -> Plan:
    """The plan of a model with the devices and microbatches of its file."""
    return ppopt.plan(
        pipeline.model,
        devices=pipeline.num_devices,
        batches=pipeline.batches,
        mem_limit=limit,
        **({"p2p": pipeline.p2p} if pipeline.link is None else {"link": pipeline.link}),
        time_limit=seconds,
        workers=1,
    )


def by_hand(name: str, pipeline: Pipeline, limit: str) -> Hand | None:
    """The best of the configurations made by hand, with all recomputing or none."""
    found = []
    for strategy, partition in PUBLISHED.get(name, BY_HAND):
        for recompute in ("none", "full"):
            try:
                made = replace(pipeline, partition=partition, recompute=recompute, mem_limit=limit)
                schedule = ppopt.evaluate(made, strategy)
            except InputError:
                continue
            if schedule.fits_limits:
                value = schedule.pipeline.ticks.time(schedule.metrics.makespan)
                found.append(Hand(f"{strategy}, {partition}, {recompute}", value))
    return min(found, key=lambda one: one.value, default=None)


def one_by_one(plan: Plan, seconds: float) -> tuple[Fraction | None, float]:
    """The best value of all configurations, each solved for so long, and the seconds taken."""
    began, values = time.monotonic(), []
    for row in plan.rows:
        pipeline = plan.space.pipeline(row.configuration)
        found = ppopt.solve(pipeline, time_limit=seconds, workers=1)
        if found.value is not None:
            values.append(found.value)
    return min(values, default=None), time.monotonic() - began


def line(name: str, seconds: float, limit: str, *, loop: bool) -> str:
    """The line of a model in the table."""
    pipeline = ppopt.read_pipeline(name)
    plan = plan_of(pipeline, seconds, limit)
    hand = by_hand(name, pipeline, limit)
    alone = sum(row.ruled_out_by_bounds for row in plan.rows)
    alone += sum(row.status == "infeasible" and not row.searches for row in plan.rows)
    gain = "-"
    if hand is not None and plan.value is not None:
        gain = f"{float(100 * (hand.value / plan.value - 1)):.2f}"
    value, took = one_by_one(plan, seconds) if loop else (None, 0.0)
    cells = (
        name,
        f"{pipeline.num_devices} x {pipeline.batches}",
        "-" if plan.best is None else str(plan.best.configuration),
        _shown(plan.value),
        "-" if plan.gap is None else f"{float(100 * plan.gap):.2f}",
        f"{alone} of {len(plan.rows)}",
        f"{plan.solve_seconds:.1f}",
        "-" if hand is None else f"{_shown(hand.value)} ({hand.words})",
        gain,
        _shown(value),
        f"{took:.1f}" if loop else "-",
        f"{took / plan.solve_seconds:.1f}" if loop else "-",
    )
    return f"| {' | '.join(cells)} |"


def _shown(value: Fraction | None) -> str:
    return "-" if value is None else f"{float(value):.2f}"


def lines(names: Sequence[str], seconds: float, limit: str, *, loop: bool) -> Iterator[str]:
    """The table, as it comes."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for name in names:
        yield line(name, seconds, limit, loop=loop)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as it comes, and write the record."""
    parser = argparse.ArgumentParser(description="plans of the models that come along")
    parser.add_argument("models", nargs="*", default=MODELS, help="names, see `ppopt models`")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each plan (default 120)")
    parser.add_argument("--mem-limit", default=LIMIT, help=f"memory of a device (default {LIMIT})")
    parser.add_argument("--one-by-one", action="store_true", help="solve each configuration, too")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    given = parser.parse_args(arguments)
    head = (
        heading("Plans", "ortools", "numpy"),
        f"\n{(__doc__ or '').strip()}\n\nSeconds of each plan: {given.seconds:g}. "
        f"Memory: {given.mem_limit}. Makespan in ms.\n",
    )
    table = []
    for one in lines(given.models, given.seconds, given.mem_limit, loop=given.one_by_one):
        table.append(one)
        print(one, flush=True)
        if given.output is not None:
            write(given.output, "\n".join((*head, *table)) + "\n")


if __name__ == "__main__":
    main()
