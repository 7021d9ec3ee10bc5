"""Iterated local search over schedules: disturb the order, justify, keep what is not worse.

Each step moves operations of a stretch of time, of all devices or a few, by random amounts (each by
its own, or all of a kind on a device by one), and justifies the schedule in that order
(`ppopt.solver.heuristics.double_justification`). The search runs for a number of steps, not for a
time, so that it repeats itself.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.schedule import timing
from ppopt.solver.heuristics.double_justification import Shop
from ppopt.solver.heuristics.repair import follow

STRENGTHS = (0.5, 1, 2, 4, 8)
"""Sizes of a disturbance, in mean operation times."""
STRETCHES = (0.05, 0.1, 0.2, 0.5, 2, 2, 2, 2)
"""Lengths of the stretch of time that is disturbed, as shares of the whole."""
WARMTH = 0.001
"""Share of the value by which a step may be worse, at most."""
PASSES = 4
"""Most justifications of a schedule that keeps getting shorter."""
PATIENCE = 60
"""Steps without a better schedule after which the search returns to the best one."""


class Shaker:
    """Local search on one problem, from one schedule after another."""

    def __init__(self, shop: Shop, rng: Random, late: Callable[[], bool]) -> None:
        """`late` tells that there is no time for another justification."""
        self.shop = shop
        self._late = late
        self._rng = np.random.default_rng(rng.getrandbits(32))
        self._mean = sum(shop.time) / shop.size
        self._time: Ints = np.array(shop.time, dtype=np.int64)
        self._group: Ints = shop.hosts * 4 + shop.kind

    def settle(self, start: list[int]) -> tuple[int, list[int]]:
        """Justify as long as it helps: value in ticks and starts."""
        value = self.shop.value(start)
        for _ in range(PASSES):
            if self._late():
                break
            moved = self.shop.justified(start)
            reached = self.shop.value(moved)
            if reached > value:
                break
            start, better, value = moved, reached < value, reached
            if not better:
                break
        return value, start

    def shake(
        self,
        start: list[int],
        steps: int,
        found: Callable[[int, list[int]], None],
        stop: Callable[[], bool],
    ) -> list[int]:
        """Search from these starts; return the best ones met, `found` is told of every better."""
        rng = self._rng
        best, best_start = self.shop.value(start), start
        value, since = best, 0
        for _ in range(steps):
            if stop():
                break
            moved = self._moved(start, value)
            reached = self.shop.value(moved)
            if reached < value:
                reached, moved = self.settle(moved)
            since += 1
            if reached <= value + WARMTH * best * rng.random() ** 3:
                start, value = moved, reached
            if reached < best:
                best, best_start, since = reached, moved, 0
                found(best, best_start)
            elif since >= PATIENCE:
                start, value, since = best_start, best, 0
        return best_start

    def _moved(self, start: list[int], value: int) -> list[int]:
        """Starts disturbed and justified.

        Justification keeps to the order in which memory is taken and given back wherever that is
        more than a count of microbatches; list scheduling finds another order there.
        """
        keys = self._disturbed(start, value)
        if not self.shop.tight or self._rng.random() < 0.5:
            return self.shop.justified(start, keys)
        problem = self.shop.problem
        orders = follow(self.shop.schedule([int(key) for key in keys]), problem.pipeline)
        if orders is None:
            return start
        made = timing.schedule(problem.pipeline, orders, problem.objective)
        return self.shop.justified(self.shop.starts(made))

    def _disturbed(self, start: list[int], value: int) -> list[float]:
        """Ends of the operations, some moved at random: keys of the pass backwards."""
        rng, begins = self._rng, np.array(start, dtype=np.int64)
        strength = self._mean * rng.choice(STRENGTHS)
        length = rng.choice(STRETCHES) * value
        earliest = rng.random() * (value + length) - length
        chosen = (begins >= earliest) & (begins <= earliest + length)
        devices = self.shop.problem.pipeline.num_devices
        if rng.random() < 0.3:
            chosen &= (rng.random(devices) < 0.25)[self.shop.hosts]
        if rng.random() < 0.5:
            moves = rng.uniform(-strength, strength, 4 * devices)[self._group]
        else:
            moves = rng.uniform(-strength, strength, self.shop.size)
        keys: list[float] = (begins + self._time + np.where(chosen, moves, 0.0)).tolist()
        return keys
