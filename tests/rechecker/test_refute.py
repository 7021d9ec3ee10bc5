"""The search for a schedule below a bound brings in the rules of devices only where it must."""

from __future__ import annotations

from ppopt import Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.refute import refute


def test_a_schedule_that_breaks_no_rule_of_other_devices_brings_in_none() -> None:
    """One microbatch never meets itself: no device can break a rule, and none has a limit."""
    pipeline = Pipeline(stages=3, batches=1)
    claim = Claim(pipeline, False, BackwardKind.SPLIT, 100, (1,))
    found = refute(claim, 60, 1, 0, lambda _: None)
    assert found.devices == (1,) and not found.refuted and found.times is not None
