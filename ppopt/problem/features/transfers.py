"""What crosses from device to device: delays, or transfers that links carry one at a time.

The rules of the modes are in `ppopt.problem.link_mode`. Where links are streams, all that two
devices hand each other, both ways, runs on one link. Posting everything as early as the order of
its link lets is best, so a transfer starts at the earliest when what it carries is there.
"""

from __future__ import annotations

from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.operation_classes import (
    Criterion,
    Mode,
    OperationClass,
    Precedence,
    Resource,
    ResourceKind,
)


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
    ends = [_ends(draft, handover.before, handover.after) for handover in draft.handovers]
    pairs = sorted({pair for pair in ends if pair[0] != pair[1]})
    number = {pair: len(draft.resources) + place for place, pair in enumerate(pairs)}
    draft.resources += [Resource(ResourceKind.LINK, pair) for pair in pairs]
    draft.dispatch_rules = ((Criterion.ARRIVAL,), (Criterion.NEED,))
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


def _ends(draft: InstanceDraft, before: int, after: int) -> tuple[int, int]:
    """The devices of two classes, the smaller first."""
    one, other = (draft.classes[number].device for number in (before, after))
    return min(one, other), max(one, other)
