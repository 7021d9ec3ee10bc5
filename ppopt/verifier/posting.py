"""The rules of a communication order: what every device posts, and where between its operations.

Times play no part; those of the transfers are for `ppopt.verifier.rules`. Whether the
operations themselves are complete is for the verifier of the timed schedule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise, zip_longest
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.actions import POSTS, Action, ActionKind, ActionRow
from ppopt.verifier.expected import existing_kinds

_HANDED = {
    ActionKind.F: (1, ActionKind.SEND_F, ActionKind.RECV_F),
    ActionKind.B: (-1, ActionKind.SEND_B, ActionKind.RECV_B),
    ActionKind.BW: (-1, ActionKind.SEND_B, ActionKind.RECV_B),
}
"""Of an operation: the way from its stage to the one that it hands its result, what sends this, and
what receives its own input."""
_SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)


class PostingRule(StrEnum):
    """The rules of a communication order."""

    UNKNOWN = "unknown-post"
    """A post is one end of a transfer between devices, on the device of its stage."""
    ONCE = "posted-once"
    """Every transfer is sent once and received once."""
    AFTER = "send-behind"
    """A send stands behind the operation whose result it carries."""
    BEFORE = "receive-before"
    """A receive stands before the operation that needs it."""
    ORDER = "matching-order"
    """Two devices post the transfers between them in one order."""
    DEADLOCK = "deadlock"
    """No operations and transfers wait for each other in a circle."""


class PostingFault(NamedTuple):
    """One breach of one rule; `str(fault)` is one line."""

    rule: PostingRule
    device: int
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: device {self.device}: {self.message}"


def posting_faults(pipeline: Pipeline, rows: Sequence[ActionRow]) -> list[PostingFault]:
    """Every breach of a rule; a deadlock only if all other rules are kept."""
    wanted = _wanted(pipeline)
    found = [
        *_unknown(rows, wanted),
        *_repeated(rows, wanted),
        *_misplaced(rows),
        *_unmatched(rows, wanted),
    ]
    return found or list(_stuck(pipeline, rows, wanted))


class _Ends(NamedTuple):
    """The two ends of a transfer, and their devices."""

    send: Action
    receive: Action
    source: int
    target: int


def _wanted(pipeline: Pipeline) -> dict[Action, _Ends]:
    """Every post that must be there -> its transfer.

    No gradient goes to a stage that runs no backward.
    """
    (hosts,) = pipeline.hosts
    has_backward = existing_kinds(pipeline)[OpKind.B]
    found: dict[Action, _Ends] = {}
    for stage, (here, there) in enumerate(pairwise(hosts)):
        ways = ((ActionKind.SEND_F, ActionKind.RECV_F), (ActionKind.SEND_B, ActionKind.RECV_B))
        for microbatch in range(pipeline.batches if here != there else 0):
            for send, receive in ways[: 1 + has_backward[stage]]:
                ends = (stage, here), (stage + 1, there)
                (sender, source), (receiver, target) = ends[:: 1 if send == _SENDS[0] else -1]
                post = Action(send, sender, microbatch), Action(receive, receiver, microbatch)
                found |= dict.fromkeys(post, _Ends(*post, source, target))
    return found


def _device(post: Action, ends: _Ends) -> int:
    return ends.source if post == ends.send else ends.target


def _posts(row: ActionRow) -> Iterator[Action]:
    for cell in row:
        for action in cell:
            if action.kind in POSTS:
                yield action


def _unknown(rows: Sequence[ActionRow], wanted: dict[Action, _Ends]) -> Iterator[PostingFault]:
    for device, row in enumerate(rows):
        for post in _posts(row):
            if post not in wanted:
                yield PostingFault(
                    PostingRule.UNKNOWN, device, f"{post} is no end of a transfer between devices"
                )
            elif _device(post, wanted[post]) != device:
                where = f"its stage sits on device {_device(post, wanted[post])}"
                yield PostingFault(PostingRule.UNKNOWN, device, f"{post}: {where}")


def _repeated(rows: Sequence[ActionRow], wanted: dict[Action, _Ends]) -> Iterator[PostingFault]:
    count = Counter(post for row in rows for post in _posts(row))
    for post, ends in wanted.items():
        if count[post] != 1:
            times = "is missing" if not count[post] else f"is posted {count[post]} times"
            yield PostingFault(PostingRule.ONCE, _device(post, ends), f"{post} {times}")


def _misplaced(rows: Sequence[ActionRow]) -> Iterator[PostingFault]:
    for device, row in enumerate(rows):
        place = {action: number for number, cell in enumerate(row) for action in cell}
        for action, number in place.items():
            if action.kind not in _HANDED:
                continue
            send, receive = (action._replace(kind=kind) for kind in _HANDED[action.kind][1:])
            if place.get(send, number) < number:
                yield PostingFault(PostingRule.AFTER, device, f"{send} stands before {action}")
            if place.get(receive, number) > number:
                yield PostingFault(PostingRule.BEFORE, device, f"{receive} stands behind {action}")


def _queues(
    rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
) -> dict[tuple[int, int], tuple[list[_Ends], list[_Ends]]]:
    """Per pair of devices, the transfers that each of the two posts, in order."""
    found: dict[tuple[int, int], tuple[list[_Ends], list[_Ends]]] = {}
    for device, row in enumerate(rows):
        for post in _posts(row):
            ends = wanted.get(post)
            if ends is not None and _device(post, ends) == device:
                pair = (min(ends.source, ends.target), max(ends.source, ends.target))
                found.setdefault(pair, ([], []))[pair.index(device)].append(ends)
    return found


def _unmatched(rows: Sequence[ActionRow], wanted: dict[Action, _Ends]) -> Iterator[PostingFault]:
    for pair, (mine, theirs) in sorted(_queues(rows, wanted).items()):
        for place, (one, other) in enumerate(zip_longest(mine, theirs)):
            if one != other:
                shown = ["nothing" if ends is None else str(ends.send) for ends in (one, other)]
                yield PostingFault(
                    PostingRule.ORDER,
                    pair[0],
                    f"transfer {place} of its queue with device {pair[1]} is that of {shown[0]}, "
                    f"and of {shown[1]} there{_effect(pair, one, other)}",
                )
                break


def _effect(pair: tuple[int, int], one: _Ends | None, other: _Ends | None) -> str:
    """What two devices do that post different transfers at one place of their queue."""
    if one is None or other is None:
        return ""  # the missing post is a fault of its own
    first, second = pair
    here = one.send if one.source == first else one.receive
    there = other.send if other.source == second else other.receive
    sends = [post.kind in _SENDS for post in (here, there)]
    if sends[0] == sends[1]:
        return (
            f"; both wait forever (deadlock): device {first} at {here}, device {second} at {there}"
        )
    send, receive = (here, there) if sends[0] else (there, here)
    return f"; {receive} would get the tensor of {send}"


def _stuck(
    pipeline: Pipeline, rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
) -> Iterator[PostingFault]:
    """Run the order without times, as far as it gets; every device that does not end is named.

    Operations end and transfers arrive as soon as nothing is missing.
    """
    queues = [deque(mine) for mine, _ in _queues(rows, wanted).values()]
    left = [deque(row) for row in rows]
    done: set[Action] = set()
    """Operations that have ended, and receives that have arrived."""
    posted: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for cells in left:
            while cells and all(_ready(pipeline, action, wanted, done) for action in cells[0]):
                for action in cells.popleft():
                    (posted if action.kind in POSTS else done).add(action)
                moved = True
        for queue in queues:
            while queue and {queue[0].send, queue[0].receive} <= posted:
                done.add(queue.popleft().receive)
                moved = True
    for device, cells in enumerate(left):
        if cells:
            waiting = ", ".join(map(str, cells[0]))
            yield PostingFault(PostingRule.DEADLOCK, device, f"{waiting} waits forever")


def _ready(
    pipeline: Pipeline, action: Action, wanted: dict[Action, _Ends], done: set[Action]
) -> bool:
    """Whether the input of an operation is there; other actions need none."""
    if action.kind not in _HANDED:
        return True
    step, _, receives = _HANDED[action.kind]
    source, receive = action.stage - step, action._replace(kind=receives)
    if not 0 <= source < pipeline.num_stages:
        return True
    if receive in wanted:
        return receive in done
    kinds = (ActionKind.F,) if step == 1 else (ActionKind.B, ActionKind.BW)
    return any(Action(kind, source, action.microbatch) in done for kind in kinds)
