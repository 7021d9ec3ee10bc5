"""Times of the backward: what is not given follows from what is."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.problem import exact

Times = tuple[Fraction, ...]


class Backward(NamedTuple):
    """Times per stage of BW, W and B, in the user's unit."""

    full: Times
    weight: Times
    partial: Times


def derive(
    forward: Times, full: Times | None, weight: Times | None, partial: Times | None
) -> Backward:
    """Fill in the times that are None: BW = 2 F, W = BW / 2, B = BW - W.

    Where B is given, W is what it leaves of BW, or else F, and BW is B + W. Where all three are
    given they are free of each other. Raises InputError where F is not above 0, or a time that is
    filled in would be below 0.
    """
    _check_forward(forward)
    if partial is not None and weight is None:
        weight = forward if full is None else _left("weight", full, "backward_input", partial)
    if partial is not None and weight is not None and full is None:
        full = tuple(b + w for b, w in zip(partial, weight, strict=True))
    full = full or tuple(2 * time for time in forward)
    weight = weight or tuple(time / 2 for time in full)
    return Backward(full, weight, partial or _left("backward_input", full, "weight", weight))


def check_overlap(forward: Times, full: Times, overlap: Times) -> None:
    """Raise InputError where an F and a BW as one take less than the longer of them alone."""
    for stage, (time, *parts) in enumerate(zip(overlap, forward, full, strict=True)):
        if time < max(parts):
            raise InputError(
                f"overlap: stage {stage}: {exact.plain(time)} is below the longer of F and BW, "
                f"{exact.plain(max(parts))}; give the time of both run as one"
            )


def _check_forward(forward: Times) -> None:
    for stage, time in enumerate(forward):
        if time <= 0:
            raise InputError(
                f"forward: stage {stage}: {exact.plain(time)} is not above 0, or finer than 10^-6 "
                "of the unit, the finest that is kept"
            )


def _left(field: str, full: Times, name: str, part: Times) -> Times:
    """What a part leaves of the full backward: the time of the other part, named `field`."""
    for stage, (whole, some) in enumerate(zip(full, part, strict=True)):
        if some > whole:
            raise InputError(
                f"{name}: stage {stage}: {exact.plain(some)} is above the full backward time "
                f"{exact.plain(whole)}, which leaves less than 0 for {field}; give {field} too: "
                "B, W and BW may be any times"
            )
    return tuple(whole - some for whole, some in zip(full, part, strict=True))
