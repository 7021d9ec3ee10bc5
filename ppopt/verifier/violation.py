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
    device, with one start and one end; no third one shares their number."""
    DURATION = "duration"
    """end - start is the time of the kind and the stage, recompute included; in a pair, that of the
    pair (the sum of both less the smaller of what F and BW of either stage save, but no less than
    the longer)."""
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
    transfer between the two; nothing else is. Where they are delays there are none."""
    TRANSFER_TIME = "transfer-time"
    """A transfer takes the p2p time of its boundary and way, and starts at 0 or later."""
    SEND = "send-order"
    """A transfer starts at or after the end of the operation whose result it carries."""
    RECEIVE = "receive-order"
    """An operation starts at or after the end of the transfer that brings its input."""
    LINK = "link-overlap"
    """A link carries one transfer at a time; the link mode says what shares one."""
    AUXILIARY = "auxiliary-operation"
    """Around the microbatches a step has UNSHARD and GRADIENT_SYNC of every stage, and OPTIMIZER of
    every device, each once and on its device, as far as the pipeline gives them. Every microbatch
    has OFFLOAD and RELOAD at the stages that move memory to the host. There is nothing else."""
    AUXILIARY_TIME = "auxiliary-time"
    """An auxiliary operation takes its time (OPTIMIZER: that of all stages of the device), and
    starts at 0 or later."""
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
    """Between a device and its host one OFFLOAD runs at a time, and one RELOAD; where `host_link`
    is shared, one of both."""
    OVERLAP = "overlap"
    """A device computes one operation, or one pair, at a time."""
    MEMORY = "memory-limit"
    """A device never holds more than its limit. It holds static memory, activations (all that F
    keeps, from the start of B on the rest too), changes by B, the workspace of what runs, and what
    BW recomputes while it runs. It holds gathered weights from the start of UNSHARD to the end of
    GRADIENT_SYNC. It does not hold what OFFLOAD has moved, from its end to the start of RELOAD."""
    CLAIM = "claim"
    """A figure stated with the schedule is the one recomputed from it."""


MOST_LISTED = 1000
"""Most violations of one rule that are listed; one more entry counts the rest."""


@dataclass(frozen=True)
class Violation:
    """One breach of one rule; `str(violation)` is one line, in the user's units."""

    rule: Rule
    ops: tuple[Op, ...]
    """The operations concerned, the faulty one first; none where no operation can be named."""
    device: int | None
    """Device of the fault; None if the fault has no place."""
    time: int | None
    """Time of the fault in ticks; None if the fault has no time."""
    message: str
    """What is wrong, on one line, without the name of the rule."""
    count: int = 1
    """Violations that it stands for; above 1 if it ends a list that is cut."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def more(rule: Rule, count: int) -> Iterator[Violation]:
    """One violation that stands for `count` of a rule that are not listed; none for 0 or less."""
    if count > 0:
        yield Violation(rule, (), None, None, f"{count} more, not listed", count)


def in_order(violations: Iterable[Violation]) -> list[Violation]:
    """Sort by rule, device, time, operations; of each rule at most `MOST_LISTED` are listed."""
    listed: dict[Rule, list[Violation]] = defaultdict(list)
    left: Counter[Rule] = Counter()
    for violation in violations:
        same = listed[violation.rule]
        if violation.count == 1 and len(same) < MOST_LISTED:
            same.append(violation)
        else:
            left[violation.rule] += violation.count
    return [
        violation
        for rule in Rule
        for violation in (*sorted(listed[rule], key=_key), *more(rule, left[rule]))
    ]


def _key(violation: Violation) -> tuple[object, ...]:
    """What has no place, or no time, comes first."""
    place = ((number is not None, number or 0) for number in (violation.device, violation.time))
    return *place, violation.ops, violation.message
