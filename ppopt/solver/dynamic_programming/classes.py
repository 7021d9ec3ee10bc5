"""What a few devices, or all of them, have to do, by classes: one for each kind and stage."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.solver.cp_sat.device_subset import View, floors, releases


class Link(NamedTuple):
    """Operations of one class wait for those of another, of the same microbatch."""

    before: int
    after: int
    lag: int
    """Ticks from an end to a start."""
    width: int
    """Most microbatches that are done in `before` and not in `after`."""


class Classes:
    """The classes of the kept devices of a view, and what binds them.

    Without dropped devices this is the whole pipeline. With them, constraints of
    `ppopt.solver.cp_sat.device_subset` that look several microbatches back are left out: the least
    makespan of what remains is a lower bound all the same.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        chain, kept = view.chain, view.kept
        closing = () if chain.fused else (OpKind.W,)
        kinds = (OpKind.F, OpKind.B, *closing)
        self.of = [(kind, stage) for kind in kinds for stage in kept]
        self.number = {key: place for place, key in enumerate(self.of)}
        hosts = sorted({chain.host[stage] for stage in kept})
        self.hosts = hosts
        self.device = [hosts.index(chain.host[stage]) for _, stage in self.of]
        times = {OpKind.F: chain.forward, OpKind.B: chain.backward, OpKind.W: chain.weight}
        self.duration = [times[kind][stage] for kind, stage in self.of]
        self.batches = chain.batches
        self.needs = [self._needs(kind, stage) for kind, stage in self.of]
        """Classes of the same device that an operation comes after, of the same microbatch."""
        self.links = list(self._links())
        self.into = {link.after: place for place, link in enumerate(self.links)}
        self.out = {link.before: place for place, link in enumerate(self.links)}

    def __len__(self) -> int:
        return len(self.of)

    def _needs(self, kind: OpKind, stage: int) -> list[int]:
        """F and B of the stage before or after on the same device are links of no lag."""
        earlier = {OpKind.F: (), OpKind.B: (OpKind.F,), OpKind.W: (OpKind.B,)}[kind]
        return [self.number[each, stage] for each in earlier]

    def _links(self) -> list[Link]:
        chain, kept, number = self.view.chain, self.view.kept, self.number
        made, width = [], self.batches
        for a, b in pairwise(kept):
            width = min(width, self._most(a))
            made.append(Link(number[OpKind.F, a], number[OpKind.F, b], chain.down(a, b), width))
            made.append(Link(number[OpKind.B, b], number[OpKind.B, a], chain.up(b, a), width))
        last = kept[-1]
        if chain.turn(last):
            width = min(width, self._most(last))
            turn = chain.turn(last)
            made.append(Link(number[OpKind.F, last], number[OpKind.B, last], turn, width))
        return made

    def _most(self, stage: int) -> int:
        """Most microbatches that a stage has begun and not ended."""
        until_w = self.view.chain.most_until_w(stage)
        return self.batches if until_w is None else until_w

    @property
    def rows(self) -> int:
        """Numbers by which a beginning is described, about."""
        return len(self) + len(self.hosts) + sum(link.width for link in self.links)

    def orders(self, path: list[int]) -> tuple[Ints, ...]:
        """The order of every device's operations, from the class of each in some order."""
        codes = [self.view.codes(kind, stage).tolist() for kind, stage in self.of]
        done = [0] * len(self)
        orders: list[list[int]] = [[] for _ in self.hosts]
        for number in path:
            orders[self.device[number]].append(codes[number][done[number]])
            done[number] += 1
        return tuple(np.array(order, dtype=np.int64) for order in orders)

    @cached_property
    def memory(self) -> list[tuple[Ints, int | None]]:
        """Per device: change of memory by an operation of every class, and room for it."""
        ticks = self.view.chain.pipeline.ticks
        full = OpKind.BW if self.view.chain.fused else OpKind.B
        rows = []
        for place, host in enumerate(self.hosts):
            change = [
                ticks.memory_change(full if kind is OpKind.B else kind, stage)
                if device == place
                else 0
                for (kind, stage), device in zip(self.of, self.device, strict=True)
            ]
            unit, room = gcd(*change) or 1, ticks.room(host)
            scaled = np.array([each // unit for each in change])
            rows.append((scaled, None if room is None else room // unit))
        return rows

    @cached_property
    def sharing(self) -> list[int]:
        """Classes that take memory that another class of their device may want."""
        found = []
        for change, room in self.memory:
            taking = np.flatnonzero(change > 0).tolist()
            found += taking if room is not None and len(taking) > 1 else []
        return found

    @cached_property
    def first(self) -> list[int]:
        """Earliest start on every device."""
        earliest = dict(releases(self.view))
        stages = self.view.kept
        code = int(self.view.codes(OpKind.F, stages[0])[0])
        device = self.device[self.number[OpKind.F, stages[0]]]
        return [earliest.get(code, 0) if place == device else 0 for place in range(len(self.hosts))]

    @cached_property
    def floor(self) -> Ints:
        """Ticks from the end of an operation, [class, microbatch], to the end of all at least."""
        found = np.zeros((len(self), self.batches), dtype=np.int64)
        places = {
            int(code): (number, microbatch)
            for number, (kind, stage) in enumerate(self.of)
            for microbatch, code in enumerate(self.view.codes(kind, stage))
        }
        for floor in floors(self.view, Objective.MAKESPAN):
            place = places[floor.last]
            found[place] = max(found[place], floor.rest)
        return found

    @cached_property
    def rest(self) -> Ints:
        """Ticks from the start of an operation, [class, microbatch], to the end of all at least.

        The operations of its class that follow; those of other classes after the last one; and the
        operation of its class that memory holds back until this microbatch is through.
        """
        found = np.zeros((len(self), self.batches + 1), dtype=np.int64)
        tails: dict[int, int] = {}
        for number in reversed(self._sorted()):
            after = self._after(number)
            tail = max(
                (lag + self.duration[other] + tails[other] for other, lag in after), default=0
            )
            tails[number] = tail
            lasts = self.duration[number] + np.maximum(self.floor[number], tail)
            held, life = self._held(number)
            for microbatch in reversed(range(self.batches)):
                least = lasts[microbatch]
                if microbatch + 1 < self.batches:
                    least = max(least, found[number, microbatch + 1] + self.duration[number])
                if held is not None and microbatch + held < self.batches:
                    least = max(least, found[number, microbatch + held] + life)
                found[number, microbatch] = least
        return found

    def _sorted(self) -> list[int]:
        """Every class after those that it waits for."""
        order = [key for key in self.of if key[0] is OpKind.F]
        order += sorted((key for key in self.of if key[0] is OpKind.B), key=lambda key: -key[1])
        order += [key for key in self.of if key[0] is OpKind.W]
        return [self.number[key] for key in order]

    def _after(self, number: int) -> list[tuple[int, int]]:
        """Classes that wait for a class, and the lag."""
        after = [(other, 0) for other, needs in enumerate(self.needs) if number in needs]
        if number in self.out:
            link = self.links[self.out[number]]
            after.append((link.after, link.lag))
        return after

    def _held(self, number: int) -> tuple[int | None, int]:
        """After how many more F of its stage an F waits for this one's W, and how long that is."""
        kind, stage = self.of[number]
        if kind is not OpKind.F:
            return None, 0
        chain = self.view.chain
        life = chain.forward[stage] + chain.turn(stage) + chain.backward[stage]
        until_w = chain.most_until_w(stage)
        return until_w, life + chain.weight[stage]
