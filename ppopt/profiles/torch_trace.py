"""Read traces of torch.profiler, one file per rank: the ranges of the runtime without the waits.

PyTorch's pipeline runtime records a range for every action: `PP:1F0`, `PP:1I0`, `PP:1W0`, `PP:1B0`
(torch 2.13, schedules.py). On an accelerator, an operation takes the range of its kernels
(`gpu_user_annotation`). Otherwise, and for an operation without kernels (the B of stage 0, which
does nothing), it takes the range on the CPU (`user_annotation`).

A CPU range includes the wait for a receive. An operation that began before its input was ready is
therefore given the median duration of similar operations that did not wait, counted back from its
end. Ranges of sends and receives show which stages exist.

A range of kernels covers kernels that were launched from the operation's own thread. Autograd
launches those of a backward from other threads, so the range may miss them. Launches are therefore
compared with the ranges, and a trace with kernels outside is refused.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import finite, shown, whole, within
from ppopt.formats.torch_csv import KINDS
from ppopt.problem.operation import Op, OpKind
from ppopt.profiles.estimate import Record, sources

LARGEST_FILE = 2**29
"""Limit in bytes of a trace."""
_NAME = re.compile(r"PP:([0-9]{1,6})([FIWB])([0-9]{1,6})")
_NEXT = re.compile(r"PP:([0-9]{1,6})(?:SEND_F|RECV_B)[0-9]{1,6}")
"""Communication of a stage with the next one."""
_OVERLAP = re.compile(r"PP:\(.*\)OVERLAP_F_B")
_GPU = "gpu_user_annotation"
"""Category of a range of kernels."""
_LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories of calls that launch kernels."""
_ROUNDING = 1.0
"""Microseconds by which a kernel may exceed its range."""
_LATEST = 2**62


def read_traces(paths: Sequence[Path]) -> list[Record]:
    """Read the traces of all ranks; see `parse_trace` and `without_waits`.

    A file that states no rank gets its index. Raises InputError where a file is not such a trace,
    where two files are of one rank, and where the trace of a rank is missing.
    """
    found: dict[int, RankTrace] = {}
    for index, path in enumerate(paths):
        trace = parse_trace(read_text(path, LARGEST_FILE), label(path), index)
        if trace.rank in found:
            raise InputError(
                f"{label(path)}: rank {trace.rank} has been read already; give each once"
            )
        found[trace.rank] = trace
    records = [record for trace in found.values() for record in trace.records]
    _check_next({stage for trace in found.values() for stage in trace.followed}, records)
    return without_waits(records)


def _check_next(followed: set[int], records: Sequence[Record]) -> None:
    missing = {stage + 1 for stage in followed} - {record.stage for record in records}
    if missing:
        stage = min(missing)
        raise InputError(
            f"stage {stage} is missing, to which stage {stage - 1} sends; give the trace of its "
            "rank too"
        )


class RankTrace(NamedTuple):
    """The operations in one rank's trace."""

    rank: int
    records: list[Record]
    followed: frozenset[int]
    """Stages of this rank that exchange tensors with their next stage on another rank."""


def parse_trace(content: str, where: str, rank: int) -> RankTrace:
    """Parse the text of a trace. `rank` is used where the trace states none.

    Raises InputError, beginning with `where`, unless the text is a trace with operations.
    """
    return within(where, _records, parse_json(content, where, float), rank)


def _records(trace: object, rank: int) -> RankTrace:
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(trace, dict) or not isinstance(events, list):
        raise InputError("holds no traceEvents; give a trace that torch.profiler exported")
    about = trace.get("distributedInfo")
    if isinstance(about, dict) and "rank" in about:
        rank = within("distributedInfo: rank", whole, about["rank"], 0, 2**20)
    base = within("baseTimeNanoseconds", whole, trace.get("baseTimeNanoseconds", 0), 0, _LATEST)
    named = [event for event in events if isinstance(event, dict) and _is_range(event)]
    times: Counter[Op] = Counter()
    records: dict[tuple[Op, int], Record] = {}
    _check_kernels([event for event in events if isinstance(event, dict)], named)
    for event in _counted(named):
        op, start, length = _operation(event)
        begin = base + start
        if (op, begin) in records:
            raise InputError(f"{event['name']} at {event['ts']} is there twice; keep one of both")
        records[op, begin] = Record(*op[:3], rank, begin, begin + length, times[op])
        times[op] += 1
    if not records:
        raise InputError("holds no operation of PyTorch's pipeline runtime (PP:0F0 and the like)")
    names = [event.get("name") for event in events if isinstance(event, dict)]
    matches = [_NEXT.fullmatch(name) for name in names if isinstance(name, str)]
    followed = frozenset(int(match[1]) for match in matches if match)
    return RankTrace(rank, list(records.values()), followed)


def _counted(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ranges of kernels, and CPU ranges of operations without kernels."""
    with_kernels = {event["name"] for event in events if event.get("cat") == _GPU}
    return [e for e in events if e.get("cat") == _GPU or e["name"] not in with_kernels]


def _check_kernels(events: Sequence[dict[str, Any]], named: Sequence[dict[str, Any]]) -> None:
    """Raise InputError where a kernel ran outside the range of the operation that launched it.

    An operation launches a kernel where the call, on any thread, begins within its CPU range. It
    and its kernel share a correlation number. NCCL's kernels are no part of an operation.
    """
    launched = {
        number: event for event in events if (number := _correlation(event, *_LAUNCHES)) is not None
    }
    operations = sorted(
        (*_span(event), event["name"]) for event in named if event.get("cat") != _GPU
    )
    ranges: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in named:
        if event.get("cat") == _GPU:
            ranges[event["name"]].append(_span(event))
    for kernel in events:
        number, name = _correlation(kernel, "kernel"), str(kernel.get("name"))
        if number not in launched or name.startswith("nccl"):
            continue
        (call, _), (start, end) = _span(launched[number]), _span(kernel)
        index = bisect(operations, (call, inf)) - 1
        if index < 0 or operations[index][1] < call:
            continue
        begin, _, operation = operations[index]
        if not any(a - _ROUNDING <= start and end <= b + _ROUNDING for a, b in ranges[operation]):
            raise InputError(
                f"{operation} at {begin:g}: kernel {shown(name)} that it launched ran outside its "
                "range of kernels, so its time is wrong in this trace; measure with "
                "ppopt.torch.Profiler"
            )


def _correlation(event: dict[str, Any], *categories: str) -> int | None:
    """Number that a kernel shares with the call that launched it."""
    args = event.get("args")
    if event.get("cat") not in categories or not isinstance(args, dict):
        return None
    number = args.get("correlation")
    return number if isinstance(number, int) else None


def _span(event: dict[str, Any]) -> tuple[float, float]:
    """Start and end in microseconds."""
    start, length = _start_and_length(event)
    return start, start + length


def _start_and_length(event: dict[str, Any]) -> tuple[float, float]:
    name = event.get("name")
    where = name if isinstance(name, str) and name.isprintable() else "an event"
    start, length = (
        within(f"{where}: {key}", _microseconds, event.get(key)) for key in ("ts", "dur")
    )
    return start, length


def _is_range(event: dict[str, Any]) -> bool:
    name = event.get("name")
    if event.get("ph") != "X" or not isinstance(name, str):
        return False
    if _OVERLAP.fullmatch(name):
        raise InputError(f"{shown(name)}: overlapped operations have no times of their own")
    return _NAME.fullmatch(name) is not None


def _operation(event: dict[str, Any]) -> tuple[Op, int, int]:
    """Operation, start and duration in nanoseconds."""
    match = _NAME.fullmatch(event["name"])
    assert match is not None
    start, length = (round(1000 * time) for time in _start_and_length(event))
    return Op(KINDS[match[2]], int(match[1]), int(match[3])), start, length


def _microseconds(value: object) -> float:
    number = finite(value)
    if not 0 <= number < 1e15:
        raise InputError(f"{shown(value)} is no time in microseconds")
    return number


def without_waits(records: Iterable[Record]) -> list[Record]:
    """Remove the waits from operations that began before their input was ready.

    Such an operation keeps its end. It starts when its input was ready, or later: its duration is
    at most the median of the same kind and stage without a wait.
    """
    ran = list(records)
    stages = 1 + max((record.stage for record in ran), default=0)
    ends = {(record.step, record.op): record.end for record in ran}
    ready = [_input_ready(record, ends, stages) for record in ran]
    undisturbed: dict[tuple[OpKind, int], list[int]] = defaultdict(list)
    waited: dict[tuple[OpKind, int], list[int]] = defaultdict(list)
    for record, time in zip(ran, ready, strict=True):
        group = undisturbed if time <= record.start else waited
        group[record.kind, record.stage].append(record.end - max(record.start, time))
    duration = {key: min(lengths) for key, lengths in waited.items()}
    duration |= {key: round(median(lengths)) for key, lengths in undisturbed.items()}
    return [
        record
        if time <= record.start
        else record._replace(
            start=min(max(time, record.end - duration[record.kind, record.stage]), record.end)
        )
        for record, time in zip(ran, ready, strict=True)
    ]


def _input_ready(record: Record, ends: dict[tuple[int, Op], int], stages: int) -> int:
    """When the operation's input was produced, in nanoseconds; 0 where it has none."""
    found = [ends.get((record.step, source), 0) for source in sources(record.op, stages)]
    return max(found, default=0)
