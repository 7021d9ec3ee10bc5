"""Hints: a schedule as values of all variables of a model."""

from __future__ import annotations

import pytest

import ppopt
from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.cp_sat.model import build_model, hint


@pytest.mark.parametrize("batches", [4, 6])
def test_pairs_of_a_schedule_are_hinted_and_no_others(batches: int) -> None:
    """1F1B with every steady F beside a BW, which saves time."""
    pipeline = Pipeline(stages=2, batches=batches, forward=2, backward=4, overlap=5)
    made = ppopt.evaluate(pipeline, "1f1b-overlap")
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    built = build_model(problem, horizon=made.metrics.makespan_ticks, bound=0)
    hint(built, made)
    hints = built.cp.proto.solution_hint
    value = dict(zip(hints.vars, hints.values, strict=True))
    pairs = built.variables.pairs
    together = {pair[:2] for pair, chosen in pairs.items() if value[chosen.index]}
    rows = [row for row in made.rows() if row.pair >= 0]
    codes = {}
    for row in rows:
        code = pipeline.code(row.op.kind, row.op.stage, row.op.microbatch)
        codes.setdefault(row.pair, []).append(code)
    assert len(codes) >= 2
    assert together == {tuple(sorted(pair)) for pair in codes.values()}
