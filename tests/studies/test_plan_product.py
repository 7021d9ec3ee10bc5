"""The configurations of a plan as one choice: their order, their bounds, what is known of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

import ppopt
from ppopt import Objective, PlanSpace
from ppopt.problem.backward_kind import BackwardKind
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices.enumeration import Key, Unlisted
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.choices.single import SinglePipeline
from ppopt.solver.options import checked_options
from ppopt.solver.search import problem_of
from ppopt.studies import strategy_search
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_product import PlanProduct
from ppopt.studies.plan_set_up import PlanSetUp
from tests.oracles import exhaustive
from tests.oracles.configurations import partitions
from tests.tiers import first


def drawn(seed: int) -> PlanSpace:
    """Four or five layers on two devices: one or two microbatches, one stage per device or two."""
    rng = Random(seed)
    layers = [
        {"forward": rng.randint(1, 4), "backward": rng.randint(2, 5), "activation": 1}
        for _ in range(rng.randint(4, 5))
    ]
    return PlanSpace(
        model=ppopt.Model(layers), devices=2, batches=(1, 2), recompute=("none",),
        fields={"p2p": rng.choice((0, 1))},
    )  # fmt: skip


def candidates_of(space: PlanSpace, kind: BackwardKind = BackwardKind.WHOLE) -> list[PlanCandidate]:
    """The candidate of every configuration."""
    candidates = []
    for configuration in space:
        problem = problem_of(space.pipeline(configuration), Objective.MAKESPAN, kind)
        choice = choice_of(problem) or SinglePipeline(problem)
        weight = space.weight(configuration.batches)
        candidate = PlanCandidate(configuration, problem, choice, checked_options(60, 1), weight)
        candidates.append(candidate)
    return candidates


@pytest.mark.parametrize("seed", first(2, range(6)))
def test_all_partitions_come_once_in_the_order_of_bounds_per_microbatch(seed: int) -> None:
    """Against the exhaustive optimum of each, and the number of partitions of each."""
    space = drawn(seed)
    product = PlanProduct(candidates_of(space))
    product.bound()
    state, known = product.searched(0), dict[Key, int]()
    state.raise_bound()
    while isinstance(unlisted := state.rest, Unlisted):
        assert unlisted.key is not None and unlisted.key not in known
        known[unlisted.key] = unlisted.bound
        (configuration,) = product.configurations([unlisted.key])
        configuration.impossible = True
        state.add(configuration)
        state.raise_bound()
    assert list(known.values()) == sorted(known.values())
    layers = len(space.model)
    stages = [configuration.chunks * 2 for configuration in space]
    assert len(known) == sum(len(list(partitions(layers, count))) for count in stages)
    for key, bound in known.items():
        (configuration,), pipeline = product.configurations([key]), product.pipeline(key)
        best = exhaustive.best(pipeline, fused=True, objective="makespan")
        assert best is not None
        value = best * space.weight(pipeline.batches)
        assert bound <= value and configuration.bound <= value
        assert product.key(pipeline) == key


def test_a_strategy_without_an_order_of_bounds_leaves_that_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V-Half has no order after its last partition: recompute that is dominated may suit it."""
    monkeypatch.setattr(strategy_search, "MAX_EVALUATED_ORDERS", 1000)
    layers = [
        {"forward": size, "activation": 3, "kept": retained, "recompute_time": 1}
        for size, retained in ((1, 0), (2, 1), (3, 2), (1, 3), (2, 0))
    ]
    space = PlanSpace(
        model=ppopt.Model(layers), devices=2, batches=(2,), placements=("v",), chunks=(2,),
        recompute=("search",), strategies=("v-half", "1f1b-v"), fields={"mem_limit": 9},
    )  # fmt: skip
    set_up = PlanSetUp(space, Objective.MAKESPAN, BackwardKind.MIXED, checked_options(60, 1))
    product = PlanProduct(set_up.candidates)
    product.bound()
    by_name = {each.configuration.strategy: each for each in set_up.candidates}
    evaluated = by_name["v-half"].strategy
    assert evaluated is not None
    evaluated.descend()
    assert evaluated.all_evaluated
    assert evaluated.rest((), None) == Unlisted(evaluated.lower_bound)
    state = product.searched(0)
    state.raise_bound()
    rest = state.rest
    assert isinstance(rest, Unlisted) and rest.key is not None
    assert rest.bound == evaluated.lower_bound
    assert rest.key[:1] == ([*by_name].index("1f1b-v"),)


def test_one_configuration_is_told_from_the_others() -> None:
    """The state of each has its own best value and bound, whatever the others have."""
    candidates = candidates_of(drawn(0))
    search = ConfigurationSearch(
        PlanProduct(candidates), candidates[0].problem, checked_options(60, 1)
    )
    search.search()
    best = search.state.value
    assert best is not None and search.state.closed
    for candidate in candidates:
        own = candidate
        assert own.open_bound >= best or own.value == best
        if own.value is not None:
            assert own.best is not None and own.best.result is not None
            pipeline = own.best.result.pipeline
            assert pipeline.layout == candidate.problem.pipeline.layout
            assert pipeline.batches == candidate.configuration.batches


def test_a_configuration_is_infeasible_only_if_no_partition_is_left() -> None:
    """Two of four layers on a device hold 8, and no partition has less on both."""
    layers = ppopt.Model([{"forward": 1, "activation": 4} for _ in range(4)])
    for limit, infeasible in ((7, True), (8, False)):
        space = PlanSpace(
            model=layers, devices=2, batches=(1,), recompute=("none",), chunks=(1,),
            placements=("linear",), fields={"mem_limit": limit},
        )  # fmt: skip
        (candidate,) = candidates_of(space)
        product = PlanProduct([candidate])
        search = ConfigurationSearch(product, candidate.problem, checked_options(60, 1))
        search.search()
        assert candidate.infeasible is infeasible


def test_first_partitions_end_after_two_that_are_far_behind() -> None:
    """Linear ones are 1.5 times as long as those of the other placements."""
    candidates = candidates_of(replace(drawn(1), batches=(2,)))
    product, firsts = PlanProduct(candidates), Counter[str]()
    product.bound()
    state = product.searched(0)
    for key in product.first():
        configuration = next(product.configurations([key]))
        placement = candidates[key[0]].configuration.placement
        configuration.value = 1500 if placement == "linear" else 1000
        state.add(configuration)
        state.offer(configuration)
        firsts[placement] += 1
    assert firsts["linear"] == 2
    assert min(firsts["v"], firsts["interleaved"]) > 2


def test_what_is_above_the_ceiling_is_not_scheduled_first() -> None:
    candidates = candidates_of(drawn(1))
    product = PlanProduct(candidates)
    product.bound()
    bound = product.lower_bound
    product.bound(bound)
    assert list(product.first()) == []
    product.bound(bound + 1)
    firsts = {key[:1] for key in product.first()}
    assert firsts == {prefix for prefix in product.inner if product.min_bound(prefix) == bound}
    assert candidates[0].searches == 0
