"""A trait that nothing names is refused everywhere; the search then says so and stays right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ppopt
from ppopt import InputError, NotApplicableError, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.solver.arguments import ARGUMENTS, applicable
from ppopt.solver.bounds.device_bounds import known_bound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.exact.full_model import FullModel
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import FullModelParams
from ppopt.solver.problem_views import compute_view, relaxed_for, run_on_view
from ppopt.solver.result import Status
from ppopt.solver.search import Search
from ppopt.solver.warm_start import WarmStart
from ppopt.strategies import Options, Strategy, registry
from ppopt.verifier import verify
from tests.factories.traits import novel_trait


@pytest.fixture(name="novel")
def _novel(monkeypatch: pytest.MonkeyPatch) -> Trait:
    """A trait of every pipeline that no code names."""
    return novel_trait(monkeypatch)


PIPELINES: list[dict[str, Any]] = [
    {},
    {"mem_limit": 2},
    {"overlap": 2.5},
    {"link_mode": "exclusive", "p2p": 1},
    {"optimizer": 1, "unshard": 1},
    {"placement": "v", "chunks": 2},
]


def searched(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> tuple[Search, list[str]]:
    """A search that has run, and the names of the methods that took turns."""
    names: list[str] = []
    turn = Search._turn

    def recorded(search: Search, taken: Any) -> Any:
        names.append(taken.method.name)
        return turn(search, taken)

    monkeypatch.setattr(Search, "_turn", recorded)
    pipeline = Pipeline(**({"stages": 2, "batches": 3} | fields))
    search = Search(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED), SolveOptions())
    search.run(WarmStart())
    return search, names


@pytest.mark.parametrize("fields", PIPELINES)
def test_no_method_takes_a_problem_with_a_trait_that_it_does_not_name(
    fields: dict[str, Any], novel: Trait, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, names = searched(monkeypatch, fields)
    assert novel in search.problem.traits
    assert names == []
    assert search.incumbent.best is not None
    assert verify(search.incumbent.best) == []


@pytest.mark.parametrize("fields", PIPELINES)
@pytest.mark.usefixtures("novel")
def test_no_argument_bounds_a_problem_with_a_trait_that_it_does_not_name(
    fields: dict[str, Any],
) -> None:
    pipeline = Pipeline(**({"stages": 2, "batches": 3} | fields))
    result = ppopt.solve(pipeline, time_limit=600, workers=1)
    assert applicable(pipeline.traits) == ()
    assert (result.status, result.lower_bound) == (Status.FEASIBLE, 0)
    assert result.proof.startswith("trivial bound 0")
    assert result.schedule is not None


def test_every_argument_bounds_a_plain_problem() -> None:
    assert applicable(Pipeline(stages=2, batches=3).traits) == ARGUMENTS


def test_a_bound_is_relaxed_as_far_as_its_argument_needs() -> None:
    """Compute alone, then split backwards; a dynamic program needs only the latter."""
    pipeline = Pipeline(stages=2, batches=3, optimizer=1)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    incumbent = Incumbent(problem, known_bound(problem))
    assert relaxed_for(problem.traits, incumbent) is incumbent
    assert relaxed_for(SubsetDP.handles, incumbent).problem.traits == {Trait.STEP_WORK}
    assert relaxed_for(frozenset(), incumbent).problem.traits == set()


def test_a_method_on_a_view_handles_what_the_view_removes() -> None:
    pipeline = Pipeline(stages=2, batches=3, optimizer=1)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    method = FullModel(problem, FullModelParams())
    view = compute_view(Incumbent(problem, known_bound(problem)))
    assert view.removed == {Trait.STEP_WORK}
    assert run_on_view(view, method).handles == method.handles | {Trait.STEP_WORK}


LAYERS = [{"name": str(index), "forward": 1, "activation": 1} for index in range(4)]
RECOMPUTED = [{**layer, "recompute": {"time": 1, "activation": 0}} for layer in LAYERS]
OFFLOADED = [{**layer, "offload": {"memory": 1, "time": 1}} for layer in LAYERS]


@pytest.mark.parametrize(
    ("fields", "space"),
    [
        ({"model": LAYERS, "partition": "search"}, "partition"),
        ({"placement": "search"}, "placement"),
        ({"model": RECOMPUTED, "recompute": "search", "mem_limit": 4}, "recompute"),
        ({"model": OFFLOADED, "offload": "search", "mem_limit": 4}, "offload"),
    ],
)
def test_no_space_of_choices_has_a_trait_that_it_does_not_name(
    fields: dict[str, Any], space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(stages=2, batches=2, **fields)
    assert ppopt.solve(pipeline, time_limit=600, workers=1).status is Status.OPTIMAL
    novel_trait(monkeypatch)
    with pytest.raises(NotApplicableError, match=f"{space}: search knows no novelty; give"):
        ppopt.solve(replace(pipeline), time_limit=600, workers=1)


@pytest.mark.usefixtures("novel")
@pytest.mark.parametrize("strategy", registry().values(), ids=registry())
def test_no_strategy_orders_a_trait_that_it_does_not_name(strategy: Strategy) -> None:
    with pytest.raises(NotApplicableError, match=f"strategy: {strategy.name} knows no novelty"):
        strategy.apply(Pipeline(stages=4, batches=8), Options())


@pytest.mark.usefixtures("novel")
def test_studies_say_that_they_do_not_know_a_trait() -> None:
    pipeline = Pipeline(stages=2, batches=2)
    with pytest.raises(NotApplicableError, match="frontier: it knows no novelty; solve within"):
        ppopt.frontier(pipeline, time_limit=600, workers=1)
    with pytest.raises(InputError, match="partition: search knows no novelty; give counts"):
        ppopt.plan(ppopt.Model(LAYERS), devices=2, batches=2, time_limit=600, workers=1)
    compared = ppopt.compare(pipeline, time_limit=600, workers=1)
    assert [row.schedule.origin.strategy for row in compared.rows] == ["searched"]
    assert all("knows no novelty" in reason for _, reason in compared.skipped)
