"""Estimate a pipeline from records of a run: a time per operation of a stage, and the p2p time.

Times are medians, which a few disturbed operations do not move. Outliers are found by the modified
z-score: 0.6745 |x - median| / MAD above 3.5, where MAD is the median absolute deviation (Iglewicz
and Hoaglin, How to Detect and Handle Outliers, 1993, section 3.3). MAD is at least one per cent of
the median, so that a very steady clock does not turn every deviation into an outlier.

The p2p time is used if it is more than twice its standard error, with at least three delays.
Otherwise it is 0, and the notes of the pipeline file say what was measured. The standard error of a
median of n delays is sqrt(pi / 2) x s / sqrt(n), with s = 1.4826 MAD for normal noise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import product
from math import pi, sqrt
from statistics import median
from typing import Any, NamedTuple, TypeVar

from ppopt.errors import InputError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import Kind
from ppopt.problem.operation import ONCE, Op, OpKind
from ppopt.problem.pipeline import Pipeline

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Z_LIMIT = 3.5
Z_SCALE = 0.6745
MIN_MAD = 0.01
"""Share of the median."""
DEVIATION = 1.4826
"""Standard deviation of normal noise / MAD."""
MIN_DELAYS = 3
"""Smallest number of delays, in directions with two or more, for a p2p time."""


class Record(NamedTuple):
    """One operation as it ran. Times are in nanoseconds."""

    kind: Kind
    stage: int
    """Of an optimizer: the lowest stage of its device."""
    microbatch: int
    """`ONCE`: it runs around the microbatches."""
    device: int
    start: int
    end: int
    step: int = 0
    """Training step, counted from 0."""

    @property
    def op(self) -> Op:
        """The operation of a microbatch without its device and times."""
        return Op(OpKind(self.kind), self.stage, self.microbatch)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by their keys, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def divided(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Operations of microbatches, and those around the microbatches."""
    ran: list[Record] = []
    around: list[Record] = []
    for record in records:
        (around if record.microbatch == ONCE else ran).append(record)
    return ran, around


class OperationTimes(NamedTuple):
    """Times of one kind of operation of one stage, in nanoseconds."""

    median: int
    runs: int
    outliers: tuple[Record, ...]


class P2PTime(NamedTuple):
    """Delay of a transfer between devices, in nanoseconds."""

    median: int
    """Median over all pairs of devices. Negative where the noise of the clocks is larger."""
    deviation: int
    """Standard deviation of the delays, each relative to the median of its direction."""
    error: int
    """Standard error of the median of one pair of devices: the median over the pairs."""
    delays: int
    """Number of delays in all directions, of operations that waited for the transfer alone."""
    compared: int
    """Number of delays in directions with two or more."""

    @property
    def time(self) -> int:
        """The p2p time to use: the median, or 0 if it is not above its noise."""
        return self.median if self.above_noise else 0

    @property
    def above_noise(self) -> bool:
        """Whether the median is more than twice its standard error."""
        return self.compared >= MIN_DELAYS and self.median > 2 * self.error


class StageMemory(NamedTuple):
    """Memory of one stage, in bytes."""

    activation: int
    """Kept from a forward to the backward of its microbatch."""
    fixed: int
    """Weights and their gradients."""
    per_microbatch: int
    """Kept for the whole step per microbatch: receive buffers and tensors freed at its end."""
    memory_b: int | None = None
    """Signed change by B, which W undoes. None if no backward was split."""
    loss: int = 0
    """Memory that the loss keeps, included in the activation of the last stage."""

    def static(self, batches: int) -> int:
        """Memory kept for the whole of a step of `batches` microbatches."""
        return self.fixed + batches * self.per_microbatch


@dataclass(frozen=True)
class Profile:
    """A measured pipeline."""

    hosts: tuple[int, ...]
    """Device of every stage."""
    batches: int
    """Microbatches per step."""
    times: Mapping[tuple[OpKind, int], OperationTimes]
    """By kind and stage, for the kinds that ran."""
    p2p: P2PTime | None
    """Delay between devices. None if no operation waited for a transfer alone."""
    steps: int
    memory: Mapping[int, StageMemory] = field(default_factory=dict)
    """By stage, if it was measured."""
    around: Mapping[tuple[Kind, int], int] = field(default_factory=dict)
    """Median times around the microbatches, in nanoseconds, by kind and stage that ran it."""

    @property
    def outliers(self) -> tuple[Record, ...]:
        """All outliers."""
        return tuple(record for times in self.times.values() for record in times.outliers)

    def costs(self, unit: int) -> dict[str, Any]:
        """Times per stage for `ppopt.Pipeline`, in units of `unit` nanoseconds.

        If only split backwards ran, BW is B + W. If only whole backwards ran, B and W are half of
        BW each. If both ran, B, W and BW are independent measurements. Kinds of operations around
        the microbatches that no stage ran are left out.
        """
        columns: dict[str, list[Fraction]] = defaultdict(list)
        for stage in range(len(self.hosts)):
            for name, time in _backward(self._median(stage)).items():
                columns[name].append(Fraction(time, unit))
            for kind in sorted({kind for kind, _ in self.around}):
                time = self.around.get((kind, stage), 0)
                columns[kind.name.lower()].append(Fraction(time, unit))
        return {**columns, "p2p": Fraction(self.p2p.time if self.p2p else 0, unit)}

    def _median(self, stage: int) -> dict[OpKind, int]:
        return {kind: t.median for (kind, where), t in self.times.items() if where == stage}


def _backward(times: dict[OpKind, int]) -> dict[str, int]:
    b, w, whole = (times.get(kind) for kind in (OpKind.B, OpKind.W, OpKind.BW))
    if b is None or w is None:
        assert whole is not None
        b, w = whole - whole // 2, whole // 2
    whole = b + w if whole is None else whole
    return {"forward": times[OpKind.F], "backward": whole, "weight": w, "backward_input": b}


def profile(
    records: Iterable[Record],
    memory: Mapping[int, StageMemory] | None = None,
) -> Profile:
    """Estimate a pipeline by medians over all steps.

    In every step each stage must run every microbatch once: F, and either BW or both B and W.
    Raises InputError if operations are missing or run twice, if a stage runs on two devices,
    or if the median of a forward is 0.
    """
    ran, around = divided(records)
    if not ran:
        raise InputError("profile: no operation was measured")
    hosts = _hosts(ran)
    groups = grouped(ran, lambda record: (record.op.kind, record.stage))
    batches = 1 + max(record.microbatch for record in ran)
    _check_steps(ran, len(hosts), batches)
    times = {key: _times(group) for key, group in sorted(groups.items())}
    for (kind, stage), stage_times in times.items():
        if kind is OpKind.F and not stage_times.median:
            raise InputError(
                f"profile: F of stage {stage} took no time; measure times of operations"
            )
    return Profile(
        hosts=hosts,
        batches=batches,
        times=times,
        p2p=p2p_time(ran, hosts),
        steps=len({record.step for record in ran}),
        memory=memory or {},
        around=_times_around(around),
    )


def _times_around(rows: Iterable[Record]) -> dict[tuple[Kind, int], int]:
    groups = grouped(rows, lambda row: (row.kind, row.stage))
    return {key: round(median(row.end - row.start for row in same)) for key, same in groups.items()}


def _hosts(records: Sequence[Record]) -> tuple[int, ...]:
    host: dict[int, int] = {}
    for record in records:
        if host.setdefault(record.stage, record.device) != record.device:
            raise InputError(
                f"profile: stage {record.stage} runs on device {host[record.stage]} and on "
                f"{record.device}; a stage sits on one device"
            )
    for what, numbers in (("stage", set(host)), ("device", set(host.values()))):
        missing = min(set(range(len(numbers))) - numbers, default=None)
        if missing is not None:
            raise InputError(f"profile: {what} {missing} has no operation; measure all of them")
    return tuple(host[stage] for stage in range(len(host)))


_COMPLETE = ([OpKind.F, OpKind.BW], [OpKind.F, OpKind.B, OpKind.W])


def _check_steps(records: Sequence[Record], stages: int, batches: int) -> None:
    ran: dict[tuple[int, int, int], list[OpKind]] = defaultdict(list)
    for record in records:
        ran[record.step, record.stage, record.microbatch].append(record.op.kind)
    for step in sorted({record.step for record in records}):
        for stage, microbatch in product(range(stages), range(batches)):
            kinds = sorted(ran[step, stage, microbatch])
            if kinds not in _COMPLETE:
                names = " ".join(kind.name for kind in kinds) or "nothing"
                raise InputError(
                    f"profile: in step {step} stage {stage} ran {names} of microbatch "
                    f"{microbatch}, not one F and either one BW or one B and one W; "
                    "measure whole steps, each once"
                )


def _times(records: Sequence[Record]) -> OperationTimes:
    lengths = [record.end - record.start for record in records]
    middle = median(lengths)
    spread = max(median(abs(length - middle) for length in lengths), MIN_MAD * middle, 1)
    outliers = tuple(
        record
        for record, length in zip(records, lengths, strict=True)
        if Z_SCALE * abs(length - middle) / spread > Z_LIMIT
    )
    return OperationTimes(max(round(middle), 0), len(records), outliers)


def p2p_time(records: Sequence[Record], hosts: Sequence[int]) -> P2PTime | None:
    """Estimate the p2p time: the delay of a tensor between two devices.

    A delay is the time from the end of an operation to the start of its successor, on a device that
    was idle at that end. Devices may have different clocks: an offset lengthens one direction and
    shortens the other, so it cancels in the mean of both medians. The standard error of that mean
    is half the root of the sum of both squared errors. Offsets also affect which devices count as
    idle, so they must be small compared to the times of operations.

    Returns None if no pair of devices has delays in both directions.
    """
    ends = {(r.step, r.op): r.end for r in records}
    before = _ends_before(records)
    gaps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record in records:
        for source in sources(record.op, len(hosts)):
            end = ends.get((record.step, source))
            target, origin = record.device, hosts[source.stage]
            if end is not None and target != origin and before[record.step, record.op] <= end:
                gaps[origin, target].append(record.start - end)
    middle = {way: median(delays) for way, delays in gaps.items()}
    both = [(a, b) for a, b in gaps if (b, a) in gaps]
    if not both:
        return None
    off = [abs(gap - middle[way]) for way in both if len(gaps[way]) > 1 for gap in gaps[way]]
    deviation = DEVIATION * median(off) if off else 0
    relative_error = median(sqrt(1 / len(gaps[a, b]) + 1 / len(gaps[b, a])) / 2 for a, b in both)
    return P2PTime(
        median=round(median((middle[a, b] + middle[b, a]) / 2 for a, b in both)),
        deviation=round(deviation),
        error=round(sqrt(pi / 2) * deviation * relative_error),
        delays=sum(len(gaps[way]) for way in both),
        compared=len(off),
    )


def _ends_before(records: Sequence[Record]) -> dict[tuple[int, Op], int]:
    """End of the previous operation on the same device; -2^62 for the first of a step."""
    ordered = sorted(records, key=lambda record: (record.device, record.step, record.start))
    previous_ends: dict[tuple[int, Op], int] = {}
    last: Record | None = None
    for record in ordered:
        follows = last is not None and (last.device, last.step) == (record.device, record.step)
        previous_ends[record.step, record.op] = last.end if follows and last else -(2**62)
        last = record
    return previous_ends


def sources(op: Op, stages: int) -> list[Op]:
    """Operations of other stages that may produce an operation's input."""
    instance = _any_backwards(stages)
    waits = instance.predecessors[instance.class_id(op.kind, op.stage)]
    return [
        Op(OpKind(mode.kind), source.stage, op.microbatch)
        for source in (instance.classes[class_id] for class_id, _ in waits)
        for mode in source.modes
        if source.stage != op.stage and mode is not None
    ]


@cache
def _any_backwards(stages: int) -> Instance:
    """One microbatch on so many stages, its backwards split or whole."""
    return Instance(Pipeline(stages=stages, batches=1), BackwardKind.MIXED)
