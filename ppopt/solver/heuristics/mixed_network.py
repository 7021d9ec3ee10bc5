"""The network of operations of one choice of split and whole backwards.

Every stage and microbatch has three operations here: F, its backward, and its W. The backward is B
where it is split, else BW, and W is then an instant that holds nothing and that nothing waits for.
So all choices have the same operations and the same precedence; only times and memory differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import SPLIT_MODE, WHOLE_MODE, Holding, Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.operation_network import OperationNetwork, Precedence
from ppopt.solver.parameters import NetworkParams
from ppopt.solver.relaxation.device_subset import DeviceSubset
from ppopt.solver.relaxation.symmetry import canonical


class MixedNetwork(OperationNetwork):
    """The operations of a mixed problem, every backward split or whole as a choice says."""

    def __init__(
        self, problem: Problem, split: Bools, params: NetworkParams = NetworkParams()
    ) -> None:
        """`split` says of every F, in the order of their numbers, whether its backward is split."""
        self.split = split
        self._mixed = problem
        super().__init__(replace(problem, backward_kind=BackwardKind.SPLIT), params)
        self.slots = len(split)
        """Stages times microbatches: F, backward and W of a slot are that far apart."""
        whole = Instance(problem.pipeline, BackwardKind.WHOLE)
        codes = np.concatenate(whole.codes)
        whole_codes = np.sort(codes)[self.slots :]
        full = np.argsort(codes)[self.slots :] // whole.batches
        times = np.array(self.time, dtype=np.int64)
        columns = np.array([one.mode[1:] for one in whole.classes], dtype=np.int64)[full].T
        backward, weight = (slice(at * self.slots, (at + 1) * self.slots) for at in (1, 2))
        for own, new in zip((times, self._takes, self._gives), columns, strict=True):
            own[backward] = np.where(split, own[backward], new)
            own[weight] *= split
        self.present: Ints = self.codes.copy()
        """Operation numbers of this choice; that of an instant is a W that is not there."""
        self.present[backward] = np.where(split, self.codes[backward], whole_codes)
        self.time = times.tolist()
        self.precedence = self._data_flow()
        self.tight = [
            device
            for device in range(problem.pipeline.num_devices)
            if self.problem.instance.room(device) is not None
        ]

    def _fixed_precedence(self, subsets: list[DeviceSubset]) -> Precedence:
        """None yet: times are those of split backwards still."""
        del subsets
        return Precedence([[] for _ in self.codes], [[] for _ in self.codes])

    def _data_flow(self) -> Precedence:
        """Data flow and the order of microbatches."""
        links = self._fixed_precedence([])
        instance = self.problem.instance
        flow = instance.operation_flow
        codes = np.stack(instance.codes)
        order = zip(codes[:, :-1].ravel().tolist(), codes[:, 1:].ravel().tolist(), strict=True)
        data = zip(*(column.tolist() for column in flow), strict=True)
        for before, after, lag in (*data, *((one, other, 0) for one, other in order)):
            first, second = np.searchsorted(self.codes, (before, after)).tolist()
            self._link(links, first, second, lag)
        return links

    def backward(self, slot: int) -> int:
        """The backward of a slot."""
        return self.slots + slot

    def weight(self, slot: int) -> int:
        """The W of a slot, or its instant."""
        return 2 * self.slots + slot

    def with_flips(self, slots: Iterable[int]) -> MixedNetwork:
        """The network in which these slots have the other kind of backward."""
        split = self.split.copy()
        split[list(slots)] ^= True
        return MixedNetwork(self._mixed, split, self._params)

    def choices(self, inside: Sequence[int]) -> dict[int, int]:
        """Slots of backwards and W: a slot chooses for both."""
        there = set(inside)
        slots = (op - self.slots for op in inside if self.slots <= op < 2 * self.slots)
        both = ((slot, self.backward(slot), self.weight(slot)) for slot in slots)
        return {op: slot for slot, *ops in both if there.issuperset(ops) for op in ops}

    def times(self, op: int) -> tuple[int | None, ...]:
        """Times of B and BW, or of W: then, where backwards are whole, there is none."""
        durations, stage = self.problem.pipeline.ticks.durations, int(self.stage[op])
        if op < 2 * self.slots:
            return durations[OpKind.B][stage], durations[OpKind.BW][stage]
        return durations[OpKind.W][stage], None

    def in_first_mode(self, choice: int) -> bool:
        """Whether the backward of a slot is split."""
        return bool(self.split[choice])

    @cached_property
    def holdings(self) -> dict[int, list[Holding]]:
        """What operations hold, by their numbers here, on every device with a limit."""
        return {device: [one for one, _ in self.held(device, ())] for device in self.tight}

    def held(
        self, device: int, choices: Collection[int]
    ) -> Iterator[tuple[Holding, tuple[int, bool] | None]]:
        """What operations hold on a device, in both modes of these slots."""
        open_slots = set(choices)
        for slot in range(self.slots):
            if self.device[slot] != device:
                continue
            for split in (True, False) if slot in open_slots else (self.in_first_mode(slot),):
                when = (slot, split) if slot in open_slots else None
                for first, last, amount in self._held[split][int(self.stage[slot])]:
                    taker, giver = (part * self.slots + slot for part in (first, last))
                    yield Holding(taker, giver, amount), when

    @cached_property
    def _held(self) -> dict[bool, list[list[Holding]]]:
        """Per kind of backward and stage: holdings between F (0), backward (1) and W (2)."""
        found = {}
        instance = self._mixed.instance
        for split, option in ((True, SPLIT_MODE), (False, WHOLE_MODE)):
            rows: list[list[Holding]] = [[] for _ in range(self.problem.pipeline.num_stages)]
            for taker, giver, amount in instance.holdings_in(option):
                one = instance.classes[taker]
                if one.route == 0:
                    first, last = taker // instance.places, giver // instance.places
                    rows[one.stage].append(Holding(first, last, amount))
            found[split] = rows
        return found

    def orders(self, start: list[int]) -> Orders:
        """The orders of the devices, without the instants."""
        there = np.ones(self.size, dtype=bool)
        there[2 * self.slots :] = self.split
        rows = sorted(np.flatnonzero(there).tolist(), key=start.__getitem__)
        found: list[list[int]] = [[] for _ in range(self.problem.pipeline.num_devices)]
        for op in rows:
            found[self.device[op]].append(int(self.present[op]))
        return [np.array(row, dtype=np.int64) for row in found]


def network_of(problem: Problem, schedule: Schedule) -> tuple[MixedNetwork, list[int]]:
    """The network of a schedule, and its starts, its microbatches in canonical order.

    An instant comes after its BW and after the W, or instant, of the microbatch before.
    """
    codes = canonical(schedule)
    size = schedule.pipeline.num_codes // len(OpKind)
    begins = dict(zip(codes.tolist(), schedule.start.tolist(), strict=True))
    split = np.array([OpKind.B * size + slot in begins for slot in range(size)])
    network = MixedNetwork(problem, split)
    start = [begins.get(code, -1) for code in network.present.tolist()]
    for slot in np.flatnonzero(~split).tolist():
        op, before = network.weight(slot), network.backward(slot)
        start[op] = start[before] + network.time[before]
        if network.microbatch[op] % network.problem.instance.batches:
            start[op] = max(start[op], start[op - 1] + network.time[op - 1])
    return network, start
