"""Traits of problems: each is recognised, and no other with it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ppopt import NotApplicableError, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import OF_INSTANCE
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import (
    FORMS,
    JOINS,
    OF_PIPELINE,
    ArgumentClass,
    Trait,
    handled,
    refuse_unhandled,
    unhandled,
)


def traits(objective: str = "makespan", kind: str = "split", **fields: Any) -> set[str]:
    """Traits of a problem of two stages and two microbatches."""
    pipeline = Pipeline(**({"stages": 2, "batches": 2} | fields))
    return {
        str(trait) for trait in Problem(pipeline, Objective(objective), BackwardKind(kind)).traits
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, set()),
        ({"kind": "whole"}, set()),
        ({"kind": "mixed"}, {"mixed"}),
        ({"objective": "device-span"}, {"span"}),
        ({"overlap": 3}, set()),
        ({"overlap": 2, "kind": "whole"}, {"pairs"}),
        ({"overlap": 1.5, "kind": "whole"}, {"pairs", "short-pairs"}),
        ({"slices": 2}, {"slices"}),
        ({"routes": 2}, {"routes"}),
        ({"link_mode": "exclusive"}, {"links"}),
        ({"link_mode": "exclusive", "stages": 1}, set()),
        ({"link_mode": "blocking"}, {"links", "blocking"}),
        ({"optimizer": 1}, {"step-work"}),
        ({"unshard_memory": 1}, {"step-work"}),
        ({"offload_memory": 1, "offload_time": 1}, {"offload"}),
        ({"frozen": [True, False]}, {"frozen"}),
        ({"frozen": [False, True]}, {"frozen"}),
        ({"slices": 2, "gradient_sync": 1, "kind": "mixed"}, {"slices", "step-work", "mixed"}),
    ],
)
def test_traits_are_recognised(fields: dict[str, Any], expected: set[str]) -> None:
    assert traits(**fields) == expected


def test_every_trait_is_recognised_in_one_way() -> None:
    assert sorted([*OF_PIPELINE, *OF_INSTANCE, Trait.SPAN]) == sorted(Trait)


def test_every_trait_is_a_form_or_joins_argument_classes() -> None:
    assert sorted([*FORMS, *JOINS]) == sorted(Trait)


@pytest.mark.parametrize("times", [[2], [1, 2], [3, 1, 2]])
def test_slices_that_differ_are_several(times: list[float]) -> None:
    """So what refuses slices also refuses slices that differ, whatever class it names."""
    several = {"slices", "unequal-slices"} if len(times) > 1 else set()
    assert traits(slice_times=times) == several


def test_a_class_has_the_traits_that_join_it_and_the_forms_of_the_method() -> None:
    assert handled(ArgumentClass.EQUAL_COMPUTE) == {Trait.FROZEN}
    assert handled(ArgumentClass.EQUAL_COMPUTE, [Trait.SPAN]) == {Trait.FROZEN, Trait.SPAN}


def test_the_relaxation_has_neither_choice_nor_short_pairs() -> None:
    pipeline = Pipeline(stages=2, batches=2, overlap=1.5)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    assert problem.traits >= {Trait.MIXED, Trait.SHORT_PAIRS}
    assert not problem.relaxed.traits & {Trait.MIXED, Trait.SHORT_PAIRS}


def test_traits_keep_their_labels_between_processes() -> None:
    assert [pickle.loads(pickle.dumps(trait)).label for trait in Trait] == [t.label for t in Trait]


def test_what_is_not_handled_is_refused_by_name() -> None:
    traits = frozenset({Trait.SLICES, Trait.ROUTES, Trait.SPAN})
    handles = frozenset({Trait.SPAN})
    assert unhandled(traits, handles) == [Trait.ROUTES, Trait.SLICES]
    refuse_unhandled("partition: search", handles, handles, "give counts")
    with pytest.raises(NotApplicableError, match="search knows no routes above 1; give counts"):
        refuse_unhandled("partition: search", traits, handles, "give counts")
