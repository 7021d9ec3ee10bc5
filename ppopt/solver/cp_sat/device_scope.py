"""Selects the operations and constraints of a CP-SAT model of some or all devices.

If some devices are left out, precedence constraints and objective cuts include what those devices
and the memory limits imply (`ppopt.solver.relaxation.device_relaxation`). That needs backwards that
are all split or all whole, and no slices; otherwise all devices are kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import ABSENT, SPLIT_MODE, WHOLE_MODE, Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.arguments import SUBSETS
from ppopt.solver.cp_sat.no_overlap import NoOverlap, Operations, Pairs
from ppopt.solver.cp_sat.order_literals import OrderLiterals
from ppopt.solver.cp_sat.parts import (
    Held,
    Memory,
    MicrobatchOrder,
    ObjectiveCuts,
    Origin,
    Precedence,
    Releases,
    Work,
)
from ppopt.solver.cp_sat.variables import ModelPart, Task, TaskMode
from ppopt.solver.relaxation import device_relaxation
from ppopt.solver.relaxation.delays import Delays
from ppopt.solver.relaxation.device_relaxation import DeviceSubset, ObjectiveCut
from ppopt.solver.relaxation.pairs import Pair, candidate_pairs

OPTIONS = {
    BackwardKind.SPLIT: (SPLIT_MODE,),
    BackwardKind.WHOLE: (WHOLE_MODE,),
    BackwardKind.MIXED: (SPLIT_MODE, WHOLE_MODE),
}
"""Modes to choose from at a stage of a mixed problem."""
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
        """Instance of the problem; with links, if all devices are kept."""
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

        For device span the starts reach to twice the horizon. The first forward of a later stage
        follows the first forward of an earlier stage and precedes its last backward, so the spans
        of two devices always overlap, and no device starts a whole span after another.

        Not so if stages have no backward. If no device is between its first operation and its
        last, delays alone are left, and a time in which there are none can be cut out.
        """
        if not self._spans:
            return self.horizon
        if all(self.pipeline.has_operations[OpKind.B]):
            return 2 * self.horizon
        pieces = self.pipeline.batches * self.pipeline.num_slices
        delays = pieces * sum(map(sum, self.pipeline.ticks.down))
        return self.pipeline.num_devices * self.horizon + delays

    @property
    def _links(self) -> range:
        """Resources that are no devices."""
        return range(self.pipeline.num_devices, len(self.instance.resources))

    @property
    def _computing(self) -> int:
        """Number of classes of compute; they come first."""
        return len(self.instance.rows) * self.instance.places

    @cached_property
    def numbers(self) -> list[int]:
        """Classes of the kept resources: of devices by route, as they can run; then of links."""
        places, classes = self.instance.places, self.instance.classes

        def key(number: int) -> tuple[int, ...]:
            op_class = classes[number]
            return (
                op_class.resource in self._links,
                op_class.route,
                number // places,
                op_class.stage,
                op_class.slice,
            )

        return sorted(filter(self._is_kept, range(len(classes))), key=key)

    def _is_kept(self, number: int) -> bool:
        """Whether a class is of a kept resource, and not absent in all modes of its stage."""
        op_class = self.instance.classes[number]
        modes = (op_class.modes_by_option[option] for option in self._options(op_class.stage))
        kept = op_class.resource in self.devices or op_class.resource in self._links
        return kept and any(mode is not None for mode in modes)

    @cached_property
    def tasks(self) -> list[Task]:
        """Operations of these classes, as tasks."""
        return list(chain.from_iterable(map(self._tasks, self.numbers)))

    def _tasks(self, number: int) -> Iterator[Task]:
        op_class = self.instance.classes[number]
        options = self._options(op_class.stage)[: len(op_class.modes)]
        modes = [self._modes(number, option) for option in options]
        choices = self._choices(number) if len(options) > 1 else [None] * op_class.size
        part = f"s{op_class.slice}" if op_class.slice else ""
        kind = "" if op_class.kind is None else op_class.kind.name
        codes, first = self.instance.codes[number].tolist(), op_class.route * self.instance.batches
        rows = zip(codes, choices, *modes, strict=True)
        for microbatch, (code, choice, *ways) in enumerate(rows, first):
            name = f"{op_class.stage}{kind}{microbatch}{part}"
            latest = self.latest - min(map(self._least, ways))
            yield Task(code, op_class.resource, 0, latest, tuple(ways), choice, name)

    def _least(self, mode: TaskMode) -> int:
        """Least time of an operation: alone, or in a pair."""
        return min(mode.duration, self._shortest_pairs.get(mode.code, mode.duration))

    @cached_property
    def _shortest_pairs(self) -> dict[int, int]:
        """Least time of the pairs that an operation may be in."""
        found: dict[int, int] = {}
        for pair in self._candidates:
            for code in (pair.forward, pair.backward):
                found[code] = min(pair.time, found.get(code, pair.time))
        return found

    def _options(self, stage: int) -> tuple[int, ...]:
        """Modes to choose from at a stage: not one that is never better than the other."""
        if not self.problem.mixed:
            return (SPLIT_MODE,)
        return OPTIONS[self.problem.choice.kinds[stage]]

    def _modes(self, number: int, option: int) -> list[TaskMode]:
        codes = self.instance.codes_in(number, option).tolist()
        times = self.instance.times(number, option) or (0,) * len(codes)
        return list(map(TaskMode, codes, times))

    def _choices(self, number: int) -> list[int]:
        """Mode choices of the operations of a class: the numbers of their F."""
        forward = self.instance.number(OpKind.F, *self.instance.classes[number][:3])
        choices: list[int] = self.instance.codes[forward].tolist()
        return choices

    @property
    def has_instants(self) -> bool:
        """Whether some operations have no length."""
        modes = chain.from_iterable(task.modes for task in self.tasks)
        return any(code != ABSENT and not duration for code, duration in modes)

    def parts(self) -> Iterator[ModelPart]:
        """Constraints of the operations, in the order in which they are added."""
        yield Pairs(self._pairs)
        yield Operations(self.tasks)
        yield from map(NoOverlap, [*self.devices, *self._links])
        plain = self.numbers
        if SUBSETS.applies(self.problem.traits):
            for subset in self._subsets:
                yield from self._with_bounds(subset)
            plain = [number for number in plain if number >= self._computing]
        yield from self._plain(plain)
        if self._spans:
            yield self._origin()
        if self.problem.mixed:
            yield from self._work()
        yield Memory(self._held(), self._room)
        ordered = self.problem.instance if self._moving else self.instance
        yield OrderLiterals(ordered, self._room, self.horizon)

    @cached_property
    def _pairs(self) -> list[Pair]:
        return [pair for pair in self._candidates if pair.backward in self._there]

    @cached_property
    def _candidates(self) -> list[Pair]:
        """Pairs that save time, of backwards that may not be there too."""
        instances = (restriction.instance for restriction in self.problem.restrictions)
        return [pair for instance in instances for pair in candidate_pairs(instance, self.devices)]

    @cached_property
    def _there(self) -> set[int]:
        """Operations that may be in a schedule."""
        return {mode.code for task in self.tasks for mode in task.modes}

    @cached_property
    def _subsets(self) -> list[DeviceSubset]:
        """Kept devices, per route."""
        routes = range(self.pipeline.routes)
        instance = self.problem.instance
        return [DeviceSubset(Delays(instance, route), self.devices) for route in routes]

    def _with_bounds(self, subset: DeviceSubset) -> Iterator[ModelPart]:
        """Precedence and objective of one route, with what the devices left out imply.

        With two routes the first operation of a device may be of either route. So the span of a
        device is also at least an end on one route minus the first start on the other. Operations
        before all compute of a route begin the span, too.
        """
        yield Precedence(_rows(device_relaxation.implied_precedence(subset)))
        if not self._spans:
            yield Releases(device_relaxation.releases(subset))
        yield ObjectiveCuts(device_relaxation.objective_cuts(subset, self.problem.objective))
        if not self._spans:
            return
        own = len(self.instance.further_classes) > 0
        routes = [
            route for route in range(self.pipeline.routes) if own or route != subset.delays.route
        ]
        for device in sorted(self.devices):
            firsts = [self._first({device}, route) for route in routes]
            for stage in subset.delays.hosted[device]:
                last = int(subset.closing(stage)[-1])
                yield ObjectiveCuts([ObjectiveCut(first, last, 0) for first in firsts])

    def _plain(self, numbers: list[int]) -> Iterator[ModelPart]:
        """Data flow, the order of microbatches and the objective, without bounds, of some classes.

        Order holds class by class: of one kind, stage, route and slice.
        """
        instance, there = self.instance, {task.code for task in self.tasks}
        wanted = {code for number in numbers for code in instance.codes[number].tolist()}
        flow = _rows(instance.operation_flow) if wanted else ()
        rows = (row for row in flow if there.issuperset(row[:2]))
        yield Precedence((row for row in rows if not wanted.isdisjoint(row[:2])), if_there=True)
        for number in numbers:
            codes = instance.codes[number].tolist()
            firsts = self._firsts(instance.device(number)) if self._is_last(number) else []
            yield MicrobatchOrder(None, codes[0])
            for code, following in zip(codes, [*codes[1:], None], strict=True):
                if following is not None:
                    yield MicrobatchOrder(code, following)
                if firsts:
                    yield ObjectiveCuts([ObjectiveCut(first, code, 0) for first in firsts])

    def _is_last(self, number: int) -> bool:
        """Whether operations of a class may end last on their device."""
        op_class = self.instance.classes[number]
        if number in self.instance.further_classes:
            return not self.instance.successors[number]
        *_, last = (
            other
            for other in self.instance.numbers(op_class.stage, op_class.route, op_class.slice)
            if self.instance.classes[other].size
        )
        closes = any(mode is not None and mode.kind in CLOSING for mode in op_class.modes)
        return closes or number == last

    def _firsts(self, device: int) -> list[int | None]:
        """Origins of the objective on a device: 0, or the start of the first F of every route."""
        if not self._spans:
            return [None]
        return [self._first({device}, route) for route in range(self.pipeline.routes)]

    def _first(self, devices: Collection[int], route: int) -> int:
        """First operation of devices on a route: F of microbatch 0 of their lowest stage.

        Or the operation that this F waits for on its device, if that waits for nothing itself.
        """
        instance, hosts = self.instance, self.pipeline.hosts[route]
        lowest = next(stage for stage, host in enumerate(hosts) if host in devices)
        number = instance.number(OpKind.F, lowest, route)
        further = instance.further_classes
        waits = (before for before, _ in instance.predecessors[number] if before in further)
        return int(instance.codes[next(waits, number)][0])

    def _origin(self) -> Origin:
        """The first forward of the lowest stage kept, on one of the routes.

        It precedes everything else of its route, but for what runs before the compute of others.
        """
        opened = [self.devices]
        if len(self.instance.further_classes):
            opened = [frozenset((device,)) for device in sorted(self.devices)]
        routes = range(self.pipeline.routes)
        return Origin([self._first(devices, route) for devices in opened for route in routes])

    def _work(self) -> Iterator[Work]:
        """Work of every device after its earliest start, if no pairs save time."""
        if self._pairs:
            return
        for device in sorted(self.devices):
            mine = [task for task in self.tasks if task.resource == device]
            routes = [subset.delays for subset in self._subsets]
            head = min(delays.head(delays.hosted[device][0]) for delays in routes)
            yield Work(0 if self._spans else head, mine)

    @cached_property
    def _room(self) -> dict[int, int]:
        """Room of the devices whose memory limit needs more than precedence."""
        rooms = {device: self.instance.headroom(device) for device in sorted(self.devices)}
        return {
            device: room
            for device, room in rooms.items()
            if room is not None
            and (
                device in self._lasting
                or device in self._moving
                or device_relaxation.needs_cumulative(self.problem.instance, device)
            )
        }

    @cached_property
    def _moving(self) -> set[int]:
        """Devices whose memory moves to the host and back."""
        instance = self.instance
        moves = (n for n in instance.further_classes if instance.classes[n].per_microbatch)
        return {instance.device(number) for number in moves}

    @cached_property
    def _lasting(self) -> dict[int, list[Held]]:
        """Memory that every device holds once, from one operation to another."""
        instance, found = self.instance, defaultdict(list)
        for taker, giver, amount in instance.lasting:
            first, last = (int(instance.codes[number][0]) for number in (taker, giver))
            found[instance.device(taker)].append(Held(instance.device(taker), first, last, amount))
        return found

    def _held(self) -> list[Held]:
        """Memory that the devices of limits hold, in order of stage and microbatch."""
        found = []
        for option in (SPLIT_MODE, WHOLE_MODE):
            for taker, giver, amounts in self.instance.holdings_in(option):
                op_class, device = self.instance.classes[taker], self.instance.device(taker)
                options = self._options(op_class.stage)
                if device not in self._room or option not in options:
                    continue
                columns = (self.instance.codes[number].tolist() for number in (taker, giver))
                rows = zip(*columns, amounts, self._choices(taker), strict=True)
                for first, last, amount, choice in rows:
                    when = (choice, option == SPLIT_MODE) if len(options) > 1 else None
                    if amount:
                        found.append(Held(device, first, last, amount, when))
        places = self.pipeline.num_codes // NUM_KINDS
        found.sort(key=lambda held: held.taker % places)
        return [*found, *(held for device in self._room for held in self._lasting[device])]


def _rows(flow: Constraints) -> Iterator[tuple[int, int, int]]:
    return zip(*(column.tolist() for column in flow), strict=True)
