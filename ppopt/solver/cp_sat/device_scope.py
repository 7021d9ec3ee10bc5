"""Selects the operations and constraints of a CP-SAT model of some or all devices.

If some devices are dropped, precedence constraints and objective cuts include what those devices
and the memory limits imply (`ppopt.solver.relaxation.device_relaxation`). This requires that
backwards are all split or all whole, and that there are no slices; otherwise no device is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ppopt.cancellation import each
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import ABSENT, SPLIT_MODE, WHOLE_MODE, Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.arguments import SUBSETS
from ppopt.solver.cp_sat.no_overlap import NoOverlap, OperationIntervals, Pairs
from ppopt.solver.cp_sat.order_literals import OrderLiterals
from ppopt.solver.cp_sat.parts import (
    Memory,
    MemoryInterval,
    MicrobatchOrder,
    ObjectiveCuts,
    Origin,
    Precedence,
    Releases,
    Work,
)
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode
from ppopt.solver.relaxation import device_relaxation
from ppopt.solver.relaxation.device_relaxation import DeviceSubset, ObjectiveCut
from ppopt.solver.relaxation.pairs import Pair, candidate_pairs
from ppopt.solver.relaxation.route_times import RouteTimes

OPTIONS = {
    BackwardKind.SPLIT: (SPLIT_MODE,),
    BackwardKind.WHOLE: (WHOLE_MODE,),
    BackwardKind.MIXED: (SPLIT_MODE, WHOLE_MODE),
}
"""Modes that a stage of a mixed problem may have."""
CLOSING = (OpKind.W, OpKind.BW)
"""Kinds that come last for a stage and microbatch."""


@dataclass(frozen=True)
class DeviceScope:
    """Operations of some or all devices, and their constraints."""

    problem: Problem
    devices: frozenset[int]
    """Devices kept."""
    horizon: int
    """Largest objective, in ticks."""

    @property
    def instance(self) -> Instance:
        """Instance of the problem; it includes links only if all devices are kept."""
        every = len(self.devices) == self.pipeline.num_devices
        return self.problem.full_instance if every else self.problem.instance

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline of the problem."""
        return self.problem.pipeline

    @property
    def _spans(self) -> bool:
        return self.problem.objective is Objective.DEVICE_SPAN

    @property
    def latest(self) -> int:
        """Last instant, in ticks.

        For device span the starts go up to twice the horizon. The first forward of a later stage
        follows the first forward of an earlier stage and precedes its last backward. So the spans
        of two devices always overlap, and no device starts a whole span after another.

        This does not hold if stages have no backward. Then the spans and all delays add up: a time
        in which no device is active and nothing is delayed can be removed from a schedule.
        """
        if not self._spans:
            return self.horizon
        if all(self.pipeline.has_operations[OpKind.B]):
            return 2 * self.horizon
        pieces = self.pipeline.batches * self.pipeline.num_slices
        delays = pieces * sum(map(sum, self.instance.costs.ticks.down))
        return self.pipeline.num_devices * self.horizon + delays

    @property
    def _links(self) -> range:
        """Resources other than devices."""
        return range(self.pipeline.num_devices, len(self.instance.resources))

    @cached_property
    def numbers(self) -> list[int]:
        """Classes of the kept resources: of devices by route, in feasible order; then of links."""
        size, classes = self.instance.num_positions, self.instance.classes

        def key(class_id: int) -> tuple[int, ...]:
            op_class = classes[class_id]
            return (
                op_class.resource in self._links,
                op_class.route,
                class_id // size,
                op_class.stage,
                op_class.slice,
            )

        return sorted(filter(self._is_retained, range(len(classes))), key=key)

    def _is_retained(self, class_id: int) -> bool:
        """Whether a class is on a kept resource, and present in some mode of its stage."""
        op_class = self.instance.classes[class_id]
        modes = (op_class.modes_by_option[option] for option in self._options(op_class.stage))
        on_retained_resource = op_class.resource in self.devices or op_class.resource in self._links
        return on_retained_resource and any(mode is not None for mode in modes)

    @cached_property
    def tasks(self) -> list[Task]:
        """Operations of these classes, as tasks."""
        return list(each(chain.from_iterable(map(self._tasks, self.numbers))))

    def _tasks(self, class_id: int) -> Iterator[Task]:
        op_class = self.instance.classes[class_id]
        options = self._options(op_class.stage)[: len(op_class.modes)]
        modes = [self._modes(class_id, option) for option in options]
        choices = self._choices(class_id) if len(options) > 1 else [None] * op_class.size
        slice_suffix = f"s{op_class.slice}" if op_class.slice else ""
        kind = "" if op_class.kind is None else op_class.kind.name
        codes, first = (
            self.instance.codes[class_id].tolist(),
            op_class.route * self.instance.batches,
        )
        rows = zip(codes, choices, *modes, strict=True)
        for microbatch, (code, choice, *ways) in enumerate(rows, first):
            name = f"{op_class.stage}{kind}{microbatch}{slice_suffix}"
            latest = self.latest - min(map(self._min_duration, ways))
            yield Task(code, op_class.resource, 0, latest, tuple(ways), choice, name)

    def _min_duration(self, mode: TaskMode) -> int:
        """Minimum time of an operation: alone, or in a pair."""
        return min(mode.duration, self._shortest_pairs.get(mode.code, mode.duration))

    @cached_property
    def _shortest_pairs(self) -> dict[int, int]:
        """Minimum time of the pairs that an operation may be in."""
        shortest: dict[int, int] = {}
        for pair in self._candidates:
            for code in (pair.forward, pair.backward):
                shortest[code] = min(pair.time, shortest.get(code, pair.time))
        return shortest

    def _options(self, stage: int) -> tuple[int, ...]:
        """Modes that a stage may have; a mode that is never better than the other is excluded."""
        if not self.problem.mixed:
            return (SPLIT_MODE,)
        return OPTIONS[self.problem.choice.kinds[stage]]

    def _modes(self, class_id: int, option: int) -> list[TaskMode]:
        codes = self.instance.codes_in(class_id, option).tolist()
        times = self.instance.times(class_id, option) or (0,) * len(codes)
        return list(map(TaskMode, codes, times))

    def _choices(self, class_id: int) -> list[int]:
        """Mode choices of the operations of a class: the numbers of their F."""
        forward = self.instance.class_id(OpKind.F, *self.instance.classes[class_id][:3])
        choices: list[int] = self.instance.codes[forward].tolist()
        return choices

    @property
    def has_instants(self) -> bool:
        """Whether some operations have no length."""
        modes = chain.from_iterable(task.modes for task in self.tasks)
        return any(code != ABSENT and not duration for code, duration in modes)

    @property
    def energy(self) -> int:
        """Maximum memory times time of a cumulative constraint, in ticks of both."""
        return self.latest * max(self._headroom.values(), default=0)

    def parts(self) -> Iterator[ModelPart]:
        """Constraints of the operations, in the order in which they are added."""
        yield Pairs(self._pairs)
        yield OperationIntervals(self.tasks)
        yield from map(NoOverlap, [*self.devices, *self._links])
        plain = self.numbers
        if SUBSETS.applies(self.problem.traits):
            for subset in self._subsets:
                yield from self._with_bounds(subset)
            num_compute = len(self.instance.rows) * self.instance.num_positions
            plain = [class_id for class_id in plain if class_id >= num_compute]
        yield from self._plain(plain)
        if self._spans:
            yield self._origin()
        if self.problem.mixed:
            yield from self._work()
        yield Memory(self._memory_intervals(), self._headroom)
        ordered = self.problem.instance if self._moving else self.instance
        yield OrderLiterals(ordered, self._headroom, self.horizon)

    @cached_property
    def _pairs(self) -> list[Pair]:
        possible = {mode.code for task in self.tasks for mode in task.modes}
        return [pair for pair in self._candidates if pair.backward in possible]

    @cached_property
    def _candidates(self) -> list[Pair]:
        """Pairs that save time, including backwards that may be absent."""
        instances = (restriction.instance for restriction in self.problem.restrictions)
        pairs = (pair for instance in instances for pair in candidate_pairs(instance, self.devices))
        return list(each(pairs))

    @cached_property
    def _subsets(self) -> list[DeviceSubset]:
        """Kept devices, per route."""
        routes = range(self.pipeline.routes)
        instance = self.problem.instance
        return [DeviceSubset(RouteTimes(instance, route), self.devices) for route in routes]

    def _with_bounds(self, subset: DeviceSubset) -> Iterator[ModelPart]:
        """Precedence and objective of one route, with the constraints that dropped devices imply.

        With two routes the first operation of a device may be on either route. So the span of a
        device is also at least an end on one route minus the first start on the other. An operation
        before the compute of a route also starts the span.
        """
        yield Precedence(_rows(device_relaxation.implied_precedence(subset)))
        if not self._spans:
            yield Releases(device_relaxation.releases(subset))
        yield ObjectiveCuts(device_relaxation.objective_cuts(subset, self.problem.objective))
        if not self._spans:
            return
        own = len(self.instance.auxiliary_classes) > 0
        routes = [
            route for route in range(self.pipeline.routes) if own or route != subset.times.route
        ]
        for device in sorted(self.devices):
            firsts = [self._first({device}, route) for route in routes]
            for stage in subset.times.hosted[device]:
                last = int(subset.closing(stage)[-1])
                yield ObjectiveCuts([ObjectiveCut(first, last, 0) for first in firsts])

    def _plain(self, numbers: list[int]) -> Iterator[ModelPart]:
        """Data flow, microbatch order and objective of some classes, without implied bounds.

        Order holds class by class: of one kind, stage, route and slice.
        """
        instance, present = self.instance, {task.code for task in self.tasks}
        wanted = {code for class_id in numbers for code in instance.codes[class_id].tolist()}
        flow = _rows(instance.operation_flow) if wanted else ()
        rows = (row for row in flow if present.issuperset(row[:2]))
        yield Precedence((row for row in rows if not wanted.isdisjoint(row[:2])), if_present=True)
        for class_id in numbers:
            codes = instance.codes[class_id].tolist()
            firsts = self._firsts(instance.device(class_id)) if self._is_last(class_id) else []
            yield MicrobatchOrder(None, codes[0])
            for code, following in zip(codes, [*codes[1:], None], strict=True):
                if following is not None:
                    yield MicrobatchOrder(code, following)
                if firsts:
                    yield ObjectiveCuts([ObjectiveCut(first, code, 0) for first in firsts])

    def _is_last(self, class_id: int) -> bool:
        """Whether operations of a class may end last on their device."""
        op_class = self.instance.classes[class_id]
        if class_id in self.instance.auxiliary_classes:
            return not self.instance.successors[class_id]
        *_, last = (
            candidate
            for candidate in self.instance.class_ids(op_class.stage, op_class.route, op_class.slice)
            if self.instance.classes[candidate].size
        )
        closes = any(mode is not None and mode.kind in CLOSING for mode in op_class.modes)
        return closes or class_id == last

    def _firsts(self, device: int) -> list[int | None]:
        """Origins of the objective on a device: 0, or the start of the first F of every route."""
        if not self._spans:
            return [None]
        return [self._first({device}, route) for route in range(self.pipeline.routes)]

    def _first(self, devices: Collection[int], route: int) -> int:
        """First operation of devices on a route: F of microbatch 0 of their lowest stage.

        If that F waits for another operation on its device that waits for nothing, it is that one.
        """
        instance, hosts = self.instance, self.pipeline.hosts[route]
        lowest = next(stage for stage, host in enumerate(hosts) if host in devices)
        class_id = instance.class_id(OpKind.F, lowest, route)
        beside_compute = instance.auxiliary_classes
        waits = (
            before for before, _ in instance.predecessors[class_id] if before in beside_compute
        )
        return int(instance.codes[next(waits, class_id)][0])

    def _origin(self) -> Origin:
        """The first forward of the lowest stage kept, on one of the routes.

        It precedes everything else on its route, except operations before the compute of others.
        """
        opened = [self.devices]
        if len(self.instance.auxiliary_classes):
            opened = [frozenset((device,)) for device in sorted(self.devices)]
        routes = range(self.pipeline.routes)
        return Origin([self._first(devices, route) for devices in opened for route in routes])

    def _work(self) -> Iterator[Work]:
        """Work of every device after its earliest start, if no pairs save time."""
        if self._pairs:
            return
        for device in sorted(self.devices):
            tasks = [task for task in self.tasks if task.resource == device]
            routes = [subset.times for subset in self._subsets]
            head = min(route.head(route.hosted[device][0]) for route in routes)
            yield Work(0 if self._spans else head, tasks)

    @cached_property
    def _headroom(self) -> dict[int, int]:
        """Headroom of the devices whose memory limit is not implied by precedence."""
        headrooms = {device: self.instance.headroom(device) for device in sorted(self.devices)}
        return {
            device: headroom
            for device, headroom in headrooms.items()
            if headroom is not None
            and (
                device in self._lasting
                or device in self._moving
                or device_relaxation.needs_cumulative(self.problem.instance, device)
            )
        }

    @cached_property
    def _moving(self) -> set[int]:
        """Devices with offload to the host."""
        instance = self.instance
        moves = (n for n in instance.auxiliary_classes if instance.classes[n].per_microbatch)
        return {instance.device(class_id) for class_id in moves}

    @cached_property
    def _lasting(self) -> dict[int, list[MemoryInterval]]:
        """Memory that is allocated once in a step, by device."""
        instance, intervals = self.instance, defaultdict(list)
        for allocating, freeing, amount in instance.step_long_allocations:
            first, last = (int(instance.codes[class_id][0]) for class_id in (allocating, freeing))
            intervals[instance.device(allocating)].append(
                MemoryInterval(instance.device(allocating), first, last, amount)
            )
        return intervals

    def _memory_intervals(self) -> list[MemoryInterval]:
        """Memory intervals of the limited devices, in order of stage and microbatch."""
        intervals = []
        for option in (SPLIT_MODE, WHOLE_MODE):
            for allocating, freeing, amounts in self.instance.live_memory_in(option):
                op_class, device = (
                    self.instance.classes[allocating],
                    self.instance.device(allocating),
                )
                options = self._options(op_class.stage)
                if device not in self._headroom or option not in options:
                    continue
                columns = (
                    self.instance.codes[class_id].tolist() for class_id in (allocating, freeing)
                )
                rows = zip(*columns, amounts, self._choices(allocating), strict=True)
                for first, last, amount, choice in rows:
                    when = (choice, option == SPLIT_MODE) if len(options) > 1 else None
                    if amount:
                        intervals.append(MemoryInterval(device, first, last, amount, when))
        size = self.pipeline.num_codes // NUM_KINDS
        intervals.sort(key=lambda interval: interval.first % size)
        return [
            *intervals,
            *(interval for device in self._headroom for interval in self._lasting[device]),
        ]


def _rows(flow: Constraints) -> Iterator[tuple[int, int, int]]:
    return zip(*(column.tolist() for column in flow), strict=True)
