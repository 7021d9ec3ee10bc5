"""The rules of order: which operations must end before which others start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import AuxiliaryKind, OpKind, TransferKind
from ppopt.verifier.rows import ABSENT, Rows
from ppopt.verifier.violation import Rule, Violation

_BACKWARDS = (OpKind.B, OpKind.BW)


class Edges(NamedTuple):
    """Pairs of rows: the later one starts `lag` or more after the end of the earlier one.

    The arrays broadcast. A pair with an ABSENT row breaks no rule.
    """

    rule: Rule
    earlier: Ints
    later: Ints
    lag: Ints | int = 0
    """In ticks."""
    ends_late: bool = False
    """Whether the earlier operation is reported: it should end before the later one starts."""


Outermost = Callable[[Rows, tuple[OpKind, ...], bool], Ints]
"""Picks, of the rows of some kinds of each stage and route, those that start first or end last.

The flag is True for the last. Shape [stage, route, any number]."""


def out_of_order(named: Rows) -> Iterator[Violation]:
    """Check all edges among operations that have a name."""
    for edges in edges_of(named, _by_time):
        yield from _broken(named, edges)


def edges_of(named: Rows, outermost: Outermost) -> Iterator[Edges]:
    """All edges among operations that have a name."""
    yield from _compute(named)
    yield from _transfers(named)
    yield from _steps(named, outermost)
    yield from _moves(named)


def _compute(named: Rows) -> Iterator[Edges]:
    """Data flow, and the order of slices."""
    forward, b, w = map(named.index, (OpKind.F, OpKind.B, OpKind.W))
    down, up = (ticks[..., None] for ticks in named.expected.delays)
    backward = named.backward
    yield Edges(Rule.FORWARD, forward[:-1], forward[1:], down)
    yield Edges(Rule.SLICE, forward[..., :-1], forward[..., 1:])
    yield Edges(Rule.WEIGHT, b, w)
    for either in map(named.index, _BACKWARDS):
        yield Edges(Rule.BACKWARD, backward[1:], either[:-1], up)
        yield Edges(Rule.BACKWARD, forward, either)
        yield Edges(Rule.SLICE, backward[..., 1:], either[..., :-1])


def _transfers(named: Rows) -> Iterator[Edges]:
    """A transfer runs between the operation whose result it carries and the one that needs it."""
    if TransferKind.SEND_F not in named.expected.kinds:
        return
    forward, backward = named.index(OpKind.F), named.backward
    down, up = map(named.index, TransferKind)
    yield Edges(Rule.SEND, forward, down)
    yield Edges(Rule.SEND, backward, up)
    yield Edges(Rule.RECEIVE, down[:-1], forward[1:], ends_late=True)
    for either in map(named.index, _BACKWARDS):
        yield Edges(Rule.RECEIVE, up[1:], either[:-1], ends_late=True)


def _moves(named: Rows) -> Iterator[Edges]:
    """An activation goes to the host after F, and is back before the backward."""
    if AuxiliaryKind.OFFLOAD in named.expected.kinds:
        out, back = named.index(AuxiliaryKind.OFFLOAD), named.index(AuxiliaryKind.RELOAD)
        yield Edges(Rule.OFFLOAD, named.index(OpKind.F), out)
        yield Edges(Rule.RELOAD, out, back)
        for either in map(named.index, _BACKWARDS):
            yield Edges(Rule.RELOAD, back, either, ends_late=True)


def _steps(named: Rows, outermost: Outermost) -> Iterator[Edges]:
    """UNSHARD precedes the first F of a stage; GRADIENT_SYNC and OPTIMIZER follow its last."""
    kinds = named.expected.kinds
    if kinds.isdisjoint(AuxiliaryKind):
        return
    done = outermost(named, tuple(OpKind), True)
    if AuxiliaryKind.UNSHARD in kinds:
        first = outermost(named, (OpKind.F,), False)
        yield Edges(Rule.UNSHARD, named.index(AuxiliaryKind.UNSHARD), first, ends_late=True)
    if AuxiliaryKind.GRADIENT_SYNC in kinds:
        sync = named.index(AuxiliaryKind.GRADIENT_SYNC)
        yield Edges(Rule.GRADIENT_SYNC, done, sync)
        done = sync
    if AuxiliaryKind.OPTIMIZER in kinds:
        gradients = np.where(_awaited(named)[..., None], done.transpose(1, 0, 2), ABSENT)
        yield Edges(Rule.OPTIMIZER, gradients, named.index(AuxiliaryKind.OPTIMIZER)[..., None])


def _awaited(named: Rows) -> Bools:
    """Whether a device's optimizer needs the gradients of a stage, shape [device, route, stage].

    It needs those of its own stages; with a barrier, those of all. Frozen stages have none.
    """
    devices = np.arange(named.pipeline.num_devices)[:, None, None]
    awaited = (named.expected.hosts == devices) | named.pipeline.optimizer_barrier
    return np.asarray(awaited & named.expected.costs.exists[OpKind.W])


def _by_time(named: Rows, kinds: tuple[OpKind, ...], last: bool) -> Ints:
    """One row per stage and route."""
    times, pick = (named.ends, np.argmax) if last else (named.starts, np.argmin)
    tables = [named.index(kind) for kind in kinds]
    none = np.full((named.pipeline.num_stages, 1), ABSENT)
    rows = []
    for lanes in named.expected.lanes_of_routes:
        own = np.hstack([none, *(table[:, lanes].reshape(len(none), -1) for table in tables)])
        rows.append(np.take_along_axis(own, pick(times[own], axis=1)[:, None], axis=1))
    return np.stack(rows, axis=1)


def _broken(named: Rows, edges: Edges) -> Iterator[Violation]:
    earlier, later, lag = np.broadcast_arrays(edges.earlier, edges.later, edges.lag)
    early = named.starts[later] < named.ends[earlier] + lag
    if not early.any():
        return
    columns = (column[early].tolist() for column in (earlier, later, lag))
    for before, after, ticks in zip(*columns, strict=True):
        row, cause = (before, after) if edges.ends_late else (after, before)
        ops = (*named.ops(row), *named.ops(cause))
        message = _message(named, row, cause, ticks, ends_late=edges.ends_late)
        yield Violation(edges.rule, ops, int(named.device[row]), int(named.start[row]), message)


def _message(named: Rows, row: int, cause: int, lag: int, *, ends_late: bool) -> str:
    end, where = named.clock(named.end[cause]), f" on device {named.device[cause]}"
    if named.computes[row]:
        delay = f" and p2p takes {named.clock(lag)}" if lag else ""
        start = f"{named.name(row)} starts {named.start_text(row)}"
        return f"{start}, but {named.name(cause)} ends at {end}{where}{delay}"
    if named.device[cause] in (named.device[row], named.target[row]):
        where = ""
    if ends_late:
        start = named.clock(named.start[cause])
        return f"{named.span(row)} ends after {named.name(cause)} starts at {start}{where}"
    return f"{named.span(row)} starts before {named.name(cause)} ends at {end}{where}"
