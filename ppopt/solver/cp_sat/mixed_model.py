"""The CP-SAT model where every backward is split or whole, whichever is better.

Every stage, microbatch and slice has one backward slot, of a B or of a BW, and a W that is there
only beside a B. A literal per slot says whether it is split.

Microbatches are in order, as in `ppopt.solver.cp_sat.model`: per route, stage and slice the k-th
backward slot of either kind goes to microbatch k, and the k-th W to the k-th microbatch that is
split. The argument there holds: slots of one class do not overlap, and their durations play no
part in it.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import SPLIT_MODE, WHOLE_MODE, Instance, durations
from ppopt.problem.objective import Objective
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.problem import Problem
from ppopt.solver import interrupts
from ppopt.solver.cp_sat.cp_sat_model import CpSatModel, steps
from ppopt.solver.cp_sat.order_literals import add_order_literals
from ppopt.solver.relaxation.delays import Delays
from ppopt.solver.relaxation.pairs import candidate_pairs


class Slot(NamedTuple):
    """The operations of one stage, microbatch and slice: their numbers and their variables."""

    stage: int
    device: int
    forward: int
    partial: int
    weight: int
    full: int
    split: cp_model.IntVar
    """Whether the backward is B, with a W; else it is BW."""


@interrupts.deferred()
def build_mixed_model(problem: Problem, *, horizon: int, bound: int, step: int = 1) -> CpSatModel:
    """Model of all schedules with objective in [bound, horizon] (ticks), least objective first.

    The arguments are those of `ppopt.solver.cp_sat.model.build_model`, all devices kept.
    """
    pipeline, cp = problem.pipeline, cp_model.CpModel()
    latest = horizon if problem.objective is Objective.MAKESPAN else 2 * horizon
    every = frozenset(range(pipeline.num_devices))
    candidates = chain.from_iterable(
        candidate_pairs(Instance(pipeline, kind), every)
        for kind in (BackwardKind.SPLIT, BackwardKind.WHOLE)
    )
    model = CpSatModel(
        problem=problem,
        devices=every,
        cp=cp,
        start={},
        objective=cp.new_int_var(bound, horizon, str(problem.objective)),
        duration=durations(pipeline),
        horizon=horizon,
        bound=bound,
        step=step,
        latest=latest,
        pairs={pair: cp.new_bool_var("") for pair in candidates},
        end={},
    )
    _Builder(model).add_all()
    cp.minimize(model.objective if step == 1 else steps(model))
    return model


class _Builder:
    """A model under construction."""

    def __init__(self, model: CpSatModel) -> None:
        self.model = model
        self.cp = model.cp
        self.pipeline = model.pipeline
        self.kinds = model.problem.choice.kinds
        self.intervals: list[list[cp_model.IntervalVar]] = [[] for _ in model.devices]
        self.partners: dict[int, list[tuple[cp_model.IntVar, int]]] = {}
        for pair, chosen in model.pairs.items():
            for code in pair[:2]:
                self.partners.setdefault(code, []).append((chosen, pair.time))
        instance = Instance(model.pipeline, BackwardKind.WHOLE)
        self.rows = [
            [self._slot(int(code)) for code in instance.codes[number]]
            for number, one in enumerate(instance.classes)
            if one.kind is OpKind.BW
        ]
        """Slots per route, slice and stage, in the order of microbatches."""
        self.flow = instance.operation_flow

    def add_all(self) -> None:
        """State all rules of a schedule."""
        for slot in chain.from_iterable(self.rows):
            self._add_forward(slot)
            self._add_backward(slot)
            self._add_weight(slot)
        for pair, chosen in self.model.pairs.items():
            same = self.model.start[pair.forward] == self.model.start[pair.backward]
            self.cp.add(same).only_enforce_if(chosen)
        for group in self.intervals:
            self.cp.add_no_overlap(group)
        for before, after, lag in zip(*(column.tolist() for column in self.flow), strict=True):
            self.cp.add(self.model.start[after] >= self.model.end[before] + lag)
        for row in self.rows:
            self._add_order(row)
        self._add_memory()
        self._add_objective()

    def _slot(self, full: int) -> Slot:
        """The slot of a BW, with the literal that splits it."""
        _, stage, microbatch, part = self.pipeline.op(full)
        forward, partial, weight = (
            self.pipeline.code(kind, stage, microbatch, part)
            for kind in (OpKind.F, OpKind.B, OpKind.W)
        )
        split = self.cp.new_bool_var("")
        if self.kinds[stage] is not BackwardKind.MIXED:
            self.cp.add(split == (self.kinds[stage] is BackwardKind.SPLIT))
        device = self.pipeline.device(stage, microbatch)
        return Slot(stage, device, forward, partial, weight, full, split)

    def _time(self, code: int) -> int:
        return int(self.model.duration[code])

    def _add_forward(self, slot: Slot) -> None:
        """F, which is longer where it runs as one with a backward."""
        cp, code, time = self.cp, slot.forward, self._time(slot.forward)
        begin = cp.new_int_var(0, self.model.latest - time, "")
        self.model.start[code], self.model.end[code] = begin, begin + time
        partners = self.partners.get(code, [])
        if partners:
            cp.add_at_most_one(chosen for chosen, _ in partners)
            size = cp.new_int_var(time, max(most for _, most in partners), "")
            cp.add(size == time + sum(chosen * (both - time) for chosen, both in partners))
            end = self.model.end[code] = cp.new_int_var(0, self.model.latest, "")
            interval = cp.new_interval_var(begin, size, end, "")
        else:
            interval = cp.new_fixed_size_interval_var(begin, time, "")
        self.intervals[slot.device].append(interval)

    def _add_backward(self, slot: Slot) -> None:
        """B or BW, alone or run as one with an F, which then has the interval of both."""
        cp, model = self.cp, self.model
        begin = cp.new_int_var(0, model.latest, "")
        alone = {slot.partial: slot.split, slot.full: slot.split.negated()}
        literals: dict[int, cp_model.LiteralT] = dict(alone)
        length = self._time(slot.full) + slot.split * (
            self._time(slot.partial) - self._time(slot.full)
        )
        for code, kind in alone.items():
            partners = self.partners.get(code, [])
            if partners:
                literals[code] = cp.new_bool_var("")
                chosen = [literals[code], *(one for one, _ in partners)]
                cp.add_exactly_one(*chosen, kind.negated())
                length += sum(one * (both - self._time(code)) for one, both in partners)
        end = cp.new_int_var(0, model.latest, "")
        cp.add(end == begin + length)
        for code, literal in literals.items():
            model.start[code], model.end[code] = begin, end
            interval = cp.new_optional_fixed_size_interval_var(begin, self._time(code), literal, "")
            self.intervals[slot.device].append(interval)

    def _add_weight(self, slot: Slot) -> None:
        """W after B; where there is none, an instant that `_add_order` puts in its place."""
        cp, model, code, time = self.cp, self.model, slot.weight, self._time(slot.weight)
        begin, end = (cp.new_int_var(0, model.latest, "") for _ in range(2))
        cp.add(end == begin + time * slot.split)
        model.start[code], model.end[code] = begin, end
        model.split[code] = slot.split
        self.intervals[slot.device].append(
            cp.new_optional_fixed_size_interval_var(begin, time, slot.split, "")
        )
        cp.add(begin >= model.end[slot.partial]).only_enforce_if(slot.split)

    def _add_order(self, row: list[Slot]) -> None:
        """Microbatches in order; a W that is not there follows the one before at once."""
        cp, start, end = self.cp, self.model.start, self.model.end
        cp.add(start[row[0].weight] == 0).only_enforce_if(row[0].split.negated())
        for one, other in pairwise(row):
            for before, after in zip(one[2:5], other[2:5], strict=True):
                cp.add(start[after] >= end[before])
            at_once = start[other.weight] == end[one.weight]
            cp.add(at_once).only_enforce_if(other.split.negated())

    def _add_memory(self) -> None:
        """Memory as cumulative intervals, one per holding of a split or of a whole backward."""
        pipeline, slots = self.pipeline, {s.forward: s for row in self.rows for s in row}
        if pipeline.ticks.limits is None:
            return
        held: list[list[tuple[cp_model.IntervalVar, int]]] = [[] for _ in self.intervals]
        size = pipeline.num_codes // NUM_KINDS
        instance = self.model.problem.instance
        for option in (SPLIT_MODE, WHOLE_MODE):
            for taker, giver, amount in instance.holdings_in(option):
                codes = (instance.codes_in(number, option).tolist() for number in (taker, giver))
                for first, last in zip(*codes, strict=True):
                    slot = slots[first % size]
                    there = slot.split if option == SPLIT_MODE else slot.split.negated()
                    held[slot.device].append((self._lasting(first, last, there), amount))
        for device, group in enumerate(held):
            room = pipeline.ticks.room(device)
            assert room is not None
            self.cp.add_cumulative([one for one, _ in group], [much for _, much in group], room)
        chosen: dict[int, cp_model.LiteralT] = {}
        for one in slots.values():
            chosen |= {one.partial: one.split, one.weight: one.split}
            chosen[one.full] = one.split.negated()
        add_order_literals(self.model, sorted(self.model.devices), chosen)

    def _lasting(self, first: int, last: int, there: cp_model.LiteralT) -> cp_model.IntervalVar:
        """From the start of one operation to the end of another, if both are there."""
        size, model = self.cp.new_int_var(0, self.model.latest, ""), self.model
        begin, end = model.start[first], model.end[last]
        return self.cp.new_optional_interval_var(begin, size, end, there, "")

    def _add_objective(self) -> None:
        """The objective: at least every last end, less the first start on the device for spans.

        Time for device span counts from the first F of stage 0, of one of the routes.
        """
        cp, model, pipeline = self.cp, self.model, self.pipeline
        spans = model.problem.objective is Objective.DEVICE_SPAN
        firsts: list[list[cp_model.IntVar | int]] = [[] if spans else [0] for _ in self.intervals]
        for row in self.rows:
            if spans:
                firsts[row[0].device].append(model.start[row[0].forward])
        for row in self.rows:
            for last in (row[-1].partial, row[-1].weight):
                for first in firsts[row[0].device]:
                    cp.add(model.objective >= model.end[last] - first)
        if spans:
            cp.add_min_equality(
                0,
                [
                    model.start[row[0].forward]
                    for row in self.rows[:: pipeline.num_slices * pipeline.num_stages]
                ],
            )
        if not model.pairs:
            self._add_work(spans)

    def _add_work(self, spans: bool) -> None:
        """The objective is at least the head and the work of every device, as they are split."""
        for device, head in enumerate(_heads(self.model.problem)):
            mine = [s for row in self.rows if row[0].device == device for s in row]
            if not mine:
                continue
            fixed = sum(self._time(s.forward) + self._time(s.full) for s in mine)
            more = sum(
                s.split * (self._time(s.partial) + self._time(s.weight) - self._time(s.full))
                for s in mine
            )
            self.cp.add(self.model.objective >= fixed + more + (0 if spans else head))


def _heads(problem: Problem) -> list[int]:
    """Earliest start of every device, in ticks."""
    pipeline = problem.pipeline
    instance = Instance(pipeline, BackwardKind.WHOLE)
    routes = [Delays(instance, route) for route in range(pipeline.routes)]
    return [
        min((d.head(d.hosted[device][0]) for d in routes if d.hosted[device]), default=0)
        for device in range(pipeline.num_devices)
    ]
