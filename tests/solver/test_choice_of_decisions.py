"""What is chosen with the schedule, and the configurations to choose from."""

from functools import reduce
from itertools import product
from operator import or_

import pytest

from ppopt import Objective, Pipeline, Status, compare, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH_SET, Decisions
from ppopt.problem.problem import Problem
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices.choice import Choice
from ppopt.strategies import registry

NAMES = {
    Decisions.PARTITION: "partition",
    Decisions.RECOMPUTE: "recompute",
    Decisions.OFFLOAD: "offload",
    Decisions.RECOMPUTE | Decisions.OFFLOAD: "recompute and offload",
    Decisions.ORDER: "order",
    Decisions.PLACEMENT: "placement",
    Decisions.PLACEMENT | Decisions.PARTITION: "placement with partition",
    Decisions.PLACEMENT | Decisions.RECOMPUTE: "placement with recompute",
    Decisions.PLACEMENT | Decisions.OFFLOAD: "placement with offload",
    Decisions.PLACEMENT
    | Decisions.RECOMPUTE
    | Decisions.OFFLOAD: "placement with recompute and offload",
}
"""Names of the candidates, as results say them."""
OF_LAYERS = (
    Decisions.RECOMPUTE,
    Decisions.OFFLOAD,
    Decisions.RECOMPUTE | Decisions.OFFLOAD,
)
NAMES |= {Decisions.PARTITION | own: f"partition with {NAMES[own]}" for own in OF_LAYERS}
NAMES |= {
    Decisions.PLACEMENT | Decisions.PARTITION | own: (f"placement with partition with {NAMES[own]}")
    for own in OF_LAYERS
}
OF_SET = {
    Decisions.RECOMPUTE_SET: "modules",
    Decisions.RECOMPUTE_SET | Decisions.PARTITION: "modules with partition",
    Decisions.RECOMPUTE_SET | Decisions.OFFLOAD: "modules with offload",
    Decisions.RECOMPUTE_SET | Decisions.PARTITION | Decisions.OFFLOAD: (
        "modules with partition with offload"
    ),
}
NAMES |= OF_SET
NAMES |= {Decisions.PLACEMENT | own: f"placement with {name}" for own, name in OF_SET.items()}
NAMES |= {
    choices | Decisions.ORDER: f"{name} with order"
    for choices, name in NAMES.items()
    if choices != Decisions.ORDER
}


def pipeline(choices: Decisions) -> Pipeline:
    """A model of four layers on two devices, whose choices are `search` or `search-set`."""
    fields: dict[str, object] = {choice.name.lower(): "search" for choice in choices}
    layer = {"forward": 1, "activation": 1, "count": 4, "offload_time": 1}
    if fields.pop("recompute_set", None):
        fields["recompute"] = SEARCH_SET
        layer["modules"] = [{"name": "norm", "time": 1, "memory": 1}]
    layers = [layer]
    if Decisions.ORDER in choices:
        fields |= {"microbatch_times": [1, 2], "microbatch_memory": 1}
    return Pipeline(stages=2, batches=2, model=layers, mem_limit=9, **fields)


def candidates(asked: Pipeline, further: Decisions = Decisions.NONE) -> Choice | None:
    problem = Problem(asked, Objective.MAKESPAN, BackwardKind.SPLIT)
    return choice_of(problem, further)


def test_every_choice_is_in_the_table() -> None:
    """Recompute of every layer and one set for all layers exclude each other."""
    every = {
        reduce(
            or_,
            (choice for choice, taken in zip(Decisions, some, strict=True) if taken),
            Decisions.NONE,
        )
        for some in product((False, True), repeat=len(Decisions))
    }
    both = Decisions.RECOMPUTE | Decisions.RECOMPUTE_SET
    assert {*NAMES, Decisions.NONE} == {choices for choices in every if both not in choices}


@pytest.mark.parametrize("choices", NAMES, ids=str)
def test_every_choice_has_its_candidates(choices: Decisions) -> None:
    asked = pipeline(choices)
    assert asked.open_decisions == choices
    space = candidates(asked)
    assert space.name == NAMES[choices]


@pytest.mark.parametrize("choices", [Decisions.NONE, *NAMES], ids=str)
def test_placements_may_be_searched_in_addition(choices: Decisions) -> None:
    space = candidates(pipeline(choices), Decisions.PLACEMENT)
    assert space.name == NAMES[choices | Decisions.PLACEMENT]


def test_without_a_choice_there_are_no_candidates() -> None:
    assert pipeline(Decisions.NONE).open_decisions == Decisions.NONE
    assert candidates(pipeline(Decisions.NONE)) is None


# Proofs name the schedules they speak of, where split and whole backwards differ.


def test_a_shorter_whole_backward_is_named_in_the_proof() -> None:
    """BW = 2 < B + W = 4: the split optimum is no bound for whole backwards."""
    pipe = Pipeline(stages=3, batches=4, backward=2, weight=2, backward_input=2)
    split, whole = solve(pipe, backward_kind="split"), solve(pipe, backward_kind="whole")
    assert whole.value < split.value
    assert split.proof.endswith("backwards are all split (--backward split)")
    assert whole.proof.endswith("backwards are all whole (--backward whole)")


def test_where_splitting_loses_nothing_the_proof_says_no_more() -> None:
    pipe = Pipeline(stages=3, batches=4)
    assert solve(pipe, backward_kind="split").proof.endswith("first input arrives")
    assert solve(pipe).proof.endswith("(BW >= B + W, and B allocates nothing)")


def test_infeasible_split_names_the_limit_of_whole_backwards() -> None:
    """One stage, activation 1, B takes 1 more: 2 split, 1 whole."""
    pipe = Pipeline(stages=1, batches=2, memory_b=1, mem_limit=1)
    result = solve(pipe, backward_kind="split")
    assert result.status is Status.INFEASIBLE
    assert result.proof.endswith(
        "is 2 with every backward split, 1 with every backward whole (--backward whole)"
    )
    assert solve(pipe).status is Status.OPTIMAL


def test_a_weight_pass_holds_what_an_instant_backward_took() -> None:
    """B takes no time but memory 1; W lasts: 2 are held through it, with no search at any size."""
    pipe = Pipeline(stages=16, batches=1024, backward=1, weight=1, memory_b=1, mem_limit=1)
    result = solve(pipe, backward_kind="split", time_limit=600)
    assert result.status is Status.INFEASIBLE
    assert "device 0 needs 2" in result.proof


def test_comparing_whole_backwards_leaves_splitting_strategies_out() -> None:
    compared = compare(Pipeline(stages=4, batches=4, mem_limit="1f1b"), backward_kind="whole")
    reasons = dict(compared.skipped)
    for name, strategy in registry().items():
        assert (name in reasons) == (not strategy.fused)
    assert all(row.ratio_to_optimum is None or row.ratio_to_optimum >= 1 for row in compared.rows)
