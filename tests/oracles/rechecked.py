"""The re-checker's answer to a search that ended by proof, and to more than it proved."""

from __future__ import annotations

from fractions import Fraction

import ppopt
from ppopt import Result, Status, Verdict
from ppopt.rechecker import check


def assert_proved(found: Result) -> None:
    """The re-checker confirms the result, and refutes a bound of one tick more by a schedule."""
    assert ppopt.recheck(found, workers=1).verdict is Verdict.CONFIRMED
    if found.status is Status.INFEASIBLE:
        return
    claim = found.claim
    assert claim is not None and claim.bound_time is not None
    tick = Fraction(1, found.pipeline.ticks.per_unit)
    wrong = check(claim._replace(bound_time=claim.bound_time + tick), 30.0, 1, 1, lambda _: None)
    assert wrong.verdict is Verdict.WRONG
    assert wrong.counterexample is not None and ppopt.verify(wrong.counterexample) == []
