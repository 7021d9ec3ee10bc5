"""Slices of a microbatch that differ: the search, the verifier and the re-checker."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import (
    ConflictError,
    InputError,
    Pipeline,
    Verdict,
    compare,
    evaluate,
    recheck,
    solve,
    verify,
)
from ppopt.formats.schedule_json import schedule_from_object, schedule_to_object
from ppopt.problem.traits import Trait
from ppopt.solver.result import Status
from tests.oracles.active_schedules import Sliced, least_makespan
from tests.oracles.rechecked import assert_proved
from tests.tiers import examples


@st.composite
def cases(draw: st.DrawFn) -> Sliced:
    """Two stages: two microbatches of two slices, or one of three."""
    batches, slices = draw(st.sampled_from(((2, 2), (1, 3))))

    def row(*choices: int) -> tuple[int, ...]:
        return draw(st.sampled_from(choices)), draw(st.sampled_from(choices))

    parts = draw(st.lists(st.integers(1, 4), min_size=slices, max_size=slices))
    factors = draw(st.lists(st.integers(1, 3), min_size=batches, max_size=batches))
    return Sliced(
        forward=row(1, 2, 3),
        backward_input=row(1, 2, 3),
        weight=row(1, 2),
        delay=draw(st.sampled_from((0, 1))),
        times=[Fraction(factor) for factor in factors],
        slices=[Fraction(part, sum(parts)) for part in parts],
        whole=draw(st.booleans()) or batches > 1,
    )


def pipeline_of(case: Sliced, **fields: Any) -> Pipeline:
    return Pipeline(
        stages=2,
        batches=len(case.times),
        forward=case.forward,
        backward_input=case.backward_input,
        weight=case.weight,
        backward=tuple(map(sum, zip(case.backward_input, case.weight, strict=True))),
        p2p=case.delay,
        microbatch_times=case.times,
        slice_times=case.slices,
        **fields,
    )


@examples(5)
@given(cases())
def test_search_proves_the_optimum_of_exhaustive_search(case: Sliced) -> None:
    """In canonical order: equal microbatches, or any of them where one is left."""
    pipeline = pipeline_of(case._replace(times=[Fraction(1)] * len(case.times)))
    kind = "whole" if case.whole else "split"
    result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert result.value == least_makespan(case._replace(times=[Fraction(1)] * len(case.times)))
    assert_proved(result)


@examples(3)
@given(cases())
def test_bounds_hold_beside_microbatches_that_differ(case: Sliced) -> None:
    """No order is below the bound over all, and the best of them is no better than any schedule."""
    kind = "whole" if case.whole else "split"
    pipeline = pipeline_of(case, order="search")
    result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
    optimum = least_makespan(case)
    assert result.value is not None
    assert result.value >= optimum
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED
    if len(case.times) == 1:
        assert result.value == optimum


def test_a_wrong_bound_is_refuted() -> None:
    pipeline = Pipeline(stages=2, batches=2, slice_times=[1, 3])
    result = solve(pipeline, backward_kind="whole", workers=1)
    assert result.status is Status.OPTIMAL
    too_high = replace(result, bound_ticks=result.value_ticks + 1)
    assert recheck(too_high, workers=1).verdict is Verdict.WRONG


def test_slices_of_causal_attention() -> None:
    """Slice i of 4 takes 0.6 + 0.4 (2 i + 1) / 4 of an equal part."""
    pipeline = Pipeline(stages=2, batches=2, slices=4, attention_share="0.4")
    assert pipeline.slice_times == (
        Fraction("0.7"), Fraction("0.9"), Fraction("1.1"), Fraction("1.3")
    )  # fmt: skip
    measured = Pipeline(stages=2, batches=2, slice_times=[14, 18, 22, 26])
    assert measured == replace(pipeline, slices=4)
    assert measured.num_slices == 4
    assert Trait.UNEQUAL_SLICES in measured.traits
    assert Trait.UNEQUAL_SLICES not in replace(measured, slice_times=[3, 3, 3, 3]).traits


def test_factors_that_are_rounded_keep_their_mean() -> None:
    pipeline = Pipeline(stages=1, batches=1, slice_times=["1.00001", 3, "7.777"])
    assert sum(pipeline.slice_times) == 3
    assert pipeline.rounded == ("slice_times",)
    assert replace(pipeline) == pipeline


def test_a_share_of_attention_beside_times_of_slices() -> None:
    """A share of 0 says nothing of slices; another one would give them, too."""
    pipeline = Pipeline(stages=2, batches=2, slice_times=[1, 3], attention_share=0)
    assert pipeline == Pipeline(stages=2, batches=2, slice_times=[1, 3])
    with pytest.raises(ConflictError, match="attention_share: gives slice_times"):
        Pipeline(stages=2, batches=2, slice_times=[1, 3], attention_share="0.4")


def test_one_stage_works_as_long_as_with_equal_slices() -> None:
    for slice_times in ([1, 1], [1, 3]):
        pipeline = Pipeline(stages=1, batches=3, slice_times=slice_times)
        assert evaluate(pipeline, "seq-1f1b").makespan == 9


def test_verifier_knows_the_time_of_every_slice() -> None:
    equal = evaluate(Pipeline(stages=2, batches=2, slices=2), "seq-1f1b")
    pipeline = Pipeline(stages=2, batches=2, slice_times=[1, 3], microbatch_times=[1, 2])
    schedule = evaluate(pipeline, "seq-1f1b")
    assert verify(schedule) == []
    times = {str(op): op.end - op.start for op in schedule.operations.rows()}
    per_unit = pipeline.ticks.per_unit
    assert times["0F0"] == per_unit * Fraction(1, 4)
    assert times["1BW1s1"] == per_unit * 2 * 2 * Fraction(3, 4)
    as_equal = replace(equal, pipeline=replace(equal.pipeline, slice_times=[1, 3]))
    assert {str(violation.rule) for violation in verify(as_equal)} >= {"duration"}


def test_schedule_files_keep_the_factors() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2, slice_times=[1, 3]), "seq-1f1b")
    written = schedule_to_object(schedule)
    assert written["pipeline"]["slice_times"] == [[1, 2], [3, 2]]
    read, _ = schedule_from_object(written)
    assert read == schedule


def test_strategies_without_slices_run_whole_microbatches() -> None:
    comparison = compare(
        Pipeline(stages=2, batches=2, slice_times=[1, 3]), time_limit=600, workers=1
    )
    values = {row.schedule.origin.strategy: row.schedule.makespan for row in comparison.rows}
    assert values["1f1b"] == evaluate(Pipeline(stages=2, batches=2), "1f1b").makespan
    assert values["seq-1f1b"] > values["1f1b"]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"slice_times": [1, 0]}, InputError, "slice_times: slice 1: 0 is not above 0"),
        ({"slices": 3, "slice_times": [1, 2]}, InputError, "has 2 entries for 3 slices"),
        ({"slice_times": [1, 2], "overlap": 2}, ConflictError, "does not go with overlap_times"),
        ({"slices": 2, "slice_times": [1, 2], "attention_share": 1}, ConflictError, "keep one of"),
        (
            {"slices": 2, "microbatch_tokens": [1, 2], "reference_tokens": 1, "attention_share": 1},
            ConflictError,
            "no two microbatches have the same slices",
        ),
    ],
)
def test_what_does_not_go_together(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Pipeline(stages=2, batches=2, **fields)


def test_slices_and_microbatches_may_both_differ_in_a_search() -> None:
    """A device alone works F, BW = 2 F, of factors 1 and 2: 3 x 3."""
    pipeline = Pipeline(stages=1, batches=2, slice_times=(1, 3), microbatch_times=(1, 2))
    result = solve(pipeline, workers=1)
    assert (result.status, result.value) == (Status.OPTIMAL, 9)
