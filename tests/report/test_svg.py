"""The light picture: well-formed, to scale, harmless, and the same every time."""

from __future__ import annotations

import base64
import struct
import zlib
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given

from ppopt import Pipeline, Schedule, evaluate
from ppopt.problem.kinds import RECORDS
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.drawing import GANTT, Drawing, Series, drawing
from ppopt.report.svg import (
    LEFT,
    LINES,
    MAX_PATHS,
    MAX_RECTS,
    RIGHT,
    TEXT,
    WIDTH,
    png,
    svg,
)
from ppopt.schedule.operations import ALONE
from ppopt.schedule.origin import Origin
from tests.factories.schedules import F, schedules
from tests.tiers import examples

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text></svg><script>alert(1)</script>\"'&amp;\x00\x1b\ud800"


def parsed(schedule: Schedule) -> ElementTree.Element:
    return ElementTree.fromstring(svg(schedule))


def rects(picture: ElementTree.Element) -> list[tuple[str, float, float, str]]:
    """Colour, left edge, width and hover text of every operation."""
    drawn = []
    for group in picture.iter(f"{SVG}g"):
        for rect in group.findall(f"{SVG}rect"):
            title = rect.findtext(f"{SVG}title") or ""
            drawn.append(
                (group.attrib["fill"], float(rect.attrib["x"]), float(rect.attrib["width"]), title)
            )
    return drawn


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def one_f_one_b(**pipeline: Any) -> Schedule:
    return evaluate(Pipeline(stages=2, batches=2, **pipeline), "1f1b")


@examples(12)
@given(schedules())
def test_every_operation_is_one_rect_at_its_time(schedule: Schedule) -> None:
    """Pixels are rounded to 1/100, so a width is off by 1/100 at most."""
    scale = (WIDTH - LEFT - RIGHT) / max(int(schedule.end.max()), 1)
    drawn = sorted((x, width) for _, x, width, _ in rects(parsed(schedule)))
    true = sorted(
        (LEFT + scale * row.start, scale * (row.end - row.start)) for row in schedule.rows()
    )
    assert len(drawn) == len(schedule)
    for (x, width), (start, length) in zip(drawn, true, strict=True):
        assert x == pytest.approx(start, abs=0.011)
        assert width == pytest.approx(length, abs=0.011)


def test_hover_text_and_colours_are_those_of_the_operations() -> None:
    """1F1B of 2 x 2, F = 0.5 and BW = 1 by hand: device 1 alternates from 0.5 on."""
    drawn = rects(parsed(one_f_one_b(forward="0.5")))
    assert (colours.HUES[OpKind.BW].lower(), "BW, stage 1, microbatch 0: 1 to 2") in {
        (colour, title) for colour, _, _, title in drawn
    }
    assert Counter(colour for colour, *_ in drawn) == {
        colours.HUES[OpKind.F].lower(): 4,
        colours.HUES[OpKind.BW].lower(): 4,
    }


def test_chunks_are_told_apart_by_shade() -> None:
    pipeline = Pipeline(stages=2, batches=2)
    picture = parsed(evaluate(pipeline, "interleaved"))
    shades = {colours.shade(kind, part, 2) for kind in (OpKind.F, OpKind.BW) for part in (0, 1)}
    assert {colour for colour, *_ in rects(picture)} == shades
    assert "shades, dark to light: chunk 0, chunk 1" in texts(picture)


def test_caption_axis_and_numbers_are_written() -> None:
    """1F1B on 2 x 2 takes 9 (F = 1, BW = 2), of which each device is busy for 6."""
    written = texts(parsed(one_f_one_b(name="mine")))
    assert written[0] == "mine · 1f1b · makespan 9 · bubble rate 33.3 % · peak memory 2 1"
    assert written[1:3] == ["device 0", "device 1"]
    assert written[3:13] == [*map(str, range(9)), "9"]
    assert Counter(written[13:])["0"] == Counter(written[13:])["1"] == 4


def test_microbatches_that_differ_have_their_factors_and_their_order() -> None:
    pipeline = Pipeline(stages=2, batches=2, microbatch_times=[1, 3]).reordered([1, 0])
    picture = parsed(evaluate(pipeline, "1f1b"))
    assert texts(picture)[0].endswith("peak memory 2 1 · microbatch order 1, 0")
    titles = {title for _, _, _, title in rects(picture)}
    first = "F, stage 0, microbatch 0: 0 to 3; microbatch 1 of the list: times x 3, memory x 1"
    assert first in titles


def test_slices_are_told_apart() -> None:
    """Two slices of each of two microbatches: F and BW on each of two devices."""
    written = Counter(texts(parsed(evaluate(Pipeline(stages=2, batches=2), "seq-1f1b"))))
    assert [written[name] for name in ("0₀", "0₁", "1₀", "1₁")] == [4] * 4


def test_numbers_are_written_where_they_fit() -> None:
    """500 microbatches of 3 in 880 pixels: every bar is narrower than a digit."""
    narrow = texts(parsed(evaluate(Pipeline(stages=2, batches=500), "zb-1p")))
    assert "499" not in narrow


def test_large_schedules_are_drawn_as_one_path_per_colour() -> None:
    schedule = evaluate(Pipeline(stages=4, batches=400), "zb-1p")
    assert MAX_RECTS < len(schedule) <= MAX_PATHS
    picture = parsed(schedule)
    assert not rects(picture)
    paths = [path.attrib for path in picture.iter(f"{SVG}path")]
    for kind in (OpKind.F, OpKind.B, OpKind.W):
        drawn = [path["d"] for path in paths if path.get("fill") == colours.HUES[kind].lower()]
        assert max(path.count("M") for path in drawn) == 1600


def pixels(data: bytes) -> np.ndarray:
    """Lines of RGBA of a PNG whose lines are all of filter type 2 (`Up`)."""
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    raw = zlib.decompress(data[start + 4 : start + 4 + length])
    end = start + 4 + length
    assert data[end : end + 4] == struct.pack(">I", zlib.crc32(data[start:end]))
    lines = np.frombuffer(raw, dtype=np.uint8).reshape(height, 1 + 4 * width)
    assert (lines[:, 0] == 2).all()
    return np.cumsum(lines[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, 4)


def layers(drawn: Drawing) -> list[Series]:
    """Plain colours: F 200, 0, 0 and BW 0, 100, 0."""
    colours = {OpKind.F: "#c80000", OpKind.BW: "#006400"}
    return [
        Series(RECORDS[kind], 0, "", colour, np.flatnonzero(drawn.bars.kind == kind))
        for kind, colour in colours.items()
    ]


def image(schedule: Schedule, last: int, columns: int) -> np.ndarray:
    drawn = drawing(schedule, GANTT)
    return pixels(png(drawn, layers(drawn), last, columns))


def test_pixels_of_one_unit_have_the_colours_of_the_operations() -> None:
    """1F1B on 2 x 2, F = 1, BW = 2; device 0 is F F . . BW BW . BW BW, device 1 starts at 1."""
    schedule = one_f_one_b()
    lines = image(schedule, 9, 9)
    assert lines.shape == (2 * LINES, 9, 4)
    tone = {"F": [200, 0, 0, 255], "W": [0, 100, 0, 255], ".": [0, 0, 0, 0]}
    for device, row in enumerate(("FF..WW.WW", ".FWWFWW..")):
        bar = lines[device * LINES : (device + 1) * LINES]
        for line in bar[:-1]:
            assert line.tolist() == [tone[letter] for letter in row]
        assert not bar[-1].any()


def test_a_pixel_has_the_colour_of_what_fills_most_of_it() -> None:
    """Three units a pixel: device 0 is F F . | . BW BW | . BW BW, device 1 . F BW | BW F BW | BW.

    Half F, half BW has the colour of several, two thirds BW have its colour; idle time is opacity.
    """
    schedule = one_f_one_b()
    lines = image(schedule, 9, 3)
    assert lines[0].tolist() == [[200, 0, 0, 170], [0, 100, 0, 170], [0, 100, 0, 170]]
    several = [*colours.channels(colours.SEVERAL), 170]
    assert lines[LINES].tolist() == [several, [0, 100, 0, 255], [0, 100, 0, 85]]


def test_of_a_pair_f_has_the_upper_half() -> None:
    schedule = evaluate(Pipeline(stages=4, batches=8), "dualpipe")
    (row, *_) = np.flatnonzero((schedule.pair != ALONE) & (schedule.kind == OpKind.F))
    last = int(schedule.end.max())
    lines = image(schedule, last, last)
    top = int(schedule.device[row]) * LINES
    column = int(schedule.start[row])
    assert [line[column].tolist() for line in lines[top : top + LINES]] == [
        *[[200, 0, 0, 255]] * 3,
        *[[0, 100, 0, 255]] * 3,
        [0, 0, 0, 0],
    ]


def test_the_largest_schedules_are_a_small_image() -> None:
    """64 x 512 with F, B and W: 98,304 operations."""
    text = svg(evaluate(Pipeline(stages=64, batches=512), "zb-1p"))
    assert len(text) < 300_000
    picture = ElementTree.fromstring(text)
    (image,) = picture.iter(f"{SVG}image")
    box = {key: float(image.attrib[key]) for key in ("x", "width", "height")}
    assert box == {"x": LEFT, "width": WIDTH - LEFT - RIGHT, "height": 640}
    assert pixels(base64.b64decode(image.attrib["href"].split(",")[1])).shape == (
        64 * LINES,
        WIDTH - LEFT - RIGHT,
        4,
    )
    assert any("the colour of what fills most of it" in line for line in texts(picture))


@pytest.mark.parametrize("field", ["name", "strategy"])
def test_hostile_words_stay_words(field: str) -> None:
    schedule = one_f_one_b(name=HOSTILE if field == "name" else "")
    if field == "strategy":
        schedule = Schedule.from_columns(
            schedule.pipeline, *schedule.compute.columns, origin=Origin(strategy=HOSTILE)
        )
    text = svg(schedule)
    assert "<script" not in text
    assert "</text></svg><script>alert(1)" in texts(ElementTree.fromstring(text))[0]


def test_long_names_are_cut() -> None:
    caption = texts(parsed(one_f_one_b(name="x" * 10_000)))[0]
    assert len(caption) == 120
    assert caption.endswith("…")


@pytest.mark.parametrize(
    ("rows", "drawn"),
    [
        ([], 0),
        ([(F, 0, 0, 0, 0, 1)], 1),
        ([(F, 0, 0, 0, 0, 1), (F, 1, 0, 1, 1, 2), (F, 2, 0, 1, 2, 3), (F, 0, 0, 9, 0, 1)], 2),
        ([(F, 0, 0, 0, 0, 1), (F, 1, -1, 1, 1, 2), (9, 1, 0, 1, 2, 3)], 1),
    ],
)
def test_what_is_no_schedule_is_drawn_as_far_as_it_goes(
    rows: list[tuple[int, ...]], drawn: int
) -> None:
    picture = parsed(Schedule.from_rows(Pipeline(stages=2, batches=2), rows))
    assert texts(picture)[0] == f"incomplete or defective: {len(rows)} operations"
    assert len(rects(picture)) == drawn


def test_identical_input_gives_an_identical_picture() -> None:
    assert svg(one_f_one_b()) == svg(one_f_one_b())


def test_text_is_readable_on_white_and_on_black() -> None:
    """WCAG 2.1, 1.4.3: a contrast of at least 4.5 for text."""
    light = colours.luminance(TEXT)
    assert 1.05 / (light + 0.05) >= 4.5
    assert (light + 0.05) / 0.05 >= 4.5


def test_notebooks_show_the_picture() -> None:
    schedule = one_f_one_b()
    assert schedule._repr_html_() == svg(schedule)
