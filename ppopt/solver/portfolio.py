"""The portfolio: the methods that improve the incumbent, with their shares of a round."""

from __future__ import annotations

from random import Random

from ppopt.problem.problem import Problem
from ppopt.solver.bounds.relaxation_bound import RelaxationBound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Clock
from ppopt.solver.exact.dynamic_program import BeamSearch, DynamicProgram
from ppopt.solver.exact.full_model import FullModel, TinyModel
from ppopt.solver.exact.value_questions import ValueQuestions
from ppopt.solver.heuristics.annealing import RuleAnnealing
from ppopt.solver.heuristics.iterated_local_search import IteratedLocalSearch
from ppopt.solver.heuristics.local_starts import (
    CyclicSchedules,
    DoubleJustification,
    ExpediteBackwards,
)
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.window_lns import WindowLNS
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, supported
from ppopt.solver.parameters import Share, SolveParams
from ppopt.solver.policy import Entry, Turn, Turns, rounds
from ppopt.solver.remote import RemoteSubsetDP
from ppopt.solver.result import Provenance


def improvement(
    incumbent: Incumbent, clock: Clock, pool: Pool, provenance: Provenance, params: SolveParams
) -> Turns:
    """What proves a tiny problem; then, where that does not, rounds of all methods."""
    problem = incumbent.problem
    full_model = FullModel(problem, params.full_model)
    if incumbent.value is None:
        if problem.operations <= params.full_model.most_operations:
            yield Turn(full_model, clock.left)
        return
    subsets = SubsetDP(problem, params.subset)
    remote = RemoteSubsetDP(subsets, params.remote) if provenance.workers > 1 else None
    methods = _Methods(problem, pool, provenance.seed, params)
    try:
        yield from _quick_turns(problem, methods, remote, params)
        yield from rounds(methods.entries(remote or subsets, full_model), problem, params.rounds)
    finally:
        if remote is not None:
            remote.close()


class _Methods:
    """The methods of a search, and their shares."""

    def __init__(self, problem: Problem, pool: Pool, seed: int, params: SolveParams) -> None:
        rng = Random(seed)
        self._problem = problem
        self._params = params
        self.justification = DoubleJustification(pool, params.justification)
        self._expedite = ExpediteBackwards(pool, params.justification)
        self._cyclic = CyclicSchedules(pool, rng, params.cyclic)
        self._local_search = IteratedLocalSearch(pool, rng, params.local_search)
        self._annealing = RuleAnnealing(pool, rng, params.annealing)
        self._windows = WindowLNS(pool, rng, params.windows)

    def entries(self, subsets: Method, full_model: Method) -> list[Entry]:
        """The methods of a round in the order of their turns."""
        problem, params, rounds = self._problem, self._params, self._params.rounds
        large = problem.operations > params.full_model.most_operations
        shares: list[tuple[Method, Share, int]] = [
            (subsets, rounds.subset_dp, 0),
            (
                RelaxationBound(problem, params.relaxation),
                rounds.relaxations_large if large else rounds.relaxations,
                0,
            ),
            (self.justification, Share(1), 0),
            (self._expedite, Share(1), 0),
            (self._local_search, rounds.local_search, 0),
            (self._annealing, rounds.annealing, 0),
            (BeamSearch(problem, params.dynamic_program), rounds.beam, 0),
            (DynamicProgram(problem, params.dynamic_program), rounds.dynamic_program, 0),
            (self._cyclic, rounds.cyclic, rounds.cyclic_round),
            (self._windows, rounds.windows, 0),
            (full_model, rounds.full_model, 0),
            (ValueQuestions(problem, params.questions), rounds.questions, 0),
        ]
        kept = supported((method for method, _, _ in shares), problem, params)
        return [Entry(method, share, since) for method, share, since in shares if method in kept]


def _quick_turns(
    problem: Problem, methods: _Methods, remote: RemoteSubsetDP | None, params: SolveParams
) -> Turns:
    """A few schedules justified, and of a tiny problem the full model, before the rounds."""
    if problem.operations <= params.justification.first_most:
        for method in supported([methods.justification], problem, params):
            yield Turn(method, 0.0)
    tiny = supported([TinyModel(problem, params.full_model)], problem, params)
    if tiny and remote is not None:
        for method in supported([remote], problem, params):
            yield Turn(method, 0.0)
    for method in tiny:
        yield Turn(method, params.rounds.tiny_seconds)
