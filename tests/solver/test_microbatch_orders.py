"""Orders of microbatches chosen with the schedule, against trying every order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import (
    ConflictError,
    InputError,
    Layer,
    MicrobatchOrders,
    Model,
    Objective,
    Pipeline,
    Verdict,
    evaluate,
    frontier,
    recheck,
    solve,
)
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.order_columns import OrderColumns
from ppopt.schedule.origin import Argument
from ppopt.solver.bounds import device_bounds
from ppopt.solver.microbatch_orders.local_search import OrderSearch, rule_orders
from ppopt.solver.result import Status
from ppopt.studies.reference_check import check_reference
from ppopt.testing import assert_not_worse_than
from tests.clock import work_clock
from tests.oracles.different_exhaustive import Different, least_makespan
from tests.solver.test_microbatches_differ import cases, pipeline_of
from tests.tiers import examples, slow

DYNAPIPE = Pipeline(
    stages=4,
    batches=8,
    forward=[8000, 8000, 4000, 4000],
    backward=[16000, 16000, 8000, 8000],
    microbatch_times=[1, 0.8, 1.2, 0.9, 1.1, 0.7, 1.4, 0.6],
)
"""A test of DynaPipe (Jiang et al., EuroSys 2024): 1F1B takes 240800 in the given order, and 208800
in the best of its search."""
KINDS = {"split": False, "whole": True, "mixed": None}


def least_of_all(case: Different, *, whole: bool | None) -> Fraction | None:
    """The least makespan over all orders, by trying every schedule of every order."""
    values = []
    for microbatches in set(permutations(zip(case.times, case.memory, strict=True))):
        times, memory = zip(*microbatches, strict=True)
        values.append(least_makespan(case._replace(times=times, memory=memory), whole=whole))
    return min((value for value in values if value is not None), default=None)


@pytest.mark.parametrize(
    ("kind", "batches"), [("split", 3), ("whole", 3), ("mixed", 2), slow("mixed", 3)]
)
@examples(5)
@given(data=st.data())
def test_search_finds_the_best_order_and_proves_it(
    kind: str, batches: int, data: st.DataObject
) -> None:
    case = data.draw(cases(batches))
    best = least_of_all(case, whole=KINDS[kind])
    pipeline = replace(pipeline_of(case), order="search")
    result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
    assert result.value == best
    assert result.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED


def test_local_search_reaches_the_best_order_of_dynapipe() -> None:
    schedule = evaluate(DYNAPIPE, "1f1b")
    times = OrderColumns.of_schedule(schedule)
    factors = np.array([float(factor) for factor in DYNAPIPE.microbatch_times])
    search = OrderSearch(times, factors, Objective.MAKESPAN)
    per_unit = DYNAPIPE.ticks.per_unit
    assert search.by_rule[0].value == 240800 * per_unit
    assert search.run(3000).value == 208800 * per_unit
    reordered = evaluate(DYNAPIPE.reordered(search.best.order), "1f1b")
    assert reordered.makespan == 208800


def test_every_order_of_few_microbatches_is_timed() -> None:
    """Also if fewer evaluations are left; an order that reaches the bound ends it."""
    pipeline = Pipeline(stages=3, batches=4, microbatch_times=[2, 1, 4, 3])
    schedule = evaluate(pipeline, "1f1b")
    best = min(
        evaluate(pipeline.reordered(order), "1f1b").makespan for order in permutations(range(4))
    )
    search = OrderSearch.of_schedule(schedule, Objective.MAKESPAN)
    by_rule = search.evaluated
    assert search.run(1).value == best * pipeline.ticks.per_unit < search.by_rule[0].value
    search.run(1000, bound=search.best.value)
    assert search.evaluated == by_rule + 24


@given(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=1, max_size=9))
def test_orders_by_rule_are_permutations(factors: list[float]) -> None:
    for name, order in rule_orders(np.array(factors)).items():
        assert sorted(order) == list(range(len(factors))), name


def test_bound_holds_for_any_order_of_many_microbatches() -> None:
    random = Random(5)
    factors = [random.choice((1, 2, 3, 5, 8)) for _ in range(10)]
    pipeline = Pipeline(stages=3, batches=10, microbatch_times=factors, order="search", p2p=1)
    with work_clock():
        result = solve(pipeline, workers=1, time_limit=5)
    assert sorted(result.pipeline.order) == list(range(10))
    assert result.proof.startswith("in each of the")
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED
    for _ in range(20):
        order = random.sample(range(10), 10)
        same = replace(pipeline, order="given").reordered(order)
        for strategy in ("1f1b", "zb-h1"):
            assert evaluate(same, strategy).makespan >= result.lower_bound


def test_reordering_twice_names_the_microbatches_of_the_list() -> None:
    pipeline = Pipeline(
        stages=2, batches=3, microbatch_times=[1, 2, 3], microbatch_memory=[3, 2, 1]
    )
    reordered = pipeline.reordered((2, 0, 1)).reordered((1, 2, 0))
    assert reordered.order == (0, 1, 2)
    assert reordered.factors == pipeline.factors


def test_equal_microbatches_leave_nothing_open() -> None:
    pipeline = Pipeline(stages=3, batches=6, microbatch_times=2, order="search")
    assert not pipeline.open_decisions
    assert solve(pipeline, workers=1).status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"order": "random"}, InputError, "order: 'random' is unknown; use given or search"),
        ({"order": [0, 1, 1]}, InputError, "list the 3 microbatches from 0, each once"),
        ({"order": [0, True, 2]}, InputError, "list the 3 microbatches from 0, each once"),
        ({"order": [0.0, 1, 2]}, InputError, "list the 3 microbatches from 0, each once"),
        ({"order": "search", "routes": 2, "batches": 4}, ConflictError, "two routes"),
    ],
)
def test_wrong_orders_are_refused(
    fields: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        Pipeline(**{"stages": 2, "batches": 3, "microbatch_times": 1, **fields})


def test_a_hint_of_other_factors_is_timed_again() -> None:
    """So is one of the same factors in another order."""
    original = Pipeline(stages=3, batches=4, microbatch_times=[1, 2, 3, 1])
    hint = solve(original, workers=1, time_limit=600).schedule
    for pipeline in (
        replace(original, microbatch_times=[3, 2, 1, 1]),
        replace(original, microbatch_times=None),
        original.reordered((3, 2, 1, 0)),
    ):
        result = solve(pipeline, hint=hint, workers=1, time_limit=600)
        assert result.status is Status.OPTIMAL
        assert result.hint is not None and result.hint.notes


def test_lengths_round_factors_and_say_so() -> None:
    fields = {"stages": 2, "batches": 2, "reference_tokens": 3}
    third = Pipeline(microbatch_tokens=[1, 3], **fields)
    assert third.microbatch_times == (Fraction("0.3333"), 1)
    assert third.rounded == ("microbatch_times", "microbatch_memory")
    assert Pipeline(microbatch_tokens=[3, 6], **fields).rounded == ()
    with pytest.raises(InputError, match="microbatch_tokens: has 1 entries for 2 microbatches"):
        Pipeline(microbatch_tokens=[1], **fields)


@pytest.mark.parametrize(
    ("order", "whole", "factors"),
    [
        ("given", True, (2, 1, 3)),
        ("search", True, (3, 1)),
        slow("given", False, (2, 1, 3)),
        slow("search", False, (3, 1)),
    ],
)
def test_frontier_has_every_limit_at_which_the_optimum_changes(
    order: str, whole: bool, factors: tuple[int, ...]
) -> None:
    case = Different(
        forward=(1, 2),
        backward_input=(2, 1),
        weight=(1, 1),
        backward=(3, 2),
        activation=(2, 1),
        memory_b=(-1, 0),
        workspace=(1, 0),
        delay=1,
        times=[Fraction(factor) for factor in factors],
        memory=[Fraction(factor) for factor in factors],
        limit=None,
    )
    oracle = least_makespan if order == "given" else least_of_all
    kind = "whole" if whole else "split"
    curve = frontier(
        replace(pipeline_of(case), order=order), backward_kind=kind, workers=1, time_limit=600
    )
    assert curve.status is Status.OPTIMAL
    assert len(curve.points) >= len(factors)
    before = None
    for point in curve.points:
        tighter = case._replace(limit=point.limit - 1)
        assert oracle(tighter, whole=whole) == before
        before = oracle(case._replace(limit=point.limit), whole=whole)
        assert point.result.value == before
        if order == "search":
            assert sorted(point.result.pipeline.order) == [*range(len(factors))]
    assert before == oracle(case, whole=whole)


def test_reference_of_a_chosen_order_is_computed_again_in_that_order() -> None:
    pipeline = Pipeline(stages=2, batches=4, microbatch_times=[1, 4, 1, 2], order="search")
    for schedule in (solve(pipeline, workers=1).schedule, evaluate(pipeline, "1f1b")):
        assert schedule is not None
        assert check_reference(schedule).differences == ()


def test_pins_compare_the_factors_of_microbatches() -> None:
    pipeline = Pipeline(stages=2, batches=4, microbatch_times=[1, 4, 1, 2])
    best, baseline = (
        solve(replace(pipeline, order="search"), workers=1).schedule,
        evaluate(pipeline, "1f1b"),
    )
    assert_not_worse_than(best, evaluate(replace(pipeline, order="search"), "1f1b"))
    for wrong in (evaluate(replace(pipeline, microbatch_times=[1, 4, 1, 1]), "1f1b"), best):
        with pytest.raises(AssertionError, match="the pipelines differ in microbatch_times: "):
            assert_not_worse_than(wrong, baseline)


@pytest.mark.parametrize(
    ("kind", "batches"),
    [("split", 2), ("whole", 3), ("mixed", 2), slow("split", 3), slow("mixed", 3)],
)
@examples(15)
@given(data=st.data())
def test_bounds_are_below_exhaustive_search(kind: str, batches: int, data: st.DataObject) -> None:
    """In the given order and in any; the first microbatch of some is much larger."""
    case, more = data.draw(cases(batches)), data.draw(st.sampled_from((0, 0, 1, 6)))
    case = case._replace(limit=None, times=(case.times[0] + more, *case.times[1:]))
    pipeline = pipeline_of(case)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind(kind))
    known = device_bounds.known_bound(problem).value
    assert pipeline.ticks.time(known) <= least_makespan(case, whole=KINDS[kind])
    of_any = device_bounds.known_bound(problem, any_order=True).value
    assert pipeline.ticks.time(of_any) <= least_of_all(case, whole=KINDS[kind])


@pytest.mark.parametrize("order", ["given", "search"])
@examples(10)
@given(case=cases(), more=st.sampled_from((0, 6)))
def test_no_bound_above_the_optimum_is_confirmed(order: str, case: Different, more: int) -> None:
    case = case._replace(limit=None, times=(case.times[0] + more, *case.times[1:]))
    pipeline = replace(pipeline_of(case), order=order)
    result = solve(pipeline, backward_kind="whole", workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    above = replace(result, bound_ticks=result.value_ticks + 1)
    assert recheck(above, workers=1).verdict is Verdict.WRONG


def test_a_recheck_says_for_which_order_it_holds(tmp_path: Path) -> None:
    pipeline = Pipeline(stages=2, batches=4, microbatch_times=[1, 4, 1, 2])
    result = solve(pipeline.reordered((0, 3, 1, 2)), workers=1, time_limit=600)
    searched = solve(replace(pipeline, order="search"), workers=1, time_limit=600)
    for number, (schedule, text) in enumerate(
        ((result.schedule, "in the order of the file"), (searched.schedule, "orders of the micro"))
    ):
        assert schedule is not None
        file = tmp_path / f"{number}.json"
        schedule.to_json(file)
        read, _ = read_schedule(file)
        outcome = recheck(read, workers=1)
        assert outcome.verdict is Verdict.CONFIRMED
        assert ("order of the file" in outcome.reason) == (schedule is result.schedule)
        assert text in outcome.reason or "in any order" in outcome.reason


def test_a_recheck_of_one_partition_confirms_no_bound_of_all() -> None:
    """With partition 1,3, device 1 waits at least 1 and then works 3 x (1 + 1 + 3) x 3 = 45."""
    model = Model([Layer(forward=time) for time in (1, 1, 1, 3)])
    pipeline = model.pipeline(
        devices=2, batches=2, partition=(1, 3), microbatch_times=(1, 2), order="search"
    )
    one_partition = solve(pipeline, workers=1, time_limit=600)
    joint = solve(replace(pipeline, partition="search"), workers=1, time_limit=600)
    assert one_partition.value == 46 > joint.value
    claims_all = replace(one_partition, certificate=joint.certificate)
    assert recheck(claims_all, workers=1).verdict is Verdict.UNDECIDED


ONE_LARGE = Pipeline(stages=4, batches=6, microbatch_times=[1, 1, 1, 9, 1, 1], p2p="0.5")


def test_round_trip_of_a_large_microbatch() -> None:
    """Whole backwards: F of the others before it, then 9 x 4 x 3 and 6 links of 0.5: 5 + 111.

    In the given order device 0 runs 3 F before it and 2 BW behind it: 3 + 111 + 4.
    """
    for order, value in (("search", 116), ("given", 118)):
        pipeline = replace(ONE_LARGE, order=order)
        result = solve(pipeline, backward_kind="whole", workers=1, time_limit=600)
        assert (result.status, result.value) == (Status.OPTIMAL, value)
        assert recheck(result, workers=1).verdict is Verdict.CONFIRMED
    assert result.certificate.argument is Argument.ROUND_TRIP


def test_orders_of_a_trainer_have_the_same_bound() -> None:
    factors = [float(factor) for factor in ONE_LARGE.microbatch_times]
    best = MicrobatchOrders(ONE_LARGE, "1f1b").order(factors)
    assert best.lower_bound == 116
    assert best.makespan >= 116
