"""Predictions of Sailor's plans: what gradient work adds, and what is within reach of measured."""

from __future__ import annotations

import pytest

from benchmarks.sailor import PLANS, step


def test_one_stage_adds_its_reduction_and_its_optimizer() -> None:
    """26 layers of 0.447 ms."""
    for plan in PLANS[:2]:
        added = step(plan) - step(plan, gradients=False)
        assert added == pytest.approx(plan.reduction + 26 * 0.447)


def test_two_stages_of_eight_samples_are_within_4_percent() -> None:
    for plan in PLANS:
        if plan.stages == 2 and plan.samples == 8:
            assert step(plan, transfers=True) / plan.step == pytest.approx(1, abs=0.04)
