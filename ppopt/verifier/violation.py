"""The rules of a schedule, and the violation of one of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ppopt.problem.operation import Op


class Rule(StrEnum):
    """The rules of a schedule, in the order in which their violations are listed.

    With F, B, W, BW of stage s and microbatch j written F(s,j) and so on.
    """

    UNKNOWN = "unknown-operation"
    """Kind, stage, microbatch, slice and device exist in the pipeline."""
    DUPLICATE = "duplicate"
    """An operation runs once; BW excludes B and W."""
    MISSING = "missing"
    """Every stage runs every slice of every microbatch: F, and either BW or both B and W."""
    DEVICE = "wrong-device"
    """An operation runs on the device where its microbatch's route places its stage."""
    PAIR = "pair"
    """Two operations that run as one are an F and a B or BW of different microbatches, on one
    device, with one start and one end; no third operation has their pair number."""
    DURATION = "duration"
    """end - start is the time of the kind and the stage, recompute included; in a pair, that of the
    pair (the sum of both minus the smaller of the two stages' savings, but no less than the
    longer)."""
    START = "start"
    """Nothing starts before 0 (or lies beyond the ticks that stay exact)."""
    FORWARD = "forward-order"
    """F(s,j) starts at or after end F(s-1,j) + p2p between their devices."""
    BACKWARD = "backward-order"
    """B(s,j) or BW(s,j) starts at or after end B/BW(s+1,j) + p2p, and after end F(s,j)."""
    WEIGHT = "weight-order"
    """W(s,j) starts at or after end B(s,j)."""
    SLICE = "slice-order"
    """F of slice q of a microbatch starts at or after the end of F of slice q - 1 at that stage, B
    or BW of slice q at or after the end of that of slice q + 1."""
    TRANSFER = "transfer"
    """If links are resources, every activation and gradient that goes to another device is one
    transfer between the two; there are no other transfers. If links are delays there are none."""
    TRANSFER_TIME = "transfer-time"
    """A transfer takes the p2p time of its boundary and direction, and starts at 0 or later."""
    SEND = "send-order"
    """A transfer starts at or after the end of the operation whose result it carries."""
    RECEIVE = "receive-order"
    """An operation starts at or after the end of the transfer that brings its input."""
    LINK = "link-overlap"
    """A link carries one transfer at a time; the link mode says which transfers share a link."""
    AUXILIARY = "auxiliary-operation"
    """A step has UNSHARD and GRADIENT_SYNC of every stage, and OPTIMIZER of every device, each once
    and on its device, if the pipeline states them. Every microbatch has OFFLOAD and RELOAD at the
    stages that offload. There are no other auxiliary operations."""
    AUXILIARY_TIME = "auxiliary-time"
    """An auxiliary operation takes its stated time (OPTIMIZER: the sum over the device's stages),
    and starts at 0 or later."""
    UNSHARD = "unshard-order"
    """UNSHARD ends before the first F of its stage starts."""
    GRADIENT_SYNC = "gradient-sync-order"
    """GRADIENT_SYNC starts at or after the end of the last operation of its stage."""
    OPTIMIZER = "optimizer-order"
    """OPTIMIZER starts at or after the end of GRADIENT_SYNC, or of the last W or BW, of its stages;
    with a barrier, of all stages."""
    COLLECTIVE = "collective-overlap"
    """The collective queue of a device runs one operation at a time."""
    OFFLOAD = "offload-order"
    """OFFLOAD(s,j) starts at or after end F(s,j)."""
    RELOAD = "reload-order"
    """RELOAD(s,j) starts at or after end OFFLOAD(s,j), and ends before B(s,j) or BW(s,j) starts."""
    HOST = "host-overlap"
    """Between a device and its host one OFFLOAD runs at a time, and one RELOAD; if `host_link` is
    shared, one of both."""
    OVERLAP = "overlap"
    """A device computes one operation, or one pair, at a time."""
    MEMORY = "memory-limit"
    """The live memory of a device never exceeds its limit. Live are static memory, activations
    (what F keeps, and from the start of B also the rest), changes by B, the workspace of running
    operations, and what BW recomputes while it runs. Gathered weights are live from the start of
    UNSHARD to the end of GRADIENT_SYNC. Offloaded memory is not live from the end of OFFLOAD to the
    start of RELOAD."""
    CLAIM = "claim"
    """A figure stated with the schedule is the one recomputed from it."""


MAX_LISTED = 1000
"""Maximum number of violations of one rule that are listed; one further entry counts the rest."""


@dataclass(frozen=True)
class Violation:
    """One breach of one rule; `str(violation)` is one line, in the user's units."""

    rule: Rule
    ops: tuple[Op, ...]
    """The operations concerned, the faulty one first; empty if none can be named."""
    device: int | None
    """Device of the fault; None if it has none."""
    time: int | None
    """Time of the fault in ticks; None if it has none."""
    message: str
    """One line that says what is wrong, without the name of the rule."""
    count: int = 1
    """Number of violations that this entry counts; above 1 at the end of a list that is cut."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def unlisted_violations(rule: Rule, count: int) -> Iterator[Violation]:
    """One entry for `count` violations of a rule that are not listed; none if count <= 0."""
    if count > 0:
        yield Violation(rule, (), None, None, f"{count} more, not listed", count)


def in_order(violations: Iterable[Violation]) -> list[Violation]:
    """Sort by rule, device, time, operations; at most `MAX_LISTED` of each rule are listed."""
    listed: dict[Rule, list[Violation]] = defaultdict(list)
    unlisted: Counter[Rule] = Counter()
    for violation in violations:
        same = listed[violation.rule]
        if violation.count == 1 and len(same) < MAX_LISTED:
            same.append(violation)
        else:
            unlisted[violation.rule] += violation.count
    return [
        violation
        for rule in Rule
        for violation in (
            *sorted(listed[rule], key=_key),
            *unlisted_violations(rule, unlisted[rule]),
        )
    ]


def _key(violation: Violation) -> tuple[object, ...]:
    """Sort key; violations without device or time come first."""
    location = ((value is not None, value or 0) for value in (violation.device, violation.time))
    return *location, violation.ops, violation.message
