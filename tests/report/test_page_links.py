"""Transfers on the page in a real browser, as operations of their links."""

from __future__ import annotations

import json
from functools import cache

import pytest

from ppopt.problem.operation import OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.html import page
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import evaluate
from tests.browser import View, rgb, serious
from tests.factories.tables import transfers_of
from tests.report.drawn import data_of

pytestmark = pytest.mark.slow

ROWS = "ppopt.frame.panels.filter((panel) => panel.kind === 'links')"


@cache
def streamed() -> Schedule:
    """1F1B of 2 x 3, F = 1, BW = 2, p2p = 1 over streams: six transfers on one link.

    F(0,0) and F(0,1) end at 1 and 2; their transfers run from 1 to 2 and from 2 to 3.
    """
    return evaluate(Pipeline(stages=2, batches=3, p2p=1, link_mode="streams"), "1f1b")


def interleaved(**more: object) -> Schedule:
    pipeline = Pipeline(stages=3, batches=6, p2p=1, link_mode="streams", **more)
    return evaluate(pipeline, "interleaved")


def test_links_are_folded_until_asked_for(view: View) -> None:
    schedule = interleaved()
    view.open(page([schedule]))
    assert view.run(f"return {ROWS}.length") == 0
    before = view.shapes()
    view.press("l")
    assert view.run(f"return {ROWS}.map(({{low, high}}) => [low, high])") == [[0, 3]]
    assert "on=links,memory" in view.run("return location.hash")
    drawn = view.shapes()
    for kind, send in ((OpKind.F, TransferKind.SEND_F), (OpKind.B, TransferKind.SEND_B)):
        sent = int((schedule.operations.kind == send).sum())
        drawn_kind = OpKind.BW if kind is OpKind.B else kind
        tones = {rgb(colours.shade(drawn_kind, part, 2)) for part in range(2)}
        tones |= {rgb(colours.shade(kind, part, 2)) for part in range(2)}
        assert sum(drawn[tone] - before[tone] for tone in tones) == sent > 0
    assert {"0–1", "0–2", "1–2"} <= set(view.texts())  # noqa: RUF001  the page's dash
    view.press("l")
    assert view.shapes() == before
    view.quiet()


def test_pointing_at_a_transfer(view: View) -> None:
    view.open(page([streamed()]), "#on=links")
    tip = view.point(0, 2.5, 0, "links").splitlines()
    assert tip == [
        "0SEND_F1 activation",
        "stage 0 · microbatch 1 · device 0 to device 1",
        "start 2 · end 3 · duration 1",
        "from 0F1, which ends at 2",
        f"for 1F1, which starts at {start(streamed(), OpKind.F, 1, 1)}",
    ]
    sent = transfers_of(streamed())
    row = int((sent.kind == TransferKind.SEND_B).argmax())
    tip = view.point(0, float(sent.start[row]) + 0.5, 0, "links").splitlines()
    assert tip[0] == f"1SEND_B{sent.microbatch[row]} gradient"
    assert tip[1].endswith("device 1 to device 0")
    last = streamed().metrics.makespan_ticks
    beside = view.point(0, last * 1.15, 0, "links").splitlines()
    assert beside[:2] == ["link of devices 0 and 1, both ways", "6 transfers, one at a time"]
    assert beside[2].startswith("busy 6 (")
    assert view.point(0, 0.5, 0, "links") == ""


def start(schedule: Schedule, kind: OpKind, stage: int, microbatch: int) -> int:
    (row,) = (
        row
        for row in schedule.rows()
        if (row.kind, row.stage, row.microbatch) == (kind, stage, microbatch)
    )
    return int(row.start)


def test_a_click_on_a_transfer_lights_its_microbatch(view: View) -> None:
    view.open(page([streamed()]), "#on=links")
    x, y = view.pixel(0, 2.5, 0, "links")
    view.drag((x, y), (x, y))
    assert view.run("return ppopt.view.microbatch") == 1
    lit = "return ppopt.figure.traces.filter((t) => t.opacity === 1 && t.mode === 'none')"
    assert view.run(f"{lit}.reduce((sum, t) => sum + t.x.length / 6, 0)") == 4 + 2
    view.quiet()


def test_hidden_kinds_and_zoomed_devices(view: View) -> None:
    """Without F, no activations; of a window of devices, the links that have an end there."""
    schedule = evaluate(Pipeline(stages=8, batches=8, p2p=1, link_mode="streams"), "1f1b")
    view.open(page([schedule]), "#on=links&y=3,5")
    assert view.run(f"return {ROWS}.map(({{low, high}}) => [low, high])") == [[2, 5]]
    view.press("f")
    forwards = "ppopt.figure.traces.filter((t) => t.yaxis === 'y2' && /^F /.test(t.name))"
    assert view.run(f"return {forwards}.length") == 0
    view.quiet()


def test_delays_have_no_links(view: View) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=3, p2p=1), "1f1b")
    view.open(page([schedule]), "#on=links")
    assert view.run("return document.querySelectorAll('[data-layer=links]').length") == 0
    assert view.run(f"return {ROWS}.length") == 0
    view.press("l")
    assert view.run(f"return {ROWS}.length") == 0
    assert data_of(page([schedule]))["schedules"][0]["charts"] == []
    view.quiet()


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (400, "dark")])
def test_nothing_sticks_out(view: View, width: int, theme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    view.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        view.open(page([interleaved()]), f"#on=links&theme={theme}", fresh=True)
        assert view.run("return document.documentElement.scrollWidth") <= width
        assert serious(view) == []
    finally:
        view.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    view.wait(lambda: view.run("return ppopt.frame.width > 1000"), "the wide window again")
    view.quiet()


def test_links_of_many_transfers_are_seen_from_afar(view: View) -> None:
    pipeline = Pipeline(stages=16, batches=256, p2p=0.5, link_mode="streams")
    schedule = evaluate(pipeline, "1f1b")
    view.open(page([schedule]), "#on=links")
    kinds = json.loads(view.run("return JSON.stringify(ppopt.figure.traces.map((t) => t.type))"))
    assert kinds.count("heatmap") == 2
    view.quiet()
