"""Operations besides compute as the verifier reads them, and what all of them obey.

Each is there once, as long as its pipeline says, from 0 or later on. A queue runs one at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.operation import AuxiliaryKind, Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.timetable import Timetable
from ppopt.verifier.rows import LATEST, Rows, columns
from ppopt.verifier.violation import Rule, Violation

_FIELDS = ("kind", "stage", "device", "start", "end", "route", "microbatch", "slice")
ONCE = -1
"""Microbatch of what a step has once."""
MOVES = (AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD)
Place = tuple[int, ...]


class Work(NamedTuple):
    """One operation besides compute, of a stage; an optimizer is of its device."""

    kind: AuxiliaryKind
    place: Place
    """Route and stage; of an optimizer, the device twice; of a move to the host or back also
    microbatch and slice."""
    device: int
    start: int
    end: int


def read(schedule: Timetable) -> tuple[list[Work], list[str]]:
    """The operations that belong to the pipeline, and what the others are, in words.

    Raises InputError if the columns are not whole numbers of one length.
    """
    given = columns(schedule)
    here = np.isin(given["kind"], tuple(AuxiliaryKind))
    rows = [given[field][here].tolist() for field in _FIELDS]
    known: list[Work] = []
    strange: list[str] = []
    for row in zip(*rows, strict=True):
        work = _work(schedule.pipeline, *row)
        if work is None:
            fields = zip(_FIELDS, row, strict=True)
            strange.append(", ".join(f"{name} {value}" for name, value in fields))
        else:
            known.append(work)
    return known, strange


def _work(
    pipeline: Pipeline,
    kind: int,
    stage: int,
    device: int,
    start: int,
    end: int,
    route: int,
    microbatch: int,
    part: int,
) -> Work | None:
    """The operation of a row, if the pipeline has it there and its times are exact."""
    if kind not in tuple(AuxiliaryKind) or not 0 <= route < pipeline.routes:
        return None
    if not 0 <= stage < pipeline.num_stages or pipeline.hosts[route][stage] != device:
        return None
    if not (-LATEST <= start <= LATEST and -LATEST <= end <= LATEST):
        return None
    place: Place = (device, device) if kind == AuxiliaryKind.OPTIMIZER else (route, stage)
    known = (microbatch, part) == (ONCE, 0)
    if kind in MOVES:
        share = pipeline.batches // pipeline.routes
        on_route = share * route <= microbatch < share * (route + 1)
        known = on_route and 0 <= part < pipeline.num_slices
        place = (route, stage, microbatch, part)
    return Work(AuxiliaryKind(kind), place, device, start, end) if known else None


def memory_changes(pipeline: Pipeline, work: Work) -> tuple[int, int]:
    """Memory taken at the start and given back at the end, in ticks.

    UNSHARD takes the gathered weights of its stage, GRADIENT_SYNC gives them back. OFFLOAD gives
    back the part of the activation that moves to the host, RELOAD takes it again; of a microbatch
    with a factor on its memory, so many times as much.
    """
    if work.kind is AuxiliaryKind.OPTIMIZER:
        return 0, 0
    costs, per_unit = pipeline.costs, Fraction(pipeline.ticks.memory_per_unit)
    amounts = costs.offload_memory if work.kind in MOVES else costs.unshard_memory
    if work.kind in MOVES and pipeline.microbatch_memory is not None:
        per_unit *= pipeline.microbatch_memory[work.place[2]]
    amount = int(amounts[work.place[1]] * per_unit)
    takes = work.kind in (AuxiliaryKind.UNSHARD, AuxiliaryKind.RELOAD)
    return (amount, 0) if takes else (0, amount)


@dataclass(frozen=True)
class WorkCheck(ABC):
    """Operations besides compute of some kinds, beside the operations that have a name."""

    named: Rows
    known: list[Work]

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the schedule."""
        return self.named.pipeline

    @property
    @abstractmethod
    def wanted(self) -> Mapping[tuple[AuxiliaryKind, Place], int]:
        """Operations that must be there, with their times in ticks."""

    @abstractmethod
    def where(self, kind: AuxiliaryKind, place: Place) -> tuple[int, str]:
        """Device of an operation that must be there, and words for its place."""

    @abstractmethod
    def name(self, work: Work) -> str:
        """Words for an operation and its times."""

    @cached_property
    def first(self) -> dict[tuple[AuxiliaryKind, Place], Work]:
        """The first row of every operation that must be there: the one that counts."""
        found: dict[tuple[AuxiliaryKind, Place], Work] = {}
        for work in self.known:
            if (work.kind, work.place) in self.wanted:
                found.setdefault((work.kind, work.place), work)
        return found

    def at(self, rule: Rule, work: Work, words: str, *ops: Op) -> Violation:
        """A violation by an operation besides compute."""
        return Violation(rule, ops, work.device, work.start, f"{self.name(work)} {words}")

    def incomplete(self) -> Iterator[Violation]:
        """Operations that are missing, not of this pipeline, or there twice."""
        for kind, place in self.wanted:
            if (kind, place) not in self.first:
                device, words = self.where(kind, place)
                text = f"{kind.name} of {words} is missing"
                yield Violation(Rule.AUXILIARY, (), device, None, text)
        for work in self.known:
            if (work.kind, work.place) not in self.wanted:
                yield self.at(Rule.AUXILIARY, work, "is none of this pipeline")
            elif self.first[work.kind, work.place] is not work:
                yield self.at(Rule.AUXILIARY, work, "is there twice")

    def wrong_times(self) -> Iterator[Violation]:
        """Operations that are too long or too short, or begin before 0."""
        for work in self.known:
            ticks = self.wanted.get((work.kind, work.place))
            if ticks is not None and (work.end - work.start != ticks or work.start < 0):
                words = f"is not {self.named.clock(ticks)} long from 0 or later on"
                yield self.at(Rule.AUXILIARY_TIME, work, words)

    def overlapping(self, queue: list[Work], rule: Rule) -> Iterator[Violation]:
        """Operations of a queue that start before an earlier one has ended."""
        running: Work | None = None
        for work in sorted(queue, key=lambda work: (work.start, work.end)):
            if running is not None and work.start < running.end:
                yield self.at(rule, work, f"runs beside {self.name(running)}")
            if running is None or work.end > running.end:
                running = work
