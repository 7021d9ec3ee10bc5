"""Evaluates a strategy on many partitions and choices of recompute at once.

The order of most strategies does not depend on times, so one order is timed on hundreds of
configurations at once (`ppopt.schedule.order_columns`). If the order depends on times, the order of
the best known configuration approximates the orders of its neighbours; the end of a descent is then
evaluated with its own order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.traits import Trait, unhandled
from ppopt.schedule import timing
from ppopt.schedule.order_columns import BY_COSTS, OrderColumns
from ppopt.schedule.orders import portable
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.heuristics.first_schedules import AcceptsPartition
from ppopt.strategies import Options, Strategy
from ppopt.studies.evaluate import timed
from ppopt.studies.strategy_configurations import StrategyConfigurations

MAX_NEIGHBOURS = 64
"""Maximum number of neighbours that are ranked at once; the best of them is next, if it is
better."""
FULL = 2**31
"""A number above that of any stage's recompute options."""
REFUSED = 2**60
"""Excess of a partition that the runtime does not support."""


class ConfigurationRank(NamedTuple):
    """Sort key of a configuration (smaller is better), in ticks of the costs of the space."""

    excess: int
    """Maximum excess of a device over its limit; 0: the configuration is feasible."""
    total_excess: int
    """Excess over the limits, summed over the devices."""
    value: int
    """Makespan or device span."""
    peak: int
    """Largest device peak."""


class StrategyEvaluator:
    """Ranks configurations by the schedules of one strategy; a row of an array is a key."""

    def __init__(
        self,
        configurations: StrategyConfigurations,
        rule: Strategy,
        options: Options,
        objective: Objective,
        accepts_partition: AcceptsPartition | None,
    ) -> None:
        self._space, self._rule, self._options = configurations, rule, options
        self._objective, self.accepts_partition = objective, accepts_partition
        space, base = configurations, configurations.base
        orders = rule.built(base, options)
        if not base.has_all_operations:
            orders = portable(timing.schedule(base, orders))
        span = objective is Objective.DEVICE_SPAN
        self._own_orders = rule.adaptive or Trait.LINKS in base.traits or span
        """Whether orders depend on times."""
        not_timed = unhandled(base.traits, BY_COSTS)
        pairs = base.overlap is not None and any((order < 0).any() for order in orders)
        frozen = base.model is not None and base.model.layers[0].frozen
        lengthless = space.limits is not None and space.costs.lengthless
        self.one_by_one = bool(
            self._own_orders or not_timed or space.offloaded or pairs or frozen or lengthless
        )
        """Whether the rank by the order of another configuration is an estimate."""
        by_rule = self._own_orders or bool({*not_timed} - {Trait.STEP_WORK})
        self.exact = Decisions.ORDER not in base.open_decisions
        """Whether ranks are exact: no other order of the microbatches may have a better rank."""
        self.complete = self.exact and not (space.offloaded or (by_rule and space.leaves_out))
        self._order = OrderColumns.of_orders(base, orders)
        """Order by which ranks are estimated."""
        self._best: ConfigurationRank | None = None
        """Rank of the schedule that has this order; None: the order is that of the base."""
        self._exceeded: Bools = np.zeros(base.num_devices, dtype=bool)
        """Whether every device exceeds its limit in the configuration that was ranked last."""

    @property
    def together(self) -> int:
        """Best number of configurations to rank at once."""
        return 1 if self.one_by_one else self._order.together

    def ranks(self, keys: Ints) -> Ints:
        """Exact rank of every configuration: `[configuration, field of Rank]`."""
        if self.one_by_one:
            return np.concatenate([self._own_rank(key) for key in keys[:, None]])
        return self.estimates(keys)

    def best_estimate(self, keys: Ints) -> tuple[ConfigurationRank, Key]:
        """Best configuration by the order of the best known one, with its estimated rank."""
        estimates = self.estimates(keys)
        best = int(np.lexsort(estimates.T[::-1])[0])
        return ConfigurationRank(*estimates[best].tolist()), tuple(keys[best].tolist())

    def estimates(self, keys: Ints) -> Ints:
        """Ranks by the order of the best known configuration."""
        size = self._order.together
        parts = [keys[low : low + size] for low in range(0, len(keys), size)]
        return np.concatenate([self._estimates(batch) for batch in parts])

    def _estimates(self, keys: Ints) -> Ints:
        table = self._space.table(keys)
        values = self._order.values_by_costs(table, self._objective)
        return self._ranks_of(keys, values, self._order.peaks(table))

    def _own_rank(self, keys: Ints) -> Ints:
        """Rank of one configuration by the schedule with its own order."""
        pipeline = self._space.pipeline(tuple(keys[0].tolist()))
        schedule = timed(pipeline, self._rule.name, self._objective, self._options)
        value = np.array([schedule.metrics.value_ticks(self._objective)])
        peaks = np.array(schedule.metrics.peak_memory_ticks)[:, None]
        ranks = self._ranks_of(keys, value, peaks)
        rank = ConfigurationRank(*ranks[0].tolist())
        if self._own_orders and (self._best is None or rank < self._best):
            self._best, self._order = (
                rank,
                OrderColumns.of_orders(self._space.base, portable(schedule)),
            )
        return ranks

    def _ranks_of(self, keys: Ints, values: Ints, peaks: Ints) -> Ints:
        """Ranks of configurations by their values and by their peaks, `[device, configuration]`."""
        limits = self._space.limits
        excess = np.maximum(peaks - (peaks if limits is None else limits), 0)
        self._exceeded = excess[:, -1] > 0
        largest = excess.max(axis=0)
        if self.accepts_partition is not None:
            counts, _ = self._space.split(keys)
            accepted = [self.accepts_partition(tuple(row)) for row in counts.tolist()]
            largest = np.where(accepted, largest, REFUSED)
        return np.stack([largest, excess.sum(axis=0), values, peaks.max(axis=0)], axis=1)

    def start(self, key: Key) -> Key:
        """Key of the same partition with the minimum recompute within the limits."""
        return tuple(self._with_min_recompute(np.array([key]))[0].tolist())

    def repaired(self, key: Key, steps: int, *, full: bool) -> Key:
        """Key with more recompute on the devices that exceeded their limits at the last rank.

        The configuration's own order may need more memory than the estimate's. If all layers there
        already recompute, or with `full`, all layers of all devices recompute.
        """
        if not self.one_by_one:
            return key
        repaired = self._space.with_more_recompute(key, self._exceeded, steps)
        if full or repaired == key:
            everywhere = np.ones_like(self._exceeded)
            repaired = self._space.with_more_recompute(key, everywhere, FULL)
        return repaired

    def neighbours(self, key: Key) -> Iterator[Ints]:
        """Neighbours of a configuration in batches, in random order.

        These are keys after a move of one layer, each with the same recompute and with the minimum
        that fits, and keys with other recompute.
        """
        space, together = self._space, self._order.together
        layer_moves, rechosen = map(
            space.random.permutation, (space.after_layer_move(key), space.rechosen(key))
        )
        batches = max(1, -(-len(layer_moves) // min(MAX_NEIGHBOURS, together)))
        for offset in range(batches):
            own = layer_moves[offset::batches]
            keys = [self._with_min_recompute(own)]
            if space.optional:
                keys += [own, rechosen[offset::batches]]
            if any(map(len, keys)):
                yield np.concatenate(keys)

    def perturbed(self, key: Key) -> Key:
        """Key after some random moves, with the same recompute or with the minimum that fits."""
        near = self._space.after_random_moves(key)
        if not (self._space.cut and self._space.optional):
            return near
        keys = np.concatenate([np.array([near]), self._with_min_recompute(np.array([near]))])
        return self.best_estimate(keys)[1]

    def _with_min_recompute(self, keys: Ints) -> Ints:
        """Keys of the same partitions with the minimum recompute within the limits, or else full.

        All stages of a device have the option of the same index, or their last option. Bisection
        finds the smallest index with which the device is within its limit.
        """
        space = self._space
        if not space.optional or space.limits is None or not len(keys):
            return keys
        counts, _ = space.split(keys)
        options = space.option_table(counts)

        def with_numbers(devices: Ints) -> Ints:
            numbers = np.minimum(devices[:, space.hosts], options.last)
            return np.concatenate([counts, numbers], axis=1)

        low = np.zeros((len(keys), space.base.num_devices), dtype=np.int64)
        high = np.full_like(low, options.last.max())
        while (low < high).any():
            middle = (low + high) // 2
            table = space.table(with_numbers(middle), options)
            fits = (self._order.peaks(table) <= space.limits).T
            low = np.where(fits, low, np.minimum(middle + 1, high))
            high = np.where(fits, middle, high)
        return with_numbers(low)
