"""Units stand wherever figures stand; without units nothing changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats import perfetto, schedule_json
from ppopt.problem.pipeline import Pipeline
from ppopt.report.entries import entries
from ppopt.report.figure import figure
from ppopt.report.sections import section
from ppopt.report.svg import svg
from ppopt.report.text import text_gantt
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import evaluate
from tests.cli.cli_run import done, json_of, run

LINE = "--stages 2 --batches 2 --forward-times 3ms --activation 2GiB --p2p-time 500us"


def schedule_in_units(**more: str) -> Schedule:
    """1F1B of two devices and two microbatches.

    F = 3, BW = 6, p2p 0.5: F, all of device 1, BW, that is 3 + 0.5 + 18 + 0.5 + 6 = 28.
    """
    return evaluate(Pipeline(stages=2, batches=2, **more), "1f1b")


@pytest.fixture
def known() -> Schedule:
    return schedule_in_units(forward="3ms", p2p="500us", activation="2GiB", mem_limit="4096MiB")


def test_pictures(known: Schedule) -> None:
    drawn = svg(known)
    assert "makespan 28 ms" in drawn
    assert "peak memory 4 2 GiB, limit 4 GiB each" in drawn
    assert "F, stage 0, microbatch 0: 0 to 3 ms" in drawn
    assert ">28 ms</text>" in drawn
    picture = figure(known)
    assert picture.layout.xaxis.title.text == "time (ms)"
    templates = [trace.hovertemplate for trace in picture.data if trace.hovertemplate]
    assert all("}} ms" in t or "} ms" in t for t in templates)
    assert (text_gantt(known, 80) or "").endswith("28 ms")
    assert " ms" not in svg(schedule_in_units())


def test_page(known: Schedule) -> None:
    (entry,) = entries([known])
    assert entry.note.startswith("makespan 28 ms within memory 4 GiB each; idle ")
    text = section(1, entry, "", folded=False)
    for part in ("28 ms", "4 GiB", "F (ms)", "activation (GiB)", "Time between devices: 0.5 ms"):
        assert part in text


def test_units_of_time_that_differ_share_no_axis(known: Schedule) -> None:
    in_seconds = schedule_in_units(time_unit="s")
    with pytest.raises(InputError, match="schedules in ms and s share no time axis"):
        entries([known, in_seconds])
    assert len(entries([known, schedule_in_units()])) == 2


def test_a_trace_takes_the_unit_of_the_schedule(known: Schedule) -> None:
    """3 ms are 3000 microseconds; a unit of one's own may only repeat it."""
    events = json.loads(perfetto.chrome_trace(known))
    assert events["otherData"]["time_unit"] == "ms"
    assert events["otherData"]["memory_unit"] == "GiB"
    first = next(event for event in events["traceEvents"] if event.get("name") == "0F0")
    assert (first["ts"], first["dur"]) == (0, 3000)
    names = {event["name"] for event in events["traceEvents"] if event["ph"] == "C"}
    assert names == {"memory (GiB)"}
    assert perfetto.chrome_trace(known, "ms") == perfetto.chrome_trace(known)
    with pytest.raises(InputError, match="time unit: s is not ms, that of the schedule"):
        perfetto.chrome_trace(known, "s")


def test_a_schedule_file_keeps_units_and_counts() -> None:
    pipeline = Pipeline(
        stages=2,
        batches=2,
        forward="3ms",
        activation="2GiB",
        tokens_per_microbatch=4096,
        flops_per_microbatch=10**15,
        peak_flops=989 * 10**12,
    )
    written = schedule_json.dumps(evaluate(pipeline, "1f1b"))
    restored, _ = schedule_json.loads(written, "x")
    assert restored.pipeline.time_unit == "ms"
    assert restored.pipeline.tokens_per_microbatch == 4096
    assert schedule_json.dumps(restored) == written
    assert "unit" not in json.dumps(pipeline_of(schedule_in_units()))


def pipeline_of(schedule: Schedule) -> object:
    return schedule_json.schedule_to_object(schedule)["pipeline"]


def test_tables() -> None:
    text = " ".join(done(f"eval 1f1b {LINE}").out.split())
    assert "makespan 28 ms" in text
    assert "memory peak 4 GiB on device 0" in text
    table = " ".join(done(f"frontier {LINE} --placement linear --workers 1").out.split())
    assert "memory makespan (GiB) (ms)" in table
    assert "minimum memory: 2 GiB (proved); device 0 needs 2 GiB even" in table
    assert json_of(f"frontier {LINE} --placement linear --workers 1")["memory_unit"] == "GiB"


def test_a_violation_names_the_unit(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    done(f"eval 1f1b {LINE} --mem-limit 3GiB", "-o", file)
    assert "4 GiB" in run(f"verify {file}").out


def test_throughput_without_a_unit_of_time_is_noted() -> None:
    ran = run("eval gpipe --stages 2 --batches 2 --tokens-per-microbatch 4096")
    assert "note: tokens_per_microbatch: no throughput without the unit of the times" in ran.err
