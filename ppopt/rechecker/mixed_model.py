"""Search for a schedule below a bound where every backward may be split or whole: all rules.

Every stage and slice of a microbatch has an F, a backward that is long as B or as BW, and a W that
runs only if it is split. Microbatches are in order (see `ppopt.rechecker.model`): the k-th backward
of a stage, slice and route, of either length, is that of its k-th microbatch, and the k-th W is
that of the k-th one split.
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
from ppopt.rechecker.microbatches import of_smallest
from ppopt.rechecker.once import has_instants
from ppopt.rechecker.once_model import Once, add_once
from ppopt.rechecker.refute import RefutationOutcome, Times, latest

MOST_OPERATIONS = 30_000
"""Most operations of a schedule that are stated."""
Pair = tuple[Op, Op]
Held = tuple[cp_model.IntervalVar, int]


def refute_mixed(claim: Claim, seconds: float, workers: int, seed: int) -> RefutationOutcome:
    """Search until there is an answer or the time is up, all devices with all their rules."""
    devices = tuple(range(claim.pipeline.num_devices))
    if seconds <= 0 or claim.size > MOST_OPERATIONS:
        return RefutationOutcome(devices, refuted=False, times=None)
    until, model = monotonic() + seconds, MixedModel(claim)
    instants = not all(map(claim.time, model.start)) or has_instants(claim)
    left = max(0.0, until - monotonic())
    status, solver = cp_sat.run(model.cp, left, workers, seed, instants=instants)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    times = model.times(solver) if found else None
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
            [Op(OpKind.F, stage, microbatch, part) for microbatch in route]
            for route in claim.routes()
            for stage in range(pipeline.num_stages)
            for part in slices
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
        self.once: Once | None = None
        if pipeline.has_auxiliary_operations:
            self.once = add_once(self.cp, claim, self.last, self.start, self.end)
        for device in range(pipeline.num_devices):
            self._add_device([op for op in forwards if claim.device(op) == device])
        if claim.bound is not None:
            self._add_bound(claim.bound - 1)

    def times(self, solver: cp_model.CpSolver) -> Times:
        """When every operation of the solution runs."""
        there = [op for op in self.start if op.kind is OpKind.F]
        for op in tuple(there):
            split = solver.value(self.split[op])
            kinds = (OpKind.B, OpKind.W) if split else (OpKind.BW,)
            there += [op._replace(kind=kind) for kind in kinds if self.claim.has(kind, op.stage)]
        start = {op: solver.value(self.start[op]) for op in there}
        end = {op: solver.value(self.end[op]) for op in there}
        joined = [pair for pair, literal in self.joined.items() if solver.value(literal)]
        once = [] if self.once is None else self.once.rows(solver)
        return Times(start, end, joined, once=once)

    def _add_variables(self, forward: Op) -> None:
        """One start and one end of F, one of B and BW alike, and one of W, as far as they exist."""
        for kinds in ((OpKind.F,), (OpKind.B, OpKind.BW), (OpKind.W,)):
            if not self.claim.has(kinds[0], forward.stage):
                continue
            start, end = (self.cp.new_int_var(0, self.last, "") for _ in range(2))
            for kind in kinds:
                self.start[forward._replace(kind=kind)] = start
                self.end[forward._replace(kind=kind)] = end
        self.split[forward] = self.cp.new_bool_var("")

    def _add_pairs(self, forwards: list[Op]) -> None:
        """Pairs that save time, of different microbatches; of one route, the F is the later."""
        claim, route = self.claim, self.claim.pipeline.route
        for forward in forwards if claim.paired else ():
            for other in forwards:
                apart = route(forward.microbatch) != route(other.microbatch)
                if claim.device(forward) != claim.device(other):
                    continue
                if not (apart or forward.microbatch > other.microbatch):
                    continue
                for kind in (OpKind.B, OpKind.BW):
                    two = other._replace(kind=kind)
                    both = claim.time_of_pair(forward, two)
                    if both < claim.time(forward) + claim.time(two):
                        self.joined[forward, two] = self.cp.new_bool_var("")

    def _add_lengths(self, forward: Op) -> None:
        """F, B, W and BW are as long as alone, or as their pair; W only follows a B."""
        cp, claim, split = self.cp, self.claim, self.split[forward]
        b, w, bw = (forward._replace(kind=kind) for kind in (OpKind.B, OpKind.W, OpKind.BW))
        lengths = [(forward, None), (b, split), (bw, split.negated())]
        for op, there in lengths if b in self.start else lengths[:1]:
            start, end = self.start[op], self.end[op]
            partners = {pair: joint for pair, joint in self.joined.items() if op in pair}
            alone = cp.new_bool_var("")
            chosen = [alone, *partners.values()]
            if there is None:
                cp.add_exactly_one(chosen)
            else:
                cp.add_exactly_one([*chosen, there.negated()])
            cp.add(end == start + claim.time(op)).only_enforce_if(alone)
            for (first, second), literal in partners.items():
                both = claim.time_of_pair(first, second)
                cp.add(end == start + both).only_enforce_if(literal)
                cp.add(self.start[first] == self.start[second]).only_enforce_if(literal)
        if w not in self.start:
            return
        cp.add(self.end[w] == self.start[w] + claim.time(w)).only_enforce_if(split)
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
        """Microbatches in order; if there is no W, its place is the end of the one before."""
        cp = self.cp
        existing = [
            kind for kind in (OpKind.F, OpKind.B, OpKind.W) if self.claim.has(kind, row[0].stage)
        ]
        for kind in existing:
            for one, other in pairwise(row):
                before, after = one._replace(kind=kind), other._replace(kind=kind)
                cp.add(self.start[after] >= self.end[before])
        if OpKind.W not in existing:
            return
        none = self.split[row[0]].negated()
        cp.add(self.start[row[0]._replace(kind=OpKind.W)] == 0).only_enforce_if(none)
        for one, other in pairwise(row):
            before, after = one._replace(kind=OpKind.W), other._replace(kind=OpKind.W)
            same = self.start[after] == self.end[before]
            cp.add(same).only_enforce_if(self.split[other].negated())

    def _add_device(self, forwards: list[Op]) -> None:
        """One operation, or pair, at a time, and never more memory than the limit."""
        cp, claim, busy, held = self.cp, self.claim, list[cp_model.IntervalVar](), list[Held]()
        second = {op for pair in self.joined for op in pair[1:]}
        for forward in forwards:
            split = self.split[forward]
            busy.append(self._whole_time(forward))
            for kind, there in ((OpKind.B, split), (OpKind.BW, split.negated())):
                op = forward._replace(kind=kind)
                if op not in self.start:
                    continue
                literal: cp_model.LiteralT = there
                if op in second:
                    literal = cp.new_bool_var("")
                    others = [joint for pair, joint in self.joined.items() if pair[1] == op]
                    cp.add_exactly_one([literal, *others, there.negated()])
                time = claim.time(op)
                busy.append(
                    cp.new_optional_fixed_size_interval_var(self.start[op], time, literal, "")
                )
            w = forward._replace(kind=OpKind.W)
            if w in self.start:
                busy.append(
                    cp.new_optional_fixed_size_interval_var(self.start[w], claim.time(w), split, "")
                )
            held += self._held(forward)
        device = claim.device(forwards[0])
        if self.once is not None:
            busy += [self.once.busy[device]] if device in self.once.busy else []
            held += self.once.held[device]
        cp.add_no_overlap(busy)
        room = claim.pipeline.ticks.headroom(device)
        if room is not None:
            cp.add_cumulative([interval for interval, _ in held], [much for _, much in held], room)

    def _whole_time(self, op: Op) -> cp_model.IntervalVar:
        size = self.cp.new_int_var(0, self.last, "")
        return self.cp.new_interval_var(self.start[op], size, self.end[op], "")

    def _held(self, forward: Op) -> list[Held]:
        """What a slice holds at a stage, with a BW, or with a B and a W."""
        split, found = self.split[forward], list[Held]()
        for there, kinds in (
            (split, (OpKind.F, OpKind.B, OpKind.W)),
            (split.negated(), (OpKind.F, OpKind.BW)),
        ):
            existing = [kind for kind in kinds if self.claim.has(kind, forward.stage)]
            for begin, end, amount in self.claim.holdings(forward, existing):
                size = self.cp.new_int_var(0, self.last, "")
                interval = self.cp.new_optional_interval_var(
                    self.start[begin], size, self.end[end], there, ""
                )
                found.append((interval, amount))
        return found

    def _add_bound(self, most: int) -> None:
        """No device is done later than `most`, or later than that after its first operation."""
        claim, cp = self.claim, self.cp
        whole = of_smallest(claim)._replace(backward_kind=BackwardKind.WHOLE)
        for device in range(claim.pipeline.num_devices):
            begin = cp.new_int_var(0, self.last if claim.span else 0, "")
            first = head(whole, device)
            for op, start in self.start.items():
                if claim.device(op) != device:
                    continue
                if op.kind is OpKind.F:
                    cp.add(start >= begin + first)
                if op.kind is OpKind.BW and not claim.span:
                    left = self._left(claim.pipeline.route(op.microbatch), op.stage)
                    cp.add(self.end[op] + left <= most)
                cp.add(self.end[op] <= begin + most)
            if self.once is not None:
                self.once.add_window(cp, device, begin, most)

    def _left(self, route: int, stage: int) -> int:
        """Least time from the end of a backward until those below it end."""
        ticks = self.claim.pipeline.ticks
        _, partial, _, full = of_smallest(self.claim).least
        shortest = map(min, partial[:stage], full[:stage])
        return sum(shortest) + sum(ticks.up[route][:stage])
