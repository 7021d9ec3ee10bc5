"""The page of a frontier in a browser: every point can be clicked, every name can be read."""

from __future__ import annotations

import time
from functools import cache
from itertools import combinations

import pytest

from ppopt.problem.pipeline import Pipeline
from ppopt.report.frontier import frontier_page
from ppopt.report.frontier_report import report_frontier
from ppopt.studies.frontier import frontier
from tests.browser import HEIGHT, WIDTH, View, serious

pytestmark = pytest.mark.slow

SPOTS = """const plot = document.getElementById("curve");
plot.scrollIntoView({ block: "center" });
const { traces, points } = JSON.parse(document.getElementById("curve-data").textContent);
const best = traces.findIndex(({ name }) => name.startsWith("best"));
const drawn = plot.querySelectorAll(".trace.scatter")[best].querySelectorAll(".points path");
return [...drawn].slice(0, points.length).map((point) => {
  const { left, right, top, bottom } = point.getBoundingClientRect();
  return [(left + right) / 2, (top + bottom) / 2];
});"""
"""Where the points are drawn, in pixels of the window."""
NAMES = """return [...document.querySelectorAll("#curve .annotation-text")].map((text) => {
  const { left, right, top, bottom } = text.getBoundingClientRect();
  return [text.textContent, left, right, top, bottom];
});"""
KNEE = 1
"""Limits 1 to 4 with 72, 41, 31, 27: with both axes from 0 to 1, (0, 1), (1/3, 14/45), (2/3, 4/45),
(1, 0). The sum, least where a point is farthest below the line from the first to the last, is least
at the second."""
PANELS = "return ppopt.frame.panels.map((panel) => panel.index)"


@cache
def text() -> str:
    """4 devices, 8 microbatches: four points, two of them where baselines are."""
    points = frontier(Pipeline(stages=4, batches=8), time_limit=600)
    return frontier_page(report_frontier(points))


@pytest.fixture
def page(view: View) -> View:
    view.open(text(), fresh=True)
    view.wait(lambda: view.run(NAMES), "the curve")
    return view


@pytest.mark.parametrize("width", [WIDTH, 900, 420])
def test_a_click_on_any_point_shows_its_schedule(page: View, width: int) -> None:
    page.driver.set_window_size(width, HEIGHT)
    try:
        page.wait(
            lambda: (
                width - 120
                < page.run("return document.getElementById('curve').layout.width")
                < width
            ),
            "the width",
        )
        assert page.run(PANELS) == [KNEE, KNEE]
        assert len(page.run(SPOTS)) == 4
        for index in (2, 3, 0, KNEE):
            x, y = page.run(SPOTS)[index]
            page.drag((x, y), (x, y))
            page.wait(lambda index=index: page.run(PANELS) == [index] * 2, f"schedule {index}")
            page.settle()
        assert page.run("return location.hash") == ""
    finally:
        page.driver.set_window_size(WIDTH, HEIGHT)
    page.quiet()


def test_a_click_beside_the_points_or_a_drag_shows_nothing_else(page: View) -> None:
    (_, _), (x, y), *_ = page.run(SPOTS)
    page.drag((x + 40, y - 40), (x + 40, y - 40))
    page.drag((x, y), (x + 200, y + 60))
    assert page.run(PANELS) == [KNEE, KNEE]
    low, high = page.run("return document.getElementById('curve').layout.xaxis.range")
    assert low == pytest.approx(2, abs=0.1)
    assert high < 4


@pytest.mark.parametrize("width", [WIDTH, 420])
def test_no_name_covers_another_or_a_point(page: View, width: int) -> None:
    page.driver.set_window_size(width, HEIGHT)
    try:
        page.wait(
            lambda: page.run("return document.getElementById('curve').layout.width") < width,
            "the width",
        )
        page.settle()
        spots = page.run(SPOTS)
        boxes = page.run(NAMES)
    finally:
        page.driver.set_window_size(WIDTH, HEIGHT)
    assert {"v-min", "v-half", "zb-1p, zb-h1", "zb-h2"} <= {name for name, *_ in boxes}
    for (first_name, *first), (second_name, *second) in combinations(boxes, 2):
        (left, right, top, bottom), (begin, end, high, low) = first, second
        assert right <= begin or end <= left or bottom <= high or low <= top, (
            first_name,
            second_name,
        )
    for name, left, right, top, bottom in boxes:
        for x, y in spots:
            assert not (left < x < right and top < y < bottom), name


def test_the_theme_of_the_page_is_that_of_the_curve(page: View) -> None:
    paper = "return document.getElementById('curve').layout.paper_bgcolor"
    light = page.run(paper)
    page.press("t")
    assert page.run(paper) == page.run("return ppopt.plot.layout.paper_bgcolor") != light


def test_the_chart_opens_where_a_choice_is_made_and_a_double_click_shows_all(view: View) -> None:
    """On 24 devices 32 microbatches one at a time take 32 (24 + 24 + 1) = 1568; 119 is the least
    that device 23 can take, which waits 23 and works 96. The chart opens with values to 3 x 119."""
    points = frontier(Pipeline(stages=24, batches=32), time_limit=4)
    schedules = [schedule for point in points.points if (schedule := point.result.schedule)]
    view.open(frontier_page(report_frontier(points)))
    view.wait(lambda: view.run("return document.getElementById('curve').layout"), "the curve")
    axis = "return document.getElementById('curve').layout.yaxis.range"
    low, high = view.run(axis)
    assert low < 119
    assert high < 4 * schedules[-1].metrics.makespan_ticks
    last = len(schedules) - 1
    x, y = view.run(SPOTS)[last]
    view.drag((x, y), (x, y))
    view.wait(lambda: view.run(PANELS) == [last, last], "the schedule of the last point")
    assert "longer than the best" not in " ".join(view.texts())
    time.sleep(0.6)  # a click sooner than 0.5 s after another would be its second
    x, y = view.run(SPOTS)[last]
    view.double(x, y - 60)
    view.wait(lambda: view.run(axis)[1] > 1568, "the whole")
    view.quiet()


def test_many_names_at_one_spot_are_cut(view: View) -> None:
    """On one device eleven strategies hold one microbatch and are never idle."""
    points = frontier(Pipeline(stages=1, batches=2), time_limit=600)
    view.open(frontier_page(report_frontier(points)))
    names = [name for name, *_ in view.wait(lambda: view.run(NAMES), "the curve")]
    same = sum((baseline.memory, baseline.value) == (1, 6) for baseline in points.baselines)
    assert any(name.endswith(f" and {same - 3} more") for name in names)
    view.quiet()


def test_a_zoom_places_the_names_anew_and_a_double_click_undoes_it(page: View) -> None:
    axis = "return document.getElementById('curve').layout.xaxis.range"
    (_, y), *_, (end, low) = page.run(SPOTS)  # which scrolls, and names move with the page
    whole, names = page.run(axis), page.run(NAMES)
    page.drag((end - 30, y), (end + 150, low + 25))
    page.wait(lambda: 0 < len(page.run(NAMES)) < len(names), "the zoom")
    assert page.run(axis) != whole
    time.sleep(0.6)  # a click sooner than 0.5 s after the drag would be its second
    page.double(end + 200, low - 60)
    page.wait(lambda: page.run(axis) == whole, "the whole")
    assert page.run(NAMES) == names


def test_a_point_tells_its_figures_and_what_else_is_there(page: View) -> None:
    page.mouse("mouseMoved", *page.run(SPOTS)[3])
    hover = "return document.querySelector('#curve .hoverlayer')?.textContent"
    tip = page.wait(lambda: page.run(hover), "the hover")
    assert tip.startswith("limit 4: 27")
    assert "as zb-1p, zb-h1" in tip


def test_the_curve_comes_before_the_sentences() -> None:
    assert text().index('id="curve"') < text().index("Minimum memory: 1 (proved)")


def test_axe_finds_nothing_serious(page: View) -> None:
    assert serious(page) == []
