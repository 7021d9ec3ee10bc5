"""What records of a run say of its pipeline: a time for every operation of a stage, and the links.

Times are medians, which a few disturbed operations do not move. Such operations are outliers by
the modified z-score: 0.6745 |x - median| / MAD above 3.5, MAD the median absolute deviation
(Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993, section 3.3); MAD is taken as one
per cent of the median at least, so that steady clocks do not make every deviation one.

A link's time counts where it is above its noise: more than twice the standard deviation of the
delays that it is the median of (for normal noise 1.4826 MAD), which are three at least. Otherwise
it is 0, and the notes of the pipeline's file say what was measured. Waits of exponential length,
which a busy machine makes, have a median below that: ln 2 of their mean, against 2 x 0.71.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.problem.operation import Op, OpKind
from ppopt.profiles.records import Record

Z_LIMIT = 3.5
Z_SCALE = 0.6745
LEAST_MAD = 0.01
"""Share of the median."""
DEVIATION = 1.4826
"""Standard deviation of normal noise / MAD."""
LEAST_DELAYS = 3
"""Delays, beside others of the same direction, that make a link's time."""


class Times(NamedTuple):
    """Times of one kind of operation of one stage, in nanoseconds."""

    median: int
    runs: int
    outliers: tuple[Record, ...]


class Link(NamedTuple):
    """Time of a transfer between devices, in nanoseconds."""

    median: int
    """Over all pairs of devices; negative where the clocks' noise is larger."""
    deviation: int
    """Standard deviation of the delays, each from the median of its direction."""
    delays: int
    """Of operations that waited for nothing else, all directions together."""
    compared: int
    """Delays that have others of the same direction to differ from."""

    @property
    def time(self) -> int:
        """The time that counts: 0 where it is not above its noise."""
        return self.median if self.above_noise else 0

    @property
    def above_noise(self) -> bool:
        """Whether the median says more than the scatter of its delays."""
        return self.compared >= LEAST_DELAYS and self.median > 2 * self.deviation


class Held(NamedTuple):
    """Memory of one stage, in bytes."""

    activation: int
    """Kept by a forward until the backward of its microbatch."""
    fixed: int
    """Always there: weights and their gradients."""
    each: int
    """There all step for every microbatch: buffers for receives, and what stays to its end."""
    memory_b: int | None = None
    """Signed change by B, which W undoes; None where no backward was split."""

    def static(self, batches: int) -> int:
        """What is there all the time in steps of so many microbatches."""
        return self.fixed + batches * self.each


@dataclass(frozen=True)
class Profile:
    """A measured pipeline."""

    hosts: tuple[int, ...]
    """Device of every stage."""
    batches: int
    """Microbatches of a step."""
    times: Mapping[tuple[OpKind, int], Times]
    """By kind and stage, for what ran."""
    link: Link | None
    """Time between devices; None where no operation waited for that alone."""
    steps: int
    held: Mapping[int, Held] = field(default_factory=dict)
    """By stage, where it was measured."""

    @property
    def outliers(self) -> tuple[Record, ...]:
        """Every outlying operation."""
        return tuple(record for times in self.times.values() for record in times.outliers)

    def costs(self, unit: int) -> dict[str, Any]:
        """Times per stage for `ppopt.Pipeline`, in units of so many nanoseconds.

        A backward that ran split only takes B + W as a whole, one that ran whole only is halved;
        the whole is never below its parts, which noise may make it.
        """
        columns: dict[str, list[Fraction]] = defaultdict(list)
        for stage in range(len(self.hosts)):
            for name, time in _backward(self._median(stage)).items():
                columns[name].append(Fraction(time, unit))
        return {**columns, "p2p": Fraction(self.link.time if self.link else 0, unit)}

    @property
    def shortened(self) -> dict[int, tuple[int, int]]:
        """Stages whose BW was measured below one of its parts: both, in nanoseconds.

        The part's time is taken for both; noise makes such, and PyTorch's W of stage 0, which
        runs a whole backward.
        """
        found = {}
        for stage in range(len(self.hosts)):
            times = self._median(stage)
            part = max(times.get(OpKind.B, 0), times.get(OpKind.W, 0))
            if (whole := times.get(OpKind.BW, part)) < part:
                found[stage] = (whole, part)
        return found

    def _median(self, stage: int) -> dict[OpKind, int]:
        return {kind: t.median for (kind, where), t in self.times.items() if where == stage}


def _backward(times: dict[OpKind, int]) -> dict[str, int]:
    b, w, whole = (times.get(kind) for kind in (OpKind.B, OpKind.W, OpKind.BW))
    if b is None or w is None:
        assert whole is not None
        b, w = whole - whole // 2, whole // 2
    whole = b + w if whole is None else max(whole, b, w)
    return {"forward": times[OpKind.F], "backward": whole, "weight": w, "backward_input": b}


def profile(records: Iterable[Record], held: Mapping[int, Held] | None = None) -> Profile:
    """Take medians over all steps. Raises InputError where operations are missing or run twice.

    In every step each stage runs every microbatch: F, and either BW or both B and W. A forward
    whose median is 0 is an error too: no pipeline has such.
    """
    ran = list(records)
    if not ran:
        raise InputError("profile: no operation was measured")
    hosts = _hosts(ran)
    groups: dict[tuple[OpKind, int], list[Record]] = defaultdict(list)
    for record in ran:
        groups[record.kind, record.stage].append(record)
    _check_kinds(groups.keys(), len(hosts))
    batches = 1 + max(record.microbatch for record in ran)
    _check_steps(ran, len(hosts), batches)
    times = {key: _times(group) for key, group in sorted(groups.items())}
    for (kind, stage), found in times.items():
        if kind is OpKind.F and not found.median:
            raise InputError(
                f"profile: F of stage {stage} took no time; measure times of operations"
            )
    return Profile(
        hosts=hosts,
        batches=batches,
        times=times,
        link=link(ran, hosts),
        steps=len({record.step for record in ran}),
        held=held or {},
    )


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


def _check_kinds(found: Iterable[tuple[OpKind, int]], stages: int) -> None:
    keys = set(found)
    for stage in range(stages):
        kinds = {kind for kind in OpKind if (kind, stage) in keys}
        if OpKind.F not in kinds or not (OpKind.BW in kinds or {OpKind.B, OpKind.W} <= kinds):
            told = ", ".join(kind.name for kind in sorted(kinds))
            raise InputError(
                f"profile: stage {stage} ran {told} only; F and BW, or F, B and W, are needed"
            )


_WHOLE = ([OpKind.F, OpKind.BW], [OpKind.F, OpKind.B, OpKind.W])


def _check_steps(records: Sequence[Record], stages: int, batches: int) -> None:
    ran: dict[tuple[int, int, int], list[OpKind]] = defaultdict(list)
    for record in records:
        ran[record.step, record.stage, record.microbatch].append(record.kind)
    for step in sorted({record.step for record in records}):
        for stage, microbatch in product(range(stages), range(batches)):
            kinds = sorted(ran[step, stage, microbatch])
            if kinds not in map(sorted, _WHOLE):
                told = " ".join(kind.name for kind in kinds) or "nothing"
                raise InputError(
                    f"profile: in step {step} stage {stage} ran {told} of microbatch {microbatch}, "
                    "not one F and either one BW or one B and one W; measure whole steps, each once"
                )


def _times(records: Sequence[Record]) -> Times:
    lengths = [record.end - record.start for record in records]
    middle = median(lengths)
    spread = max(median(abs(length - middle) for length in lengths), LEAST_MAD * middle, 1)
    outliers = tuple(
        record
        for record, length in zip(records, lengths, strict=True)
        if Z_SCALE * abs(length - middle) / spread > Z_LIMIT
    )
    return Times(max(round(middle), 0), len(records), outliers)


def link(records: Sequence[Record], hosts: Sequence[int]) -> Link | None:
    """Estimate the time that a tensor takes between two devices.

    Where a device was idle when its input was made, the input's delay is what passes until it
    starts. Devices may have clocks of their own: a difference lengthens one direction by what it
    takes from the other, and the mean of both medians is free of it. Waiting is judged by these
    clocks, so it must stay small beside the times of operations.
    """
    ends = {(r.step, r.op): r.end for r in records}
    before = _ends_before(records)
    gaps: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record in records:
        for source in sources(record.op, len(hosts)):
            made = ends.get((record.step, source))
            here, there = record.device, hosts[source.stage]
            if made is not None and here != there and before[record.step, record.op] <= made:
                gaps[there, here].append(record.start - made)
    middle = {way: median(delays) for way, delays in gaps.items()}
    both = [(a, b) for a, b in gaps if (b, a) in gaps]
    if not both:
        return None
    off = [abs(gap - middle[way]) for way in both if len(gaps[way]) > 1 for gap in gaps[way]]
    return Link(
        median=round(median((middle[a, b] + middle[b, a]) / 2 for a, b in both)),
        deviation=round(DEVIATION * median(off)) if off else 0,
        delays=sum(len(gaps[way]) for way in both),
        compared=len(off),
    )


def _ends_before(records: Sequence[Record]) -> dict[tuple[int, Op], int]:
    """When each operation's device became idle before it; long ago for a device's first one."""
    ordered = sorted(records, key=lambda record: (record.device, record.step, record.start))
    found: dict[tuple[int, Op], int] = {}
    last: Record | None = None
    for record in ordered:
        follows = last is not None and (last.device, last.step) == (record.device, record.step)
        found[record.step, record.op] = last.end if follows and last else -(2**62)
        last = record
    return found


def sources(op: Op, stages: int) -> list[Op]:
    """Operations of neighbour stages that may make an operation's input."""
    if op.kind is OpKind.F:
        return [Op(OpKind.F, op.stage - 1, op.microbatch)] if op.stage else []
    if op.kind is OpKind.W or op.stage + 1 == stages:
        return []
    return [Op(kind, op.stage + 1, op.microbatch) for kind in (OpKind.B, OpKind.BW)]
