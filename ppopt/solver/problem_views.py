"""Views: restrictions and relaxations of the searched problem, each with its own incumbent.

Every schedule of a restriction (all backwards split, or all whole) is a schedule of the searched
problem. Every bound of a relaxation is a bound of the searched problem. Relaxations are
`Problem.relaxed`, if backwards are mixed or some overlapped pair is shorter than one of its
operations, and compute alone, if there are other operations (transfers, work once per step). An
order of compute alone can be completed to a schedule of all operations. A view passes schedules and
bounds on to the incumbent of the searched problem, which may itself be a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ppopt.problem.features import compute_alone
from ppopt.problem.problem import Problem
from ppopt.problem.relaxations import links_as_delays
from ppopt.problem.traits import BESIDE_COMPUTE, Trait, Traits, unhandled
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.device_bounds import device_bound, known_bound
from ppopt.solver.bounds.heads_and_tails import HeadsAndTails
from ppopt.solver.bounds.proof_scope import RELAXED, of_relaxation
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome, applies
from ppopt.solver.parameters import SolveParams


class View(Incumbent):
    """The best schedule and bound of a problem whose schedules or bounds are lifted to another."""

    def __init__(
        self,
        problem: Problem,
        target: Incumbent,
        bound: Bound,
        *,
        lift_schedule: Callable[[Schedule], Schedule] | None,
        lift_bound: Callable[[Bound], Bound] | None,
        lagging: float = 1.0,
    ) -> None:
        """Create a view whose schedules and bounds are passed on to the incumbent `target`.

        `lift_schedule` and `lift_bound` convert them; None: they are not valid for the target.
        `lagging` is the share of a budget that is used while the target has a better schedule.
        """
        super().__init__(problem, bound)
        self._target = target
        self._lift_schedule, self._lift_bound = lift_schedule, lift_bound
        self._lagging = lagging

    @property
    def removed(self) -> Traits:
        """Traits of the searched problem that the problem of the view lacks."""
        target = self._target
        removed = target.problem.traits - self.problem.traits
        return removed | target.removed if isinstance(target, View) else removed

    @property
    def closed(self) -> bool:
        """Whether the problem of the view or of the target is solved."""
        return super().closed or self._target.closed

    @property
    def solved(self) -> bool:
        """Whether the problem of the view is solved and both schedules and bounds are lifted."""
        both = self._lift_schedule is not None and self._lift_bound is not None
        return both and super().closed

    def may_improve(self, value: int) -> bool:
        """Whether a schedule of this value may be better, here or for the target."""
        return super().may_improve(value) or self._target.may_improve(value)

    def submit(self, schedule: Schedule) -> None:
        """Keep a schedule if it is better, and pass it on if it may be better for the target.

        No lifted schedule is better than the schedule of the view.
        """
        if self._lift_schedule is None:
            return
        super().submit(schedule)
        if self._target.may_improve(schedule.metrics.value_ticks(self.problem.objective)):
            self._target.submit(self._lift_schedule(schedule))

    def submit_orders(self, orders: Orders | None) -> None:
        """Submit an order, if a schedule of the view is one of the target."""
        if self._lift_schedule is not None:
            super().submit_orders(orders)

    def raise_bound(self, bound: Bound) -> None:
        """Keep a bound, and pass it on if it holds for the target."""
        if self._lift_bound is not None:
            super().raise_bound(bound)
            self._target.raise_bound(self._lift_bound(bound))

    @property
    def share(self) -> float:
        """Share of a budget to use."""
        behind = None not in (self.value, self._target.value) and self.value != self._target.value
        return self._lagging if behind else 1.0

    def sync(self) -> None:
        """Copy the target's bound if it is valid here, or its value as the goal of bounds."""
        target = self._target
        if self._lift_bound is None:
            self.bound = target.bound
        elif self._lift_schedule is None:
            self.value = target.value
            if target.bound.value > self.bound.value:
                self.bound = target.bound


def restriction(problem: Problem, target: Incumbent, lagging: float) -> View:
    """View of the schedules of one kind of backward."""
    return View(
        problem,
        target,
        target.bound,
        lift_schedule=lambda schedule: schedule,
        lift_bound=None,
        lagging=lagging,
    )


def relaxation(target: Incumbent) -> View:
    """View of the bounds of `Problem.relaxed`, if that is another problem."""
    problem = target.problem.relaxed
    return View(
        problem,
        target,
        device_bound(problem.instance, problem.objective),
        lift_schedule=None,
        lift_bound=lambda bound: of_relaxation(target.problem, bound),
    )


def compute_view(target: Incumbent) -> View:
    """View of the compute of a problem alone: links are delays, and no work is once per step.

    Lifted bounds add what the other operations need at both ends. Orders are completed to schedules
    of all operations.
    """
    problem = target.problem
    compute = replace(problem, pipeline=compute_alone(problem.pipeline))
    around = HeadsAndTails.around_compute(problem)
    ends = 0 if around is None else around.compute

    def complete(schedule: Schedule) -> Schedule:
        return timing.schedule(problem.pipeline, schedule.orders, problem.objective)

    def with_ends(bound: Bound) -> Bound:
        if not ends:
            return bound
        proof = (
            f"{bound.proof}; plus {problem.pipeline.time_text(ends)} of operations before and after"
        )
        return bound._replace(value=bound.value + ends, proof=proof)

    return View(compute, target, known_bound(compute), lift_schedule=complete, lift_bound=with_ends)


def delays_view(target: Incumbent) -> View:
    """View of the bounds of all operations where links are delays."""
    delays = target.problem.relaxed_by(links_as_delays)

    def lifted(bound: Bound) -> Bound:
        return bound._replace(proof=f"{bound.proof}, where links are delays")

    return View(delays, target, target.bound, lift_schedule=None, lift_bound=lifted)


@dataclass
class OnView:
    """A method that works on a view."""

    method: Method
    view: View
    constructs: bool = False
    """Whether it continues if the problem of the view is solved: a schedule that is worse there may
    be better for the target."""

    def __post_init__(self) -> None:
        self.name = self.method.name

    @property
    def handles(self) -> Traits:
        """The traits that the method handles, and those that the view removes."""
        return self.method.handles | self.view.removed

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the method applies to the problem of the view."""
        return applies(self.method, self.view.problem)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:  # noqa: ARG002
        """Run the method on the view, unless the problem of the view is solved."""
        self.view.sync()
        if self.view.solved and not self.constructs:
            return Outcome(exhausted=True)
        return self.method.run(self.view, budget.share(self.view.share, self.view))


class BackwardPool(NamedTuple):
    """Pool of the heuristics for one kind of backward."""

    pool: Pool
    view: View | None
    """View that receives the schedules; None: the incumbent itself."""


def backward_pools(incumbent: Incumbent, params: SolveParams) -> list[BackwardPool]:
    """Pools of a search: one, or split and whole if backwards are mixed.

    `incumbent` is that of the search, or a view of its compute alone.
    """
    problem, lagging = incumbent.problem, params.rounds.lagging
    own = incumbent if isinstance(incumbent, View) else None
    return [
        BackwardPool(
            Pool(narrower, params.pool),
            restriction(narrower, incumbent, lagging) if Trait.MIXED in problem.traits else own,
        )
        for narrower in problem.restrictions
    ]


class Relaxation(NamedTuple):
    """A view whose bounds are valid for a problem, and the traits that it removes."""

    removes: Traits
    view: Callable[[Incumbent], View]


RELAXATIONS = (
    Relaxation(BESIDE_COMPUTE, compute_view),
    Relaxation(frozenset(RELAXED), relaxation),
)
"""Views that remove traits for bounds, in the order in which they are made."""


def relaxed_for(handles: Traits, incumbent: Incumbent) -> Incumbent:
    """The incumbent, or a view of it without the unhandled traits that a view can remove."""
    for removes, view in RELAXATIONS:
        if not removes.isdisjoint(unhandled(incumbent.problem.traits, handles)):
            incumbent = view(incumbent)
    return incumbent


def run_on_view(incumbent: Incumbent | None, method: Method, *, constructs: bool = False) -> Method:
    """Wrap a method to run on a view; if there is no view, return the method."""
    return OnView(method, incumbent, constructs) if isinstance(incumbent, View) else method
