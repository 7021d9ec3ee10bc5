"""A plan over the parallelism, against planning every combination by itself.

    python -m benchmarks.parallel_plans > benchmarks/records/DATE-parallel-plans.md

Llama 3.1 70B on 64 H100, 72 GiB each, 128 sequences of 8192 tokens.
"""

from __future__ import annotations

import time
from fractions import Fraction

from benchmarks.derived_models import LLAMA_70B
from benchmarks.record import heading
from ppopt import Plan, plan
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.gpus import gpu_named
from ppopt.studies.parallel_plan import plan_parallelism
from ppopt.studies.parallel_set_up import PlanArguments
from ppopt.studies.parallel_space import ParallelSpace

LIMIT = 72 * 1024
"""MiB."""
SECONDS = 60.0
"""Time limit of the plan over all combinations."""
SECONDS_EACH = 20.0
"""Time limit of the plan of one combination."""
SPACE = ParallelSpace(
    LLAMA_70B,
    gpu_named("h100"),
    gpus=64,
    global_batch=128,
    tensor=(2, 4, 8),
    microbatch=(1, 2),
    data=(2, 4),
    context=(1,),
    training={"sequence": 8192},
)


def alone(model: DerivedModel) -> Plan:
    """The plan of one combination by itself."""
    return plan(model.pipeline, mem_limit=LIMIT, time_limit=SECONDS_EACH, workers=1)


def step_text(step: Fraction | None) -> str:
    """A time in ms."""
    return "–" if step is None else f"{float(step):.1f}"  # noqa: RUF001


def main() -> None:
    """Print the record."""
    print(heading("A plan over the parallelism, beside one plan per combination"))
    print(f"\n{' '.join((__doc__ or '').split('DATE-parallel-plans.md')[1].split())}\n")
    began = time.monotonic()
    plan = plan_parallelism(SPACE, PlanArguments(mem_limit=LIMIT), time_limit=SECONDS, workers=1)
    together = time.monotonic() - began
    print("| combination | together: step | bound | seconds | alone: step | bound | seconds |")
    print("|---|---|---|---|---|---|---|", flush=True)
    total = 0.0
    best: Fraction | None = None
    for row in plan.rows:
        began = time.monotonic()
        single = alone(row.model)
        spent = time.monotonic() - began
        total += spent
        best = min((v for v in (best, single.value) if v is not None), default=None)
        in_plan = f"{step_text(row.value)} | {step_text(row.lower_bound)} | {row.state.seconds:.1f}"
        apart = f"{step_text(single.value)} | {step_text(single.lower_bound)} | {spent:.1f}"
        print(f"| {row.parallelism} | {in_plan} | {apart} |", flush=True)
    print(
        f"\nTimes in ms. Together: {step_text(plan.value)} in {together:.0f} s, no combination "
        f"below\n{step_text(plan.lower_bound)}. "
        f"One by one: {step_text(best)} in {total:.0f} s."
    )


if __name__ == "__main__":
    main()
