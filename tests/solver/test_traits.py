"""A trait that nothing names is refused everywhere; the search then says so and stays right."""

from __future__ import annotations

from typing import Any

import pytest

from ppopt import Pipeline
from ppopt.problem import traits
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
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
