"""Simulated annealing over priority-rule parameters.

List scheduling decodes a rule into a schedule (Kirkpatrick, Gelatt, Vecchi, Science 220, 1983). A
search has a number of evaluations, not a time, so that it is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ppopt.problem.objective import Objective
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.schedule.list_scheduling import ListSchedule, ListScheduler, PriorityRule
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import AnnealingParams


class RuleAnnealing(Method):
    """Search around the best priority rules, and apply double justification to each result."""

    name = "rule annealing"
    handles = handled(ArgumentClass.COMPUTE, (Trait.ROUTES, Trait.SPAN))

    def __init__(self, pool: Pool, rng: Random, params: AnnealingParams) -> None:
        self._pool = pool
        self._rng = rng
        self._params = params
        self._steps = pool.params.steps(pool.problem.num_operations)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search for a number of steps around each rule; the next turn has twice as many."""
        pool, objective = self._pool, self._pool.problem.objective
        if pool.out_of_time(budget):
            return Outcome(exhausted=True)
        for index, (value, rule) in enumerate(pool.rules):
            if budget.over:
                break
            pool.rules[index] = anneal(
                pool.scheduler,
                rule,
                value,
                objective,
                steps=self._steps,
                rng=self._rng,
                report=lambda built: pool.submit_built(built, incumbent),
                stop=lambda: self._pays(budget),
                params=self._params,
            )
            built = pool.scheduler.build(pool.rules[index][1])
            if built is not None and not pool.out_of_time(budget):
                pool.add(*pool.justify_orders(built.arrays(), incumbent, budget))
        pool.rules.sort()
        self._steps *= 2
        return Outcome(budget.spent)

    def _pays(self, budget: Budget) -> bool:
        """Charge a step to the budget; return whether the budget is used up."""
        budget.pay(self._params.step_seconds * self._pool.problem.num_operations)
        return budget.over


def anneal(
    scheduler: ListScheduler,
    start: PriorityRule,
    value: int,
    objective: Objective,
    *,
    steps: int,
    rng: Random,
    report: Callable[[ListSchedule], None],
    stop: Callable[[], bool],
    params: AnnealingParams = AnnealingParams(),
) -> tuple[int, PriorityRule]:
    """Search from a rule with this value in ticks; return the best value and its rule.

    `report` is called with every new best schedule.
    """
    best, best_value = start, value
    current, current_value = start, value
    for step in range(steps):
        if stop():
            break
        rule = _neighbour(current, scheduler, rng, params)
        built = scheduler.build(rule)
        if built is None:
            continue
        reached = built.value(objective)
        slack = params.temperature * best_value * (1 - step / steps) * rng.random()
        if reached <= current_value + slack:
            current, current_value = rule, reached
        if reached < best_value:
            best, best_value = rule, reached
            report(built)
    return best_value, best


def _neighbour(
    rule: PriorityRule, scheduler: ListScheduler, rng: Random, params: AnnealingParams
) -> PriorityRule:
    """Change one to three random entries of the rule."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        field = rng.randrange(
            len(PriorityRule._fields) - (scheduler.instance.pipeline.num_chunks == 1)
        )
        entries: list[Any] = list(rule[field])
        index = rng.randrange(len(entries))
        entries[index] = _changed(entries[index], field, rng, params)
        rule = rule._replace(**{PriorityRule._fields[field]: tuple(entries)})
    return rule


def _changed(entry: Any, field: int, rng: Random, params: AnnealingParams) -> Any:
    match PriorityRule._fields[field]:
        case "cap":
            return max(1, entry + rng.choice((-2, -1, 1, 2)))
        case "patience":
            return rng.choice(params.patiences)
        case "reserve":
            return max(0, entry + rng.choice((-2, -1, 1, 2)))
    return not entry
