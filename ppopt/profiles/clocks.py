"""Align the clocks of devices: each counts from the start of its own step.

A transfer takes no negative time. Of two neighbouring devices, forwards that go one way bound the
offset of their clocks from below, and gradients that come back bound it from above. The middle of
both is taken, as NTP does (RFC 5905, section 8): right where the quickest transfers of both ways
take equally long, and off by half of the distance of the bounds at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import Record


class Aligned(NamedTuple):
    """Records on one clock per step, that of device 0."""

    records: list[Record]
    uncertainty: int
    """Nanoseconds by which the clocks of two neighbours may be off at most."""


def aligned(records: Iterable[Record]) -> Aligned:
    """Put the records of every step on the clock of device 0.

    Devices d - 1 and d must be neighbours: some stage of the one hands on to a stage of the other.
    """
    steps: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        steps[record.step].append(record)
    found: list[Record] = []
    widest = 0
    for ran in steps.values():
        offset, width = _offsets(ran)
        widest = max(widest, width)
        found += [_moved(record, offset[record.device]) for record in ran]
    return Aligned(found, widest)


def _moved(record: Record, offset: int) -> Record:
    return record._replace(start=record.start + offset, end=record.end + offset)


def _offsets(ran: Sequence[Record]) -> tuple[list[int], int]:
    """What to add to the times of every device, and the widest half distance of two bounds."""
    offsets, widest = [0], 0
    for device in range(1, 1 + max(record.device for record in ran)):
        least, most = _bounds(ran, device)
        offsets.append(offsets[-1] + (least + most) // 2)
        widest = max(widest, abs(most - least) // 2)
    return offsets, widest


def _bounds(ran: Sequence[Record], device: int) -> tuple[int, int]:
    """Least and largest offset of a device's clock to that of the device before it."""
    pair = [record for record in ran if record.device in (device - 1, device)]
    there, back = _transfers(pair, device - 1, device), _transfers(pair, device, device - 1)
    least = max(sent.end - taken.start for sent, taken in there)
    return least, min(taken.start - sent.end for sent, taken in back)


def _transfers(
    records: Iterable[Record], source: int, target: int
) -> Iterator[tuple[Record, Record]]:
    """Pairs of what a device sent and what another began with it.

    Forwards if the target is behind the source, gradients if it is before it.
    """
    forward = target > source
    made = {
        (record.stage, record.microbatch): record
        for record in records
        if record.kind is not OpKind.W and (record.kind is OpKind.F) == forward
    }
    for (stage, microbatch), sent in made.items():
        taken = made.get((stage + 1 if forward else stage - 1, microbatch))
        if taken is not None and (sent.device, taken.device) == (source, target):
            yield sent, taken
