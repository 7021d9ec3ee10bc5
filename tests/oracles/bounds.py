"""Every bound that the solver can produce, on one instance, against the optimum.

The optimum comes from exhaustive search, or where there are too many operations from the model of
all operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from ppopt import Objective, Pipeline, SolveParams, Status, Verdict, solve, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.rechecker import check
from ppopt.rechecker.claim import Claim
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import device_bounds, relaxation_bound, subset_selection
from ppopt.solver.budget import SolverLimits
from ppopt.solver.dynamic_programming.applicability import is_supported
from ppopt.solver.parameters import RelaxationParams
from ppopt.solver.portfolio import NAMES
from tests.factories import searches
from tests.factories.instances import Case, draw
from tests.oracles import exhaustive

EXHAUSTIVE = 13
"""Most operations of an instance for exhaustive search."""


class Sample(NamedTuple):
    """One bound of one instance; None stands for: no schedule keeps the limits."""

    source: str
    """What produced it."""
    bound: int | None
    optimum: int | None
    case: Case
    objective: Objective

    @property
    def sound(self) -> bool:
        """Whether the bound is not above the optimum."""
        if self.bound is None or self.optimum is None:
            return self.optimum is None
        return self.bound <= self.optimum

    @property
    def tight(self) -> bool:
        """Whether it is the optimum."""
        return self.bound == self.optimum


def cases(seed: int, count: int) -> Iterator[Case]:
    """Small pipelines of every kind, most of up to 3 devices, some of 4 to 9."""
    rng = Random(seed)
    for index in range(count):
        fixed = {"routes": 2} if rng.random() < 0.2 else {}
        if index % 5 == 4:
            devices = rng.choice((4, 4, 5, 5, 6, 9))
            yield draw(rng, devices=devices, batches=4, ops=36, **fixed)
        else:
            devices = rng.choice((1, 2, 2, 3, 3, 3))
            yield draw(rng, devices=devices, batches=4, ops=EXHAUSTIVE, **fixed)


def optimum(case: Case, objective: Objective) -> int | None:
    """Least value in ticks; None where no schedule keeps the limits."""
    pipeline, fused = case
    operations = (2 if fused else 3) * pipeline.num_stages * pipeline.batches
    if operations <= EXHAUSTIVE:
        return exhaustive.best(pipeline, fused=fused, objective=objective.value)
    return by_model(pipeline, fused=fused, objective=objective)


def by_model(
    pipeline: Pipeline, *, fused: bool, objective: Objective = Objective.MAKESPAN
) -> int | None:
    """Value in ticks of a schedule that CP-SAT's model of all operations alone proves best.

    None: it proves that nothing keeps the limits. The schedule is verified, so that no true bound
    is above its value.
    """
    result = solve(
        pipeline,
        objective=objective,
        backward_kind=BackwardKind.uniform(fused=fused),
        workers=1,
        time_limit=600,
        params=SolveParams(without=frozenset(NAMES) - {"list scheduling", "full model"}),
    )
    if result.status is Status.INFEASIBLE:
        return None
    assert result.status is Status.OPTIMAL and verify(result.schedule) == []
    return result.schedule.metrics.value_ticks(objective)


def samples(case: Case, objective: Objective, best: int | None) -> Iterator[Sample]:
    """What the search claims in all, and what each of its bounds says alone."""
    pipeline, fused = case
    problem = Problem(pipeline, objective, BackwardKind.uniform(fused=fused))

    def sample(source: str, bound: int | None) -> Sample:
        return Sample(source, bound, best, case, objective)

    for seconds in (20.0, 0.02):
        result = solve(
            pipeline,
            objective=objective,
            backward_kind=BackwardKind.uniform(fused=fused),
            workers=1,
            time_limit=seconds,
        )
        if result.status is Status.INFEASIBLE:
            yield sample("search, infeasible", None)
            continue
        assert result.lower_bound is not None
        ended = "search" if result.status is Status.OPTIMAL else "search, cut short"
        yield sample(ended, int(result.lower_bound * pipeline.ticks.per_unit))
    yield sample("work", device_bounds.device_bound(problem.instance, objective).value)
    if best is None:
        return
    for devices in device_sets(case):
        value = relaxation(case, objective, devices, horizon=3 * best + 7)
        yield sample(f"{len(devices)} of several devices", value)
        if is_supported(problem):
            value = searches.ended(problem, devices, below=3 * best + 8).lower_bound
            yield sample(f"{len(devices)} of several devices, partial schedules", value)


def device_sets(case: Case) -> list[tuple[int, ...]]:
    """The sets that searches relax to, and one more at random."""
    pipeline = case.pipeline
    sets = subset_selection.single_devices(pipeline)
    for count in RelaxationParams().subset_sizes:
        sets += subset_selection.evenly_spaced_subsets(pipeline, count)
    rng = Random(pipeline.num_stages)
    devices = range(pipeline.num_devices)
    some = tuple(sorted(rng.sample(devices, rng.randint(1, len(devices)))))
    return [*dict.fromkeys([*sets, some])]


def relaxation(case: Case, objective: Objective, devices: tuple[int, ...], horizon: int) -> int:
    """What some devices alone need, in ticks, starting from no known bound."""
    problem = Problem(case.pipeline, objective, case.backward_kind)
    nothing = Bound(0, "", Certificate(Argument.WORK))
    limits = SolverLimits(seconds=20, workers=1, seed=0)
    return relaxation_bound.raise_by_subset(problem, devices, nothing, horizon, limits)[0].value


def rechecked(sample: Sample, devices: tuple[int, ...] = ()) -> Verdict:
    """What the re-checker says of a bound."""
    span = sample.objective is Objective.DEVICE_SPAN
    claim = Claim(
        sample.case.pipeline,
        span,
        BackwardKind.uniform(fused=sample.case.fused),
        sample.bound,
        devices,
    )
    return check(claim, 30.0, 1, 1, lambda _: None).verdict
