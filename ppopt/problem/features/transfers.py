"""What crosses from device to device: delays, or transfers that links carry one at a time.

The rules of the modes are in `ppopt.problem.link_mode`. If links are streams, all that two
devices hand each other, both ways, runs on one link. Posting everything as early as the order of
its link lets is best, so a transfer starts at the earliest when what it carries is there. If
they are exclusive, each way has its own link.
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation_classes import (
    Criterion,
    DispatchRule,
    Handover,
    Mode,
    OperationClass,
    Precedence,
)
from ppopt.problem.resources import Resource


class Links(NamedTuple):
    """What the links of a mode are."""

    one_way: bool
    """Whether each way between two devices has a link of its own."""
    dispatch_rules: tuple[DispatchRule, ...]
    """How they serve a strategy that gives no order: the best is kept."""


LINKS = {
    LinkMode.STREAMS: Links(
        one_way=False, dispatch_rules=((Criterion.ARRIVAL,), (Criterion.NEED,))
    ),
    LinkMode.EXCLUSIVE: Links(
        one_way=True, dispatch_rules=((Criterion.ARRIVAL, Criterion.MICROBATCH),)
    ),
}


def add_delays(draft: InstanceDraft) -> None:
    """Add that data arrive after their delay, whatever else is on the way."""
    draft.precedence += [
        Precedence(before, after, delay) for before, after, delay, _ in draft.handovers
    ]


def add_transfers(draft: InstanceDraft) -> None:
    """Add the links of a pipeline and their transfers; where links are delays there are none."""
    if not draft.pipeline.has_links:
        add_delays(draft)
        return
    links = LINKS[draft.pipeline.link_mode]
    ends = [_ends(draft, handover, links) for handover in draft.handovers]
    pairs = sorted({pair for pair in ends if pair[0] != pair[1]})
    number = {pair: len(draft.resources) + place for place, pair in enumerate(pairs)}
    draft.resources += [Resource(ResourceKind.LINK, pair, links.one_way) for pair in pairs]
    draft.dispatch_rules = links.dispatch_rules
    for (before, after, delay, kind), pair in zip(draft.handovers, ends, strict=True):
        if pair not in number:
            draft.precedence.append(Precedence(before, after, delay))
            continue
        sender, carried = draft.classes[before], len(draft.classes)
        draft.classes.append(
            OperationClass(
                *(sender.stage, sender.route, sender.slice),
                *(number[pair], (Mode(kind, delay),), sender.size),
            )
        )
        draft.precedence += [Precedence(before, carried, 0), Precedence(carried, after, 0)]


def _ends(draft: InstanceDraft, handover: Handover, links: Links) -> tuple[int, int]:
    """The devices of a link: sender and receiver, or the smaller first where it goes both ways."""
    source, target = (draft.classes[number].device for number in handover[:2])
    if links.one_way:
        return source, target
    return min(source, target), max(source, target)
