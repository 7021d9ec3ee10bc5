"""Evaluates a hand strategy on many partitions and choices of recompute, for their one search.

The order of most strategies does not depend on times, so one order is timed on hundreds of
configurations at once (`ppopt.schedule.fixed_order`). If the order depends on times, the order of
the best known configuration approximates the orders of its neighbours; the end of a descent is then
evaluated with its own order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait, unhandled
from ppopt.schedule import fixed_order, timing
from ppopt.schedule.fixed_order import FixedOrder
from ppopt.schedule.orders import portable
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.choices.evaluated_search import REPAIRS, EvaluatedSearch, Evaluator, Rank
from ppopt.solver.choices.spaces import PARTITIONS, traits_of_any
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import choice_of
from ppopt.solver.options import SolveOptions
from ppopt.strategies import Options, Strategy, resolve
from ppopt.studies.evaluate import evaluate, timed
from ppopt.studies.strategy_configurations import StrategyConfigurations

FEW = 20_000
"""Most configurations that are all evaluated, if the order does not depend on times."""
FEW_ORDERS = 30
"""Most configurations that are all evaluated, if each has its own order."""
PATIENCE = 40
"""Descents without a better configuration after which a search stalls."""
PATIENCE_OF_OWN_ORDERS = 30
"""The same, if every configuration has its own order."""
NEAR = 64
"""Most neighbours that are ranked at once: the best of them is next, if it is better."""
TWICE = 256
"""Most configurations in which two layers move."""
FULL = 2**31
"""More recompute options than any stage has."""
REFUSED = 2**60
"""Excess of a partition that the runtime does not support."""

AcceptsPartition = Callable[[Counts], bool]
"""Whether a runtime supports a partition."""


class StrategyEvaluator(Evaluator):
    """Ranks configurations by the schedules of one strategy."""

    def __init__(
        self,
        configurations: StrategyConfigurations,
        rule: Strategy,
        options: Options,
        objective: Objective,
        accepts_partition: AcceptsPartition | None,
    ) -> None:
        self._space, self._rule, self._options = configurations, rule, options
        self._objective, self._accepts_partition = objective, accepts_partition
        space, base = configurations, configurations.base
        orders = rule.built(base, options)
        if not base.has_all_operations:
            orders = portable(timing.schedule(base, orders))
        span = objective is Objective.DEVICE_SPAN
        self._own_orders = rule.adaptive or Trait.LINKS in base.traits or span
        """Whether orders depend on times."""
        not_timed = unhandled(base.traits, fixed_order.HANDLES)
        pairs = base.overlap is not None and any((order < 0).any() for order in orders)
        frozen = base.model is not None and base.model.layers[0].frozen
        lengthless = space.limits is not None and space.costs.lengthless
        self._one_by_one = bool(
            self._own_orders or not_timed or space.offloaded or pairs or frozen or lengthless
        )
        """Whether the rank by the order of another configuration is an estimate."""
        by_rule = self._own_orders or bool({*not_timed} - {Trait.STEP_WORK})
        self.complete = not (space.offloaded or (by_rule and space.leaves_out))
        self.patience = PATIENCE_OF_OWN_ORDERS if self._one_by_one else PATIENCE
        self.most_evaluated = FEW_ORDERS if self._one_by_one else FEW
        """Most configurations that are all evaluated."""
        self._order = FixedOrder(base, orders)
        """Order by which ranks are estimated."""
        self._best: Rank | None = None
        """Rank of the schedule that has this order; None: the order is that of the base."""
        self._exceeded: Bools = np.zeros(base.num_devices, dtype=bool)
        """Whether the last schedule exceeds the limit of every device."""

    @property
    def together(self) -> int:
        """See `Evaluator.together`."""
        return 1 if self._one_by_one else self._order.together

    def time(self, ticks: int) -> Fraction:
        """See `Evaluator.time`."""
        return Fraction(ticks, self._space.costs.per_unit)

    def ranks(self, keys: Ints) -> Ints:
        """See `Evaluator.ranks`."""
        if self._one_by_one:
            return np.array([self._rank(tuple(key)) for key in keys.tolist()])
        return self.estimates(keys)

    def estimates(self, keys: Ints) -> Ints:
        """See `Evaluator.estimates`."""
        size = self._order.together
        parts = [keys[low : low + size] for low in range(0, len(keys), size)]
        return np.concatenate([self._estimates(part) for part in parts])

    def _estimates(self, keys: Ints) -> Ints:
        table, limits = self._space.table(keys), self._space.limits
        peaks = self._order.peaks(table)
        excess = np.maximum(peaks - (peaks if limits is None else limits), 0)
        largest = excess.max(axis=0)
        if self._accepts_partition is not None:
            counts, _ = self._space.split(keys)
            accepted = [self._accepts_partition(tuple(row)) for row in counts.tolist()]
            largest = np.where(accepted, largest, REFUSED)
        values = self._order.values(table, self._objective)
        return np.stack([largest, excess.sum(axis=0), values, peaks.max(axis=0)], axis=1)

    def _rank(self, key: Key) -> Rank:
        """Rank of the schedule with its own order, in ticks of the costs of all configurations."""
        pipeline, costs = self._space.pipeline(key), self._space.costs
        schedule = timed(pipeline, self._rule.name, self._objective, self._options)
        ticks, metrics = pipeline.ticks, schedule.metrics
        value = ticks.time(metrics.value_ticks(self._objective)) * costs.per_unit
        amounts = map(ticks.memory, metrics.peak_memory_ticks)
        peaks = np.array([int(peak * costs.memory_per_unit) for peak in amounts])
        limits = self._space.limits
        excess = np.maximum(peaks - (peaks if limits is None else limits[:, 0]), 0)
        accepted = self._accepts_partition is None or self._accepts_partition(pipeline.counts)
        largest = int(excess.max()) if accepted else REFUSED
        rank = Rank(largest, int(excess.sum()), int(value), int(peaks.max()))
        self._exceeded = excess > 0
        if self._own_orders and (self._best is None or rank < self._best):
            self._best, self._order = rank, FixedOrder(self._space.base, portable(schedule))
        return rank

    def start(self, key: Key) -> Key:
        """See `Evaluator.start`: with the least recompute within the limits."""
        return _first(self._with_least_recompute(np.array([key])))

    def repaired(self, key: Key, attempt: int) -> Key | None:
        """See `Evaluator.repaired`: the own order may hold more than the one of the estimate.

        More of the devices that exceed their limits recomputes; at last, all of all devices.
        """
        if not self._one_by_one:
            return None
        everywhere = np.ones_like(self._exceeded)
        repaired = self._space.with_more_recompute(key, self._exceeded, 2**attempt)
        if repaired == key or attempt == REPAIRS - 1:
            repaired = self._space.with_more_recompute(key, everywhere, FULL)
        return None if repaired == key else repaired

    def neighbours(self, key: Key) -> Iterator[Ints]:
        """See `Evaluator.neighbours`.

        First keys in which one layer moves, each with its recompute kept and with the least that
        fits, and keys with other recompute; at last some in which layers move twice.
        """
        space, together = self._space, self._order.together
        moved, rechosen = map(space.random.permutation, (space.moved(key), space.rechosen(key)))
        batches = max(1, -(-len(moved) // min(NEAR, together)))
        for number in range(batches):
            own = moved[number::batches]
            keys = [self._with_least_recompute(own)]
            if space.optional:
                keys += [own, rechosen[number::batches]]
            if any(map(len, keys)):
                yield np.concatenate(keys)
        twice = space.moved_twice(key, min(together, len(moved) ** 2, TWICE))
        if len(twice):
            yield self._with_least_recompute(twice)

    def perturbed(self, key: Key) -> Key:
        """See `Evaluator.perturbed`: with its recompute kept, or with the least that fits."""
        near = self._space.after_random_moves(key)
        if not (self._space.cut and self._space.optional):
            return near
        keys = np.concatenate([np.array([near]), self._with_least_recompute(np.array([near]))])
        return _first(keys[np.lexsort(self.estimates(keys).T[::-1])])

    def _with_least_recompute(self, keys: Ints) -> Ints:
        """Keys of the same partitions with the least recompute within the limits, or else full.

        All stages of a device have the option of the same number, or their last one: the least
        number with which the device is within its limit, by bisection.
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


def _first(keys: Ints) -> Key:
    return tuple(keys[0].tolist())


class StrategySearch(EvaluatedSearch):
    """The one search over configurations, for the best one of a hand strategy."""

    choice: StrategyConfigurations
    evaluator: StrategyEvaluator

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: str,
        objective: Objective,
        options: Options | None = None,
        *,
        accepts_partition: AcceptsPartition | None = None,
        seed: int = 0,
    ) -> None:
        """Search what the pipeline leaves open of partition, recompute and offload.

        `accepts_partition` says whether the runtime supports a partition; None: it supports all.
        Raises NotApplicableError if the strategy does not apply, or if times or memory are too
        finely divided to stay exact, and InputError if the strategy is unknown.
        """
        rule, self._strategy_options = resolve(strategy), options or Options()
        self._strategy, self._objective = rule.name, objective
        placed = rule.apply(replace(pipeline, mem_limit=pipeline.limits), self._strategy_options)
        kind = BackwardKind.WHOLE if rule.fused else BackwardKind.MIXED
        random = np.random.default_rng(seed)
        choice = StrategyConfigurations(placed, f"strategy {rule.name}", random)
        evaluator = StrategyEvaluator(
            choice, rule, self._strategy_options, objective, accepts_partition
        )
        choice.complete = evaluator.complete
        every = choice.every(evaluator.most_evaluated, evaluator.together)
        problem = Problem(placed, objective, kind)
        super().__init__(choice, evaluator, problem, SolveOptions(seed=seed), every)

    @property
    def refused(self) -> bool:
        """Whether the runtime supports none of the partitions evaluated."""
        return self.best is not None and self.best[0].excess >= REFUSED

    @property
    def value(self) -> Fraction:
        """Value of the best configuration, in the user's unit."""
        assert self.best is not None
        return self.evaluator.time(self.best[0].value)

    @property
    def proved(self) -> bool:
        """Whether no configuration within the limits is better, or whether none is within them."""
        return self.state.closed

    @property
    def conclusive(self) -> bool:
        """Whether every configuration that may be best was evaluated."""
        return self.all_evaluated and self.evaluator.complete

    @property
    def proof(self) -> str:
        """Text on what is proved of the best configuration."""
        if self.conclusive:
            return "every partition was tried, with every choice of recompute that may be best"
        return self.choice.proof(self.state)

    def bound_all(self, turn: Deadline, deadline: Deadline) -> None:
        """Bound all configurations for a turn, if bounds apply; they raise after the deadline.

        The bounds hold for every schedule of a partition, also with whole backwards if the
        strategy splits them.
        """
        try:
            with interrupts.heard():
                if self.choice.cut and traits_of_any(self._problem) <= PARTITIONS.handles:
                    self.choice.bounds = choice_of(self._problem, deadline)
                    self.bound(turn, self.state.value)
        except KeyboardInterrupt:
            self.interrupted = True

    def schedule(self) -> Schedule:
        """Verified schedule of the best configuration."""
        assert self.best is not None
        pipeline = self.choice.pipeline(self.best[1])
        return evaluate(pipeline, self._strategy, self._objective, self._strategy_options)
