"""Idle time forced at a device's ends: the published formula, and the re-checker's own account."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Model, Objective, Pipeline, Status, recheck, solve
from ppopt.formats.config import pipeline_of
from ppopt.formats.models import model_names, read_settings
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.rechecker import idle_bound
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.idle_bound import Filler
from ppopt.rechecker.precedence import Precedence
from ppopt.schedule.origin import Argument
from ppopt.solver.bounds import device_bounds, idle_bounds
from ppopt.solver.bounds.idle_bounds import ForcedIdle, KnapsackItem
from ppopt.solver.relaxation.route_times import RouteTimes
from tests.factories.instances import tiny_cases

PAPER = [name for name in model_names() if name.startswith("zb-")]


@pytest.mark.parametrize("name", PAPER)
def test_zb_h1_is_optimal_at_p_activations_on_the_papers_pipelines(name: str) -> None:
    """Its idle time, (p - 1)(F + B - W) without links (arXiv 2401.10241, section 2.3), plus
    4 (p - 1) links: 2 of each wait's way are on either side of the last stage."""
    settings = read_settings(name)
    devices, batches = settings["stages"], settings["batches"]
    pipeline = pipeline_of(settings | {"mem_limit": devices * settings["activation"]})
    durations = pipeline.ticks.durations
    forward, back, weight = (durations[kind][0] for kind in (OpKind.F, OpKind.B, OpKind.W))
    link = pipeline.ticks.down[0][0]
    idle = (devices - 1) * (forward + back - weight + 4 * link)
    bounded = device_bounds.device_bound(
        Instance.uniform(pipeline, fused=False), Objective.DEVICE_SPAN
    )
    assert bounded.value == batches * (forward + back + weight) + idle
    assert bounded.certificate.argument is Argument.ENDS


def test_a_search_meets_it_and_the_re_checker_agrees() -> None:
    settings = read_settings("zb-1.5b-m24")
    pipeline = pipeline_of(settings | {"mem_limit": 8 * settings["activation"]})
    result = solve(pipeline, objective="device-span")
    assert result.status is Status.OPTIMAL
    assert "idle time of 135.016 ms before its first backward" in result.proof
    assert "and 72.709 ms after its last forward (the memory limit forces it)" in result.proof
    rechecked = recheck(result)
    assert rechecked.verdict == "confirmed"
    assert " of idle time that its memory limit forces" in rechecked.reason


def forced_idle(pipeline: Pipeline, device: int) -> ForcedIdle:
    """Least idle time of a device where every backward is split."""
    return idle_bounds.forced_idle(RouteTimes(Instance.uniform(pipeline, fused=False)), device)


def test_by_hand() -> None:
    """Two devices, F = B = W = 1, link 1, room for one: F . . . . B W on device 0, twice; the way
    from F to B is p2p + F + B + p2p = 4. Device 1 idles nowhere: its B follows its F at once."""
    pipeline = Pipeline(stages=2, batches=2, p2p=1, backward_input=1, weight=1, mem_limit=1)
    assert [forced_idle(pipeline, device) for device in (0, 1)] == [
        ForcedIdle(4, 4),
        (0, 0),
    ]
    single = Pipeline(stages=2, batches=1, p2p=1, backward_input=1, weight=1, mem_limit=1)
    assert forced_idle(single, 0) == ForcedIdle(4, 0)
    free = Pipeline(stages=2, batches=2, p2p=1, backward_input=1, weight=1)
    assert forced_idle(free, 0) == ForcedIdle(3, 0)


def test_after_the_last_forward_of_an_empty_stage_no_idle_time_is_forced() -> None:
    """Device 0 has stages 0 and 2, which is empty: its F and its backward take no time.

    To that backward the way is F, link, F, link, link, F, B, link: 8. Two F fit into memory.
    """
    model = Model([{"forward": 1, "backward_input": 1, "weight": 1, "activation": 1, "count": 3}])
    pipeline = model.pipeline(
        devices=2, batches=3, p2p=1, mem_limit=2, partition=(1, 1, 0, 1), placement="interleaved",
        chunks=2,
    )  # fmt: skip
    assert forced_idle(pipeline, 0) == ForcedIdle(8 - 2, 0)


def test_what_memory_holds_after_b_fills_the_last_wait() -> None:
    """Headroom for 3, of which B frees all but 1/2: with the last F fit two B and W (4 of 6),
    or one B and W and two W (4), or four W (4)."""
    pipeline = Pipeline(
        stages=3, batches=9, p2p=1, backward_input=1, weight=1, memory_b="-0.5", mem_limit=3
    )
    assert forced_idle(pipeline, 0) == ForcedIdle(8 - 2, 8 - 4)


def test_both_codes_agree() -> None:
    """The search's and the re-checker's account of the same waits, written apart."""
    total = 0
    for case in tiny_cases(seed=12, count=120, ops=60):
        pipeline, fused = case
        instance = Instance.uniform(pipeline, fused=fused)
        if device_bounds.infeasibility(instance):
            continue
        for device in range(pipeline.num_devices):
            idle = sum(idle_bounds.forced_idle(RouteTimes(instance), device))
            claim = Claim(
                pipeline, span=True, backward_kind=BackwardKind.uniform(fused=fused), bound=1
            )
            each = Precedence.of_microbatch(claim)
            assert idle_bound.min_idle(claim, device, each) == idle, (case, device)
            total += idle > 0
    assert total > 30


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 20))
def test_knapsack_bound_is_never_below_the_true_most(seed: int, kinds: int, headroom: int) -> None:
    """Of a knapsack; exact for one kind."""
    rng = Random(seed)
    items = [
        KnapsackItem(rng.randint(0, 9), rng.randint(0, 5), rng.randint(0, 4)) for _ in range(kinds)
    ]
    best = max_value(items, headroom)
    bound = idle_bounds.knapsack_bound(items, headroom)
    assert best <= idle_bound.filled([Filler(*item) for item in items], headroom) <= bound
    assert bound == best or kinds > 1
    assert idle_bounds.knapsack_bound(items, -1) == 0


def max_value(items: list[KnapsackItem], headroom: int) -> int:
    """By trying every number of every item."""
    if headroom < 0:
        return -(10**9)
    if not items:
        return 0
    first, *rest = items
    return max(
        count * first.work + max_value(rest, headroom - count * first.memory)
        for count in range(first.copies + 1)
    )
