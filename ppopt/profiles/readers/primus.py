"""Read the times that Primus records of a pipeline (`dump_pp_data`): one file per pipeline rank.

github.com/AMD-AGI/Primus, primus/backends/megatron/core/pipeline_parallel/pp_visualizer.py: with
`dump_pp_data` a run leaves a folder with `config.json` (pp_size, vp_size, num_mbs) and a file
`pp_rank_R.json` per rank. By iteration it has lists of CUDA events in milliseconds from the start
of the iteration on that rank: fwd_start, fwd_end, bwd_start, bwd_end, and for split backwards also
wgrad_start and wgrad_end; `memory` is PyTorch's peak reserved memory so far, in GiB.

If the schedule knows the microbatches and chunks, there are lists of them too (fwd_minibatch,
fwd_chunk). Two chunks per rank are in a V if the loss is on the first rank, else interleaved. If
these lists are empty, Megatron-LM's schedules ran (`megatron_order`).

Primus' simulator writes the same files (performance_projection/simulator.py, fd1eeab) with other
names in `config.json`: vpp_size and micro_batches. Its ranks have one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import abbreviated, finite, whole, within
from ppopt.problem.operation import OpKind
from ppopt.profiles.clocks import aligned
from ppopt.profiles.estimate import Record
from ppopt.profiles.megatron_order import megatron_order
from ppopt.profiles.reader import LARGEST_FILE, Recording, RecordReader, single

CONFIG = "config.json"
MILLISECOND = 10**6
OVERLAP = MILLISECOND // 100
"""Nanoseconds by which events of one rank may overlap: the resolution of events, and rounding."""
MAX_COUNT = 2**20


class PipelineShape(NamedTuple):
    """Sizes of the pipeline in the run's config.json."""

    ranks: int
    chunks: int
    batches: int
    is_simulated: bool


class PrimusRun(NamedTuple):
    """A run as it was recorded."""

    records: list[Record]
    """On the clock of rank 0; `step` is the iteration."""
    uncertainty: int
    """Maximum error of the clocks of neighbouring ranks, in nanoseconds."""
    reserved: tuple[float, ...]
    """Peak memory that PyTorch reserved, in GiB, per rank; of a simulation, its activations."""
    left_out: int | None
    """The first iteration, which warms up, if there are several."""
    is_simulated: bool

    def comments(self) -> list[str]:
        """Remarks for the file, one line each."""
        if self.is_simulated:
            return ["Times of Primus' simulator, in which transfers take no time."]
        off = self.uncertainty / MILLISECOND
        reserved = " ".join(f"{size:.1f}" for size in self.reserved)
        warm = (
            () if self.left_out is None else (f"Iteration {self.left_out} is left out: warm-up.",)
        )
        return [
            *warm,
            "Clocks of ranks are aligned by the quickest transfers both ways: neighbours are off "
            f"by {off:.3f} ms at most.",
            f"Memory reserved at most, GiB per rank: {reserved}; activations are unmeasured.",
        ]


def read_run(folder: Path) -> PrimusRun:
    """Read a folder that `dump_pp_data` wrote; clocks of ranks are aligned.

    The first of several iterations is left out. Raises InputError, naming the file, if a file is
    missing or has another form, or if ranks have different iterations.
    """
    config = folder / CONFIG
    shape = within(label(config), _shape, _parsed(config))
    paths = [folder / f"pp_rank_{rank}.json" for rank in range(shape.ranks)]
    ranks = [
        within(label(path), _iterations, _parsed(path), rank, shape)
        for rank, path in enumerate(paths)
    ]
    numbers = sorted(ranks[0])
    for path, iterations in zip(paths, ranks, strict=True):
        if sorted(iterations) != numbers:
            raise InputError(f"{label(path)}: other iterations than pp_rank_0.json; give one run")
    left_out, measured = (numbers[0], numbers[1:]) if len(numbers) > 1 else (None, numbers)
    records = [
        record for index in measured for iterations in ranks for record in iterations[index].records
    ]
    if _is_v(records, shape):
        records = [_in_v(record, shape) for record in records]
    return PrimusRun(
        *((records, 0) if shape.is_simulated else aligned(records)),
        reserved=tuple(
            max(iterations[index].reserved for index in measured) for iterations in ranks
        ),
        left_out=left_out,
        is_simulated=shape.is_simulated,
    )


def _is_v(records: Sequence[Record], shape: PipelineShape) -> bool:
    """Whether chunk 1 goes back from the last rank to the first.

    The stage with the loss has the shortest time from the F of a microbatch to its backward,
    because that time is within the same time of every other stage.
    """
    if shape.chunks != 2:
        return False
    first, last = (
        _time_to_backward(record for record in records if record.stage == stage)
        for stage in (shape.ranks, 2 * shape.ranks - 1)
    )
    return first < last


def _time_to_backward(records: Iterable[Record]) -> int:
    """Minimum time from an F of a stage to the backward of its microbatch."""
    ends: dict[tuple[int, int], int] = {}
    starts: dict[tuple[int, int], int] = {}
    for record in records:
        if record.kind is OpKind.F:
            ends[record.step, record.microbatch] = record.end
        elif record.kind is not OpKind.W:
            starts[record.step, record.microbatch] = record.start
    return min(start - ends[key] for key, start in starts.items())


def _in_v(record: Record, shape: PipelineShape) -> Record:
    """A record whose chunk 1 goes back from the last rank to the first."""
    if record.stage < shape.ranks:
        return record
    return record._replace(stage=2 * shape.ranks - 1 - record.device)


def _parsed(path: Path) -> object:
    return parse_json(read_text(path, LARGEST_FILE), label(path), float)


def _shape(document: object) -> PipelineShape:
    if not isinstance(document, dict):
        raise InputError(f"{abbreviated(document)} is no object; give a folder of dump_pp_data")
    simulated = "micro_batches" in document
    names = ("vpp_size", "micro_batches") if simulated else ("vp_size", "num_mbs")
    ranks, chunks, batches = (
        within(key, whole, document.get(key), 1, MAX_COUNT) for key in ("pp_size", *names)
    )
    return PipelineShape(ranks, chunks, batches, simulated)


class _Iteration(NamedTuple):
    records: list[Record]
    reserved: float


def _iterations(document: object, rank: int, shape: PipelineShape) -> dict[int, _Iteration]:
    """The iterations of a rank, by their number."""
    if not isinstance(document, dict) or not document:
        raise InputError(
            f"{abbreviated(document)} holds no iterations; give a file of dump_pp_data"
        )
    iterations = {}
    for name, events in document.items():
        if not (name.isascii() and name.isdigit() and isinstance(events, dict)):
            raise InputError(f"{abbreviated(name)} is no iteration; give a file of dump_pp_data")
        where = f"iteration {int(name)}"
        iterations[int(name)] = within(where, _iteration, events, int(name), rank, shape)
    return iterations


def _iteration(
    events: Mapping[str, object], index: int, rank: int, shape: PipelineShape
) -> _Iteration:
    modes = {"fwd": OpKind.F, "bwd": OpKind.BW}
    modes |= {"wgrad": OpKind.W} if events.get("wgrad_start") else {}
    records = [
        record
        for mode, kind in modes.items()
        for record in _records(events, mode, kind, index, rank, shape)
    ]
    split = {(record.stage, record.microbatch) for record in records if record.kind is OpKind.W}
    records = [
        record._replace(kind=OpKind.B)
        if record.kind is OpKind.BW and (record.stage, record.microbatch) in split
        else record
        for record in records
    ]
    records.sort(key=lambda record: record.start)
    for first, second in pairwise(records):
        if second.start + OVERLAP < first.end:
            raise InputError(
                f"{first.op} and {second.op} overlap; combined passes are not read, which record "
                "no times of their own"
            )
    return _Iteration(records, within("memory", finite, events.get("memory")))


def _records(
    events: Mapping[str, object],
    mode: str,
    kind: OpKind,
    index: int,
    rank: int,
    shape: PipelineShape,
) -> list[Record]:
    """Operations of one kind."""
    begins, ends = (_times(events, f"{mode}_{what}") for what in ("start", "end"))
    count = shape.batches * shape.chunks
    if kind is OpKind.W and events.get("wgrad_minibatch"):
        count = min(count, len(begins))  # the others are in whole backwards
    if not len(begins) == len(ends) == count:
        raise InputError(f"{mode}_start, {mode}_end: {len(begins)} and {len(ends)}, not {count}")
    positions = _positions(events, mode, shape, count, forward=kind is OpKind.F)
    return [
        Record(kind, chunk * shape.ranks + rank, microbatch, rank, begin, end, index)
        for (microbatch, chunk), begin, end in zip(positions, begins, ends, strict=True)
    ]


def _times(events: Mapping[str, object], key: str) -> list[int]:
    """A list of times, in nanoseconds."""
    values = events.get(key)
    if not isinstance(values, list):
        raise InputError(f"{key}: {abbreviated(values)} is not a list of times")
    return [round(Fraction(within(key, finite, value)) * MILLISECOND) for value in values]


def _positions(
    events: Mapping[str, Any], mode: str, shape: PipelineShape, count: int, *, forward: bool
) -> Sequence[tuple[int, int]]:
    """Microbatch and chunk of every event."""
    microbatches = events.get(f"{mode}_minibatch") or []
    if not microbatches:
        return megatron_order(shape.ranks, shape.chunks, shape.batches, forward=forward)
    chunks = events.get(f"{mode}_chunk") or [0] * len(microbatches)
    for key, values, limit in (
        ("minibatch", microbatches, shape.batches),
        ("chunk", chunks, shape.chunks),
    ):
        if not isinstance(values, list) or len(values) != count:
            raise InputError(f"{mode}_{key}: not a list of {count}")
        for value in values:
            within(f"{mode}_{key}", whole, value, 0, limit - 1)
    return list(zip(microbatches, chunks, strict=True))


def read_folder(paths: Sequence[Path]) -> Recording:
    """Read the only folder; see `read_run`."""
    run = read_run(single(paths, "Primus: give one folder, which its dump_pp_data wrote"))
    return Recording(run.records, run.comments())


READER = RecordReader(
    content="the dump_pp_data folder of Primus",
    folder=CONFIG,
    runtime="primus",
    read=read_folder,
)
