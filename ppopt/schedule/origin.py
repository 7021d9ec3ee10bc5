"""The origin of a schedule: what made it, what is claimed of it, and how to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective

SEARCHED = "optimal"
"""Strategy of a schedule that a search found."""


class Argument(StrEnum):
    """Kinds of argument for a lower bound, or for infeasibility."""

    WORK = "work"
    """The one device named must wait for its first input (makespan), then do all its work."""
    ENDS = "ends"
    """The same, and idle at its two ends because memory holds too little to do there."""
    ROUND_TRIP = "round-trip"
    """A microbatch goes from the one device named to the last stage and back; the device works on
    those before it until it goes, and on those behind it once it is back."""
    DEVICES = "devices"
    """The devices named need that long, all others taken as delays."""
    SEARCH = "search"
    """All orders were searched; no devices are named."""
    TRANSFERS = "transfers"
    """The same, with all orders of transfers on links that carry one at a time."""
    PARTITIONS = "partitions"
    """No partition of the model's layers into stages has a smaller value; no devices are named."""
    PARTITIONS_RECOMPUTE = "partitions-recompute"
    """No partition with any choice of recompute has a smaller value; no devices are named."""
    RECOMPUTE = "recompute"
    """No choice of recompute has a smaller value; no devices are named."""
    OFFLOAD = "offload"
    """No choice of offload has a smaller value; no devices are named."""
    RECOMPUTE_OFFLOAD = "recompute-offload"
    """No choice of recompute and offload has a smaller value; no devices are named."""
    PLACEMENTS = "placements"
    """No placement of the stages on the devices has a smaller value; no devices are named."""
    ORDERS = "orders"
    """No order of the microbatches has a smaller value; no devices are named."""
    MEMORY = "memory"
    """No schedule is within the memory limits; no devices are named."""


@dataclass(frozen=True)
class Certificate:
    """Why no schedule is below a bound, or why none exists: `ppopt.recheck` checks it again."""

    argument: Argument
    devices: tuple[int, ...] = ()
    """The devices that the argument speaks of, ascending."""


@dataclass(frozen=True, kw_only=True)
class HintRecord:
    """The schedule that a search was given to start from; figures in the user's unit."""

    value: Fraction
    """Its objective."""
    gain: Fraction | None = None
    """Share by which the result is better, (hint - result) / hint; None without a result."""
    fits_limit: bool
    peak_memory: tuple[Fraction, ...]
    """Per device."""
    notes: tuple[str, ...]
    """What was changed to start from it, in words."""


@dataclass(frozen=True)
class Origin:
    """What made a schedule and what is claimed of it; None if nothing is stated.

    Nothing here is trusted: `ppopt.verify` compares it with the operations, and `ppopt.recheck`
    checks the bound.
    """

    strategy: str | None = None
    """Name of the strategy; SEARCHED for the result of a search."""
    objective: Objective | None = None
    """What the schedule was made for; None: the makespan."""
    status: str | None = None
    """How the search ended: `optimal` or `feasible`, if a file says no more than it may."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Options of the strategy, given or its own choice."""
    backward_kind: BackwardKind | None = None
    """The kind of backwards of the schedules that the bound speaks of; None: split."""
    value: Fraction | None = None
    """Objective of the schedule, in the user's unit."""
    lower_bound: Fraction | None = None
    """No schedule of the search space is below it, in the user's unit."""
    gap: Fraction | None = None
    """(value - lower_bound) / value."""
    proof: str | None = None
    """The argument behind the bound, in words."""
    certificate: Certificate | None = None
    seed: int | None = None
    workers: int | None = None
    time_limit: float | None = None
    """Seconds that the search was given."""
    versions: Mapping[str, str] | None = None
    """Versions of the programs that made it."""
    hint: HintRecord | None = None
    """The schedule that the search started from, where one was given."""
    unknown_members: Mapping[str, Any] = field(default_factory=dict)
    """Further members of a file's origin: kept for writing it again, never interpreted."""
    from_file: bool = field(default=False, compare=False)
    """Whether it was read from a file: nothing it claims was proved in this process."""
