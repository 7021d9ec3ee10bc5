"""The page of a plan: every configuration with what is proved of it, and a link to its schedule."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

import ppopt
from ppopt.report import html
from ppopt.report.plan_page import plan_page
from tests.browser import View, serious
from tests.clock import SHORT, work_clock

pytestmark = pytest.mark.slow

MODEL = ppopt.Model(
    [ppopt.Layer(forward=time, activation=4, recompute={"time": 40}) for time in (3, 1, 4, 1, 5)],
    name="tiny",
)
"""Recompute costs more than all else: with it no configuration is good."""


@cache
def planned(batches: tuple[int, ...] = (4,)) -> ppopt.Plan:
    return ppopt.plan(
        MODEL, devices=2, batches=batches, mem_limit=40, placement="linear", chunks=1,
        recompute=("none", "full"), workers=1, time_limit=600,
    )  # fmt: skip


def page_of(plan: ppopt.Plan) -> str:
    return plan_page(plan)


def data(page: str) -> dict[str, Any]:
    match = re.search(r'id="plan">(.*?)</script>', page)
    return dict(json.loads(match[1]))


def table(page: str) -> list[list[str]]:
    """Cells of the table as text, the head first."""
    (body,) = re.findall(r"<section class=\"plan\">.*?(<table>.*?</table>)", page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    return [[re.sub("<[^>]*>", "", cell) for cell in row] for row in cells]


def test_rows_stand_best_first_with_their_bounds() -> None:
    plan = planned()
    assert plan.status is ppopt.Status.OPTIMAL
    head, best, second = table(page_of(plan))
    assert head[:3] == ["configuration", "status", "makespan"]
    assert best[:2] == ["linear, recompute none", "best"]
    assert best[2] == best[3] == str(plan.value)
    assert head[4] == "vs best" and best[4] == "1"
    known = plan.rows[1]
    assert second[:4] == [
        "linear, recompute full", "excluded", str(known.value), str(known.lower_bound)
    ]  # fmt: skip
    assert float(second[4]) == pytest.approx(float(known.value / plan.value), rel=1e-3)


def test_the_whole_space_is_in_words_and_in_data() -> None:
    plan = planned()
    page = page_of(plan)
    assert "tiny: plan" in page
    for label, lead, note in (
        ("status", "optimal", "(proved)"),
        ("makespan", plan.value, f"lower bound {plan.value}"),
        ("memory", "peak 12", "on device 0; limit 40"),
    ):
        tile = f'<dt>{label}</dt><dd class="value">{lead}</dd><dd class="note">{note}</dd>'
        assert tile in page
    assert "Over all 2 configurations: 1 is ruled out by bounds alone, 1 was searched" in page
    assert "with a 10 % higher limit (up to 44 per device)" in page
    plan_data = data(page)
    assert [row["section"] for row in plan_data["rows"]] == ["schedule-1", "schedule-2"]
    assert "solve_seconds" not in plan_data
    assert page_of(plan) == page


def test_several_batches_compare_per_microbatch() -> None:
    plan = planned((2, 4))
    head, *rows = table(page_of(plan))
    assert head[1] == "microbatches"
    assert head[3] == "time per microbatch"
    assert [row[1] for row in rows[:2]] == ["4", "2"]
    assert plan.best.per_microbatch is not None
    assert float(rows[0][3]) == float(plan.best.per_microbatch)


def test_of_many_operations_the_best_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned((2, 4))
    assert sum(row.schedule is not None for row in plan.rows) == 4
    monkeypatch.setattr(html, "MAX_OPERATIONS", 1)
    plan_data = data(page_of(plan))
    assert [row["section"] for row in plan_data["rows"]][:2] == ["schedule-1", None]


def test_the_table_and_the_cards_fit_the_window(view: View) -> None:
    """1400 pixels, of a real model whose configurations have long partitions."""
    pipeline = ppopt.read_pipeline("internvl2-26b")
    with work_clock(SHORT):
        plan = ppopt.plan(pipeline, mem_limit="80GiB", time_limit=12, workers=1)
    view.open(page_of(plan), fresh=True)
    wide = """return [...document.querySelectorAll(".plan .scroll, .plan")].map(
        (part) => part.scrollWidth > part.clientWidth);"""
    assert view.run(wide) == [False, False]
    cards = view.run("return [...document.querySelectorAll('.plan dt')].map((e) => e.textContent)")
    assert {"best configuration", "status", "makespan", "gain", "memory"} <= set(cards)
    view.quiet()


def test_a_click_shows_the_schedule_of_a_row(view: View) -> None:
    view.open(page_of(planned((2, 4))), fresh=True)
    links = view.run("return document.querySelectorAll('.plan table a').length")
    assert links == 4
    view.click(".plan tr:nth-child(2) a")
    view.wait(lambda: view.run("return ppopt.view.only") == 1, "the second schedule")
    assert serious(view) == []
    view.quiet()
