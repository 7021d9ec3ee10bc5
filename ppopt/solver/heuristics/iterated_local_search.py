"""Iterated local search over schedules: perturb, justify, accept if not much worse.

Each step shifts the operations of a time interval, on all or some devices, by random amounts (one
per operation, or one per kind and device). Double justification then times a schedule in that order
(`ppopt.solver.heuristics.operation_network`). A turn is a number of steps, not a time, so that the
search is deterministic with one worker.

Lourenco, Martin, Stutzle, "Iterated local search", Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

from random import Random

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.schedule import timing
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool, Starts
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.heuristics.window_lns import windows_apply
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import LocalSearchParams


class IteratedLocalSearch(Method):
    """Search around the best schedule of the pool and, alternately, around the others.

    A better schedule may be near a worse one even if none is near the best one.
    """

    name = "iterated local search"
    handles = handled(ArgumentClass.COMPUTE, (Trait.ROUTES, Trait.SPAN))

    def __init__(self, pool: Pool, rng: Random, params: LocalSearchParams) -> None:
        self._pool = pool
        self._params = params
        self._rng = np.random.default_rng(rng.getrandbits(32))
        self._steps = pool.params.steps(pool.problem.num_operations)

    def supports(self, problem: Problem) -> bool:
        """Whether windows, which improve schedules more, do not apply."""
        return Trait.SPAN in problem.traits or not windows_apply(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search for a number of steps from each schedule; the next turn has twice as many."""
        pool = self._pool
        if pool.out_of_time(budget):
            return Outcome(exhausted=True)
        if pool.schedules:
            pool.add_best(incumbent)
        for turn in range(2 * len(pool.schedules)):
            if self._stops(budget):
                break
            index = (turn + 1) // 2 if turn % 2 else 0
            _, start = pool.schedules.pop(min(index, len(pool.schedules) - 1))
            start = self.search(start, incumbent, budget)
            pool.add(pool.network.value(start), start)
        self._steps *= 2
        return Outcome(budget.spent)

    def _stops(self, budget: Budget) -> bool:
        return budget.over or self._pool.out_of_time(budget)

    def search(self, start: Starts, incumbent: Incumbent, budget: Budget) -> Starts:
        """Search from these starts; submit every improvement and return the best starts."""
        rng, network, params = self._rng, self._pool.network, self._params
        best, best_start = network.value(start), start
        value, since = best, 0
        for _ in range(self._steps):
            if self._stops(budget):
                break
            budget.pay(params.step_seconds * network.size)
            neighbour = self._neighbour(start, value)
            reached = network.value(neighbour)
            if reached < value:
                reached, neighbour = self._pool.justify(neighbour, incumbent, budget)
            since += 1
            if reached <= value + params.temperature * best * rng.random() ** 3:
                start, value = neighbour, reached
            if reached < best:
                best, best_start, since = reached, neighbour, 0
                self._pool.submit(best, best_start, incumbent)
            elif since >= params.patience:
                start, value, since = best_start, best, 0
        return best_start

    def _neighbour(self, start: Starts, value: int) -> Starts:
        """Perturbed and justified starts.

        On devices whose memory limit is not a number of microbatches, justification preserves the
        order of allocations and frees. Repair by list scheduling can change that order.
        """
        network = self._pool.network
        keys = self._disturbed(start, value)
        if not network.tight or self._rng.random() < 0.5:
            return network.double_justified(start, keys)
        problem = network.problem
        orders = repair(network.schedule([int(key) for key in keys]), problem.instance)
        if orders is None:
            return start
        schedule = timing.schedule(problem.pipeline, orders, problem.objective)
        return network.double_justified(network.starts(schedule))

    def _disturbed(self, start: Starts, value: int) -> list[float]:
        """Ends of the operations, some shifted at random: the keys of the backward pass."""
        network, params = self._pool.network, self._params
        rng, begins = self._rng, np.array(start, dtype=np.int64)
        times = network.times
        strength = times.mean() * rng.choice(params.strengths)
        length = rng.choice(params.stretches) * value
        earliest = rng.random() * (value + length) - length
        chosen = (begins >= earliest) & (begins <= earliest + length)
        devices = network.problem.pipeline.num_devices
        if rng.random() < 0.3:
            chosen &= (rng.random(devices) < 0.25)[network.table.resource]
        if rng.random() < 0.5:
            group: Ints = network.table.resource * 4 + network.kind
            moves = rng.uniform(-strength, strength, 4 * devices)[group]
        else:
            moves = rng.uniform(-strength, strength, network.size)
        keys: list[float] = (begins + times + np.where(chosen, moves, 0.0)).tolist()
        return keys
