"""Times of the backward pass: missing times follow from the given ones."""

from __future__ import annotations

from fractions import Fraction

from ppopt.errors import InputError
from ppopt.problem import exact


def complete(
    forward: Fraction,
    full: Fraction | None,
    weight: Fraction | None,
    partial: Fraction | None,
    *,
    where: str = "",
) -> tuple[Fraction, Fraction, Fraction]:
    """Times of BW, W and B of one stage or layer; those that are None follow from the rest.

    BW = 2 F, W = BW / 2, B = BW - W. If B is given, W is BW - B, or F if BW is not given either,
    and BW is B + W. If all three are given, they are independent of each other. Raises InputError,
    naming the field and `where`, if F is not above 0, or if a derived time would be below 0. If all
    three are given as 0, F may be 0: a stage without layers computes nothing.
    """
    nothing = full == weight == partial == 0
    if forward <= 0 and not (nothing and forward == 0):
        raise InputError(
            f"forward: {where}{exact.plain(forward)} is not above 0, or finer than 10^-6 "
            "of the unit, the finest that is kept"
        )
    if partial is not None and weight is None:
        weight = (
            forward
            if full is None
            else _remainder("weight", full, "backward_input", partial, where)
        )
    if partial is not None and weight is not None and full is None:
        full = partial + weight
    full = 2 * forward if full is None else full
    weight = full / 2 if weight is None else weight
    if partial is None:
        partial = _remainder("backward_input", full, "weight", weight, where)
    return full, weight, partial


def _remainder(field: str, full: Fraction, name: str, known_part: Fraction, where: str) -> Fraction:
    """Time of the full backward minus one part: the time of the other part, `field`."""
    if known_part > full:
        raise InputError(
            f"{name}: {where}{exact.plain(known_part)} is above the full backward time "
            f"{exact.plain(full)}, which leaves less than 0 for {field}; give {field} too: "
            "B, W and BW may be any times"
        )
    return full - known_part
