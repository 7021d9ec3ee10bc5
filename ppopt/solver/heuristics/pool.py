"""Solution pool: schedules and priority rules that the heuristics of one search share."""

from __future__ import annotations

from functools import cached_property
from operator import itemgetter

from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import ListSchedule, ListScheduler, PriorityRule
from ppopt.schedule.orders import Orders
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.parameters import PoolParams

Starts = list[int]
"""Start of every operation of the network, in ticks; ABSENT: it is absent in its mode."""
ValuedStarts = tuple[int, Starts]
"""Value of a schedule in ticks, and its starts."""


class Pool:
    """Schedules and rules of one search, from which all of its heuristics start."""

    def __init__(self, problem: Problem, params: PoolParams) -> None:
        self.problem = problem
        self.params = params
        self.constructed: list[tuple[int, bool, Orders]] = []
        """Schedules to justify: value in ticks, whether it is from a priority rule, and orders."""
        self.rules: list[tuple[int, PriorityRule]] = []
        """Value in ticks and rule."""
        self.schedules: list[ValuedStarts] = []
        """Justified schedules of different values, the best first: value in ticks and starts."""
        self.alternative: ValuedStarts | None = None
        """A cyclic schedule, unrolled, from which window LNS starts too: value and starts."""

    @cached_property
    def network(self) -> OperationNetwork:
        """Network of operations of the problem."""
        return OperationNetwork(self.problem)

    @cached_property
    def scheduler(self) -> ListScheduler:
        """List scheduling of the problem."""
        return ListScheduler(self.problem.instance)

    @cached_property
    def to_justify(self) -> int:
        """Largest number of constructed schedules to justify."""
        return max(2, self.params.justified_operations // self.problem.num_operations)

    def end_construction(self) -> None:
        """Keep the best constructed schedules."""
        self.constructed.sort(key=itemgetter(0, 1))
        del self.constructed[self.to_justify :]

    def add(self, value: int, start: Starts) -> None:
        """Add a schedule, unless another one has its value or there are enough better ones."""
        if all(value != known_value for known_value, _ in self.schedules):
            self.schedules = sorted([*self.schedules, (value, start)])[: self.params.schedules]

    def add_best(self, incumbent: Incumbent) -> None:
        """Add the incumbent if it is better than all schedules of the pool."""
        best, value = incumbent.best, incumbent.value
        if best is None or value is None:
            return
        if not self.schedules or value < self.schedules[0][0]:
            self.add(value, self.network.starts(best))

    def out_of_time(self, budget: Budget) -> bool:
        """Whether the search is over or too little time is left to justify a schedule."""
        seconds = self.params.justifying_seconds * self.problem.num_operations
        return budget.search_over or budget.search_left < seconds

    def justify(self, start: Starts, incumbent: Incumbent, budget: Budget) -> ValuedStarts:
        """Justify while the value improves; submit the result and return its value and starts."""
        network = self.network
        value = network.value(start)
        for _ in range(self.params.passes):
            if self.out_of_time(budget):
                break
            justified = network.double_justified(start)
            reached = network.value(justified)
            if reached > value:
                break
            start, better, value = justified, reached < value, reached
            if not better:
                break
        self.submit(value, start, incumbent)
        return value, start

    def justify_orders(self, orders: Orders, incumbent: Incumbent, budget: Budget) -> ValuedStarts:
        """Justify the schedule of these orders; see `justify`."""
        timed = timing.schedule(self.problem.pipeline, orders, self.problem.objective)
        return self.justify(self.network.starts(timed), incumbent, budget)

    def submit(self, value: int, start: Starts, incumbent: Incumbent) -> None:
        """Submit a schedule of this value if it is better than the incumbent."""
        if incumbent.may_improve(value):
            incumbent.submit(self.network.schedule(start))

    def build(self, rule: PriorityRule, incumbent: Incumbent) -> None:
        """Add and submit the schedule of a rule, unless it gets stuck."""
        built = self.scheduler.build(rule)
        if built is not None:
            value = built.value(self.problem.objective)
            self.rules.append((value, rule))
            self.constructed.append((value, True, built.arrays()))
            self.submit_built(built, incumbent)

    def submit_built(self, built: ListSchedule, incumbent: Incumbent) -> None:
        """Submit a schedule that is, or after timing may be, better than the incumbent.

        For makespan the simulated starts are the earliest ones. For device span, later starts of
        first operations can be better.
        """
        value = built.value(self.problem.objective)
        if incumbent.may_improve(value - self._margin):
            incumbent.submit_orders(built.arrays())

    @cached_property
    def _margin(self) -> int:
        if self.problem.objective is Objective.MAKESPAN:
            return 0
        return int(self.problem.instance.durations.max())
