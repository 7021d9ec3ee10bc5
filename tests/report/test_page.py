"""The page in a real browser: what is drawn, what answers, and that nothing goes wrong."""

from __future__ import annotations

import base64
import re
from functools import cache
from pathlib import Path

import pytest

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.html import page
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.waits import critical_path
from ppopt.solver.solve import solve
from ppopt.studies.evaluate import evaluate
from ppopt.verifier import verify
from tests.browser import View, rgb, serious
from tests.factories.schedules import BW, F
from tests.tiers import slow

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">&lt;b>"


def baseline(strategy: str, devices: int = 4, batches: int = 8, **pipeline: object) -> Schedule:
    return evaluate(Pipeline(stages=devices, batches=batches, **pipeline), strategy)


@cache
def small() -> Schedule:
    """The search of the README: 4 devices, 8 microbatches, makespan 27, proved."""
    schedule = solve(Pipeline(stages=4, batches=8), mem_limit="1f1b", workers=1).schedule
    assert schedule is not None
    return schedule


@cache
def six() -> str:
    names = ("gpipe", "1f1b", "zb-h1", "zb-1p", "interleaved")
    return page([small(), *(baseline(name) for name in names)])


@cache
def several() -> str:
    """All kinds of operations, and shades of two chunks; axe looks at every label."""
    return page(
        [small(), baseline("1f1b", 2, 2), baseline("zb-h1", 2, 2), baseline("interleaved", 2, 4)]
    )


@cache
def large() -> str:
    return page([baseline("zb-1p", 64, 512, mem_limit="1f1b")])


def count(view: View, schedule: Schedule) -> dict[OpKind, tuple[int, int]]:
    """Of every kind, operations drawn (less one box of the legend's colour) and of the schedule."""
    drawn, beside = view.shapes(), schedule.pipeline.num_devices
    return {
        kind: (drawn[rgb(colours.HUES[kind])] - beside, int((schedule.kind == kind).sum()))
        for kind in OpKind
        if (schedule.kind == kind).any()
    }


def message(view: View) -> str:
    return str(view.run("return document.getElementById('message').textContent"))


def test_4_x_8_draws_every_operation_once(view: View) -> None:
    view.open(page([small()]))
    assert count(view, small()) == dict.fromkeys((OpKind.F, OpKind.B, OpKind.W), (32, 32))
    assert view.range() == (0, 27)
    texts = view.texts()
    assert all(texts.count(str(microbatch)) >= 12 for microbatch in range(8))
    assert "searched  makespan 27 within memory 4 each; idle 11.1 %: " in " ".join(texts).replace(
        "\xa0", " "
    )
    view.quiet()


@pytest.mark.slow
def test_16_x_64_draws_every_operation_once(view: View) -> None:
    schedule = baseline("1f1b", 16, 64, p2p=0.5)
    view.open(page([schedule]))
    assert count(view, schedule) == {OpKind.F: (1024, 1024), OpKind.BW: (1024, 1024)}
    assert view.range() == (0, schedule.metrics.makespan_ticks / 2)
    view.quiet()


def test_hover_tells_figures_and_causes(view: View) -> None:
    """1F1B of 2 x 2, F = 1, BW = 2: device 0 waits from 2 to 4 for the BW that device 1 ends."""
    view.open(page([baseline("1f1b", 2, 2)]))
    tip = view.point(0, 1.5, 0)
    assert tip.splitlines() == [
        "0F1 forward",
        "stage 0 · microbatch 1 · device 0",
        "start 1 · end 2 · duration 1",
        "memory 2 while it runs, 2 after it",
    ]
    assert "after 1BW0, which ends at 4 on device 1" in view.point(0, 4.5, 0)
    waiting = view.point(0, 3, 0).splitlines()
    assert waiting[0] == "idle waiting for an input"
    assert waiting[-1] == "it waits for 1BW0: ends at 4 on device 1"
    assert view.point(0, 0.5, 1).startswith("idle warm-up")
    assert view.point(0, 8, 1).startswith("idle cool-down")
    assert view.point(0, 3, 0, "memory").startswith("memory 2 on device 0")
    beside = view.point(0, 9 * 1.15, 1).splitlines()
    assert beside[:3] == [
        "device 1",
        "busy 6 (66.7 %): F 2 (22.2 %), BW 4 (44.4 %)",
        "idle 3 (33.3 %)",
    ]


def test_microbatches_that_differ_have_their_factors_and_their_order(view: View) -> None:
    """1F1B of 2 x 2: microbatch 1 of the list runs first, three times as long as the other."""
    pipeline = Pipeline(stages=2, batches=2, microbatch_times=[1, 3]).reordered([1, 0])
    view.open(page([evaluate(pipeline, "1f1b")]))
    assert view.point(0, 1.5, 0).splitlines() == [
        "0F0 forward",
        "stage 0 · microbatch 0 · device 0",
        "start 0 · end 3 · duration 3",
        "memory 1 while it runs, 1 after it",
        "microbatch 1 of the list: times x 3, memory x 1",
    ]
    text = str(view.run("return document.body.textContent"))
    assert "linear; microbatch order 1, 0" in text
    assert "Factors on the times of microbatches 0, 1, ...: 3, 1" in text


@pytest.mark.slow
def test_a_limit_is_named_as_the_cause(view: View) -> None:
    view.open(page([baseline("zb-1p", mem_limit="1f1b")]))
    tip = view.point(0, 5.5, 0)
    assert tip.startswith("idle waiting for memory")
    assert "0F4 could start, but does not fit the memory limit" in tip


def test_a_click_lights_the_whole_way_of_a_microbatch(view: View) -> None:
    view.open(page([small()]))
    view.choose(0, 0.5, 0)
    assert view.run("return ppopt.view.microbatch") == 0
    lit = "return ppopt.figure.traces.filter((t) => t.opacity === 1 && t.mode === 'none')"
    boxes = f"{lit}.reduce((sum, t) => sum + t.x.length / 6, 0)"
    assert view.run(boxes) == 4 * 3
    assert {"chosen", "transfers"} <= set(view.traces())
    view.press("n")
    assert view.run("return ppopt.view.microbatch") == 1
    view.press("\ue00c")
    assert "chosen" not in view.traces()
    assert view.run("return location.hash") == ""


def test_the_critical_path_is_drawn_from_0_to_the_makespan(view: View) -> None:
    view.open(page([small()]))
    view.press("c")
    x, y = view.run(
        "const t = ppopt.figure.traces.find((t) => t.name === 'critical path'); return [t.x, t.y]"
    )
    rows = critical_path(small())
    assert (x[0], x[-1]) == (0, 27)
    assert [round(device) for device in y[::2]] == small().device[rows].tolist()
    assert x[1::2] == small().end[rows].tolist()
    view.press("c")
    assert "critical path" not in view.traces()


def test_kinds_and_causes_are_toggled(view: View) -> None:
    view.open(page([small()]))
    before = view.shapes()[rgb(colours.HUES[OpKind.W])]
    view.press("w")
    assert view.shapes()[rgb(colours.HUES[OpKind.W])] == before - 32
    assert view.run("return document.querySelector('[data-name=W]').ariaPressed") == "false"
    view.click("[data-name=W]")
    assert view.shapes()[rgb(colours.HUES[OpKind.W])] == before
    assert "warm-up" in view.traces()
    view.press("i")
    assert "warm-up" not in view.traces()
    view.press("m")
    assert "memory" not in view.traces()
    assert view.run("return ppopt.frame.panels.length") == 1


def test_keys_drags_and_the_strip_move_the_window(view: View) -> None:
    view.open(page([small()]))
    view.press("+")
    assert view.range() == (6.75, 20.25)
    view.press("\ue014")
    assert view.range() == (6.75 + 13.5 / 4, 20.25 + 13.5 / 4)
    view.press("0")
    assert view.range() == (0, 27)
    x, y = view.pixel(0, 3, 0)
    view.drag((x, y), (view.pixel(0, 12, 0)[0], y))
    assert view.range() == pytest.approx((3, 12), abs=0.1)
    strip = view.run(
        "const b = document.getElementById('strip').getBoundingClientRect();"
        "return [b.left, b.top + b.height / 2, b.width]"
    )
    left, middle, width = strip
    view.drag((left + width * 7.5 / 27, middle), (left + width * 20 / 27, middle))
    assert view.range() == pytest.approx((15.5, 24.5), abs=0.2)
    assert view.point(0, 20, 3) != ""
    view.quiet()


@pytest.mark.slow
def test_a_link_restores_the_view(view: View) -> None:
    text = page([small()])
    view.open(text)
    view.press("+cw")
    view.choose(0, 8.5, 1)
    address = view.run("return location.hash")
    seen = view.run("return [ppopt.view.from, ppopt.view.to, ppopt.view.microbatch]")
    traces = view.traces()
    view.open(text, address, fresh=True)
    assert view.run("return [ppopt.view.from, ppopt.view.to, ppopt.view.microbatch]") == seen
    assert seen[2] >= 0
    assert view.traces() == traces
    assert "W 0" not in traces
    assert "critical path" in traces
    view.open(text, "#x=5,2&y=3,9&m=no&op=7,7&off=&on=nothing,%22&drag=x&theme=x&unknown=1")
    assert view.range() == (0, 27)
    view.quiet()


@pytest.mark.slow
def test_search_finds_microbatches_and_operations(view: View) -> None:
    view.open(page([small()]), "#x=0,3")
    field = (
        "const f = document.getElementById('search');f.value = arguments[0]; f.form.requestSubmit()"
    )
    view.run(field, "3bw7")
    assert (
        view.run("return document.getElementById('message').textContent")
        == "nothing is called 3bw7"
    )
    view.run(field, "3w7")
    view.settle()
    assert view.run("return [ppopt.view.microbatch, ppopt.view.from <= 25]") == [7, True]
    assert "chosen" in view.traces()
    view.run(field, "2")
    view.settle()
    assert view.run("return ppopt.view.microbatch") == 2


@pytest.mark.slow
def test_six_schedules_stand_on_one_axis_the_best_on_top(view: View) -> None:
    view.open(six())
    panels = view.run("return ppopt.frame.panels.map((p) => [p.kind, p.schedule.raw.title])")
    assert [kind for kind, _ in panels] == ["gantt"] * 6
    assert {name for _, name in panels} == {
        *("searched", "gpipe", "1f1b", "zb-h1", "zb-1p", "interleaved")
    }
    ends = view.run("return ppopt.schedules.map(({ raw, unit }) => raw.last / unit)")
    assert ends == sorted(ends) == [27, 27, 27, 28.5, 33, 33]
    axes = view.run("return Object.keys(ppopt.plot.layout).filter((key) => /^.axis/.test(key))")
    assert sorted(axes) == sorted(["xaxis", "xaxis2", "yaxis", *(f"yaxis{n}" for n in range(2, 7))])
    text = " ".join(view.texts())
    assert "makespan 33, 18.2 % less throughput than the best" in text
    view.press("m")
    assert view.run("return ppopt.frame.panels.length") == 12
    view.press("m+")
    assert view.range() == (8.25, 24.75)
    view.quiet()


@pytest.mark.slow
def test_pairs_and_routes_share_a_row(view: View) -> None:
    """F of route 0 above BW of route 1, run as one from 2 to 5 on both of two devices."""
    pipeline = Pipeline(stages=2, batches=2, routes=2, overlap=3)
    rows = [
        *((F, 0, 0, 0, 0, 1), (F, 1, 1, 0, 1, 2), (F, 0, 1, 1, 0, 1)),
        *((BW, 1, 1, 0, 2, 4), (BW, 0, 1, 1, 4, 7, 0, 0), (F, 1, 0, 1, 4, 7, 0, 0)),
        *((BW, 1, 0, 1, 7, 9), (BW, 0, 0, 0, 9, 11)),
    ]
    schedule = Schedule.from_rows(pipeline, [(*row, 0, ALONE)[:8] for row in rows])
    assert verify(schedule) == []
    view.open(page([schedule]))
    assert view.point(0, 5, 0.75).splitlines()[0] == "1F0 forward"
    assert view.point(0, 5, 1.25).splitlines()[0] == "0BW1 full backward"
    assert "runs as one with 1F0" in view.point(0, 5, 1.25)
    assert view.point(0, 5, 1, "memory").startswith("memory 2 on device 1")
    paths = "return ppopt.figure.traces.filter((t) => t.name === 'F 0' || t.name === 'BW 1')"
    assert view.run(f"{paths}.map((t) => t.y.includes(0.985) || t.y.includes(1.015))") == [True] * 2
    view.quiet()


@pytest.mark.slow
def test_64_x_512_is_drawn_in_cells_and_close_up_in_shapes(view: View) -> None:
    view.open(large())
    assert view.run("return ppopt.schedules[0].ops.length") == 64 * 512 * 3
    assert view.traces().count("cells") == 1
    assert "a spot has the colour of what fills most of it" in message(view)
    nodes = "return document.querySelectorAll('#plot *').length"
    assert view.run(nodes) < 2000
    assert view.point(0, 700.5, 13).splitlines()[0].split()[0] == view.run(
        "const s = ppopt.schedules[0]; return s.opName(s.ops.at(13, 700.5), ppopt.style.kinds)"
    )
    view.press("++++++")
    assert "cells" not in view.traces()
    assert message(view) == ""
    assert view.run(nodes) < 10000
    view.follow("#y=8,24&x=100,140")
    assert "cells" not in view.traces()
    assert sum(text.isdigit() for text in view.texts()) > 16 * 20
    view.quiet()


COLOURS = """const { panels: [panel] } = ppopt.frame;
const { from, to } = ppopt.view;
const cells = ppopt.figure.traces.find(({ name }) => name === "cells");
const codes = cells.z.flat().filter((code) => code !== null);
return [...new Set(codes.map((code) => cells.colorscale[2 * code][1]))];"""


@pytest.mark.slow
def test_from_afar_no_spot_has_a_mixed_colour(view: View) -> None:
    """F is blue, B orange, W green: the mean of F and B would be a green too. So a spot has the
    colour of one kind, or that of several, paler where the device idles."""
    view.open(large())
    several = colours.channels(colours.SEVERAL)
    known = [colours.channels(colours.HUES[kind]) for kind in (OpKind.F, OpKind.B, OpKind.W)]
    for text in view.run(COLOURS):
        red, green, blue, opacity = (float(part) for part in re.findall(r"[\d.]+", text))
        if opacity < 0.9:
            continue
        away = [max(map(abs, (red - r, green - g, blue - b))) for r, g, b in [several, *known]]
        assert min(away) <= 16, text


@pytest.mark.slow
def test_all_of_a_stage_are_labelled_or_none(view: View) -> None:
    """12 microbatches: in bars that have room for one digit only, no number is shown at all."""
    schedule = baseline("1f1b", 2, 12)
    view.open(page([schedule]))
    labels = (
        "return ppopt.figure.traces.filter((t) => t.name === 'microbatch').flatMap((t) => t.text)"
    )
    assert len(view.run(labels)) == len(schedule)
    counts = set()
    for width in (700, 620, 560, 500, 440):
        view.driver.set_window_size(width, 900)
        view.wait(lambda width=width: view.run("return innerWidth") <= width, "the width")
        view.settle()
        counts.add(len(view.run(labels)))
    view.driver.set_window_size(1400, 1000)
    view.wait(lambda: view.run("return ppopt.frame.width > 1000"), "the width again")
    assert counts <= {0, len(schedule) // 2, len(schedule)}
    assert len(counts) > 1


@pytest.mark.slow
def test_many_schedules_open_with_the_best_and_show_all_on_request(view: View) -> None:
    names = ("gpipe", "1f1b", "zb-h1", "zb-1p", "zb-h2", "zb-2p", "interleaved", "zbv")
    view.open(page([baseline(name) for name in names]))
    charts = "return ppopt.frame.panels.map(({ index }) => index)"
    assert view.run(charts) == [0, 1, 2, 3]
    folded = "return [...document.querySelectorAll('details.schedule')].map((e) => e.open)"
    assert view.run(folded) == [False] * 4
    view.press("s")
    assert view.run(charts) == list(range(8))
    assert "on=all" in view.run("return location.hash")
    view.press("s")
    assert view.run(charts) == [0, 1, 2, 3]
    view.follow("#schedule-6")
    assert view.run(folded) == [False, True, False, False]
    view.quiet()


@pytest.mark.parametrize("theme", ["light", slow("dark")])
@pytest.mark.parametrize("count", [slow("one"), "several"])
def test_axe_finds_nothing_serious(view: View, theme: str, count: str) -> None:
    """axe-core, the accessibility checker: rules of WCAG 2.1, levels A and AA."""
    view.open(page([small()]) if count == "one" else several(), f"#theme={theme}", fresh=True)
    view.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    assert serious(view) == []


def test_hostile_names_stay_words(view: View) -> None:
    named = baseline("1f1b", name=HOSTILE)
    view.open(page([named, small()], title=HOSTILE))
    assert view.run("return document.title") == HOSTILE
    assert view.run("return document.querySelectorAll('#plot img, body img').length") == 0
    assert any(HOSTILE in text for text in view.texts())
    view.quiet()


@pytest.mark.slow
def test_dark_narrow_and_printed(view: View) -> None:
    view.open(page([small()]))
    paper = "return ppopt.plot.layout.paper_bgcolor"
    light = view.run(paper)
    view.press("t")
    assert view.run(paper) != light
    view.press("t")
    assert view.run(paper) == light
    view.driver.set_window_size(520, 800)
    view.wait(
        lambda: view.run("return ppopt.frame.width < 520 && ppopt.frame.side === 0"), "resize"
    )
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert view.run(wide) <= 0
    view.driver.set_window_size(1400, 1000)
    view.run("addEventListener('beforeprint', () => globalThis.paper = ppopt.frame.width)")
    assert base64.b64decode(view.driver.print_page()).startswith(b"%PDF")
    assert view.run("return paper") == 1000
    view.wait(lambda: view.run("return ppopt.frame.width > 1000"), "the screen's width again")
    view.quiet()


@pytest.mark.slow
def test_a_page_is_usable_on_a_telephone(view: View) -> None:
    """400 pixels: nothing sticks out, and operations answer to the pointer."""
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    view.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        view.open(six(), fresh=True)
        wide = "return document.documentElement.scrollWidth - innerWidth"
        assert view.run(wide) <= 0
        assert view.run("return ppopt.frame.width") < 400
        assert view.point(0, 0.5, 0).splitlines()[0] == "0F0 forward"
        tip = "return document.getElementById('tip').getBoundingClientRect().right"
        assert view.run(tip) <= 400
        lines = "return [...document.querySelectorAll('#plot .annotation-text')].map((text) =>"
        lines_of_labels = view.run(f"{lines} text.querySelectorAll('tspan.line').length)")
        assert lines_of_labels == [2] * 6
    finally:
        view.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    view.wait(lambda: view.run("return ppopt.frame.width > 1000"), "the wide window again")
    view.quiet()


@pytest.mark.slow
def test_the_picture_is_saved_with_a_legend(view: View) -> None:
    view.open(page([small()]))
    for kind, beginning in (("png", b"\x89PNG"), ("svg", b"<svg")):
        saved = view.folder / f"schedule.{kind}"
        view.click(f"[data-do={kind}]")
        view.wait(saved.exists, saved.name)
        view.wait(lambda saved=saved: saved.stat().st_size, saved.name)
        assert saved.read_bytes().startswith(beginning)
    picture = Path(view.folder / "schedule.svg").read_text("utf-8")
    assert "W weight gradient" in picture
    assert "idle: waiting for an input" in picture
    assert "input waiting" not in picture
    assert "memory limit" in picture
    view.quiet()
