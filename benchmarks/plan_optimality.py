"""Plans against brute force over partitions: what they lose, and whether they claim a false proof.

    python -m benchmarks.plan_optimality --models 200 -o records/DATE-plan-optimality.md

A record can be resumed: a file next to it has a line of JSON per plan.

Every random model is planned four times: for Megatron-LM and for any runtime, without a memory
limit and within one. For Megatron-LM the best of 1F1B and interleaved 1F1B is known by evaluating
both on every partition, within a limit with no recompute and with full recompute. For any runtime
the models are smaller: every partition of linear, interleaved and V placement, of one and two
chunks, is solved to its end. `loss` is how much longer the plan's schedule is than the best one. A
false proof is a plan that says `optimal` where a better one exists, `infeasible` where one fits, or
states a bound above the best; `missed` found nothing though a schedule fits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import ppopt
from benchmarks.record import heading
from ppopt import Model, Status
from ppopt.formats.files import write
from tests.oracles.configurations import partitions

RUNTIMES = ("megatron", "any")
SECONDS = 20.0
"""Time limit of a plan, and of the solve of one partition."""
COLUMNS = (
    *("runtime", "limit", "plans", "mean loss %", "worst loss %"),
    *("proved", "nothing fits", "missed", "false"),
)
AIM = (0.2, 2.0)
"""Mean and worst loss that is aimed at, in percent."""


class Case(NamedTuple):
    """A model to plan; reproducible from its numbers."""

    seed: int
    runtime: str
    limited: bool


class Outcome(NamedTuple):
    """A plan against brute force, in the unit of the model."""

    case: Case
    status: str
    value: Fraction | None
    best: Fraction | None
    """Of all configurations and partitions; None: none keeps the limit."""
    lower_bound: Fraction | None

    @property
    def loss(self) -> float | None:
        """How much longer the plan's schedule is, in percent; None if one of both has none."""
        if self.value is None or self.best is None:
            return None
        return float(100 * (self.value / self.best - 1))

    @property
    def fault(self) -> str:
        """What is wrong with what the plan claims; empty: nothing."""
        if self.status == Status.OPTIMAL and self.value != self.best:
            return "optimal, and another one is better"
        if self.status == Status.INFEASIBLE and self.best is not None:
            return "infeasible, and one keeps the limit"
        if self.value is not None and (self.best is None or self.value < self.best):
            return "better than the best: brute force has a fault"
        if self.lower_bound is not None and self.best is not None and self.lower_bound > self.best:
            return "its bound is above the best"
        return ""

    @property
    def missed(self) -> bool:
        """Whether it found nothing though a schedule keeps the limit."""
        return self.value is None and self.best is not None


class Space(NamedTuple):
    """A model with what a plan is asked for."""

    model: Model
    devices: int
    batches: int
    p2p: int
    limit: Fraction | None

    def pipelines(self, placement: str, chunks: int, recompute: str) -> Iterator[ppopt.Pipeline]:
        """The pipeline on every partition."""
        for counts in partitions(len(self.model), self.devices * chunks):
            yield self.model.pipeline(
                devices=self.devices, batches=self.batches, p2p=self.p2p, mem_limit=self.limit,
                placement=placement, chunks=chunks, recompute=recompute,
                partition=counts,
            )  # fmt: skip


def drawn(case: Case) -> Space:
    """A random model: embedding, transformer layers of one or two sorts, and a head."""
    rng = Random(f"{case.seed} {case.runtime}")
    megatron = case.runtime == "megatron"
    devices = rng.choice((2, 3)) if megatron else 2
    layers = rng.randint(2 * devices + 1, 2 * devices + 4) if megatron else rng.randint(3, 4)
    sorts = [_layer(rng) for _ in range(2)]
    fields: list[dict[str, Any]] = [
        {"role": "embedding", "forward": 1, "activation": rng.randint(0, 2), "static": 2},
        *(rng.choice(sorts) for _ in range(layers)),
        {"role": "head", **_layer(rng)},
    ]
    model = Model(fields)  # type: ignore[arg-type]  # a list will do
    batches = rng.randint(devices, 6) if megatron else rng.randint(2, 3)
    space = Space(model, devices, batches, rng.choice((0, 0, 1)), None)
    if not case.limited:
        return space
    peaks = [
        max(map(schedule.pipeline.ticks.memory, schedule.metrics.peak_memory_ticks))
        for recompute in ("none", "full")
        for schedule in _evaluated(space, "1f1b", 1, recompute)
    ]
    low, high = min(peaks), max(peaks)
    return space._replace(limit=low + (high - low) * Fraction(rng.randint(-2, 8), 10))


def _layer(rng: Random) -> dict[str, int]:
    full = rng.randint(1, 4)
    return {
        "forward": rng.randint(1, 6),
        "backward": rng.randint(3, 12),
        "weight": rng.randint(1, 3),
        "activation": full,
        "kept": rng.randint(0, full - 1),
        "static": rng.randint(0, 4),
    }


def _evaluated(
    space: Space, strategy: str, chunks: int, recompute: str
) -> Iterator[ppopt.Schedule]:
    placement = "linear" if chunks == 1 else "interleaved"
    for pipeline in space.pipelines(placement, chunks, recompute):
        yield ppopt.evaluate(pipeline, strategy)


def choices(case: Case) -> tuple[str, ...]:
    """The choices of recompute of a plan and of brute force."""
    return ("none", "full") if case.limited and case.runtime == "megatron" else ("none",)


def values(case: Case, space: Space) -> Iterator[Fraction]:
    """The value of every configuration on every partition that keeps the limit."""
    for recompute in choices(case):
        if case.runtime == "megatron":
            for strategy, chunks in (("1f1b", 1), ("interleaved", 2)):
                for schedule in _evaluated(space, strategy, chunks, recompute):
                    if schedule.fits_limits:
                        yield schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
            continue
        for placement, chunks in (("linear", 1), ("interleaved", 2), ("v", 2)):
            for pipeline in space.pipelines(placement, chunks, recompute):
                result = ppopt.solve(pipeline, workers=1, time_limit=SECONDS)
                if result.status not in (Status.OPTIMAL, Status.INFEASIBLE):
                    raise RuntimeError(f"{case}: {pipeline.counts} was not solved to its end")
                if result.value is not None:
                    yield result.value


def run(case: Case) -> Outcome:
    """Plan one model, and look at every partition."""
    space = drawn(case)
    best = min(values(case, space), default=None)
    plan = ppopt.plan(
        space.model, devices=space.devices, batches=space.batches, p2p=space.p2p,
        mem_limit=space.limit, runtime=case.runtime, recompute=choices(case), workers=1,
        time_limit=SECONDS,
    )  # fmt: skip
    return Outcome(case, plan.status, plan.value, best, plan.lower_bound)


def cases(models: int) -> list[Case]:
    """Every model for each runtime, with and without a limit: the first are of all kinds."""
    return [
        Case(seed, runtime, limited)
        for seed in range(models)
        for runtime in RUNTIMES
        for limited in (False, True)
    ]


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The table, a line per runtime and limit."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    for runtime in RUNTIMES:
        for limited in (False, True):
            own = [outcome for outcome in outcomes if outcome.case[1:] == (runtime, limited)]
            if not own:
                continue
            losses = [outcome.loss for outcome in own if outcome.loss is not None] or [0.0]
            cells = (
                runtime,
                "yes" if limited else "no",
                str(len(own)),
                f"{sum(losses) / len(losses):.4f}",
                f"{max(losses):.3f}",
                str(sum(outcome.status in (Status.OPTIMAL, Status.INFEASIBLE) for outcome in own)),
                str(sum(outcome.best is None for outcome in own)),
                str(sum(outcome.missed for outcome in own)),
                str(sum(bool(outcome.fault) for outcome in own)),
            )
            yield f"| {' | '.join(cells)} |"
    for outcome in outcomes:
        if outcome.fault or outcome.missed or (outcome.loss or 0) > AIM[1]:
            loss = "missed" if outcome.loss is None else f"loses {outcome.loss:.2f} %"
            head = f"\n- {outcome.case}: {outcome.fault or loss}"
            yield f"{head}; {outcome.status}, {outcome.value} beside {outcome.best}"


def _rows_of(record: Path) -> Path:
    """The file of the outcomes, a line each."""
    return record.with_suffix(".jsonl")


def recorded(path: Path) -> list[Outcome]:
    """The outcomes of an earlier run."""
    outcomes = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        case, status, *figures = json.loads(line)
        exact = [None if figure is None else Fraction(figure) for figure in figures]
        outcomes.append(Outcome(Case(*case), status, *exact))
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and write the record; 1 if a plan claims a false proof."""
    parser = argparse.ArgumentParser(description="plans beside brute force over partitions")
    parser.add_argument("--models", type=int, default=200, help="of each kind (default 200)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("-o", "--output", type=Path, help="the record")
    options = parser.parse_args(arguments)
    head = (
        heading("Plans beside brute force", "ortools", "numpy"),
        f"\n{(__doc__ or '').strip()}\n\nAimed at: {AIM[0]} % and {AIM[1]} %. Time limit of a "
        f"plan: {SECONDS:g} s, one worker; {options.jobs} at a time.\n",
    )
    outcomes = [] if options.output is None else recorded(_rows_of(options.output))
    done = {outcome.case for outcome in outcomes}
    waiting = [case for case in cases(options.models) if case not in done]
    with ProcessPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(run, waiting):
            outcomes.append(outcome)
            if options.output is not None:
                with _rows_of(options.output).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(outcome, default=str) + "\n")
    text = "\n".join((*head, *lines(outcomes))) + "\n"
    print(text)
    if options.output is not None:
        write(options.output, text)
    return int(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
