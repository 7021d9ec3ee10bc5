"""A search against the optimum of an oracle, and the re-checker's answer to it and to more."""

from __future__ import annotations

from fractions import Fraction

import ppopt
from ppopt import Objective, Pipeline, Result, Status, Verdict, solve
from ppopt.rechecker import check
from tests.clock import HANGS
from tests.oracles import exhaustive_pairs


def assert_solved(
    pipeline: Pipeline,
    optimum: Fraction | None,
    *,
    whole: bool | None,
    span: bool,
) -> Result:
    """A search proves the least value, in the user's unit, or that there is none (None).

    The re-checker confirms it, and refutes a bound above it, as `assert_proved` says. `whole` is
    None: every backward is whole or split.
    """
    result = solve(
        pipeline,
        objective=Objective.DEVICE_SPAN if span else Objective.MAKESPAN,
        backward_kind={True: "whole", False: "split", None: "mixed"}[whole],
        workers=1,
        time_limit=600,
    )
    assert result.status is (Status.INFEASIBLE if optimum is None else Status.OPTIMAL)
    assert result.value == optimum
    if optimum is not None:
        assert result.schedule is not None
        assert ppopt.verify(result.schedule) == []
    assert_proved(result)
    return result


def assert_proved(result: Result) -> None:
    """The re-checker confirms the result, and refutes a bound of one tick more by a schedule."""
    assert ppopt.recheck(result, workers=1).verdict is Verdict.CONFIRMED
    if result.status is Status.INFEASIBLE:
        return
    claim = result.claim
    assert claim is not None and claim.bound is not None
    wrong = check(claim._replace(bound=claim.bound + 1), HANGS, 1, 1, lambda _: None)
    assert wrong.verdict is Verdict.WRONG
    assert wrong.counterexample is not None and ppopt.verify(wrong.counterexample) == []


def assert_like_every_order(pipeline: Pipeline, *, whole: bool | None, spans: bool) -> None:
    """A search, and the re-checker, agree with every order of every device, pairs included."""
    best = exhaustive_pairs.best(pipeline, fused=whole, spans=spans)
    for span, ticks in ((False, best.makespan), *([(True, best.device_span)] if spans else [])):
        optimum = None if ticks is None else pipeline.ticks.time(ticks)
        assert_solved(pipeline, optimum, whole=whole, span=span)
