"""Plans against brute force over partitions: a sample of the benchmark, and what is a fault."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks import plan_optimality
from benchmarks.plan_optimality import AIM, Case, Outcome, lines, run
from tests.clock import HANGS


@pytest.mark.slow
@pytest.mark.parametrize("limited", [True, False])
def test_a_plan_is_as_good_as_brute_force(limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_optimality, "SECONDS", HANGS)
    outcome = run(Case(0, "megatron", limited))
    assert not outcome.fault and not outcome.missed
    assert outcome.loss is None or outcome.loss <= AIM[1]


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True])
def test_a_plan_for_any_runtime_is_as_good_as_brute_force(limited: bool) -> None:
    outcome = run(Case(1, "any", limited))
    assert not outcome.fault and not outcome.missed
    assert outcome.loss is None or outcome.loss <= AIM[1]


@pytest.mark.parametrize(
    ("status", "value", "best", "bound", "message"),
    [
        ("optimal", 11, 10, 11, "another one is better"),
        ("infeasible", None, 10, None, "one keeps the limit"),
        ("feasible", 9, 10, 8, "brute force has a fault"),
        ("feasible", 9, None, 8, "brute force has a fault"),
        ("feasible", 12, 10, 11, "its bound is above the best"),
    ],
)
def test_a_false_claim_is_a_fault(
    status: str, value: int | None, best: int | None, bound: int | None, message: str
) -> None:
    numbers = [None if number is None else Fraction(number) for number in (value, best, bound)]
    outcome = Outcome(Case(1, "any", limited=True), status, *numbers)
    assert message in outcome.fault
    assert any(message in line for line in lines([outcome]))
