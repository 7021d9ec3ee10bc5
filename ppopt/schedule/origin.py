"""The origin of a schedule: its strategy or search, and the claims about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective

SEARCHED = "searched"
"""Strategy of a schedule that a search produced."""


def current_name(strategy: str) -> str:
    """Name of a strategy that may have an earlier name: `optimal` is `searched` today."""
    return SEARCHED if strategy == "optimal" else strategy


class Argument(StrEnum):
    """Kinds of argument for a lower bound, or for infeasibility."""

    WORK = "work"
    """The device named waits for its first input (makespan), then does all its work."""
    ENDS = "ends"
    """The same, and it is idle at both ends because memory limits the work there."""
    ROUND_TRIP = "round-trip"
    """A microbatch goes from the device named to the last stage and back; the device works on
    earlier microbatches before it goes, and on later ones after it is back."""
    MOVES = "moves"
    """The link between the device named and its host carries all moves of its activations."""
    DEVICES = "devices"
    """The devices named need that long, with all others as delays."""
    SEARCH = "search"
    """All orders, with all of the decisions named, were searched; no devices are named."""
    TRANSFERS = "transfers"
    """The same, with all orders of transfers on links that carry one at a time."""
    MEMORY = "memory"
    """No schedule is within the memory limits; no devices are named."""


@dataclass(frozen=True)
class Certificate:
    """The argument for a bound, or for infeasibility: `ppopt.recheck` checks it again."""

    argument: Argument
    devices: tuple[int, ...] = ()
    """The devices named by the argument, ascending."""
    decisions: Decisions = Decisions.NONE
    """Decisions of which it covers every combination."""


@dataclass(frozen=True, kw_only=True)
class HintRecord:
    """The schedule from which a search started; figures in the user's unit."""

    value: Fraction
    """Its objective."""
    gain: float | None = None
    """By which share the result has more throughput, hint / result - 1; None without a result."""
    fits_limit: bool
    peak_memory: tuple[Fraction, ...]
    """Per device."""
    notes: tuple[str, ...]
    """Changes that were needed to start from it, as text."""


@dataclass(frozen=True)
class Origin:
    """The source of a schedule and the claims about it; None if nothing is stated.

    Nothing here is trusted: `ppopt.verify` compares it with the operations, and `ppopt.recheck`
    checks the bound.
    """

    strategy: str | None = None
    """Name of the strategy; `searched` for the result of a search."""
    objective: Objective | None = None
    """The objective of the schedule; None: the makespan."""
    status: str | None = None
    """How the search ended: `optimal` or `feasible`, if a file states no more than it may."""
    options: Mapping[str, int] = field(default_factory=dict)
    """Options of the strategy, given or its own defaults."""
    backward_kind: BackwardKind | None = None
    """The kind of backwards in the search space of the bound; None: split."""
    value: Fraction | None = None
    """Objective of the schedule, in the user's unit."""
    lower_bound: Fraction | None = None
    """No schedule of the search space is below it, in the user's unit."""
    gap: float | None = None
    """(value - lower_bound) / value."""
    proof: str | None = None
    """The argument for the bound, as text."""
    certificate: Certificate | None = None
    seed: int | None = None
    workers: int | None = None
    time_limit: float | None = None
    """Time limit of the search in seconds."""
    versions: Mapping[str, str] | None = None
    """Versions of the programs that produced it."""
    hint: HintRecord | None = None
    """The schedule from which the search started, if any."""
    unknown_members: Mapping[str, Any] = field(default_factory=dict)
    """Other members of a file's origin: written again, never interpreted."""
    from_file: bool = field(default=False, compare=False)
    """Whether it was read from a file: none of its claims was proved in this process."""
