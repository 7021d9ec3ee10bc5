"""The page of a study in a browser: charts and table follow the same choices, and each leads to a
schedule."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import ppopt
from ppopt.report import study as studies
from ppopt.report.numbers import NONE
from ppopt.report.study import study_page
from ppopt.schedule.schedule import Schedule
from ppopt.studies.records import SweepRow
from tests.browser import HEIGHT, WIDTH, View, serious

pytestmark = pytest.mark.slow

PIPELINE = ppopt.Pipeline(stages=3, batches=4, forward=1, backward=2, weight=1)
GRID: dict[str, list[Any]] = {
    "batches": [2, 4, 6],
    "mem_limit": ["0.5", 2, None],
    "strategy": ["searched", "gpipe", "1f1b", "dualpipe"],
}
"""No schedule keeps the limit 0.5, and DualPipe needs an even number of devices."""


@cache
def swept() -> tuple[ppopt.Study, tuple[Schedule | None, ...]]:
    """A sweep, and the schedules of its rows."""
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/a.db"
        study = ppopt.sweep(PIPELINE, GRID, storage=url, jobs=1, study_name="mine", time_limit=600)
        rows = [None if row.value is None else study.schedule(row) for row in study.rows]
        return study, tuple(rows)


def drawn(rows: Sequence[SweepRow] | None = None, only: int | None = None) -> str | None:
    """The page of the sweep, or of some rows; `only`: all have the schedule of this row."""
    study, schedules = swept()

    def schedule_of(row: SweepRow) -> Schedule | None:
        (index,) = [index for index, known in enumerate(study.rows) if known.key == row.key
                    and known.overrides.items() <= row.overrides.items()]  # fmt: skip
        return schedules[index]

    return study_page(
        study.name,
        study.rows if rows is None else rows,
        schedule_of if only is None else lambda _: schedules[only],
    )


@cache
def text() -> str:
    page = drawn()
    assert page is not None
    return page


def data(page: str) -> dict[str, Any]:
    match = re.search(r'id="study-data">(.*?)</script>', page)
    return dict(json.loads(match[1]))


@pytest.fixture
def page(view: View) -> View:
    view.open(text(), fresh=True)
    view.wait(lambda: view.run(CELLS), "the heat map")
    return view


CELLS = """const plot = document.getElementById("heat");
const { traces } = { traces: plot.data };
return traces?.[0].z;"""
POINT = """const [name, trace, number] = arguments;
const plot = document.getElementById(name);
plot.scrollIntoView({ block: "center" });
const { x, y } = plot.data[trace];
const { xaxis, yaxis } = plot._fullLayout;
const box = plot.getBoundingClientRect();
return [box.left + xaxis._offset + xaxis.d2p(x[number]),
        box.top + yaxis._offset + yaxis.d2p(y[number])];"""
"""Where a point of a chart lies in the window."""
CELL = """const [column, line] = arguments;
const plot = document.getElementById("heat");
plot.scrollIntoView({ block: "center" });
const { xaxis, yaxis } = plot._fullLayout;
const box = plot.getBoundingClientRect();
return [box.left + xaxis._offset + xaxis.d2p(column), box.top + yaxis._offset + yaxis.d2p(line)];"""
TABLE = """return [...document.querySelectorAll("#rows tbody tr")].map((row) =>
  [...row.cells].map((cell) => cell.textContent));"""
ONLY = "return ppopt.view.only + 1"
CHOOSE = """const [id, words] = arguments;
const select = document.getElementById(id);
select.value = [...select.options].find(({ text }) => text === words).value;
select.dispatchEvent(new Event("change"));"""


def leads(page: View, to: set[int], point: str, *arguments: Any) -> None:
    """Click a place of a chart until one of these schedules is shown.

    A click sooner than 0.3 s after another is its second one, which on a busy machine takes longer.
    """

    def clicked() -> bool:
        time.sleep(0.4)
        x, y = page.run(point, *arguments)
        page.mouse("mouseMoved", x - 3, y)
        page.drag((x, y), (x, y))
        return page.run(ONLY) in to

    page.wait(clicked, f"one of the schedules {to}")
    page.settle()


def section(**settings: Any) -> int:
    """The section of the row of these settings."""
    for row, drawn_row in zip(swept()[0].rows, data(text())["rows"], strict=True):
        if settings.items() <= row.overrides.items():
            assert isinstance(drawn_row["section"], int)
            return drawn_row["section"]
    raise AssertionError(settings)


def shows(page: View, section: int) -> Callable[[], bool]:
    return lambda: bool(page.run(ONLY) == section)


def test_a_cell_holds_the_best_row_and_leads_to_its_schedule(page: View) -> None:
    """Per microbatch: 2 batches take 9 without a limit, 4 take 14; nothing fits 0.5, where
    baselines are still listed, with 3 (2 + 2), 3 (4 + 2) and 3 (6 + 2)."""
    cells = page.run(CELLS)
    assert cells[2][:2] == [9 / 2, 14 / 4]
    assert cells[0] == [12 / 2, 18 / 4, 24 / 6]
    leads(page, {section(batches=4, mem_limit=None, strategy="searched")}, CELL, 1, 2)
    page.quiet()


def test_a_point_of_the_front_leads_to_its_schedule(page: View) -> None:
    """Other rows may lie on the same spot: one of them is shown."""
    rows = data(text())["rows"]
    front = page.run("return document.getElementById('front').data.at(-2).customdata")
    assert len(front) >= 2
    for index, row in enumerate(front):
        spot = rows[row]["figures"][:3]
        sections = {row["section"] for row in rows if row["figures"][:3] == spot}
        leads(page, sections, POINT, "front", 2, index)


def test_a_line_of_the_parallel_coordinates_leads_to_its_schedule(page: View) -> None:
    rows = data(text())["rows"]
    lines = page.run("return document.getElementById('parallel').data.at(-1).customdata")
    trace = page.run("return document.getElementById('parallel').data.length") - 1
    sections = {rows[row]["section"] for row in lines if row is not None}
    leads(page, sections, POINT, "parallel", trace, 3)


def test_the_table_is_sorted_by_any_column_and_its_rows_lead_to_schedules(page: View) -> None:
    assert len(page.run(TABLE)) == 15
    page.click("#rows > button")
    assert len(page.run(TABLE)) == 36
    names = page.run("return [...document.querySelectorAll('#rows th')].map((e) => e.textContent)")
    assert names[:4] == ["batches", "mem_limit", "strategy", "time per microbatch"]
    for column, down in ((3, False), (3, True), (0, False)):
        page.click(f"#rows th:nth-child({column + 1}) button")
        known = [float(row[column]) for row in page.run(TABLE) if row[column] != NONE]
        assert known == sorted(known, reverse=down)
        side = "descending" if down else "ascending"
        head = page.run(f"return document.querySelectorAll('#rows th')[{column}].ariaSort")
        assert head == side
    page.click("#rows th:nth-child(4) button")
    first, *_ = page.run(TABLE)
    page.click("#rows tbody tr")
    wanted = section(batches=int(first[0]), strategy=first[2], mem_limit=None)
    page.wait(shows(page, wanted), "the schedule of the first row")
    page.quiet()


def test_choices_hold_for_charts_and_table(page: View) -> None:
    page.run(CHOOSE, "only-2", "gpipe")
    assert {row[2] for row in page.run(TABLE)} == {"gpipe"}
    assert page.run(CELLS)[0] == [12 / 2, 18 / 4, 24 / 6]
    assert page.run("return document.getElementById('count').textContent") == "9 of 36 rows"
    page.run(CHOOSE, "heat-figure", "memory")
    assert page.run(CELLS)[0] == [2, 4, 6]
    page.run(CHOOSE, "heat-x", "mem_limit")
    assert page.run("return document.getElementById('heat-y').selectedOptions[0].text") == "batches"
    assert [line[0] for line in page.run(CELLS)] == [2, 4, 6]
    page.quiet()


def test_a_row_without_a_schedule_says_why(page: View) -> None:
    page.run(CHOOSE, "only-1", "0.5")
    page.run(CHOOSE, "only-2", "searched")
    assert page.run(CELLS) == [[None] * 3] * 3
    texts = "return [...document.querySelectorAll('#heat .textpoint')].map((e) => e.textContent)"
    assert page.run(texts) == ["infeasible"] * 3
    before = page.run(ONLY)
    page.click("#rows tbody tr")
    assert page.run("return document.getElementById('count').textContent").endswith("infeasible")
    assert page.run(ONLY) == before


@pytest.mark.parametrize("width", [WIDTH, 400])
def test_it_fits_the_window_in_both_themes(page: View, width: int) -> None:
    page.driver.set_window_size(width, HEIGHT)
    try:
        page.wait(
            lambda: page.run("return document.getElementById('heat').layout.width") < width,
            "the width",
        )
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        paper = "return ['heat', 'front', 'parallel'].map((name) => "
        paper += "document.getElementById(name).layout.paper_bgcolor)"
        light = page.run(paper)
        page.press("t")
        dark = page.run(paper)
        assert len({*light}) == len({*dark}) == 1
        assert {*light} != {*dark}
    finally:
        page.driver.set_window_size(WIDTH, HEIGHT)
    page.quiet()


def test_axe_finds_nothing_serious(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one schedule: the time that axe takes grows with the elements of the page."""
    monkeypatch.setattr(studies, "MAX_SCHEDULES", 1)
    page = drawn()
    assert page is not None
    view.open(page, fresh=True)
    view.wait(lambda: view.run(TABLE), "the table")
    assert serious(view) == []


class TestWithoutABrowser:
    def test_the_best_rows_come_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of two schedules one is that of least time; the page says that others are left out."""
        monkeypatch.setattr(studies, "MAX_SCHEDULES", 2)
        page = drawn()
        assert page is not None
        assert "The schedules of the best 2 rows are on this page." in page
        rows = data(page)["rows"]
        first = min(row["figures"][0] for row in rows if row["figures"][0] is not None)
        assert next(row["figures"][0] for row in rows if row["section"] == 1) == first
        assert sum(row["section"] is not None for row in rows) == 2

    @pytest.mark.parametrize(
        ("values", "wanted"),
        [
            (["12GiB", None, "8GiB"], ["8GiB", "12GiB", NONE]),
            (["12GiB", "8GB"], ["12GiB", "8GB"]),
            ([10, 9, 2.5], ["2.5", "9", "10"]),
            (["v", "linear", [0, 1]], ["v", "linear", "0,1"]),
        ],
    )
    def test_numbers_of_one_unit_are_in_order(self, values: list[Any], wanted: list[str]) -> None:
        """Without a limit stands behind all limits."""
        row = swept()[0].rows[-4]
        page = drawn([replace(row, overrides={"key": value}) for value in values], only=-4)
        assert page is not None
        assert data(page)["settings"][0]["values"] == wanted

    def test_pages_repeat_themselves_and_hold_plotly_once(self) -> None:
        assert drawn() == text()
        assert text().count('id="plotly"') == 1

    def test_what_is_in_a_name_is_text(self) -> None:
        page = drawn([
            replace(row, overrides={"<i>": "</script>", **row.overrides}) for row in swept()[0].rows
        ])  # fmt: skip
        assert page is not None
        assert "<i>" not in page.replace("<i style", "").split('id="plotly"')[0]
        assert data(page)["settings"][0] == {"name": "<i>", "values": ["</script>"]}

    def test_the_title_has_the_name_of_the_model(self) -> None:
        schedule = ppopt.evaluate(replace(PIPELINE, name="llama"), "1f1b")
        page = study_page("three", swept()[0].rows, lambda _: schedule)
        assert page is not None and "<title>llama: study three</title>" in page

    def test_without_any_schedule_there_is_no_page(self) -> None:
        study, _ = swept()
        assert study_page(study.name, study.rows, lambda _: None) is None

    def test_one_row_has_no_heat_map(self) -> None:
        page = drawn([replace(swept()[0].rows[-4], overrides={})], only=-4)
        assert page is not None
        assert 'id="heat"' not in page
        assert "the only row" in page


def test_a_page_of_one_row_draws(view: View, tmp_path: Path) -> None:
    page = drawn([replace(swept()[0].rows[-4], overrides={})], only=-4)
    assert page is not None
    view.open(page, fresh=True)
    view.wait(lambda: view.run(TABLE), "the table")
    view.quiet()
    assert tmp_path.exists()
