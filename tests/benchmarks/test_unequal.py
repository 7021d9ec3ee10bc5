"""The page of unequal stages: what it says is true, without searching anew."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

import ppopt
from benchmarks.unequal import (
    CASES,
    CASES_HEAD,
    EXAMPLES,
    HEAD,
    MIDDLE,
    PAGE,
    Example,
    baselines,
    short_text,
)
from ppopt import evaluate
from ppopt.formats.schedule_json import read_schedule
from ppopt.report.svg import svg
from ppopt.report.throughput_text import gain_text, throughput_gain

pytestmark = pytest.mark.slow

TEXT = PAGE.read_text(encoding="utf-8")


def section(example: Example) -> str:
    return TEXT.split(f"## {example.title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_best_schedule_beats_every_hand_strategy(example: Example) -> None:
    """The stored schedule is verified, keeps the limit and is shorter than all that keep it."""
    schedule, claims = read_schedule(example.file)
    assert ppopt.verify(schedule, claims) == []
    assert schedule.pipeline.limits == example.pipeline.limits
    best = schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
    fitting = baselines(example.pipeline)
    assert best < fitting[0].value
    gain = gain_text(throughput_gain(fitting[0].value, best))
    assert f"has {gain} than `{fitting[0].name}`" in section(example)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_stored_schedule_is_of_the_pipeline_shown(example: Example) -> None:
    pipeline, costs = read_schedule(example.file)[0].pipeline, example.pipeline.costs
    stored, chunks = pipeline.costs, pipeline.num_stages // pipeline.num_devices
    for field in ("forward", "backward_input", "weight", "activation"):
        whole = [cost / pipeline.num_slices / chunks for cost in getattr(costs, field)]
        assert sorted(getattr(stored, field)) == sorted(whole * chunks)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_figures_and_pictures_are_current(example: Example) -> None:
    evaluated = {baseline.name: baseline for baseline in baselines(example.pipeline)}
    rows = re.findall(r"\| `([\w-]+)` \| ([\d.]+) \| \|", section(example))
    assert rows
    for name, value in rows:
        assert float(evaluated[name].value) == float(value), f"renew {PAGE} by benchmarks.unequal"
    best = read_schedule(example.file)[0]
    assert example.picture("best").read_text(encoding="utf-8") == svg(best)
    first = evaluated[rows[0][0]].schedule
    assert example.picture("hand").read_text(encoding="utf-8") == svg(first)


def test_values_of_the_cases_are_current() -> None:
    rows = re.findall(
        r"\| `([\w-]+)` \| (.*?) \| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \| (.*) \|", TEXT
    )
    assert TEXT.startswith("\n".join((HEAD, *short_text(), MIDDLE))), f"renew {PAGE}"
    assert CASES_HEAD in TEXT
    assert [row[:3] for row in rows] == [
        (c.strategy, c.description, c.objective.value) for c in CASES
    ]
    for case, (*_, value, bound, verdict) in zip(CASES, rows, strict=True):
        schedule = evaluate(case.pipeline, case.strategy, case.objective)
        figure = schedule.pipeline.ticks.time(schedule.metrics.value_ticks(case.objective))
        assert figure == Fraction(value)
        expected = "optimal" if value == bound else f"open: between {bound} and {value}"
        assert verdict == expected
