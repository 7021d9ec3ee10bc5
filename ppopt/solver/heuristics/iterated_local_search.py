"""Iterated local search over schedules: disturb the order, justify, keep what is not worse.

Each step moves operations of a stretch of time, of all devices or a few, by random amounts (each
by its own, or all of a kind on a device by one), and justifies the schedule in that order
(`ppopt.solver.heuristics.double_justification`). A turn is a number of steps, not a time, so that
with one worker the search repeats itself.

Lourenco, Martin, Stutzle, "Iterated local search", Handbook of Metaheuristics, 2003.
"""

from __future__ import annotations

from random import Random

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool, Starts
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import LocalSearchParams


class IteratedLocalSearch:
    """Search around the best schedule of the pool and around another one by turns.

    The neighbourhood of the best one may hold nothing better, and that of a worse one may.
    """

    name = "iterated local search"

    def __init__(self, pool: Pool, rng: Random, params: LocalSearchParams) -> None:
        self._pool = pool
        self._params = params
        self._rng = np.random.default_rng(rng.getrandbits(32))
        self._steps = pool.params.steps(pool.problem.operations)

    def supports(self, problem: Problem) -> bool:
        """Justification knows neither overlapped pairs nor slices."""
        return is_plain(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search for a number of steps from each of some schedules; the next turn takes twice."""
        pool = self._pool
        if pool.schedules:
            pool.add_best(incumbent)
        for turn in range(2 * len(pool.schedules)):
            if self._stops(budget):
                break
            place = (turn + 1) // 2 if turn % 2 else 0
            _, start = pool.schedules.pop(min(place, len(pool.schedules) - 1))
            start = self.search(start, incumbent, budget)
            pool.add(pool.network.value(start), start)
        self._steps *= 2
        return Outcome(budget.spent)

    def _stops(self, budget: Budget) -> bool:
        return budget.over or self._pool.late(budget)

    def search(self, start: Starts, incumbent: Incumbent, budget: Budget) -> Starts:
        """Search from these starts; return the best ones met, and submit every better one."""
        rng, network, params = self._rng, self._pool.network, self._params
        best, best_start = network.value(start), start
        value, since = best, 0
        for _ in range(self._steps):
            if self._stops(budget):
                break
            budget.pay(params.step_seconds * network.size)
            moved = self._moved(start, value)
            reached = network.value(moved)
            if reached < value:
                reached, moved = self._pool.justify(moved, incumbent, budget)
            since += 1
            if reached <= value + params.warmth * best * rng.random() ** 3:
                start, value = moved, reached
            if reached < best:
                best, best_start, since = reached, moved, 0
                self._pool.submit(best, best_start, incumbent)
            elif since >= params.patience:
                start, value, since = best_start, best, 0
        return best_start

    def _moved(self, start: Starts, value: int) -> Starts:
        """Starts disturbed and justified.

        Justification keeps to the order in which memory is taken and given back wherever that is
        more than a count of microbatches; list scheduling finds another order there.
        """
        network = self._pool.network
        keys = self._disturbed(start, value)
        if not network.tight or self._rng.random() < 0.5:
            return network.double_justified(start, keys)
        problem = network.problem
        orders = repair(network.schedule([int(key) for key in keys]), problem.instance)
        if orders is None:
            return start
        made = timing.schedule(problem.pipeline, orders, problem.objective)
        return network.double_justified(network.starts(made))

    def _disturbed(self, start: Starts, value: int) -> list[float]:
        """Ends of the operations, some moved at random: keys of the pass backwards."""
        network, params = self._pool.network, self._params
        rng, begins = self._rng, np.array(start, dtype=np.int64)
        times: Ints = np.array(network.time, dtype=np.int64)
        strength = times.mean() * rng.choice(params.strengths)
        length = rng.choice(params.stretches) * value
        earliest = rng.random() * (value + length) - length
        chosen = (begins >= earliest) & (begins <= earliest + length)
        devices = network.problem.pipeline.num_devices
        if rng.random() < 0.3:
            chosen &= (rng.random(devices) < 0.25)[network.hosts]
        if rng.random() < 0.5:
            group: Ints = network.hosts * 4 + network.kind
            moves = rng.uniform(-strength, strength, 4 * devices)[group]
        else:
            moves = rng.uniform(-strength, strength, network.size)
        keys: list[float] = (begins + times + np.where(chosen, moves, 0.0)).tolist()
        return keys
