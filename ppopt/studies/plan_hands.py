"""What hand strategies reach beside a plan: each on the best partition found for it, in short time.

A strategy starts from the better of the balanced and the even partition within the memory limit.
Then one layer at a time moves over a cut, as long as that is better. Strategies of the placements
and chunks of the plan come first; others tell where a better schedule may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import NamedTuple

from ppopt.errors import NotApplicableError, not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import BALANCED, SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.schedule.schedule import Schedule
from ppopt.solver.partitions.candidates import layer_moves
from ppopt.strategies import Options, Strategy, registry
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.plan_space import AS_GIVEN, OPTIMAL, PlanConfiguration, PlanSpace, runs_on
from ppopt.studies.recompute_choice import choose_recompute

LONGEST = 0.5
"""Estimated seconds of one schedule above which a strategy is left out."""
NARROWING = 10
"""Schedules that a choice of recompute takes, about."""
EVEN = "even"
KNOWN = ("1f1b", "interleaved")
"""Strategies that come first: the ones that most trainers run."""


class Hand(NamedTuple):
    """A hand strategy beside a plan."""

    strategy: str
    schedule: Schedule
    """On the best partition found."""
    value: Fraction
    """Its objective in the user's unit, for the microbatches of the best plan."""
    recompute: str
    options: Options
    within: bool
    """Whether the plan could have chosen this schedule."""
    asked: Pipeline
    """What it was made from: its partition and its choice of recompute may change."""


class Hands(NamedTuple):
    """The hand strategies beside a plan."""

    found: tuple[Hand, ...] = ()
    """Those that keep the memory limit, the best first."""
    late: tuple[str, ...] = ()
    """Strategies that were not evaluated for lack of time."""


def hands(
    space: PlanSpace,
    batches: int,
    objective: Objective,
    kind: BackwardKind,
    deadline: float,
    moving: float = inf,
) -> Hands:
    """The hand strategies that keep the memory limit, and those for which there is no time.

    `deadline` is an instant of `time.monotonic`, `moving` the most seconds in which layers move, of
    all strategies together. Each strategy is one entry, of its best chunks and
    recompute. Those of two routes count only where the model says how large the weights are.
    """
    tried: list[_Setting] = []
    late: dict[str, None] = {}
    for name in _names(space, kind):
        if time.monotonic() > deadline:
            late[name] = None
        else:
            tried += _settings(space, name, batches)
    tried.sort(key=_Setting.place)
    make = _Maker(objective, runs_on(space.runtime))
    begun: list[Hand] = []
    for one in tried:
        if one.is_late(deadline):
            late[one.strategy.name] = None
        elif (first := one.first(make)) is not None:
            begun.append(first)
    begun.sort(key=lambda hand: (hand.strategy not in KNOWN, not hand.within, hand.value))
    found: dict[str, Hand] = {}
    until = min(deadline, time.monotonic() + moving)
    for place, hand in enumerate(begun):
        now = time.monotonic()
        better = hand
        if space.partition == SEARCH:
            better = make.moved(hand, now + (until - now) / (len(begun) - place))
        if better.value < found.get(better.strategy, hand._replace(value=better.value + 1)).value:
            found[better.strategy] = better
    best_first = sorted(found.values(), key=lambda hand: (hand.value, hand.strategy))
    return Hands(tuple(best_first), tuple(name for name in late if name not in found))


class _Setting(NamedTuple):
    """A strategy with its chunks and recompute: one pipeline per partition by rule."""

    strategy: Strategy
    recompute: str
    options: Options
    within: bool
    pipelines: tuple[Pipeline, ...]

    def place(self) -> tuple[bool, bool]:
        """Where it stands: what most trainers run, then what the plan could have chosen."""
        return self.strategy.name not in KNOWN, not self.within

    def is_late(self, deadline: float) -> bool:
        """Whether there is no time for its schedules."""
        times = NARROWING if self.recompute == SEARCH else 1
        each = [times * self.strategy.seconds(pipeline) for pipeline in self.pipelines]
        return max(each) >= LONGEST or sum(each) >= deadline - time.monotonic()

    def first(self, make: _Maker) -> Hand | None:
        """The best of its partitions by rule within the limit, if there is one."""
        name, found = self.strategy.name, []
        for asked in self.pipelines:
            for value, made in make.schedules(name, asked, self.options):
                hand = Hand(name, made, value, self.recompute, self.options, self.within, asked)
                found.append(hand)
        return min(found, key=lambda hand: hand.value, default=None)


def _names(space: PlanSpace, kind: BackwardKind) -> list[str]:
    """The strategies that the runtime runs, those that most trainers run first."""
    names = space.strategies if space.runtime == "megatron" else tuple(registry())
    fitting = (name for name in names if name != OPTIMAL and kind in _kinds(registry()[name]))
    return sorted(fitting, key=lambda name: name not in KNOWN)


def _settings(space: PlanSpace, name: str, batches: int) -> Iterator[_Setting]:
    """A strategy with every chunks and recompute of the plan.

    Chosen recompute is as little as the limit asks for, so nothing recomputes where that fits.
    """
    recompute = [one for one in space.recompute if SEARCH not in space.recompute or one != "none"]
    strategy = registry()[name]
    for chunks in space.chunks if strategy.chunks is None else (None,):
        for one in recompute:
            pipelines = tuple(_pipelines(space, strategy, batches, chunks, one))
            if pipelines:
                within = _is_within(space, strategy, pipelines[0], one)
                options = _options(space, strategy)
                yield _Setting(strategy, one, options, within, pipelines)


def _options(space: PlanSpace, strategy: Strategy) -> Options:
    """The options of the plan that a strategy takes."""
    return Options(**{name: getattr(space.options, name) for name in strategy.takes})


def _kinds(strategy: Strategy) -> tuple[BackwardKind, ...]:
    """The kinds of backwards that a plan may ask for where it is compared with a strategy."""
    return (BackwardKind.MIXED, BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT)


def _pipelines(
    space: PlanSpace, strategy: Strategy, batches: int, chunks: int | None, recompute: str
) -> Iterator[Pipeline]:
    """The pipeline of a strategy on every partition by rule, or on the one that is given."""
    for rule in (BALANCED, EVEN) if space.partition == SEARCH else (space.partition,):
        with suppress(NotApplicableError), not_applicable():
            pipeline = space.model.pipeline(
                devices=space.devices,
                batches=batches,
                chunks=chunks,
                partition=rule,
                recompute=None if recompute == AS_GIVEN else recompute,
                **space.fields,
            )
            placed = strategy.apply(pipeline, _options(space, strategy))
            twice = placed.routes > pipeline.routes
            known = space.runtime == "any" and any(pipeline.costs.static)
            if placed.num_slices == pipeline.num_slices and (known or not twice):
                yield placed


def _is_within(space: PlanSpace, strategy: Strategy, pipeline: Pipeline, recompute: str) -> bool:
    """Whether a plan could have chosen the schedule of a strategy."""
    chosen = OPTIMAL if OPTIMAL in space.strategies else strategy.name
    one = PlanConfiguration(
        pipeline.batches, strategy.placement, pipeline.num_chunks, recompute, chosen
    )
    searched = one._replace(recompute=SEARCH)
    same = pipeline.routes == space.fields.get("routes", 1)
    return same and any(known in (one, searched) for known in space)


class _Maker(NamedTuple):
    """Makes the schedules of strategies."""

    objective: Objective
    runs: Callable[[Pipeline], bool]

    def schedules(
        self, strategy: str, pipeline: Pipeline, options: Options
    ) -> list[tuple[Fraction, Schedule]]:
        """The schedule of a strategy with its value, if it runs and keeps the limit."""
        with suppress(NotApplicableError):
            if self.runs(pipeline):
                make = choose_recompute if pipeline.recompute == SEARCH_RECOMPUTE else evaluate
                made = make(pipeline, strategy, self.objective, options)
                value = objective_value(made, self.objective)
                return [(value, made)] if made.fits_limits else []
        return []

    def moved(self, hand: Hand, until: float) -> Hand:
        """A strategy on a better partition: layers move over cuts one by one, by this moment."""
        before = None
        while before is not hand:
            before = hand
            for counts in layer_moves(before.schedule.pipeline.counts):
                if time.monotonic() > until:
                    return hand
                pipeline = replace(hand.asked, partition=counts)
                for value, made in self.schedules(hand.strategy, pipeline, hand.options):
                    if value < hand.value:
                        hand = hand._replace(value=value, schedule=made)
        return hand
