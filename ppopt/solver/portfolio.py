"""The portfolio: the methods that improve the incumbent, with their shares of a round."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait, unhandled
from ppopt.solver.bounds.relaxation_bound import RelaxationBound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Budget
from ppopt.solver.exact.dynamic_program import DynamicProgram
from ppopt.solver.exact.full_model import FullModel, can_prove
from ppopt.solver.exact.target_feasibility import TargetFeasibility
from ppopt.solver.heuristics.construction import Baselines, ListScheduling
from ppopt.solver.heuristics.critical_swaps import CriticalSwaps
from ppopt.solver.heuristics.cyclic_schedules import CyclicSchedules
from ppopt.solver.heuristics.double_justification import DoubleJustification
from ppopt.solver.heuristics.iterated_local_search import IteratedLocalSearch
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.steady_state import ShortRunUnrolling
from ppopt.solver.heuristics.window_lns import WindowLNS, windows_apply
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, supported
from ppopt.solver.options import SolveOptions
from ppopt.solver.parameters import Share
from ppopt.solver.problem_views import BackwardPool, View, delays_view, relaxed_for, run_on_view
from ppopt.solver.subset_dp_process import SubsetDPProxy
from ppopt.solver.turns import Turn, Turns, TurnTaker, rounds

NAMES: tuple[str, ...] = tuple(
    method.name
    for method in (
        *(ShortRunUnrolling, ListScheduling, Baselines, DoubleJustification),
        *(SubsetDP, RelaxationBound, IteratedLocalSearch),
        *(DynamicProgram, CyclicSchedules, WindowLNS, CriticalSwaps),
        *(FullModel, TargetFeasibility),
    )
)
"""Names of all methods, including construction; `SolveParams.without` leaves methods out."""
PROVING = frozenset(
    method.name
    for method in (SubsetDP, RelaxationBound, DynamicProgram, FullModel, TargetFeasibility)
)
"""Names of the methods that raise bounds; all others only find schedules."""


def left_out_when_improving(problem: Problem) -> frozenset[str]:
    """Names of the methods to leave out if only a better schedule is wanted, and no bound.

    Where windows apply, all but window LNS.
    """
    windows = not unhandled(problem.traits, WindowLNS.handles) and windows_apply(problem)
    return frozenset(NAMES) - {WindowLNS.name} if windows else PROVING


def improvement_turns(
    incumbent: Incumbent,
    view: View | None,
    parts: list[BackwardPool],
    options: SolveOptions,
    whole: Budget,
) -> Turns:
    """Quick turns, which improve small problems; then rounds of all methods.

    `view` is the view of compute alone, if there are other operations; `whole` is the budget of
    the search.
    """
    problem, params = incumbent.problem, options.params
    portfolio = _Portfolio(incumbent, view, parts, options)
    if incumbent.value is None:
        small = problem.num_operations <= params.full_model.max_operations
        if small and not unhandled(problem.traits, FullModel.handles):
            yield Turn(FullModel(problem, params.full_model), whole.search_left)
        return
    try:
        yield from portfolio.quick_turns()
        yield from rounds(portfolio.entries(), problem, whole.seconds, params.rounds)
    finally:
        portfolio.close()


class _Portfolio:
    """The methods of one search."""

    def __init__(
        self,
        incumbent: Incumbent,
        view: View | None,
        parts: list[BackwardPool],
        options: SolveOptions,
    ) -> None:
        self._incumbent, self._view, self._parts = incumbent, view, parts
        self._params = options.params
        self._rng = Random(options.seed)
        self._justifications = [
            run_on_view(view, DoubleJustification(pool, self._params.justification))
            for pool, view in parts
        ]
        relaxed = relaxed_for(SubsetDP.handles, view or incumbent)
        self._bounded: Incumbent = relaxed
        """The incumbent, or the view of it whose bounds are proved by relaxations."""
        self._subsets = SubsetDP(relaxed.problem, self._params.subset)
        several = options.workers > 1 and relaxed is (view or incumbent)
        self._remote = SubsetDPProxy(self._subsets) if several else None

    def entries(self) -> list[TurnTaker]:
        """Methods of a round in the order of their turns."""
        shares = [*self._bounds(), *self._heuristics(), *self._windows(), *self._of_all()]
        usable = self._supported(*(method for method, _ in shares))
        return [TurnTaker(method, share) for method, share in shares if method in usable]

    def _bounds(self) -> Iterator[tuple[Method, Share]]:
        """Relaxations to subsets of devices."""
        view, params, share = self._view, self._params, self._params.rounds
        if self._remote is not None:
            yield run_on_view(view, self._remote), share.subset_dp
        else:
            yield run_on_view(self._bounded, self._subsets), share.subset_dp
        problem = self._bounded.problem
        large = problem.num_operations > params.full_model.max_operations
        yield (
            run_on_view(self._bounded, RelaxationBound(problem, params.relaxation)),
            share.relaxations_large if large else share.relaxations,
        )

    def _heuristics(self) -> Iterator[tuple[Method, Share]]:
        """Heuristics by kind of backward, and the dynamic program."""
        rng, params, share = self._rng, self._params, self._params.rounds
        for pool, view in self._parts:
            yield run_on_view(view, CyclicSchedules(pool, rng, params.cyclic)), share.cyclic
        for method in self._justifications:
            yield method, share.justification
        for pool, view in self._parts:
            yield (
                run_on_view(view, IteratedLocalSearch(pool, rng, params.local_search)),
                share.local_search,
            )
        program = DynamicProgram(self._bounded.problem, params.dynamic_program)
        yield run_on_view(self._bounded, program), share.dynamic_program

    def _windows(self) -> Iterator[tuple[Method, Share]]:
        """Windows on schedules of any kind of backward."""
        rng, params, share = self._rng, self._params, self._params.rounds
        mixed = Trait.MIXED in self._compute.problem.traits
        pool = Pool(self._compute.problem, params.pool) if mixed else self._parts[0].pool
        yield run_on_view(self._view, WindowLNS(pool, rng, params.windows)), share.windows

    def _of_all(self) -> Iterator[tuple[Method, Share]]:
        """Methods on all operations, if there are more than compute; then models of compute."""
        params, share, problem = self._params, self._params.rounds, self._incumbent.problem
        swaps = CriticalSwaps(self._rng, params.moves)
        if self._view is None:
            yield swaps, share.swaps
        else:
            yield swaps, share.swaps_over_links
            pool = Pool(problem, params.pool)
            yield WindowLNS(pool, self._rng, params.windows), share.windows
            yield FullModel(problem, params.full_model), share.full_model
            around = problem.traits & {Trait.STEP_WORK, Trait.OFFLOAD}
            if around and not can_prove(problem):
                delays = delays_view(self._incumbent)
                model = FullModel(delays.problem, params.full_model)
                yield run_on_view(delays, model), share.full_model
        compute = self._compute.problem
        yield run_on_view(self._view, FullModel(compute, params.full_model)), share.full_model
        yield (
            run_on_view(self._view, TargetFeasibility(compute, params.feasibility)),
            share.feasibility,
        )

    @property
    def _compute(self) -> Incumbent:
        """The view of compute alone, or the incumbent if there are no other operations."""
        return self._view or self._incumbent

    def quick_turns(self) -> Turns:
        """Turns before the rounds: double justification of small problems."""
        if (
            self._incumbent.problem.num_operations
            <= self._params.justification.first_max_operations
        ):
            for method in self._supported(*self._justifications):
                yield Turn(method, 0.0)

    def close(self) -> None:
        """End the process of `SubsetDPProxy`."""
        if self._remote is not None:
            self._remote.close()

    def _supported(self, *methods: Method) -> list[Method]:
        return supported(methods, self._incumbent.problem, self._params)
