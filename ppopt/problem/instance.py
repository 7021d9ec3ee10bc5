"""The instance: the operations to be scheduled, as arrays.

An instance has resources, each of which runs one operation at a time, and classes of operations. A
class has equal operations: one per microbatch of its route, or a single one. They run on one
resource, each in one of the modes of the class; a mode has a duration and amounts of memory.
Precedence between two classes relates the operations of the same microbatch, or all operations of
one class to the single one of the other. A class of operations that a frozen stage does not run has
no operations and no precedence.

Memory: an operation allocates at its start and frees at its end. F allocates the activation; B
allocates or frees its own change; W frees the rest; BW frees the activation. With recompute F
allocates only what it retains, and B or BW allocates the rest. Every operation also allocates its
workspace and frees it; an operation of zero duration needs none.

`ppopt.problem.features` turns the terms of a training step into these. Strategies, timing,
heuristics, bounds and exact methods read the instance. The verifier and the re-checker do not: they
state the rules a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from typing import Any

import numpy as np

from ppopt.problem import features, microbatches
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.compute import ROW_OF, ROWS
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.operation import KINDS, NUM_KINDS, AuxiliaryKind, OpKind
from ppopt.problem.operation_classes import (
    Allocation,
    ClassAllocation,
    Constraints,
    Mode,
    OperationClass,
)
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import Resource
from ppopt.problem.short_pairs import ShortPairs
from ppopt.problem.traits import Trait, Traits

ABSENT = -1
"""In place of the number of an operation that is not in a schedule."""
SPLIT_MODE, WHOLE_MODE = 0, 1
"""Modes of the classes that choose between a split and a whole backward."""
_NOTHING = (Mode(OpKind.F, 0),)
"""Modes in place of those of a class without operations."""
Amounts = tuple[tuple[int, ...], ...]
"""An amount of every operation, [class][microbatch]."""


@dataclass(frozen=True, eq=False)
class Instance:
    """The operations of a pipeline, their resources, precedence and memory.

    Classes have the ids 0, 1, ...: those of compute first, by row (F, backward, W), then route,
    slice and stage.
    """

    pipeline: Pipeline
    backward_kind: BackwardKind
    """Whether backwards are split, whole, or either (then their classes have two modes)."""
    all_resources: bool = False
    """Whether it has all resources. Otherwise it has only compute: transfers are delays, and work
    before and after the microbatches is left out, which is a relaxation."""
    relaxed: InstanceCosts | None = None
    """Costs of a relaxation (`ppopt.problem.relaxations`); None: those of the pipeline."""

    @classmethod
    def of(
        cls, pipeline: Pipeline, backward_kind: BackwardKind, *, all_resources: bool = False
    ) -> Instance:
        """The instance of a pipeline, built once and cached with it."""
        instances: dict[Any, Instance] = vars(pipeline).setdefault("_instances", {})
        key = cls, backward_kind, all_resources
        if key not in instances:
            instances[key] = cls(pipeline, backward_kind, all_resources)
        return instances[key]

    @classmethod
    def uniform(cls, pipeline: Pipeline, *, fused: bool) -> Instance:
        """The instance whose backwards are all whole (`fused`), or all split."""
        return cls.of(pipeline, BackwardKind.uniform(fused=fused))

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
        return cls.of(pipeline, kind, all_resources=all_resources)

    @property
    def batches(self) -> int:
        """Microbatches of a route."""
        return self.pipeline.batches // self.pipeline.routes

    @property
    def num_operations(self) -> int:
        """Compute operations of a schedule; the maximum number if backwards may be either."""
        compute = self.classes[: len(self.rows) * self.num_positions]
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

    @cached_property
    def traits(self) -> Traits:
        """Traits of its problems, whatever the objective; also of operations that are left out."""
        own = (trait for trait, holds in OF_INSTANCE.items() if holds(self))
        return self.costs.traits.union(own)

    @cached_property
    def costs(self) -> InstanceCosts:
        """The costs of its operations, in whole ticks."""
        return self.relaxed or InstanceCosts.of(self.pipeline)

    def with_costs(self, costs: InstanceCosts) -> Instance:
        """The instance of the same layout with other costs."""
        return replace(self, relaxed=costs)

    @cached_property
    def short_pairs(self) -> ShortPairs:
        """The pairs that take less time than one of their operations alone."""
        return ShortPairs(self.costs, self.backward_kind)

    @property
    def mixed(self) -> bool:
        """Whether a backward may be split or whole."""
        return self.backward_kind is BackwardKind.MIXED

    @property
    def _options(self) -> tuple[int, ...]:
        """Modes that differ from each other."""
        return (SPLIT_MODE, WHOLE_MODE)[: 1 + self.mixed]

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
        all_resources = self.all_resources
        return features.draft_of(self.costs, self.backward_kind, all_resources=all_resources)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """All resources: the devices, then the others."""
        return self._draft.resources

    @cached_property
    def classes(self) -> tuple[OperationClass, ...]:
        """All classes, by number."""
        return tuple(self._draft.classes)

    @property
    def num_positions(self) -> int:
        """Routes x slices x stages: the distance between rows of classes."""
        pipeline = self.pipeline
        return pipeline.routes * pipeline.num_slices * pipeline.num_stages

    def class_id(self, kind: OpKind, stage: int, route: int = 0, slice: int = 0) -> int:  # noqa: A002
        """Id of the class of a kind of compute; B and BW share one if backwards are mixed."""
        pipeline = self.pipeline
        position = (route * pipeline.num_slices + slice) * pipeline.num_stages + stage
        return ROW_OF[kind] * self.num_positions + position

    def class_ids(self, stage: int, route: int = 0, slice: int = 0) -> list[int]:  # noqa: A002
        """Ids of the compute classes of a stage, in the order in which they can run."""
        first = self.class_id(OpKind.F, stage, route, slice)
        return [first + row * self.num_positions for row in range(len(self.rows))]

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Ids of the classes that have operations on each resource; devices come first."""
        class_ids: list[list[int]] = [[] for _ in self.resources]
        for class_id, op_class in enumerate(self.classes):
            if op_class.size:
                class_ids[op_class.resource].append(class_id)
        return tuple(map(tuple, class_ids))

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
        return self._neighbours(self.flow.after, self.flow.before)

    @cached_property
    def successors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per class: (class that waits for it, lag in ticks)."""
        return self._neighbours(self.flow.before, self.flow.after)

    def _neighbours(self, near: Ints, far: Ints) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Per class: the classes at the far end of its precedence, and the lag."""
        neighbours: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        columns = (column.tolist() for column in (near, far, self.flow.lag))
        for class_id, neighbour, lag in zip(*columns, strict=True):
            neighbours[class_id].append((neighbour, lag))
        return tuple(map(tuple, neighbours))

    @property
    def num_codes(self) -> int:
        """Numbers that operations can have; those of compute are `Pipeline.code`."""
        compute = self.pipeline.num_codes
        return compute // NUM_KINDS * KINDS if self.all_resources else compute

    @cached_property
    def codes(self) -> tuple[Ints, ...]:
        """Numbers of the operations of every class in its first mode, by microbatch."""
        return self._codes[SPLIT_MODE]

    def codes_in(self, class_id: int, option: int) -> Ints:
        """Numbers of the operations of a class in one of its modes, by microbatch.

        ABSENT if there is no operation in that mode.
        """
        return self._codes[option][class_id]

    @cached_property
    def _codes(self) -> list[tuple[Ints, ...]]:
        sizes = self._sizes.tolist()
        return [
            tuple(row[:size] for row, size in zip(table, sizes, strict=True))
            for table in self._numbers
        ]

    @cached_property
    def _sizes(self) -> Ints:
        """Number of operations of every class."""
        return np.array([op_class.size for op_class in self.classes], dtype=np.int64)

    @cached_property
    def _cells(self) -> tuple[Ints, Ints, Ints]:
        """Stage, microbatch and slice of every operation: `[class, microbatch of its route]`.

        A class of a single operation has it in every column.
        """
        columns = np.array([op_class[:3] for op_class in self.classes], dtype=np.int64)
        stage, route, slice_index = columns.T[:, :, None]
        own = np.minimum(np.arange(self.batches), np.maximum(self._sizes[:, None] - 1, 0))
        return stage, route * self.batches + own, slice_index

    @cached_property
    def _numbers(self) -> tuple[Ints, Ints]:
        """Numbers in the first and the last mode, in the form of `_cells`; ABSENT: none."""
        stage, microbatch, slice_index = self._cells
        tables = []
        for option in self._options:
            modes = [op_class.modes_by_option[option] for op_class in self.classes]
            kind = np.array([ABSENT if mode is None else mode.kind for mode in modes])[:, None]
            numbers = self.pipeline.code(kind, stage, microbatch, slice_index)
            tables.append(np.where(kind == ABSENT, ABSENT, numbers))
        return tables[0], tables[-1]

    @cached_property
    def operation_flow(self) -> Constraints:
        """Precedence between operations in their first modes, by number."""
        return self._between(self._numbers[SPLIT_MODE])

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
        return self._between(np.where(split[self._cells], *self._numbers))

    def _between(self, numbers: Ints) -> Constraints:
        """Precedence between operations of these numbers, in the form of `_cells`."""
        flow = self.flow
        count = np.maximum(self._sizes[flow.before], self._sizes[flow.after])
        before, after = numbers[flow.before], numbers[flow.after]
        exist = (np.arange(self.batches) < count[:, None]) & (np.minimum(before, after) != ABSENT)
        columns = before, after, np.broadcast_to(flow.lag[:, None], exist.shape)
        if exist.all():
            return Constraints(*map(np.ravel, columns))
        return Constraints(*(column[exist] for column in columns))

    def live_memory_in(self, option: int = SPLIT_MODE) -> tuple[ClassAllocation, ...]:
        """Allocations of every microbatch in these modes, from which class to which.

        What was allocated last is freed first.
        """
        allocations: list[ClassAllocation] = []
        for numbers in self._lifetime:
            modes = {class_id: self.operation_modes(class_id, option) for class_id in numbers}
            count = max(map(len, modes.values()))
            amounts: dict[tuple[int, int], list[int]] = {}
            for microbatch in range(count):
                own = {
                    class_id: row[microbatch % len(row)] for class_id, row in modes.items() if row
                }
                for allocator, freer, amount in _allocations_of_microbatch(own):
                    amounts.setdefault((allocator, freer), [0] * count)[microbatch] = amount
            allocations += [
                ClassAllocation(*both, tuple(amounts[both]) * (self.batches // count))
                for both in sorted(amounts)
            ]
        return tuple(allocations)

    @cached_property
    def _lifetime(self) -> list[list[int]]:
        """Classes of every position, in the order in which its operations run."""
        rows = range(len(self.rows))
        lifetimes = [
            [row * self.num_positions + position for row in rows]
            for position in range(self.num_positions)
        ]
        for class_id in self.auxiliary_classes:
            op_class = self.classes[class_id]
            if op_class.per_microbatch:
                class_ids = lifetimes[self.class_id(OpKind.F, *op_class[:3])]
                class_ids.insert(len(class_ids) - len(rows) + 1, class_id)
        return lifetimes

    def operation_modes(self, class_id: int, option: int = SPLIT_MODE) -> tuple[Mode, ...]:
        """Modes of the operations of a class, by microbatch; one entry if all are equal.

        Empty if the class has no operation in this option. All amounts per operation follow from
        these.
        """
        op_class = self.classes[class_id]
        mode = op_class.modes_by_option[option]
        if op_class.by_microbatch:
            return op_class.by_microbatch[-option]
        return (mode,) if mode is not None and op_class.size else ()

    @cached_property
    def has_uniform_classes(self) -> bool:
        """Whether all operations of a class are equal, whatever their microbatch."""
        classes = range(len(self.classes))
        return all(len(self.operation_modes(*of)) <= 1 for of in product(classes, self._options))

    def times(self, class_id: int, option: int = SPLIT_MODE) -> tuple[int, ...]:
        """Duration of every operation of a class, by microbatch of its route, in ticks.

        Empty if the class has no operation in this option.
        """
        return self.amounts("duration", option)[class_id]

    def allocated(self, class_id: int, option: int = SPLIT_MODE) -> tuple[int, ...]:
        """Memory that each operation allocates at its start, in ticks, in the form of `times`."""
        return self.amounts("allocates", option)[class_id]

    def freed(self, class_id: int, option: int = SPLIT_MODE) -> tuple[int, ...]:
        """Memory that each operation frees at its end, in ticks, in the form of `times`."""
        return self.amounts("frees", option)[class_id]

    def changes(self, class_id: int, option: int = SPLIT_MODE) -> tuple[int, ...]:
        """Net change of memory by each operation, in ticks, in the form of `times`."""
        return self.amounts("change", option)[class_id]

    def amounts(self, name: str, option: int = SPLIT_MODE) -> Amounts:
        """An amount of every operation, by the name of the field of its mode."""
        known: dict[tuple[str, int], Amounts] = vars(self).setdefault("_rows_of_amounts", {})
        if (name, option) not in known:
            rows = []
            for class_id, op_class in enumerate(self.classes):
                row = tuple(getattr(mode, name) for mode in self.operation_modes(class_id, option))
                rows.append(row * op_class.size if len(row) == 1 else row)
            known[name, option] = tuple(rows)
        return known[name, option]

    @property
    def durations(self) -> Ints:
        """Duration of every operation number, in ticks; 0 if there is no such operation."""
        return self._by_code["duration"]

    @property
    def allocations(self) -> Ints:
        """Memory that every operation number allocates at its start, in ticks of memory."""
        return self._by_code["allocates"]

    @property
    def frees(self) -> Ints:
        """Memory that every operation number frees at its end, in ticks of memory."""
        return self._by_code["frees"]

    @property
    def pair_workspaces(self) -> Ints:
        """Memory that every operation number also allocates and frees if it is in a pair."""
        return self._by_code["pair_workspace"]

    @cached_property
    def _by_code(self) -> dict[str, Ints]:
        """Every field of the mode of every operation number; 0 if there is no such operation."""
        columns = np.zeros((self.num_codes + 1, len(Mode._fields)), dtype=np.int64)
        for option in self._options:
            numbers = self._numbers[option]  # ABSENT: the last row
            modes = [self.operation_modes(n, option) or _NOTHING for n in range(len(numbers))]
            width = max(map(len, modes))
            equal = chain.from_iterable(own * (width // len(own)) for own in modes)
            table = np.fromiter(chain.from_iterable(equal), dtype=np.int64)
            columns[numbers] = table.reshape(len(modes), width, -1)
        columns = columns[:ABSENT]
        return dict(zip(Mode._fields, columns.T.copy(), strict=True))

    def pair_time(self, forward: int, backward: int) -> int:
        """Duration of two operation numbers that run as one, in ticks.

        If microbatches or slices differ, as much overlaps as if both had the smaller factor.
        """
        first, second = self.pipeline.op(forward), self.pipeline.op(backward)
        ticks, pair = self.costs.ticks, (first.stage, second.kind, second.stage)
        if not self.traits & {Trait.MICROBATCHES, Trait.UNEQUAL_SLICES}:
            return ticks.pair_time(*pair)
        smaller = min(
            self.costs.factors[op.microbatch][0] * self.pipeline.slice_factor(op.slice)
            for op in (first, second)
        )
        alone = self.durations[[forward, backward]].sum()
        return int(alone) - microbatches.scaled(ticks.pair_saving(*pair), smaller)

    @property
    def has_instants(self) -> bool:
        """Whether operations may have zero duration."""
        each = (self.amounts("duration", option) for option in self._options)
        return not all(all(row) for rows in each for row in rows)

    @cached_property
    def auxiliary_classes(self) -> range:
        """Classes other than compute and transfers; they come last."""
        count = sum(isinstance(op_class.kind, AuxiliaryKind) for op_class in self.classes)
        return range(len(self.classes) - count, len(self.classes))

    @cached_property
    def step_long_allocations(self) -> tuple[Allocation, ...]:
        """Memory that is allocated once in a step, from one class of a stage to another."""
        classes = {
            class_id: op_class
            for class_id in self.auxiliary_classes
            if not (op_class := self.classes[class_id]).per_microbatch
        }
        allocators = {
            op_class[:2]: class_id for class_id, op_class in classes.items() if op_class.allocates
        }
        return tuple(
            Allocation(allocators[op_class[:2]], class_id, op_class.frees)
            for class_id, op_class in classes.items()
            if op_class.frees
        )

    def device(self, class_id: int) -> int:
        """Device of a class; of a transfer the first of its link."""
        return self.resources[self.classes[class_id].resource].devices[0]

    def headroom(self, device: int) -> int | None:
        """Memory limit of a device minus its static memory; None: unlimited."""
        return self.costs.ticks.headroom(device)


OF_INSTANCE: Mapping[Trait, Callable[[Instance], bool]] = {
    Trait.MIXED: lambda instance: instance.mixed,
    Trait.PAIRS: lambda instance: instance.short_pairs.save_time,
    Trait.SHORT_PAIRS: lambda instance: instance.short_pairs.exist,
}
"""How the traits that depend on the kind of backwards are recognised
(`ppopt.problem.traits.OF_PIPELINE` has those of a pipeline)."""


def _allocations_of_microbatch(modes: Mapping[int, Mode]) -> Iterator[Allocation]:
    """Allocations of a microbatch, from the modes of its operations in running order."""
    open_allocations: list[Allocation] = []
    for class_id, mode in modes.items():
        if mode.allocates:
            open_allocations.append(Allocation(class_id, class_id, mode.allocates))
        amount = mode.frees
        while amount:
            allocator, _, available = open_allocations.pop()
            freed = min(amount, available)
            if freed < available:
                open_allocations.append(Allocation(allocator, allocator, available - freed))
            amount -= freed
            yield Allocation(allocator, class_id, freed)
