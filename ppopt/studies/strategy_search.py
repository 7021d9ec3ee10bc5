"""The configurations of a strategy whose partition or recompute is open, as a choice.

`ConfigurationSearch` searches them as those of any choice. The strategy evaluates a configuration
in place of a search, with many others at once (`ppopt.studies.strategy_evaluator`). If there are
few configurations, all are evaluated. Otherwise local search yields the first ones: it descends to
a local optimum, and again after some random moves (iterated local search: Lourenco, Martin and
Stuetzle, "Iterated Local Search", 2003), or from another start if that does not help.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Iterable, Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any

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
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import NONE_LEFT, Complete, Key, Rest, Unlisted, min_rest
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
"""Number of descents without a better configuration after which the descents stall."""
DESCENTS_PER_START = 15
"""Number of descents without improvement after which the next one has another start."""
MAX_REPAIRS = 6
"""Maximum number of evaluations of a configuration that exceeds its limits, each with more
recompute."""

Ranked = tuple[ConfigurationRank, Key]


class StrategySearch(Choice):
    """The configurations of a strategy, with a local search that every descent continues."""

    name = "strategy"

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: str,
        objective: Objective,
        options: Options | None = None,
        *,
        bounds: Choice | None = None,
        accepts_partition: AcceptsPartition | None = None,
        seed: int = 0,
        starts: Iterable[Pipeline] = (),
    ) -> None:
        """Search the open ones of partition, recompute and offload.

        `bounds` is the choice of the same configurations in any order; None: `bound` creates it if
        it applies. `accepts_partition` says whether the runtime supports a partition; None: it
        supports all. `starts` have the configurations from which the first descents begin, the last
        one first. Raises NotApplicableError if the strategy does not apply, or if times or
        memory are too finely divided to stay exact, and InputError if the strategy is unknown.
        """
        rule, self._options, self._seed = resolve(strategy), options or Options(), seed
        self._strategy, self._bounds = rule.name, bounds
        placed = rule.apply(pipeline.having(mem_limit=pipeline.limits), self._options)
        self.space = StrategyConfigurations(placed, seed)
        kind = BackwardKind.WHOLE if rule.fused else BackwardKind.MIXED
        self.problem = Problem(placed, objective, kind)
        self._evaluator = StrategyEvaluator(
            self.space, rule, self._options, objective, accepts_partition
        )
        self.best: Ranked | None = None
        """Best configuration, which may exceed the limits; None: none is evaluated yet."""
        self._ranks: dict[Key, ConfigurationRank] = {}
        """Ranks of the configurations that were evaluated."""
        self._bound_of: dict[Key, int] = {}
        """Bounds of the configurations that were next in the order of bounds."""
        self.evaluations = 0
        """Number of configurations that were ranked; one that was ranked twice counts twice."""
        max_configurations = MAX_EVALUATED_ORDERS if self._evaluator.one_by_one else MAX_EVALUATED
        self._every = self.space.every(max_configurations, self._evaluator.together)
        """Remaining batches of all configurations; None: there are too many."""
        self._ends = self._ends_of_descents([*filter(None, map(self.key, starts))])
        """Ends of the descents that follow."""

    def on(self, pipeline: Pipeline, starts: Iterable[Pipeline] = ()) -> StrategySearch:
        """Create a new search of the strategy on another pipeline, from known configurations."""
        return StrategySearch(
            pipeline, self._strategy, self.problem.objective, self._options,
            accepts_partition=self._evaluator.accepts_partition, seed=self._seed, starts=starts,
        )  # fmt: skip

    # The best configuration.

    @property
    def fits(self) -> bool:
        """Whether the best configuration is within the limits, and the runtime supports it."""
        return self.best is not None and not self.best[0].excess

    @property
    def refused(self) -> bool:
        """Whether the runtime supports none of the partitions evaluated."""
        return self.best is not None and self.best[0].excess >= REFUSED

    def schedule(self) -> Schedule:
        """Verified schedule of the best configuration."""
        assert self.best is not None
        pipeline = self.pipeline(self.best[1])
        return evaluate(pipeline, self._strategy, self.problem.objective, self._options)

    @property
    def all_evaluated(self) -> bool:
        """Whether every configuration was evaluated."""
        return self._every == []

    @property
    def conclusive(self) -> bool:
        """Whether every configuration that may be best was evaluated."""
        evaluated = self.all_evaluated and self._evaluator.complete
        return evaluated and self.space.enumerates_options

    # The choice.

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of a configuration."""
        return self.space.pipeline(key)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of a pipeline, or of one that is no worse; None: there is none."""
        return self.space.key(pipeline)

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds, or those without one with the bound over all."""
        for key in keys:
            bound = max(self.lower_bound, self._bound_of.get(key, 0))
            yield Configuration(key, bound, evaluator=self)

    def bound(self, ceiling: int | None = None) -> None:
        """Bound all configurations, if bounds apply; see `Choice.bound`.

        The bounds hold for every schedule of a partition, in any order of the microbatches, also
        with whole backwards if the strategy splits them.
        """
        handled, listed = SPACES[Decisions.PARTITION].handles, in_listed_order(self.problem)
        if self._bounds is None and self.space.cut and traits_of_any(listed) <= handled:
            self._bounds = choice_of(listed)
        if self._bounds is not None:
            self._bounds.bound(ceiling)

    @property
    def lower_bound(self) -> int:
        """Lower bound of all configurations; 0 without bounds."""
        return 0 if self._bounds is None else self._bounds.lower_bound

    def rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """The best configuration, or the next one in the order of bounds.

        If the runtime supports no partition, the bound of all remains: memory excludes none.
        """
        value = self._value
        if value is None or (ceiling is not None and value >= ceiling):
            following = self._following(ceiling, self._ranks)
            refused = self.refused and isinstance(following, Complete)
            return Unlisted(self.lower_bound) if refused else following
        assert self.best is not None
        following = self._following(value, self._ranks)
        if self.best[1] in known:
            return following
        return min_rest((following, Unlisted(value, self.best[1])))

    def _following(self, ceiling: int | None, known: Container[Key]) -> Rest:
        """Next configuration in the order of bounds that is not known.

        The bound of an omitted option is no lower than that of the option that dominates it, which
        may be evaluated. So if it may be better, its bound is the minimum over all; this is 0 if no
        configuration is within the limits.
        """
        if self.conclusive:
            return NONE_LEFT
        if self._bounds is None or not self.space.cut:
            return Unlisted(self.lower_bound)
        rest = self._bounds.rest(known, ceiling)
        if isinstance(rest, Unlisted) and rest.key is not None:
            self._bound_of[rest.key] = rest.bound
        if self._evaluator.complete:
            return rest
        if isinstance(rest, Unlisted):
            return Unlisted(self.lower_bound, rest.key)
        return Unlisted(self.lower_bound) if self.lower_bound else rest

    @property
    def _value(self) -> int | None:
        """Value of the best configuration within the limits, in ticks."""
        return self.best[0].value if self.best is not None and self.fits else None

    def first(self) -> Iterator[Key]:
        """A first configuration, ends of descents until these stall, and the best one."""
        yield from iter(lambda: next(self._ends, None), None)
        yield self._best[1]

    def moves(self, key: Key) -> Iterator[Key]:  # noqa: ARG002
        """None: descents try the neighbours."""
        return iter(())

    def evaluate(self, configuration: Configuration) -> None:
        """Evaluate a configuration, with those that follow in the order of bounds.

        Its value is also its bound, or it is infeasible. Neither holds if another order of the
        microbatches may be better.
        """
        key = configuration.key[-self.space.width :]
        if key not in self._ranks:
            batch: dict[Key, None] = {}
            next_key: Key | None = key
            while next_key is not None and len(batch) < self._evaluator.together:
                batch[next_key] = None
                known = ChainMap[Key, Any](batch, self._ranks)
                rest = self._following(self._value, known)
                next_key = rest.key if isinstance(rest, Unlisted) else None
            self._evaluate(np.array([*batch]))
        rank, exact = self._ranks[key], self._evaluator.exact
        if rank.excess:
            configuration.impossible = exact
        else:
            configuration.value = configuration.weighted(rank.value)
            configuration.raise_bound(rank.value if exact else 0)

    def describe(self, key: Key) -> str:  # noqa: ARG002
        """Text that names the strategy and counts its evaluations."""
        return f"strategy {self._strategy}, {self.evaluations} evaluations"

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the proof for the best configuration."""
        if self.conclusive:
            return "every partition was tried, with every choice of recompute that may be best"
        if not search.closed:
            return "not every partition was evaluated or excluded"
        return (
            f"{len(self._ranks)} partitions were evaluated; in each of the others, one device "
            "already needs this long or exceeds its memory"
        )

    # Descents.

    def evaluate_first(self) -> None:
        """Evaluate the first partition by rule, with the minimum recompute that fits."""
        self._settle(self._evaluator.start(next(self.space.first())))

    def descend(self, times: float = inf) -> None:
        """Descend some times, or until several descents find nothing better.

        It ends with the enclosing scopes (`ppopt.cancellation`), but a first configuration is
        evaluated in any case. If there are few configurations, all are evaluated instead.
        """
        if self.best is None:
            next(self._ends, None)
        while times > 0 and not over() and next(self._ends, None):
            times -= 1

    def _ends_of_descents(self, starts: list[Key]) -> Iterator[Key]:
        """A first configuration, and ends of descents until these stall.

        The first one is the last of `starts` or the first partition by rule, with the minimum
        recompute that fits. If there are few configurations, all are evaluated instead.
        """
        while self._every:
            with scope(inf) if self.best else shield():
                self._evaluate(self._every[0])
                del self._every[0]
            if over():
                yield self._best[1]
        firsts, current, failed, barren = self.space.first(), None, 0, 0
        while self._every is None and barren < PATIENCE:
            before, end = self.best, None
            with scope(inf) if before else shield():
                if starts:
                    start = starts.pop()
                elif (current and failed < DESCENTS_PER_START) or not (key := next(firsts, None)):
                    start = self._evaluator.perturbed((current or self._best)[1])
                else:
                    current, failed, start = None, 0, self._evaluator.start(key)
                end = self._settle(self._descend(start) if before else start)
            if end:
                barren = barren + 1 if self.best == before else 0
                if before and not over():
                    failed = 0 if not current or end[0] < current[0] else failed + 1
                    current = min(end, current or end, key=itemgetter(0))
                else:
                    starts.append(end[1])
            yield (end or self._best)[1]

    @property
    def _best(self) -> Ranked:
        assert self.best is not None, "there is a first configuration"
        return self.best

    def _descend(self, key: Key) -> Key:
        """Descend to a local optimum by estimates."""
        (rank, key), better = self._best_estimate(np.array([key])), True
        while better and not over():
            better = False
            for keys in self._evaluator.neighbours(key):
                if over():
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
        ranked = self._evaluate(np.array([key]))
        for attempt in range(MAX_REPAIRS):
            repaired = self._evaluator.repaired(key, 2**attempt, full=attempt == MAX_REPAIRS - 1)
            if not ranked[-1][0].excess or repaired == key:
                break
            key = repaired
            ranked += self._evaluate(np.array([key]))
        return min(ranked)

    def _evaluate(self, keys: Ints) -> list[Ranked]:
        """Rank configurations; the best of them counts."""
        ranks = [ConfigurationRank(*row) for row in self._evaluator.ranks(keys).tolist()]
        ranked = list(zip(ranks, map(tuple, keys.tolist()), strict=True))
        self.evaluations += len(ranked)
        best = min(ranked, key=itemgetter(0))
        if self.best is None or best[0] < self.best[0]:
            self.best = best
        self._ranks |= {key: rank for rank, key in ranked}
        return ranked
