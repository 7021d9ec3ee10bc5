"""The instance: what is to be scheduled, once, as arrays.

An instance has resources, each of which runs one operation at a time, and classes of operations. A
class has operations that are alike, one per microbatch of its route, or one in all. Each runs on
one resource, in one of the modes of its class; a mode has a duration and memory. Precedence between
two classes joins operations of the same microbatch, or all with the one. What a frozen stage does
not run is a class without operations and without precedence.

Memory: an operation takes an amount at its start and gives an amount at its end. F takes the
activation; B takes or gives its own change; W gives the rest; BW gives the activation. With
recompute F takes only what it keeps, and B or BW takes the rest. Every operation also takes its
workspace and gives it back; one of no length holds none.

What the terms of a training step add is in `ppopt.problem.features`. Strategies, timing,
heuristics, bounds and exact methods read the instance. The verifier and the re-checker do not: they
state the rules a second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt.problem import features
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.compute import ROW_OF, ROWS
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.operation import KINDS, NUM_KINDS, AuxiliaryKind, OpKind
from ppopt.problem.operation_classes import (
    Constraints,
    DispatchRule,
    Holding,
    OperationClass,
    Resource,
)
from ppopt.problem.pipeline import Pipeline

ABSENT = -1
"""In place of the number of an operation that is not in a schedule."""
SPLIT_MODE, WHOLE_MODE = 0, 1
"""Modes of the classes that choose between a split and a whole backward."""


@dataclass(frozen=True, eq=False)
class Instance:
    """The operations of a pipeline, their resources, precedence and memory.

    Classes are numbered 0, 1, ...: those of compute first, by row (F, backward, W), then route,
    slice and stage.
    """

    pipeline: Pipeline
    backward_kind: BackwardKind
    """Whether backwards are split, whole, or either (then their classes have two modes)."""
    all_resources: bool = False
    """Whether it has all resources. Else it has those of compute: transfers are delays, and work
    around the microbatches is left out, which is a relaxation."""

    @classmethod
    def uniform(cls, pipeline: Pipeline, *, fused: bool) -> Instance:
        """The instance whose backwards are all whole (`fused`), or all split."""
        return cls(pipeline, BackwardKind.uniform(fused=fused))

    @classmethod
    def with_backwards(
        cls, pipeline: Pipeline, split: Bools, *, all_resources: bool = False
    ) -> Instance:
        """The instance of the fewest modes that has these backwards.

        `split` says for every [stage, microbatch, slice] whether its backward is split, if it has
        one.
        """
        split = split[np.array(pipeline.has_operations[OpKind.B])]
        uniform = split.all() or not split.any()
        kind = BackwardKind.uniform(fused=not split.any()) if uniform else BackwardKind.MIXED
        return cls(pipeline, kind, all_resources)

    @property
    def batches(self) -> int:
        """Microbatches of a route."""
        return self.pipeline.batches // self.pipeline.routes

    @property
    def operations(self) -> int:
        """Compute operations of a schedule; the most of any where backwards may be either."""
        compute = self.classes[: len(self.rows) * self.places]
        return sum(op_class.size for op_class in compute)

    @property
    def rows(self) -> tuple[tuple[OpKind | None, ...], ...]:
        """Kinds of the operations of a stage and microbatch, in their order, each by mode."""
        return ROWS[self.backward_kind]

    @property
    def kinds(self) -> tuple[OpKind, ...]:
        """Kinds of the operations that devices may run."""
        kinds = {kind for row in self.rows for kind in row if kind is not None}
        return tuple(sorted(kinds))

    @property
    def mixed(self) -> bool:
        """Whether a backward may be split or whole."""
        return self.backward_kind is BackwardKind.MIXED

    @property
    def fused(self) -> bool:
        """Whether all backwards are whole."""
        return self.backward_kind is BackwardKind.WHOLE

    @property
    def backward(self) -> OpKind:
        """Kind of the backwards that go from stage to stage: BW if all are whole, else B."""
        return OpKind.BW if self.fused else OpKind.B

    @property
    def closing(self) -> OpKind:
        """Kind that comes last for a stage and microbatch: W, or BW if all are whole."""
        return OpKind.BW if self.fused else OpKind.W

    @cached_property
    def _draft(self) -> InstanceDraft:
        build = features.on_all_resources if self.all_resources else features.on_devices
        return build(self.pipeline, self.backward_kind)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """All resources: the devices, then the others."""
        return tuple(self._draft.resources)

    @property
    def dispatch_rules(self) -> tuple[DispatchRule, ...]:
        """Rules by which links serve a strategy that gives no order of transfers."""
        return self._draft.dispatch_rules

    @cached_property
    def classes(self) -> tuple[OperationClass, ...]:
        """All classes, by number."""
        return tuple(self._draft.classes)

    @property
    def places(self) -> int:
        """Number of places: routes x slices x stages. Rows of classes are that far apart."""
        pipeline = self.pipeline
        return pipeline.routes * pipeline.num_slices * pipeline.num_stages

    def number(self, kind: OpKind, stage: int, route: int = 0, slice: int = 0) -> int:  # noqa: A002
        """Number of the class of a kind of compute; B and BW have one where backwards are mixed."""
        pipeline = self.pipeline
        place = (route * pipeline.num_slices + slice) * pipeline.num_stages + stage
        return ROW_OF[kind] * self.places + place

    def numbers(self, stage: int, route: int = 0, slice: int = 0) -> list[int]:  # noqa: A002
        """Numbers of the compute classes of a stage, in the order in which they can run."""
        first = self.number(OpKind.F, stage, route, slice)
        return [first + row * self.places for row in range(len(self.rows))]

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the classes that every resource has operations of; devices come first."""
        found: list[list[int]] = [[] for _ in self.resources]
        for number, op_class in enumerate(self.classes):
            if op_class.size:
                found[op_class.resource].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def flow(self) -> Constraints:
        """Precedence between classes, by number, sorted; its lag in ticks."""
        edges = sorted(set(self._edges()))
        return Constraints(*np.array(edges, dtype=np.int64).reshape(-1, 3).T)

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        yield from self._draft.precedence

    @cached_property
    def predecessors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per class: (class that it waits for, lag in ticks)."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        for before, after, lag in zip(*(column.tolist() for column in self.flow), strict=True):
            found[after].append((before, lag))
        return tuple(map(tuple, found))

    @cached_property
    def successors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per class: (class that waits for it, lag in ticks)."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        for before, after, lag in zip(*(column.tolist() for column in self.flow), strict=True):
            found[before].append((after, lag))
        return tuple(map(tuple, found))

    @property
    def num_codes(self) -> int:
        """Numbers that operations can have; those of compute are `Pipeline.code`."""
        return self.pipeline.num_codes // NUM_KINDS * KINDS

    @cached_property
    def codes(self) -> tuple[Ints, ...]:
        """Numbers of the operations of every class in its first mode, by microbatch."""
        return self._all_codes(SPLIT_MODE)

    @cached_property
    def _codes_of_whole(self) -> tuple[Ints, ...]:
        """The same where every backward is whole."""
        return self._all_codes(WHOLE_MODE)

    def codes_in(self, number: int, option: int) -> Ints:
        """Numbers of the operations of a class in one of its modes, by microbatch.

        ABSENT if the mode is that there is none.
        """
        return (self.codes if option == SPLIT_MODE else self._codes_of_whole)[number]

    def _all_codes(self, option: int) -> tuple[Ints, ...]:
        modes = [operation_class.modes_by_option[option] for operation_class in self.classes]
        kinds = [0 if mode is None else mode.kind for mode in modes]
        places = [
            (operation_class.stage, operation_class.route, operation_class.slice)
            for operation_class in self.classes
        ]
        stage, route, part = np.array(places, dtype=np.int64).T[:, :, None]
        microbatch = route * self.batches + np.arange(self.batches)
        kind = np.array(kinds, dtype=np.int64)[:, None]
        codes = np.asarray(self.pipeline.code(kind, stage, microbatch, part))
        codes[[mode is None for mode in modes]] = ABSENT
        return tuple(
            row[: op_class.size] for row, op_class in zip(codes, self.classes, strict=True)
        )

    @cached_property
    def operation_flow(self) -> Constraints:
        """Precedence between operations in their first modes, by number."""
        return self._between(self.codes)

    @cached_property
    def microbatch_order(self) -> Constraints:
        """Each operation of a class, in its first mode, after that of the microbatch before."""
        before = np.concatenate([codes[:-1] for codes in self.codes])
        after = np.concatenate([codes[1:] for codes in self.codes])
        return Constraints(before, after, np.zeros_like(before))

    def chosen_flow(self, split: Bools) -> Constraints:
        """Precedence between the operations of a schedule of these backwards, by number.

        `split` says for every [stage, microbatch, slice] whether its backward is split.
        """
        if not self.mixed:
            return self.operation_flow
        present = [
            np.where(split[op_class.stage, self._microbatches(op_class), op_class.slice], *both)
            if len(op_class.modes) > 1 and op_class.size
            else both[0]
            for op_class, *both in zip(self.classes, self.codes, self._codes_of_whole, strict=True)
        ]
        flow = self._between(present)
        there = (flow.before != ABSENT) & (flow.after != ABSENT)
        return Constraints(*(column[there] for column in flow))

    def _microbatches(self, op_class: OperationClass) -> Ints:
        """Microbatches of a class that has one operation for each."""
        return op_class.route * self.batches + np.arange(self.batches)

    def _between(self, codes: Sequence[Ints]) -> Constraints:
        """Precedence between operations of these numbers, [class][microbatch]."""
        before, after, lag = self.flow
        pairs = [
            _joined(codes[first], codes[second])
            for first, second in zip(before.tolist(), after.tolist(), strict=True)
        ]
        sizes = [len(first) for first, _ in pairs]
        none = np.empty(0, dtype=np.int64)
        return Constraints(
            np.concatenate([none, *(first for first, _ in pairs)]),
            np.concatenate([none, *(second for _, second in pairs)]),
            np.repeat(lag, sizes),
        )

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """What every microbatch holds in the first modes, if all is given back."""
        return self.holdings_in(SPLIT_MODE)

    def holdings_in(self, option: int) -> tuple[Holding, ...]:
        """What every microbatch holds in these modes, from which class to which.

        What is given back is what was taken last.
        """
        found: list[Holding] = []
        for place in range(self.places):
            held: list[Holding] = []
            mine: list[Holding] = []
            for number in self._lifetime[place]:
                mode = self.classes[number].modes_by_option[option]
                if mode is None:
                    continue
                if mode.takes:
                    held.append(Holding(number, number, mode.takes))
                mine += _given_back(held, number, mode.gives)
            found += sorted(mine)
        return tuple(found)

    @cached_property
    def _lifetime(self) -> list[list[int]]:
        """Classes of every place, in the order in which its operations run."""
        rows = range(len(self.rows))
        found = [[row * self.places + place for row in rows] for place in range(self.places)]
        for number in self.auxiliary:
            op_class = self.classes[number]
            if op_class.per_microbatch:
                mine = found[self.number(OpKind.F, *op_class[:3])]
                mine.insert(len(mine) - len(rows) + 1, number)
        return found

    @cached_property
    def durations(self) -> Ints:
        """Time of every operation number, in ticks; 0 if there is no such operation."""
        found = np.zeros(self.num_codes, dtype=np.int64)
        for option in (SPLIT_MODE, WHOLE_MODE):
            for number, op_class in enumerate(self.classes):
                mode = op_class.modes_by_option[option]
                if mode is not None:
                    found[self.codes_in(number, option)] = mode.duration
        return found

    @property
    def has_instants(self) -> bool:
        """Whether operations may have no length."""
        modes = (mode for operation_class in self.classes for mode in operation_class.modes)
        return any(mode is not None and not mode.duration for mode in modes)

    @property
    def auxiliary(self) -> range:
        """Classes of auxiliary operations; they come last."""
        count = sum(isinstance(op_class.kind, AuxiliaryKind) for op_class in self.classes)
        return range(len(self.classes) - count, len(self.classes))

    @cached_property
    def lasting(self) -> tuple[Holding, ...]:
        """What is held once in a step, from one auxiliary class of a stage to another one."""
        classes = {
            number: auxiliary
            for number in self.auxiliary
            if not (auxiliary := self.classes[number]).per_microbatch
        }
        takers = {op_class[:2]: number for number, op_class in classes.items() if op_class.takes}
        return tuple(
            Holding(takers[op_class[:2]], number, op_class.gives)
            for number, op_class in classes.items()
            if op_class.gives
        )

    def device(self, number: int) -> int:
        """Device of a class; of a transfer the first of its link."""
        return self.resources[self.classes[number].resource].devices[0]

    def room(self, device: int) -> int | None:
        """Memory limit of a device less its static memory; None: unlimited."""
        return self.pipeline.ticks.room(device)


def _joined(before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Operations of two classes that precedence joins: one by one, or all with the only one."""
    if len(before) == len(after):
        return before, after
    both = np.broadcast_arrays(before, after)
    return both[0], both[1]


def _given_back(held: list[Holding], giver: int, amount: int) -> Iterator[Holding]:
    """Take an amount off what is held, the last first, and say from whom it was."""
    while amount:
        taker, _, most = held.pop()
        part = min(amount, most)
        if part < most:
            held.append(Holding(taker, taker, most - part))
        amount -= part
        yield Holding(taker, giver, part)
