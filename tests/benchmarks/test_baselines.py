"""Plain CP-SAT against the exhaustive oracle, and what runs the sides of a race."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks import plain_cp_sat, suite
from benchmarks.outcome import Limits
from benchmarks.plain_cp_sat import Jobs
from ppopt.errors import VerificationError
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier import verify
from tests.factories.instances import tiny_cases
from tests.oracles import exhaustive

pytestmark = pytest.mark.slow

LIMITS = Limits(seconds=60.0, workers=1, seed=0)
Question = tuple[Pipeline, Objective]


def questions() -> list[Question]:
    """Tiny pipelines without operations of no length, feasible or not, each with its objective.

    In the last one 1F1B keeps the limit only with whole backwards: B takes more before W.
    """
    drawn = [case.pipeline for case in tiny_cases(11, 60, ops=15, fused=False)]
    timed = [pipeline for pipeline in drawn if all(map(min, pipeline.ticks.durations))]
    chosen = list(islice(timed, 16))
    split = Pipeline(stages=2, batches=2, activation=2, memory_b=1, mem_limit=4)
    return [
        (pipeline, tuple(Objective)[index % 2]) for index, pipeline in enumerate([*chosen, split])
    ]


def test_plain_cp_sat_finds_what_the_oracle_finds() -> None:
    seen = set()
    for pipeline, objective in questions():
        answer = plain_cp_sat.solve(pipeline, objective, LIMITS)
        expected = exhaustive.best(pipeline, fused=False, objective=objective.value)
        seen.add(answer.status)
        if expected is None:
            assert answer.status == "infeasible"
            continue
        assert (answer.status, answer.value, answer.bound) == ("optimal", expected, expected)
        assert answer.schedule is not None and verify(answer.schedule) == []
        assert min(answer.size) > 0
        assert [point.seconds for point in answer.trace] == sorted(p.seconds for p in answer.trace)
        assert answer.trace[-1][1:] == (expected, expected)
    assert seen == {"optimal", "infeasible"}


def test_starts_that_break_a_rule_are_not_taken() -> None:
    jobs = Jobs.of(Pipeline(stages=1, batches=1))
    with pytest.raises(VerificationError):
        jobs.schedule(dict.fromkeys(jobs.duration, 0))


SMALL = suite.Instance("small", "linear", Pipeline(stages=2, batches=4, mem_limit=2))
