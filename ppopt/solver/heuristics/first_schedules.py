"""First schedules: those of published strategies with the balanced partition, within the limits.

Every search over configurations starts from them, and a plan evaluates them for all of its
configurations before it searches any. So no configuration has a worse value than these strategies,
however short its search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
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
        forwards wait for memory, so that fewer microbatches are in flight. Strategies that may take
        longer than the time left are skipped.
        """
        for strategy in self._usual:
            yield from self._of_strategy(strategy)

    def zero_bubble(self) -> Iterator[Schedule]:
        """Schedules as in `usual` of the zero-bubble strategy, if any strategy is allowed.

        Those with less recompute are repaired also if it fits with more.
        """
        if self.own_strategy is None:
            yield from self._of_strategy(self._zero_bubble, repairs_all=True)

    def by_other_strategies(self) -> Iterator[Schedule]:
        """Schedules as in `usual` of the other strategies of the placement."""
        first = (*self._usual, self._zero_bubble)
        for strategy in registry().values():
            if strategy.placement == self._zero_bubble.placement and strategy not in first:
                yield from self._of_strategy(strategy)

    @property
    def usual_strategy(self) -> Strategy:
        """The first strategy of `usual`."""
        return self._usual[0]

    @property
    def _usual(self) -> tuple[Strategy, ...]:
        """The only strategy, or the usual one, and that of overlapped pairs if there are any."""
        if self.own_strategy is not None:
            return (self.own_strategy,)
        tables = (USUAL,) if self.pipeline.overlap is None else (USUAL, OVERLAPPED)
        return tuple(resolve(table[self.pipeline.resolved_placement]) for table in tables)

    @property
    def _zero_bubble(self) -> Strategy:
        return resolve(ZERO_BUBBLE[self.pipeline.resolved_placement])

    def _of_strategy(self, strategy: Strategy, *, repairs_all: bool = False) -> Iterator[Schedule]:
        kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
        order_is_open = Decisions.ORDER in self.pipeline.open_decisions
        is_late = strategy.seconds(self.pipeline) > seconds_left()
        if self.backward_kind not in (BackwardKind.MIXED, kind) or order_is_open or is_late:
            return
        options, over_limits = strategy.own_options(self.options), list[Schedule]()
        with suppress(NotApplicableError), not_applicable():
            choices_of = by_rules if repairs_all else _with_layer_choices
            for pipeline in chain.from_iterable(map(choices_of, self.partitioned())):
                checkpoint()
                placed = strategy.apply(pipeline, options)
                schedule = own_schedule(strategy, placed, self.objective, options)
                if schedule.pipeline.layout != self.pipeline.layout:
                    return
                if schedule.fits_limits:
                    yield checked(schedule)
                    break
                over_limits.append(schedule)
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

    def partitioned(self) -> Iterator[Pipeline]:
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
        own = dict.fromkeys(rule(*layers) for rule in (balanced, balanced_late))
        even = all_by_rule(*layers)[:1]
        accepted = [*filter(self._accepts, own)] or [*filter(self._accepts, even)]
        if not accepted:
            raise NotApplicableError("partition: the runtime supports no partition by rule")
        yield from map(pipeline.with_partition, accepted)

    def _accepts(self, counts: Counts) -> bool:
        return self.accepts_partition is None or self.accepts_partition(counts)


def _with_layer_choices(balanced: Pipeline) -> Iterator[Pipeline]:
    """The pipelines whose recompute and offload follow a rule; neither only if 1F1B may fit."""
    neither, *further = by_rules(balanced)
    limits = balanced.limits
    if limits is None or not further or neither.peak_of_1f1b <= max(limits):
        yield neither
    yield from further
