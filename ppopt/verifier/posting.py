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

_SENDS = {ActionKind.F: ActionKind.SEND_F, ActionKind.B: ActionKind.SEND_B}
_SENDS[ActionKind.BW] = ActionKind.SEND_B
_RECEIVES = {ActionKind.F: ActionKind.RECV_F, ActionKind.B: ActionKind.RECV_B}
_RECEIVES[ActionKind.BW] = ActionKind.RECV_B
_WAYS = (
    (ActionKind.SEND_F, ActionKind.RECV_F),
    (ActionKind.SEND_B, ActionKind.RECV_B),
)
_STEP = {ActionKind.F: 1, ActionKind.B: -1, ActionKind.BW: -1}
"""From the stage of an operation to the one that it hands its result."""


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
        *_unmatched(pipeline, rows, wanted),
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
        if here == there:
            continue
        ways = _WAYS[: 2 if has_backward[stage] else 1]
        for microbatch in range(pipeline.batches):
            ends = (stage, here), (stage + 1, there)
            for send, receive in ways:
                down = send is ActionKind.SEND_F
                (sender, source), (receiver, target) = ends if down else ends[::-1]
                transfer = _Ends(
                    Action(send, sender, microbatch),
                    Action(receive, receiver, microbatch),
                    *(source, target),
                )
                found[transfer.send] = found[transfer.receive] = transfer
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
            step = _STEP.get(action.kind)
            if step is None:
                continue
            send = action._replace(kind=_SENDS[action.kind])
            if place.get(send, number) < number:
                yield PostingFault(PostingRule.AFTER, device, f"{send} stands before {action}")
            receive = action._replace(kind=_RECEIVES[action.kind])
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


def _unmatched(
    _: Pipeline, rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
) -> Iterator[PostingFault]:
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
    sends = [post.kind in _SENDS.values() for post in (here, there)]
    if sends[0] == sends[1]:
        return (
            f"; both wait forever (deadlock): device {first} at {here}, device {second} at {there}"
        )
    send, receive = (here, there) if sends[0] else (there, here)
    return f"; {receive} would get the tensor of {send}"


def _stuck(
    pipeline: Pipeline, rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
) -> Iterator[PostingFault]:
    """Run the order without times, as far as it gets; every device that does not end is named."""
    run = _Run(pipeline, rows, wanted)
    run.to_the_end()
    for device, row in enumerate(rows):
        if run.reached[device] < len(row):
            waiting = ", ".join(map(str, row[run.reached[device]]))
            yield PostingFault(PostingRule.DEADLOCK, device, f"{waiting} waits forever")


class _Run:
    """A run without times: operations end and transfers arrive as soon as nothing is missing."""

    def __init__(
        self, pipeline: Pipeline, rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
    ) -> None:
        self.pipeline, self.rows, self.wanted = pipeline, rows, wanted
        self.queues = {pair: deque(mine) for pair, (mine, _) in _queues(rows, wanted).items()}
        self.reached = [0 for _ in rows]
        self.done: set[Action] = set()
        """Operations that have ended, posts that have been reached, receives that have arrived."""
        self.posted: set[Action] = set()

    def to_the_end(self) -> None:
        moved = True
        while moved:
            moved = any([*map(self._device, range(len(self.rows))), *map(self._link, self.queues)])

    def _device(self, device: int) -> bool:
        """Run a device as far as it gets; whether it moved."""
        row, before = self.rows[device], self.reached[device]
        while self.reached[device] < len(row):
            cell = row[self.reached[device]]
            if not all(map(self._ready, cell)):
                break
            for action in cell:
                (self.posted if action.kind in POSTS else self.done).add(action)
            self.reached[device] += 1
        return self.reached[device] > before

    def _link(self, pair: tuple[int, int]) -> bool:
        """Carry what a link can; whether it carried anything."""
        queue, moved = self.queues[pair], False
        while queue and {queue[0].send, queue[0].receive} <= self.posted:
            self.done.add(queue.popleft().receive)
            moved = True
        return moved

    def _ready(self, action: Action) -> bool:
        """Whether the input of an operation is there; other actions need none."""
        step = _STEP.get(action.kind)
        if step is None:
            return True
        source = action.stage - step
        if not 0 <= source < self.pipeline.num_stages:
            return True
        receive = action._replace(kind=_RECEIVES[action.kind])
        if receive in self.wanted:
            return receive in self.done
        kinds = (ActionKind.F,) if step == 1 else (ActionKind.B, ActionKind.BW)
        return any(Action(kind, source, action.microbatch) in self.done for kind in kinds)
