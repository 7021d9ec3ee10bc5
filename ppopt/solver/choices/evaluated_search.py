"""The search over configurations whose values an evaluator gives, many at once.

`ConfigurationSearch` gives the configurations, the order of their bounds, the bound over all, the
proof and the deadline. A configuration is closed once it is evaluated, because no schedule of it is
left to search. If there are few configurations, all are evaluated. Otherwise local search comes
first: it descends to a local optimum, and again from a configuration some random moves away
(iterated local search: Lourenco, Martin and Stuetzle, "Iterated Local Search", 2003), or from
another start if that does not help.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import inf
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.enumeration import Complete, Key, Unlisted
from ppopt.solver.choices.search import ConfigurationSearch, Effort
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.options import SolveOptions

BARREN = 15
"""Descents without improvement after which the search descends from another start."""
REPAIRS = 6
"""Most evaluations of a configuration that exceeds its limits, each with less memory."""


class Rank(NamedTuple):
    """Sort key of a configuration (smaller is better), in the ticks of its evaluator."""

    excess: int
    """Largest memory by which a device exceeds its limit; 0: the configuration is feasible."""
    total_excess: int
    """Memory by which devices exceed their limits, summed over the devices."""
    value: int
    """Objective."""
    peak: int
    """Largest memory of a device."""


class Evaluator(ABC):
    """Ranks configurations, many at once; a configuration is a row of an array of keys."""

    patience: int
    """Descents without a better configuration after which a search stalls."""
    complete: bool
    """Whether no configuration beyond those of the choice may be better."""

    @property
    @abstractmethod
    def together(self) -> int:
        """Number of configurations that are best ranked at once."""

    @abstractmethod
    def ranks(self, keys: Ints) -> Ints:
        """Rank of every configuration: `[configuration, field of Rank]`."""

    def estimates(self, keys: Ints) -> Ints:
        """Estimated ranks, by which a descent chooses; they take less time than `ranks`."""
        return self.ranks(keys)

    @abstractmethod
    def time(self, ticks: int) -> Fraction:
        """Value in the user's unit."""

    @abstractmethod
    def neighbours(self, key: Key) -> Iterator[Ints]:
        """Neighbours of a configuration in batches, in random order."""

    @abstractmethod
    def perturbed(self, key: Key) -> Key:
        """Configuration a few random moves away."""

    def start(self, key: Key) -> Key:
        """Configuration from which to descend, instead of a first one of the choice."""
        return key

    def repaired(self, key: Key, attempt: int) -> Key | None:  # noqa: ARG002
        """Configuration of less memory than the one that was ranked last; None: there is none.

        `attempt` counts from 0 to `REPAIRS` - 1.
        """
        return None


class EvaluatedSearch(ConfigurationSearch):
    """Search over configurations by an evaluator; every run resumes the one before."""

    def __init__(
        self,
        choice: Choice,
        evaluator: Evaluator,
        problem: Problem,
        options: SolveOptions,
        every: Sequence[Ints] | None = None,
    ) -> None:
        """`every`: all configurations, in batches, if they are few."""
        super().__init__(choice, problem, options)
        self.evaluator = evaluator
        self.best: tuple[Rank, Key] | None = None
        """Best configuration, which may exceed the limits; None: none is evaluated yet."""
        self.evaluations = 0
        """Number of configurations that were ranked; one that was ranked twice counts twice."""
        self.barren = 0
        """Descents since the best configuration was found."""
        self._every = None if every is None else list(every)
        """Remaining batches of all configurations; None: there are too many."""
        self._first_starts = iter(choice.first())
        self._starts: list[Key] = []
        """Starts of the next descents, the last one first."""
        self._current: tuple[Rank, Key] | None = None
        """End of the last descent that was no worse than the one before it."""
        self._failed = 0
        """Descents since one was better than the one before it."""

    @property
    def fits(self) -> bool:
        """Whether the best configuration is within its memory limits."""
        return self.best is not None and not self.best[0].excess

    @property
    def all_evaluated(self) -> bool:
        """Whether every configuration was evaluated."""
        return self._every == []

    @property
    def stalled(self) -> bool:
        """Whether several descents found nothing better."""
        return self.barren >= self.evaluator.patience

    @property
    def ordered(self) -> bool:
        """Whether configurations follow in the order of bounds."""
        return isinstance(self._rest, Unlisted) and self._rest.key is not None

    def start_from(self, pipeline: Pipeline) -> None:
        """Descend next from the configuration of a pipeline, if there is one."""
        key = self.choice.key(pipeline)
        if key is not None:
            self._starts.append(key)

    def descend(self, times: float, deadline: Deadline = NO_DEADLINE) -> None:
        """Descend some times until the deadline; a first configuration is evaluated in any case."""
        self._run(Effort(0, self._quick + times), deadline)

    def descend_until_stalled(self, deadline: Deadline) -> None:
        """Descend until several descents find nothing better, or until the deadline."""
        self.descend(1, deadline)
        while not (self.stalled or self._over):
            self.descend(1, deadline)

    def prove(self, deadline: Deadline) -> None:
        """Evaluate configurations in the order of their bounds, until proof or the deadline."""
        self._run(Effort(inf, self._quick), deadline)

    def _run(self, effort: Effort, deadline: Deadline) -> None:
        self._options = self._options.by(deadline)
        self.search(effort)

    # What differs from the search for schedules.

    @property
    def _over(self) -> bool:
        """Whether a run ends; descents after a proof may find an equal value of less memory."""
        late, proved = self._begun and self._left <= 0, self.state.closed
        ended = self.interrupted or self.all_evaluated or late
        return ended or (self._effort.level > 0 and proved)

    def enumerate_listed(self) -> None:
        """Bound the configurations: they are added once they are evaluated, or next in order."""
        self._list_added = True
        self._raise_bound()

    def _raise_bound(self) -> None:
        super()._raise_bound()
        if self.all_evaluated and self.evaluator.complete:
            self.state.raise_to(Complete())

    def _follow_hints(self) -> None:
        """Evaluate a first configuration, even after Ctrl-C, so that there is a best one."""
        if self.best is None:
            if self._every:
                self._evaluate_batch(self._every)
            else:
                self._starts.append(self._settle(self._next_start())[1])

    def _begin(self) -> None:
        """Evaluate all configurations if they are few."""
        while self._every and not self._over:
            self._evaluate_batch(self._every)

    def _evaluate_batch(self, batches: list[Ints]) -> None:
        """Evaluate the first batch. One that Ctrl-C cuts remains."""
        self._evaluate(batches[0])
        del batches[0]
        self._raise_bound()

    def _raise_at(self, level: int) -> None:
        """Bounds of subsets of devices take longer than an evaluation."""

    def _climb(self) -> None:
        """Descend from the next starts."""
        while not (self._over or self._quick_spent):
            self._tell()
            before = self.best
            rank, key = self._settle(self._descend(self._next_start()))
            self.barren = self.barren + 1 if self.best == before else 0
            self._quick += 1
            if self._over:
                self._starts.append(key)
                return
            better = self._current is None or rank < self._current[0]
            self._failed = 0 if better else self._failed + 1
            if self._current is None or rank <= self._current[0]:
                self._current = rank, key

    def _chosen(self, level: int) -> Iterator[Configuration]:  # noqa: ARG002
        """Next configurations in the order of bounds, as many as are best evaluated at once."""
        self._tell()
        for _ in range(self.evaluator.together):
            rest = self.choice.rest(self.state.known, self.state.value)
            if isinstance(rest, Complete) or rest.key is None:
                break
            self.state.known[rest.key] = Configuration(rest.key, rest.bound)
        return (each for each in self._open() if not each.searched)

    def _solve_all(self, configurations: Iterable[Configuration], level: int) -> int:  # noqa: ARG002
        """Evaluate configurations, and close them."""
        chosen = list(configurations)
        if chosen:
            ranks = self._evaluate(np.array([each.key for each in chosen]))
            for configuration, rank in zip(chosen, ranks, strict=True):
                self._close(configuration, rank)
        self._raise_bound()
        return len(chosen)

    def _perturb(self) -> bool:
        """Descents perturb configurations."""
        return False

    # Descents.

    def _next_start(self) -> Key:
        if self._starts:
            return self._starts.pop()
        if self._current is None or self._failed >= BARREN:
            key = next(self._first_starts, None)
            if key is not None:
                self._current, self._failed = None, 0
                return self.evaluator.start(key)
        assert self._current is not None, "the choice has a first configuration"
        return self.evaluator.perturbed(self._current[1])

    def _descend(self, key: Key) -> Key:
        """Descend to a local optimum by estimates."""
        (rank, key), better = self._best_estimate(np.array([key])), True
        while better and not self._over:
            better = False
            for keys in self.evaluator.neighbours(key):
                if self._over:
                    break
                neighbour = self._best_estimate(keys)
                if neighbour[0] < rank:
                    (rank, key), better = neighbour, True
                    break
        return key

    def _best_estimate(self, keys: Ints) -> tuple[Rank, Key]:
        self.evaluations += len(keys)
        estimates = self.evaluator.estimates(keys)
        number = int(np.lexsort(estimates.T[::-1])[0])
        return Rank(*estimates[number].tolist()), tuple(keys[number].tolist())

    def _settle(self, key: Key) -> tuple[Rank, Key]:
        """Evaluate the end of a descent; while it exceeds its limits, also repaired ones."""
        ranked = []
        for attempt in range(REPAIRS + 1):
            (rank,) = self._evaluate(np.array([key]))
            ranked.append((rank, key))
            if not rank.excess or attempt == REPAIRS:
                break
            repaired = self.evaluator.repaired(key, attempt)
            if repaired is None:
                break
            key = repaired
        return min(ranked)

    # Evaluations.

    def _evaluate(self, keys: Ints) -> list[Rank]:
        """Rank configurations; the best of them counts."""
        ranks = [Rank(*row) for row in self.evaluator.ranks(keys).tolist()]
        self.evaluations += len(ranks)
        number = min(range(len(ranks)), key=ranks.__getitem__)
        if self.best is None or ranks[number] < self.best[0]:
            self._take_best(ranks[number], tuple(keys[number].tolist()))
        self._begun = True
        return ranks

    def _take_best(self, rank: Rank, key: Key) -> None:
        """Take the best configuration. Ctrl-C comes before or after both of its assignments."""
        configuration = self._at(key)
        self._close(configuration, rank)
        feasible = self.state.best if rank.excess else configuration
        self.best, self.state.best = (rank, key), feasible
        self._raise_bound()

    def _close(self, configuration: Configuration, rank: Rank) -> None:
        """Set the value of a configuration, which is its bound, or that it is infeasible."""
        if rank.excess:
            configuration.impossible = True
        else:
            configuration.evaluated = self.evaluator.time(rank.value)
            configuration.raise_bound(configuration.evaluated)
        configuration.level = 0

    def _tell(self) -> None:
        phase = f"{self.choice.name}, {self.evaluations} evaluations"
        self._options.deadline.tell(phase, self.state.value, self.state.lower_bound)
