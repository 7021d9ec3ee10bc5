"""The rules of a communication order: which transfers a device posts between which operations.

Times are not checked here; `ppopt.verifier.operation_rules` checks those of the transfers. The
verifier of the timed schedule checks that the operations are complete.
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
from ppopt.verifier.costs import existing_kinds

_HANDED = {
    ActionKind.F: (1, ActionKind.SEND_F, ActionKind.RECV_F),
    ActionKind.B: (-1, ActionKind.SEND_B, ActionKind.RECV_B),
    ActionKind.BW: (-1, ActionKind.SEND_B, ActionKind.RECV_B),
}
"""Per kind of operation: the step to the stage that needs its result, the kind of post that sends
the result, and the kind of post that receives its input."""
_SENDS = (ActionKind.SEND_F, ActionKind.SEND_B)


class PostingRule(StrEnum):
    """The rules of a communication order."""

    UNKNOWN = "unknown-post"
    """A post is one end of a transfer between devices, on the device of its stage."""
    ONCE = "posted-once"
    """Every transfer is sent once and received once."""
    AFTER = "send-behind"
    """A send comes after the operation whose result it carries."""
    BEFORE = "receive-before"
    """A receive comes before the operation that needs it."""
    ORDER = "matching-order"
    """Two devices post the transfers between them in one order."""
    DEADLOCK = "deadlock"
    """No operations and transfers wait for each other in a cycle."""


class PostingFault(NamedTuple):
    """One breach of one rule; `str(fault)` is one line."""

    rule: PostingRule
    device: int
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: device {self.device}: {self.message}"


def posting_faults(pipeline: Pipeline, rows: Sequence[ActionRow]) -> list[PostingFault]:
    """Every breach of a rule; deadlocks are checked only if no other rule is broken."""
    wanted = _wanted(pipeline)
    faults = [
        *_unknown(rows, wanted),
        *_repeated(rows, wanted),
        *_misplaced(rows),
        *_unmatched(rows, wanted),
    ]
    return faults or list(_stuck(pipeline, rows, wanted))


class _Ends(NamedTuple):
    """The two ends of a transfer, and their devices."""

    send: Action
    receive: Action
    source: int
    target: int


def _wanted(pipeline: Pipeline) -> dict[Action, _Ends]:
    """Every required post, mapped to its transfer.

    No gradient goes to a stage that runs no backward.
    """
    (hosts,) = pipeline.hosts
    has_backward = existing_kinds(pipeline)[OpKind.B]
    transfers: dict[Action, _Ends] = {}
    for stage, (lower_device, upper_device) in enumerate(pairwise(hosts)):
        ways = ((ActionKind.SEND_F, ActionKind.RECV_F), (ActionKind.SEND_B, ActionKind.RECV_B))
        for microbatch in range(pipeline.batches if lower_device != upper_device else 0):
            for send, receive in ways[: 1 + has_backward[stage]]:
                ends = (stage, lower_device), (stage + 1, upper_device)
                (sender, source), (receiver, target) = ends[:: 1 if send == _SENDS[0] else -1]
                post = Action(send, sender, microbatch), Action(receive, receiver, microbatch)
                transfers |= dict.fromkeys(post, _Ends(*post, source, target))
    return transfers


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
        positions = {action: position for position, cell in enumerate(row) for action in cell}
        for action, position in positions.items():
            if action.kind not in _HANDED:
                continue
            send, receive = (action._replace(kind=kind) for kind in _HANDED[action.kind][1:])
            if positions.get(send, position) < position:
                yield PostingFault(PostingRule.AFTER, device, f"{send} stands before {action}")
            if positions.get(receive, position) > position:
                yield PostingFault(PostingRule.BEFORE, device, f"{receive} stands behind {action}")


def _queues(
    rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
) -> dict[tuple[int, int], tuple[list[_Ends], list[_Ends]]]:
    """Per pair of devices, the transfers that each of the two posts, in order."""
    queues: dict[tuple[int, int], tuple[list[_Ends], list[_Ends]]] = {}
    for device, row in enumerate(rows):
        for post in _posts(row):
            ends = wanted.get(post)
            if ends is not None and _device(post, ends) == device:
                pair = (min(ends.source, ends.target), max(ends.source, ends.target))
                queues.setdefault(pair, ([], []))[pair.index(device)].append(ends)
    return queues


def _unmatched(rows: Sequence[ActionRow], wanted: dict[Action, _Ends]) -> Iterator[PostingFault]:
    for pair, (first_queue, second_queue) in sorted(_queues(rows, wanted).items()):
        for position, (left, right) in enumerate(zip_longest(first_queue, second_queue)):
            if left != right:
                described = [
                    "nothing" if ends is None else str(ends.send) for ends in (left, right)
                ]
                yield PostingFault(
                    PostingRule.ORDER,
                    pair[0],
                    f"transfer {position} of its queue with device {pair[1]} is that of "
                    f"{described[0]}, and of {described[1]} there{_effect(pair, left, right)}",
                )
                break


def _effect(pair: tuple[int, int], left: _Ends | None, right: _Ends | None) -> str:
    """Effect of two different transfers at one position of the queue between two devices."""
    if left is None or right is None:
        return ""  # the missing post is a fault of its own
    first, second = pair
    first_post = left.send if left.source == first else left.receive
    second_post = right.send if right.source == second else right.receive
    sends = [post.kind in _SENDS for post in (first_post, second_post)]
    if sends[0] == sends[1]:
        return (
            f"; both wait forever (deadlock): device {first} at {first_post}, "
            f"device {second} at {second_post}"
        )
    send, receive = (first_post, second_post) if sends[0] else (second_post, first_post)
    return f"; {receive} would get the tensor of {send}"


def _stuck(
    pipeline: Pipeline, rows: Sequence[ActionRow], wanted: dict[Action, _Ends]
) -> Iterator[PostingFault]:
    """Run the order without times until nothing can proceed; reports every device that is not done.

    Operations end and transfers arrive as soon as their inputs exist.
    """
    queues = [deque(first_queue) for first_queue, _ in _queues(rows, wanted).values()]
    remaining = [deque(row) for row in rows]
    done: set[Action] = set()
    """Operations that have ended, and receives that have arrived."""
    posted: set[Action] = set()
    progressed = True
    while progressed:
        progressed = False
        for cells in remaining:
            while cells and all(_ready(pipeline, action, wanted, done) for action in cells[0]):
                for action in cells.popleft():
                    (posted if action.kind in POSTS else done).add(action)
                progressed = True
        for queue in queues:
            while queue and {queue[0].send, queue[0].receive} <= posted:
                done.add(queue.popleft().receive)
                progressed = True
    for device, cells in enumerate(remaining):
        if cells:
            waiting = ", ".join(map(str, cells[0]))
            yield PostingFault(PostingRule.DEADLOCK, device, f"{waiting} waits forever")


def _ready(
    pipeline: Pipeline, action: Action, wanted: dict[Action, _Ends], done: set[Action]
) -> bool:
    """Whether the input of an operation has arrived; other actions need none."""
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
