"""Read the timelines of StragglerAnalysis: every operation of every worker of a run, as a table.

github.com/ByteDance-Seed/StragglerAnalysis (readme.md, analyzer/metatypes.py): a row per operation
of a data-parallel rank and a pipeline rank (`stage`), in seconds on one clock, as .parquet or .csv.
Its timelines for Perfetto, .json or .json.gz, have the same operations (analyzer/to_timeline.py): a
process per data-parallel rank, and threads with names such as `PP rank 3, TP rank 0, compute`.
`forward-compute` and `backward-compute` name their microbatch and chunk; sends and receives are
rows of their own, so that compute includes no wait for a transfer.

The pipelines of the data-parallel ranks run in parallel and meet in the gradient sync. Only the
pipeline whose last backward ends last is read: it determines the step. A collective ends for all of
its ranks together, and the rank that came last did not wait: the shortest time of its ranks counts.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import abbreviated, finite, whole, within
from ppopt.problem.operation import ONCE, AuxiliaryKind, OpKind
from ppopt.profiles.estimate import Record
from ppopt.profiles.reader import LARGEST_FILE, Recording, RecordReader, single

MAX_COUNT = 2**20
SECOND = 10**9
ROUNDING = 1e-3
"""Seconds by which a time may be below 0: published times have the precision of 32-bit numbers."""
_THREAD = re.compile(r"PP rank ([0-9]{1,6}), TP rank 0,")
"""Name of a thread of the first tensor-parallel rank."""
_COMPUTE = {"forward-compute": OpKind.F, "backward-compute": OpKind.BW}
_AROUND = {
    "params-all-gather": AuxiliaryKind.UNSHARD,
    "embedding-grads-all-reduce": AuxiliaryKind.GRADIENT_SYNC,
    "layernorm-grads-all-reduce": AuxiliaryKind.GRADIENT_SYNC,
    "separate-grads-all-reduce": AuxiliaryKind.GRADIENT_SYNC,
    "grads-reduce-scatter": AuxiliaryKind.GRADIENT_SYNC,
    "optimizer-clip-main-grad": AuxiliaryKind.OPTIMIZER,
    "optimizer": AuxiliaryKind.OPTIMIZER,
}
"""Type of operation around the microbatches -> its kind."""


class TimelineRow(NamedTuple):
    """A row of a timeline; times in nanoseconds."""

    dp_rank: int
    stage: int
    """Pipeline rank."""
    step: int
    optype: str
    start_ts: int
    duration: int
    seq_id: int
    """Index among the operations of this type, worker and step."""
    mc: int
    """Chunk of the pipeline rank; -1 if it belongs to none."""
    mb_id: int
    """Microbatch; -1 if it belongs to none."""

    @property
    def end(self) -> int:
        """The instant at which it ends."""
        return self.start_ts + self.duration


def read_timeline(paths: Sequence[Path]) -> Recording:
    """Read a timeline (.parquet, .csv, .json, .json.gz): the slowest data-parallel rank.

    Raises InputError, naming the file, if it is not one, or if there are several files.
    """
    path = single(paths, "StragglerAnalysis: give one timeline, a .parquet, .csv or .json.gz")
    suffixes = {suffix.lower() for suffix in path.suffixes}
    read = _parquet if ".parquet" in suffixes else _perfetto if ".json" in suffixes else _csv
    return within(label(path), parse_rows, read(path))


def parse_rows(rows: Iterator[Sequence[Any]]) -> Recording:
    """Read rows with the fields of `Operation`, times in seconds.

    Raises InputError, naming the row, if a row is not an operation, or if no row is of a
    microbatch.
    """
    operations = [within(f"row {index}", _operation, row) for index, row in enumerate(rows, 1)]
    ends: dict[int, dict[int, int]] = defaultdict(dict)
    for op in operations:
        if op.optype in _COMPUTE:
            ends[op.dp_rank][op.step] = max(op.end, ends[op.dp_rank].get(op.step, 0))
    if not ends:
        raise InputError(
            f"holds no {' and no '.join(_COMPUTE)}; give a trace-*.parquet or timeline-*.json.gz"
        )
    slowest, fastest = (
        choose(ends, key=lambda rank: median(ends[rank].values())) for choose in (max, min)
    )
    devices = 1 + max(op.stage for op in operations)
    records = [
        Record(
            *(_COMPUTE[op.optype], op.mc * devices + op.stage, op.mb_id, op.stage),
            *(op.start_ts, op.end, op.step),
        )
        for op in operations
        if op.optype in _COMPUTE and op.dp_rank == slowest
    ]
    spans = _spans(operations)
    comments = [
        f"A step of all ranks takes {_ms(median(spans))} ms, median of {len(spans)}.",
        "Collectives around the microbatches: the shortest time of their ranks, without waits.",
    ]
    if len(ends) > 1:
        last, first = (_ms(median(ends[rank].values())) for rank in (slowest, fastest))
        comments.append(
            f"The pipeline is that of data-parallel rank {slowest}, of {len(ends)} the one whose "
            f"last backward ends last: {last} ms after the step begins, by the median, and "
            f"{first} ms on rank {fastest}, the first."
        )
    return Recording([*records, *_around(operations, slowest)], tuple(comments))


def _operation(row: Sequence[Any]) -> TimelineRow:
    values = dict(zip(TimelineRow._fields, row, strict=True))
    times = {
        key: round(SECOND * within(key, _seconds, values[key])) for key in ("start_ts", "duration")
    }
    minimum = {"seq_id": -1, "mc": -1, "mb_id": -1}
    if values["optype"] in _COMPUTE:
        minimum = {"seq_id": -1, "mc": 0, "mb_id": 0}
    numbers = {
        key: within(key, whole, values[key], minimum.get(key, 0), MAX_COUNT)
        for key in ("dp_rank", "stage", "step", "seq_id", "mc", "mb_id")
    }
    return TimelineRow(**numbers, **times, optype=str(values["optype"]))


def _seconds(value: object) -> float:
    seconds = finite(value)
    if -ROUNDING < seconds < 0:
        return 0.0
    if not 0 <= seconds < MAX_COUNT:
        raise InputError(f"{abbreviated(value)} is no time in seconds from the start of the step")
    return seconds


def _spans(operations: Sequence[TimelineRow]) -> list[int]:
    """The length of every step over all workers."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for op in operations:
        starts[op.step] = min(op.start_ts, starts.get(op.step, op.start_ts))
        ends[op.step] = max(op.end, ends.get(op.step, 0))
    return [ends[step] - starts[step] for step in ends]


def _around(operations: Sequence[TimelineRow], dp_rank: int) -> Iterator[Record]:
    """Operations of a data-parallel rank around its microbatches, once per step and device.

    Several operations of one kind count as one of chunk 0 that ends with the last.
    """
    shortest: dict[tuple[int, ...], int] = {}
    for op in operations:
        if op.optype in _AROUND:
            key = _collective(op)
            shortest[key] = min(op.duration, shortest.get(key, op.duration))
    lengths: dict[tuple[AuxiliaryKind, int, int], int] = defaultdict(int)
    ends: dict[tuple[AuxiliaryKind, int, int], int] = defaultdict(int)
    for op in operations:
        if op.optype in _AROUND and op.dp_rank == dp_rank:
            where = _AROUND[op.optype], op.stage, op.step
            lengths[where] += shortest[_collective(op)]
            ends[where] = max(ends[where], op.end)
    for (kind, stage, step), length in lengths.items():
        end = ends[kind, stage, step]
        yield Record(kind, stage, ONCE, stage, max(0, end - length), end, step)


def _collective(op: TimelineRow) -> tuple[int, ...]:
    """Key that the ranks of one collective share; an operation of one rank has its own key."""
    of_type = (list(_AROUND).index(op.optype), op.step, op.seq_id)
    match op.optype:
        case "optimizer-clip-main-grad":
            return of_type
        case "embedding-grads-all-reduce":
            return (*of_type, op.dp_rank)
        case "layernorm-grads-all-reduce" | "optimizer":
            return (*of_type, op.dp_rank, op.stage)
        case _:
            return (*of_type, op.stage)


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 10**6:.1f}"


def _parquet(path: Path) -> Iterator[Sequence[Any]]:
    try:
        from pandas import read_parquet  # noqa: PLC0415  optional

        with path.open("rb") as file:
            table = read_parquet(file)
    except ImportError:
        raise InputError(
            f"{label(path)}: .parquet needs pandas and pyarrow: pip install "
            "'ppopt-pipeline[parquet]'; or save the table as .csv"
        ) from None
    except OSError as error:
        raise InputError(f"{label(path)}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # also pyarrow's ArrowInvalid
        raise InputError(f"{label(path)}: not a parquet file: {error}") from None
    _check_columns(path, list(table.columns))
    columns = [table[name].tolist() for name in TimelineRow._fields]
    return zip(*columns, strict=True)


def _perfetto(path: Path) -> Iterator[Sequence[Any]]:
    """The operations of a timeline for Perfetto; of several tensor-parallel ranks the first.

    Times count from the start of the step, as in the table.
    """
    events = parse_json(read_text(path, LARGEST_FILE), label(path), float)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InputError(f"{label(path)}: not a list of events; give a timeline-*.json.gz")
    stages = {
        (event.get("pid"), event.get("tid")): int(match[1])
        for event in events
        if event.get("name") == "thread_name"
        and (match := _THREAD.match(str((event.get("args") or {}).get("name"))))
    }
    begins: dict[Any, float] = {}
    rows = []
    for event in events:
        args, thread = event.get("args") or {}, (event.get("pid"), event.get("tid"))
        if event.get("ph") == "X" and thread in stages:
            begin, length = (finite(event.get(key)) / 10**6 for key in ("ts", "dur"))
            numbers = (args.get(key) for key in ("seq_id", "model_chunk", "mb_id"))
            where = (event.get("pid"), stages[thread], args.get("step"), event.get("name"))
            rows.append((*where, begin, length, *numbers))
            begins[where[2]] = min(begin, begins.get(where[2], begin))
    return ((*row[:4], row[4] - begins[row[2]], *row[5:]) for row in rows)


def _csv(path: Path) -> Iterator[Sequence[Any]]:
    rows = csv.DictReader(io.StringIO(read_text(path, LARGEST_FILE)))
    try:
        _check_columns(path, rows.fieldnames or [])
        table = [[row[name] for name in TimelineRow._fields] for row in rows]
    except csv.Error as error:
        raise InputError(f"{label(path)}: line {rows.line_num}: not CSV: {error}") from None
    optype = TimelineRow._fields.index("optype")
    return (
        [text if index == optype else _number(text) for index, text in enumerate(row)]
        for row in table
    )


def _number(text: str | None) -> object:
    """The number that a text states; else the text."""
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text


def _check_columns(path: Path, names: Sequence[str]) -> None:
    for name in TimelineRow._fields:
        if name not in names:
            raise InputError(
                f"{label(path)}: column {name} is missing; give a timeline with the columns "
                f"{', '.join(TimelineRow._fields)}"
            )


READER = RecordReader(
    content="a timeline of StragglerAnalysis",
    marks=("forward-compute", "mb_id"),
    suffixes=(".parquet",),
    runtime="megatron",
    read=read_timeline,
)
