"""The kind of backward that a search may choose: split, whole, or either."""

from __future__ import annotations

from enum import StrEnum

from ppopt.errors import InputError


class BackwardKind(StrEnum):
    """Which backwards the schedules of a search may have."""

    MIXED = "mixed"
    """BW, or B and W: chosen per stage, microbatch and slice."""
    SPLIT = "split"
    """B and W everywhere."""
    WHOLE = "whole"
    """BW everywhere."""

    @classmethod
    def uniform(cls, *, fused: bool) -> BackwardKind:
        """All backwards whole (`fused`), or all split."""
        return cls.WHOLE if fused else cls.SPLIT

    @classmethod
    def read(cls, kind: str | None, fused: bool | None = None) -> BackwardKind:
        """Read the kind; `fused` is the flag `--fused`: True for whole, False for split.

        The kind is mixed if neither is given. Raises InputError if they contradict each other.
        """
        if kind is not None and kind not in tuple(cls):
            raise InputError(f"backward_kind: {kind!r} is unknown; use {', '.join(cls)}")
        if fused is None:
            return cls.MIXED if kind is None else cls(kind)
        asked = cls.uniform(fused=fused)
        if kind not in (None, asked):
            raise InputError(f"fused: it says {asked}, backward_kind says {kind}; keep one")
        return asked
