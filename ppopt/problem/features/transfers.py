"""Data between devices: delays, or transfers that links carry one at a time.

The rules of the modes are in `ppopt.problem.link_mode`. With streams, all that two devices send
each other, both ways, runs on one link. It is best to post everything as early as the order of its
link allows, so a transfer starts at the earliest when its data exists. With exclusive links, each
direction has its own link. That blocking transfers occupy devices is no part of the instance:
methods that read the operations of resources refuse `Trait.BLOCKING`.
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
from ppopt.problem.traits import Trait

DISPATCH_RULES: dict[LinkMode, tuple[DispatchRule, ...]] = {
    LinkMode.STREAMS: ((Criterion.ARRIVAL,), (Criterion.NEED,)),
    LinkMode.EXCLUSIVE: ((Criterion.ARRIVAL, Criterion.MICROBATCH),),
    LinkMode.BLOCKING: ((Criterion.ARRIVAL, Criterion.MICROBATCH),),
}
"""How links serve a strategy that gives no order of transfers: the best result counts."""


def add_delays(draft: InstanceDraft) -> None:
    """Add that data arrives after its delay, whatever other data is sent."""
    draft.precedence += [
        Precedence(before, after, delay) for before, after, delay, _ in draft.handovers
    ]


def add_transfers(draft: InstanceDraft) -> None:
    """Add the transfers of a pipeline; if links are delays, there are none."""
    draft.dispatch_rules = DISPATCH_RULES.get(draft.pipeline.link_mode, ())
    if Trait.LINKS not in draft.costs.traits:
        add_delays(draft)
        return
    links = draft.resource_ids(ResourceKind.LINK)
    for before, after, delay, kind in draft.handovers:
        sender, carried = draft.classes[before], len(draft.classes)
        ends = (sender.resource, draft.classes[after].resource)
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
