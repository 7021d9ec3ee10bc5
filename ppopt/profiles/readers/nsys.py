"""Read ranges of NVTX that Nsight Systems recorded of PyTorch's pipeline runtime.

Under `torch.autograd.profiler.emit_nvtx`, or `nsys profile --pytorch=autograd-nvtx`, every action
of the runtime is a range whose name begins as in traces of torch.profiler: `PP:1F0, op_id = 12`
(torch 2.13, csrc/profiler/util.cpp, getNvtxStr). Two exports are read:

- SQLite (`nsys export -t sqlite`): ranges (NVTX_EVENTS), and on an accelerator the calls that
  launch kernels (CUPTI_ACTIVITY_KIND_RUNTIME) and the kernels themselves. An operation takes the
  time of the kernels that any thread launched within its range, as in `torch_profiler`.
- CSV (`nsys stats -r nvtx_pushpop_trace -f csv`): ranges alone, with times of the CPU.

The report nvtx_gpu_proj_trace is refused: it counts only kernels that the thread of the range
launched (nsys 2022.4, reports/nvtxgpuproj.py), and autograd launches backwards from other threads.

A process is a rank, in the order of the first stages. All processes of a file have one clock; files
have the clock of their host, because they state the time at which they begin.
"""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, read_text
from ppopt.formats.fields import within
from ppopt.profiles.estimate import grouped
from ppopt.profiles.reader import LARGEST_FILE, Recording, RecordReader, files_of
from ppopt.profiles.readers.torch_profiler import RankTrace, rank_trace, recording_of

_NAME = re.compile(r":?(PP:[^,]*)")
"""Name of a range: newer versions write `:` for the default domain, PyTorch numbers behind `,`."""
_SQLITE = (".sqlite", ".db")
_MAGIC = b"SQLite format 3\0"
_PROCESS = 2**24
"""Number of ids of threads in a global id; the quotient identifies the process."""
_ON_DEVICE = {"KERNEL": "kernel", "MEMCPY": "gpu_memcpy", "MEMSET": "gpu_memset"}
"""Table CUPTI_ACTIVITY_KIND_... -> category of its events in a trace."""
_ON_CPU = (
    "Times are those of the CPU: the files have no kernels. They are right if every operation ends "
    "before its range does, as on the CPU itself."
)
_Event = dict[str, Any]


class _Process(NamedTuple):
    """The events of one process of a file."""

    where: str
    base: int
    """Start of its clock, in nanoseconds."""
    events: list[_Event]


def read_exports(paths: Sequence[Path]) -> Recording:
    """Read exports of one run; a folder represents its .sqlite files.

    Raises InputError, naming the file, if it is no such export or has no range of an operation.
    """
    processes = [each for path in files_of(paths, *_SQLITE) for each in _processes(path)]
    traces = [within(each.where, rank_trace, each.events, 0, each.base) for each in processes]
    traces.sort(key=lambda trace: min(record.stage for record in trace.records))
    on_device = any(event["cat"] == "kernel" for each in processes for event in each.events)
    ranks = [_of_rank(trace, rank) for rank, trace in enumerate(traces)]
    return recording_of(ranks, () if on_device else (_ON_CPU,))


def _of_rank(trace: RankTrace, rank: int) -> RankTrace:
    return trace._replace(
        rank=rank,
        records=[record._replace(device=rank) for record in trace.records],
    )


def _processes(path: Path) -> list[_Process]:
    """The processes of a file that have ranges of the runtime."""
    try:
        with path.open("rb") as file:
            is_sqlite = file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise InputError(f"{label(path)}: cannot be read: {error.strerror or error}") from None
    base, events = within(label(path), _of_sqlite if is_sqlite else _of_csv, path)
    by_process = grouped(events, lambda event: event["pid"])
    processes = [
        _Process(label(path), base, ran)
        for ran in by_process.values()
        if any(event["name"].startswith("PP:") for event in ran)
    ]
    if not processes:
        raise InputError(
            f"{label(path)}: holds no range of PyTorch's pipeline runtime (PP:0F0, ...); record "
            "with torch.autograd.profiler.emit_nvtx"
        )
    return processes


def _event(category: str, pid: int, name: str, start: int, end: int, **args: Any) -> _Event:
    """An event as torch.profiler writes it; `start` and `end` in nanoseconds."""
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": category, "pid": pid, "name": name, **times, "args": args}


def _of_sqlite(path: Path) -> tuple[int, list[_Event]]:
    """Start of the capture in nanoseconds since 1970, and the events of all processes."""
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as connection:
            names = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            tables = {name for (name,) in connection.execute(names)}
            if "NVTX_EVENTS" not in tables:
                raise InputError("holds no NVTX_EVENTS; record with --trace=cuda,nvtx")
            base = _base(connection, tables)
            return base, [*_ranges(connection), *_device_events(connection, tables)]
    except sqlite3.Error as error:
        raise InputError(f"not a whole SQLite export of nsys: {error}") from None


def _base(connection: sqlite3.Connection, tables: set[str]) -> int:
    if "TARGET_INFO_SESSION_START_TIME" not in tables:
        return 0
    query = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
    return next((int(row[0] or 0) for row in connection.execute(query)), 0)


def _ranges(connection: sqlite3.Connection) -> Iterator[_Event]:
    query = (
        "SELECT globalTid, coalesce(text, value), start, end FROM NVTX_EVENTS "
        "LEFT JOIN StringIds ON textId = id WHERE end IS NOT NULL"
    )
    for thread, name, start, end in connection.execute(query):
        if match := _NAME.match(name or ""):
            yield _event("user_annotation", thread // _PROCESS, match[1], start, end)


def _device_events(connection: sqlite3.Connection, tables: set[str]) -> Iterator[_Event]:
    """Kernels and copies, and the calls that launched them."""
    present = {
        table: category
        for suffix, category in _ON_DEVICE.items()
        if (table := f"CUPTI_ACTIVITY_KIND_{suffix}") in tables
    }
    launched: set[tuple[int, int]] = set()
    for table, category in present.items():
        named = category == "kernel"
        name = "value" if named else "''"
        join = "LEFT JOIN StringIds ON shortName = id" if named else ""
        query = f"SELECT globalPid, {name}, start, end, correlationId FROM {table} {join}"
        for process, text, start, end, correlation in connection.execute(query):
            pid = process // _PROCESS
            launched.add((pid, correlation))
            yield _event(category, pid, text or "", start, end, correlation=correlation)
    if not launched:
        return
    query = "SELECT globalTid, start, end, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    for thread, start, end, correlation in connection.execute(query):
        pid = thread // _PROCESS
        if (pid, correlation) in launched:
            yield _event("cuda_runtime", pid, "", start, end, correlation=correlation)


def _of_csv(path: Path) -> tuple[int, list[_Event]]:
    """The ranges of a report; its clock starts with the capture."""
    text = read_text(path, LARGEST_FILE)
    rows = csv.DictReader(io.StringIO(text))
    if "Projected Start (ns)" in (rows.fieldnames or ()):
        raise InputError(
            "nvtx_gpu_proj_trace misses the kernels of backwards, which autograd launches from "
            "other threads; give the SQLite export (nsys export -t sqlite)"
        )
    try:
        return 0, list(_rows(rows))
    except (csv.Error, TypeError, ValueError, KeyError):
        raise InputError(
            f"line {rows.line_num}: no row of the report nvtx_pushpop_trace in nanoseconds; write "
            "it with nsys stats -r nvtx_pushpop_trace -f csv"
        ) from None


def _rows(rows: Iterable[Mapping[str, str]]) -> Iterator[_Event]:
    for row in rows:
        start, end, pid = (int(row[key]) for key in ("Start (ns)", "End (ns)", "PID"))
        if match := _NAME.match(row["Name"]):
            yield _event("user_annotation", pid, match[1], start, end)


READER = RecordReader(
    content="NVTX ranges of Nsight Systems, SQLite or CSV",
    marks=("Start (ns)", "RangeStack"),
    suffixes=_SQLITE,
    folder="*.sqlite",
    read=read_exports,
)
