"""Candidate partitions, generated in the order of their lower bounds.

Every partition has a lower bound (`ppopt.solver.partitions.layer_run_bounds`); dynamic programs
enumerate partitions by that bound. The most even partitions whose bound is within 0 to 5 % of the
minimum, and the partitions by rule, are scheduled first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterator, Sequence
from itertools import islice

from ppopt.cancellation import part
from ppopt.problem import exact
from ppopt.problem.decisions import Decisions
from ppopt.problem.partition import all_by_rule
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.units import Unit
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import NONE_LEFT, Complete, Key, Rest, Unlisted
from ppopt.solver.partitions.partition_bounds import (
    SHARES,
    CompleteBounds,
    PartitionBounds,
    ResumableBounding,
    partition_bounds,
    quick_bound,
)
from ppopt.solver.partitions.partition_program import Counts
from ppopt.solver.partitions.space import FOREVER, PartitionSpace, space_of

BOUNDING_SHARE = 0.25
"""Maximum share of the remaining time for the bounds over all partitions, if no caller has computed
them: a search without an order of partitions is better than an order without a search."""
MAX_FAR_MOVES = 64
"""Maximum number of moves of a layer to another stage: all for 8 stages, over 2 cuts for 16."""
EVEN_SHARE = 0.05
"""Maximum share of the remaining time for one even partition: with two stages per device it may
take as long as the bound over all, and nothing is scheduled meanwhile."""
FIRST_EXTENSION = 0.01
"""Share by which the enumeration in bound order is extended; it doubles every time."""


class BoundedPartitions(Choice):
    """Configurations that each have a partition, with bounds over all partitions."""

    def __init__(
        self, base: Pipeline, space: PartitionSpace, bounds: CompleteBounds | None = None
    ) -> None:
        """`base` has the model to partition. `bounds`: those that are known."""
        self._base, self._space = base, space
        self._speeds = tuple(base.device_speed[host] for host in self._space.hosts)
        self._bounds: PartitionBounds | None = bounds
        """Bounds over all partitions; None: not computed yet."""
        self._bounding = ResumableBounding(self._space)
        self._order = None if bounds is None else PartitionOrder(bounds)

    def bound(self, ceiling: int | None = None) -> None:
        """Bound all partitions, or else every stage alone; another call resumes."""
        if isinstance(self._bounds, CompleteBounds):
            return
        bounds, order = self._bounding.run(ceiling), self._order
        if isinstance(bounds, CompleteBounds) and bounds.min_bound < FOREVER:
            order = PartitionOrder(bounds)
        self._bounds, self._order = bounds, order

    @property
    def lower_bound(self) -> int:
        """Minimum bound of all partitions; 0 if none is within the memory limits."""
        if self._bounds is None:
            return quick_bound(self._space)
        return self._bounds.min_bound if self._bounds.min_bound < FOREVER else 0

    def rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """Next configuration in the order of bounds; without an order, the minimum bound."""
        if self._bounds is not None and self._bounds.min_bound == FOREVER:
            return NONE_LEFT
        if self._order is None:
            return Unlisted(self.lower_bound)
        max_bound = None if ceiling is None else ceiling - 1
        try:
            return self._following(self._order, known, max_bound)
        except TimeoutError:
            return Unlisted(self.lower_bound)

    @abstractmethod
    def _following(
        self, order: PartitionOrder, known: Container[Key], max_bound: int | None
    ) -> Rest:
        """Next unknown configuration whose bound is at most `max_bound` ticks, if there is one."""

    @property
    def _counted(self) -> str:
        """Text on how the bounds count phases and different microbatches."""
        phases = "; the bounds count phases on compute only"
        smallest = (
            "; but for the work of all, the bounds count every microbatch as short and as small as "
            "the smallest"
        )
        differ = len(set(self._base.factors)) > 1
        return (phases if self._base.overlap is not None else "") + (smallest if differ else "")

    def _bounds_in_order(self) -> PartitionBounds | None:
        """Bounds over all partitions, in order if that is quick; None: none is feasible."""
        if self._bounds is None:
            with part(BOUNDING_SHARE):
                self.bound()
        bounds = self._bounds
        return None if bounds is None or bounds.min_bound == FOREVER else bounds

    def _most_even(self, bounds: PartitionBounds) -> Iterator[Counts]:
        """Even partitions with small bounds, until one takes too long; evener ones take longer."""
        for share in SHARES:
            counts, in_time = _most_even(bounds, share)
            if not in_time:
                return
            if counts is not None:
                yield counts

    def _by_rule(self) -> list[Counts]:
        """Partitions by rule."""
        return all_by_rule(self._base.model, self._base.num_stages, self._speeds)


def _most_even(bounds: PartitionBounds, share: float) -> tuple[Counts | None, bool]:
    """An even partition, if there is one, and whether its time was enough."""
    counts = None
    with part(EVEN_SHARE) as scope:
        counts = bounds.most_even(share)
    return counts, not scope.ended


class PartitionChoice(BoundedPartitions):
    """The partitions of a model's layers into the stages of a placement."""

    name = "partition"
    decisions = Decisions.PARTITION

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError if partitions cannot be searched."""
        super().__init__(problem.pipeline, space_of(problem))

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline with these numbers of layers per stage."""
        return self._base.with_partition(key)

    def key(self, pipeline: Pipeline) -> Key:
        """Numbers of layers per stage of a pipeline."""
        return pipeline.counts

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Partitions with their bounds; those over the memory limits are impossible."""
        for counts, bound in zip(keys, partition_bounds(self._space, keys), strict=True):
            yield Configuration(counts, bound, impossible=bound >= FOREVER)

    def first(self) -> Iterator[Counts]:
        """The partition of the pipeline, before all bounds; then even ones with small bounds."""
        yield self._base.counts
        bounds = self._bounds_in_order()
        if bounds is None:
            return
        yield from self._most_even(bounds)
        yield from self._by_rule()
        if isinstance(bounds, CompleteBounds):
            yield from (counts for _, counts in islice(bounds.in_order(bounds.min_bound), 1))

    def moves(self, key: Key) -> Iterator[Counts]:
        """Partitions that move one layer from one stage to another."""
        return layer_moves(key)

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all partitions."""
        space = self._space
        if search.infeasible and self._bounds is not None:
            return no_partition_fits(space, self._bounds)
        return (
            f"all {space.size:,} partitions of {space.num_layers} layers into {space.num_stages} "
            f"stages need at least this long: {exclusion_text(search, space)}{self._counted}"
        )

    def _following(
        self, order: PartitionOrder, known: Container[Key], max_bound: int | None
    ) -> Rest:
        following = order.peek(known, max_bound)
        if isinstance(following, Complete):
            return following
        return Unlisted(*following)


def exclusion_text(search: SearchedConfigurations, space: PartitionSpace) -> str:
    """Text on why every partition needs as long as the bound."""
    searched, examined = search.searched, search.examined
    one_device = "one device already needs this long"
    if space.limits is not None:
        one_device += " or exceeds its memory"
    if not examined:
        return f"in each of them, {one_device}"
    proofs = f"a search proved it for {searched}"
    if examined != searched:
        proofs = f"for {examined}, a search ({searched}) or several devices together prove it"
    if not search.closed:
        proofs += ", and may still find a faster one"
    return f"{proofs}; in each of the others, {one_device}"


class PartitionOrder:
    """Partitions in the order of their bounds, enumerated on demand."""

    def __init__(self, bounds: CompleteBounds) -> None:
        self._bounds = bounds
        self._reached = bounds.min_bound
        """Largest bound of the partitions enumerated so far."""
        self._share = FIRST_EXTENSION
        self._rest: Iterator[tuple[int, Counts]] | None = None
        """Enumeration up to that bound; None: not started, or ended by an exception."""
        self._next: tuple[int, Counts] | None = None

    def peek(
        self, known: Container[Counts], ceiling: int | None
    ) -> tuple[int, Counts] | Complete[Counts]:
        """Next unknown partition and its bound; `Complete` if there is none up to the ceiling."""
        ceiling = FOREVER - 1 if ceiling is None else ceiling
        while self._next is None or self._next[1] in known:
            self._next = self._following()
            if self._next is None:
                if self._reached >= ceiling:
                    return NONE_LEFT
                reached = min(ceiling, self._reached + 1 + int(self._share * self._reached))
                self._rest, self._reached, self._share = None, reached, 2 * self._share
        return self._next if self._next[0] <= ceiling else NONE_LEFT

    def _following(self) -> tuple[int, Counts] | None:
        """Next enumerated partition; one that an exception ended starts afresh."""
        rest, self._rest = self._rest or self._bounds.in_order(self._reached), None
        following = next(rest, None)
        self._rest = rest
        return following


def no_partition_fits(space: PartitionSpace, bounds: PartitionBounds) -> str:
    """Text on why no partition has a schedule, with the minimum limit."""
    return (
        f"no partition of {space.num_layers} layers fits the memory limits, even for one "
        f"microbatch at a time{limit_text(space, bounds)}"
    )


def limit_text(space: PartitionSpace, bounds: PartitionBounds) -> str:
    """Text with the minimum memory limit; empty if time is up."""
    try:
        limit = space.grid.amount(Unit.MEMORY, bounds.min_limit)
    except TimeoutError:
        return ""
    label = "the minimum feasible limit for all devices is"
    if not isinstance(bounds, CompleteBounds) or space.passing:
        label = "a limit for all devices must be at least"
    return f"; {label} {exact.plain(limit)}"


def one_layer_moves(counts: Counts) -> Iterator[Counts]:
    """Partitions that move one layer over one cut."""
    return _moves(counts, 1)


def layer_moves(counts: Counts) -> Iterator[Counts]:
    """Partitions with one layer less in one stage and one more in another, near stages first.

    Moves over one cut are always included; farther moves only up to `MAX_FAR_MOVES` in total.
    """
    num_moves = 0
    for distance in range(1, len(counts)):
        num_moves += 2 * (len(counts) - distance)
        if distance > 1 and num_moves > MAX_FAR_MOVES:
            return
        yield from _moves(counts, distance)


def _moves(counts: Counts, distance: int) -> Iterator[Counts]:
    """Partitions with one layer moved from one stage to another at this distance."""
    for stage in range(len(counts) - distance):
        for source, target in ((stage, stage + distance), (stage + distance, stage)):
            if counts[source] > 1:
                neighbour = list(counts)
                neighbour[source] -= 1
                neighbour[target] += 1
                yield tuple(neighbour)
