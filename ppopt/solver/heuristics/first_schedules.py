"""First schedules: those of published strategies with the balanced partition, within the limits.

Every search over configurations starts from them, and a plan evaluates them for all of its
configurations before it searches any. So no configuration has a worse value than these strategies,
however short its search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from ppopt.cancellation import checkpoint, seconds_left
from ppopt.errors import NotApplicableError, not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer_choices import by_rules
from ppopt.problem.objective import Objective
from ppopt.problem.partition import Counts, all_by_rule, balanced, balanced_late
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import is_of_kind
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.repair import repair
from ppopt.strategies import Options, Strategy, registry, resolve
from ppopt.strategies.schedules import own_schedule
from ppopt.verifier import checked

AcceptsPartition = Callable[[Counts], bool]
"""Whether a runtime supports a partition."""
USUAL = {"linear": "1f1b", "interleaved": "interleaved", "v": "1f1b-v"}
"""The strategy of a placement that is evaluated first."""
OVERLAPPED = {"linear": "1f1b-overlap", "interleaved": "interleaved-overlap", "v": "dualpipe-v"}
"""The strategy of a placement whose pairs of F and a backward run as one."""
ZERO_BUBBLE = {"linear": "zb-1p", "interleaved": "interleaved-zb", "v": "zbv"}
"""The strategy of a placement that is mostly the fastest if it fits; V takes seconds if large."""
QUICK = ("linear", "interleaved")
"""Placements whose usual strategy most trainers run; its orders follow from a formula."""


class FirstSchedules(NamedTuple):
    """The first schedules of one configuration of a plan."""

    pipeline: Pipeline
    """Its placement is named; partition, recompute and offload may be open."""
    objective: Objective
    backward_kind: BackwardKind = BackwardKind.MIXED
    accepts_partition: AcceptsPartition | None = None
    """Whether the runtime supports a partition; None: it supports all."""
    options: Options = Options()
    """Options of strategies."""
    own_strategy: Strategy | None = None
    """The only strategy of the configuration; None: any order is allowed."""

    def usual(self) -> Iterator[Schedule]:
        """Schedules of the usual strategies, or of the only one, with recompute by rules.

        With those that are stated, as stated. If this exceeds the limits, the order is repaired:
        forwards wait for memory, so that fewer microbatches are in flight.
        """
        for strategy in self._usual:
            yield from self._of_strategy(strategy)

    def zero_bubble(self) -> Iterator[Schedule]:
        """Schedules as in `usual` of the zero-bubble strategy, unless it may take too long.

        Those with less recompute are repaired also if it fits with more.
        """
        strategy = resolve(ZERO_BUBBLE[self.pipeline.resolved_placement])
        yield from self._of_strategies(strategy, repairs_all=True)

    def by_other_strategies(self) -> Iterator[Schedule]:
        """Schedules as in `usual` of the other strategies of the placement.

        Those that may take longer than the time left are skipped.
        """
        first = {*self._usual, resolve(ZERO_BUBBLE[self.pipeline.resolved_placement])}
        placed = (
            each for each in registry().values() if each.placement == self.usual_strategy.placement
        )
        yield from self._of_strategies(*(each for each in placed if each not in first))

    def _of_strategies(
        self, *strategies: Strategy, repairs_all: bool = False
    ) -> Iterator[Schedule]:
        for strategy in strategies:
            if strategy.seconds(self.pipeline) < seconds_left():
                yield from self._of_strategy(strategy, repairs_all=repairs_all)

    @property
    def usual_strategy(self) -> Strategy:
        """The first strategy of `usual`."""
        return self.own_strategy or resolve(USUAL[self.pipeline.resolved_placement])

    @property
    def _usual(self) -> tuple[Strategy, ...]:
        """The usual strategy, and that with overlapped pairs if these have times of their own."""
        if self.own_strategy or self.pipeline.overlap is None:
            return (self.usual_strategy,)
        return self.usual_strategy, resolve(OVERLAPPED[self.pipeline.resolved_placement])

    def _of_strategy(self, strategy: Strategy, *, repairs_all: bool = False) -> Iterator[Schedule]:
        kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
        order_is_open = Decisions.ORDER in self.pipeline.open_decisions
        if self.backward_kind not in (BackwardKind.MIXED, kind) or order_is_open:
            return
        options = strategy.own_options(self.options)
        with suppress(NotApplicableError), not_applicable():
            over_limits: list[Schedule] = []
            choices_of = by_rules if repairs_all else _with_layer_choices
            for partitioned in self._partitioned():
                over: list[Schedule] = []
                for pipeline in choices_of(partitioned):
                    checkpoint()
                    placed = strategy.apply(pipeline, options)
                    schedule = own_schedule(strategy, placed, self.objective, options)
                    if schedule.pipeline.layout != self.pipeline.layout:
                        return
                    if schedule.fits_limits:
                        yield checked(schedule)
                        break
                    over.append(schedule)
                over_limits += over if repairs_all else over[-1:]
                if schedule.fits_limits:
                    break
            if is_of_kind(schedule.kind, kind) and (repairs_all or not schedule.fits_limits):
                yield from filter(None, (self._repaired(each, kind) for each in over_limits))

    def _repaired(self, schedule: Schedule, kind: BackwardKind) -> Schedule | None:
        """The schedule with forwards that wait for memory; None: that does not help.

        It never helps a device whose static memory alone is above its limit.
        """
        orders = repair(schedule, Problem(schedule.pipeline, self.objective, kind).instance)
        if orders is None:
            return None
        repaired = timing.schedule(schedule.pipeline, orders, self.objective)
        return checked(repaired) if repaired.fits_limits else None

    @property
    def balanced(self) -> Pipeline:
        """The pipeline with the balanced partition, or an even one if the runtime needs that.

        Raises NotApplicableError if the runtime supports neither.
        """
        return next(self._partitioned())

    def _partitioned(self) -> Iterator[Pipeline]:
        """The pipeline with the balanced partition, and with that of more layers on late stages.

        Or with an even one if the runtime needs that; raises NotApplicableError if there is none.
        A partition that is not open stays, whatever the choice of recompute.
        """
        pipeline = self.pipeline
        if Decisions.PARTITION not in pipeline.open_decisions:
            yield pipeline.without(Decisions.NONE)
            return
        speeds = tuple(pipeline.device_speed[host] for host in pipeline.hosts[0])
        layers = pipeline.model, pipeline.num_stages, speeds
        accepted: set[Counts] = set()
        for rule in (balanced, balanced_late):
            counts = rule(*layers)
            if counts not in accepted and self._accepts(counts):
                accepted.add(counts)
                yield pipeline.with_partition(counts)
        if not accepted:
            for counts in filter(self._accepts, all_by_rule(*layers)):
                yield pipeline.with_partition(counts)
                return
            raise NotApplicableError("partition: the runtime supports no partition by rule")

    def _accepts(self, counts: Counts) -> bool:
        return self.accepts_partition is None or self.accepts_partition(counts)


def _with_layer_choices(balanced: Pipeline) -> Iterator[Pipeline]:
    """The pipelines whose recompute and offload follow a rule; neither only if 1F1B may fit."""
    neither, *further = by_rules(balanced)
    limits = balanced.limits
    if limits is None or not further or neither.peak_of_1f1b <= max(limits):
        yield neither
    yield from further
