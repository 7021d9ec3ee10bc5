"""What is chosen with the schedule, and the configurations to choose from."""

from functools import reduce
from itertools import product
from operator import or_

import pytest

from ppopt import Objective, Pipeline, Status, compare, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layer_choices import SEARCH_SET
from ppopt.problem.problem import Problem
from ppopt.solver.choices.choice import Choice
from ppopt.solver.open_decisions import NO_DECISIONS, OpenDecisions, choice_of, open_decisions
from ppopt.strategies import registry

NAMES = {
    OpenDecisions.PARTITION: "partition",
    OpenDecisions.RECOMPUTE: "recompute",
    OpenDecisions.OFFLOAD: "offload",
    OpenDecisions.RECOMPUTE | OpenDecisions.OFFLOAD: "recompute and offload",
    OpenDecisions.ORDER: "order",
    OpenDecisions.PLACEMENT: "placement",
    OpenDecisions.PLACEMENT | OpenDecisions.PARTITION: "placement with partition",
    OpenDecisions.PLACEMENT | OpenDecisions.RECOMPUTE: "placement with recompute",
    OpenDecisions.PLACEMENT | OpenDecisions.OFFLOAD: "placement with offload",
    OpenDecisions.PLACEMENT
    | OpenDecisions.RECOMPUTE
    | OpenDecisions.OFFLOAD: "placement with recompute and offload",
}
"""Names of the candidates, as results say them."""
OF_LAYERS = (
    OpenDecisions.RECOMPUTE,
    OpenDecisions.OFFLOAD,
    OpenDecisions.RECOMPUTE | OpenDecisions.OFFLOAD,
)
NAMES |= {OpenDecisions.PARTITION | own: f"partition with {NAMES[own]}" for own in OF_LAYERS}
NAMES |= {
    OpenDecisions.PLACEMENT | OpenDecisions.PARTITION | own: (
        f"placement with partition with {NAMES[own]}"
    )
    for own in OF_LAYERS
}
OF_SET = {
    OpenDecisions.RECOMPUTE_SET: "modules",
    OpenDecisions.RECOMPUTE_SET | OpenDecisions.PARTITION: "modules with partition",
    OpenDecisions.RECOMPUTE_SET | OpenDecisions.OFFLOAD: "modules with offload",
    OpenDecisions.RECOMPUTE_SET | OpenDecisions.PARTITION | OpenDecisions.OFFLOAD: (
        "modules with partition with offload"
    ),
}
NAMES |= OF_SET
NAMES |= {OpenDecisions.PLACEMENT | own: f"placement with {name}" for own, name in OF_SET.items()}
NAMES |= {
    choices | OpenDecisions.ORDER: f"{name} with order"
    for choices, name in NAMES.items()
    if choices != OpenDecisions.ORDER
}


def pipeline(choices: OpenDecisions) -> Pipeline:
    """A model of four layers on two devices, whose choices are `search` or `search-set`."""
    fields: dict[str, object] = {choice.name.lower(): "search" for choice in choices}
    layer = {"forward": 1, "activation": 1, "count": 4, "offload_time": 1}
    if fields.pop("recompute_set", None):
        fields["recompute"] = SEARCH_SET
        layer["modules"] = [{"name": "norm", "time": 1, "memory": 1}]
    layers = [layer]
    if OpenDecisions.ORDER in choices:
        fields |= {"microbatch_times": [1, 2], "microbatch_memory": 1}
    return Pipeline(stages=2, batches=2, model=layers, mem_limit=9, **fields)


def candidates(asked: Pipeline, further: OpenDecisions = NO_DECISIONS) -> Choice | None:
    problem = Problem(asked, Objective.MAKESPAN, BackwardKind.SPLIT)
    return choice_of(problem, further)


def test_every_choice_is_in_the_table() -> None:
    """Recompute of every layer and one set for all layers exclude each other."""
    every = {
        reduce(
            or_,
            (choice for choice, taken in zip(OpenDecisions, some, strict=True) if taken),
            NO_DECISIONS,
        )
        for some in product((False, True), repeat=len(OpenDecisions))
    }
    both = OpenDecisions.RECOMPUTE | OpenDecisions.RECOMPUTE_SET
    assert {*NAMES, NO_DECISIONS} == {choices for choices in every if both not in choices}


@pytest.mark.parametrize("choices", NAMES, ids=str)
def test_every_choice_has_its_candidates(choices: OpenDecisions) -> None:
    asked = pipeline(choices)
    assert open_decisions(asked) == choices
    space = candidates(asked)
    assert space.name == NAMES[choices]


@pytest.mark.parametrize("choices", [NO_DECISIONS, *NAMES], ids=str)
def test_placements_may_be_searched_in_addition(choices: OpenDecisions) -> None:
    space = candidates(pipeline(choices), OpenDecisions.PLACEMENT)
    assert space.name == NAMES[choices | OpenDecisions.PLACEMENT]


def test_without_a_choice_there_are_no_candidates() -> None:
    assert open_decisions(pipeline(NO_DECISIONS)) == NO_DECISIONS
    assert candidates(pipeline(NO_DECISIONS)) is None


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
