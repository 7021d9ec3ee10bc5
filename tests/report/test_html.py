"""The page: what it draws is the schedule, what it says are the figures, and it is safe."""

from __future__ import annotations

import base64
import gzip
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from ppopt.errors import InputError
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.figure import MAX_LABELS, figure
from ppopt.report.html import page
from ppopt.report.numbers import number, percent, spread
from ppopt.report.payload import packed
from ppopt.report.schedule_report import report_schedule
from ppopt.report.sections import tiles
from ppopt.schedule.idle import FREE, arrivals
from ppopt.schedule.operations import ALONE
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import BW, B, F, W, live_memory, peaks, schedules, table
from tests.report.drawn import Content, Picture, data_of, embedded_plotly, picture
from tests.tiers import examples

SEARCH = Origin(
    strategy="searched",
    status="optimal",
    objective=Objective.MAKESPAN,
    value=Fraction(9),
    lower_bound=Fraction(9),
    gap=Fraction(0),
    proof="device 0 alone needs 9",
    seed=7,
    workers=1,
    versions={"ortools": "9.15"},
)
HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"


def one_f_one_b(**pipeline: Any) -> Schedule:
    """1F1B of two devices and two microbatches, F = 1 and BW = 2, by hand; makespan 9.

    Device 0 is idle from 2 to 4 and from 6 to 7, device 1 from 0 to 1 and from 7 to 9.
    """
    rows = [
        (F, 0, 0, 0, 0, 1),
        (F, 0, 1, 0, 1, 2),
        (BW, 0, 0, 0, 4, 6),
        (BW, 0, 1, 0, 7, 9),
        (F, 1, 0, 1, 1, 2),
        (BW, 1, 0, 1, 2, 4),
        (F, 1, 1, 1, 4, 5),
        (BW, 1, 1, 1, 5, 7),
    ]
    return Schedule.from_rows(
        Pipeline(stages=2, batches=2, **pipeline), rows, Origin(strategy="1f1b")
    )


def search(**origin: Any) -> Schedule:
    """The same schedule as the outcome of a search."""
    schedule = one_f_one_b(name="tiny", mem_limit=[2, 1.5])
    return Schedule(schedule.pipeline, schedule.operations, origin=replace(SEARCH, **origin))


def wide(devices: int, batches: int) -> Schedule:
    """Operations one after the other on every device: valid for drawing, F, B and W."""
    rows = []
    for device in range(devices):
        for step in range(3 * batches):
            kind, microbatch = (F, B, W)[step % 3], step // 3
            rows.append((kind, device, microbatch, device, step, step + 1))
    return Schedule.from_rows(Pipeline(stages=devices, batches=batches), rows)


def bars(picture: Picture) -> list[tuple[OpKind, dict[str, Any], int]]:
    """Bars of the Gantt chart that are operations: kind, trace, and number within the trace."""
    return [
        (OpKind[trace["name"].split()[0]], trace, index)
        for trace in picture.traces("y2")
        if trace["name"] != "idle"
        for index in range(len(trace["x"]))
    ]


@examples(4)
@given(schedules())
def test_the_bars_are_the_operations(schedule: Schedule) -> None:
    per_unit = schedule.pipeline.ticks.per_unit
    operations = []
    for kind, trace, index in bars(picture(schedule)):
        stage, microbatch, start, end, length, *_ = trace["customdata"][index]
        assert (start, length) == (trace["base"][index], trace["x"][index])
        assert length == pytest.approx(end - start)
        edges = (round(start * per_unit), round(end * per_unit))
        operations.append((kind, stage, microbatch, trace["y"][index], *edges))
    assert sorted(operations) == sorted(row[:6] for row in table(schedule))


@examples(6)
@given(schedules())
def test_the_script_is_given_the_schedule(schedule: Schedule) -> None:
    (data,) = data_of(page([schedule]))["schedules"]
    ops = data["ops"]
    names = ("kind", "stage", "microbatch", "device", "start", "end", "slice")
    rows = table(schedule)
    assert list(zip(*(ops[name] for name in names), strict=True)) == [row[:7] for row in rows]
    assert ops["lane"] == [0 if row[7] == ALONE else 1 + (row[0] != F) for row in rows]
    assert data["unit"] == schedule.pipeline.ticks.per_unit
    assert list(data["peak"]) == peaks(schedule)
    needs = list(zip(*data["needs"], strict=True))
    sent = arrivals(schedule).sent.tolist()
    for row, needed in enumerate(needs):
        ends = [ops["end"][need] for need in needed if need != FREE]
        assert max(ends, default=0) <= sent[row]
        assert max(ends, default=0) == sent[row] or ops["lane"][row]
    gaps = data["gaps"]
    assert sum(gaps["end"]) - sum(gaps["start"]) == data["last"] * data["devices"] - sum(
        schedule.metrics.busy_ticks
    )


@examples(4)
@given(schedules())
def test_a_bar_tells_the_memory_of_its_device(schedule: Schedule) -> None:
    ticks, rows = schedule.pipeline.ticks, table(schedule)
    instants = {(device, start) for _, _, _, device, start, end, *_ in rows if start == end}
    for _, trace, index in bars(picture(schedule)):
        _, _, start, end, _, during, after, _ = trace["customdata"][index]
        device = trace["y"][index]
        first, last = round(start * ticks.per_unit), round(end * ticks.per_unit)
        if first == last or (device, last) in instants:
            continue
        levels = [
            live_memory(schedule.pipeline, rows, device, first, starts=True),
            live_memory(schedule.pipeline, rows, device, last, starts=False),
        ]
        assert [during, after] == pytest.approx([float(ticks.memory(level)) for level in levels])


@examples(4)
@given(schedules())
def test_operations_and_idle_time_fill_every_row(schedule: Schedule) -> None:
    covered = defaultdict(set)
    for trace in picture(schedule).traces("y2"):
        for base, length, device in zip(trace["base"], trace["x"], trace["y"], strict=True):
            covered[device].add((base, length))
    makespan = max(row[5] for row in table(schedule)) / schedule.pipeline.ticks.per_unit
    assert sorted(covered) == list(range(schedule.pipeline.num_devices))
    for pieces in covered.values():
        at = 0.0
        for base, length in sorted(pieces):
            assert base == pytest.approx(at)
            at = base + length
        assert at == pytest.approx(makespan)


@examples(4)
@given(schedules())
def test_memory_is_drawn_to_one_scale(schedule: Schedule) -> None:
    """The highest point of a row is the device's peak, on the scale of the largest of all."""
    traces = {trace.get("name"): trace for trace in picture(schedule).traces("y")}
    top = max(*peaks(schedule), *(schedule.pipeline.ticks.limits or ()), 1)
    outline = zip(traces["memory"]["x"], traces["memory"]["y"], strict=True)
    points = [(x, y) for x, y in outline if not isnan(y)]
    for device, peak in enumerate(peaks(schedule)):
        row = [device - y for _, y in points if abs(device - y) < 0.5]
        assert max(row) == pytest.approx(0.84 * (peak / top - 0.5))
        assert min(row) == pytest.approx(-0.42)
    assert ("memory limit" in traces) == (schedule.pipeline.limits is not None)
    assert ("static memory" in traces) == any(schedule.pipeline.ticks.static)


def test_steps_of_memory_answer_with_their_figures() -> None:
    """Device 0 holds 1, then 2, then 1; device 1 holds one at a time and ends at 7."""
    (sensor,) = [t for t in picture(one_f_one_b(static=3)).traces("y") if t["type"] == "bar"]
    steps = {(device, *row) for device, row in zip(sensor["y"], sensor["customdata"], strict=True)}
    assert steps == {
        (0, 0, 1, 4, 5, 3),
        (0, 1, 6, 5, 5, 3),
        (0, 6, 9, 4, 5, 3),
        (1, 0, 1, 3, 4, 3),
        (1, 1, 4, 4, 4, 3),
        (1, 4, 7, 4, 4, 3),
        (1, 7, 9, 3, 4, 3),
    }


def test_idle_time_says_where_it_lies() -> None:
    (idle,) = [trace for trace in picture(one_f_one_b()).traces("y2") if trace["name"] == "idle"]
    labels = list(zip(idle["y"], idle["customdata"], idle["text"], strict=True))
    assert labels == [
        (0, [2, 4, 2], "waiting for an input"),
        (0, [6, 7, 1], "waiting for an input"),
        (1, [0, 1, 1], "warm-up"),
        (1, [7, 9, 2], "cool-down"),
    ]


def test_both_charts_share_one_time_axis_with_device_0_on_top() -> None:
    drawn = picture(one_f_one_b())
    axes = {name for name in drawn.layout if name.startswith(("xaxis", "yaxis"))}
    assert axes == {"xaxis", "yaxis", "yaxis2"}
    assert all(trace.get("xaxis", "x") == "x" for trace in drawn.data)
    assert drawn.layout["xaxis"]["range"] == [0, 9]
    for axis in ("yaxis", "yaxis2"):
        assert drawn.layout[axis]["range"] == [1.5, -0.5]
        assert drawn.layout[axis]["fixedrange"]
    assert drawn.layout["yaxis2"]["domain"][0] > drawn.layout["yaxis"]["domain"][1]


def test_every_kind_and_chunk_has_its_colour() -> None:
    rows = [
        (kind, stage, 0, min(stage, 3 - stage), 10 * stage + kind, 10 * stage + kind + 1)
        for stage in range(4)
        for kind in (F, B, W)
    ]
    schedule = Schedule.from_rows(Pipeline(stages=2, batches=1, placement="v"), rows)
    shades = {trace["name"]: trace["marker"]["color"] for trace in picture(schedule).traces("y2")}
    assert list(shades) == [
        "idle",
        *(f"{kind} chunk {chunk}" for kind in "FBW" for chunk in (0, 1)),
    ]
    operations = [shade for name, shade in shades.items() if name != "idle"]
    assert len(set(operations)) == 6


def test_routes_are_told_apart() -> None:
    rows = [
        *((F, 0, 0, 0, 0, 1), (F, 1, 1, 0, 1, 2), (F, 1, 0, 1, 1, 2), (F, 0, 1, 1, 0, 1)),
        *((BW, 1, 1, 0, 2, 4), (BW, 0, 0, 0, 4, 6), (BW, 1, 0, 1, 2, 4), (BW, 0, 1, 1, 4, 6)),
    ]
    schedule = Schedule.from_rows(Pipeline(stages=2, batches=2, routes=2), rows)
    names = [trace["name"] for trace in picture(schedule).traces("y2")]
    assert names == ["idle", "F route 0", "F route 1", "BW route 0", "BW route 1"]


def test_many_chunks_share_one_legend_entry_per_kind() -> None:
    rows = [(kind, stage, 0, 0, 2 * stage, 2 * stage + 1) for stage in range(3) for kind in (F, BW)]
    schedule = Schedule.from_rows(Pipeline(stages=1, batches=1, chunks=3), rows)
    operations = [trace for trace in picture(schedule).traces("y2") if trace["name"] != "idle"]
    assert len(operations) == 6
    entries = [trace["name"] for trace in operations if trace["showlegend"]]
    assert entries == ["F forward", "BW full backward"]
    assert {trace["legendgroup"] for trace in operations} == {"F", "BW"}


def test_large_schedules_are_few_traces_without_labels() -> None:
    small, large = wide(2, 4), wide(4, MAX_LABELS // 12 + 1)
    assert all("texttemplate" in t for t in picture(small).traces("y2") if t["name"] != "idle")
    drawn = picture(large)
    assert len(large) > MAX_LABELS
    assert len(drawn.data) <= 6
    assert not any("texttemplate" in trace for trace in drawn.data)


def test_figures_in_the_text() -> None:
    """9 x 2 device time, 12 of it busy: idle 6/18 of all and 6/12 of busy time."""
    text = Content(page([search()], title="Two devices")).text
    for text_part in (
        "Two devices",
        "searched · tiny",
        "optimal (proved)",
        "within the memory limit",
        "2 devices, 2 microbatches, linear, memory limits 1.5 to 2",
        "makespan 9 lower bound 9 ",
        "bubble 33.3 % of the makespan",
        "Device span: 9",
        "Bubble overhead: 50 % of busy time",
        "memory peak 2 on device 0; limits 1.5 to 2",
        "No schedule within this memory has a makespan below 9, because device 0 alone needs 9.",
        "Made with seed 7, workers 1, ortools 9.15",
    ):
        assert text_part in text


def test_a_title_names_the_model_or_its_size_and_what_is_shown() -> None:
    assert "<title>tiny</title>" in page([search()])
    assert "<title>tiny: comparison</title>" in page([search()] * 2, what="comparison")
    unnamed = replace(search(), pipeline=Pipeline(stages=2, batches=2, mem_limit=[2, 1.5]))
    assert "<title>2 devices, 2 microbatches: plan</title>" in page([unnamed], what="plan")


def test_lines_of_tiles_are_equally_long() -> None:
    """Nine in lines of at most seven are five and four; in lines of at most four, three each."""
    assert 'style="--wide:5;--middling:3;--narrow:3;"' in tiles([("name", "1")] * 9)
    assert 'style="--wide:4;--middling:4;--narrow:2;"' in tiles([("name", "1")] * 4)


def test_no_more_is_claimed_than_is_known() -> None:
    text = Content(page([search(status="feasible", lower_bound=8, gap=Fraction(1, 9))])).text
    assert "tiny searched feasible, gap 11.2 %" in text
    assert "optimal (proved)" not in text
    over = Content(page([one_f_one_b(mem_limit=1)])).text
    assert "over the memory limit" in over
    assert "lower bound" not in over


def test_summary_in_the_users_units() -> None:
    schedule = one_f_one_b(mem_limit=[2.5, 0.5], static=0.25)
    halves = Pipeline(stages=2, batches=2, forward=0.5, mem_limit=[2.5, 0.5], static=0.25)
    columns = (
        schedule.kind,
        schedule.stage,
        schedule.microbatch,
        schedule.device,
        schedule.start,
        schedule.end,
    )
    origin = Origin(objective=Objective.DEVICE_SPAN)
    schedule = Schedule.from_columns(halves, *columns, origin=origin)
    report = report_schedule(schedule)
    assert halves.ticks.per_unit == 2
    assert report.makespan == report.device_span == report.value == 4.5
    assert report.bubble_rate == pytest.approx(1 / 3)
    assert report.bubble_overhead == 0.5
    assert report.peak_memory == [2.25, 1.25]
    assert (report.mem_limit, report.fits_limit) == ([2.5, 0.5], False)


def test_several_schedules_are_sorted_and_linked() -> None:
    longer = Pipeline(stages=2, batches=2)
    rows = [(*row[:4], row[4] + 3, row[5] + 3, *row[6:]) for row in table(one_f_one_b())]
    text = page([one_f_one_b(), Schedule.from_rows(longer, rows), wide(3, 2)])
    assert [entry["last"] for entry in data_of(text)["schedules"]] == [6, 9, 12]
    content = Content(text)
    ids = {attributes.get("id") for _, attributes in content.tags}
    links = [attributes["href"] for tag, attributes in content.tags if tag == "a"]
    assert links == ["#schedule-1", "#schedule-2", "#schedule-3"]
    assert {link[1:] for link in links if link} <= ids


@pytest.mark.parametrize(
    ("values", "name"),
    [([0, 127], "i1"), ([-1, 128], "i2"), ([2**15], "i4"), ([-(2**31)], "i4"), ([2**53], "f8")],
)
def test_columns_take_the_narrowest_type(values: list[int], name: str) -> None:
    column = packed(np.array(values))
    assert column["type"] == name
    assert np.frombuffer(base64.b64decode(column["base64"]), f"<{name}").tolist() == values


def test_identical_input_gives_identical_bytes() -> None:
    assert page([search(), one_f_one_b()]) == page([search(), one_f_one_b()])


def test_hostile_words_stay_words() -> None:
    """In title and h1; per schedule strategy twice, name, status, proof, seed, version pair: the
    name is that of the page, so that only the chart repeats it."""
    calm = Content(page([search()] * 2, title="tiny"))
    schedule = search(
        strategy=HOSTILE, status=HOSTILE, proof=HOSTILE, seed=HOSTILE, versions={HOSTILE: HOSTILE}
    )
    named = Pipeline(stages=2, batches=2, mem_limit=[2, 1.5], name=HOSTILE)
    pair = [replace(schedule, pipeline=named)] * 2
    hostile = Content(page(pair, title=HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in calm.tags]
    assert hostile.text.count(HOSTILE) == 2 + 2 * 7


def test_the_page_needs_no_network() -> None:
    text = page([search(), one_f_one_b()])
    content = Content(text)
    packed_script = embedded_plotly(text)
    assert gzip.decompress(base64.b64decode(packed_script)).decode() == get_plotlyjs()
    assert "http" not in text.replace(packed_script, "").replace("http-equiv", "")
    assert not any({"src", "data", "srcset"} & set(attributes) for _, attributes in content.tags)
    assert content.count("link") == 0
    (policy,) = [a["content"] for _, a in content.tags if "http-equiv" in a]
    assert policy.startswith("default-src 'none';")


def test_the_page_is_small() -> None:
    """Plotly's script is gzipped: less than half of it as base64, and it is there once."""
    assert len(page([search(), one_f_one_b()])) < len(get_plotlyjs()) / 2


def test_written_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    one_f_one_b(name="é").to_html(path)
    assert path.read_bytes().decode("utf-8") == page([one_f_one_b(name="é")])


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no schedule to show"):
        page([])
    with pytest.raises(InputError, match="No such file"):
        one_f_one_b().to_html(tmp_path / "missing" / "page.html")


def test_many_devices_keep_their_rows_apart_from_the_labels() -> None:
    for devices in (1, 8, 64, 200):
        layout = figure(wide(devices, 1)).to_dict()["layout"]
        rows = layout["yaxis2"]["domain"][1] - layout["yaxis2"]["domain"][0]
        inner = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
        pixels = round(rows * inner / devices, 6)
        assert pixels >= 4
        assert layout["yaxis2"]["dtick"] * pixels >= 11


def test_ink_is_readable_on_every_shade() -> None:
    """WCAG 2.1, 1.4.3: a contrast of at least 4.5 for text."""
    for kind in OpKind:
        shades = [colours.shade(kind, part, 8) for part in range(8)]
        assert len(set(shades)) == 8
        for shade in shades:
            light, dark = sorted(
                (colours.luminance(shade), colours.luminance(colours.ink(shade))), reverse=True
            )
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_numbers_are_trimmed() -> None:
    numbers = (27.0, 27, 0.5, 1 / 3, 2 / 3, 1e-7, 123456789.25, 0, None)
    texts = ("27", "27", "0.5", "0.333333", "0.666667", "1e-07", "123456789.25", "0", "–")  # noqa: RUF001
    assert tuple(map(number, numbers)) == texts
    assert [percent(share) for share in (0, 0.15625, 1, 1e-6)] == [
        "0 %",
        "15.6 %",
        "100 %",
        "less than 0.01 %",
    ]
    assert (spread([4, 4, 4]), spread([4])) == ("4 each", "4")
    assert spread(range(16, 0, -1)) == "16 15 14 .. 3 2 1"
