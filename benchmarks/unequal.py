"""Where the optimum beats every baseline at the same memory, and where one is optimal.

python -m benchmarks.unequal

Searches, then writes docs/unequal.md with its pictures and schedules; tests check the page
against them without searching.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ppopt import NotApplicableError, Objective, Pipeline, Schedule, evaluate, solve
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.exact import plain
from ppopt.report.svg import svg
from ppopt.report.throughput_text import gain_cell, gain_text, throughput_gain
from ppopt.strategies import registry

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "unequal.md"
LAYOUTS: dict[str, dict[str, Any]] = {
    "linear": {},
    "v": {"placement": "v"},
    "interleaved": {"placement": "interleaved"},
    "two routes": {"routes": 2},
    "two slices": {"slices": 2},
}
"""What baselines set, so that the search may, too."""
STAGES: dict[str, Any] = {
    "stages": 4,
    "batches": 8,
    "forward": [10, 12, 9, 11],
    "backward_input": [11, 13, 10, 12],
    "p2p": 1,
}


@dataclass(frozen=True)
class Example:
    """A pipeline, and what is special about it."""

    name: str
    title: str
    description: str
    pipeline: Pipeline

    @property
    def file(self) -> Path:
        """Where the best schedule found is kept."""
        return DOCS / "pictures" / f"unequal-{self.name}.json"

    def picture(self, which: str) -> Path:
        """Where the picture of `hand` or `best` is kept."""
        return DOCS / "pictures" / f"unequal-{self.name}-{which}.svg"


EXAMPLES = (
    Example(
        "between",
        "A limit between those of the strategies",
        "Five activations per device: ZB-H1 and ZB-V are designed for four, ZB-H2 for seven. If "
        "stages differ, memory for one more activation makes the optimum faster.",
        Pipeline(**STAGES, weight=[6, 7, 5, 8], mem_limit=5),
    ),
    Example(
        "activations",
        "Stages with unequal activations",
        "An activation of the first stage is twice as large as one of the last stage. Strategies "
        "count activations, not their size, so most of them exceed the limit.",
        Pipeline(**STAGES, weight=[9, 10, 8, 9], activation=[6, 4, 4, 3], mem_limit=16),
    ),
    Example(
        "low",
        "Less memory than 1F1B",
        "Two and a half activations per device, between V-Min (two) and V-Half (three).",
        Pipeline(**STAGES, weight=[9, 10, 8, 9], mem_limit="2.5"),
    ),
)


HEAD = """\
# Pipelines on which the optimum beats every strategy

Written by `python -m benchmarks.unequal`. Results on unequal stages, with the same memory limit:

| pipeline | best strategy | best schedule found | more throughput |
|---|---|---|---|"""
MIDDLE = """
On equal stages, at the memory limit that a strategy is designed for, the strategy is usually
optimal: see the [last table](#strategies-compared-with-the-optimum-of-their-placement).

Every strategy is evaluated with its own placement and chunks, and with the real times of the
stages. Strategies over the limit are left out; the search gets the same limit. The lower bound
holds for the placement and chunks of its row. Static memory is 0, so the second copy of weights
that two routes need costs nothing here.
"""
CASES_HEAD = """\
## Strategies compared with the optimum of their placement

`optimal`: a search proved that no schedule of that placement within that limit is better.
`ppopt verify --bound` confirmed each bound in independent code: the device spans of V-Half and
V-Min in a few minutes (`--time-limit 900`), the others in at most half a minute.

| strategy | pipeline | objective | value | lower bound | |
|---|---|---|---|---|---|"""


class Baseline(NamedTuple):
    """A baseline that fits the limit, by its makespan."""

    value: Fraction
    name: str
    schedule: Schedule


def baselines(pipeline: Pipeline, objective: Objective = Objective.MAKESPAN) -> list[Baseline]:
    """Baselines within the limit of a pipeline, each in its own layout, best first."""
    fitting = []
    for name, strategy in registry().items():
        try:
            schedule = evaluate(strategy.unplaced(pipeline), name, objective)
        except NotApplicableError:
            continue
        if schedule.fits_limits:
            value = schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective))
            fitting.append(Baseline(value, name, schedule))
    return sorted(fitting, key=lambda baseline: (baseline.value, baseline.name))


class Case(NamedTuple):
    """A limit at which a baseline is compared with the optimum of its placement."""

    strategy: str
    description: str
    pipeline: Pipeline
    objective: Objective = Objective.MAKESPAN


EQUAL: dict[str, Any] = {"stages": 4, "batches": 8}
HEAVY: dict[str, Any] = {
    "forward": [10, 10, 10, 14],
    "backward_input": [11, 11, 11, 15],
    "weight": [9, 9, 9, 12],
    "p2p": 1,
}
CASES = (
    *(
        Case(
            name,
            f"4 x 8, F = B = W, {limit} activations",
            Pipeline(**EQUAL, mem_limit=limit),
            objective,
        )
        for name, limit in (("zb-1p", 4), ("zbv", 4), ("v-half", 3), ("v-min", 2))
        for objective in Objective
    ),
    Case(
        "zb-1p", "4 x 8, heavy last stage, 4 activations", Pipeline(**EQUAL, **HEAVY, mem_limit=4)
    ),
    Case("zbv", "4 x 8, heavy last stage, 4 activations", Pipeline(**EQUAL, **HEAVY, mem_limit=4)),
)
"""Cases in which a baseline is optimal, or in which that is not known."""


def example_text(example: Example, seconds: float) -> str:
    """Search every layout, write schedule and pictures, return the section of the page."""
    searched = {
        layout: solve(replace(example.pipeline, **settings), time_limit=seconds)
        for layout, settings in LAYOUTS.items()
    }
    solved = (result for result in searched.values() if result.schedule)
    best = min(solved, key=lambda result: result.value or 0)
    assert best.schedule is not None
    assert best.value is not None
    best.schedule.to_json(example.file)
    fitting = baselines(example.pipeline)
    stored = read_schedule(example.file)[0]
    example.picture("best").write_text(svg(stored), encoding="utf-8")
    example.picture("hand").write_text(svg(fitting[0].schedule), encoding="utf-8")
    rows = [
        f"| search, {layout} | {_number(result.value)} | {_number(result.lower_bound)} |"
        for layout, result in searched.items()
    ]
    rows += [f"| `{baseline.name}` | {_number(baseline.value)} | |" for baseline in fitting]
    gain = throughput_gain(fitting[0].value, best.value)
    return "\n".join(
        (
            f"## {example.title}\n",
            f"{example.description}\n",
            f"{_costs(example.pipeline)}\n",
            "| schedule | makespan | lower bound |\n|---|---|---|",
            *rows,
            f"\nThe best schedule found has {gain_text(gain)} than `{fitting[0].name}`, the best "
            "strategy within the limit.\n",
            f"![{fitting[0].name}](pictures/{example.picture('hand').name})\n",
            f"![best found](pictures/{example.picture('best').name})\n",
        )
    )


def short_text() -> Iterator[str]:
    """What the examples show, a row of a table each; from the schedules as they are stored."""
    for example in EXAMPLES:
        best, baseline = read_schedule(example.file)[0], baselines(example.pipeline)[0]
        value = best.pipeline.ticks.time(best.metrics.makespan_ticks)
        gain = throughput_gain(baseline.value, value)
        (layout,) = (
            name
            for name, settings in LAYOUTS.items()
            if replace(example.pipeline, **settings).layout == best.pipeline.layout
        )
        yield (
            f"| {example.title} | {_number(baseline.value)}, `{baseline.name}` "
            f"| {_number(value)}, {layout} | {gain_cell(gain)} |"
        )


def _costs(pipeline: Pipeline) -> str:
    costs = {
        "F": pipeline.forward,
        "B": pipeline.backward_input,
        "W": pipeline.weight,
        "activation": pipeline.activation,
        "limit": pipeline.limits or (),
    }
    parts = [f"{name} {' '.join(_number(cost) for cost in row)}" for name, row in costs.items()]
    size = f"{pipeline.num_devices} devices, {pipeline.batches} microbatches"
    return f"{size}, p2p {_number(pipeline.p2p)}; per device: {'; '.join(parts)}."


def _number(value: Fraction | None) -> str:
    return "none" if value is None else f"{plain(value):g}"


def cases_text(seconds: float) -> Iterator[str]:
    """Search the placement of every case; a row of the table each."""
    for case in CASES:
        baseline = evaluate(case.pipeline, case.strategy, case.objective)
        value = baseline.pipeline.ticks.time(baseline.metrics.value_ticks(case.objective))
        result = solve(baseline.pipeline, objective=case.objective, time_limit=seconds)
        verdict = f"open: between {_number(result.lower_bound)} and {_number(value)}"
        if result.lower_bound == value:
            verdict = "optimal"
        elif result.value is not None and result.value < value:
            verdict = f"beaten: {_number(result.value)}"
        yield (
            f"| `{case.strategy}` | {case.description} | {case.objective.value} | {_number(value)} "
            f"| {_number(result.lower_bound)} | {verdict} |"
        )


def main() -> None:
    """Search everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit per search")
    parser.add_argument("--proof", type=float, default=900.0, help="seconds per proof at the end")
    arguments = parser.parse_args()
    examples = [example_text(example, arguments.seconds) for example in EXAMPLES]
    parts = [
        HEAD,
        *short_text(),
        MIDDLE,
        *examples,
        CASES_HEAD,
        *cases_text(arguments.proof),
    ]
    PAGE.write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
