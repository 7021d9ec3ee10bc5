"""What a schedule says of its own making: value, bound, gap and status must go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isclose, isfinite
from typing import TypeGuard

from ppopt import exact
from ppopt.verifier.measure import claim, of_rows
from ppopt.verifier.rows import Rows
from ppopt.verifier.violation import Violation

CLOSE = 1e-9
"""Numbers of an origin are in the user's unit, as floats: they may differ by rounding."""


def wrong_origin(rows: Rows, origin: Mapping[str, object]) -> Iterator[Violation]:
    """Every statement of an origin that its own operations or its other statements deny.

    A bound itself cannot be checked without a search: only that it is not above the value, and
    that `optimal` is said of equal value and bound alone.
    """
    figures = of_rows(rows.sane)
    objective = origin.get("objective", "makespan")
    if objective not in ("makespan", "device-span"):
        yield claim("origin objective", objective, "neither makespan nor device-span")
        return
    ticks = figures.makespan if objective == "makespan" else figures.device_span
    value = rows.pipeline.ticks.time(ticks)
    stated, bound = origin.get("value"), origin.get("lower_bound")
    if stated is not None and not _equal(stated, value):
        yield claim("origin value", stated, f"the {objective} is {exact.plain(value)}")
    if bound is not None and (not _number(bound) or float(bound) > float(value) * (1 + CLOSE)):
        yield claim("origin lower_bound", bound, f"above the value {exact.plain(value)}")
    if origin.get("status") == "optimal" and not _equal(bound, value):
        yield claim("origin status", "optimal", f"the bound is not the value {exact.plain(value)}")
    yield from _wrong_gap(origin.get("gap"), bound, value)


def _wrong_gap(gap: object, bound: object, value: Fraction) -> Iterator[Violation]:
    if gap is None or not _number(bound) or not value:
        return
    right = 1 - float(bound) / float(value)
    if not _number(gap) or not isclose(float(gap), right, abs_tol=CLOSE):
        yield claim("origin gap", gap, f"value and bound make it {right:.9g}")


def _number(stated: object) -> TypeGuard[float]:
    return (
        isinstance(stated, int | float)
        and not isinstance(stated, bool)
        and abs(stated) < 2**60
        and isfinite(stated)
    )


def _equal(stated: object, value: Fraction) -> bool:
    return _number(stated) and isclose(float(stated), float(value), rel_tol=CLOSE)
