"""The rules of a schedule, one function each: yields every violation, formats only those."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, pairwise, product
from typing import NamedTuple

import numpy as np

from ppopt.problem.costs import PairTimes
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE
from ppopt.verifier.rows import (
    ABSENT,
    LATEST,
    Bools,
    Ints,
    Places,
    Rows,
    existing_kinds,
    first_of_device,
    scaled,
)
from ppopt.verifier.violation import MOST_LISTED, Rule, Violation, more


def of_operations(rows: Rows) -> Iterator[Violation]:
    """Check every rule but those on memory and claims; the violations come in no fixed order."""
    named = rows.take(rows.named)
    places = Places(rows.pipeline, named.present)
    yield from _unknown(rows)
    yield from _duplicates(named)
    yield from _incomplete(named)
    yield from _misplaced(named, places)
    yield from _pairs(named)
    yield from _durations(named)
    yield from _out_of_time(named)
    yield from _order(named, places)
    yield from _overlaps(rows.sane)


def _at(rows: Rows, rule: Rule, row: int, message: str, *others: Op) -> Violation:
    """Report a named row."""
    ops = (rows.op(row), *others)
    return Violation(rule, ops, int(rows.device[row]), int(rows.start[row]), message)


def _unknown(rows: Rows) -> Iterator[Violation]:
    for row in _where(~(rows.named & rows.placed)):
        shown = str(rows.op(row)) if rows.within[row] else "an operation"
        device, start = int(rows.device[row]), int(rows.start[row])
        yield Violation(
            Rule.UNKNOWN,
            (rows.op(row),) if rows.within[row] else (),
            device,
            start,
            f"{shown} at {rows.clock(start)} on device {device}: {_strange(rows, row)}",
        )


def _strange(rows: Rows, row: int) -> str:
    pipeline = rows.pipeline
    sizes = {
        "kind": len(OpKind),
        "stage": pipeline.num_stages,
        "microbatch": pipeline.batches,
        "slice": pipeline.num_slices,
        "device": pipeline.num_devices,
    }
    given = {field: int(getattr(rows, field)[row]) for field in sizes}
    outside = [
        f"{field} {given[field]} is not one of 0..{size - 1}"
        for field, size in sizes.items()
        if not 0 <= given[field] < size
    ]
    if outside:
        return ", ".join(outside)
    return f"stage {given['stage']} is frozen and has no {OpKind(given['kind']).name}"


def _duplicates(named: Rows) -> Iterator[Violation]:
    index = named.index
    if np.count_nonzero(index != ABSENT) < len(named):
        first = index.reshape(-1)[named.cell]
        for row in _where(first != np.arange(len(named))):
            places = f"{_place(named, first[row])} and again {_place(named, row)}"
            yield _at(named, Rule.DUPLICATE, row, f"{named.op(row)} runs {places}")
    for part in (OpKind.B, OpKind.W):
        both = (index[OpKind.BW] != ABSENT) & (index[part] != ABSENT)
        pairs = np.stack((index[part][both], index[OpKind.BW][both]), axis=1)
        for row, full in pairs.tolist():
            op, whole = named.op(row), named.op(full)
            beside = f"{op} runs {_place(named, row)} beside {whole} {_place(named, full)}"
            yield _at(named, Rule.DUPLICATE, row, f"{beside}; BW is B and W in one", whole)


def _place(rows: Rows, row: int) -> str:
    return f"at {rows.clock(rows.start[row])} on device {rows.device[row]}"


class _Gap(NamedTuple):
    """Operations of a stage and microbatch that are missing together, and what is said of them."""

    kinds: tuple[OpKind, ...]
    text: str


_NO_FORWARD = _Gap((OpKind.F,), "{0} is missing")
_NO_BACKWARD = _Gap((OpKind.B, OpKind.W), "{0} and {1} are missing, or BW in their place")
_NO_FROZEN_BACKWARD = _Gap((OpKind.B,), "{0} is missing, or BW in its place")
_NO_W = _Gap((OpKind.W,), "{0} is missing: B has run, and is half of the backward")
_NO_B = _Gap((OpKind.B,), "{0} is missing: W has run, and is half of the backward")


def _incomplete(named: Rows) -> Iterator[Violation]:
    """Operations that are missing: counted, and no more of them named than are listed."""
    pipeline, present = named.pipeline, named.present
    forward, b, w, full = named.index != ABSENT
    exists = existing_kinds(pipeline)
    backward, weight = (exists[kind][:, None, None] for kind in (OpKind.B, OpKind.W))
    without = ~(full | b | w)
    gaps: tuple[tuple[_Gap, Bools], ...] = (
        (_NO_FORWARD, ~forward),
        (_NO_BACKWARD, without & weight),
        (_NO_FROZEN_BACKWARD, without & backward & ~weight),
        (_NO_W, b & ~w & ~full & weight),
        (_NO_B, w & ~b & ~full),
    )
    for gap, mask in gaps:
        cells = np.flatnonzero(mask)
        for cell in cells[:MOST_LISTED]:
            stage, slot, part = map(int, np.unravel_index(cell, mask.shape))
            yield _missing(pipeline, gap, stage, int(present[slot]), part)
        yield from more(Rule.MISSING, len(cells) - MOST_LISTED)
    first = np.arange(min(pipeline.batches, len(present) + MOST_LISTED))
    absent = np.setdiff1d(first, present, assume_unique=True).tolist()
    stages = [(_NO_FORWARD, stage) for stage in range(pipeline.num_stages)] + [
        (_NO_BACKWARD if exists[OpKind.W, stage] else _NO_FROZEN_BACKWARD, stage)
        for stage in np.flatnonzero(exists[OpKind.B]).tolist()
    ]
    wholly = product(absent, stages, range(pipeline.num_slices))
    for microbatch, (gap, stage), part in islice(wholly, MOST_LISTED):
        yield _missing(pipeline, gap, stage, microbatch, part)
    missing = (pipeline.batches - len(present)) * len(stages) * pipeline.num_slices
    yield from more(Rule.MISSING, missing - MOST_LISTED)


def _missing(pipeline: Pipeline, gap: _Gap, stage: int, microbatch: int, part: int) -> Violation:
    ops = tuple(Op(kind, stage, microbatch, part) for kind in gap.kinds)
    device = pipeline.device(stage, microbatch)
    message = f"{gap.text.format(*ops)} (device {device})"
    return Violation(Rule.MISSING, ops, device, None, message)


def _misplaced(named: Rows, places: Places) -> Iterator[Violation]:
    host = places.host[named.stage, named.slot]
    for row in _where(named.placed & (named.device != host)):
        message = f"{named.op(row)} runs {_place(named, row)}; its stage sits on device {host[row]}"
        yield _at(named, Rule.DEVICE, row, message)


def _pairs(named: Rows) -> Iterator[Violation]:
    """Every row with a pair number that does not run as one with a right partner."""
    faulty = _where((named.pair != ALONE) & ~named.joined)
    sharing: dict[int, list[int]] = {}
    for row in faulty:
        sharing.setdefault(int(named.pair[row]), []).append(row)
    for row in faulty:
        others = [other for other in sharing[int(named.pair[row])][:4] if other != row]
        shown = ", ".join(f"{named.op(other)} {_span(named, other)}" for other in others[:3])
        message = (
            f"{named.op(row)} {_span(named, row)} is to run as one with {shown or 'no other'}; "
            "a pair is one F and one B or BW of different microbatches, on one device, with one "
            "start and one end"
        )
        yield _at(named, Rule.PAIR, row, message, *map(named.op, others[:3]))


def _span(rows: Rows, row: int) -> str:
    times = f"{rows.clock(rows.start[row])}..{rows.clock(rows.end[row])}"
    return f"at {times} on device {rows.device[row]}"


def _expected(named: Rows) -> Ints:
    """Time of every row, in ticks: that of its kind and stage, or that of its pair on one device.

    An operation takes its time / the speed of its device. Recompute makes B and BW longer, and
    saves nothing if they run in a pair. F with BW takes what is stated (see `_stated`). So does
    F with B, if that is stated; else it takes as much less, or more, than F with BW as B is
    shorter, or longer, than BW; but not less than each of F and B, unless F with BW does. The
    factor of a microbatch multiplies its times (see `_of_microbatches`).
    """
    costs, pipeline = named.pipeline.costs, named.pipeline
    kinds = {OpKind.F: costs.forward, OpKind.B: costs.backward_input}
    kinds |= {OpKind.W: costs.weight, OpKind.BW: costs.backward}
    rows = [*(kinds[kind] for kind in OpKind), costs.recompute_time]
    per_unit = [pipeline.ticks.per_unit / pipeline.device_speed[d] for d in pipeline.hosts[0]]
    *own, recompute = np.array(
        [[int(time * unit) for time, unit in zip(row, per_unit, strict=True)] for row in rows],
        dtype=np.int64,
    )
    table = np.array(own)
    expected = table[named.kind, named.stage]
    again = np.isin(named.kind, (OpKind.B, OpKind.BW)) * recompute[named.stage]
    expected += again
    host = np.array(pipeline.hosts)[
        named.microbatch * pipeline.routes // pipeline.batches, named.stage
    ]
    paired = np.flatnonzero((named.partner != ABSENT) & (host == host[named.partner]))
    other = named.partner[paired]
    forward = np.where(named.kind[paired] == OpKind.F, paired, other)
    backward = np.where(forward == paired, other, paired)
    stages = named.stage[forward], named.stage[backward]
    with_bw = _stated(costs.overlap, table[OpKind.F], table[OpKind.BW], per_unit, *stages)
    with_bw += again[backward]
    parts = np.maximum(expected[forward], expected[backward])
    further = table[named.kind[backward], stages[1]] - table[OpKind.BW, stages[1]]
    times = np.maximum(with_bw + further, np.minimum(parts, with_bw))
    if costs.overlap_input:
        with_b = _stated(costs.overlap_input, table[OpKind.F], table[OpKind.B], per_unit, *stages)
        times = np.where(named.kind[backward] == OpKind.B, with_b + again[backward], times)
    if pipeline.microbatch_times is not None:
        return _of_microbatches(named, expected, forward, backward, times)
    expected[paired] = times
    return expected


def _of_microbatches(
    named: Rows, alone: Ints, forward: Ints, backward: Ints, together: Ints
) -> Ints:
    """Time of every row, of which an operation alone, or a pair, takes so long at factors of 1.

    An operation takes its time times the factor of its microbatch. A pair saves what it saves at 1
    times the smaller factor of its two: so much of both overlaps, and the rest runs alone.
    """
    factors = [named.pipeline.microbatch_times[place] for place in named.microbatch.tolist()]
    expected = scaled(alone, factors)
    both = zip(forward.tolist(), backward.tolist(), strict=True)
    smaller = [min(factors[f], factors[b]) for f, b in both]
    saved = scaled(alone[forward] + alone[backward] - together, smaller)
    times = expected[forward] + expected[backward] - saved
    expected[forward] = expected[backward] = times
    return expected


def _stated(
    stated: PairTimes,
    f: Ints,
    own: Ints,
    per_unit: list[Fraction],
    forward: Ints,
    backward: Ints,
) -> Ints:
    """Time of F of some stages as one with a backward of others, without recompute, in ticks.

    `stated` are the times of F with BW, or with B, and `own` those of that backward. A matrix
    states a pair. A time per stage is that of F and the backward of the stage. Those of two stages
    take the sum of both, less what they save at the stage where they save less. They take no less
    than the least of three times: the two stated, and the longer of this F and this backward.
    """
    if isinstance(stated[0], tuple):
        matrix = [
            [int(time * unit) for time in row] for row, unit in zip(stated, per_unit, strict=True)
        ]
        found: Ints = np.array(matrix, dtype=np.int64)[forward, backward]
        return found
    pairs = zip(stated, per_unit, strict=True)
    time = np.array([int(number * unit) for number, unit in pairs], dtype=np.int64)
    saved = np.minimum((f + own - time)[forward], (f + own - time)[backward])
    least = np.minimum(
        np.minimum(time[forward], time[backward]), np.maximum(f[forward], own[backward])
    )
    longest: Ints = np.maximum(f[forward] + own[backward] - saved, least)
    return longest


def _durations(named: Rows) -> Iterator[Violation]:
    expected = _expected(named)
    # int64 wraps: the difference alone could be right by accident where the end precedes the start
    right = (named.end - named.start == expected) & (named.end >= named.start)
    for row in _where(~right):
        start, end = int(named.start[row]), int(named.end[row])
        message = (
            f"{named.op(row)} on device {named.device[row]} takes {named.clock(end - start)}, "
            f"from {named.clock(start)} to {named.clock(end)}, not {named.clock(expected[row])}"
        )
        yield _at(named, Rule.DURATION, row, message)


def _out_of_time(named: Rows) -> Iterator[Violation]:
    for row in _where((named.start < 0) | ~named.timed):
        where = f"{named.op(row)} starts {_place(named, row)}"
        why = "before 0" if named.start[row] < 0 else f"and ends beyond {LATEST} ticks, not exact"
        yield _at(named, Rule.START, row, f"{where}, {why}")


def _order(named: Rows, places: Places) -> Iterator[Violation]:
    """Precedence of data flow and slices; if B and BW both run, successors wait for B."""
    forward, b, w, full = named.index
    backward = np.where(b != ABSENT, b, full)
    yield from _after(named, Rule.FORWARD, forward[1:], forward[:-1], places.forward)
    for either in (b, full):
        yield from _after(named, Rule.BACKWARD, either[:-1], backward[1:], places.backward)
        yield from _after(named, Rule.BACKWARD, either, forward, 0)
    yield from _after(named, Rule.WEIGHT, w, b, 0)
    yield from _after(named, Rule.SLICE, forward[..., 1:], forward[..., :-1], 0)
    for either in (b, full):
        yield from _after(named, Rule.SLICE, either[..., :-1], backward[..., 1:], 0)


def _after(
    rows: Rows, rule: Rule, later: Ints, earlier: Ints, lag: Ints | int
) -> Iterator[Violation]:
    """Check that the rows `later` start `lag` or more after the end of the rows `earlier`.

    Row numbers and lags have one shape; where a row is ABSENT there is nothing to break.
    """
    early = rows.starts[later] < rows.ends[earlier] + lag
    if not early.any():
        return
    lags = np.broadcast_to(lag, early.shape)[early].tolist()
    pairs = zip(later[early].tolist(), earlier[early].tolist(), lags, strict=True)
    for row, before, ticks in pairs:
        cause = rows.op(before)
        delay = f" and p2p takes {rows.clock(ticks)}" if ticks else ""
        message = (
            f"{rows.op(row)} starts {_place(rows, row)}, but {cause} ends at "
            f"{rows.clock(rows.end[before])} on device {rows.device[before]}{delay}"
        )
        yield _at(rows, rule, row, message, cause)


def _overlaps(sane: Rows) -> Iterator[Violation]:
    """Every operation that starts while another one runs, with the longest-running of those.

    A pair that runs as one stands there once, by its first row.
    """
    sane = sane.take(sane.counted)
    same_device = sane.device[1:] == sane.device[:-1]
    if not (same_device & (sane.start[1:] < sane.end[:-1])).any():
        return
    bounds = np.append(first_of_device(sane.device), len(sane)).tolist()
    for low, high in pairwise(bounds):
        end = np.maximum.accumulate(sane.end[low:high])
        longest = np.maximum.accumulate(
            np.where(sane.end[low:high] == end, np.arange(low, high), ABSENT)
        )
        for row in _where(sane.start[low + 1 : high] < end[:-1]):
            yield _overlap(sane, row + low + 1, int(longest[row]))


def _overlap(sane: Rows, row: int, running: int) -> Violation:
    other = sane.op(running)
    message = (
        f"{sane.op(row)} starts {_place(sane, row)} while {other} runs from "
        f"{sane.clock(sane.start[running])} to {sane.clock(sane.end[running])}"
    )
    return _at(sane, Rule.OVERLAP, row, message, other)


def _where(mask: Bools) -> list[int]:
    rows: list[int] = np.flatnonzero(mask).tolist()
    return rows
