"""Traces of torch.profiler, one file per rank: the runtime's own ranges, waits taken off.

PyTorch's pipeline runtime names a range after every action: `PP:1F0`, `PP:1I0`, `PP:1W0`, `PP:1B0`
(torch 2.13, schedules.py). On an accelerator the range of the kernels (`gpu_user_annotation`)
counts, else that of the processor (`user_annotation`), which includes the wait for a receive: an
operation that began before its input was made counts from its end back, as long as those last
that did not wait. An operation that launched no kernels (the B of stage 0, which does nothing)
counts by the processor's range. Ranges of sends and receives tell which stages there are.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import finite, shown, whole, within
from ppopt.formats.torch_csv import LETTERS
from ppopt.problem.operation import Op, OpKind
from ppopt.profiles.estimate import sources
from ppopt.profiles.records import Record

LARGEST_FILE = 2**29
"""Bytes of a trace."""
_KINDS = {letter: kind for kind, letter in LETTERS.items()}
_NAME = re.compile(r"PP:([0-9]{1,6})([FIWB])([0-9]{1,6})")
_NEXT = re.compile(r"PP:([0-9]{1,6})(?:SEND_F|RECV_B)[0-9]{1,6}")
"""What a stage does only where another one follows."""
_OVERLAP = re.compile(r"PP:\(.*\)OVERLAP_F_B")
_KERNELS = "gpu_user_annotation"
_LATEST = 2**62


def read_traces(paths: Sequence[Path]) -> list[Record]:
    """Read the traces of all ranks; see `loads` and `without_waits`.

    Ranks are those that the files state, or else their order. Raises InputError where a file is
    no such trace, or two are of one rank.
    """
    found: dict[int, Trace] = {}
    for index, path in enumerate(paths):
        trace = loads(read_text(path, LARGEST_FILE), label(path), index)
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


class Trace(NamedTuple):
    """What a rank's trace holds."""

    rank: int
    records: list[Record]
    followed: frozenset[int]
    """Stages of the rank that send forwards to a next one on another rank."""


def loads(content: str, where: str, rank: int) -> Trace:
    """Read the text of a trace; its rank is `rank` where it states none.

    Raises InputError, beginning with `where`, on anything that holds no such operations.
    """
    return within(where, _records, parse_json(content, where, float), rank)


def _records(trace: object, rank: int) -> Trace:
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
    return Trace(rank, list(records.values()), followed)


def _counted(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ranges that count: those of the kernels, or of the processor where there are none."""
    kernels = {event["name"] for event in events if event.get("cat") == _KERNELS}
    return [e for e in events if e.get("cat") == _KERNELS or e["name"] not in kernels]


def _is_range(event: dict[str, Any]) -> bool:
    name = event.get("name")
    if event.get("ph") != "X" or not isinstance(name, str):
        return False
    if _OVERLAP.fullmatch(name):
        raise InputError(f"{shown(name)}: overlapped operations have no times of their own")
    return _NAME.fullmatch(name) is not None


def _operation(event: dict[str, Any]) -> tuple[Op, int, int]:
    """Operation, start and length in nanoseconds."""
    match = _NAME.fullmatch(event["name"])
    assert match is not None
    start, length = (
        round(1000 * within(f"{event['name']}: {key}", _microseconds, event.get(key)))
        for key in ("ts", "dur")
    )
    return Op(_KINDS[match[2]], int(match[1]), int(match[3])), start, length


def _microseconds(value: object) -> float:
    number = finite(value)
    if not 0 <= number < 1e15:
        raise InputError(f"{shown(value)} is no time in microseconds")
    return number


def without_waits(records: Iterable[Record]) -> list[Record]:
    """Move the start of every operation that began before its input was made.

    It then lasts as long as the median of its like that did not wait, and starts when its input
    was made at the earliest.
    """
    ran = list(records)
    stages = 1 + max((record.stage for record in ran), default=0)
    ends = {(record.step, record.op): record.end for record in ran}
    made = [_made(record, ends, stages) for record in ran]
    own: dict[tuple[OpKind, int], list[int]] = defaultdict(list)
    least: dict[tuple[OpKind, int], list[int]] = defaultdict(list)
    for record, ready in zip(ran, made, strict=True):
        key = record.kind, record.stage
        (own if ready <= record.start else least)[key].append(record.end - max(record.start, ready))
    lasting = {
        key: round(median(own[key])) if own[key] else min(least[key]) for key in {**own, **least}
    }
    return [
        record
        if ready <= record.start
        else record._replace(
            start=min(max(ready, record.end - lasting[record.kind, record.stage]), record.end)
        )
        for record, ready in zip(ran, made, strict=True)
    ]


def _made(record: Record, ends: dict[tuple[int, Op], int], stages: int) -> int:
    found = [ends.get((record.step, source), 0) for source in sources(record.op, stages)]
    return max(found, default=0)
