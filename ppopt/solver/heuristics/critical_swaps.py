"""Local search over orders: change the order of two neighbours on a critical path.

A schedule becomes shorter only if some node of its critical path moves (job shop: van Laarhoven,
Aarts, Lenstra, "Job shop scheduling by simulated annealing", Operations Research 40, 1992). A step
takes a node that waits for the one before it on its device or link, and moves it in front of that
one or of earlier ones. A worse schedule is accepted now and then, and after a while without gain
the search goes on from the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.order_network import OrderNetwork, Sequences
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import LinkParams
from ppopt.solver.result import Result
from ppopt.solver.views import as_delays


class CriticalSwaps:
    """Local search from the best schedule over the orders of devices and links.

    It shortens the makespan. Where the objective is the device span, the orders that it ends with
    are kept if they are better by that.
    """

    name = "critical swaps"

    def __init__(self, rng: Random, params: LinkParams) -> None:
        self._rng, self._params = rng, params
        self._steps = params.first_steps

    def supports(self, problem: Problem) -> bool:
        """All but those for which `IteratedLocalSearch` does as well."""
        return problem.pipeline.has_links or problem.mixed or not is_plain(problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Take a number of steps; the next turn takes twice as many."""
        if incumbent.best is None:
            return Outcome()
        network, before = OrderNetwork(incumbent.best), incumbent.value
        left = self._steps

        def over(_: int) -> bool:
            nonlocal left
            left -= 1
            budget.pay(self._params.step_seconds * network.size)
            return left < 0 or budget.left <= 0 or (left % 64 == 0 and budget.over)

        sequences = improve(network, self._rng, self._params, incumbent.bound.value, over)
        incumbent.submit(network.schedule(sequences, incumbent.problem.objective))
        self._steps *= 2
        return Outcome(budget.spent, fruitful=incumbent.value != before)


class LongerDelays:
    """Orders of searches in which links are longer delays, as if transfers waited for others."""

    name = "longer delays"

    def __init__(self, solve: Callable[[Problem, float], Result], params: LinkParams) -> None:
        """`solve` searches a problem for so many seconds."""
        self._solve, self._share = solve, params.factor_share
        self._factors = list(params.factors)

    def supports(self, problem: Problem) -> bool:
        """Problems whose links are resources."""
        return problem.pipeline.has_links

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search with delays longer by the next factor."""
        problem, clock = incumbent.problem, budget.clock
        seconds = min(self._share * clock.seconds, clock.left)
        if not self._factors or seconds <= 0:
            return Outcome(exhausted=True)
        longer = _stretched(as_delays(problem.pipeline), self._factors.pop(0))
        found = self._solve(replace(problem, pipeline=longer), seconds)
        if found.schedule is not None:
            incumbent.submit_orders(found.schedule.orders)
        if found.interrupted:
            raise KeyboardInterrupt
        return Outcome(exhausted=not self._factors)


def _stretched(pipeline: Pipeline, factor: Any) -> Pipeline:
    """The pipeline with longer delays."""

    def longer(given: Any) -> Any:
        if given is None:
            return None
        return tuple(map(longer, given)) if isinstance(given, tuple) else given * factor

    plain = pipeline.without_model()
    return replace(plain, p2p=longer(plain.p2p), backward_p2p=longer(plain.backward_p2p))


def improve(
    network: OrderNetwork,
    random: Random,
    params: LinkParams,
    bound: int,
    over: Callable[[int], bool],
) -> Sequences:
    """Orders of least makespan found, until it is `bound` (ticks) or `over(value)` says so.

    `over` is asked before every step, with the best makespan in ticks.
    """
    present = best = network.start
    ends = network.ends(present)
    assert ends is not None, "a schedule has no circle"
    value = least = max(ends)
    since = 0
    while least > bound and not over(least):
        since += 1
        moved = _moved(network, present, ends, random)
        reached = None if moved is None else network.ends(moved)
        if moved is not None and reached is not None:
            length = max(reached)
            if length <= value + params.temperature * least * random.random() ** 3:
                present, ends, value = moved, reached, length
        if value < least:
            best, least, since = present, value, 0
        elif since >= params.patience:
            present, since = best, 0
            ends = network.ends(best)
            assert ends is not None
            value = least
    return best


def _moved(
    network: OrderNetwork, sequences: Sequences, ends: list[int], random: Random
) -> Sequences | None:
    """The orders after one move; None where it does not keep the memory limit, or there is none."""
    arcs = _critical_arcs(network, sequences, ends, random)
    if not arcs:
        return None
    machine, place = random.choice(arcs)
    sequence = sequences[machine]
    target = place - 1
    while target > 0 and random.random() < 0.3:
        target -= 1
    node = sequence[place]
    changed = [*sequence[:target], node, *sequence[target:place], *sequence[place + 1 :]]
    if machine < network.pipeline.num_devices and not network.fits(machine, changed):
        return None
    return [*sequences[:machine], changed, *sequences[machine + 1 :]]


def _critical_arcs(
    network: OrderNetwork, sequences: Sequences, ends: list[int], random: Random
) -> list[tuple[int, int]]:
    """Machine and place of the nodes of a critical path that wait for the one before them there."""
    where = {
        node: (machine, place)
        for machine, sequence in enumerate(sequences)
        for place, node in enumerate(sequence)
    }
    last = max(ends)
    node = random.choice([one for one, end in enumerate(ends) if end == last])
    arcs = []
    while True:
        start = ends[node] - network.duration[node]
        machine, place = where[node]
        causes = [before for before, lag in network.before[node] if ends[before] + lag == start]
        ahead = sequences[machine][place - 1] if place else None
        waits = ahead is not None and ends[ahead] == start
        if waits and all(ahead != before for before, _ in network.before[node]):
            arcs.append((machine, place))
        if waits and ahead is not None:
            causes.append(ahead)
        if not causes or start == 0:
            return arcs
        node = random.choice(causes)
