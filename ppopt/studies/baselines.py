"""Hand strategies, each on its own best choices: what searches, plans and frontiers are held to.

A strategy is evaluated on the pipeline that is asked for. Where that leaves its partition or its
recompute to be searched, every strategy has the best found for it (`ppopt.studies.best_choice`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.loggers import logger
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.strategies import Options, Strategy, registry, resolve
from ppopt.studies.best_choice import is_open
from ppopt.studies.evaluate import evaluate
from ppopt.studies.strategy_search import StrategySearch

BEGINNING = 0.5
"""Share of its time that a strategy takes at first."""
MOST_SECONDS = 5.0
"""Most seconds of one strategy for its choices."""
EVALUATING = 5e-6
"""Estimated seconds to time and verify a schedule, per operation number."""
STOPPED = "not evaluated: stopped early"
"""Why a strategy is left out after Ctrl-C."""
_LOG = logger(__name__)


class Wanted(NamedTuple):
    """A strategy to be evaluated."""

    strategy: Strategy
    pipeline: Pipeline
    """As it is asked for; what it leaves to be searched is chosen for the strategy."""
    options: Options = Options()
    hints: tuple[Pipeline, ...] = ()
    """Pipelines whose partitions are tried first."""


class Evaluated(NamedTuple):
    """What became of it."""

    place: int
    """Number of the strategy among those wanted."""
    name: str
    """Name of the strategy."""
    schedule: Schedule | None
    """On its best choices; None: it was left out."""
    seconds: float
    """Time it took to make."""
    reason: str = ""
    """Why it was left out."""
    late: bool = False
    """Whether that was for lack of time."""
    search: StrategySearch | None = None
    """The search for its choices, which can go on; None: there is nothing to choose."""


def baselines(
    wanted: Sequence[Wanted],
    objective: Objective,
    deadline: Deadline,
    *,
    longest: float = inf,
    choosing: float = inf,
) -> Iterator[Evaluated]:
    """Evaluate strategies, each on its own best choices, by a deadline, which reports their names.

    Where there is something to choose, every strategy is begun before any goes on: then each has up
    to twice an equal share of the time left. Left out are those that do not apply, and those whose
    schedule takes longer to make than is left, or than `longest` seconds. Choices end after
    `choosing` seconds, if that is earlier; each strategy has a first one at any time. Ctrl-C leaves
    out those that are not begun.
    """
    run = _Baselines(objective, deadline, longest, deadline.within(choosing))
    yield from run.begin(wanted)
    yield from run.settle()
    if run.interrupted and not deadline.pressed:
        raise KeyboardInterrupt


class _Baselines:
    """An evaluation of strategies under way."""

    def __init__(
        self, objective: Objective, deadline: Deadline, longest: float, choosing: Deadline
    ) -> None:
        self._objective, self._deadline, self._longest = objective, deadline, longest
        self._choosing = choosing
        self._begun: list[tuple[int, StrategySearch, float]] = []
        """Searches for the choices of strategies, with their places and seconds."""
        self.interrupted = False
        """Whether Ctrl-C ended the evaluation."""

    def begin(self, wanted: Sequence[Wanted]) -> Iterator[Evaluated]:
        """Evaluate strategies without a choice, and begin the search of the others."""
        for place, one in enumerate(wanted):
            if self._stopped:
                return
            found = None
            turn = self._choosing.turn(len(wanted) - place - 1)
            with self._heard():
                found = self._evaluated(place, one, turn.share(BEGINNING))
            if found is not None:
                yield found

    def settle(self) -> Iterator[Evaluated]:
        """Go on with the searches that are begun, each for its share of the time left."""
        for number, (place, search, seconds) in enumerate(self._begun):
            turn = self._choosing.turn(len(self._begun) - number - 1)
            if not self._stopped:
                with self._heard():
                    self._deadline.tell(f"strategy {search.strategy}")
                    search.settle(turn.within(MOST_SECONDS))
            made = search.schedule()
            yield Evaluated(place, search.strategy, made, seconds + turn.spent, search=search)

    def _evaluated(self, place: int, one: Wanted, turn: Deadline) -> Evaluated | None:
        """A strategy; None where its search is begun, for a turn."""
        name = one.strategy.name
        needed = one.strategy.seconds(one.pipeline) + EVALUATING * one.pipeline.num_codes
        if needed > min(self._longest, self._deadline.left):
            words = f"it takes about {max(needed, 0.1):.1f} s, more than is left for it"
            reason = f"{words}; raise --time-limit"
            return Evaluated(place, name, None, 0.0, reason, late=True)
        self._deadline.tell(f"strategy {name}")
        _LOG.info("strategy %s", name)
        try:
            if not is_open(one.pipeline):
                made = evaluate(one.pipeline, name, self._objective, one.options)
                return Evaluated(place, name, made, turn.spent)
            search = StrategySearch(one.pipeline, name, self._objective, one.options)
        except NotApplicableError as error:
            return Evaluated(place, name, None, 0.0, str(error))
        for hint in one.hints:
            search.hint(hint)
        search.run(1, turn)
        self._begun.append((place, search, turn.spent))
        return None

    @property
    def _stopped(self) -> bool:
        return self.interrupted or self._deadline.pressed

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Let Ctrl-C end the block, and no strategy begin or go on after it."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True


def evaluate_all(
    pipeline: Pipeline,
    objective: Objective,
    options: Options,
    kind: BackwardKind = BackwardKind.MIXED,
    deadline: Deadline = NO_DEADLINE,
    *,
    only: Collection[str] | None = None,
    choosing: float = inf,
) -> tuple[list[tuple[Schedule, float]], tuple[tuple[str, str], ...]]:
    """Evaluate every strategy in its own chunks and placement, by a deadline.

    The schedules, with the seconds that each took; and the strategies left out, with the reason.
    `only`: the names of those to evaluate; all for None. `choosing`: most seconds in which they
    choose partition and recompute, after a first one of each. Ctrl-C leaves out those not done.
    """
    skipped, wanted = [], []
    chosen = registry() if only is None else {name: resolve(name) for name in only}
    for name, strategy in chosen.items():
        if kind is BackwardKind.WHOLE and not strategy.fused:
            skipped.append((name, "it splits the backward, which --backward whole rules out"))
            continue
        try:
            wanted.append(Wanted(strategy, strategy.unplaced(pipeline), strategy.taken(options)))
        except NotApplicableError as error:
            skipped.append((name, str(error)))
    found: list[Evaluated] = []
    with suppress(KeyboardInterrupt), interrupts.heard():
        for baseline in baselines(wanted, objective, deadline, choosing=choosing):
            found.append(baseline)
    made = [(one.schedule, one.seconds) for one in found if one.schedule is not None]
    skipped += [(one.name, one.reason) for one in found if one.schedule is None]
    done = {one.name for one in found}
    skipped += [(one.strategy.name, STOPPED) for one in wanted if one.strategy.name not in done]
    return made, tuple(sorted(skipped))
