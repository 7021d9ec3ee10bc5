"""Exports of Nsight Systems: ranges of a real run, kernels of a drawn one, defects."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ppopt import Pipeline, Schedule, evaluate
from ppopt.errors import InputError
from ppopt.formats.torch_csv import LETTERS
from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import profile
from ppopt.profiles.readers.nsys import read_exports
from tests.cli.cli_run import done

DATA = Path(__file__).parent / "data"
REPORT = DATA / "nsys_nvtx_pushpop_trace.csv"
SCHEMA = (DATA / "nsys.sql").read_text()
KERNELS = """
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
    streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, correlationId INTEGER,
    globalPid INTEGER);
"""
"""Columns that are read, as NVIDIA's guide lists them (Nsight Systems, SQLite schema reference)."""


def database(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def test_a_real_run_in_both_exports(tmp_path: Path) -> None:
    """Four stages on two processes, four microbatches: the processes are ranks 0 and 1."""
    read = read_exports([database(tmp_path / "run.sqlite", SCHEMA)])
    profiled = profile(read.records)
    assert profiled.hosts == (0, 1, 0, 1)
    assert (profiled.batches, profiled.steps) == (4, 1)
    assert {record.kind for record in read.records} == {OpKind.F, OpKind.BW}
    assert "the files have no kernels" in read.warnings[0]
    report = read_exports([REPORT])
    assert profile(report.records).costs(1) == profiled.costs(1)


def statements(schedule: Schedule, process: int, zero: int) -> Iterator[str]:
    """A process per device: ranges are short, and kernels run behind them on the device.

    A thread of its own launches the kernels of a backward, as autograd does.
    """
    per_unit, clock = schedule.pipeline.ticks.per_unit, 0
    rows = [row for row in schedule.rows() if row.device == process]
    for correlation, row in enumerate(rows):
        start, end = (zero + 1000 * time // per_unit for time in (row.start, row.end))
        pid = (7 << 48) | (process + 1) << 24
        name = f"PP:{row.stage}{LETTERS[row.kind]}{row.microbatch}, op_id = 3"
        thread = pid | (1 if row.kind is OpKind.F else 2)
        clock = max(clock, start - 40)
        for table, columns, values in (
            ("NVTX_EVENTS", "eventType,text", f"{clock},{clock + 9},{pid | 1},59,'{name}'"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", f"{clock + 1},{clock + 2},{thread},"
             f"{correlation}"),
        ):  # fmt: skip
            yield f"INSERT INTO {table}(start,end,globalTid,{columns}) VALUES({values});"
        yield (
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL(start,end,globalPid,correlationId,shortName) "
            f"VALUES({start},{end},{pid},{correlation},5);"
        )
        clock += 10


@pytest.mark.parametrize("files", [1, 2])
def test_kernels_count_on_an_accelerator(files: int, tmp_path: Path) -> None:
    """Of one file with two processes, or of two files whose captures began at other times."""
    pipeline = Pipeline(stages=2, batches=3, forward=[3, 5], backward=[8, 9])
    schedule = evaluate(pipeline, "1f1b")
    tables = SCHEMA[: SCHEMA.index("INSERT")]
    began = "INSERT INTO TARGET_INFO_SESSION_START_TIME(utcEpochNs) VALUES({});"
    kernel = "INSERT INTO StringIds VALUES(5, 'gemm');"
    scripts = [
        [tables, KERNELS, kernel, began.format(5000 - zero), *statements(schedule, process, zero)]
        for process, zero in ((0, 300), (1, 300 if files == 1 else 700))
    ]
    if files == 1:
        scripts = [[*scripts[0], *scripts[1][4:]]]
    for rank, script in enumerate(scripts):
        database(tmp_path / f"rank{rank}.sqlite", "\n".join(script))
    read = read_exports([tmp_path])
    assert not read.warnings
    assert [tuple(record)[:6] for record in sorted(read.records, key=repr)] == sorted(
        (
            (*row.op[:3], row.device, 5000 + 1000 * row.start // n, 5000 + 1000 * row.end // n)
            for n in [pipeline.ticks.per_unit]
            for row in schedule.rows()
        ),
        key=repr,
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "Name,Projected Start (ns),RangeStack\n", "nvtx_gpu_proj_trace misses the ke"),
        ("a.csv", "Start (ns),End (ns),Name,PID\n1,2,PP:0F0,7\n3,x,PP:0F1,7\n", "line 3: no row"),
        ("a.csv", "Start (ns),End (ns),Name,PID\n1,2,forward,7\n", "holds no range of PyTorch's"),
        ("a.sqlite", "SQLite format 3\0 and no more", "not a whole SQLite export of nsys"),
        ("none.csv", None, "cannot be read: No such file"),
    ],
)
def test_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_exports([path])
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_database_of_another_program(tmp_path: Path) -> None:
    path = database(tmp_path / "x.sqlite", "CREATE TABLE study (id INTEGER);")
    with pytest.raises(InputError, match=r"x\.sqlite: holds no NVTX_EVENTS"):
        read_exports([path])


def test_from_a_report_to_a_pipeline(tmp_path: Path) -> None:
    out = tmp_path / "measured.yaml"
    assert "Times are those of the CPU" in done("profile", REPORT, "-o", out).err
    assert 'source: "nsys"' in out.read_text()
