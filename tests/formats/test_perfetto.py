"""The trace: what its format asks, slices that nest, arrows that land, and the same schedule."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from ppopt import Pipeline, evaluate
from ppopt.errors import InputError
from ppopt.formats.perfetto import chrome_trace
from ppopt.problem.operation import OpKind, parse
from ppopt.profiles.estimate import Record
from ppopt.profiles.measured_runs import measured
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import live_memory, peaks, schedules, table
from tests.tiers import examples
from tests.verifier.verify_fixtures import schedule_of, split_with_p2p

Event = dict[str, Any]
FIELDS = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "s": {"name", "cat", "ph", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "ph", "id", "ts", "pid", "tid", "bp"},
    "C": {"name", "ph", "ts", "pid", "args"},
}
"""What each kind of event may have: the trace event format, as Perfetto's documentation lists
what its importer supports of it (docs, "Other trace formats": Chrome JSON)."""
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read(schedule: Schedule, unit: str = "us") -> list[Event]:
    """The events of a trace, after checking it against the format."""
    trace = json.loads(chrome_trace(schedule, unit), parse_constant=pytest.fail)
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    for event in events:
        assert event.keys() <= FIELDS[event["ph"]]
        assert FIELDS[event["ph"]] - {"args"} <= event.keys()
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event)
        assert event.get("dur", 0) >= 0
        assert event.get("bp", "e") == "e"
        if event["ph"] == "M":
            assert event["name"] in METADATA
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    return events


def nanoseconds(microseconds: float) -> int:
    """An exact number of nanoseconds, or the test fails."""
    exact = round(microseconds * 1000)
    assert exact / 1000 == microseconds
    return exact


def slices(events: list[Event]) -> dict[tuple[int, int], list[tuple[int, int, Event]]]:
    """Complete events of every thread, as (start, end, event) in ns, sorted."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            entry = (start, start + nanoseconds(event["dur"]), event)
            threads[event["pid"], event["tid"]].append(entry)
    return {thread: sorted(entries, key=lambda e: e[:2]) for thread, entries in threads.items()}


def _are_a_pair(schedule: Schedule, *entries: tuple[int, int, Event]) -> bool:
    rows = {row.op: row for row in schedule.rows()}
    first, second = (rows[parse(event["name"])].pair for _, _, event in entries)
    return first == second >= 0


@examples(10)
@given(schedules())
def test_it_is_the_schedule(schedule: Schedule) -> None:
    """Compute slices are the operations; no two slices of a thread overlap; memory is right."""
    events = read(schedule)
    tick = Fraction(1000, schedule.pipeline.ticks.per_unit)
    by_thread = slices(events)
    compute = [
        (parse(event["name"]), thread[0], start, end)
        for thread, entries in by_thread.items()
        for start, end, event in entries
        if thread[1] == 0
    ]
    assert sorted(compute) == sorted(
        (row.op, row.device, round(row.start * tick), round(row.end * tick))
        for row in schedule.rows()
    )
    for entries in by_thread.values():
        for first, second in pairwise(entries):
            assert first[1] <= second[0] or (
                first[:2] == second[:2] and _are_a_pair(schedule, first, second)
            )
    _assert_memory(schedule, events)


def _assert_memory(schedule: Schedule, events: list[Event]) -> None:
    unit = schedule.pipeline.ticks.memory
    highest: dict[int, float] = defaultdict(float)
    for event in events:
        if event["ph"] == "C":
            highest[event["pid"]] = max(highest[event["pid"]], event["args"]["held"])
    assert [highest[device] for device in sorted(highest)] == [
        float(unit(peak)) for peak in peaks(schedule)
    ]


@examples(10)
@given(schedules())
def test_arrows_and_transfers(schedule: Schedule) -> None:
    """One arrow per tensor that crosses devices, from within its maker to within its user; with
    a delay, one slice on each side of the link, as long as the delay."""
    events = read(schedule)
    rows = {row.op: row for row in schedule.rows()}
    pipeline = schedule.pipeline
    crossing = sum(
        pipeline.device(stage, microbatch) != pipeline.device(stage + 1, microbatch)
        for stage in range(pipeline.num_stages - 1)
        for microbatch in range(pipeline.batches)
    ) * (pipeline.slices or 1)
    arrows: dict[int, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in arrows[event["id"]]
            arrows[event["id"]][event["ph"]] = event
    assert len(arrows) == 2 * crossing
    by_thread = slices(events)
    for pair in arrows.values():
        for end in pair.values():
            time = nanoseconds(end["ts"])
            assert any(a <= time <= b for a, b, _ in by_thread[end["pid"], end["tid"]])
        assert pair["s"]["pid"] != pair["f"]["pid"]
        assert pair["s"]["ts"] <= pair["f"]["ts"]
    transfers = [
        (thread, entry) for thread, entries in by_thread.items() for entry in entries if thread[1]
    ]
    size, times = range(pipeline.num_devices), pipeline.p2p
    matrix = [
        [
            0
            if a == b
            else (times[a][b] if isinstance(times, tuple) else times) * pipeline.ticks.per_unit
            for b in size
        ]
        for a in size
    ]
    per_unit = Fraction(1000, pipeline.ticks.per_unit)
    delayed = 0
    for (device, _), (start, end, event) in transfers:
        maker, direction, _, peer = event["name"].split(" ")
        row = rows[parse(maker)]
        assert event["cat"] == ("activation" if row.kind is OpKind.F else "gradient")
        sender, receiver = (device, int(peer)) if direction == "to" else (int(peer), device)
        delay = matrix[sender][receiver]
        assert sender == row.device
        assert (start, end) == (round(row.end * per_unit), round((row.end + delay) * per_unit))
        delayed += delay > 0
    assert delayed == len(transfers)
    if min((d for i, r in enumerate(matrix) for j, d in enumerate(r) if i != j),
           default=1) > 0:  # fmt: skip
        assert len(transfers) == 4 * crossing


def test_threads_are_named_and_every_slice_has_one() -> None:
    events = read(evaluate(Pipeline(stages=3, batches=4, p2p=5), "1f1b"))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert set(slices(events)) == set(names)
    assert {name.split(" ")[0] for name in names.values()} == {"compute", "send", "receive"}
    assert "send 2" in names.values()
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["device 0", "device 1", "device 2"]


def test_by_hand() -> None:
    """One microbatch through two stages: ticks are 1/4 ms, F of stage 0 ends at 1 ms."""
    events = read(split_with_p2p(), "ms")
    by_thread = {
        (thread, event["name"]): (start, end)
        for thread, entries in slices(events).items()
        for start, end, event in entries
    }
    million = 10**6
    assert by_thread == {
        ((0, 0), "0F0"): (0, 1 * million),
        ((0, 0), "0B0"): (2.75 * million, 2.75 * million),
        ((0, 0), "0W0"): (2.75 * million, 3.75 * million),
        ((1, 0), "1F0"): (1.5 * million, 2.5 * million),
        ((1, 0), "1B0"): (2.5 * million, 2.5 * million),
        ((1, 0), "1W0"): (2.5 * million, 3.5 * million),
        ((0, 1), "0F0 to device 1"): (1 * million, 1.5 * million),
        ((1, 2), "0F0 from device 0"): (1 * million, 1.5 * million),
        ((1, 1), "1B0 to device 0"): (2.5 * million, 2.75 * million),
        ((0, 2), "1B0 from device 1"): (2.5 * million, 2.75 * million),
    }
    memory = [(e["ts"], e["args"]["held"]) for e in events if e["ph"] == "C" and e["pid"] == 0]
    assert memory == [(0, 2), (2750, 2.5), (3750, 1)]


@pytest.mark.parametrize(("unit", "end"), [("s", 9e6), ("ms", 9e3), ("us", 9), ("ns", 0.009)])
def test_units(unit: str, end: float) -> None:
    """1F1B of 2 x 2 ends at 9 units."""
    events = read(evaluate(Pipeline(stages=2, batches=2), "1f1b"), unit)
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(end)


def test_rounding_keeps_slices_apart() -> None:
    """Thirds of a microsecond round to nanoseconds, and no slice reaches into the next."""
    schedule = evaluate(
        Pipeline(stages=2, batches=9, forward=Fraction(1, 3), backward=Fraction(2, 3)), "1f1b"
    )
    for entries in slices(read(schedule, "us")).values():
        assert all(a[1] <= b[0] for a, b in pairwise(entries))


def test_refused() -> None:
    broken = schedule_of(Pipeline(stages=1, batches=1), "0: 0F0@0..1")
    with pytest.raises(InputError, match="perfetto: not a schedule of its pipeline: missing: "):
        chrome_trace(broken)
    with pytest.raises(InputError, match="time unit: 'h' is unknown; use ns, us, ms, s"):
        chrome_trace(split_with_p2p(), "h")


def test_held_is_what_the_counter_shows() -> None:
    """The helper that finds peaks sees the static memory too."""
    schedule = split_with_p2p()
    assert (
        live_memory(schedule.pipeline, table(schedule), 0, -1, starts=True)
        == schedule.pipeline.ticks.static[0]
    )


def test_a_measured_step() -> None:
    """Four microbatches over delays of 1, 2, 3 and 9, the link's time said to be 2: the first
    transfer ends when its reader starts, the others take 2."""
    ran = []
    for microbatch, delay in enumerate((1, 2, 3, 9)):
        begin = 100 * microbatch
        start = begin + 10 + delay
        ran += [
            Record(OpKind.F, 0, microbatch, 0, begin, begin + 10),
            Record(OpKind.F, 1, microbatch, 1, start, start + 10),
            Record(OpKind.BW, 1, microbatch, 1, start + 10, start + 30),
            Record(OpKind.BW, 0, microbatch, 0, start + 30 + delay, start + 50 + delay),
        ]
    step = measured(ran, Pipeline(stages=2, batches=4), 1)
    assert step.pipeline.costs.forward == (10, 10)
    threads = slices(read(replace(step, pipeline=replace(step.pipeline, p2p=2)), "ns"))
    for entries in threads.values():
        assert all(first[1] <= second[0] for first, second in pairwise(entries))
    sent = [(entry["name"], end - start) for start, end, entry in threads[0, 1]]
    assert sent == [(f"0F{m} to device 1", (1, 2, 2, 2)[m]) for m in range(4)]


def test_throughput_stands_in_the_trace_where_it_is_known() -> None:
    """1F1B of 2 x 2 takes 3 x (1 + 2) = 9 ms: 2 x 90 tokens in 9 ms are 20,000 a second."""
    pipeline = Pipeline(stages=2, batches=2, time_unit="ms", tokens_per_microbatch=90)
    known, unknown = (
        json.loads(chrome_trace(evaluate(pipe, "1f1b"), "ms"))["otherData"]
        for pipe in (pipeline, Pipeline(stages=2, batches=2))
    )
    assert (known["makespan"], known["tokens_per_second"]) == (9, 20000)
    assert "mfu" not in known
    assert "tokens_per_second" not in unknown
