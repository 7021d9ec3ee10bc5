"""ZB-2p: the heuristic of the zero-bubble paper under a limit of 2p activations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.generation import EventSimulation
from ppopt.schedule.metrics import metrics
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register

F, B, W = range(3)
SHORTLIST = 3
"""Number of schedules whose starts are optimized for device span exactly."""


@dataclass(frozen=True)
class Choices:
    """Options that the paper leaves to a grid search (section 3.1)."""

    delay_first_backward: bool
    """Whether a warm-up forward may delay the first backward."""
    skip_forwards: bool
    """Whether a stage two forwards ahead of the next one may skip one."""
    weight_in_small_gaps: bool
    """Whether W goes into a gap shorter than W that leaves the largest idle time as it is."""


GRID = tuple(Choices(*choice) for choice in product((True, False), repeat=3))


@register(
    name="zb-2p",
    summary="the paper's heuristic within 2p activations, by the real stage times",
    source="Zero Bubble, arXiv 2401.10241, section 3.1",
    adaptive=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """The order of minimum device span among the eight of the paper's grid search.

    ArXiv 2401.10241, section 3.1, with the real time and memory of every stage: warm-up as deep as
    the first backward and 2p activations allow; then F and B in turn, W if a gap or the memory
    calls for it; then the remaining W. Stage i stays at least one F ahead of stage i + 1.
    """
    tried = [_Run(pipeline, choices).run for choices in GRID]
    different = {tuple(map(tuple, candidate.sequence)): candidate for candidate in tried}
    shortest = sorted(different.values(), key=lambda candidate: candidate.span)[:SHORTLIST]
    return min(
        (candidate.orders() for candidate in shortest), key=lambda orders: _cost(pipeline, orders)
    )


def _cost(pipeline: Pipeline, orders: Orders) -> tuple[int, int]:
    figures = metrics(timing.schedule(pipeline, orders, Objective.DEVICE_SPAN))
    return figures.device_span_ticks, figures.makespan_ticks


class _Run:
    """One pass of the heuristic: it appends operations to their stages one by one."""

    def __init__(self, pipeline: Pipeline, choices: Choices) -> None:
        instance = Instance.of(pipeline, BackwardKind.SPLIT)
        self.run, self.choices = EventSimulation(instance), choices
        self.stages, self.batches = range(pipeline.num_stages), pipeline.batches
        self.last, self.host = pipeline.num_stages - 1, pipeline.hosts[0]
        self.class_ids = [instance.class_ids(stage) for stage in self.stages]
        self.exists = [
            [bool(instance.times(class_id)) for class_id in row] for row in self.class_ids
        ]
        none = (0,) * self.batches
        self.times = [
            [instance.times(class_id) or none for class_id in row] for row in self.class_ids
        ]
        self.memory = [
            [(*(instance.changes(class_id) or none), 0) for class_id in row]
            for row in self.class_ids
        ]
        self.limit = [2 * len(self.stages) * max(memory[F]) for memory in self.memory]
        lags = {(before, after): lag for before, after, lag in zip(*instance.flow, strict=True)}
        pairs = list(pairwise(self.class_ids))
        self.lag = [int(lags[current[F], following[F]]) for current, following in pairs]
        self.back_lag = [
            int(lags.get((following[B], current[B]), 0)) for current, following in pairs
        ]
        self.done = [[0, 0, 0] for _ in self.stages]
        self.live, self.pending = ([0 for _ in self.stages] for _ in range(2))
        self._warm_up()
        for _ in range(1, self.batches):
            self._forwards()
            self._backwards()
        for stage in self.stages:
            while self.done[stage][W] < self.batches:
                self._put(stage, W)

    def _free(self, stage: int) -> int:
        """When the device of a stage is free."""
        return self.run.free[self.host[stage]]

    def _spare_idle(self, stage: int) -> int:
        """Idle time that a stage may add without being idle longer than all others."""
        return self.run.max_idle - self.run.idle[self.host[stage]]

    def _arrival(self, stage: int, kind: int) -> int:
        """When the inputs of the next operation of a kind are at a stage; 0 if it has none."""
        if not self.exists[stage][kind]:
            return 0
        arrival = self.run.arrival(self.class_ids[stage][kind])
        assert arrival is not None, "neighbours run first"
        return arrival

    def _time(self, stage: int, kind: int) -> int:
        """Duration of the next operation of a kind on a stage."""
        return self.times[stage][kind][self.done[stage][kind]]

    def _change(self, stage: int, kind: int) -> int:
        """Net change of memory by the next operation of a kind on a stage; 0 if none is left."""
        return self.memory[stage][kind][self.done[stage][kind]]

    def _put(self, stage: int, kind: int) -> None:
        """Run the next operation of a kind on a stage; a missing one is only counted."""
        if self.exists[stage][kind]:
            arrival = 0 if kind == W else self._arrival(stage, kind)
            self.live[stage] += self._change(stage, kind)
            self.run.append(self.class_ids[stage][kind], arrival)
        self.done[stage][kind] += 1
        self.pending[stage] += (0, 1, -1)[kind]

    def _warm_up(self) -> None:
        """Forwards until the first backward, which then runs on every stage."""
        for stage in self.stages:
            self._put(stage, F)
        extra = [0 for _ in self.stages]
        due = self._free(self.last) + self._time(self.last, B)
        for stage in reversed(self.stages[:-1]):
            due += self.back_lag[stage]
            extra[stage], free = self._fitting(stage, due)
            due = max(due, free) + self._time(stage, B)
        for stage in self.stages:
            if stage:
                ahead = 0 if 1 + extra[stage - 1] == self.batches else 1
                extra[stage] = min(extra[stage], max(0, extra[stage - 1] - ahead))
            for _ in range(extra[stage]):
                self._put(stage, F)
        for stage in reversed(self.stages):
            self._put(stage, B)

    def _fitting(self, stage: int, due: int) -> tuple[int, int]:
        """How many more forwards fit before the first backward is due, and their end."""
        begin, free, live = self.done[stage][F], self._free(stage), self.live[stage]
        times, memory = (column[stage][F][begin:] for column in (self.times, self.memory))
        count = 0
        for time, change in zip(times, memory, strict=False):
            slack = time - 1 if self.choices.delay_first_backward else 0
            late, full = free + time > due + slack, live + change > self.limit[stage]
            if (time and late) or (change and full):
                break
            count, free, live = count + 1, free + time, live + change
        return count, free

    def _forwards(self) -> None:
        """One F on every stage that is to run one, first to last."""
        wanted = [self._wants_forward(stage) for stage in self.stages]
        for stage in reversed(self.stages[:-1]):
            wanted[stage] &= wanted[stage + 1]
        for stage in self.stages:
            if wanted[stage]:
                self._free_memory(stage, F)
                self._fill(stage, F)
                self._put(stage, F)

    def _wants_forward(self, stage: int) -> bool:
        """Whether an F is left, and skipping it is not allowed or would cost idle time."""
        done = self.done[stage][F]
        if done == self.batches:
            return False
        ahead = stage < self.last and done >= self.done[stage + 1][F] + 2
        if not (ahead and self.choices.skip_forwards):
            return True
        both = self._time(stage + 1, F) + self._time(stage + 1, B)
        after = self._free(stage + 1) + both + self.lag[stage]
        gap = after - self._free(stage)
        if gap <= 0:
            return False
        weights = sum(self._waiting(self.times, stage)[: self._weights_before_forward(stage)])
        fits = self._time(stage, F) + weights <= gap
        return fits or gap > self._spare_idle(stage)

    def _weights_before_forward(self, stage: int) -> int:
        """Number of weight passes that must run before the next F, if there are enough."""
        missing = self.live[stage] + self._change(stage, F) - self.limit[stage]
        for count, change in enumerate(self._waiting(self.memory, stage)):
            if missing <= 0 or change >= 0:
                return count
            missing += change
        return self.pending[stage]

    def _waiting(self, amounts: list[list[tuple[int, ...]]], stage: int) -> tuple[int, ...]:
        """Amounts of the weight passes that a stage has pending, in their order."""
        done = self.done[stage][W]
        return amounts[stage][W][done : done + self.pending[stage]]

    def _free_memory(self, stage: int, kind: int) -> None:
        """Run W as long as memory does not allow the operation."""
        while (
            self.pending[stage] and self.live[stage] + self._change(stage, kind) > self.limit[stage]
        ):
            self._put(stage, W)

    def _fill(self, stage: int, kind: int) -> None:
        """Put W into the gap before the next F or B of a stage."""
        if not self.pending[stage]:
            return
        arrival = self._arrival(stage, kind)
        while self.pending[stage] and self._free(stage) + self._time(stage, W) <= arrival:
            self._put(stage, W)
        gap = arrival - self._free(stage)
        small = gap <= self._spare_idle(stage)
        if self.pending[stage] and gap > 0 and (self.choices.weight_in_small_gaps or not small):
            self._put(stage, W)

    def _backwards(self) -> None:
        """One B on every stage, last to first."""
        for stage in reversed(self.stages):
            self._free_memory(stage, B)
            if stage < self.last:
                self._fill(stage, B)
            while stage == 0 and self.done[0][F] == self.batches and self.pending[0]:
                self._put(0, W)
            self._put(stage, B)
