"""The space of placements: every way to put the stages on the devices that uses every device.

The rule `balanced` cuts a model in layers again for every placement, because it depends on the
speeds of the devices.

Devices are interchangeable if they have equal speed, limit and delays. Of placements that differ by
an exchange of interchangeable devices, only one representative is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, combinations, islice
from math import comb, floor, lcm
from operator import mul
from typing import Any

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem import exact, partition, placement
from ppopt.problem.arrays import Ints
from ppopt.problem.costs import Ticks
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.enumeration import Complete, Enumeration, Partial
from ppopt.solver.choices.spaces import PLACEMENTS

Hosts = tuple[int, ...]
"""Device of every stage."""
MOST_LISTED = 20_000
"""Most placements that are enumerated and bounded."""
MOST_DEVICES = 128
MOST_STAGES = 512
"""Most devices and stages whose placements are searched."""
MOST_CUT = 2000
"""Most devices and stages if every placement has its own partition."""


class PlacementSpace:
    """The placements of a problem's stages on its devices."""

    name = "placement"

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError if placements cannot be searched."""
        pipeline = problem.pipeline
        PLACEMENTS.check(problem)
        if pipeline.num_devices > MOST_DEVICES or pipeline.num_stages > MOST_STAGES:
            raise NotApplicableError(
                f"placement: search takes at most {MOST_DEVICES} devices and {MOST_STAGES} stages; "
                "name a placement"
            )
        self._problem = problem
        self._base = replace(pipeline, mem_limit=pipeline.limits).placed(pipeline.hosts[0])
        self.num_stages, self.num_devices = pipeline.num_stages, pipeline.num_devices
        balanced = pipeline.partition == partition.BALANCED and len(self._speeds) > 1
        self.cut_anew = balanced or pipeline.partition == partition.SEARCH
        """Whether the stages of a placement depend on it."""

    def pipeline(self, key: Hosts) -> Pipeline:
        """Pipeline of a placement; its limits are those of the given pipeline."""
        return self._base.placed(key)

    @property
    def size(self) -> int:
        """Number of placements that use every device: surjections of stages onto devices."""
        stages, devices = self.num_stages, self.num_devices
        return sum(
            (-1) ** left * comb(devices, left) * (devices - left) ** stages
            for left in range(devices + 1)
        )

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Per device, the least device that is interchangeable with it.

        If exchanging i with j and j with k changes nothing, neither does exchanging i with k.
        """
        found: list[int] = []
        for device in range(self.num_devices):
            same = (other for other in range(device) if self._exchange(other, device))
            found.append(next(same, device))
        return tuple(found)

    def _exchange(self, first: int, second: int) -> bool:
        """Whether exchanging two devices changes nothing."""
        base, order = self._base, list(range(self.num_devices))
        order[first], order[second] = second, first
        limits = base.limits or (None,) * self.num_devices
        if base.device_speed[first] != base.device_speed[second] or limits[first] != limits[second]:
            return False
        return all((matrix[np.ix_(order, order)] == matrix).all() for matrix in self._matrices)

    @cached_property
    def _matrices(self) -> list[Ints]:
        """Delays that depend on the devices: [from device, to device]."""
        found = (self._base.p2p, self._base.backward_p2p)
        return [
            self._in_ticks(matrix) for matrix in found if matrix is not None and _is_matrix(matrix)
        ]

    def _in_ticks(self, delays: Any) -> Ints:
        """A number, a list or a matrix of delays as an array."""
        per_unit = self._per_unit
        if not isinstance(delays, tuple):
            return np.array(int(delays * per_unit))
        rows = [row if isinstance(row, tuple) else (row,) for row in delays]
        found = np.array([[int(delay * per_unit) for delay in row] for row in rows], dtype=np.int64)
        return found if _is_matrix(delays) else found[:, 0]

    def representative(self, hosts: Sequence[int]) -> Hosts:
        """The canonical representative: devices that are alike are first used in order."""
        free = [
            [device for device in range(self.num_devices) if self.alike[device] == least]
            for least in range(self.num_devices)
        ]
        renamed: dict[int, int] = {}
        for host in hosts:
            if host not in renamed:
                renamed[host] = free[self.alike[host]].pop(0)
        return tuple(renamed[host] for host in hosts)

    def representatives(self) -> Iterator[Hosts]:
        """All representatives, in lexicographic order."""
        begun: list[Hosts] = [()]
        while begun:
            hosts = begun.pop()
            if len(hosts) == self.num_stages:
                yield hosts
            else:
                begun += [(*hosts, device) for device in reversed(self._next(hosts))]

    def _next(self, hosts: Hosts) -> list[int]:
        """Devices of the next stage: one of interchangeable unused ones; all are used at last."""
        used = set(hosts)
        fresh: dict[int, int] = {}
        for device in range(self.num_devices):
            if device not in used:
                fresh.setdefault(self.alike[device], device)
        if self.num_stages - len(hosts) == self.num_devices - len(used):
            return sorted(fresh.values())
        return sorted([*used, *fresh.values()])

    @cached_property
    def listed(self) -> Enumeration[Hosts]:
        """All representatives; partial, and empty, if there are too many."""
        most = MOST_CUT if self.cut_anew else MOST_LISTED
        found = list(islice(self.representatives(), most + 1))
        return Partial() if len(found) > most else Complete(found)

    def simple(self) -> list[Hosts]:
        """Stage i on device i mod D; down the devices and back; and runs in proportion to speed."""
        laps = -(-self.num_stages // self.num_devices)
        rows = [placement.named(name, self.num_devices, laps) for name in ("interleaved", "v")]
        return [*(row[: self.num_stages] for row in rows), self._runs()]

    def _runs(self) -> Hosts:
        """Consecutive stages on every device, as many as its share of all speeds, at least one."""
        speeds = self._base.device_speed
        ends = [sum(speeds[: device + 1]) / sum(speeds) for device in range(self.num_devices)]
        hosts: list[int] = []
        device = 0
        for stage in range(self.num_stages):
            left = self.num_stages - stage
            full = stage >= round(ends[device] * self.num_stages) and stage > 0
            if (
                device + 1 < self.num_devices
                and hosts.count(device)
                and (full or left < self.num_devices - device)
            ):
                device += 1
            hosts.append(device)
        return tuple(hosts)

    def configurations(self, keys: Iterable[Hosts]) -> list[Configuration]:
        """Placements with their bounds; one whose memory cannot suffice is impossible.

        If every placement has its own partition, the bound over all placements is also the bound of
        each.
        """
        keys = list(keys)
        if self.cut_anew or not keys:
            return [Configuration(key, self.lower_bound) for key in keys]
        hosts = np.array(keys, dtype=np.int64)
        bounds, fit = self._bounds(hosts), self._fits(hosts)
        return [
            Configuration(key, Fraction(bound, self._per_unit), impossible=not fits)
            for key, bound, fits in zip(keys, bounds.tolist(), fit.tolist(), strict=True)
        ]

    # Costs on every device.

    @cached_property
    def _at_speeds(self) -> dict[Fraction, Pipeline]:
        """The pipeline with every device at one of the speeds; microbatches are the shortest."""
        base = self._base
        return {speed: replace(base, device_speed=speed / self._shortest) for speed in self._speeds}

    @property
    def _shortest(self) -> Fraction:
        """Smallest factor on the times of a microbatch."""
        return min(times for times, _ in self._base.factors)

    @property
    def _pieces(self) -> int:
        """Number of slices of the shortest microbatch whose work is that of all."""
        work = exact.total(times for times, _ in self._base.factors) / self._shortest
        return floor(work) * self._base.num_slices

    @property
    def _speeds(self) -> set[Fraction]:
        return set(self._base.device_speed)

    @cached_property
    def _per_unit(self) -> int:
        """Ticks per unit of time that make every time on every device whole."""
        return lcm(*(pipeline.ticks.per_unit for pipeline in self._at_speeds.values()))

    @cached_property
    def _durations(self) -> Ints:
        """Least time of an operation, alone or in a pair, [kind, stage, device]."""
        columns = []
        for speed in self._base.device_speed:
            ticks = self._at_speeds[speed].ticks
            table = np.array(ticks.durations, dtype=np.int64)
            if self._base.overlap is not None:
                table = _least_times(ticks, table)
            columns.append(table * (self._per_unit // ticks.per_unit))
        return np.stack(columns, axis=2)

    @cached_property
    def _delays(self) -> Ints:
        """Delay after a stage, down and up: [way, stage, device before, device after]."""
        back = self._base.p2p if self._base.backward_p2p is None else self._base.backward_p2p
        down, up = self._in_ticks(self._base.p2p), self._in_ticks(back)
        size = self.num_devices
        ways = [way[:, None, None] if way.ndim == 1 else way for way in (down, up.T)]
        shape = (self.num_stages - 1, size, size)
        apart = ~np.eye(size, dtype=bool)
        found = np.stack([np.broadcast_to(way, shape) * apart for way in ways])
        found[1] *= np.array(self._base.has_operations[OpKind.B])[:-1, None, None]
        return found

    @cached_property
    def _handed_on(self) -> Ints:
        """Least time of what a gradient waits for at a stage, B or BW: [stage, device]."""
        kinds = [kind for kind in (OpKind.B, OpKind.BW) if kind in self._problem.instance.kinds]
        return np.asarray(self._durations[kinds].min(axis=0))

    @cached_property
    def _backward(self) -> Ints:
        """Least time of the backward of a stage, B and W or BW: [stage, device]."""
        kinds, times = self._problem.instance.kinds, self._durations
        ways = []
        if OpKind.B in kinds:
            ways.append(times[OpKind.B] + times[OpKind.W])
        if OpKind.BW in kinds:
            ways.append(times[OpKind.BW])
        return np.asarray(np.min(ways, axis=0))

    # Bounds.

    def _bounds(self, hosts: Ints) -> Ints:
        """Lower bound of every placement [number, stage], in ticks of `_per_unit`.

        Makespan: a device waits for its first input, a forward of its lowest stage, and then does
        its work; where all backwards are whole its last operation is one of that stage, whose
        gradient must go up the stages that are left. Device span: its work. Both: one microbatch
        goes down, up, and through the W of stage 0. No device of stages without backward waits
        for it: for device span that path begins on the stage after them.
        """
        stages = np.arange(self.num_stages)
        forward, handed_on = (
            self._durations[OpKind.F][stages, hosts],
            self._handed_on[stages, hosts],
        )
        down, up = (row[stages[:-1], hosts[:, :-1], hosts[:, 1:]] for row in self._delays)
        start = _before(forward, down)
        way_out = _before(handed_on, up)
        closing = self._backward[stages, hosts][:, 0] - handed_on[:, 0]
        path = start[:, -1] + forward[:, -1] + handed_on[:, -1] + way_out[:, -1] + closing
        span = self._problem.objective is Objective.DEVICE_SPAN
        if span:
            first = self.num_stages - sum(self._base.has_operations[OpKind.B])
            path = path - start[:, min(first, self.num_stages - 1)]
        bound = path
        work = self._work(hosts)
        for device in range(self.num_devices):
            lowest = (hosts == device).argmax(axis=1)[:, None]
            value = work[:, device]
            if not span:
                value = value + np.take_along_axis(start, lowest, axis=1)[:, 0]
                if OpKind.B not in self._problem.instance.kinds:
                    value = value + np.take_along_axis(way_out, lowest, axis=1)[:, 0]
            bound = np.maximum(bound, value)
        return np.asarray(bound)

    def _work(self, hosts: Ints) -> Ints:
        """Least time that every device takes for its operations, [number, device].

        If an F and a backward may run as one, all F take no less than they take alone, and
        neither do all backwards.
        """
        stages = np.arange(self.num_stages)
        forward = self._durations[OpKind.F][stages, hosts]
        backward = self._backward[stages, hosts]
        if self._base.overlap is not None:
            backward = self._handed_on[stages, hosts]
        columns = []
        for device in range(self.num_devices):
            mine = hosts == device
            both = [(times * mine).sum(axis=1) for times in (forward, backward)]
            together = np.maximum(*both) if self._base.overlap is not None else sum(both)
            columns.append(self._pieces * together)
        return np.stack(columns, axis=1)

    def _fits(self, hosts: Ints) -> Ints:
        """Whether every device can hold its static memory and one microbatch of every stage.

        When the last F of a microbatch on a device starts, no backward of it there has begun.
        """
        ticks = self._base.ticks
        fits = np.ones(len(hosts), dtype=bool)
        if ticks.limits is None:
            return fits
        largest = max(memory for _, memory in self._base.factors) * self._base.num_slices
        held = np.array(
            [
                int(static * ticks.memory_per_unit + largest * ticks.memory_change(OpKind.F, stage))
                for stage, static in enumerate(self._base.costs.static)
            ],
            dtype=np.int64,
        )
        for device, limit in enumerate(ticks.limits):
            fits &= ((hosts == device) * held).sum(axis=1) <= limit
        return fits

    @cached_property
    def lower_bound(self) -> Fraction:
        """Lower bound of all placements, in the user's unit.

        If every placement has its own partition, it is the bound over all placements of single
        layers, whether the layers of a stage share a device or not. It is the largest of four
        bounds. First: every device takes this time, and the k-th of them, in the order of their
        lowest stages, waits for k forwards and delays at least. Its share of the work is its speed
        times the time left; the waits are assigned so that the bound is least, the longest to the
        slowest device. Second: the time within which all devices together have room for all stages,
        each for the smallest ones. Third: the stage of most work, on the fastest device. Fourth:
        one microbatch on the fastest device, down and up, over links that reach every device, a
        spanning tree of them at least; not for device span if stages run no backward.
        """
        if self.cut_anew:
            return PlacementSpace(self._of_layers()).lower_bound
        base, pieces = self._base, self._pieces
        fastest = int(np.argmax([float(speed) for speed in base.device_speed]))
        forward, backward = self._durations[OpKind.F], self._backward
        kinds = [forward[:, fastest] + backward[:, fastest]]
        if base.overlap is not None:
            kinds = [forward[:, fastest], self._handed_on[:, fastest]]
        share = [speed / base.device_speed[fastest] for speed in base.device_speed]
        total = Fraction(pieces * max(int(work.sum()) for work in kinds))
        if self._problem.objective is not Objective.DEVICE_SPAN:
            parts = sorted(share, reverse=True)
            total += sum(map(mul, self._waits(fastest), parts))
        path = forward[:, fastest].sum() + self._handed_on[:, fastest].sum()
        path += (backward - self._handed_on)[0, fastest] + self._spanning_tree()
        all_backwards = all(base.has_operations[OpKind.B])
        if self._problem.objective is Objective.DEVICE_SPAN and not all_backwards:
            path = 0
        speed: Fraction = sum(share, Fraction(0))
        rooms = [pieces * _least_room(work.tolist(), share) for work in kinds]
        heaviest = pieces * max(int(work.max()) for work in kinds)
        return max(total / speed, *rooms, Fraction(heaviest), Fraction(int(path))) / self._per_unit

    def _of_layers(self) -> Problem:
        """The problem whose stages are single layers; of layers with phases, what they compute."""
        base = self._base
        if base.overlap is not None:
            base = replace(base, model=base.model.on_compute())
        layers = len(base.model)
        hosts = tuple(min(layer, self.num_devices - 1) for layer in range(layers))
        links = {name: _least(getattr(base, name)) for name in ("p2p", "backward_p2p")}
        if base.link is not None:
            by_size = ("p2p",) if base.link.backward is None else tuple(links)
            links = {name: least for name, least in links.items() if name not in by_size}
        alone = replace(base, stages=layers, placement=hosts, partition=(1,) * layers, **links)
        return replace(self._problem, pipeline=alone)

    def _waits(self, fastest: int) -> list[Fraction]:
        """Least waits of the devices for their first inputs, ascending."""
        down = self._delays[0].min(axis=0) if self.num_stages > 1 else self._delays[0].sum(axis=0)
        apart = ~np.eye(self.num_devices, dtype=bool)
        link = int(down[apart].min()) if apart.any() else 0
        times = accumulate(self._durations[OpKind.F][:, fastest].tolist(), initial=0)
        return [
            Fraction(time + number * link)
            for number, time in zip(range(self.num_devices), times, strict=False)
        ]

    def _spanning_tree(self) -> int:
        """Least delays there and back over links that join all devices (Kruskal, 1956)."""
        if self.num_stages == 1:
            return 0
        least = self._delays.min(axis=1).sum(axis=0)
        pairs = combinations(range(self.num_devices), 2)
        both = sorted((int(min(least[a, b], least[b, a])), a, b) for a, b in pairs)
        part, total = list(range(self.num_devices)), 0
        for delay, one, other in both:
            if part[one] != part[other]:
                total += delay
                part = [part[one] if mine == part[other] else mine for mine in part]
        return total

    def moves(self, hosts: Hosts) -> Iterator[Hosts]:
        """Placements that exchange two devices, or move one stage to another device."""
        for one, other in combinations(range(self.num_devices), 2):
            exchanged = {one: other, other: one}
            yield self.representative([exchanged.get(host, host) for host in hosts])
        for stage, host in enumerate(hosts):
            if hosts.count(host) > 1:
                for device in range(self.num_devices):
                    if device != host:
                        moved = (*hosts[:stage], device, *hosts[stage + 1 :])
                        yield self.representative(moved)

    def local_optimum(self, hosts: Hosts) -> Hosts:
        """Make moves while the bound falls, or stays and the work is spread more evenly.

        No schedules are made. If every placement has its own partition, the placement stays as it
        is.
        """
        if self.cut_anew:
            return hosts
        best, figure = hosts, self._figures([hosts])[0]
        while True:
            moves = list(dict.fromkeys(self.moves(best)))
            figures = self._figures(moves)
            least = min(zip(figures, moves, strict=True), default=(figure, best))
            if least[0] >= figure:
                return best
            figure, best = least

    def _figures(self, placements: list[Hosts]) -> list[tuple[int, int]]:
        """Bound and sum of squared device work of every placement."""
        if not placements:
            return []
        hosts = np.array(placements, dtype=np.int64)
        squares = [sum(work * work for work in row) for row in self._work(hosts).tolist()]
        return list(zip(self._bounds(hosts).tolist(), squares, strict=True))


def _least_room(work: list[int], speeds: list[Fraction]) -> Fraction:
    """Least time in which devices have room for all stages, each device for the smallest ones."""
    first = list(accumulate(sorted(work)))
    times = sorted({done / speed for done in first for speed in speeds})

    def enough(time: Fraction) -> bool:
        return sum(bisect_right(first, time * speed) for speed in speeds) >= len(work)

    return times[bisect_left(times, True, key=enough)]


def _least(delays: Any) -> Any:
    """Delays with a list, one per boundary of stages, replaced by the least of it."""
    listed = isinstance(delays, tuple) and not _is_matrix(delays)
    return min(delays, default=0) if listed else delays


def _least_times(ticks: Ticks, table: Ints) -> Ints:
    """Times [kind, stage] alone, or in a pair with any stage if that is less.

    An F is in no pair with a B that is shorter than itself and than all its pairs with BW.
    """
    stages, found = range(table.shape[1]), table.copy()
    for kind in (OpKind.B, OpKind.BW):
        rows = [[ticks.pair_time(stage, kind, other) for other in stages] for stage in stages]
        times = np.array(rows, dtype=np.int64)
        found[kind] = np.minimum(table[kind], times.min(axis=0))
    found[OpKind.F] = np.minimum(table[OpKind.F], times.min(axis=1))
    return found


def _is_matrix(delays: Any) -> bool:
    """Whether delays depend on the devices."""
    return isinstance(delays, tuple) and all(isinstance(row, tuple) for row in delays)


def _before(times: Ints, delays: Ints) -> Ints:
    """Per stage, the times and delays of all stages before it: [number, stage]."""
    steps = times[:, :-1] + delays
    return np.concatenate([np.zeros((len(times), 1), np.int64), np.cumsum(steps, axis=1)], axis=1)
