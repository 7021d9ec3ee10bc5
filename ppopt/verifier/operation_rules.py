"""The rules of a schedule, one function each: yields every violation and formats only these."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import KINDS, NUM_KINDS, AuxiliaryKind, Op, OpKind, TransferKind
from ppopt.schedule.operations import ALONE
from ppopt.verifier.expected import COLLECTIVES
from ppopt.verifier.order import out_of_order
from ppopt.verifier.rows import ABSENT, FIELDS, LATEST, NAMES, Rows, first_of_device, of_cells
from ppopt.verifier.times import scaled
from ppopt.verifier.violation import MAX_LISTED, Rule, Violation, unlisted_violations


def of_operations(rows: Rows) -> Iterator[Violation]:
    """Check every rule except those on memory and claims; the order of violations is not fixed."""
    known = rows.take(rows.named)
    yield from _unknown(rows)
    yield from _repeated(known)
    yield from _two_backwards(known)
    yield from _missing(known)
    yield from _misplaced(known)
    yield from _pairs(known)
    yield from _durations(known)
    yield from _out_of_time(known)
    yield from out_of_order(known)
    yield from _overlaps(rows.sane)


def _at(rows: Rows, rule: Rule, row: int, message: str, *causes: Op) -> Violation:
    """Report a named row."""
    ops = (*rows.ops(row), *causes)
    return Violation(rule, ops, int(rows.device[row]), int(rows.start[row]), message)


def _of_kind(kind: int, compute: Rule, transfer: Rule, auxiliary: Rule) -> Rule:
    """The rule for a kind: for compute, for transfers, or for auxiliary operations."""
    if kind in tuple(TransferKind):
        return transfer
    return auxiliary if kind in tuple(AuxiliaryKind) else compute


def _where(mask: Bools) -> list[int]:
    rows: list[int] = np.flatnonzero(mask).tolist()
    return rows


# Which operations exist


def _unknown(rows: Rows) -> Iterator[Violation]:
    strange = ~(rows.named & rows.placed)
    if not rows.pipeline.has_links and rows.sends.any():
        message = f"{np.count_nonzero(rows.sends)} transfers are given, but the links are delays"
        yield Violation(Rule.TRANSFER, (), None, None, message)
        strange &= ~rows.sends
    for row in _where(strange):
        device, start, kind = (int(x[row]) for x in (rows.device, rows.start, rows.kind))
        rule = _of_kind(kind, Rule.UNKNOWN, Rule.TRANSFER, Rule.AUXILIARY)
        ops: tuple[Op, ...] = ()
        if rule is Rule.UNKNOWN:
            ops = rows.ops(row) if rows.within[row] else ()
            subject = str(ops[0]) if ops else "an operation"
            message = f"{subject} at {rows.clock(start)} on device {device}: {_strange(rows, row)}"
        else:
            fields = ", ".join(f"{field} {getattr(rows, field)[row]}" for field in FIELDS[1:])
            message = (
                f"{NAMES[kind]} of {fields} at {rows.clock(start)} does not exist in this pipeline"
            )
        yield Violation(rule, ops, device, start, message)


def _strange(rows: Rows, row: int) -> str:
    pipeline = rows.pipeline
    sizes = {
        "kind": KINDS,
        "stage": pipeline.num_stages,
        "microbatch": pipeline.batches,
        "slice": pipeline.num_slices,
        "device": pipeline.num_devices,
    }
    values = {field: int(getattr(rows, field)[row]) for field in sizes}
    outside = [
        f"{field} {values[field]} is not one of 0..{size - 1}"
        for field, size in sizes.items()
        if not 0 <= values[field] < size
    ]
    if outside:
        return ", ".join(outside)
    if not rows.within[row]:
        return f"route {rows.route[row]} is not that of the microbatch"
    return f"stage {values['stage']} is frozen and has no {NAMES[values['kind']]}"


def _repeated(known: Rows) -> Iterator[Violation]:
    first = known.first[known.cell]
    for row in _where(first != np.arange(len(known))):
        rule = _of_kind(known.kind[row], Rule.DUPLICATE, Rule.TRANSFER, Rule.AUXILIARY)
        message = f"{known.span(row)} runs twice"
        if rule is Rule.DUPLICATE:
            starts = f"{known.start_text(first[row])} and again {known.start_text(row)}"
            message = f"{known.op(row)} runs {starts}"
        yield _at(known, rule, row, message)


def _two_backwards(known: Rows) -> Iterator[Violation]:
    whole = known.index(OpKind.BW)
    for half in map(known.index, (OpKind.B, OpKind.W)):
        both = (whole != ABSENT) & (half != ABSENT)
        for row, full in zip(half[both].tolist(), whole[both].tolist(), strict=True):
            message = (
                f"{known.op(row)} runs {known.start_text(row)}, and {known.op(full)} "
                f"{known.start_text(full)}; BW is B and W in one operation"
            )
            yield _at(known, Rule.DUPLICATE, row, message, known.op(full))


class _Gap(NamedTuple):
    """Operations that are missing together."""

    kinds: tuple[int, ...]
    text: str
    """Message, with one field per kind."""
    where: Bools
    """Shape [position, lane, slice]."""


def _gaps(known: Rows) -> Iterator[_Gap]:
    """Everything that can be missing; a backward is either BW or both B and W."""
    expected = known.expected
    present = {kind: known.index(kind) != ABSENT for kind in expected.kinds}
    exists = {kind: expected.view(expected.exists, kind) for kind in expected.kinds}
    forward, b, w, full = (present[kind] for kind in OpKind)
    backward, weight = exists[OpKind.B], exists[OpKind.W]
    without, both, half = ~(full | b | w), (OpKind.B, OpKind.W), "and is half of the backward"
    yield _Gap((OpKind.F,), "{0} is missing", ~forward)
    yield _Gap(both, "{0} and {1} are missing, or BW in their place", without & weight)
    yield _Gap((OpKind.B,), "{0} is missing, or BW in its place", without & backward & ~weight)
    yield _Gap((OpKind.W,), f"{{0}} is missing: B has run, {half}", b & ~w & ~full & weight)
    yield _Gap((OpKind.B,), f"{{0}} is missing: W has run, {half}", w & ~b & ~full)
    for kind in sorted(expected.kinds - set(OpKind)):
        yield _Gap((kind,), "{0} is missing", exists[kind] & ~present[kind])


def _missing(known: Rows) -> Iterator[Violation]:
    """Operations that are missing: all are counted, at most `MAX_LISTED` are named."""
    expected = known.expected
    for kinds, text, where in _gaps(known):
        if not where.any():
            continue
        rule = _of_kind(kinds[0], Rule.MISSING, Rule.TRANSFER, Rule.AUXILIARY)
        cells = np.argwhere(where)[:MAX_LISTED]
        position, lane, slice_index = cells.T
        absent = [
            of_cells(expected, expected.cell(np.full_like(lane, kind), position, lane, slice_index))
            for kind in kinds
        ]
        for row, device in enumerate(absent[0].device.tolist()):
            ops = tuple(op for rows in absent for op in rows.ops(row))
            end = f" (device {device})" if ops else ""
            message = text.format(*(rows.name(row) for rows in absent)) + end
            yield Violation(rule, ops, device, None, message)
        lacking = np.count_nonzero(where, axis=(0, 2))
        count = lacking @ expected.count if len(lacking) == len(expected.count) else lacking.sum()
        yield from unlisted_violations(rule, int(count) - len(cells))


# Where and how long


def _misplaced(known: Rows) -> Iterator[Violation]:
    for row in _where(known.placed & (known.device != known.home)):
        stage = f"its stage sits on device {known.home[row]}"
        yield _at(known, Rule.DEVICE, row, f"{known.op(row)} runs {known.start_text(row)}; {stage}")


def _pairs(known: Rows) -> Iterator[Violation]:
    """Every row with a pair number that does not run as one with a valid partner."""
    faulty = _where((known.pair != ALONE) & ~known.joined)
    sharing: dict[int, list[int]] = {}
    for row in faulty:
        sharing.setdefault(int(known.pair[row]), []).append(row)
    for row in faulty:
        partners = [partner for partner in sharing[int(known.pair[row])][:4] if partner != row][:3]
        partners_text = ", ".join(known.span(partner) for partner in partners)
        message = (
            f"{known.span(row)} is to run as one with {partners_text or 'no other'}; "
            "a pair is one F and one B or BW of different microbatches, on one device, with one "
            "start and one end"
        )
        ops = [op for partner in partners for op in known.ops(partner)]
        yield _at(known, Rule.PAIR, row, message, *ops)


def _ticks(known: Rows) -> Ints:
    """Required duration of every row: of its kind and stage, or of its pair on one device."""
    ticks, home = known.expected.ticks[known.cell], known.home
    paired = (known.partner != ABSENT) & (home == home[known.partner])
    forward = np.flatnonzero(paired & (known.kind == OpKind.F))
    if len(forward):
        backward = known.partner[forward]
        ticks[forward] = ticks[backward] = pair_ticks(known, forward, backward)
    return ticks


def pair_ticks(known: Rows, forward: Ints, backward: Ints) -> Ints:
    """Duration of every F and backward, by row, that run as one.

    The factors of a microbatch and of a slice multiply its times. A pair saves its saving at factor
    1 times the smaller factor of its two operations: that much of both overlaps, and the rest runs
    alone.
    """
    whole = (known.kind[backward] == OpKind.BW).astype(np.int64)
    saved = known.expected.costs.savings[whole, known.stage[forward], known.stage[backward]]
    if known.pipeline.microbatch_times is not None or known.pipeline.slice_times is not None:
        each = zip(_factors(known, forward), _factors(known, backward), strict=True)
        saved = scaled(saved, list(map(min, each)))
    ticks = known.expected.ticks[known.cell]
    return np.asarray(ticks[forward] + ticks[backward] - saved)


def _factors(known: Rows, rows: Ints) -> list[Fraction]:
    """Factor on the times of every row: that of its microbatch times that of its slice."""
    pipeline, unit = known.pipeline, Fraction(1)
    times, slices = pipeline.microbatch_times, pipeline.slice_times
    return [
        (times[microbatch] if times else unit) * (slices[slice_index] if slices else unit)
        for microbatch, slice_index in zip(
            known.microbatch[rows].tolist(), known.slice[rows].tolist(), strict=True
        )
    ]


def _durations(known: Rows) -> Iterator[Violation]:
    expected = _ticks(known)
    # int64 wraps: if the end precedes the start, the difference could be right by accident
    right = (known.end - known.start == expected) & (known.end >= known.start)
    right &= known.computes | (known.timed & (known.start >= 0))
    for row in _where(~right):
        rule = _of_kind(known.kind[row], Rule.DURATION, Rule.TRANSFER_TIME, Rule.AUXILIARY_TIME)
        start, end, ticks = known.start[row], known.end[row], known.clock(expected[row])
        message = f"{known.span(row)} is not {ticks} long from 0 or later on"
        if rule is Rule.DURATION:
            message = (
                f"{known.op(row)} on device {known.device[row]} takes "
                f"{known.clock(int(end) - int(start))}, from {known.clock(start)} to "
                f"{known.clock(end)}, not {ticks}"
            )
        yield _at(known, rule, row, message)


def _out_of_time(known: Rows) -> Iterator[Violation]:
    for row in _where(known.computes & ((known.start < 0) | ~known.timed)):
        where = f"{known.op(row)} starts {known.start_text(row)}"
        why = "before 0" if known.start[row] < 0 else f"and ends beyond {LATEST} ticks, not exact"
        yield _at(known, Rule.START, row, f"{where}, {why}")


# One at a time


def _overlaps(sane: Rows) -> Iterator[Violation]:
    """Every operation that starts while its resource runs another; the longest such is reported.

    A pair that runs as one counts once, by its first row. A transfer that blocks is an operation of
    both of its devices.
    """
    sane = sane.take(sane.counted)
    resource = sane.resource
    if not sane.computes.all():
        received = np.flatnonzero(sane.blocking)
        resource = np.append(resource, sane.target[received])
        sane = sane.take(np.append(np.arange(len(sane)), received))
        by_resource = np.lexsort((sane.end, sane.start, resource))
        sane, resource = sane.take(by_resource), resource[by_resource]
    same = resource[1:] == resource[:-1]
    if not (same & (sane.start[1:] < sane.end[:-1])).any():
        return
    for low, high in pairwise(np.append(first_of_device(resource), len(sane)).tolist()):
        end = np.maximum.accumulate(sane.end[low:high])
        longest = np.maximum.accumulate(
            np.where(sane.end[low:high] == end, np.arange(low, high), ABSENT)
        )
        for row in _where(sane.start[low + 1 : high] < end[:-1]):
            yield _overlap(sane, row + low + 1, int(longest[row]))


def _overlap(sane: Rows, row: int, running: int) -> Violation:
    kind, running_ops = sane.kind[row], sane.ops(running)
    if kind < NUM_KINDS or kind == AuxiliaryKind.OPTIMIZER:
        message = (
            f"{sane.name(row)} starts {sane.start_text(row)} while {sane.name(running)} runs from "
            f"{sane.clock(sane.start[running])} to {sane.clock(sane.end[running])}"
        )
        return _at(sane, Rule.OVERLAP, row, message, *running_ops)
    auxiliary = Rule.COLLECTIVE if kind in COLLECTIVES else Rule.HOST
    rule = _of_kind(kind, Rule.OVERLAP, Rule.LINK, auxiliary)
    return _at(sane, rule, row, f"{sane.span(row)} overlaps {sane.span(running)}", *running_ops)
