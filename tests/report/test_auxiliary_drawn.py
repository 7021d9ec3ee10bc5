"""Work around the microbatches in pictures, figures, text, traces and frames."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from ppopt.formats.perfetto import chrome_trace
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.svg import svg
from ppopt.report.text import text_gantt
from ppopt.schedule.metrics import memory_of_operations, memory_profile
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import evaluate
from tests.factories.auxiliary import OPTIMIZER, SYNC, UNSHARD
from tests.report.drawn import picture
from tests.report.test_svg import parsed, rects, texts

WORK: dict[str, Any] = {"unshard": 1, "gradient_sync": 3, "optimizer": 1, "unshard_memory": 2}


def with_work(strategy: str = "1f1b", **work: Any) -> Schedule:
    """1F1B of 2 x 2, F = 1, BW = 2: device 0 runs from 1 to 10, device 1 from 2 to 8."""
    return evaluate(Pipeline(stages=2, batches=2, **(work or WORK)), strategy)


def test_the_picture_has_a_rect_for_each() -> None:
    drawn = rects(parsed(with_work()))
    labels = {text for _, _, _, text in drawn}
    assert {
        "UNSHARD, stage 1: 0 to 1",
        "GRADIENT_SYNC, stage 0: 10 to 13",
        "OPTIMIZER, device 0: 13 to 14",
        "OPTIMIZER, device 1: 11 to 12",
    } <= labels
    for kind in (UNSHARD, SYNC, OPTIMIZER):
        assert sum(colour == colours.HUES[kind].lower() for colour, *_ in drawn) == 2
    written = texts(parsed(with_work()))
    assert {"queue 0", "queue 1", "14"} <= set(written)
    assert "GRADIENT_SYNC reduction of gradients" in written


def test_the_picture_of_a_plain_pipeline_knows_nothing_of_it() -> None:
    plain = svg(evaluate(Pipeline(stages=2, batches=2), "1f1b"))
    assert "queue" not in plain
    assert "OPTIMIZER" not in plain
    alone = svg(with_work(optimizer=1))
    assert "queue" not in alone
    assert "OPTIMIZER" in alone


def test_the_figure_has_bars_in_rows_of_devices_and_queues() -> None:
    drawn = {trace.get("name", ""): trace for trace in picture(with_work()).traces("y2")}
    assert drawn["UNSHARD gather of weights"]["y"] == [2, 3]
    assert drawn["GRADIENT_SYNC reduction of gradients"]["base"] == [10, 8]
    assert drawn["OPTIMIZER optimizer step"]["y"] == [0, 1]
    layout = picture(with_work()).layout
    assert layout["yaxis2"]["range"] == [3.5, -0.5]
    assert layout["yaxis2"]["ticktext"] == ["0", "1", "queue 0", "queue 1"]
    assert layout["xaxis"]["range"] == [0, 14]
    assert layout["yaxis2"]["domain"][0] > layout["yaxis"]["domain"][1]


@pytest.mark.parametrize("strategy", ["1f1b", "zb-h1", "interleaved", "chimera", "dualpipe"])
def test_memory_beside_operations_counts_gathered_weights(strategy: str) -> None:
    """At the start and the end of an operation, it is that of the profile of its device."""
    schedule = evaluate(Pipeline(stages=4, batches=8, **WORK), strategy)
    during, after = memory_of_operations(schedule)
    for device in range(schedule.pipeline.num_devices):
        profile = memory_profile(schedule, device)
        level = dict(zip(profile.time.tolist(), profile.level.tolist(), strict=True))
        rows = (schedule.device == device).nonzero()[0].tolist()
        for row in rows:
            if schedule.kind[row] == OpKind.F and schedule.pair[row] < 0:
                assert during[row] == level[int(schedule.start[row])]
        assert during[rows].max() == schedule.metrics.peak_memory_ticks[device]
        assert after[rows].min() >= schedule.pipeline.ticks.static[device]


def test_the_text_ends_at_the_makespan() -> None:
    assert text_gantt(with_work(), 65) == (
        "device 0 ....F0- F1- ........BW0---- ....BW1---- ............O-- \n"
        "device 1 ........F0- BW0---- F1- BW1---- ............O-- ........\n"
        "    time 0                                                     14"
    )
    assert text_gantt(with_work(gradient_sync=1), 50) == (
        "device 0 F0- F1- ........BW0---- ....BW1---- ....\n"
        "device 1 ....F0- BW0---- F1- BW1---- ............\n"
        "    time 0                                     10"
    )


def test_the_trace_has_a_thread_of_collectives() -> None:
    events = json.loads(chrome_trace(with_work(), "us"))["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert len(names) == sum(event["name"] == "thread_name" for event in events)
    slices = [
        (event["name"], names[event["pid"], event["tid"]], event["ts"], event["dur"])
        for event in events
        if event["ph"] == "X" and event["cat"] in AuxiliaryKind.__members__
    ]
    assert sorted(slices) == [
        ("0GRADIENT_SYNC", "collective", 10, 3),
        ("0OPTIMIZER", "compute", 13, 1),
        ("0UNSHARD", "collective", 0, 1),
        ("1GRADIENT_SYNC", "collective", 8, 3),
        ("1OPTIMIZER", "compute", 11, 1),
        ("1UNSHARD", "collective", 0, 1),
    ]
    levels = [event["args"]["held"] for event in events if event["ph"] == "C"]
    assert max(levels) == max(with_work().metrics.peak_memory_ticks)


def test_the_frame_lists_each() -> None:
    frame = with_work().to_frame()
    assert Counter(frame["kind"]) == {"F": 4, "BW": 4} | {
        kind.name: 2 for kind in (UNSHARD, SYNC, OPTIMIZER)
    }
    auxiliary = frame[frame["microbatch"].isna()]
    assert auxiliary["start"].tolist() == [0, 10, 13, 0, 8, 11]
    assert auxiliary[auxiliary["kind"] == "OPTIMIZER"]["stage"].isna().all()
    plain = evaluate(Pipeline(stages=2, batches=2), "1f1b").to_frame()
    assert not plain.isna().to_numpy().any()
