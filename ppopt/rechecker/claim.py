"""Claims to check: no schedule of a pipeline is below a bound, or none exists."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait, Traits
from ppopt.rechecker.pair_times import pairs_save, shortens
from ppopt.schedule.timetable import Timetable
from ppopt.verifier.costs import Costs


class Claim(NamedTuple):
    """No schedule of the pipeline has a value below the bound."""

    pipeline: Pipeline
    span: bool
    """Whether the value is the device span; else it is the makespan."""
    backward_kind: BackwardKind
    """Whether backwards are split (B and W), whole (BW), or either."""
    bound: int | None
    """In ticks of the grid, which all of its pipelines share; None: there is no schedule at all."""
    devices: tuple[int, ...] = ()
    """The devices that the certificate names: where to look first, never trusted."""
    decisions: Decisions = Decisions.NONE
    """The decisions of which it is of every combination, within the same limits."""
    relaxed: Costs | None = None
    """Costs in place of those of the pipeline, in a relaxation."""

    @property
    def costs(self) -> Costs:
        """The costs of its stages."""
        return self.relaxed or _costs_of(self.pipeline)

    @property
    def memory(self) -> list[list[list[int]]]:
        """Memory that compute allocates at its start, and frees at its end: [kind][stage] each.

        Moves to the host take no time: they begin at the end of F, and end as the backward begins.
        """
        allocated, freed = self.costs.memory.copy()
        freed[OpKind.F] += freed[AuxiliaryKind.OFFLOAD]
        allocated[[OpKind.B, OpKind.BW]] += allocated[AuxiliaryKind.RELOAD]
        return [allocated.tolist(), freed.tolist()]

    @property
    def mixes_decisions(self) -> bool:
        """Whether it is of the placement, or of the order, with other decisions."""
        alone = self.decisions in (Decisions.PLACEMENT, Decisions.ORDER)
        return bool(self.decisions & (Decisions.PLACEMENT | Decisions.ORDER)) and not alone

    def for_pipeline(self, pipeline: Pipeline) -> Claim:
        """The claim of one of its pipelines, and of every choice that this one leaves open."""
        assert pipeline.grid.time == self.pipeline.grid.time, "the pipelines of a claim share ticks"
        return self._replace(
            pipeline=pipeline,
            devices=(),
            decisions=pipeline.open_decisions & (Decisions.PARTITION | Decisions.OF_MODEL),
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
            Trait.PAIRS: pairs_save(self.costs),
            Trait.SHORT_PAIRS: shortens(self.costs),
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

    def has(self, kind: OpKind, stage: int) -> bool:
        """Whether a stage has operations of a kind."""
        return bool(self.costs.exists[kind, stage])


@lru_cache(maxsize=8)
def _costs_of(pipeline: Pipeline) -> Costs:
    return Costs.of(pipeline)


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
    decisions = Decisions.NONE if origin.certificate is None else origin.certificate.decisions
    kind = origin.backward_kind or BackwardKind.SPLIT
    bound = ceil(exact.in_ticks(origin.lower_bound, pipeline.ticks.per_unit))
    return Claim(pipeline, span, kind, bound, devices, decisions)


def fault(claim: Claim, schedule: Timetable) -> str | None:
    """Why a claim cannot be of a schedule; None if it can.

    Its certificate names a device that does not exist, or partitions without layers; or its kind of
    backward differs from the schedule's.
    """
    last = claim.pipeline.num_devices - 1
    strange = [device for device in claim.devices if device > last]
    if strange:
        return f"certificate: device {strange[0]} is not one of 0..{last}"
    of_layers = claim.decisions & (Decisions.PARTITION | Decisions.OF_MODEL)
    if of_layers and claim.pipeline.model is None:
        return f"certificate: it is of all {of_layers.configurations}, but the file has no layers"
    if not claim.mixed and set(schedule.kind.tolist()) - set(claim.kinds):
        backward_text = "one operation (BW)" if claim.fused else "split (B and W)"
        return f"origin: its bound is of backwards {backward_text}, not of those of this schedule"
    return None
