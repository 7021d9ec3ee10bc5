"""What a schedule says of its own making: value, bound, gap and status must go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import isclose, isfinite
from typing import TypeGuard

from ppopt.problem import exact
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.measure import ROUNDING, claim, of_rows
from ppopt.verifier.rows import Rows
from ppopt.verifier.violation import Violation

CLOSE = 1e-9
"""Relative difference allowed between gaps, which are rounded twice."""
FOUND = ("optimal", "feasible")
"""Statuses of a search that found a schedule."""


def wrong_origin(rows: Rows, origin: Mapping[str, object]) -> Iterator[Violation]:
    """Every statement of an origin that its own operations or its other statements deny.

    A bound itself cannot be checked without a search: only that it is not above the value, that it
    is of the kind of backward that the operations have, and that `optimal` is said of equal value
    and bound alone.
    """
    figures = of_rows(rows.sane)
    objective = origin.get("objective", "makespan")
    if objective not in ("makespan", "device-span"):
        yield claim("origin objective", objective, "neither makespan nor device-span")
        return
    ticks = figures.makespan if objective == "makespan" else figures.device_span
    value = exact.plain(rows.pipeline.ticks.time(ticks))
    stated, bound = (_ticks(rows.pipeline, origin.get(key)) for key in ("value", "lower_bound"))
    if origin.get("value") is not None and stated != ticks:
        yield claim("origin value", origin["value"], f"the {objective} is {value}")
    if origin.get("lower_bound") is not None:
        if bound is None or bound > ticks:
            yield claim("origin lower_bound", origin["lower_bound"], f"above the value {value}")
        yield from _wrong_kind(rows, fused=bool(origin.get("fused")))
    status = origin.get("status")
    if status is not None and status not in FOUND:
        yield claim("origin status", status, f"with a schedule it is {' or '.join(FOUND)}")
    if status == "optimal" and bound != ticks:
        yield claim("origin status", "optimal", f"the bound is not the value {value}")
    yield from _wrong_gap(origin.get("gap"), bound, ticks)


def _ticks(pipeline: Pipeline, stated: object) -> Fraction | None:
    """A stated time in ticks; None where it is no number."""
    if not _number(stated):
        return None
    return exact.in_ticks(Fraction(stated), pipeline.ticks.per_unit)


def _wrong_kind(rows: Rows, *, fused: bool) -> Iterator[Violation]:
    """A bound is of schedules whose backwards are all whole (`fused`), or all split."""
    whole = rows.sane.kind == OpKind.BW
    split = (rows.sane.kind == OpKind.B) | (rows.sane.kind == OpKind.W)
    if (split if fused else whole).any():
        found = "split (B and W)" if fused else "one operation (BW)"
        yield claim("origin fused", str(fused).lower(), f"backwards are {found}")


def _wrong_gap(gap: object, bound: Fraction | None, ticks: int) -> Iterator[Violation]:
    if gap is None or bound is None or not ticks:
        return
    right = float(1 - bound / ticks)
    if not _number(gap) or not isclose(float(gap), right, rel_tol=CLOSE, abs_tol=ROUNDING):
        yield claim("origin gap", gap, f"value and bound make it {right:.9g}")


def _number(stated: object) -> TypeGuard[float]:
    return (
        isinstance(stated, int | float)
        and not isinstance(stated, bool)
        and abs(stated) < 2**60
        and isfinite(stated)
    )
