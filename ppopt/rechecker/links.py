"""Transfers on links that carry one at a time, stated a second time from `ppopt.problem.link_mode`.

A transfer starts once what it carries has ended, takes the p2p time, and ends before the operation
that needs it starts. Those of one link do not overlap: a link is a pair of devices (`streams`), or
one way between two devices (`exclusive`).

Microbatches in order, as of operations (`ppopt.rechecker.feasibility_model`): transfers of one
kind, stage and route are of one length and on one link. The k-th of them to start is that of the
k-th microbatch: when it starts, k of the operations whose results they carry have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import device_of


class Sent(NamedTuple):
    """One transfer."""

    sender: Op
    receiver: Op
    link: Collection[int]
    """Its devices; in the order of the transfer if links are directed."""
    time: int
    """Ticks."""


def sent(claim: Claim, operations: Iterable[Op]) -> Iterator[Sent]:
    """The transfers of the results of operations, of one kind of backward, in their order."""
    pipeline, ticks = claim.pipeline, claim.pipeline.ticks
    one_way = pipeline.link_mode is LinkMode.EXCLUSIVE
    for op in operations:
        forward = op.kind is OpKind.F
        receiving_stage = op.stage + (1 if forward else -1)
        if op.kind is OpKind.W or not 0 <= receiving_stage < pipeline.num_stages:
            continue
        if not claim.has(op.kind, receiving_stage):
            continue
        receiver = op._replace(stage=receiving_stage)
        source, target = device_of(claim, op), device_of(claim, receiver)
        if source != target:
            link = (source, target) if one_way else frozenset((source, target))
            times = (ticks.down if forward else ticks.up)[pipeline.route(op.microbatch)]
            yield Sent(op, receiver, link, times[min(op.stage, receiving_stage)])
