"""Plans, also over the parallelism, on a clock that is over soon: they end, and claim no more.

Time passes by readings of the clock alone, so a case repeats on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

import ppopt
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.gpus import gpu_named
from ppopt.errors import InputError
from ppopt.report.parallel import slowdown
from ppopt.report.plan_objects import of_plan
from ppopt.studies.parallel_plan import PlanArguments, plan_parallelism
from ppopt.studies.parallel_result import ParallelPlan
from ppopt.studies.parallel_space import ParallelSpace
from ppopt.studies.plan_result import Plan, RowStatus
from tests.clock import stepping_clock
from tests.factories.configs import SMALL
from tests.fuzz import configs, judge
from tests.fuzz.category import Case, Category, Finding, SkippedError

READINGS = (1, 3, 10, 30, 100, 300, 1000)
"""Readings of the clock in the time limit of a plan."""
LIMIT = 1.0
"""Time limit in seconds of that clock."""
PLACEMENTS = (("linear",), ("v",), ("interleaved",), ("linear", "v"), ("linear", "interleaved"))


class ShortPlans(Category):
    """Plans of tiny models in tight memory."""

    name = "short-plans"
    goal = 60
    tries = 40

    def draw(self, rng: Random) -> Case:
        """Draw a model whose partitions are mostly over the limits."""
        fields = configs.draw(rng, devices=2, stages=4, more_layers=3, batches=rng.randint(1, 3))
        whole = sum(layer["activation"] + layer["static"] for layer in fields["model"])
        fields["mem_limit"] = [rng.randint(1 + whole // 4, 1 + 2 * whole) for _ in range(2)]
        return {
            "pipeline": fields,
            "placement": rng.choice(PLACEMENTS),
            "recompute": rng.choice((["none"], ["full"], ["none", "search"])),
            "readings": rng.choice(READINGS),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Plan, and hold its claims against its own rows."""
        units = ("time_unit", "memory_unit")
        fields = {key: value for key, value in case["pipeline"].items() if key not in units}
        model, devices = ppopt.Model(fields.pop("model")), fields.pop("stages")
        with pytest.MonkeyPatch.context() as patch:
            stepping_clock(patch, LIMIT, case["readings"])
            try:
                plan = ppopt.plan(
                    model, devices=devices, placement=case["placement"],
                    recompute=case["recompute"], workers=1, time_limit=LIMIT, **fields,
                )  # fmt: skip
            except InputError as refused:
                raise SkippedError(str(refused)) from None
        yield from _claims(plan, case["placement"])


def _claims(plan: Plan, placements: tuple[str, ...]) -> Iterator[Finding]:
    """The bound is that of a row or the best value; the placement is one that was asked for."""
    shown = of_plan(plan)
    if plan.schedule is not None:
        yield from judge.broken(plan.schedule)
        if shown["placement"] not in placements:
            yield Finding("other-placement", f"{shown['placement']}, asked for: {placements}")
    for row in plan.rows:
        least, own = plan.lower_bound, row.lower_bound
        if least is not None and own is not None and least > own:
            words = f"{least} over all, {own} of {row.configuration}"
            yield Finding("bound-above-row", words)
    still_open = (RowStatus.UNKNOWN, RowStatus.FEASIBLE)
    unsearched = all(row.status in still_open and not row.searches for row in plan.rows)
    if unsearched and "searched" in plan.proof.replace("not searched in time", ""):
        yield Finding("search-claimed", plan.proof)


class ParallelPlans(Category):
    """Plans over the parallelism of a small model, perhaps with all sizes."""

    name = "parallel-plans"
    goal = 20
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw GPUs, lists and the memory of a GPU."""
        lists = {
            name: rng.choice(((1,), (1, 2), (2, 4))) for name in ("tensor", "microbatch", "data")
        }
        return {
            "gpus": rng.choice((4, 8)),
            "lists": rng.choice((lists, lists, None)),
            "mem_limit": rng.choice((None, 300, 600, 1200)),
            "placement": rng.choice(PLACEMENTS),
            "readings": rng.choice(READINGS),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Plan, and hold the bound of all, and what is said of each, against the rows."""
        own = ParallelSpace(
            architecture_of(SMALL), gpu_named("h100"), case["gpus"], 16, **(case["lists"] or {})
        )
        arguments = PlanArguments(placements=case["placement"], mem_limit=case["mem_limit"])
        with pytest.MonkeyPatch.context() as patch:
            stepping_clock(patch, LIMIT, case["readings"])
            try:
                plan = plan_parallelism(own, arguments, workers=1, time_limit=LIMIT)
            except InputError as refused:
                raise SkippedError(str(refused)) from None
        yield from _rows(plan)


def _rows(plan: ParallelPlan) -> Iterator[Finding]:
    for row in plan.rows:
        if row.lower_bound is None:
            continue
        if plan.lower_bound is not None and plan.lower_bound > row.lower_bound:
            words = f"{plan.lower_bound} over all, {row.lower_bound} of {row.parallelism}"
            yield Finding("bound-above-row", words)
        may_be_faster = plan.value is not None and row.lower_bound < plan.value
        words = slowdown(row, plan.value)
        if may_be_faster and row is not plan.rows[0] and "% faster" not in words:
            yield Finding("called-slower", f"{row.parallelism}: {words}")
