"""A search beside the optimum of an oracle, and the re-checker's answer to it and to more."""

from __future__ import annotations

from fractions import Fraction

import ppopt
from ppopt import Objective, Pipeline, Result, Status, Verdict, solve
from ppopt.rechecker import check
from tests.oracles import exhaustive_pairs


def assert_solved(
    pipeline: Pipeline,
    least: Fraction | None,
    *,
    whole: bool | None,
    span: bool,
    more: Fraction | None = None,
) -> Result:
    """A search proves the least value, in the user's unit, or that there is none (None).

    The re-checker confirms it, and refutes a bound above it, as `assert_proved` says. `whole` is
    None: every backward is whole or split.
    """
    found = solve(
        pipeline,
        objective=Objective.DEVICE_SPAN if span else Objective.MAKESPAN,
        backward_kind={True: "whole", False: "split", None: "mixed"}[whole],
        workers=1,
        time_limit=600,
    )
    assert found.status is (Status.INFEASIBLE if least is None else Status.OPTIMAL)
    assert found.value == least
    if least is not None:
        assert found.schedule is not None
        assert ppopt.verify(found.schedule) == []
    assert_proved(found, more)
    return found


def assert_proved(found: Result, more: Fraction | None = None) -> None:
    """The re-checker confirms the result, and refutes a bound of one tick more by a schedule.

    Of several pipelines the bound is `more` higher, where that is given.
    """
    assert ppopt.recheck(found, workers=1).verdict is Verdict.CONFIRMED
    if found.status is Status.INFEASIBLE:
        return
    claim = found.claim
    assert claim is not None and claim.bound is not None
    higher = claim._replace(bound=claim.bound + 1)
    if claim.bound_time is not None:
        tick = Fraction(1, found.pipeline.ticks.per_unit)
        higher = claim._replace(bound_time=claim.bound_time + (more or tick))
    wrong = check(higher, 60.0, 1, 1, lambda _: None)
    assert wrong.verdict is Verdict.WRONG
    assert wrong.counterexample is not None and ppopt.verify(wrong.counterexample) == []


def assert_like_every_order(pipeline: Pipeline, *, whole: bool | None, spans: bool) -> None:
    """A search, and the re-checker, agree with every order of every device, pairs included."""
    best = exhaustive_pairs.best(pipeline, fused=whole, spans=spans)
    for span, ticks in ((False, best.makespan), *([(True, best.device_span)] if spans else [])):
        least = None if ticks is None else pipeline.ticks.time(ticks)
        assert_solved(pipeline, least, whole=whole, span=span)
