"""Read traces of torch.profiler, one file per rank: the times of operations without the waits.

PyTorch's pipeline runtime records a range for every action: `PP:1F0`, `PP:1I0`, `PP:1W0`, `PP:1B0`
(torch 2.13, schedules.py). On an accelerator, an operation takes the time from the start of its
first kernel to the end of its last one. Its kernels are those whose launch, on any thread, begins
within its range on the CPU: autograd launches the kernels of a backward from a thread of its own,
so that ranges of kernels (`gpu_user_annotation`) miss them. If a trace has no launches, these
ranges are used. An operation without kernels (the B of stage 0, which does nothing) takes its range
on the CPU (`user_annotation`).

FSDP gathers the weights of a stage in `PP:1UNSHARD` and reduces its gradients in `PP:1REDUCE_GRAD`.
Each takes the time from the start of its first collective to the end of its last one: kernels of
NCCL that are launched within its range, or operations of gloo that begin in it. (A thread of gloo
may begin to gather later, if nothing else is gathered.) A range without collectives (no FSDP, or
weights that are still gathered) is left out.

A CPU range includes the wait for a receive. An operation that began before its input was ready is
therefore given the median duration of similar operations that did not wait, counted back from its
end. Ranges of sends and receives show which stages exist.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import abbreviated, finite, whole, within
from ppopt.formats.figures import known
from ppopt.formats.torch_csv import KINDS
from ppopt.problem.kinds import Kind
from ppopt.problem.operation import ONCE, AuxiliaryKind, Op
from ppopt.profiles.estimate import Record, divided, sources
from ppopt.profiles.reader import LARGEST_FILE, Recording, RecordReader, files_of

_NAME = re.compile(r"PP:([0-9]{1,6})([FIWB])([0-9]{1,6})")
_NEXT = re.compile(r"PP:([0-9]{1,6})(?:SEND_F|RECV_B)[0-9]{1,6}")
"""Communication of a stage with the next one."""
_AROUND = re.compile(r"PP:([0-9]{1,6})(UNSHARD|REDUCE_GRAD)")
_AROUND_KINDS = {
    "UNSHARD": AuxiliaryKind.UNSHARD,
    "REDUCE_GRAD": AuxiliaryKind.GRADIENT_SYNC,
}
_GLOO = re.compile(r"gloo:(?:all_gather|all_reduce|reduce_scatter)\w*")
"""Collectives of FSDP on the CPU; gloo reduces and scatters by `all_reduce`."""
_OVERLAP = re.compile(r"PP:\(.*\)OVERLAP_F_B")
_GPU = "gpu_user_annotation"
"""Category of a range of kernels."""
_LAUNCHES = ("cuda_runtime", "cuda_driver")
"""Categories of calls that launch kernels."""
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events on the accelerator."""
WAITS = "Collectives around the microbatches include waits for other ranks."
_LATEST = 2**62
_Event = dict[str, Any]
_Launches = Mapping[int | None, _Event]
"""Call that launched a kernel, by the correlation id of both."""
_TRACES = (".json", ".json.gz")
"""Suffixes of the names of traces in a folder."""


def read_traces(paths: Sequence[Path]) -> Recording:
    """Read the traces of all ranks; see `parse_trace` and `recording_of`.

    A folder represents its traces, in the order of the numbers in their names. A file that states
    no rank gets its index as rank. Raises InputError if a file is not such a trace, if two files
    are of one rank, or if the trace of a rank is missing.
    """
    traces: dict[int, RankTrace] = {}
    for index, path in enumerate(files_of(paths, *_TRACES)):
        trace = parse_trace(read_text(path, LARGEST_FILE), label(path), index)
        if trace.rank in traces:
            raise InputError(
                f"{label(path)}: rank {trace.rank} has been read already; give each once"
            )
        traces[trace.rank] = trace
    return recording_of(traces.values())


def recording_of(traces: Iterable[RankTrace], warnings: Sequence[str] = ()) -> Recording:
    """The operations of all ranks, without waits; see `without_waits`.

    Raises InputError if the trace of a rank is missing.
    """
    ranks = list(traces)
    ran, around = divided(record for trace in ranks for record in trace.records)
    _check_next({stage for trace in ranks for stage in trace.followed}, ran)
    comments = [WAITS] if around else []
    return Recording([*without_waits(ran), *around], comments, warnings=warnings)


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
    """Operations, then collectives of FSDP, once in a step of each stage."""
    followed: frozenset[int]
    """Stages of this rank that exchange tensors with their next stage on another rank."""


def parse_trace(content: str, where: str, rank: int) -> RankTrace:
    """Parse the text of a trace. `rank` is used if the trace states none.

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
    return rank_trace([event for event in events if isinstance(event, dict)], rank, base)


def rank_trace(events: Sequence[_Event], rank: int, base: int) -> RankTrace:
    """The operations in the events of a rank, whose clock starts at `base` nanoseconds.

    Events are those of a trace: `ph`, `cat`, `name`, `ts` and `dur` in microseconds, `args`. Raises
    InputError if none is an operation.
    """
    launches: dict[int | None, _Event] = {
        correlation_id: event
        for event in events
        if (correlation_id := _correlation(event, *_LAUNCHES)) is not None
    }
    times: Counter[Op] = Counter()
    records: dict[tuple[Op, int], Record] = {}
    for event in _counted([event for event in events if _is_range(event)], events, launches):
        op, start, length = _operation(event)
        begin = base + start
        if (op, begin) in records:
            raise InputError(
                f"{event['name']} at {event['ts']} occurs twice; remove one of the two"
            )
        records[op, begin] = Record(*op[:3], rank, begin, begin + length, times[op])
        times[op] += 1
    if not records:
        raise InputError(
            "holds no operation of PyTorch's pipeline runtime (PP:0F0, ...): ScheduleLoopedBFS, "
            "ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble and "
            "ScheduleDualPipeV name them, Schedule1F1B and ScheduleGPipe do not; measure those "
            "with ppopt.torch.Profiler"
        )
    matches = (_NEXT.fullmatch(str(event.get("name"))) for event in events)
    followed = frozenset(int(match[1]) for match in matches if match)
    around = [
        record._replace(device=rank, start=base + record.start, end=base + record.end)
        for record in _around(events, launches)
        if record.step < max(times.values())
    ]
    return RankTrace(rank, [*records.values(), *around], followed)


def _around(events: Sequence[_Event], launches: _Launches) -> Iterator[Record]:
    """Collectives of FSDP, in nanoseconds; the n-th of a kind and stage is that of step n."""
    ranges = sorted((event for event in events if _is_around(event)), key=_span)
    collectives = [event for event in events if _is_nccl(event) or _is_gloo(event)]
    times: Counter[tuple[AuxiliaryKind, int]] = Counter()
    for index, span in sorted(_started_within(ranges, collectives, launches).items()):
        match = known(_match(ranges[index], _AROUND))
        kind, stage = _AROUND_KINDS[match[2]], int(match[1])
        start, end = (round(1000 * instant) for instant in span)
        yield Record(kind, stage, ONCE, 0, start, end, times[kind, stage])
        times[kind, stage] += 1


def _started_within(
    ranges: Sequence[_Event], events: Iterable[_Event], launches: _Launches
) -> dict[int, tuple[float, float]]:
    """First start and last end of the events that each range started, by the range's index.

    `ranges` ascend. A kernel belongs to the range in which the call that launched it begins, an
    operation of gloo to the range in which it begins itself; one that gathers may also begin after
    the range of its UNSHARD.
    """
    begins = [_span(event)[0] for event in ranges]
    spans: dict[int, tuple[float, float]] = {}
    for event in events:
        call = event if _is_gloo(event) else launches.get(_correlation(event, *_KERNELS))
        index = bisect(begins, _span(call)[0]) - 1 if call else -1
        if call is None or index < 0:
            continue
        late = ranges[index]["name"].endswith("UNSHARD") and _gathers(event)
        if late or _span(call)[0] <= _span(ranges[index])[1]:
            start, end = _span(event)
            first, last = spans.get(index, (start, end))
            spans[index] = min(first, start), max(last, end)
    return spans


def _match(event: _Event, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The match of the name of an event that has a duration."""
    return pattern.fullmatch(str(event.get("name"))) if event.get("ph") == "X" else None


def _is_around(event: _Event) -> bool:
    return event.get("cat") != _GPU and _match(event, _AROUND) is not None


def _is_nccl(event: _Event) -> bool:
    return event.get("cat") in _KERNELS and str(event.get("name")).startswith("nccl")


def _gathers(event: _Event) -> bool:
    """Whether an operation is an all-gather of gloo."""
    return str(event.get("name")).startswith("gloo:all_gather")


def _is_gloo(event: _Event) -> bool:
    return _match(event, _GLOO) is not None


def _counted(
    named: Sequence[_Event], events: Sequence[_Event], launches: _Launches
) -> list[_Event]:
    """The range of every operation: that of its kernels if it has any, else that on the CPU."""
    on_cpu = sorted((event for event in named if event.get("cat") != _GPU), key=_span)
    with_kernels = {event["name"] for event in named if event.get("cat") == _GPU}
    if not launches or not on_cpu:
        return [e for e in named if e.get("cat") == _GPU or e["name"] not in with_kernels]
    kernels = [event for event in events if event.get("cat") in _KERNELS and not _is_nccl(event)]
    spans = _started_within(on_cpu, kernels, launches)
    for index, operation in enumerate(on_cpu):
        if index not in spans and operation["name"] in with_kernels:
            raise InputError(
                f"{operation['name']} at {_span(operation)[0]:g}: it has kernels, and none was "
                "launched within it; record the launches too (CUDA graphs have none), or measure "
                "with ppopt.torch.Profiler"
            )
    return [
        operation | {"ts": spans[index][0], "dur": spans[index][1] - spans[index][0]}
        if index in spans
        else operation
        for index, operation in enumerate(on_cpu)
    ]


def _correlation(event: _Event, *categories: str) -> int | None:
    """Correlation id of a kernel and the call that launched it."""
    args = event.get("args")
    if event.get("cat") not in categories or not isinstance(args, dict):
        return None
    correlation_id = args.get("correlation")
    return correlation_id if isinstance(correlation_id, int) else None


def _span(event: _Event) -> tuple[float, float]:
    """Start and end in microseconds."""
    start, length = _start_and_length(event)
    return start, start + length


def _start_and_length(event: _Event) -> tuple[float, float]:
    name = event.get("name")
    where = name if isinstance(name, str) and name.isprintable() else "an event"
    start, length = (
        within(f"{where}: {key}", _microseconds, event.get(key)) for key in ("ts", "dur")
    )
    return start, length


def _is_range(event: _Event) -> bool:
    if overlap := _match(event, _OVERLAP):
        name = abbreviated(overlap[0])
        raise InputError(f"{name}: overlapped operations have no times of their own")
    return _match(event, _NAME) is not None


def _operation(event: _Event) -> tuple[Op, int, int]:
    """Operation, start and duration in nanoseconds."""
    match = known(_match(event, _NAME))
    start, length = (round(1000 * time) for time in _start_and_length(event))
    return Op(KINDS[match[2]], int(match[1]), int(match[3])), start, length


def _microseconds(value: object) -> float:
    microseconds = finite(value)
    if not 0 <= microseconds < 4e15:  # older ones count from 1970
        raise InputError(f"{abbreviated(value)} is no time in microseconds")
    return microseconds


def without_waits(records: Iterable[Record]) -> list[Record]:
    """Remove the waits from operations that began before their input was ready.

    The end of such an operation does not change. Its start is when its input was ready, or later:
    its duration is at most the median of the same kind and stage without a wait.
    """
    ran = list(records)
    stages = 1 + max((record.stage for record in ran), default=0)
    ends = {(record.step, record.op): record.end for record in ran}
    ready = [_input_ready(record, ends, stages) for record in ran]
    undisturbed: dict[tuple[Kind, int], list[int]] = defaultdict(list)
    waited: dict[tuple[Kind, int], list[int]] = defaultdict(list)
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
    """When the operation's input was produced, in nanoseconds; 0 if it has none."""
    input_ends = [ends.get((record.step, source), 0) for source in sources(record.op, stages)]
    return max(input_ends, default=0)


READER = RecordReader(
    content="traces of torch.profiler",
    marks=('"traceEvents"',),
    folder="",
    read=read_traces,
)
