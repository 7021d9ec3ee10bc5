"""Operations of no length: CP-SAT's orders of two by a literal and its negation refute them."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt import Objective, Pipeline, VerificationError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.refute import refute
from ppopt.solver.bounds.destructive_bounds import feasibility_model
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.exact.full_model import FullModel
from ppopt.solver.parameters import CP_SAT, FullModelParams, RelaxationParams
from tests.factories.instances import instant_cases
from tests.factories.searches import waiting
from tests.oracles.exhaustive import best

FOCUSES = {
    (CP_SAT.proof_subsolvers[0],),
    (CP_SAT.proof_subsolvers[1],),
    *RelaxationParams().focuses,
    *FullModelParams().focuses,
}
SHARED: dict[str, dict[str, Any]] = {
    "B that takes": {
        "stages": 3, "batches": 1, "placement": (1, 0, 0), "forward": 1, "backward_input": 0,
        "weight": (0, 0, 5), "activation": (0, 2, 1), "memory_b": (0, 0, 2), "mem_limit": 3,
    },
    "one way and back": {
        "stages": 3, "batches": 2, "placement": (0, 1, 0), "forward": (2, 1, 2),
        "backward_input": 0, "weight": (0, 0, 5), "activation": 3, "memory_b": (3, 2, 3),
        "mem_limit": (6, 5),
    },
    "one device": {
        "stages": 2, "batches": 3, "placement": (0, 0), "forward": 1, "backward_input": 0,
        "weight": (0, 2), "activation": (1, 2), "memory_b": (2, 1), "mem_limit": 3,
    },
    "no change by B": {
        "stages": 2, "batches": 1, "placement": (0, 1), "forward": (1, 3),
        "backward_input": (0, 2), "weight": 0, "mem_limit": 1,
    },
    "presolved too": {
        "stages": 3, "batches": 3, "placement": (0, 0, 1), "forward": (2, 2, 1),
        "backward_input": (2, 0, 2), "weight": (0, 0, 2), "activation": (1, 3, 2),
        "mem_limit": (5, 4),
    },
}  # fmt: skip


def asked(pipeline: Pipeline, value: int, limits: cpsat.SolverLimits) -> bool:
    """Whether CP-SAT refutes that there is a schedule of so much."""
    built = feasibility_model(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT), value)
    return cpsat.search(built, limits, lambda _value, _bound: None).infeasible


@pytest.mark.parametrize("name", SHARED)
def test_a_search_agrees_with_all_orders_tried(name: str) -> None:
    pipeline = Pipeline(**SHARED[name])
    for objective in Objective:
        optimum = best(pipeline, fused=False, objective=str(objective))
        assert optimum is not None
        for workers in (1, 2) if objective is Objective.MAKESPAN else (1,):
            result = ppopt.solve(pipeline, objective=objective, workers=workers, time_limit=600)
            assert result.status == "optimal"
            assert result.value == pipeline.ticks.time(optimum)


@pytest.mark.parametrize("presolve", [True, False])
def test_the_optimum_is_never_refuted(presolve: bool) -> None:
    pipelines = [Pipeline(**fields) for fields in SHARED.values()] + list(instant_cases(29, 5))
    known = [
        (pipeline, best(pipeline, fused=False, objective="makespan")) for pipeline in pipelines
    ]
    for pipeline, optimum in known:
        if optimum is None:
            continue
        for focus in FOCUSES:
            limits = cpsat.SolverLimits(20, max(1, len(focus)), 0, presolve=presolve, focus=focus)
            assert not asked(pipeline, optimum, limits), (pipeline, optimum, focus)


@pytest.mark.parametrize("workers", [1, 8])
def test_the_rechecker_refutes_no_optimum(workers: int) -> None:
    """Among eight workers are subsolvers of CP-SAT that state orders so by themselves."""
    for fields in SHARED.values():
        pipeline = Pipeline(**fields)
        optimum = best(pipeline, fused=False, objective="makespan")
        claim = Claim(pipeline, span=False, backward_kind=BackwardKind.SPLIT, bound=optimum + 1)
        refutation = refute(claim, 20.0, workers, 0, lambda _: None)
        assert refutation.schedule is not None and not refutation.refuted


def test_a_wrong_infeasible_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The re-checker is asked before anyone hears that a search found no schedule."""
    refused = cpsat.CpSatOutcome(None, 0, 0.0, ended=True, complete=False, infeasible=True)
    problem = Problem(Pipeline(**SHARED["B that takes"]), Objective.MAKESPAN, BackwardKind.SPLIT)
    search, model = waiting(problem, seconds=20), FullModel(problem, FullModelParams())
    monkeypatch.setattr(cpsat, "search", lambda *_: refused)
    with pytest.raises(VerificationError, match="lost a schedule"):
        model.run(search.incumbent, search.budget())
