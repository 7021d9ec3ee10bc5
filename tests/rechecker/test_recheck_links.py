"""Bounds over links: confirmed up to the optimum of all orders of devices and links, no further."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ppopt import Pipeline, recheck, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.rechecker import SEED, Verdict, check
from ppopt.rechecker.claim import Claim
from tests.factories.streams import LINK_MODES, TRANSFER_MODES
from tests.oracles.streams_exhaustive import least_makespan
from tests.solver.cp_sat.test_streams import tiny
from tests.tiers import first

KINDS = (BackwardKind.SPLIT, BackwardKind.WHOLE)


def verdict(pipeline: Pipeline, kind: BackwardKind, bound: int | None) -> Verdict:
    rechecked = check(Claim(pipeline, False, kind, bound), 60, 1, SEED, lambda _: None)
    if rechecked.counterexample is not None:
        assert verify(rechecked.counterexample) == []
        assert rechecked.counterexample.pipeline == pipeline
        assert bound is None or rechecked.counterexample.metrics.makespan_ticks < bound
    return rechecked.verdict


@pytest.mark.parametrize("link_mode", TRANSFER_MODES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", first(2, (0, 3, 1, 2, 5)))
def test_the_optimum_is_confirmed_and_a_tick_more_is_wrong(
    seed: int, kind: BackwardKind, link_mode: str
) -> None:
    pipeline = tiny(Random(seed), 2 + seed % 2, link_mode)
    optimum = least_makespan(pipeline, whole=kind is BackwardKind.WHOLE)
    if optimum is None:
        assert verdict(pipeline, kind, None) is Verdict.CONFIRMED
        return
    assert verdict(pipeline, kind, optimum) is Verdict.CONFIRMED
    assert verdict(pipeline, kind, optimum + 1) is Verdict.WRONG


@pytest.mark.parametrize("link_mode", LINK_MODES)
def test_mixed_backwards_over_links_are_confirmed_and_refuted(link_mode: str) -> None:
    """F = 1, B = W = 2, BW = 3, 2 ticks each way: the last F ends at 4. With one kind of backward,
    the gradient arrives at 9 and BW ends at 12, or it arrives at 8 and B and W end at 12. With both
    it arrives at 8 and BW ends at 11."""
    pipeline = Pipeline(
        stages=2, batches=1, forward=1, backward_input=2, weight=2, backward=3, p2p=2,
        link_mode=link_mode,
    )  # fmt: skip
    for kind, optimum in zip((*KINDS, BackwardKind.MIXED), (12, 12, 11), strict=True):
        assert verdict(pipeline, kind, optimum) is Verdict.CONFIRMED
        assert verdict(pipeline, kind, optimum + 1) is Verdict.WRONG


@pytest.mark.parametrize("link_mode", LINK_MODES)
@pytest.mark.parametrize("seed", first(3, range(8)))
def test_a_transfer_of_no_time_waits_for_its_link_too(seed: int, link_mode: str) -> None:
    random = Random(seed)
    times = {"p2p": random.choice((0, 1, 3)), "backward_p2p": random.choice((0, 2))}
    pipeline = replace(tiny(random, 2, link_mode), **times)
    optimum = least_makespan(pipeline, whole=False)
    if optimum is not None:
        assert verdict(pipeline, BackwardKind.SPLIT, optimum) is Verdict.CONFIRMED
        assert verdict(pipeline, BackwardKind.SPLIT, optimum + 1) is Verdict.WRONG
        result = solve(pipeline, backward_kind="split", workers=1)
        assert (result.status, result.value) == ("optimal", pipeline.ticks.time(optimum))


@pytest.mark.parametrize(
    ("link_mode", "optimum"), [("delay", 10), ("exclusive", 11), ("streams", 11)]
)
def test_what_links_add_to_delays_is_confirmed(link_mode: str, optimum: int) -> None:
    """F = B = 1, no W, two microbatches, 3 ticks down and 1 up. The second activation follows the
    first one, from 4 to 7; its F, its B, the gradient and the B of the first stage take 4 more. As
    a delay it arrives at 5, and the second stage is done with both microbatches at 8."""
    pipeline = Pipeline(
        stages=2, batches=2, forward=1, backward_input=1, weight=0, p2p=3, backward_p2p=1,
        link_mode=link_mode,
    )  # fmt: skip
    assert verdict(pipeline, BackwardKind.SPLIT, optimum) is Verdict.CONFIRMED
    assert verdict(pipeline, BackwardKind.SPLIT, optimum + 1) is Verdict.WRONG
    result = solve(pipeline, workers=1)
    assert (result.status, result.value) == ("optimal", optimum)
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED
