"""The hand strategies that a plan begins with and is compared with.

Each is on the best partition and recompute found for it (`ppopt.studies.baselines`). They come
before the search of the plan, which starts from them: no plan is slower than the best schedule
found for a hand strategy that it could have chosen. Strategies of the placements and chunks of the
plan come first; others say where a better schedule may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ppopt.errors import NotApplicableError, not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.deadline import Deadline
from ppopt.strategies import Strategy, registry
from ppopt.studies.baselines import Wanted, baselines
from ppopt.studies.evaluate import objective_value
from ppopt.studies.plan_result import Hand, Plan
from ppopt.studies.plan_space import AS_GIVEN, OPTIMAL, PlanConfiguration, PlanSpace
from ppopt.studies.strategy_search import StrategySearch

LONGEST = 0.5
"""Estimated seconds of one schedule above which a strategy is left out."""
KNOWN = ("1f1b", "interleaved")
"""Strategies that come first: the ones that most trainers run."""


class _Setting(NamedTuple):
    """A strategy with its chunks and recompute."""

    wanted: Wanted
    recompute: str
    within: bool

    def place(self) -> tuple[bool, bool]:
        """Where it stands: what most trainers run, then what the plan could have chosen."""
        return self.wanted.strategy.name not in KNOWN, not self.within

    def hand(self, made: Schedule, objective: Objective) -> Hand:
        """Its schedule beside the plan."""
        recompute = _recompute(self.recompute, made)
        value = objective_value(made, objective)
        return Hand(self.wanted.strategy.name, made, value, recompute, self.within)


class PlanBaselines:
    """The hand strategies of a plan, as far as there was time for them."""

    def __init__(self, space: PlanSpace, objective: Objective, kind: BackwardKind) -> None:
        """The strategies of the space's runtime whose backwards may be of this kind."""
        self._space, self._objective, self._kind = space, objective, kind
        self.found: list[Hand] = []
        """Those that keep the memory limits."""
        self._open: dict[int, tuple[_Setting, StrategySearch]] = {}
        """Searches that can go on, per position in `found`."""
        self._left: dict[int, list[_Setting]] = {}
        """Those not evaluated yet, per number of microbatches."""

    def search(self, batches: int, deadline: Deadline) -> None:
        """Evaluate the strategies that are left by the deadline."""
        if batches not in self._left:
            self._left[batches] = sorted(self._settings(batches), key=_Setting.place)
        left = self._left[batches]
        late = []
        wanted = [setting.wanted for setting in left]
        for baseline in baselines(wanted, self._objective, deadline, longest=LONGEST):
            if baseline.late:
                late.append(left[baseline.place])
            elif baseline.schedule is not None and baseline.schedule.fits_limits:
                if baseline.search is not None:
                    self._open[len(self.found)] = left[baseline.place], baseline.search
                self.found.append(left[baseline.place].hand(baseline.schedule, self._objective))
        self._left[batches] = late

    def refine(self, batches: int, deadline: Deadline) -> None:
        """Go on with the strategies that a gain names: the best, and what most trainers run."""
        own = [place for place in self._open if self._is_named(self.found[place], batches)]
        ranked = sorted(own, key=lambda place: self.found[place].value)
        places = ranked[:1]
        for name in KNOWN:
            known = [place for place in ranked if self.found[place].strategy == name]
            places += [place for place in known[:1] if place not in places]
        for number, place in enumerate(places):
            setting, search = self._open[place]
            search.settle(deadline.turn(len(places) - number - 1))
            self.found[place] = setting.hand(search.schedule(), self._objective)

    @staticmethod
    def _is_named(hand: Hand, batches: int) -> bool:
        """Whether a gain over a strategy may be stated."""
        return hand.within and hand.schedule.pipeline.batches == batches

    def beside(self, plan: Plan) -> Plan:
        """A plan with the hand strategies of its microbatches, the best first, one of each name.

        Those that the plan had as configurations are there with their best schedules.
        """
        assert plan.best is not None
        batches = plan.best.configuration.batches
        known = [hand for hand in self.found if hand.schedule.pipeline.batches == batches]
        for row in plan.rows:
            one, made = row.configuration, row.schedule
            if one.strategy != OPTIMAL and one.batches == batches and made is not None:
                value = objective_value(made, self._objective)
                known.append(Hand(one.strategy, made, value, _recompute(one.recompute, made), True))
        best: dict[str, Hand] = {}
        for hand in sorted(known, key=lambda hand: (hand.value, hand.strategy)):
            best.setdefault(hand.strategy, hand)
        names = (setting.wanted.strategy.name for setting in self._left.get(batches, ()))
        late = dict.fromkeys(name for name in names if name not in best)
        return replace(plan, hands=tuple(best.values()), late_hands=tuple(late))

    def _settings(self, batches: int) -> Iterator[_Setting]:
        """Every strategy with every number of chunks and every recompute of the plan.

        Chosen recompute may be none or full. Left out are those that are configurations of the
        plan; those of other backwards; and those of two routes, unless the model says how large the
        weights are that devices then hold twice.
        """
        space = self._space
        recompute = (SEARCH,) if SEARCH in space.recompute else space.recompute
        for strategy in registry().values():
            fits_kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
            if space.runtime == "megatron" or self._kind not in (BackwardKind.MIXED, fits_kind):
                continue
            for chunks in space.chunks if strategy.chunks is None else (None,):
                for choice in recompute:
                    placed = self._placed(strategy, batches, chunks, choice)
                    if placed is not None:
                        wanted = Wanted(strategy, placed, strategy.taken(space.options))
                        yield _Setting(wanted, choice, self._is_within(strategy, placed, choice))

    def _placed(
        self, strategy: Strategy, batches: int, chunks: int | None, recompute: str
    ) -> Pipeline | None:
        """The pipeline of a strategy; None where it is left out."""
        space = self._space
        with suppress(NotApplicableError), not_applicable():
            pipeline = space.model.pipeline(
                devices=space.devices,
                batches=batches,
                chunks=chunks,
                partition=space.partition,
                recompute=None if recompute == AS_GIVEN else recompute,
                **space.fields,
            )
            placed = strategy.apply(pipeline, strategy.taken(space.options))
            twice = placed.routes > pipeline.routes
            known = space.runtime == "any" and any(pipeline.costs.static)
            is_row = self._configuration(strategy, placed, recompute, strategy.name) in space
            if placed.num_slices == pipeline.num_slices and (known or not twice) and not is_row:
                return placed
        return None

    def _is_within(self, strategy: Strategy, placed: Pipeline, recompute: str) -> bool:
        """Whether the plan could have chosen the schedule of a strategy."""
        same = placed.routes == self._space.fields.get("routes", 1)
        return same and self._configuration(strategy, placed, recompute, OPTIMAL) in self._space

    @staticmethod
    def _configuration(
        strategy: Strategy, placed: Pipeline, recompute: str, chosen: str
    ) -> PlanConfiguration:
        """The configuration of a plan whose schedules are those of a strategy, or any."""
        return PlanConfiguration(
            placed.batches, strategy.placement, placed.num_chunks, recompute, chosen
        )


def _recompute(choice: str, made: Schedule) -> str:
    """How the layers of a schedule recompute: where that was chosen, perhaps none does."""
    return "none" if choice == SEARCH and not any(made.pipeline.recomputed) else choice
