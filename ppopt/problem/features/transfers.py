"""What crosses from device to device: delays, or transfers that links carry one at a time.

The rules of the modes are in `ppopt.problem.link_mode`. If links are streams, all that two
devices hand each other, both ways, runs on one link. Posting everything as early as the order of
its link lets is best, so a transfer starts at the earliest when what it carries is there. If
they are exclusive, each way has its own link.
"""

from __future__ import annotations

from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation_classes import (
    Criterion,
    DispatchRule,
    Mode,
    OperationClass,
    Precedence,
)

DISPATCH_RULES: dict[LinkMode, tuple[DispatchRule, ...]] = {
    LinkMode.STREAMS: ((Criterion.ARRIVAL,), (Criterion.NEED,)),
    LinkMode.EXCLUSIVE: ((Criterion.ARRIVAL, Criterion.MICROBATCH),),
}
"""How the links of a mode serve a strategy that gives no order: the best is kept."""


def add_delays(draft: InstanceDraft) -> None:
    """Add that data arrive after their delay, whatever else is on the way."""
    draft.precedence += [
        Precedence(before, after, delay) for before, after, delay, _ in draft.handovers
    ]


def add_transfers(draft: InstanceDraft) -> None:
    """Add the transfers of a pipeline; where links are delays there are none."""
    if not draft.pipeline.has_links:
        add_delays(draft)
        return
    links = draft.resource_ids(ResourceKind.LINK)
    draft.dispatch_rules = DISPATCH_RULES[draft.pipeline.link_mode]
    for before, after, delay, kind in draft.handovers:
        sender, carried = draft.classes[before], len(draft.classes)
        ends = (sender.device, draft.classes[after].device)
        if ends[0] == ends[1]:
            draft.precedence.append(Precedence(before, after, delay))
            continue
        draft.classes.append(
            OperationClass(
                *(sender.stage, sender.route, sender.slice),
                *(links[ends], (Mode(kind, delay),), sender.size),
            )
        )
        draft.precedence += [Precedence(before, carried, 0), Precedence(carried, after, 0)]
