"""Read OpenTelemetry spans of Megatron-LM: every pass of every rank.

With `--otel-enabled --otel-span-groups per_step,microbatch` and MEGATRON_OTEL_RANK_STRATEGY set to
`all_ranks`, every rank exports a span per pass: `megatron.microbatch.forward` and
`megatron.microbatch.backward` (Megatron-LM at d98e8a64, megatron/core/pipeline_parallel/
schedules.py), within the span of their step, `megatron.train.iteration.forward_backward` with
`num_microbatches` (megatron/training/training.py; `megatron.forward_backward` in its guide). The
resource of a span states `dl.rank`, `dl.world_size` and `dl.pipeline_parallel.size`. Two forms are
read, also several in one file or compressed:

- OTLP in JSON, an object with `resourceSpans` per line, as the file exporter of the OpenTelemetry
  Collector writes it;
- the objects that the exporter `console` prints, between other lines of the log of a rank.

Spans name no microbatch: the k-th pass of a kind and rank is that of Megatron-LM's schedules
(`megatron_order`). Ranks that share a pipeline rank run the same; the first of each is read
(pipeline ranks are the outermost in Megatron-LM's default order). Clocks are those of the hosts,
and are aligned (`clocks`). A span ends when the CPU has launched its kernels, unless timers of
level 2 wait for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, read_text
from ppopt.formats.fields import whole, within
from ppopt.problem.operation import OpKind
from ppopt.profiles.clocks import aligned
from ppopt.profiles.estimate import Record, grouped
from ppopt.profiles.megatron_order import megatron_order
from ppopt.profiles.reader import LARGEST_FILE, Recording, RecordReader, files_of

_FILES = (".jsonl", ".json", ".log", ".gz")
STEPS = ("megatron.train.iteration.forward_backward", "megatron.forward_backward")
_BATCHES = ("num_microbatches", "megatron.num_microbatches")
"""Attributes of a step, of which it has one."""
PASSES = {"megatron.microbatch.forward": OpKind.F, "megatron.microbatch.backward": OpKind.BW}
MAX_COUNT = 2**20
_ON_CPU = (
    "A span ends when the CPU has launched its kernels: on a GPU the times are right with "
    "--timing-log-level 2, whose timers wait for them."
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """A span of a step or of a pass, in nanoseconds since 1970."""

    name: str
    start: int
    end: int
    rank: int
    ranks_per_stage: int
    """Ranks that share a pipeline rank."""
    batches: int
    """Microbatches of a step; of a pass 0."""


class _Step(NamedTuple):
    """The passes of a rank in one step, by kind, in the order in which they ran."""

    batches: int
    passes: Mapping[OpKind, Sequence[Span]]


def read_spans(paths: Sequence[Path]) -> Recording:
    """Read the spans of all ranks; a folder represents its files.

    The first of several steps is left out. Raises InputError, naming the file, if a file has no
    span of a pass, or if the spans of a rank are missing.
    """
    spans = [span for path in files_of(paths, *_FILES) for span in _spans(path)]
    steps = [_steps(of_rank) for of_rank in _by_device(spans)]
    counts = {len(each) for each in steps}
    if len(counts) > 1 or not min(counts):
        raise InputError(
            f"{STEPS[0]}: ranks have {min(counts)} to {max(counts)} training steps; give the whole "
            "files of all ranks"
        )
    first = min(1, counts.pop() - 1)
    records = [
        record
        for device, each in enumerate(steps)
        for number, step in enumerate(each[first:])
        for record in _records(step, device, len(steps), number)
    ]
    on_one_clock = aligned(records)
    comments = [
        "Clocks of ranks are aligned by the fastest transfers both ways: neighbours are off by at "
        f"most {on_one_clock.uncertainty / 10**6:.3f} ms.",
        *(["The first step is left out: warm-up."] if first else []),
    ]
    return Recording(on_one_clock.records, comments, warnings=[_ON_CPU])


def _by_device(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans of every pipeline rank: those of the first of its ranks.

    Raises InputError if a pipeline rank has none.
    """
    by_rank = grouped(spans, lambda span: span.rank)
    first: dict[int, int] = {}
    for rank in sorted(by_rank):
        first.setdefault(rank // by_rank[rank][0].ranks_per_stage, rank)
    missing = set(range(1 + max(first))) - set(first)
    if missing:
        raise InputError(
            f"pipeline rank {min(missing)} has no spans; export those of all ranks "
            "(MEGATRON_OTEL_RANK_STRATEGY=all_ranks), and give the files of all"
        )
    return [by_rank[first[device]] for device in range(len(first))]


def _steps(spans: Sequence[Span]) -> list[_Step]:
    """The steps of a rank that ran backwards, in order."""
    ordered = sorted(spans, key=lambda span: span.start)
    steps = []
    for around in ordered:
        if around.name in STEPS:
            passes: dict[OpKind, list[Span]] = {kind: [] for kind in PASSES.values()}
            for span in ordered:
                if span.name in PASSES and around.start <= span.start < around.end:
                    passes[PASSES[span.name]].append(span)
            if passes[OpKind.BW]:
                steps.append(_Step(around.batches, passes))
    return steps


def _records(step: _Step, device: int, devices: int, number: int) -> Iterator[Record]:
    """The operations of a rank in one step."""
    for kind, spans in step.passes.items():
        chunks, rest = divmod(len(spans), max(step.batches, 1))
        if rest or not chunks:
            raise InputError(
                f"rank {spans[0].rank if spans else device}: {len(spans)} passes of kind "
                f"{kind.name} in a step of {step.batches} microbatches; give whole steps"
            )
        order = megatron_order(devices, chunks, step.batches, forward=kind is OpKind.F)
        for (microbatch, chunk), span in zip(order, spans, strict=True):
            stage = chunk * devices + device
            yield Record(kind, stage, microbatch, device, span.start, span.end, number)


def _spans(path: Path) -> list[Span]:
    """The spans of a file that are read."""
    where = label(path)
    spans = [
        span
        for document in _documents(read_text(path, LARGEST_FILE))
        for span in within(where, _of_document, document)
    ]
    if not any(span.name in PASSES for span in spans):
        raise InputError(
            f"{where}: holds no spans {' and '.join(PASSES)}; export them with --otel-span-groups "
            "per_step,microbatch"
        )
    return spans


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that begin at the start of a line."""
    decoder, position = json.JSONDecoder(), 0
    while (position := _next_object(text, position)) >= 0:
        try:
            document, position = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            position += 1
            continue
        yield document


def _next_object(text: str, position: int) -> int:
    """Index of the next brace at the start of a line; -1 if there is none."""
    if position == 0 and text.startswith("{"):
        return 0
    return text.find("\n{", max(position - 1, 0)) + 1 or -1


def _of_document(document: Mapping[str, Any]) -> list[Span]:
    """The spans of an OTLP object, or the one span that an exporter printed."""
    try:
        return list(_of_otlp(document) if "resourceSpans" in document else _printed(document))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            "a span is neither in OTLP nor as the console exporter prints it"
        ) from None


def _printed(document: Mapping[str, Any]) -> Iterator[Span]:
    """The span of an object that the console exporter printed."""
    resource = (document.get("resource") or {}).get("attributes") or {}
    times = (_instant(document[key]) for key in ("start_time", "end_time"))
    yield from _span(document, resource, document.get("attributes") or {}, times)


def _of_otlp(document: Mapping[str, Any]) -> Iterator[Span]:
    """The spans of an object in OTLP."""
    for group in document["resourceSpans"]:
        resource = _attributes(group.get("resource") or {})
        for scope in group.get("scopeSpans") or []:
            for span in scope.get("spans") or []:
                times = (int(span[key]) for key in ("startTimeUnixNano", "endTimeUnixNano"))
                yield from _span(span, resource, _attributes(span), times)


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes in OTLP; whole numbers are texts there."""
    attributes = {}
    for entry in holder.get("attributes") or []:
        ((kind, value),) = entry["value"].items()
        attributes[entry["key"]] = int(value) if kind == "intValue" else value
    return attributes


def _instant(text: str) -> int:
    """Nanoseconds since 1970 of a time in ISO 8601."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1) * 1000


def _span(
    span: Mapping[str, Any],
    resource: Mapping[str, Any],
    attributes: Mapping[str, Any],
    times: Iterable[int],
) -> Iterator[Span]:
    """The span, if it is of a step or of a pass."""
    name = span.get("name")
    if name not in PASSES and name not in STEPS:
        return
    rank, world, ranks = (
        within(key, whole, resource.get(key), 0, MAX_COUNT)
        for key in ("dl.rank", "dl.world_size", "dl.pipeline_parallel.size")
    )
    batches = 0
    if name in STEPS:
        stated = (attributes[key] for key in _BATCHES if key in attributes)
        batches = within(_BATCHES[0], whole, next(stated, None), 1, MAX_COUNT)
    start, end = times
    yield Span(str(name), start, end, rank, max(world // max(ranks, 1), 1), batches)


READER = RecordReader(
    content="OpenTelemetry spans of Megatron-LM",
    marks=("megatron.microbatch.forward",),
    runtime="megatron",
    read=read_spans,
)
