"""The objective: the figure of a schedule that is minimised."""

from __future__ import annotations

from ppopt.problem.named_enum import NamedEnum


class Objective(NamedEnum):
    """The figure that a search minimises."""

    MAKESPAN = "makespan"
    """End of the last operation, from time 0."""
    DEVICE_SPAN = "device-span"
    """Longest time any one device takes from its first operation to its last (zero-bubble
    papers, arXiv 2401.10241, section 2.3: cost without the synchronisation at the end)."""
