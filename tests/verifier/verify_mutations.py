"""For every rule, a way to break a valid schedule in that rule and in no other.

Most use one idea: shift everything later and run one operation in the time won at the front,
where nothing can be in its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, NamedTuple

from hypothesis import assume

from ppopt.problem.operation import KINDS
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule, figures
from tests.factories.auxiliary import OFFLOAD, OPTIMIZER, RELOAD, SYNC, UNSHARD
from tests.factories.schedules import ALONE, BW, B, F, TableRow, W, limited, peaks, table
from tests.factories.streams import link_of
from tests.factories.tables import auxiliary_table, transfer_table
from tests.factories.tables import joined as from_tables


class Broken(NamedTuple):
    """A schedule that breaks one rule, with the claims made for it."""

    schedule: Schedule
    claims: dict[str, object] | None = None


def unknown(random: Random, schedule: Schedule) -> Broken:
    """Add an operation that does not exist, or run a forward on a device that does not."""
    pipeline, rows = schedule.pipeline, table(schedule)
    field, size = random.choice(
        (
            (0, KINDS),
            (1, pipeline.num_stages),
            (2, pipeline.batches),
            (3, pipeline.num_devices),
            (6, pipeline.slices or 1),
        )
    )
    device = random.choice((-1, size, -(2**63), 2**63 - 1))
    if field == 3:
        assume(all(row[7] == ALONE for row in rows))
        return _with(
            schedule, [_change(row, device=device) if row[0] == F else row for row in rows]
        )
    strange: Any = [*random.choice(rows)[:7], ALONE]
    strange[field] = device
    return _with(schedule, [*rows, strange])


def duplicate(random: Random, schedule: Schedule) -> Broken:
    """Run an operation again, or a full backward besides B and W, after everything else."""
    rows = table(schedule)
    copy = random.choice(rows)
    kind = BW if copy[0] in (B, W) and random.random() < 0.5 else copy[0]
    duration = schedule.pipeline.ticks.durations[kind][copy[1]]
    copy = (kind, *copy[1:4], 0, duration, copy[6], ALONE)
    return _with(limited(schedule, None), [*rows, _at(copy, _makespan(rows))])


def missing(random: Random, schedule: Schedule) -> Broken:
    """Leave an operation out."""
    rows = table(schedule)
    rows.remove(random.choice([row for row in rows if row[7] == ALONE] or rows))
    return _with(limited(schedule, None), rows)


def wrong_device(random: Random, schedule: Schedule) -> Broken:
    """Run a first forward on another device, at the front."""
    devices = schedule.pipeline.num_devices
    rows = [row for row in _alone(schedule) if row[:2] == (F, 0) and row[6] == 0]
    assume(rows)
    row = random.choice(rows)
    wrong = (row[3] + random.randrange(1, devices)) % devices
    return _front(schedule, [(row, _change(row, device=wrong))])


def duration(random: Random, schedule: Schedule) -> Broken:
    """End an operation too early."""
    rows = table(schedule)
    row = random.choice([row for row in rows if row[4] < row[5]])
    end = random.randrange(row[4], row[5])
    for index, later in enumerate(rows):
        if later == row or (later[7] == row[7] != ALONE):
            rows[index] = (*later[:5], end, *later[6:])
    return _with(schedule, rows)


def start(random: Random, schedule: Schedule) -> Broken:
    """Move everything to an earlier time, the first operations below 0."""
    rows = table(schedule)
    by = min(row[4] for row in rows) + random.randrange(1, 10)
    return _with(schedule, [_at(row, row[4] - by) for row in rows])


def forward_order(random: Random, schedule: Schedule) -> Broken:
    """Run the forward of a later stage at the front."""
    return _any_to_front(random, schedule, lambda row: row[0] == F and row[1] > 0 and not row[6])


def backward_order(random: Random, schedule: Schedule) -> Broken:
    """Run a backward at the front, before its own forward."""
    last = (schedule.pipeline.slices or 1) - 1
    return _any_to_front(random, schedule, lambda row: row[0] in (B, BW) and row[6] == last)


def pair(random: Random, schedule: Schedule) -> Broken:
    """Give two operations one number that do not run as one, or an operation alone a number."""
    rows = [row for row in table(schedule) if row[7] == ALONE]
    assume(rows)
    chosen = random.sample(rows, random.randint(1, min(3, len(rows))))
    kinds = {row[0] for row in chosen}
    assume(not (len(chosen) == 2 and F in kinds and kinds & {B, BW}))
    pair_id = len(schedule)
    numbered = [(*row[:7], pair_id) if row in chosen else row for row in table(schedule)]
    return _with(schedule, numbered)


def slice_order(random: Random, schedule: Schedule) -> Broken:
    """Run the forward of a later slice at stage 0 at the front."""
    return _any_to_front(random, schedule, lambda row: row[:2] == (F, 0) and row[6] > 0)


def weight_order(random: Random, schedule: Schedule) -> Broken:
    """Run a W at the front, before its B."""
    return _any_to_front(random, schedule, lambda row: row[0] == W)


def overlap(random: Random, schedule: Schedule) -> Broken:
    """Run two first forwards of one device at the front, at the same time or one tick apart."""
    rows = [row for row in _alone(schedule) if row[:2] == (F, 0) and row[6] == 0]
    assume(rows)
    first = random.choice(rows)
    same_device = [row for row in rows if row[3] == first[3] and row != first]
    assume(same_device)
    delayed = random.choice(same_device)
    late = random.randrange(first[5] - first[4])
    return _front(schedule, [(first, first), (delayed, _at(delayed, late))], late)


def memory(random: Random, schedule: Schedule) -> Broken:
    """Set the limit of one device a single tick below its peak."""
    limits = peaks(schedule)
    assume(any(limits))
    device = random.choice([device for device, peak in enumerate(limits) if peak])
    limits[device] -= 1
    return Broken(limited(schedule, limits))


def claim(random: Random, schedule: Schedule) -> Broken:
    """State a figure that is wrong by a little, of the wrong type, or unknown."""
    right = figures(schedule)
    wrong: list[dict[str, object]] = [
        {"makespan": right.makespan + 1},
        {"device_span": right.device_span - 1},
        {"makespan": float(right.makespan)},
        {"makespan": True},
        {"busy": [*right.busy[1:], right.busy[0] + 1]},
        {"busy": list(right.busy[1:])},
        {"busy": sum(right.busy)},
        {"peak_memory": [peak + 1 for peak in right.peak_memory]},
        {"peak_memory": [str(peak) for peak in right.peak_memory]},
        {"bubble_rate": float(right.bubble_rate()) + 1e-9},
        {"bubble_rate": float("nan")},
        {"bubble_overhead": None},
        {"bubble_overhead": 10**400},
        {"span": right.device_span},
        {"objective": "latency"},
    ]
    return Broken(schedule, random.choice(wrong))


def transfer(random: Random, schedule: Schedule) -> Broken:
    """Leave a transfer out, add one again at the end, or one that does not exist."""
    rows = transfer_table(schedule)
    assume(rows)
    chosen = random.choice(rows)
    last = _makespan(table(schedule))
    length = chosen[6] - chosen[5]
    wrong = (chosen[4] + 1) % schedule.pipeline.num_devices
    changed = random.choice(
        (
            [row for row in rows if row != chosen],
            [*rows, (*chosen[:5], last, last + length, *chosen[7:])],
            [*rows, (chosen[0], chosen[1], -1, *chosen[3:])],
            [*rows, (chosen[0], chosen[1], schedule.pipeline.batches, *chosen[3:])],
            [*rows, (chosen[0], schedule.pipeline.num_stages, *chosen[2:])],
            [*rows, (*chosen[:4], wrong, *chosen[5:])],
        )
    )
    assume(wrong != chosen[4])
    return _with(schedule, table(schedule), changed)


def transfer_time(random: Random, schedule: Schedule) -> Broken:
    """End a transfer too early."""
    rows = [row for row in transfer_table(schedule) if row[5] < row[6]]
    assume(rows)
    row = random.choice(rows)
    end = random.randrange(row[5], row[6])
    rows = transfer_table(schedule)
    changed = [(*sent[:6], end, *sent[7:]) if sent == row else sent for sent in rows]
    return _with(schedule, table(schedule), changed)


def send_order(random: Random, schedule: Schedule) -> Broken:
    """Run a transfer at the front, before the operation whose result it carries."""
    rows = transfer_table(schedule)
    assume(rows)
    row = random.choice(rows)
    length = row[6] - row[5] + 1
    sent_later = [_sent_at(sent, sent[5] + length) for sent in rows if sent != row]
    later = [_at(op_row, op_row[4] + length) for op_row in table(schedule)]
    return _with(limited(schedule, None), later, [*sent_later, _sent_at(row, 0)])


def receive_order(random: Random, schedule: Schedule) -> Broken:
    """Run a transfer at the end, after the operation that needs it."""
    rows = transfer_table(schedule)
    assume(rows)
    row = random.choice(rows)
    last = max(_makespan(table(schedule)), *(sent[6] for sent in rows))
    received = _sent_at(row, last + 1)
    return _with(schedule, table(schedule), [received if sent == row else sent for sent in rows])


def link_overlap(random: Random, schedule: Schedule) -> Broken:
    """Run a transfer while its link carries another one, as soon as it could have started."""
    rows = [row for row in transfer_table(schedule) if row[5] < row[6]]
    moves = []
    for row in rows:
        begin = _sent(schedule, row)
        earlier = _sent_at(row, begin)
        rest = (sent for sent in rows if sent != row)
        if begin < row[5] and any(_beside(schedule, second, earlier) for second in rest):
            moves.append((row, earlier))
    assume(moves)
    row, earlier = random.choice(moves)
    changed = [earlier if sent == row else sent for sent in transfer_table(schedule)]
    return _with(schedule, table(schedule), changed)


def _sent(schedule: Schedule, row: tuple[int, ...]) -> int:
    """End of the operation whose result a transfer carries."""
    kinds = (F,) if row[0] == F else (B, BW)
    name = (*row[1:3], row[7])
    same = (
        op_row
        for op_row in table(schedule)
        if op_row[0] in kinds and (*op_row[1:3], op_row[6]) == name
    )
    return next(op_row[5] for op_row in same)


def _sent_at(row: tuple[int, ...], begin: int) -> tuple[int, ...]:
    """A transfer at another time."""
    return (*row[:5], begin, begin + row[6] - row[5], *row[7:])


def _beside(schedule: Schedule, row: tuple[int, ...], second: tuple[int, ...]) -> bool:
    first_link, two = (link_of(schedule.pipeline, *each[3:5]) for each in (row, second))
    return bool(first_link == two) and max(row[5], second[5]) < min(row[6], second[6])


def auxiliary_operation(random: Random, schedule: Schedule) -> Broken:
    """Leave an auxiliary operation out, or run it again after everything else."""
    rows = auxiliary_table(schedule)
    row = random.choice(rows)
    last = schedule.metrics.makespan_ticks
    copy = (*row[:3], last, last + row[4] - row[3], *row[5:])
    left = [auxiliary for auxiliary in rows if auxiliary != row]
    return _with_auxiliary(schedule, random.choice(([*rows, copy], left)))


def auxiliary_time(random: Random, schedule: Schedule) -> Broken:
    """End an optimizer too late."""
    row = random.choice([row for row in auxiliary_table(schedule) if row[0] == OPTIMIZER])
    return _replace_auxiliary(schedule, row, (*row[:4], row[4] + random.randint(1, 5), *row[5:]))


def unshard_order(random: Random, schedule: Schedule) -> Broken:
    """Gather weights after everything else."""
    row = random.choice([row for row in auxiliary_table(schedule) if row[0] == UNSHARD])
    return _replace_auxiliary(schedule, row, _auxiliary_at(row, schedule.metrics.makespan_ticks))


def gradient_sync_order(random: Random, schedule: Schedule) -> Broken:
    """Reduce gradients before everything else."""
    row = random.choice([row for row in auxiliary_table(schedule) if row[0] == SYNC])
    return _auxiliary_first(schedule, row)


def optimizer_order(random: Random, schedule: Schedule) -> Broken:
    """Run an optimizer before everything else."""
    row = random.choice([row for row in auxiliary_table(schedule) if row[0] == OPTIMIZER])
    return _auxiliary_first(schedule, row)


def collective_overlap(random: Random, schedule: Schedule) -> Broken:
    """Run a sync while another one of its device ends; optimizers move out of the way."""
    rows = auxiliary_table(schedule)
    syncs = [row for row in rows if row[0] == SYNC]
    pairs = [
        (first, second)
        for first in syncs
        for second in syncs
        if first[2] == second[2] and first[4] <= second[3]
    ]
    assume(pairs)
    early, late = random.choice(pairs)
    earlier = _auxiliary_at(early, late[4] - 1)
    same_queue = [row for row in syncs if row[2] == late[2] and row[3] >= late[4]]
    assume(not same_queue)
    by = earlier[4] - earlier[3]
    changed = [
        earlier if row == early else _auxiliary_at(row, row[3] + by) if row[0] == OPTIMIZER else row
        for row in rows
    ]
    return _with_auxiliary(schedule, changed)


def offload_order(random: Random, schedule: Schedule) -> Broken:
    """Move an activation to the host before everything else."""
    row = random.choice([row for row in auxiliary_table(schedule) if row[0] == OFFLOAD])
    return _auxiliary_first(schedule, row)


def reload_order(random: Random, schedule: Schedule) -> Broken:
    """Move an activation back after everything else."""
    row = random.choice([row for row in auxiliary_table(schedule) if row[0] == RELOAD])
    return _replace_auxiliary(schedule, row, _auxiliary_at(row, schedule.metrics.makespan_ticks))


def host_overlap(random: Random, schedule: Schedule) -> Broken:
    """Move an activation back while a later one does, or where the link is shared, goes out.

    It was back long before.
    """
    rows = auxiliary_table(schedule)
    shared = schedule.pipeline.host_link == "shared"
    out = {(row[1], *row[6:]): row[4] for row in rows if row[0] == OFFLOAD}
    pairs = [
        (late, early)
        for late in rows
        for early in rows
        if late[0] == RELOAD and (shared or early[0] == RELOAD)
        if late[2] == early[2] and early[4] <= late[3] and early[4] > 1
        if early[4] - 1 >= out[late[1], *late[6:]]
    ]
    assume(pairs)
    late, early = random.choice(pairs)
    return _replace_auxiliary(schedule, late, _auxiliary_at(late, early[4] - 1))


def _with_auxiliary(schedule: Schedule, rows: Iterable[tuple[int, ...]]) -> Broken:
    return Broken(from_tables(schedule.pipeline, table(schedule), auxiliary=rows))


def _replace_auxiliary(
    schedule: Schedule, row: tuple[int, ...], changed: tuple[int, ...]
) -> Broken:
    rows = [changed if auxiliary == row else auxiliary for auxiliary in auxiliary_table(schedule)]
    return _with_auxiliary(schedule, rows)


def _auxiliary_at(row: tuple[int, ...], time: int) -> tuple[int, ...]:
    return (*row[:3], time, time + row[4] - row[3], *row[5:])


def _auxiliary_first(schedule: Schedule, row: tuple[int, ...]) -> Broken:
    """Run an auxiliary operation at the front, all others later."""
    delay = row[4] - row[3]
    rows = [_at(op_row, op_row[4] + delay) for op_row in table(schedule)]
    auxiliary = [
        _auxiliary_at(op_row, 0 if op_row == row else op_row[3] + delay)
        for op_row in auxiliary_table(schedule)
    ]
    return Broken(from_tables(schedule.pipeline, rows, auxiliary=auxiliary))


GRADIENTS = frozenset(
    (
        *(Rule.AUXILIARY, Rule.AUXILIARY_TIME, Rule.UNSHARD, Rule.GRADIENT_SYNC),
        *(Rule.OPTIMIZER, Rule.COLLECTIVE),
    )
)
"""Rules of work around the microbatches."""
OFFLOADS = frozenset((Rule.OFFLOAD, Rule.RELOAD, Rule.HOST))
"""Rules of moves to the host and back."""
STREAMS = frozenset((Rule.TRANSFER, Rule.TRANSFER_TIME, Rule.SEND, Rule.RECEIVE, Rule.LINK))
"""Rules that hold where links are resources."""

MUTATIONS: dict[Rule, Callable[[Random, Schedule], Broken]] = {
    Rule.UNKNOWN: unknown,
    Rule.DUPLICATE: duplicate,
    Rule.MISSING: missing,
    Rule.DEVICE: wrong_device,
    Rule.PAIR: pair,
    Rule.DURATION: duration,
    Rule.START: start,
    Rule.FORWARD: forward_order,
    Rule.BACKWARD: backward_order,
    Rule.WEIGHT: weight_order,
    Rule.SLICE: slice_order,
    Rule.TRANSFER: transfer,
    Rule.TRANSFER_TIME: transfer_time,
    Rule.SEND: send_order,
    Rule.RECEIVE: receive_order,
    Rule.LINK: link_overlap,
    Rule.AUXILIARY: auxiliary_operation,
    Rule.AUXILIARY_TIME: auxiliary_time,
    Rule.UNSHARD: unshard_order,
    Rule.GRADIENT_SYNC: gradient_sync_order,
    Rule.OPTIMIZER: optimizer_order,
    Rule.COLLECTIVE: collective_overlap,
    Rule.OFFLOAD: offload_order,
    Rule.RELOAD: reload_order,
    Rule.HOST: host_overlap,
    Rule.OVERLAP: overlap,
    Rule.MEMORY: memory,
    Rule.CLAIM: claim,
}


def _with(
    schedule: Schedule, rows: Iterable[TableRow], transfers: Iterable[tuple[int, ...]] = ()
) -> Broken:
    return Broken(from_tables(schedule.pipeline, rows, transfers=transfers))


def _change(row: TableRow, *, device: int) -> TableRow:
    return (*row[:3], device, *row[4:])


def _at(row: TableRow, time: int) -> TableRow:
    return (*row[:4], time, time + row[5] - row[4], *row[6:])


def _alone(schedule: Schedule) -> list[TableRow]:
    """Rows in no pair: these can be moved by themselves."""
    return [row for row in table(schedule) if row[7] == ALONE]


def _makespan(rows: Iterable[TableRow]) -> int:
    return max(row[5] for row in rows)


def _any_to_front(random: Random, schedule: Schedule, suits: Callable[[TableRow], bool]) -> Broken:
    rows = [row for row in _alone(schedule) if suits(row)]
    assume(rows)
    row = random.choice(rows)
    return _front(schedule, [(row, row)])


def _front(schedule: Schedule, moves: list[tuple[TableRow, TableRow]], late: int = 0) -> Broken:
    """Run `moves` (row as it was, row as it becomes) at the front; memory is left unlimited.

    The last one starts at `late`, the others at 0.
    """
    delay = late + sum(row[5] - row[4] for row, _ in moves)
    gone = [row for row, _ in moves]
    rows = [_at(row, row[4] + delay) for row in table(schedule) if row not in gone]
    in_front = [_at(row, 0) for _, row in moves[:-1]] + [_at(moves[-1][1], late)]
    return _with(limited(schedule, None), [*rows, *in_front])
