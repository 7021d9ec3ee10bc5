"""Proofs name the schedules they speak of, where split and whole backwards differ."""

from ppopt import Pipeline, Status, compare, solve
from ppopt.strategies import registry


def test_a_shorter_whole_backward_is_named_in_the_proof() -> None:
    """BW = 2 < B + W = 4: the split optimum is no bound for whole backwards."""
    pipe = Pipeline(stages=3, batches=4, backward=2, weight=2, backward_input=2)
    split, whole = solve(pipe, backward_kind="split"), solve(pipe, backward_kind="whole")
    assert whole.value < split.value
    assert split.proof.endswith("backwards are all split (--backward split)")
    assert whole.proof.endswith("backwards are all whole (--backward whole)")


def test_where_splitting_loses_nothing_the_proof_says_no_more() -> None:
    pipe = Pipeline(stages=3, batches=4)
    assert solve(pipe, backward_kind="split").proof.endswith("first input")
    assert solve(pipe).proof.endswith("(BW >= B + W, and B takes no memory)")


def test_infeasible_split_names_the_limit_of_whole_backwards() -> None:
    """One stage, activation 1, B takes 1 more: 2 split, 1 whole."""
    pipe = Pipeline(stages=1, batches=2, memory_b=1, mem_limit=1)
    found = solve(pipe, backward_kind="split")
    assert found.status is Status.INFEASIBLE
    assert found.proof.endswith(
        "is 2 with every backward split, 1 with every backward whole (--backward whole)"
    )
    assert solve(pipe).status is Status.OPTIMAL


def test_a_weight_pass_holds_what_an_instant_backward_took() -> None:
    """B takes no time but memory 1; W lasts: 2 are held through it, with no search at any size."""
    pipe = Pipeline(stages=16, batches=1024, backward=1, weight=1, memory_b=1, mem_limit=1)
    found = solve(pipe, backward_kind="split", time_limit=5)
    assert found.status is Status.INFEASIBLE
    assert "device 0 needs 2" in found.proof


def test_comparing_whole_backwards_leaves_splitting_strategies_out() -> None:
    compared = compare(Pipeline(stages=4, batches=4, mem_limit="1f1b"), backward_kind="whole")
    reasons = dict(compared.skipped)
    for name, strategy in registry().items():
        assert (name in reasons) == (not strategy.fused)
    assert all(row.ratio_to_optimum is None or row.ratio_to_optimum >= 1 for row in compared.rows)
