"""Data between devices: delays, or transfers that links carry one at a time.

The rules of the modes are in `ppopt.problem.link_mode`. With streams, all that two devices send
each other, both ways, runs on one link. It is best to post everything as early as the order of its
link allows, so a transfer starts at the earliest when its data exists. With exclusive links, each
direction has its own link. That blocking transfers occupy devices is no part of the instance:
methods that read the operations of resources refuse `Trait.BLOCKING`.
"""

from __future__ import annotations

from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import TransferKind
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
    LinkMode.BLOCKING: ((Criterion.ARRIVAL, Criterion.MICROBATCH),),
}
"""How links serve a strategy that gives no order of transfers: the best result counts."""


def add_transfer(
    draft: InstanceDraft, before: int, after: int, delay: int, kind: TransferKind
) -> None:
    """Add that a class gets data from another: after a delay, or by a link that is a resource."""
    sender, carried = draft.classes[before], len(draft.classes)
    link = draft.links.get((sender.resource, draft.classes[after].resource))
    if link is None:
        draft.precedence.append(Precedence(before, after, delay))
        return
    mode = Mode(kind, delay)
    draft.classes.append(OperationClass(*sender[:3], link, (mode,), sender.size))
    draft.precedence += [Precedence(before, carried, 0), Precedence(carried, after, 0)]
