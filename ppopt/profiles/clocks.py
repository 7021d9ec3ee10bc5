"""Align the clocks of devices: each counts from the start of its own step.

No transfer takes negative time. Between two neighbouring devices, forward transfers bound the
offset of their clocks from below, and gradient transfers bound it from above. The offset used is
the midpoint of both bounds, as in NTP (RFC 5905, section 8). It is exact if the fastest transfers
of both directions take equally long, and its error is at most half the distance of the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import Record, grouped


class Aligned(NamedTuple):
    """Records on one clock per step, that of device 0."""

    records: list[Record]
    uncertainty: int
    """Maximum error of the offset between two neighbours' clocks, in nanoseconds."""


def aligned(records: Iterable[Record]) -> Aligned:
    """Put the records of every step on the clock of device 0.

    Devices d - 1 and d must be neighbours: a stage of one sends to a stage of the other.
    """
    steps = grouped(records, lambda record: record.step)
    on_one_clock: list[Record] = []
    widest = 0
    for ran in steps.values():
        offset, width = _offsets(ran)
        widest = max(widest, width)
        on_one_clock += [_shifted(record, offset[record.device]) for record in ran]
    return Aligned(on_one_clock, widest)


def _shifted(record: Record, offset: int) -> Record:
    return record._replace(start=record.start + offset, end=record.end + offset)


def _offsets(ran: Sequence[Record]) -> tuple[list[int], int]:
    """Offset to add to the times of every device, and the maximum error of an offset."""
    offsets, widest = [0], 0
    for device in range(1, 1 + max(record.device for record in ran)):
        lower, upper = _bounds(ran, device)
        offsets.append(offsets[-1] + (lower + upper) // 2)
        widest = max(widest, abs(upper - lower) // 2)
    return offsets, widest


def _bounds(ran: Sequence[Record], device: int) -> tuple[int, int]:
    """Minimum and maximum offset of a device's clock to that of the device before it."""
    pair = [record for record in ran if record.device in (device - 1, device)]
    forwards, gradients = _transfers(pair, device - 1, device), _transfers(pair, device, device - 1)
    lower = max(sent.end - received.start for sent, received in forwards)
    return lower, min(received.start - sent.end for sent, received in gradients)


def _transfers(
    records: Iterable[Record], source: int, target: int
) -> Iterator[tuple[Record, Record]]:
    """Pairs of an operation and its successor on the other device.

    Forwards if the target comes after the source, gradients if it comes before.
    """
    forward = target > source
    by_stage = {
        (record.stage, record.microbatch): record
        for record in records
        if record.kind is not OpKind.W and (record.kind is OpKind.F) == forward
    }
    for (stage, microbatch), sent in by_stage.items():
        received = by_stage.get((stage + 1 if forward else stage - 1, microbatch))
        if received is not None and (sent.device, received.device) == (source, target):
            yield sent, received
