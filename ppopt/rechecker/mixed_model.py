"""Searches for a schedule below a bound, with all rules, if every backward may be split or whole.

Every stage and slice of a microbatch has an F, a backward as long as B or BW, and a W that runs
only if the backward is split. Microbatches are in order (see `ppopt.rechecker.feasibility_model`):
the k-th backward of a stage, slice and route, of either length, belongs to the k-th microbatch, and
the k-th W to the k-th split microbatch.
"""

from __future__ import annotations

from itertools import pairwise
from time import monotonic

from ortools.sat.python import cp_model

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker import cp_sat
from ppopt.rechecker.arithmetic import head
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.pair_times import pairs_save
from ppopt.rechecker.quantities import (
    device_of,
    live_intervals,
    microbatches_of_routes,
    num_operations,
    shortest_durations,
    time_of,
    time_of_pair,
)
from ppopt.rechecker.refute import RefutationOutcome, SolutionTimes, latest
from ppopt.rechecker.step_operations import has_instants
from ppopt.rechecker.step_operations_model import StepOperations, add_step_operations

MAX_OPERATIONS = 30_000
"""Maximum number of operations of a schedule in the model."""
Pair = tuple[Op, Op]
LiveInterval = tuple[cp_model.IntervalVar, int]


def refute_mixed(claim: Claim, seconds: float, workers: int, seed: int) -> RefutationOutcome:
    """Search with all rules of all devices until there is an answer or the time is up."""
    devices = tuple(range(claim.pipeline.num_devices))
    if seconds <= 0 or num_operations(claim) > MAX_OPERATIONS:
        return RefutationOutcome(devices, refuted=False, times=None)
    until, model = monotonic() + seconds, MixedModel(claim)
    instants = not all(time_of(claim, op) for op in model.start) or has_instants(claim)
    remaining = max(0.0, until - monotonic())
    status, solver = cp_sat.run(model.cp, remaining, workers, seed, instants=instants)
    is_solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    times = model.times(solver) if is_solved else None
    return RefutationOutcome(devices, refuted=status == cp_model.INFEASIBLE, times=times)


class MixedModel:
    """The model without objective, with the variables of every operation."""

    def __init__(self, claim: Claim) -> None:
        pipeline = claim.pipeline
        self.claim, self.cp, self.last = claim, cp_model.CpModel(), latest(claim)
        self.start: dict[Op, cp_model.IntVar] = {}
        self.end: dict[Op, cp_model.IntVar] = {}
        self.split: dict[Op, cp_model.IntVar] = {}
        """Whether the backward of an F is split."""
        self.joined: dict[Pair, cp_model.IntVar] = {}
        """Whether an F and a B or BW run as one."""
        slices = range(pipeline.num_slices)
        rows = [
            [Op(OpKind.F, stage, microbatch, slice_index) for microbatch in route]
            for route in microbatches_of_routes(claim)
            for stage in range(pipeline.num_stages)
            for slice_index in slices
        ]
        forwards = [op for row in rows for op in row]
        for op in forwards:
            self._add_variables(op)
        self._add_pairs(forwards)
        for op in forwards:
            self._add_lengths(op)
            self._add_flow(op)
        for row in rows:
            self._add_order(row)
        self.step_operations: StepOperations | None = None
        if pipeline.has_auxiliary_operations:
            self.step_operations = add_step_operations(
                self.cp, claim, self.last, self.start, self.end
            )
        for device in range(pipeline.num_devices):
            self._add_device([op for op in forwards if device_of(claim, op) == device])
        if claim.bound is not None:
            self._add_bound(claim.bound - 1)

    def times(self, solver: cp_model.CpSolver) -> SolutionTimes:
        """When every operation of the solution runs."""
        existing = [op for op in self.start if op.kind is OpKind.F]
        for op in tuple(existing):
            split = solver.value(self.split[op])
            kinds = (OpKind.B, OpKind.W) if split else (OpKind.BW,)
            existing += [op._replace(kind=kind) for kind in kinds if self.claim.has(kind, op.stage)]
        start = {op: solver.value(self.start[op]) for op in existing}
        end = {op: solver.value(self.end[op]) for op in existing}
        joined = [pair for pair, literal in self.joined.items() if solver.value(literal)]
        step_operations = [] if self.step_operations is None else self.step_operations.rows(solver)
        return SolutionTimes(start, end, joined, step_operations=step_operations)

    def _add_variables(self, forward: Op) -> None:
        """Add starts and ends of F, of the backward (B or BW), and of W, if they exist."""
        for kinds in ((OpKind.F,), (OpKind.B, OpKind.BW), (OpKind.W,)):
            if not self.claim.has(kinds[0], forward.stage):
                continue
            start, end = (self.cp.new_int_var(0, self.last, "") for _ in range(2))
            for kind in kinds:
                self.start[forward._replace(kind=kind)] = start
                self.end[forward._replace(kind=kind)] = end
        self.split[forward] = self.cp.new_bool_var("")

    def _add_pairs(self, forwards: list[Op]) -> None:
        """Add pairs that save time, of different microbatches; on one route, F is of the later."""
        claim, route = self.claim, self.claim.pipeline.route
        for forward in forwards if pairs_save(claim.pipeline) else ():
            for partner in forwards:
                apart = route(forward.microbatch) != route(partner.microbatch)
                if device_of(claim, forward) != device_of(claim, partner):
                    continue
                if not (apart or forward.microbatch > partner.microbatch):
                    continue
                for kind in (OpKind.B, OpKind.BW):
                    two = partner._replace(kind=kind)
                    both = time_of_pair(claim, forward, two)
                    if both < time_of(claim, forward) + time_of(claim, two):
                        self.joined[forward, two] = self.cp.new_bool_var("")

    def _add_lengths(self, forward: Op) -> None:
        """F, B and BW are as long as alone or as their pair; W runs only after a B."""
        cp, claim, split = self.cp, self.claim, self.split[forward]
        b, w, bw = (forward._replace(kind=kind) for kind in (OpKind.B, OpKind.W, OpKind.BW))
        lengths = [(forward, None), (b, split), (bw, split.negated())]
        for op, presence in lengths if b in self.start else lengths[:1]:
            start, end = self.start[op], self.end[op]
            partners = {pair: joint for pair, joint in self.joined.items() if op in pair}
            alone = cp.new_bool_var("")
            chosen = [alone, *partners.values()]
            if presence is None:
                cp.add_exactly_one(chosen)
            else:
                cp.add_exactly_one([*chosen, presence.negated()])
            cp.add(end == start + time_of(claim, op)).only_enforce_if(alone)
            for (first, second), literal in partners.items():
                both = time_of_pair(claim, first, second)
                cp.add(end == start + both).only_enforce_if(literal)
                cp.add(self.start[first] == self.start[second]).only_enforce_if(literal)
        if w not in self.start:
            return
        cp.add(self.end[w] == self.start[w] + time_of(claim, w)).only_enforce_if(split)
        cp.add(self.end[w] == self.start[w]).only_enforce_if(split.negated())
        cp.add(self.start[w] >= self.end[b]).only_enforce_if(split)

    def _add_flow(self, forward: Op) -> None:
        """Activations go down, gradients come up; slices go forward in order, and back."""
        pipeline, cp, b = self.claim.pipeline, self.cp, forward._replace(kind=OpKind.B)
        ticks, route = pipeline.ticks, pipeline.route(forward.microbatch)
        if b in self.start:
            cp.add(self.start[b] >= self.end[forward])
        if forward.stage:
            before = forward._replace(stage=forward.stage - 1)
            above = before._replace(kind=OpKind.B)
            down, up = ticks.down[route][before.stage], ticks.up[route][before.stage]
            cp.add(self.start[forward] >= self.end[before] + down)
            if above in self.start:
                cp.add(self.start[above] >= self.end[b] + up)
        if forward.slice:
            before = forward._replace(slice=forward.slice - 1)
            cp.add(self.start[forward] >= self.end[before])
            if b in self.start:
                cp.add(self.start[before._replace(kind=OpKind.B)] >= self.end[b])

    def _add_order(self, row: list[Op]) -> None:
        """Microbatches are in order; an absent W starts at the end of the previous one."""
        cp = self.cp
        existing = [
            kind for kind in (OpKind.F, OpKind.B, OpKind.W) if self.claim.has(kind, row[0].stage)
        ]
        for kind in existing:
            for earlier, later in pairwise(row):
                before, after = earlier._replace(kind=kind), later._replace(kind=kind)
                cp.add(self.start[after] >= self.end[before])
        if OpKind.W not in existing:
            return
        none = self.split[row[0]].negated()
        cp.add(self.start[row[0]._replace(kind=OpKind.W)] == 0).only_enforce_if(none)
        for earlier, later in pairwise(row):
            before, after = earlier._replace(kind=OpKind.W), later._replace(kind=OpKind.W)
            same = self.start[after] == self.end[before]
            cp.add(same).only_enforce_if(self.split[later].negated())

    def _add_device(self, forwards: list[Op]) -> None:
        """The device runs one operation, or pair, at a time, within its memory limit."""
        cp, claim, busy, live = (
            self.cp,
            self.claim,
            list[cp_model.IntervalVar](),
            list[LiveInterval](),
        )
        second = {op for pair in self.joined for op in pair[1:]}
        for forward in forwards:
            split = self.split[forward]
            busy.append(self._whole_time(forward))
            for kind, presence in ((OpKind.B, split), (OpKind.BW, split.negated())):
                op = forward._replace(kind=kind)
                if op not in self.start:
                    continue
                literal: cp_model.LiteralT = presence
                if op in second:
                    literal = cp.new_bool_var("")
                    joint_literals = [joint for pair, joint in self.joined.items() if pair[1] == op]
                    cp.add_exactly_one([literal, *joint_literals, presence.negated()])
                time = time_of(claim, op)
                busy.append(
                    cp.new_optional_fixed_size_interval_var(self.start[op], time, literal, "")
                )
            w = forward._replace(kind=OpKind.W)
            if w in self.start:
                busy.append(
                    cp.new_optional_fixed_size_interval_var(
                        self.start[w], time_of(claim, w), split, ""
                    )
                )
            live += self._live_intervals(forward)
        device = device_of(claim, forwards[0])
        if self.step_operations is not None:
            busy += (
                [self.step_operations.busy[device]] if device in self.step_operations.busy else []
            )
            live += self.step_operations.live[device]
        cp.add_no_overlap(busy)
        headroom = claim.pipeline.ticks.headroom(device)
        if headroom is not None:
            cp.add_cumulative(
                [interval for interval, _ in live], [much for _, much in live], headroom
            )

    def _whole_time(self, op: Op) -> cp_model.IntervalVar:
        size = self.cp.new_int_var(0, self.last, "")
        return self.cp.new_interval_var(self.start[op], size, self.end[op], "")

    def _live_intervals(self, forward: Op) -> list[LiveInterval]:
        """Live memory of a slice at a stage, with a BW, or with a B and a W."""
        split, intervals = self.split[forward], list[LiveInterval]()
        for presence, kinds in (
            (split, (OpKind.F, OpKind.B, OpKind.W)),
            (split.negated(), (OpKind.F, OpKind.BW)),
        ):
            existing = [kind for kind in kinds if self.claim.has(kind, forward.stage)]
            for begin, end, amount in live_intervals(self.claim, forward, existing):
                size = self.cp.new_int_var(0, self.last, "")
                interval = self.cp.new_optional_interval_var(
                    self.start[begin], size, self.end[end], presence, ""
                )
                intervals.append((interval, amount))
        return intervals

    def _add_bound(self, max_value: int) -> None:
        """No device ends later than `max_value`, counted from 0 or from its first operation."""
        claim, cp = self.claim, self.cp
        whole = of_smallest(claim)._replace(backward_kind=BackwardKind.WHOLE)
        for device in range(claim.pipeline.num_devices):
            begin = cp.new_int_var(0, self.last if claim.span else 0, "")
            first = head(whole, device)
            for op, start in self.start.items():
                if device_of(claim, op) != device:
                    continue
                if op.kind is OpKind.F:
                    cp.add(start >= begin + first)
                if op.kind is OpKind.BW and not claim.span:
                    remaining = self._time_below(claim.pipeline.route(op.microbatch), op.stage)
                    cp.add(self.end[op] + remaining <= max_value)
                cp.add(self.end[op] <= begin + max_value)
            if self.step_operations is not None:
                self.step_operations.add_window(cp, device, begin, max_value)

    def _time_below(self, route: int, stage: int) -> int:
        """Minimum time from the end of a backward to the end of those of all lower stages."""
        ticks = self.claim.pipeline.ticks
        _, partial, _, full = shortest_durations(of_smallest(self.claim))
        shortest = map(min, partial[:stage], full[:stage])
        return sum(shortest) + sum(ticks.up[route][:stage])
