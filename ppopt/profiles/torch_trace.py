"""Traces of torch.profiler, one file per rank: the runtime's own ranges, waits taken off.

PyTorch's pipeline runtime names a range after every action: `PP:1F0`, `PP:1I0`, `PP:1W0`, `PP:1B0`
(torch 2.13, schedules.py). On an accelerator the range of the kernels (`gpu_user_annotation`)
counts, else that of the processor (`user_annotation`), which includes the wait for a receive: an
operation that began before its input was made counts from its end back, as long as those last
that did not wait.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import finite, shown, whole, within
from ppopt.formats.torch_csv import LETTERS
from ppopt.op import Op, OpKind
from ppopt.profiles.estimate import sources
from ppopt.profiles.records import Record

LARGEST_FILE = 2**29
"""Bytes of a trace."""
_KINDS = {letter: kind for kind, letter in LETTERS.items()}
_NAME = re.compile(r"PP:([0-9]{1,6})([FIWB])([0-9]{1,6})")
_OVERLAP = re.compile(r"PP:\(.*\)OVERLAP_F_B")
_LATEST = 2**62


def read_traces(paths: Sequence[Path]) -> list[Record]:
    """Read the traces of all ranks; see `loads` and `without_waits`.

    Ranks are those that the files state, or else their order. Raises InputError where a file is
    no such trace, or two are of one rank.
    """
    found: dict[int, list[Record]] = {}
    for index, path in enumerate(paths):
        rank, records = loads(read_text(path, LARGEST_FILE), label(path), index)
        if rank in found:
            raise InputError(f"{label(path)}: rank {rank} has been read already; give each once")
        found[rank] = records
    return without_waits([record for records in found.values() for record in records])


def loads(content: str, where: str, rank: int) -> tuple[int, list[Record]]:
    """Read the text of a trace: its rank (`rank` where it states none) and its operations.

    Raises InputError, beginning with `where`, on anything that holds no such operations.
    """
    return within(where, _records, parse_json(content, where, float), rank)


def _records(trace: object, rank: int) -> tuple[int, list[Record]]:
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(trace, dict) or not isinstance(events, list):
        raise InputError("holds no traceEvents; give a trace that torch.profiler exported")
    about = trace.get("distributedInfo")
    if isinstance(about, dict) and "rank" in about:
        rank = within("distributedInfo: rank", whole, about["rank"], 0, 2**20)
    base = within("baseTimeNanoseconds", whole, trace.get("baseTimeNanoseconds", 0), 0, _LATEST)
    named = [event for event in events if isinstance(event, dict) and _is_range(event)]
    kernels = [event for event in named if event.get("cat") == "gpu_user_annotation"]
    times: Counter[Op] = Counter()
    records = []
    for event in kernels or named:
        op, start, length = _operation(event)
        begin = base + start
        records.append(Record(*op[:3], rank, begin, begin + length, times[op]))
        times[op] += 1
    if not records:
        raise InputError("holds no operation of PyTorch's pipeline runtime (PP:0F0 and the like)")
    return rank, records


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
