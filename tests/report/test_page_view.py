"""The view of a page: devices zoomed, links followed, keys that end, and what hidden things do."""

from __future__ import annotations

import base64
import math
from functools import cache
from importlib.resources import files

import pytest

from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.html import page
from ppopt.schedule.schedule import Schedule
from tests.browser import View, rgb
from tests.factories.schedules import live_memory, peaks, table
from tests.report.test_page import baseline

pytestmark = pytest.mark.slow

VIEW = "const { from, to, low, high } = ppopt.view; return [from, to, low, high]"
ALL = [0, 13.5, 0, 4]
"""The whole of ZB-1P, F = 0.5, on 4 devices with 8 microbatches: half of 27."""


@cache
def small() -> str:
    return page([schedule_of_page()])


def schedule_of_page() -> Schedule:
    return baseline("zb-1p", forward="0.5", mem_limit="1f1b")


@cache
def tall() -> str:
    """Rows of 22.5 pixels: a drag zooms in on devices too."""
    return page([baseline("1f1b", 32, 2)])


@cache
def three() -> str:
    """One of three schedules at a time, as of a frontier."""
    names = ("gpipe", "1f1b", "zb-1p")
    return page([baseline(name) for name in names], opening="<p>three</p>")


def test_keys_show_fewer_devices_in_taller_rows_and_others_of_them(view: View) -> None:
    view.open(tall())
    heights = "return [ppopt.frame.panels[0].row, ppopt.plot.layout.yaxis.range]"
    assert view.run(heights) == [22.5, [31.5, -0.5]]
    view.press("v")
    assert view.run(heights) == [36, [23.5, 7.5]]
    assert view.point(0, 15.5, 16).splitlines()[0] == "idle warm-up"
    assert view.point(0, 16.5, 16).splitlines()[0] == "16F0 forward"
    view.press("\ue015")
    assert view.run(heights)[1] == [27.5, 11.5]
    view.press("\ue013\ue013\ue013\ue013")
    assert view.run(heights)[1] == [15.5, -0.5]
    address = view.run("return location.hash")
    assert address == "#y=0,16"
    view.press("V")
    assert view.run(heights) == [22.5, [31.5, -0.5]]
    view.open(tall(), address, fresh=True)
    assert view.run(heights) == [36, [15.5, -0.5]]
    view.quiet()


def test_a_box_zooms_in_on_time_and_devices_where_rows_are_thin(view: View) -> None:
    view.open(tall())
    last = view.run("return ppopt.last")
    x, y = view.pixel(0, last / 4, 10)
    down = 9 * view.run("return ppopt.frame.panels[0].row")
    view.drag((x, y), (view.pixel(0, last / 2, 10)[0], y + down))
    from_, to, low, high = view.run(VIEW)
    assert (from_, to) == pytest.approx((last / 4, last / 2), rel=0.01)
    assert (low, high) == (10, 20)
    view.press("0")
    assert view.run(VIEW) == [0, last, 0, 32]


def test_a_drag_moves_devices_and_the_link_knows_it(view: View) -> None:
    view.open(tall(), "#y=8,24&x=30,60&drag=pan", fresh=True)
    assert view.run("return document.querySelector('[data-do=drag]').ariaPressed") == "true"
    x, y = view.pixel(0, 45, 16)
    row = view.run("return ppopt.frame.panels[0].row")
    view.drag((x, y), (x, y + 3 * row))
    assert view.run(VIEW) == [30, 60, 5, 21]
    assert "y=5,21" in view.run("return location.hash")
    x, y = view.pixel(0, 45, 16)
    view.drag((x, y), (view.pixel(0, 55, 16)[0], y))
    assert view.run(VIEW)[:2] == pytest.approx([20, 50], abs=0.1)
    range_of_address = (
        "return new URLSearchParams(location.hash.slice(1)).get('x').split(',').map(Number)"
    )
    assert view.run(range_of_address) == view.run(VIEW)[:2]


def test_shift_and_the_wheel_zoom_devices(view: View) -> None:
    view.open(tall())
    x, y = view.pixel(0, 20, 0)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -300, "modifiers": 8}
    view.driver.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    view.wait(lambda: view.run(VIEW)[2:] == [0, 12], "32 / e devices, the first in place")


def test_a_link_pasted_into_an_open_page_is_followed(view: View) -> None:
    view.open(small())
    view.follow("#x=2,6&y=1,3&m=5&off=W&on=critical&theme=dark")
    assert view.run(VIEW) == [2, 6, 1, 3]
    assert view.run("return [ppopt.view.microbatch, [...ppopt.view.off]]") == [5, ["W"]]
    assert "critical path" in view.traces()
    assert view.run("return document.documentElement.dataset.theme") == "dark"
    view.follow("")
    assert view.run(VIEW) == ALL
    assert view.run("return ppopt.view.microbatch") == -1
    assert view.run("return document.documentElement.dataset.theme") == "light"


def test_theme_is_in_the_link(view: View) -> None:
    view.open(small())
    view.press("t")
    address = view.run("return location.hash")
    assert address == "#theme=dark"
    paper = view.run("return getComputedStyle(document.body).backgroundColor")
    view.open(small(), address, fresh=True)
    assert view.run("return getComputedStyle(document.body).backgroundColor") == paper
    assert view.run("return ppopt.plot.layout.paper_bgcolor") == "#14181f"


def test_an_address_opens_a_schedule_of_a_fresh_page(view: View) -> None:
    view.open(three(), "#schedule-3")
    titles = "return ppopt.frame.panels.map((panel) => panel.schedule.raw.title)"
    assert view.run(titles) == ["zb-1p"] * 2
    view.follow("#schedule-2")
    assert view.run(titles) == ["1f1b"] * 2
    view.follow("#schedule-9")
    assert view.run(titles) == ["1f1b"] * 2


def test_a_section_is_scrolled_to_where_all_are_shown(view: View) -> None:
    view.open(page([baseline("gpipe"), baseline("1f1b"), baseline("zb-1p")]), "#schedule-3")
    top = "return document.getElementById('schedule-3').getBoundingClientRect().top"
    height = view.run("return innerHeight")
    assert 0 <= view.run(top) < height
    assert view.run("return ppopt.frame.panels.length") == 3


def test_the_next_microbatch_is_never_beyond_the_last(view: View) -> None:
    view.open(small(), "#m=6")
    lit = "return ppopt.view.microbatch"
    for expected in (7, 7):
        view.press("n")
        assert view.run(lit) == expected
    view.follow("#m=8")
    assert view.run(lit) == -1
    view.press("p")
    assert view.run(lit) == 0


def test_hidden_things_say_nothing_and_cannot_be_chosen(view: View) -> None:
    """Device 3 begins with F at 1.5, device 0 waits for memory from 2."""
    view.open(small())
    assert view.point(0, 1.7, 3).startswith("3F0")
    assert view.point(0, 2.2, 0).startswith("idle waiting for memory")
    view.press("fi")
    assert view.point(0, 1.7, 3) == ""
    assert view.point(0, 2.2, 0) == ""
    view.choose(0, 1.7, 3)
    assert view.run("return ppopt.view.microbatch") == -1


def test_the_strip_of_time_has_keys_of_its_own(view: View) -> None:
    view.open(small(), "#x=3,6")
    assert view.run("return document.getElementById('strip').tabIndex") == 0
    view.run("document.getElementById('strip').focus()")
    for key, window in (("\ue00f", [6, 9]), ("\ue010", [10.5, 13.5]), ("\ue011", [0, 3])):
        view.press(key)
        assert view.run(VIEW)[:2] == window
    assert view.run("return document.getElementById('strip').ariaValueText") == "0 to 3"
    view.press("\ue014")
    assert view.run(VIEW)[:2] == [0.75, 3.75]


def test_without_memory_nothing_is_left_of_its_place(view: View) -> None:
    view.open(small())
    height = "return document.getElementById('plot').getBoundingClientRect().height"
    before = view.run(height)
    view.press("m")
    assert view.run(height) == view.run("return ppopt.frame.height")
    assert view.run(height) < before - 100


@pytest.mark.parametrize(
    "schedule",
    [
        baseline("zb-1p", memory_b="0.5", static=3),
        baseline("zbv", activation=2, memory_b="-0.5"),
        baseline("dualpipe"),
    ],
    ids=["B takes", "B gives", "pairs"],
)
def test_the_script_adds_up_the_memory_of_devices(view: View, schedule: Schedule) -> None:
    view.open(page([schedule]))
    pipeline, rows = schedule.pipeline, table(schedule)
    drawn = view.run(
        "const [s] = ppopt.schedules;return Array.from(s.ops.kind, (_, row) => s.memoryAround(row))"
    )
    assert drawn == [
        [
            live_memory(pipeline, rows, device, start, starts=True),
            live_memory(pipeline, rows, device, end, starts=False),
        ]
        for _, _, _, device, start, end, *_ in rows
    ]
    steps = view.run(
        "const [s] = ppopt.schedules; return s.raw.static.map((static_, device) => {"
        "const { levels } = s.memory(device);"
        "return levels[0].map((_, at) => levels.reduce((sum, part) => sum + part[at], static_));})"
    )
    assert [max(levels) for levels in steps] == peaks(schedule)


def test_every_schedule_has_the_whole_range_of_shades(view: View) -> None:
    """Two chunks against four: the second of two is as light as the fourth of four."""
    both = page([baseline("interleaved"), baseline("interleaved", chunks=4)])
    view.open(both)
    drawn = set(view.shapes())
    assert {rgb(colours.shade(OpKind.F, part, 4)) for part in range(4)} <= drawn
    names = "return ppopt.figure.traces.filter((t) => t.yaxis === 'y').map((t) => t.fillcolor)"
    tones = set(view.run(names)) | set(view.run(names.replace("'y'", "'y2'")))
    assert colours.shade(OpKind.F, 1, 2) in tones


def test_names_that_turn_text_round_or_are_very_long_stay_in_their_place(view: View) -> None:
    name = "\u202egnol" + "x" * 500
    view.open(
        page([baseline("1f1b", name=name), baseline("gpipe", name="\u05d0\u05d1")], title=name)
    )
    text = view.run("return document.body.innerText + document.title + document.body.innerHTML")
    assert "\u202e" not in text
    headings = "document.querySelectorAll('h1 bdi, h2 bdi')"
    names = view.run(f"return [...{headings}].map((e) => e.textContent)")
    assert "\u05d0\u05d1" in names
    assert max(map(len, names)) == 80
    full = "return document.querySelector('h1 bdi').title"
    assert view.run(full) == " gnol" + "x" * 500
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert view.run(wide) <= 0
    assert any("\u2068gpipe · \u05d0\u05d1\u2069" in text for text in view.texts())
    view.quiet()


def test_paper_is_light_and_holds_no_buttons(view: View) -> None:
    """Chromium prints to PDF: as many pages as there is something on, the theme light meanwhile."""
    view.open(page([schedule_of_page()]), "#theme=dark", fresh=True)
    theme = "document.documentElement.dataset.theme"
    view.run(
        "addEventListener('beforeprint', () => { globalThis.printed = ["
        f"{theme}, ppopt.plot.layout.paper_bgcolor, ppopt.frame.width]; }})"
    )
    printed = base64.b64decode(view.driver.print_page())
    assert view.run("return printed") == ["light", "#ffffff", 1000]
    assert printed.count(b"/Type /Page\n") in (1, 2)
    view.wait(lambda: view.run(f"return {theme} === 'dark' && !ppopt.waiting"), "the theme again")
    view.settle()
    view.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    seen = "return [...document.querySelectorAll('button, #strip')].filter((e) => e.offsetHeight)"
    names = view.run(f"{seen}.map((e) => e.dataset.name ?? e.id)")
    view.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert names == ["F", "B", "W", "warm-up", "input", "memory"]


def test_the_colours_of_a_theme_stand_in_one_place() -> None:
    style = files("ppopt.report").joinpath("page.css").read_text(encoding="utf-8")
    assert style.count("--surface: #") == 2
    assert "prefers-color-scheme" not in style


def test_a_double_click_shows_everything_and_lights_nothing(view: View) -> None:
    view.open(small(), "#x=2,6&y=1,3")
    view.double(*view.pixel(0, 4.2, 2))
    view.wait(lambda: view.run(VIEW) == ALL, "the whole")
    assert view.run("return ppopt.view.microbatch") == -1


def test_control_and_the_wheel_zoom_time_under_the_pointer(view: View) -> None:
    view.open(small())
    x, y = view.pixel(0, 9, 2)
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -300, "modifiers": 2}
    view.driver.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    wide = 13.5 / math.e
    view.wait(lambda: view.run(VIEW)[1] - view.run(VIEW)[0] < wide + 0.01, "a zoom by e")
    from_, to, *_ = view.run(VIEW)
    assert (9 - from_) / (to - from_) == pytest.approx(9 / 13.5, abs=0.01)


def test_a_link_of_the_table_scrolls_and_leaves_the_view(view: View) -> None:
    view.open(
        page([baseline("gpipe"), baseline("1f1b"), baseline("zb-1p")]), "#x=3,9&m=2", fresh=True
    )
    view.run("document.querySelector('a[href=\"#schedule-2\"]').click()")
    top = "return document.getElementById('schedule-2').getBoundingClientRect().top"
    view.wait(lambda: 0 <= view.run(top) < 900, "the section")
    assert view.range() == (3, 9)
    assert view.run("return ppopt.view.microbatch") == 2
    view.press("+")
    assert view.run("return location.hash").startswith("#x=4.5,7.5&m=2")
