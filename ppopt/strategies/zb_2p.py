"""ZB-2p: the heuristic of the zero-bubble paper under a limit of 2p activations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.metrics import metrics
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, Strategy, register

KINDS = (OpKind.F, OpKind.B, OpKind.W)
F, B, W = range(len(KINDS))
SHORTLIST = 3
"""Most schedules whose starts are chosen for device span exactly."""


@dataclass(frozen=True)
class Choices:
    """What the paper leaves to a grid search (section 3.1)."""

    delay_first_backward: bool
    """Whether a warm-up forward may run that makes the first backward late."""
    skip_forwards: bool
    """Whether a stage two forwards ahead of the next one may skip one."""
    weight_in_small_gaps: bool
    """Whether W goes into a gap shorter than W that leaves the largest idle time as it is."""


GRID = tuple(Choices(*choice) for choice in product((True, False), repeat=3))


def build(pipeline: Pipeline, _: Options) -> Orders:
    """The order of least device span among the eight of the paper's grid search.

    ArXiv 2401.10241, section 3.1, with the real time and memory of every stage: warm-up as deep
    as the first backward and 2p activations allow; then F and B in turn, W where a gap or the
    memory asks for it; then the W left. Stage i stays at least one F ahead of stage i + 1.
    """
    tried = [_Run(pipeline, choices) for choices in GRID]
    runs = {tuple(map(tuple, run.order)): run for run in tried}
    found = sorted(runs.values(), key=lambda run: run.span)[:SHORTLIST]
    return min((run.orders() for run in found), key=lambda orders: _cost(pipeline, orders))


def _cost(pipeline: Pipeline, orders: Orders) -> tuple[int, int]:
    figures = metrics(timing.schedule(pipeline, orders, Objective.DEVICE_SPAN))
    return figures.device_span, figures.makespan


class _Run:
    """One pass of the heuristic: operations are put on their stages one by one."""

    def __init__(self, pipeline: Pipeline, choices: Choices) -> None:
        ticks, hosts = pipeline.ticks, pipeline.hosts[0]
        self.pipeline, self.choices = pipeline, choices
        self.stages, self.batches = range(pipeline.num_stages), pipeline.batches
        self.last = pipeline.num_stages - 1
        self.time = [[ticks.durations[kind][stage] for kind in KINDS] for stage in self.stages]
        self.memory = [
            [ticks.memory_change(kind, stage) for kind in KINDS] for stage in self.stages
        ]
        self.room = [2 * len(self.stages) * taken for taken in ticks.activation]
        self.lag = [ticks.p2p[a][b] for a, b in pairwise(hosts)]
        self.back_lag = [ticks.p2p[b][a] for a, b in pairwise(hosts)]
        self.done = [[0, 0, 0] for _ in self.stages]
        self.held = [0 for _ in self.stages]
        self.free = [0 for _ in self.stages]
        self.idle = [0 for _ in self.stages]
        self.most_idle = 0
        self.ends: list[tuple[list[int], list[int]]] = [([], []) for _ in self.stages]
        self.order: list[list[int]] = [[] for _ in self.stages]
        self._warm_up()
        for _ in range(1, self.batches):
            self._forwards()
            self._backwards()
        for stage in self.stages:
            while self.done[stage][W] < self.batches:
                self._put(stage, W)

    @property
    def span(self) -> int:
        """Largest device span of the starts as simulated, in ticks."""
        return max(
            self.free[stage] - self.ends[stage][F][0] + self.time[stage][F] for stage in self.stages
        )

    def orders(self) -> Orders:
        """Numbers of the operations per device."""
        found: dict[int, Ints] = {}
        for stage, device in enumerate(self.pipeline.hosts[0]):
            kind = np.array(self.order[stage])
            first = [self.pipeline.code(one, stage, 0) for one in KINDS]
            found[device] = np.empty(len(kind), dtype=np.int64)
            for slot, code in enumerate(first):
                found[device][kind == slot] = code + np.arange(self.batches)
        return [found[device] for device in range(self.pipeline.num_devices)]

    def _put(self, stage: int, kind: int) -> None:
        """Run the next operation of a kind on a stage."""
        start = max(self.free[stage], self._arrival(stage, kind))
        if self.done[stage][F]:
            self.idle[stage] += start - self.free[stage]
            self.most_idle = max(self.most_idle, self.idle[stage])
        self.free[stage] = start + self.time[stage][kind]
        if kind != W:
            self.ends[stage][kind].append(self.free[stage])
        self.held[stage] += self.memory[stage][kind]
        self.done[stage][kind] += 1
        self.order[stage].append(kind)

    def _arrival(self, stage: int, kind: int) -> int:
        """When the next F or B of a stage has its input from the neighbour."""
        number = self.done[stage][kind]
        if kind == F and stage > 0:
            return self.ends[stage - 1][F][number] + self.lag[stage - 1]
        if kind == B and stage < self.last:
            return self.ends[stage + 1][B][number] + self.back_lag[stage]
        return 0

    def _warm_up(self) -> None:
        """Forwards until the first backward, which then runs on every stage."""
        for stage in self.stages:
            self._put(stage, F)
        extra = [0 for _ in self.stages]
        due = self.free[self.last] + self.time[self.last][B]
        for stage in reversed(self.stages[:-1]):
            due += self.back_lag[stage]
            extra[stage], free = self._fitting(stage, due)
            due = max(due, free) + self.time[stage][B]
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
        time, memory = self.time[stage][F], self.memory[stage][F]
        slack = time - 1 if self.choices.delay_first_backward else 0
        by_time = max(0, due + slack - self.free[stage]) // time
        by_memory = (self.room[stage] - self.held[stage]) // memory if memory else by_time
        count = min(by_time, by_memory, self.batches - 1)
        return count, self.free[stage] + count * time

    def _forwards(self) -> None:
        """One F on every stage that is to run one, first to last."""
        wanted = [self._wants_forward(stage) for stage in self.stages]
        for stage in reversed(self.stages[:-1]):
            wanted[stage] &= wanted[stage + 1]
        for stage in self.stages:
            if wanted[stage]:
                self._make_room(stage, F)
                self._fill(stage, F)
                self._put(stage, F)

    def _wants_forward(self, stage: int) -> bool:
        """Whether F is left, and skipping it is not allowed or would cost idle time."""
        done = self.done[stage][F]
        if done == self.batches:
            return False
        ahead = stage < self.last and done >= self.done[stage + 1][F] + 2
        if not (ahead and self.choices.skip_forwards):
            return True
        after = self.free[stage + 1] + sum(self.time[stage + 1][:W]) + self.lag[stage]
        gap = after - self.free[stage]
        if gap <= 0:
            return False
        weights = self._weights_for_room(stage) * self.time[stage][W]
        fits = self.time[stage][F] + weights <= gap
        return fits or gap > self.most_idle - self.idle[stage]

    def _weights_for_room(self, stage: int) -> int:
        """Weight passes that must run before the next F, as far as there are any."""
        gain = -self.memory[stage][W]
        missing = self.held[stage] + self.memory[stage][F] - self.room[stage]
        needed = -(-missing // gain) if gain > 0 and missing > 0 else 0
        return min(needed, self.done[stage][B] - self.done[stage][W])

    def _make_room(self, stage: int, kind: int) -> None:
        """Run W while memory does not allow the operation."""
        while (
            self._pending(stage) and self.held[stage] + self.memory[stage][kind] > self.room[stage]
        ):
            self._put(stage, W)

    def _pending(self, stage: int) -> bool:
        return self.done[stage][W] < self.done[stage][B]

    def _fill(self, stage: int, kind: int) -> None:
        """Put W into the gap before the next F or B of a stage."""
        arrival, time = self._arrival(stage, kind), self.time[stage][W]
        while self._pending(stage) and self.free[stage] + time <= arrival:
            self._put(stage, W)
        gap = arrival - self.free[stage]
        small = gap <= self.most_idle - self.idle[stage]
        if self._pending(stage) and gap > 0 and (self.choices.weight_in_small_gaps or not small):
            self._put(stage, W)

    def _backwards(self) -> None:
        """One B on every stage, last to first."""
        for stage in reversed(self.stages):
            self._make_room(stage, B)
            self._fill(stage, B)
            while stage == 0 and self.done[0][F] == self.batches and self._pending(0):
                self._put(0, W)
            self._put(stage, B)


register(
    Strategy(
        name="zb-2p",
        summary="the paper's heuristic within 2p activations, by the real stage times",
        source="Zero Bubble, arXiv 2401.10241, section 3.1",
        build=build,
        adaptive=True,
    )
)
