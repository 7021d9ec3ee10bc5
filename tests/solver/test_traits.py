"""A trait that nothing names is refused everywhere; the search then says so and stays right."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt import Pipeline
from ppopt.problem import traits
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.solver.arguments import ARGUMENTS, applicable
from ppopt.solver.bounds.device_bounds import known_bound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.deadline import Deadline
from ppopt.solver.exact.full_model import FullModel
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import FullModelParams
from ppopt.solver.problem_views import compute_view, on, relaxed_for
from ppopt.solver.result import Status
from ppopt.solver.search import Search
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import verify


@pytest.fixture(name="novel")
def _novel(monkeypatch: pytest.MonkeyPatch) -> Trait:
    """A trait of every pipeline that no code names."""
    trait = str.__new__(Trait, "novel")
    trait._name_, trait._value_, trait.label = "NOVEL", "novel", "novelty"
    monkeypatch.setitem(traits.OF_PIPELINE, trait, lambda _: True)
    return trait


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
    search = Search(
        Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED), SolveOptions(Deadline.after(600))
    )
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
    found = ppopt.solve(pipeline, time_limit=600, workers=1)
    assert applicable(pipeline.traits) == ()
    assert (found.status, found.lower_bound) == (Status.FEASIBLE, 0)
    assert found.proof.startswith("trivial bound 0")
    assert found.schedule is not None


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
    assert on(view, method).handles == method.handles | {Trait.STEP_WORK}
