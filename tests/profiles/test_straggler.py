"""Timelines of StragglerAnalysis: the pipeline of the slowest data-parallel rank, without waits."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Pipeline, Schedule, evaluate, read_pipeline
from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import divided, profile
from ppopt.profiles.readers import straggler
from tests.cli.cli_run import done, run
from tests.factories.tables import besides_of
from tests.packages import needed

FIELDS = straggler.TimelineRow._fields
TIMES = {"forward": [3, 5], "backward": [8, 9]}
SCHEDULE = evaluate(
    Pipeline(
        stages=2, batches=4, p2p=1, unshard=[2, 1], gradient_sync=[3, 4], optimizer=[2, 1], **TIMES
    ),
    "1f1b",
)
"""A unit is a second here. Device 1 never waits once it has begun: unshard 2, F 3, p2p 1, 4 x 14 on
device 1, p2p 1, BW 8, gradient sync 3 and optimizer 2 are 76."""
AROUND = {"UNSHARD": "params-all-gather", "GRADIENT_SYNC": "grads-reduce-scatter"}


def operations(schedule: Schedule, dp_rank: int, wait: int = 0) -> Iterator[tuple[Any, ...]]:
    """The rows of one data-parallel rank in one step; it waits so long in the gradient sync."""
    devices, per_unit = schedule.pipeline.num_devices, schedule.pipeline.ticks.per_unit
    for row in schedule.rows():
        optype = "forward-compute" if row.kind is OpKind.F else "backward-compute"
        chunk, start = row.stage // devices, row.start / per_unit
        length = row.end / per_unit - start
        yield (dp_rank, row.device, 7, optype, start, length, 0, chunk, row.microbatch)
    for entry in besides_of(schedule).rows():
        begin, end = entry.start / per_unit, entry.end / per_unit
        late = 0 if entry.kind.name == "UNSHARD" else wait
        waits = wait if entry.kind.name == "GRADIENT_SYNC" else 0
        labels = (dp_rank, entry.device, 7)
        length = end - begin
        if entry.kind.name == "OPTIMIZER":  # the clip of gradients, half a second, comes first
            yield (*labels, "optimizer-clip-main-grad", begin + late, 0.5, 0, -1, -1)
            begin, length = begin + 0.5, length - 0.5
        optype = AROUND.get(entry.kind.name, "optimizer")
        yield (*labels, optype, begin + late - waits, length + waits, 0, -1, -1)
    yield (dp_rank, 0, 7, "forward-send", 3, 1, 0, -1, -1)


def rows() -> list[tuple[Any, ...]]:
    """Two ranks: the first runs MADE, the second is faster and waits for the first."""
    quick = evaluate(Pipeline(stages=2, batches=4, forward=2, backward=4), "1f1b")
    sync = [row for row in operations(SCHEDULE, 0) if row[3] == "grads-reduce-scatter"]
    waiting = [(1, *row[1:4], 30, row[4] + row[5] - 30, *row[6:]) for row in sync]
    return [*operations(quick, 1), *waiting, *operations(SCHEDULE, 0)]


def written(folder: Path, table: Sequence[Sequence[Any]], fields: Sequence[str] = FIELDS) -> Path:
    """A timeline as .csv, with the index that pandas writes."""
    path = folder / "trace.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["", *fields])
        out.writerows([index, *row] for index, row in enumerate(table))
    return path


def test_the_slowest_rank_is_given_back(tmp_path: Path) -> None:
    timeline = straggler.read_timeline([written(tmp_path, rows())])
    assert {record.device for record in timeline.records} == {0, 1}
    profiled = profile(timeline.records)
    costs = profiled.costs(10**9)
    wanted = SCHEDULE.pipeline.costs
    for field in ("forward", "backward", "unshard", "gradient_sync", "optimizer"):
        assert costs[field] == list(getattr(wanted, field)), field
    assert profiled.p2p is not None and profiled.p2p.median == 10**9
    assert (
        "data-parallel rank 0, of 2 the one whose last backward ends last" in timeline.comments[2]
    )
    assert "A step of all ranks takes 76000.0 ms, median of 1." in timeline.comments


def test_a_published_timeline() -> None:
    """One step of `trace-ST`, whose last stage is slow; it also has the loss of the vocabulary."""
    path = Path(__file__).parent / "data" / "straggler_timeline.csv"
    profiled = profile(straggler.read_timeline([path]).records)
    assert (profiled.hosts, profiled.batches) == ((0, 1, 2, 3), 4)
    costs = profiled.costs(10**6)
    assert [round(time) for time in costs["forward"]] == [65, 64, 64, 137]
    assert [round(time) for time in costs["backward"]] == [139, 138, 138, 196]


@pytest.mark.parametrize(("duration", "is_read"), [(-7e-5, True), (-0.01, False)])
def test_a_time_just_below_zero_is_rounding(duration: float, is_read: bool, tmp_path: Path) -> None:
    """`timeline-SE.json.gz` has clips of -0.07 ms."""
    table = [(*row[:5], duration, *row[6:]) if "clip" in row[3] else row for row in rows()]
    path = written(tmp_path, table)
    if is_read:
        assert divided(straggler.read_timeline([path]).records)[1]
    else:
        with pytest.raises(InputError, match=r"duration: -0\.01 is no time in seconds"):
            straggler.read_timeline([path])


def perfetto(table: Sequence[Sequence[Any]], late: float = 0) -> list[dict[str, Any]]:
    """A table as analyzer/to_timeline.py writes it; all steps begin `late` seconds later."""
    events: list[dict[str, Any]] = []
    for row in table:
        values = dict(zip(FIELDS, row, strict=True))
        chunk, microbatch = values["mc"], values["mb_id"]
        args = {"step": values["step"], "model_chunk": chunk, "mb_id": microbatch}
        thread = {"pid": values["dp_rank"], "tid": 5 * values["stage"]}
        times = {"ts": (values["start_ts"] + late) * 1e6, "dur": values["duration"] * 1e6}
        named = {"name": values["optype"], "cat": values["optype"], "ph": "X"}
        events.append({**named, **thread, **times, "args": {**args, "seq_id": values["seq_id"]}})
        for rank in (0, 1):
            name = f"PP rank {values['stage']}, TP rank {rank}, compute"
            at = thread if rank == 0 else {**thread, "tid": thread["tid"] + 1000}
            events.append({"name": "thread_name", "ph": "M", **at, "args": {"name": name}})
        events.append({**events[-3], "tid": thread["tid"] + 1000})
    return events


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_a_timeline_for_perfetto_is_the_table(name: str, tmp_path: Path) -> None:
    """Of two tensor-parallel ranks the first; times count from the start of the step."""
    path = tmp_path / name
    text = json.dumps(perfetto(rows(), late=40)).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    table = straggler.read_timeline([written(tmp_path, rows())])
    timeline = straggler.read_timeline([path])
    assert timeline.comments == table.comments
    assert timeline.records == table.records


def test_a_timeline_that_is_no_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(InputError, match="not a list of events; give a timeline-"):
        straggler.read_timeline([path])


def test_the_shortest_time_of_a_collective_counts(tmp_path: Path) -> None:
    """Rank 0 waits 5 s in its gradient sync for rank 1, whose is the shorter."""
    longer = [*operations(SCHEDULE, 0, wait=5)]
    other_rank = [
        (1, *row[1:]) for row in operations(SCHEDULE, 0) if row[3] == "grads-reduce-scatter"
    ]
    timeline = straggler.read_timeline([written(tmp_path, [*longer, *other_rank])])
    lengths = {
        (row.kind.name, row.device): (row.end - row.start) / 10**9
        for row in divided(timeline.records)[1]
    }
    assert lengths == {
        ("UNSHARD", 0): 2, ("UNSHARD", 1): 1, ("GRADIENT_SYNC", 0): 3, ("GRADIENT_SYNC", 1): 4,
        ("OPTIMIZER", 0): 2, ("OPTIMIZER", 1): 1,
    }  # fmt: skip


def test_chunks_are_stages(tmp_path: Path) -> None:
    schedule = evaluate(
        Pipeline(stages=2, batches=4, chunks=2, forward=2, backward=4), "interleaved"
    )
    path = written(tmp_path, [*operations(schedule, 0)])
    records = straggler.read_timeline([path]).records
    profiled = profile(records)
    assert profiled.hosts == (0, 1, 0, 1)
    assert [time / 10**9 for time in profiled.costs(1)["forward"]] == [1, 1, 1, 1]


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pandas reads it: `optype` is a category there, and further columns are ignored."""
    pandas = needed("pandas")
    table = pandas.DataFrame(rows(), columns=FIELDS).astype({"optype": "category"})
    table["gmc"] = 0
    monkeypatch.setattr(pandas, "read_parquet", lambda _: table)
    path = tmp_path / "trace.parquet"
    path.touch()
    assert straggler.read_timeline([path]) == straggler.read_timeline([written(tmp_path, rows())])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ImportError("no pyarrow"),
            ".parquet needs pandas and pyarrow: pip install 'ppopt-pipeline[parquet]'",
        ),
        (PermissionError(13, "Permission denied"), "cannot be read: Permission denied"),
        (ValueError("magic bytes not found"), "not a parquet file: magic bytes not found"),
    ],
)
def test_parquet_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    pandas, path = needed("pandas"), tmp_path / "trace.parquet"
    path.touch()

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(pandas, "read_parquet", fail)
    with pytest.raises(InputError) as caught:
        straggler.read_timeline([path])
    assert str(caught.value).startswith(f"{path}: {message}")


def changed(index: int, **values: Any) -> list[tuple[Any, ...]]:
    """The rows with other values in one of them."""
    table = [*operations(SCHEDULE, 0)]
    row = dict(zip(FIELDS, table[index], strict=True)) | values
    return [*table[:index], tuple(row.values()), *table[index + 1 :]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "holds no forward-compute and no backward-compute"),
        (changed(0, start_ts="soon"), "row 1: start_ts: 'soon' is not a finite number"),
        (changed(0, duration=-1), "row 1: duration: -1 is no time in seconds"),
        (changed(2, mb_id=-1), "row 3: mb_id: -1 is not within 0"),
        (changed(2, stage="x"), "row 3: stage: 'x' is not a whole number"),
        (changed(1, step=""), "row 2: step: '' is not a whole number"),
    ],
)
def test_refused(tmp_path: Path, table: list[tuple[Any, ...]], message: str) -> None:
    path = written(tmp_path, table)
    with pytest.raises(InputError) as caught:
        straggler.read_timeline([path])
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_column_that_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, [], [name for name in FIELDS if name != "mc"])
    with pytest.raises(InputError) as caught:
        straggler.read_timeline([path])
    assert str(caught.value).startswith(f"{path}: column mc is missing; give a timeline with the c")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "cannot be read: No such file or directory"),
        ("none.parquet", None, "cannot be read: No such file or directory"),
        ("long.csv", f"{','.join(FIELDS)}\n{'x' * 2**18}", "line 1: not CSV: field larger"),
        ("short.csv", f"{','.join(FIELDS)}\n0,0,7,optimizer", "row 1: start_ts: None is not a"),
    ],
)
def test_no_table(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    if path.suffix == ".parquet":
        needed("pandas")
    with pytest.raises(InputError) as caught:
        straggler.read_timeline([path])
    assert str(caught.value).startswith(f"{path}: {message}")


class TestCommand:
    def test_a_pipeline_and_a_page(self, tmp_path: Path) -> None:
        path, out = written(tmp_path, rows()), tmp_path / "run.yaml"
        done("profile --from straggler", path, "-o", out)
        assert "# Collectives around the microbatches: the shortest time" in out.read_text()
        schedule = evaluate(read_pipeline(out), "1f1b")
        assert schedule.makespan == 76_000
        stderr = done("profile --from straggler", path, "-o", tmp_path / "run.html").err
        assert "note: the order that ran takes" in stderr

    def test_one_timeline(self, tmp_path: Path) -> None:
        path = written(tmp_path, rows())
        ran = run("profile --from straggler", path, path, "-o", tmp_path / "run.yaml")
        assert (ran.code, ran.out) == (2, "")
        assert "StragglerAnalysis: give one timeline" in ran.err
