"""What is chosen with the schedule, and the configurations to choose from."""

from functools import reduce
from itertools import product
from operator import or_

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.choices import NO_CHOICE, Choice, candidates_of, choices_of
from ppopt.solver.configurations import Candidates
from ppopt.solver.deadline import Deadline

NAMES = {
    Choice.PARTITION: "partition",
    Choice.RECOMPUTE: "recompute",
    Choice.PARTITION | Choice.RECOMPUTE: "partition with recompute",
    Choice.PLACEMENT: "placement",
    Choice.PLACEMENT | Choice.PARTITION: "placement with partition",
    Choice.PLACEMENT | Choice.RECOMPUTE: "placement with recompute",
    Choice.PLACEMENT | Choice.PARTITION | Choice.RECOMPUTE: (
        "placement with partition with recompute"
    ),
}
"""Names of the candidates, as results say them."""


def pipeline(choices: Choice) -> Pipeline:
    """A model of four layers on two devices, whose choices are `search`."""
    fields = {one.name.lower(): "search" for one in choices}
    layers = [{"forward": 1, "activation": 1, "count": 4}]
    return Pipeline(stages=2, batches=2, model=layers, mem_limit=9, **fields)


def candidates(asked: Pipeline, further: Choice = NO_CHOICE) -> Candidates | None:
    problem = Problem(asked, Objective.MAKESPAN, BackwardKind.SPLIT)
    return candidates_of(problem, Deadline.after(60), further)


def test_every_choice_is_in_the_table() -> None:
    every = {
        reduce(or_, (one for one, taken in zip(Choice, some, strict=True) if taken), NO_CHOICE)
        for some in product((False, True), repeat=len(Choice))
    }
    assert {*NAMES, NO_CHOICE} == every


@pytest.mark.parametrize("choices", NAMES, ids=str)
def test_every_choice_has_its_candidates(choices: Choice) -> None:
    asked = pipeline(choices)
    assert choices_of(asked) == choices
    found = candidates(asked)
    assert found.name == NAMES[choices]


@pytest.mark.parametrize("choices", [NO_CHOICE, *NAMES], ids=str)
def test_placements_may_be_searched_in_addition(choices: Choice) -> None:
    found = candidates(pipeline(choices), Choice.PLACEMENT)
    assert found.name == NAMES[choices | Choice.PLACEMENT]


def test_without_a_choice_there_are_no_candidates() -> None:
    assert choices_of(pipeline(NO_CHOICE)) == NO_CHOICE
    assert candidates(pipeline(NO_CHOICE)) is None
