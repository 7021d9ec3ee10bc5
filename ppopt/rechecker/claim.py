"""Claims to check: no schedule of a pipeline is below a bound, or none exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil, comb
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import AUXILIARY_TIMES
from ppopt.problem.layer_choices import SEARCH_OFFLOAD, SEARCH_RECOMPUTE
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait, Traits
from ppopt.rechecker.pair_times import Row, min_times, pair_time, pairs_save
from ppopt.schedule.origin import Argument
from ppopt.schedule.timetable import Timetable
from ppopt.verifier.whole_backward import allocated_by_whole_backward, runs_whole_in_weight

UNIT_FACTOR = Fraction(1)
"""Factor of a microbatch if all are equal."""


class Claim(NamedTuple):
    """No schedule of the pipeline has a value below the bound."""

    pipeline: Pipeline
    span: bool
    """Whether the value is the device span; else it is the makespan."""
    backward_kind: BackwardKind
    """Whether backwards are split (B and W), whole (BW), or either."""
    bound: int | None
    """In ticks; None: there is no schedule at all."""
    devices: tuple[int, ...] = ()
    """The devices that the certificate names: where to look first, never trusted."""
    partitions: bool = False
    """Whether it is of every partition of the model's layers, within the same limits."""
    recompute: bool = False
    """Whether it is of every choice of the layers that recompute."""
    offload: bool = False
    """Whether it is of every choice of the layers that offload."""
    placements: bool = False
    """Whether it is of every placement of the stages on the devices, within the same limits."""
    orders: bool = False
    """Whether it is of every order of the microbatches."""
    combinations: bool = False
    """Whether it is of every combination of decisions that the file does not name."""
    bound_time: Fraction | None = None
    """The bound in the user's unit, if it is of several pipelines: their ticks differ."""
    either: bool = False
    """Whether its split backwards also represent whole ones (`ppopt.rechecker.mixed`): between B
    and W, at most the memory that F keeps is counted."""

    @property
    def of_layers(self) -> bool:
        """Whether it is of every partition or of every choice of recompute or offload."""
        return self.partitions or self.recompute or self.offload

    @property
    def of_several(self) -> bool:
        """Whether it is of several pipelines."""
        return self.of_layers or self.placements or self.orders or self.combinations

    @property
    def configurations(self) -> str:
        """What it is of, if it is of every partition or choice, in words."""
        if self.partitions:
            return "partitions"
        return f"choices of {self.layers_do}"

    @property
    def layers_do(self) -> str:
        """What it is of every choice of, recompute, offload or both; empty: neither."""
        chosen = {"recompute": self.recompute, "offload": self.offload}
        return " and ".join(decision for decision, is_chosen in chosen.items() if is_chosen)

    @property
    def every(self) -> str:
        """The same, with the number of partitions and both if it is of both."""
        if not self.partitions:
            return self.configurations
        cuts = comb(len(self.pipeline.model) - 1, self.pipeline.num_stages - 1)
        return f"{cuts:,} partitions" + (" and choices of recompute" if self.recompute else "")

    def of_pipeline(self, pipeline: Pipeline) -> Claim:
        """The claim of one of its pipelines, and of every choice that this one leaves open."""
        bound = self.bound_time
        return self._replace(
            pipeline=pipeline,
            bound=None if bound is None else bound_in_ticks(pipeline, bound),
            devices=(),
            partitions=pipeline.partition == SEARCH,
            recompute=pipeline.recompute == SEARCH_RECOMPUTE,
            offload=pipeline.offload == SEARCH_OFFLOAD,
            placements=False,
            orders=False,
            combinations=False,
        )

    @property
    def fused(self) -> bool:
        """Whether every backward is whole."""
        return self.backward_kind is BackwardKind.WHOLE

    @property
    def mixed(self) -> bool:
        """Whether a backward may be split or whole."""
        return self.backward_kind is BackwardKind.MIXED

    @property
    def traits(self) -> Traits:
        """Traits of the schedules that it is of, those of pairs by the re-checker's own times."""
        own = {
            Trait.SPAN: self.span,
            Trait.MIXED: self.mixed,
            Trait.PAIRS: self.paired,
            Trait.SHORT_PAIRS: self.shortened,
        }
        return self.pipeline.traits.union(trait for trait, has in own.items() if has)

    def has_only(self, handled: Traits) -> bool:
        """Whether an argument that handles these traits applies to it."""
        return self.traits <= handled

    @property
    def kinds(self) -> tuple[OpKind, ...]:
        """Kinds of operation, in the order in which they run.

        Of one kind of backward: where backwards are mixed, there is no such list.
        """
        assert not self.mixed
        return (OpKind.F, OpKind.BW) if self.fused else (OpKind.F, OpKind.B, OpKind.W)

    @property
    def size(self) -> int:
        """Largest number of operations of a schedule."""
        forwards = self.pipeline.num_stages * self.pipeline.batches * self.pipeline.num_slices
        return (2 if self.fused else 3) * forwards

    def has(self, kind: OpKind, stage: int) -> bool:
        """Whether a stage has operations of a kind.

        A frozen one has no W. One behind frozen stages alone has no backward either, and nothing
        goes back to it.
        """
        frozen = self.pipeline.frozen_stages
        if kind is OpKind.W:
            return not frozen[stage]
        return kind is OpKind.F or not all(frozen[: stage + 1])

    def kinds_of(self, stage: int) -> tuple[OpKind, ...]:
        """Those of `kinds` that a stage has."""
        return tuple(kind for kind in self.kinds if self.has(kind, stage))

    @property
    def horizon(self) -> int:
        """Upper bound on the minimum makespan, if any schedule exists, in ticks.

        It is the sum of all times and delays: any interval in which nothing runs and nothing is in
        transfer can be removed from a schedule.
        """
        ticks, pipeline = self.pipeline.ticks, self.pipeline
        links = max(sum(down) + sum(up) for down, up in zip(ticks.down, ticks.up, strict=True))
        per_microbatch, per_step = links + sum(map(sum, ticks.durations)), 0
        for cost in AUXILIARY_TIMES:
            times = cost.runs * sum(ticks.costs[cost.field])
            per_microbatch, per_step = (
                (per_microbatch + times, per_step)
                if cost.per_microbatch
                else (per_microbatch, per_step + times)
            )
        longest = sum(
            (max(UNIT_FACTOR, time, memory) for time, memory in self.factors), Fraction(0)
        )
        longest *= sum(
            max(UNIT_FACTOR, self.of_slice(slice_index))
            for slice_index in range(pipeline.num_slices)
        )
        return ceil(longest) * per_microbatch + pipeline.routes * per_step

    @property
    def factors(self) -> list[tuple[Fraction, Fraction]]:
        """Factors on the times and on the memory of every microbatch."""
        pipeline, same = self.pipeline, (Fraction(1),) * self.pipeline.batches
        rows = (pipeline.microbatch_times or same, pipeline.microbatch_memory or same)
        return list(zip(*rows, strict=True))

    def pieces(self, route: int) -> Fraction:
        """Slices of a route, each as often as its factors on times say."""
        microbatches, times = self.routes()[route], self.pipeline.microbatch_times
        slices = sum(map(self.of_slice, range(self.pipeline.num_slices)), Fraction(0))
        if times is None:
            return slices * len(microbatches)
        own = times[microbatches.start : microbatches.stop]
        return slices * sum(own, Fraction(0))

    def of_slice(self, slice_index: int) -> Fraction:
        """Factor on the times of a slice."""
        factors = self.pipeline.slice_times
        return UNIT_FACTOR if factors is None else factors[slice_index]

    def factor(self, op: Op) -> Fraction:
        """Factor on the times of an operation: that of its microbatch times that of its slice."""
        times = self.pipeline.microbatch_times
        return self.of_slice(op.slice) * (UNIT_FACTOR if times is None else times[op.microbatch])

    def memory(self, microbatch: int) -> Fraction:
        """Factor on the memory of a microbatch."""
        factors = self.pipeline.microbatch_memory
        return UNIT_FACTOR if factors is None else factors[microbatch]

    @property
    def paired(self) -> bool:
        """Whether an F and a backward may save time as an overlapped pair."""
        return pairs_save(self.pipeline)

    def routes(self) -> list[range]:
        """Microbatches of every route."""
        share = self.pipeline.batches // self.pipeline.routes
        return [range(share * route, share * (route + 1)) for route in range(self.pipeline.routes)]

    def device(self, op: Op) -> int:
        """Device of an operation."""
        return self.pipeline.device(op.stage, op.microbatch)

    def time(self, op: Op) -> int:
        """Time of an operation alone, in ticks."""
        return int(self.factor(op) * self.pipeline.ticks.durations[op.kind][op.stage])

    def time_of_pair(self, forward: Op, backward: Op) -> int:
        """Time of an F and a B or BW run as one, in ticks.

        As much of both overlaps as of two with the smaller of their factors on times.
        """
        time = pair_time(self.pipeline, forward.stage, backward.kind, backward.stage)
        ticks = self.pipeline.ticks.durations
        saved = ticks[OpKind.F][forward.stage] + ticks[backward.kind][backward.stage] - time
        smaller = min(self.factor(forward), self.factor(backward))
        return self.time(forward) + self.time(backward) - int(smaller * saved)

    @property
    def shortened(self) -> bool:
        """Whether an operation may take less time in a pair than alone."""
        return self.min_durations != self.pipeline.ticks.durations

    @property
    def min_durations(self) -> tuple[Row, ...]:
        """Minimum time of an operation, alone or in a pair, in ticks: [kind][stage]."""
        if self.pipeline.overlap is None:
            return self.pipeline.ticks.durations
        return min_times(self.pipeline)

    def allocates(self, kind: OpKind, stage: int, factor: Fraction = UNIT_FACTOR) -> int:
        """Memory that an operation allocates at its start, in ticks.

        Every kind allocates its workspace. F adds the activation that it keeps. B adds the rest of
        the activation, and its change of memory if positive. BW adds what it recomputes and what
        was moved to the host. `factor`, on the memory of the microbatch, multiplies all but the
        workspace.
        """
        ticks = self.pipeline.ticks
        if kind is OpKind.BW:
            return int(self._for_whole(stage, factor))
        amount = 0
        if kind is OpKind.F:
            amount = ticks.retained[stage]
        if kind is OpKind.B:
            amount = ticks.costs.activation[stage] - ticks.retained[stage]
            amount += max(0, ticks.costs.memory_b[stage])
        return int(factor * amount + self._workspace(kind, stage, factor))

    def _workspace(self, kind: OpKind, stage: int, factor: Fraction) -> Fraction:
        """Memory that F, B or W needs only while it runs, in ticks.

        `Ticks` counts the memory that moves to the host as workspace of F.
        """
        ticks = self.pipeline.ticks
        if kind is OpKind.W and stage == 0 and runs_whole_in_weight(self.pipeline):
            return Fraction(self.allocated_by_whole(factor)[0])
        offloaded = ticks.costs.offload_memory[stage] if kind is OpKind.F else 0
        return ticks.workspace[kind][stage] + (factor - 1) * offloaded

    def _for_whole(self, stage: int, factor: Fraction) -> Fraction:
        """Memory that BW allocates, its workspace with it, in ticks."""
        ticks = self.pipeline.ticks
        offloaded = factor * ticks.costs.offload_memory[stage]
        if factor == 1:
            own = ticks.costs.recompute_memory[stage] + ticks.workspace[OpKind.BW][stage]
            return own + offloaded
        return self.allocated_by_whole(factor)[stage] + offloaded

    def allocated_by_whole(self, factor: Fraction) -> list[int]:
        """What BW of every stage allocates for a slice of a microbatch, by the verifier's rule."""
        return allocated_by_whole_backward(self.pipeline, factor)

    def frees(self, kind: OpKind, stage: int, factor: Fraction = UNIT_FACTOR) -> int:
        """Memory that an operation frees at its end, in ticks.

        Every kind frees its workspace. B also frees its change of memory if negative, W the rest,
        and BW what F keeps and what BW allocated. `factor` is as in `allocates`.
        """
        ticks = self.pipeline.ticks
        if kind is OpKind.BW:
            return int(factor * ticks.retained[stage] + self._for_whole(stage, factor))
        amount = 0
        if kind is OpKind.B:
            amount = max(0, -ticks.costs.memory_b[stage])
        if kind is OpKind.W:
            amount = ticks.costs.activation[stage] + ticks.costs.memory_b[stage]
        return int(factor * amount + self._workspace(kind, stage, factor))

    def stashed(self, stage: int) -> int:
        """Live memory of a slice of a microbatch between F and the backward, in ticks."""
        return self.allocates(OpKind.F, stage) - self.frees(OpKind.F, stage)

    def pending(self, stage: int) -> int:
        """Live memory of a slice of a microbatch between B and W, in ticks."""
        return self.frees(OpKind.W, stage) - self.allocates(OpKind.W, stage)

    def live_intervals(self, forward: Op, kinds: Iterable[OpKind]) -> Iterator[tuple[Op, Op, int]]:
        """Live memory of a slice at a stage: (allocating operation, freeing operation, amount).

        `kinds` are those that the slice runs there, in order; amounts are in ticks. Memory is live
        from the start of the allocating operation to the end of the freeing one, first in, first
        out.
        """
        allocated: list[tuple[OpKind, int]] = []
        factor = self.memory(forward.microbatch)
        for kind in kinds:
            allocated.append((kind, self.allocates(kind, forward.stage, factor)))
            to_free = self.frees(kind, forward.stage, factor)
            while to_free:
                first, amount = allocated.pop(0)
                if amount > to_free:
                    allocated.insert(0, (first, amount - to_free))
                freed = min(amount, to_free)
                to_free -= freed
                if freed:
                    yield forward._replace(kind=first), forward._replace(kind=kind), freed

    def work(self, times: Mapping[OpKind, int]) -> int:
        """Minimum time of one device for operations of these total times per kind.

        They run one after the other. If F and backwards may run in pairs, the larger of the two
        totals counts.
        """
        forward, backward = (times.get(kind, 0) for kind in self.kinds[:2])
        rest = sum(times.get(kind, 0) for kind in self.kinds[2:])
        return rest + (max(forward, backward) if self.paired else forward + backward)


def of_schedule(schedule: Timetable) -> Claim | None:
    """Read the claim of a schedule's origin; None if it states no bound.

    Raises InputError if the claim cannot be of this schedule: see `fault`.
    """
    claim = stated_by(schedule)
    wrong = None if claim is None else fault(claim, schedule)
    if wrong is not None:
        raise InputError(wrong)
    return claim


def stated_by(schedule: Timetable) -> Claim | None:
    """The claim as a schedule's origin states it, right or wrong; None: it states no bound."""
    origin, pipeline = schedule.origin, schedule.pipeline
    if origin.lower_bound is None:
        return None
    span = schedule.objective is Objective.DEVICE_SPAN
    devices = () if origin.certificate is None else origin.certificate.devices
    ticks = bound_in_ticks(pipeline, origin.lower_bound)
    claim = Claim(pipeline, span, origin.backward_kind or BackwardKind.SPLIT, ticks, devices)
    if origin.certificate is not None:
        claim = of_every(claim, origin.certificate.argument, origin.lower_bound)
    return claim


def fault(claim: Claim, schedule: Timetable) -> str | None:
    """Why a claim cannot be of a schedule; None if it can.

    Its certificate names a device that does not exist, or partitions without layers; or its kind of
    backward differs from the schedule's.
    """
    last = claim.pipeline.num_devices - 1
    strange = [device for device in claim.devices if device > last]
    if strange:
        return f"certificate: device {strange[0]} is not one of 0..{last}"
    if claim.of_layers and claim.pipeline.model is None:
        return f"certificate: it is of all {claim.configurations}, but the file has no layers"
    if not claim.mixed and set(schedule.kind.tolist()) - set(claim.kinds):
        backward_text = "one operation (BW)" if claim.fused else "split (B and W)"
        return f"origin: its bound is of backwards {backward_text}, not of those of this schedule"
    return None


def of_every(claim: Claim, argument: Argument, bound: Fraction | None) -> Claim:
    """The claim of every configuration that the argument covers."""
    quantified = claim._replace(
        partitions=argument in (Argument.PARTITIONS, Argument.PARTITIONS_RECOMPUTE),
        recompute=argument
        in (Argument.RECOMPUTE, Argument.PARTITIONS_RECOMPUTE, Argument.RECOMPUTE_OFFLOAD),
        offload=argument in (Argument.OFFLOAD, Argument.RECOMPUTE_OFFLOAD),
        placements=argument is Argument.PLACEMENTS,
        orders=argument is Argument.ORDERS,
        combinations=argument is Argument.COMBINATIONS,
        bound_time=bound,
    )
    return quantified if quantified.of_several else claim


def bound_in_ticks(pipeline: Pipeline, bound: Fraction) -> int:
    """Turn a bound into ticks, rounded up: values are whole ticks."""
    return ceil(exact.in_ticks(bound, pipeline.ticks.per_unit))
