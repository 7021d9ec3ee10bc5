"""The portfolio: the methods that improve the incumbent, with their shares of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait, unhandled
from ppopt.solver.bounds.relaxation_bound import RelaxationBound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Clock
from ppopt.solver.exact.dynamic_program import BeamSearch, DynamicProgram
from ppopt.solver.exact.full_model import FullModel, can_prove
from ppopt.solver.exact.target_feasibility import TargetFeasibility
from ppopt.solver.heuristics.annealing import RuleAnnealing
from ppopt.solver.heuristics.construction import HandStrategies, ListScheduling
from ppopt.solver.heuristics.critical_swaps import CriticalSwaps, LongerDelays
from ppopt.solver.heuristics.iterated_local_search import IteratedLocalSearch
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.starting_schedules import (
    CyclicSchedules,
    DoubleJustification,
    ExpediteBackwards,
)
from ppopt.solver.heuristics.steady_state import ShortRunUnrolling
from ppopt.solver.heuristics.window_lns import WindowLNS
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, supported
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import Share
from ppopt.solver.problem_views import BackwardPool, View, delays_view, on, relaxed_for
from ppopt.solver.result import Result
from ppopt.solver.subset_dp_process import SubsetDPProxy
from ppopt.solver.turns import Turn, Turns, TurnTaker, rounds

NAMES: tuple[str, ...] = tuple(
    method.name
    for method in (
        *(ShortRunUnrolling, ListScheduling, HandStrategies, DoubleJustification),
        *(SubsetDP, RelaxationBound, ExpediteBackwards, IteratedLocalSearch, RuleAnnealing),
        *(BeamSearch, DynamicProgram, CyclicSchedules, WindowLNS, FullModel, TargetFeasibility),
        *(CriticalSwaps, LongerDelays),
    )
)
"""Names of all methods, including construction; `SolveParams.without` leaves methods out."""
PROVING = frozenset(
    method.name
    for method in (SubsetDP, RelaxationBound, DynamicProgram, FullModel, TargetFeasibility)
)
"""Names of the methods that raise bounds; all others only make schedules."""


def improvement_turns(
    incumbent: Incumbent,
    view: View | None,
    parts: list[BackwardPool],
    options: SolveOptions,
    clock: Clock,
    solve: Callable[[Problem, float], Result],
) -> Turns:
    """Quick turns, which improve small problems; then rounds of all methods.

    `view` shows compute alone, if there are other operations. `solve` searches another problem for
    a number of seconds.
    """
    problem, params = incumbent.problem, options.params
    portfolio = _Portfolio(incumbent, view, parts, options, solve)
    if incumbent.value is None:
        small = problem.operations <= params.full_model.most_operations
        if small and not unhandled(problem.traits, FullModel.handles):
            yield Turn(FullModel(problem, params.full_model), clock.left)
        return
    try:
        yield from portfolio.quick_turns()
        yield from rounds(portfolio.entries(), problem, clock.seconds, params.rounds)
    finally:
        portfolio.close()


class _Portfolio:
    """The methods of one search."""

    def __init__(
        self,
        incumbent: Incumbent,
        own: View | None,
        parts: list[BackwardPool],
        options: SolveOptions,
        solve: Callable[[Problem, float], Result],
    ) -> None:
        seen = own or incumbent
        problem = seen.problem
        self._problem = incumbent.problem
        self._params = params = options.params
        rng = Random(options.seed)
        relaxed = relaxed_for(SubsetDP.handles, seen)
        bounded = relaxed.problem
        subsets = SubsetDP(bounded, params.subset)
        several = options.workers > 1 and relaxed is seen
        self._remote = SubsetDPProxy(subsets, params.remote) if several else None
        self._justifications = [
            on(view, DoubleJustification(pool, params.justification)) for pool, view in parts
        ]
        full_model = on(own, FullModel(problem, params.full_model))
        share = params.rounds
        mixed = Trait.MIXED in problem.traits
        pools = [Pool(problem, params.pool)] if mixed else []
        views = [view for _, view in parts if view is not None]
        large = problem.operations > params.full_model.most_operations
        self._shares: tuple[tuple[Method, Share], ...] = (
            (
                on(own, self._remote) if self._remote else on(relaxed, subsets),
                share.subset_dp_remote if several else share.subset_dp,
            ),
            (
                on(relaxed, RelaxationBound(bounded, params.relaxation)),
                share.relaxations_large if large else share.relaxations,
            ),
            *((method, share.justification) for method in self._justifications),
            *(
                (on(view, method), part)
                for pool, view in parts
                for method, part in (
                    (ExpediteBackwards(pool, params.justification), share.justification),
                    (IteratedLocalSearch(pool, rng, params.local_search), share.local_search),
                    (RuleAnnealing(pool, rng, params.annealing), share.annealing),
                    (BeamSearch(pool.problem, params.dynamic_program), share.beam),
                )
            ),
            (
                on(relaxed, DynamicProgram(bounded, params.dynamic_program)),
                share.dynamic_program,
            ),
            *(
                (
                    on(view, DynamicProgram(pool.problem, params.dynamic_program)),
                    share.dynamic_program,
                )
                for pool, view in parts
                if mixed
            ),
            *(
                (on(view, method), part)
                for pool, view in parts
                for method, part in (
                    (CyclicSchedules(pool, rng, params.cyclic), share.cyclic),
                    (WindowLNS(pool, rng, params.windows), share.windows),
                )
            ),
            *(
                (on(own, WindowLNS(pool, rng, params.windows, views)), share.windows)
                for pool in pools
            ),
            *self._orders(incumbent, own, rng, solve),
            (full_model, share.full_model),
            (on(own, TargetFeasibility(problem, params.questions)), share.questions),
        )

    def _orders(
        self,
        incumbent: Incumbent,
        view: View | None,
        rng: Random,
        solve: Callable[[Problem, float], Result],
    ) -> tuple[tuple[Method, Share], ...]:
        """Methods that work on the problem of the search itself, not on a view of it."""
        share = self._params.rounds
        swaps = CriticalSwaps(rng, self._params.moves)
        if view is None:
            return ((swaps, share.swaps),)
        problem = self._problem
        return (
            (swaps, share.swaps_over_links),
            (WindowLNS(Pool(problem, self._params.pool), rng, self._params.windows), share.windows),
            (LongerDelays(solve, self._params.links), share.longer_delays),
            (FullModel(problem, self._params.full_model), share.full_model),
            *self._delays(incumbent),
        )

    def _delays(self, incumbent: Incumbent) -> Iterator[tuple[Method, Share]]:
        """The full model where links are delays, if it proves more there than for compute alone."""
        around = self._problem.traits & {Trait.STEP_WORK, Trait.OFFLOAD}
        if around and not can_prove(self._problem):
            view = delays_view(incumbent)
            model = FullModel(view.problem, self._params.full_model)
            yield on(view, model), self._params.rounds.full_model

    def entries(self) -> list[TurnTaker]:
        """Methods of a round in the order of their turns."""
        kept = self._supported(*(method for method, _ in self._shares))
        return [TurnTaker(method, share) for method, share in self._shares if method in kept]

    def quick_turns(self) -> Turns:
        """Turns before the rounds: double justification of small problems."""
        if self._problem.operations <= self._params.justification.first_most:
            for method in self._supported(*self._justifications):
                yield Turn(method, 0.0)

    def close(self) -> None:
        """End the process of `SubsetDPProxy`."""
        if self._remote is not None:
            self._remote.close()

    def _supported(self, *methods: Method) -> list[Method]:
        return supported(methods, self._problem, self._params)
