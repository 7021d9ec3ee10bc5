"""The space of placements: all assignments of stages to devices that use every device.

The rule `balanced` partitions a model in layers again for every placement, because it depends on
the speeds of the devices.

Devices are interchangeable if they have equal speed, limit and delays. Of placements that differ by
an exchange of interchangeable devices, only one representative is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, combinations
from math import comb, factorial, floor, lcm, prod
from operator import mul
from typing import Any

import numpy as np

from ppopt.cancellation import over
from ppopt.errors import NotApplicableError
from ppopt.problem import exact, partition, placement
from ppopt.problem.arrays import Ints
from ppopt.problem.costs import Ticks, is_matrix
from ppopt.problem.decisions import Decisions
from ppopt.problem.delays import delay_arrays
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.enumeration import Complete, Enumeration, Partial
from ppopt.solver.choices.spaces import check_spaces

Hosts = tuple[int, ...]
"""Device of every stage."""
MAX_LISTED = 20_000
"""Maximum number of placements that are enumerated and bounded."""
MAX_DEVICES = 128
MAX_STAGES = 512
"""Maximum number of devices and stages of a placement search."""
MAX_REPARTITIONED = 2000
"""Maximum number of enumerated placements if every placement has its own partition."""


class PlacementSpace:
    """The placements of a problem's stages on its devices."""

    name = "placement"

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError if placements cannot be searched."""
        pipeline = problem.pipeline
        check_spaces(problem, Decisions.PLACEMENT)
        if pipeline.num_devices > MAX_DEVICES or pipeline.num_stages > MAX_STAGES:
            raise NotApplicableError(
                f"placement: search takes at most {MAX_DEVICES} devices and {MAX_STAGES} stages; "
                "name a placement"
            )
        self._problem = problem
        self._base = pipeline.having(mem_limit=pipeline.limits).placed(pipeline.hosts[0])
        self.num_stages, self.num_devices = pipeline.num_stages, pipeline.num_devices
        balanced = pipeline.partition == partition.BALANCED and len(set(pipeline.device_speed)) > 1
        self.repartition_per_placement = balanced or Decisions.PARTITION in pipeline.open_decisions
        """Whether every placement has its own partition."""

    def pipeline(self, key: Hosts) -> Pipeline:
        """Pipeline with a placement; its limits are those of the problem."""
        return self._base.placed(key)

    @property
    def size(self) -> int:
        """Number of placements that use every device: surjections of stages onto devices."""
        stages, devices = self.num_stages, self.num_devices
        return sum(
            (-1) ** num_unused * comb(devices, num_unused) * (devices - num_unused) ** stages
            for num_unused in range(devices + 1)
        )

    @cached_property
    def interchangeable_with(self) -> tuple[int, ...]:
        """Per device, the first device that is interchangeable with it.

        If exchanging i with j and j with k changes nothing, neither does exchanging i with k.
        """
        representatives: list[int] = []
        for device in range(self.num_devices):
            same = (earlier for earlier in range(device) if self._exchange(earlier, device))
            representatives.append(next(same, device))
        return tuple(representatives)

    def _exchange(self, first: int, second: int) -> bool:
        """Whether exchanging two devices changes nothing."""
        base, order = self._base, list(range(self.num_devices))
        order[first], order[second] = second, first
        limits = base.limits or (None,) * self.num_devices
        if base.device_speed[first] != base.device_speed[second] or limits[first] != limits[second]:
            return False
        return all((matrix[np.ix_(order, order)] == matrix).all() for matrix in self._matrices)

    @property
    def _delay_arrays(self) -> tuple[Any, Any]:
        return delay_arrays(self._base, self._base.grid.time)

    @cached_property
    def _matrices(self) -> list[Ints]:
        """Delays that depend on the devices: [from device, to device]."""
        return [delays[0] for delays in self._delay_arrays if delays.shape[2] > 1]

    def representative(self, hosts: Sequence[int]) -> Hosts:
        """The canonical representative: interchangeable devices are first used in order."""
        free = [
            [
                device
                for device in range(self.num_devices)
                if self.interchangeable_with[device] == group
            ]
            for group in range(self.num_devices)
        ]
        renamed: dict[int, int] = {}
        for host in hosts:
            if host not in renamed:
                renamed[host] = free[self.interchangeable_with[host]].pop(0)
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
        """Devices for the next stage: used ones, and one of each group of unused ones."""
        used = set(hosts)
        fresh: dict[int, int] = {}
        for device in range(self.num_devices):
            if device not in used:
                fresh.setdefault(self.interchangeable_with[device], device)
        if self.num_stages - len(hosts) == self.num_devices - len(used):
            return sorted(fresh.values())
        return sorted([*used, *fresh.values()])

    @cached_property
    def listed(self) -> Enumeration[Hosts]:
        """All representatives; partial, and empty, if there are too many for the time left.

        A representative stands for at most as many placements as there are exchanges of
        interchangeable devices. So the number of placements shows at once if there are too many.
        """
        limit = MAX_REPARTITIONED if self.repartition_per_placement else MAX_LISTED
        exchanges = prod(map(factorial, Counter(self.interchangeable_with).values()))
        if self.size > limit * exchanges:
            return Partial()
        placements = []
        for hosts in self.representatives():
            placements.append(hosts)
            if len(placements) > limit or over():
                return Partial()
        return Complete(placements)

    def simple(self) -> list[Hosts]:
        """Stage i on device i mod D; down the devices and back; and runs in proportion to speed."""
        laps = -(-self.num_stages // self.num_devices)
        rows = [placement.named(name, self.num_devices, laps) for name in ("interleaved", "v")]
        return [*(row[: self.num_stages] for row in rows), self._runs()]

    def _runs(self) -> Hosts:
        """Consecutive stages on every device, in proportion to its speed, at least one."""
        speeds = self._base.device_speed
        ends = [sum(speeds[: device + 1]) / sum(speeds) for device in range(self.num_devices)]
        hosts: list[int] = []
        device = 0
        for stage in range(self.num_stages):
            stages_left = self.num_stages - stage
            full = stage >= round(ends[device] * self.num_stages) and stage > 0
            if (
                device + 1 < self.num_devices
                and hosts.count(device)
                and (full or stages_left < self.num_devices - device)
            ):
                device += 1
            hosts.append(device)
        return tuple(hosts)

    def configurations(self, keys: Iterable[Hosts]) -> list[Configuration]:
        """Placements with their bounds; those over the memory limits are impossible.

        If every placement has its own partition, the bound over all placements is also the bound of
        each.
        """
        keys = list(keys)
        if self.repartition_per_placement or not keys:
            return [Configuration(key, self.lower_bound) for key in keys]
        hosts = np.array(keys, dtype=np.int64)
        bounds, fit = self._bounds(hosts), self._fits(hosts)
        return [
            Configuration(key, bound, impossible=not fits)
            for key, bound, fits in zip(keys, bounds.tolist(), fit.tolist(), strict=True)
        ]

    # Costs on every device.

    @property
    def _pieces(self) -> int:
        """Number of slices of the shortest microbatch whose work is that of all."""
        factors = [times for times, _ in self._base.factors]
        return floor(exact.total(factors) / min(factors)) * self._base.num_slices

    @cached_property
    def _durations(self) -> Ints:
        """Minimum time of an operation, alone or in a pair, [kind, stage, device].

        It is that of the shortest microbatch.
        """
        base, columns = self._base, {}
        shortest = min(times for times, _ in base.factors)
        for speed in set(base.device_speed):
            ticks = base.having(device_speed=(speed,) * self.num_devices).ticks
            table = np.array(ticks.durations, dtype=np.int64)
            if base.overlap is not None:
                table = _min_times(ticks, table)
            columns[speed] = table * shortest.numerator // shortest.denominator
        return np.stack([columns[speed] for speed in base.device_speed], axis=2)

    @cached_property
    def _delays(self) -> Ints:
        """Delay after a stage, down and up: [way, stage, device before, device after]."""
        size = self.num_devices
        shape = (self.num_stages - 1, size, size)
        apart = ~np.eye(size, dtype=bool)
        ways = (np.broadcast_to(way, shape) * apart for way in self._delay_arrays)
        delays = np.stack([*ways]).astype(np.int64)
        delays[1] *= np.array(self._base.has_operations[OpKind.B])[:-1, None, None]
        return delays

    @cached_property
    def _gradient_time(self) -> Ints:
        """Minimum time until the gradient of a stage, B or BW: [stage, device]."""
        kinds = [kind for kind in (OpKind.B, OpKind.BW) if kind in self._problem.instance.kinds]
        return np.asarray(self._durations[kinds].min(axis=0))

    @cached_property
    def _backward(self) -> Ints:
        """Minimum time of the backward of a stage, B and W or BW: [stage, device]."""
        kinds, times = self._problem.instance.kinds, self._durations
        ways = []
        if OpKind.B in kinds:
            ways.append(times[OpKind.B] + times[OpKind.W])
        if OpKind.BW in kinds:
            ways.append(times[OpKind.BW])
        return np.asarray(np.min(ways, axis=0))

    # Bounds.

    def _bounds(self, hosts: Ints) -> Ints:
        """Lower bound of every placement [number, stage], in ticks.

        Makespan: a device waits for its first input, a forward of its lowest stage, and then does
        its work. If all backwards are whole, its last operation is one of that stage, whose
        gradient must then pass all lower stages. Device span: the work of the device. Both: the
        round trip of one microbatch, including the W of stage 0. Devices of stages without backward
        do not wait for it: for device span the path begins at the stage after them.
        """
        stages = np.arange(self.num_stages)
        forward, gradient_time = (
            self._durations[OpKind.F][stages, hosts],
            self._gradient_time[stages, hosts],
        )
        down, up = (row[stages[:-1], hosts[:, :-1], hosts[:, 1:]] for row in self._delays)
        start = _before(forward, down)
        way_out = _before(gradient_time, up)
        closing = self._backward[stages, hosts][:, 0] - gradient_time[:, 0]
        path = start[:, -1] + forward[:, -1] + gradient_time[:, -1] + way_out[:, -1] + closing
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
        """Minimum time of all operations of every device, [number, device].

        If an F and a backward may run as a pair, it is the larger of the time of all F and the time
        of all backwards.
        """
        stages = np.arange(self.num_stages)
        forward = self._durations[OpKind.F][stages, hosts]
        backward = self._backward[stages, hosts]
        if self._base.overlap is not None:
            backward = self._gradient_time[stages, hosts]
        columns = []
        for device in range(self.num_devices):
            on_device = hosts == device
            both = [(times * on_device).sum(axis=1) for times in (forward, backward)]
            together = np.maximum(*both) if self._base.overlap is not None else sum(both)
            columns.append(self._pieces * together)
        return np.stack(columns, axis=1)

    def _fits(self, hosts: Ints) -> Ints:
        """Whether static memory and one microbatch of every stage fit on every device.

        When the last F of a microbatch on a device starts, none of its backwards there has started.
        """
        ticks = self._base.ticks
        fits = np.ones(len(hosts), dtype=bool)
        if ticks.limits is None:
            return fits
        largest = max(memory for _, memory in self._base.factors) * self._base.num_slices
        live = np.array(
            [
                int(static + largest * ticks.memory_change(OpKind.F, stage))
                for stage, static in enumerate(ticks.costs.static)
            ],
            dtype=np.int64,
        )
        for device, limit in enumerate(ticks.limits):
            fits &= ((hosts == device) * live).sum(axis=1) <= limit
        return fits

    @cached_property
    def lower_bound(self) -> int:
        """Lower bound of all placements, in ticks of the grid.

        If every placement has its own partition, it is the bound over all placements of single
        layers, whether or not the layers of a stage share a device. It is the maximum of four
        bounds. First: every device works within this time, and the k-th device, in the order of the
        lowest stages, first waits for at least k forwards and delays. Its share of the work is its
        speed times the remaining time. The waits are assigned to minimise the bound, the longest to
        the slowest device. Second: the minimum time in which all stages fit on the devices, if
        every device could host the smallest ones. Third: the stage with the most work, on the
        fastest device. Fourth: the round trip of one microbatch on the fastest device, over one
        link fewer than devices; not for device span if stages have no backward.
        """
        if self.repartition_per_placement:
            return PlacementSpace(self._layer_problem()).lower_bound
        base, pieces = self._base, self._pieces
        slowness = base.stage_row.devices.slowness
        rates = [lcm(*slowness) // own for own in slowness]
        fastest = rates.index(max(rates))
        forward, backward = self._durations[OpKind.F], self._backward
        kinds = [forward[:, fastest] + backward[:, fastest]]
        if base.overlap is not None:
            kinds = [forward[:, fastest], self._gradient_time[:, fastest]]
        total = rates[fastest] * pieces * max(int(work.sum()) for work in kinds)
        if self._problem.objective is not Objective.DEVICE_SPAN:
            total += sum(map(mul, self._waits(fastest), sorted(rates, reverse=True)))
        path = forward[:, fastest].sum() + self._gradient_time[:, fastest].sum()
        path += (backward - self._gradient_time)[0, fastest] + self._min_links()
        all_backwards = all(base.has_operations[OpKind.B])
        if self._problem.objective is Objective.DEVICE_SPAN and not all_backwards:
            path = 0
        capacity_bounds = [
            _min_capacity_time((pieces * work).tolist(), rates, fastest) for work in kinds
        ]
        heaviest = pieces * max(int(work.max()) for work in kinds)
        return max(total // sum(rates), *capacity_bounds, heaviest, int(path))

    def _layer_problem(self) -> Problem:
        """The problem whose stages are single layers; layers with phases only compute."""
        base = self._base
        model = base.model if base.overlap is None else base.model.on_compute()
        delays = {name: _min_delay(getattr(base, name)) for name in ("p2p", "backward_p2p")}
        alone = base.with_layers(
            model=model,
            stages=len(model),
            placement=tuple(min(layer, self.num_devices - 1) for layer in range(len(model))),
            partition=(1,) * len(model),
            **dict.fromkeys(("overlap", "overlap_input")),
            **delays,
        )
        return replace(self._problem, pipeline=alone)

    def _waits(self, fastest: int) -> list[int]:
        """Minimum waits of the devices for their first inputs, ascending."""
        down = self._delays[0].min(axis=0) if self.num_stages > 1 else self._delays[0].sum(axis=0)
        apart = ~np.eye(self.num_devices, dtype=bool)
        link = int(down[apart].min()) if apart.any() else 0
        times = accumulate(self._durations[OpKind.F][:, fastest].tolist(), initial=0)
        return [
            time + index * link for index, time in zip(range(self.num_devices), times, strict=False)
        ]

    def _min_links(self) -> int:
        """Minimum delays of a round trip to all devices: one link fewer than devices, each way."""
        if self.num_devices == 1:
            return 0
        apart = ~np.eye(self.num_devices, dtype=bool)
        delays = self._delays.min(axis=1).sum(axis=0)
        return (self.num_devices - 1) * int(delays[apart].min())

    def moves(self, hosts: Hosts) -> Iterator[Hosts]:
        """Placements that exchange two devices, or move one stage to another device."""
        for first, second in combinations(range(self.num_devices), 2):
            exchanged = {first: second, second: first}
            yield self.representative([exchanged.get(host, host) for host in hosts])
        for stage, host in enumerate(hosts):
            if hosts.count(host) > 1:
                for device in range(self.num_devices):
                    if device != host:
                        neighbour = (*hosts[:stage], device, *hosts[stage + 1 :])
                        yield self.representative(neighbour)

    def local_optimum(self, hosts: Hosts) -> Hosts:
        """Make moves while the bound decreases, or stays equal and the work becomes more even.

        No schedule is built. If every placement has its own partition, the placement is returned
        unchanged.
        """
        if self.repartition_per_placement:
            return hosts
        best, figure = hosts, self._figures([hosts])[0]
        while True:
            moves = list(dict.fromkeys(self.moves(best)))
            figures = self._figures(moves)
            candidate = min(zip(figures, moves, strict=True), default=(figure, best))
            if candidate[0] >= figure:
                return best
            figure, best = candidate

    def _figures(self, placements: list[Hosts]) -> list[tuple[int, int]]:
        """Bound and sum of squared device work of every placement."""
        if not placements:
            return []
        hosts = np.array(placements, dtype=np.int64)
        squares = [sum(work * work for work in row) for row in self._work(hosts).tolist()]
        return list(zip(self._bounds(hosts).tolist(), squares, strict=True))


def _min_capacity_time(work: list[int], rates: list[int], fastest: int) -> int:
    """Minimum time in which all stages fit on the devices, if each could host the smallest ones.

    `work` has the times on the fastest device. It is rounded down to a tick.
    """
    first, common = list(accumulate(sorted(work))), lcm(*rates)
    times = sorted({done * (common // rate) for done in first for rate in rates})

    def enough(time: int) -> bool:
        return sum(bisect_right(first, time * rate // common) for rate in rates) >= len(work)

    return times[bisect_left(times, True, key=enough)] * rates[fastest] // common


def _min_delay(delays: Any) -> Any:
    """Delays; a list with one delay per stage boundary is replaced by its minimum."""
    listed = isinstance(delays, tuple) and not is_matrix(delays)
    return min(delays, default=0) if listed else delays


def _min_times(ticks: Ticks, table: Ints) -> Ints:
    """Minimum times [kind, stage], alone or in a pair with any stage.

    The minimum of an F is over its pairs with BW: a pair with B is no shorter than F or such a
    pair.
    """
    stages, minima = range(table.shape[1]), table.copy()
    for kind in (OpKind.B, OpKind.BW):
        rows = [[ticks.pair_time(stage, kind, partner) for partner in stages] for stage in stages]
        times = np.array(rows, dtype=np.int64)
        minima[kind] = np.minimum(table[kind], times.min(axis=0))
    minima[OpKind.F] = np.minimum(table[OpKind.F], times.min(axis=1))
    return minima


def _before(times: Ints, delays: Ints) -> Ints:
    """Per stage, the times and delays of all stages before it: [number, stage]."""
    steps = times[:, :-1] + delays
    return np.concatenate([np.zeros((len(times), 1), np.int64), np.cumsum(steps, axis=1)], axis=1)
