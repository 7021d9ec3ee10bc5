"""The search over configurations, for a strategy whose partition or recompute is open.

The strategy evaluates many configurations at once (`ppopt.studies.strategy_evaluator`). A
configuration is closed once it is evaluated, because it has one schedule. If there are few
configurations, all are evaluated. Otherwise local search comes first: it descends to a local
optimum, and again after some random moves (iterated local search: Lourenco, Martin and Stuetzle,
"Iterated Local Search", 2003), or from another start if that does not help. A proof evaluates
configurations in the order of their bounds (`ppopt.solver.choices.configuration`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf

import numpy as np

from ppopt.cancellation import over, scope, shield
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choice_of_decisions import choice_of, in_listed_order
from ppopt.solver.choices.configuration import (
    Configuration,
    SearchedConfigurations,
    by_bound,
)
from ppopt.solver.choices.enumeration import Complete, Key
from ppopt.solver.choices.spaces import SPACES, traits_of_any
from ppopt.solver.heuristics.first_schedules import AcceptsPartition
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate
from ppopt.studies.strategy_configurations import StrategyConfigurations
from ppopt.studies.strategy_evaluator import (
    REFUSED,
    ConfigurationRank,
    StrategyEvaluator,
)

MAX_EVALUATED = 20_000
"""Maximum number of configurations that are all evaluated, if the order does not depend on
times."""
MAX_EVALUATED_ORDERS = 30
"""Maximum number of configurations that are all evaluated, if each has its own order."""
PATIENCE = 40
"""Number of descents without a better configuration after which a search stalls."""
DESCENTS_PER_START = 15
"""Number of descents without improvement after which the search uses another start."""
MAX_REPAIRS = 6
"""Maximum number of evaluations of a configuration that exceeds its limits, each with more
recompute."""

Ranked = tuple[ConfigurationRank, Key]


class StrategySearch:
    """Search for the best configuration of a strategy; every run continues the previous one."""

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: str,
        objective: Objective,
        options: Options | None = None,
        *,
        accepts_partition: AcceptsPartition | None = None,
        seed: int = 0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """Search the open ones of partition, recompute and offload.

        A run ends with the enclosing scopes (`ppopt.cancellation`); `tell` receives its phases.
        `accepts_partition` says whether the runtime supports a partition; None: it supports all.
        Raises NotApplicableError if the strategy does not apply, or if times or memory are too
        finely divided to stay exact, and InputError if the strategy is unknown.
        """
        rule, self._strategy_options = resolve(strategy), options or Options()
        self._strategy, options = rule.name, self._strategy_options
        self._seed, self._report = seed, tell
        placed = rule.apply(replace(pipeline, mem_limit=pipeline.limits), options)
        self.choice = choice = StrategyConfigurations(placed, seed)
        kind = BackwardKind.WHOLE if rule.fused else BackwardKind.MIXED
        self._problem = Problem(placed, objective, kind)
        self._evaluator = StrategyEvaluator(choice, rule, options, objective, accepts_partition)
        choice.complete = self._evaluator.complete
        self.state = SearchedConfigurations(0, choice.rest)
        self._proves = False
        """Whether the search ends with a proof; descents after it may find an equal value of less
        memory."""
        self.best: Ranked | None = None
        """Best configuration, which may exceed the limits; None: none is evaluated yet."""
        self.evaluations = 0
        """Number of configurations that were ranked; one that was ranked twice counts twice."""
        self.descents = 0
        """Number of descents."""
        self.barren = 0
        """Number of descents since the best configuration was found."""
        max_configurations = MAX_EVALUATED_ORDERS if self._evaluator.one_by_one else MAX_EVALUATED
        self._every = choice.every(max_configurations, self._evaluator.together)
        """Remaining batches of all configurations; None: there are too many."""
        self._first_starts = choice.first()
        self._starts: list[Key] = []
        """Starts of the next descents, the last one first."""
        self._current: Ranked | None = None
        """End of the last descent that was no worse than the previous one."""
        self._failed = 0
        """Number of descents since one was better than the previous one."""

    def on(self, pipeline: Pipeline) -> StrategySearch:
        """Create a new search of the strategy on another pipeline."""
        return StrategySearch(
            pipeline, self._strategy, self._problem.objective, self._strategy_options,
            accepts_partition=self._evaluator.accepts_partition, seed=self._seed,
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        """Whether the best configuration is within the limits, and the runtime supports it."""
        return self.best is not None and not self.best[0].excess

    @property
    def refused(self) -> bool:
        """Whether the runtime supports none of the partitions evaluated."""
        return self.best is not None and self.best[0].excess >= REFUSED

    @property
    def value(self) -> Fraction:
        """Value of the best configuration, in the user's unit."""
        assert self.best is not None
        return self.choice.base.ticks.time(self.best[0].value)

    def schedule(self) -> Schedule:
        """Verified schedule of the best configuration."""
        assert self.best is not None
        pipeline, objective = self.choice.pipeline(self.best[1]), self._problem.objective
        return evaluate(pipeline, self._strategy, objective, self._strategy_options)

    @property
    def all_evaluated(self) -> bool:
        """Whether every configuration was evaluated."""
        return self._every == []

    @property
    def conclusive(self) -> bool:
        """Whether every configuration that may be best was evaluated."""
        evaluated = self.all_evaluated and self._evaluator.complete
        return evaluated and self.choice.enumerates_options

    @property
    def proved(self) -> bool:
        """Whether no configuration within the limits is better, or whether none is within them."""
        return self.state.closed

    @property
    def proof(self) -> str:
        """Text of the proof for the best configuration."""
        if self.conclusive:
            return "every partition was tried, with every choice of recompute that may be best"
        if not self.proved:
            return "not every partition was evaluated or excluded"
        return (
            f"{self.state.searched} partitions were evaluated; in each of the others, one device "
            "already needs this long or exceeds its memory"
        )

    @property
    def stalled(self) -> bool:
        """Whether several descents found nothing better."""
        return self.barren >= PATIENCE

    @property
    def ordered(self) -> bool:
        """Whether further configurations follow in the order of bounds."""
        return self.state.next_key is not None

    def start_from(self, pipeline: Pipeline) -> None:
        """Descend next from the configuration of a pipeline, if there is one."""
        key = self.choice.key(pipeline)
        if key is not None:
            self._starts.append(key)

    def evaluate_first(self) -> None:
        """Evaluate the first partition by rule, with the minimum recompute that fits."""
        self._settle(self._next_start())

    def descend(self, times: float) -> None:
        """Descend some times; a first configuration is evaluated in any case."""
        self._run(partial(self._descend_once, self.descents + times))

    def descend_until_stalled(self, max_descents: float = inf) -> None:
        """Descend until several descents find nothing better."""
        end = self.descents + max_descents
        self._run(lambda: self._descend_once(end) and not self.stalled)

    def bound(self, ceiling: int | None = None) -> None:
        """Bound all configurations, if bounds apply; see `Choice.bound`.

        The bounds hold for every schedule of a partition, in any order of the microbatches, also
        with whole backwards if the strategy splits them.
        """
        choice, handled = self.choice, SPACES[Decisions.PARTITION].handles
        with scope(inf):
            if choice.bounds is None and choice.cut and traits_of_any(self._problem) <= handled:
                choice.bounds = choice_of(in_listed_order(self._problem))
            if choice.bounds is not None:
                choice.bounds.bound(ceiling)
            self._raise_bound()

    def prove(self) -> None:
        """Evaluate configurations in the order of their bounds, until proof."""
        self._run(self._evaluate_next, proves=True)

    def _run(self, step: Callable[[], bool], *, proves: bool = False) -> None:
        """Evaluate all configurations if few, then run steps until one returns False.

        A first configuration is evaluated even after Ctrl-C, so that there is a best one.
        """
        self._proves = proves
        with shield():
            if self.best is None and not self._every:
                self._starts.append(self._settle(self._next_start())[1])
            elif self.best is None:
                self._evaluate_batch()
        with scope(inf):
            self._raise_bound()
            while self._every and not self._over:
                self._evaluate_batch()
            while not self._over and step():
                pass

    @property
    def _over(self) -> bool:
        """Whether a run ends."""
        return over() or self.all_evaluated or (self._proves and self.state.closed)

    def _raise_bound(self) -> None:
        self.state.raise_bound()
        if self.conclusive:
            self.state.raise_to(Complete())

    def _evaluate_batch(self) -> None:
        """Evaluate the next batch of all configurations; a batch that is not complete remains."""
        assert self._every is not None
        self._evaluate(self._every[0])
        del self._every[0]
        self._raise_bound()

    def _evaluate_next(self) -> bool:
        """Evaluate the next configurations in the order of bounds, as many as suit one evaluation.

        Returns False if there are none.
        """
        self._tell()
        for _ in range(self._evaluator.together):
            rest = self.choice.rest(self.state.known, self.state.value)
            if isinstance(rest, Complete) or rest.key is None:
                break
            self.state.known[rest.key] = Configuration(rest.key, rest.bound)
        chosen = [each for each in by_bound(self.state.open) if not each.searched]
        if chosen:
            ranks = self._evaluate(np.array([each.key for each in chosen]))
            for configuration, rank in zip(chosen, ranks, strict=True):
                self._close(configuration, rank)
        self._raise_bound()
        return bool(chosen)

    # Descents.

    def _descend_once(self, end: float) -> bool:
        """Descend from the next start, and evaluate the end; False after `end` descents."""
        if self.descents >= end:
            return False
        self._tell()
        before = self.best
        rank, key = self._settle(self._descend(self._next_start()))
        self.barren = self.barren + 1 if self.best == before else 0
        self.descents += 1
        if self._over:
            self._starts.append(key)
            return False
        better = self._current is None or rank < self._current[0]
        self._failed = 0 if better else self._failed + 1
        if self._current is None or rank <= self._current[0]:
            self._current = rank, key
        return True

    def _next_start(self) -> Key:
        if self._starts:
            return self._starts.pop()
        if self._current is None or self._failed >= DESCENTS_PER_START:
            key = next(self._first_starts, None)
            if key is not None:
                self._current, self._failed = None, 0
                return self._evaluator.start(key)
        assert self._current is not None, "there is a first configuration"
        return self._evaluator.perturbed(self._current[1])

    def _descend(self, key: Key) -> Key:
        """Descend to a local optimum by estimates."""
        (rank, key), better = self._best_estimate(np.array([key])), True
        while better and not self._over:
            better = False
            for keys in self._evaluator.neighbours(key):
                if self._over:
                    break
                neighbour = self._best_estimate(keys)
                if neighbour[0] < rank:
                    (rank, key), better = neighbour, True
                    break
        return key

    def _best_estimate(self, keys: Ints) -> Ranked:
        self.evaluations += len(keys)
        return self._evaluator.best_estimate(keys)

    def _settle(self, key: Key) -> Ranked:
        """Evaluate the end of a descent; while it exceeds its limits, also with more recompute."""
        ranked = [(self._evaluate(np.array([key]))[0], key)]
        for attempt in range(MAX_REPAIRS):
            repaired = self._evaluator.repaired(key, 2**attempt, full=attempt == MAX_REPAIRS - 1)
            if not ranked[-1][0].excess or repaired == key:
                break
            key = repaired
            ranked.append((self._evaluate(np.array([key]))[0], key))
        return min(ranked)

    # Evaluations.

    def _evaluate(self, keys: Ints) -> list[ConfigurationRank]:
        """Rank configurations; the best of them counts."""
        ranks = [ConfigurationRank(*row) for row in self._evaluator.ranks(keys).tolist()]
        self.evaluations += len(ranks)
        best = min(range(len(ranks)), key=ranks.__getitem__)
        if self.best is None or ranks[best] < self.best[0]:
            self._take_best(ranks[best], tuple(keys[best].tolist()))
        return ranks

    def _take_best(self, rank: ConfigurationRank, key: Key) -> None:
        """Set the best configuration."""
        configuration = self.state.known.setdefault(key, Configuration(key, 0))
        self._close(configuration, rank)
        feasible = self.state.best if rank.excess else configuration
        self.best, self.state.best = (rank, key), feasible
        self._raise_bound()

    def _close(self, configuration: Configuration, rank: ConfigurationRank) -> None:
        """Close a configuration: its value is also its bound, or it is infeasible.

        Neither holds if another order of the microbatches may be better.
        """
        if rank.excess:
            configuration.impossible = self._evaluator.exact
        else:
            configuration.value = value = rank.value
            if self._evaluator.exact:
                configuration.raise_bound(value)
        configuration.level = 0

    def _tell(self) -> None:
        if self._report is not None:
            self._report(f"strategy {self._strategy}, {self.evaluations} evaluations")
