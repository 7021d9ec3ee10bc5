"""Random schedules over links that carry one transfer at a time, and communication orders of them.

Independent of the package's own timing: operations and transfers are appended one after the other,
each as soon as its device or link is free and what it needs has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

from hypothesis import strategies as st

from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.actions import Action, ActionKind, ActionRow
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import (
    ALONE,
    BW,
    B,
    F,
    W,
    duration_of,
    exists,
    lag_of,
    may_pair,
    operations,
    pipelines,
)
from tests.factories.tables import joined

Job = tuple[Op, ...] | tuple[str, int, int, int]
"""An operation or a pair of them; or a transfer: F or B, sending stage, microbatch, slice."""
Split = dict[tuple[int, int, int], bool]
"""Whether the backward is split, by stage, microbatch and slice."""
TRANSFER_MODES = tuple(mode for mode in LinkMode if mode.has_links)
"""Modes whose transfers are operations."""
LINK_MODES = tuple(mode for mode in TRANSFER_MODES if mode is not LinkMode.BLOCKING)
"""Modes whose links are resources of their own, as all methods of the search read them."""


def link_of(pipeline: Pipeline, source: int, target: int) -> Any:
    """The link that carries what one device hands another: that of both, or of one way."""
    one_way = pipeline.link_mode == "exclusive"
    return (source, target) if one_way else frozenset((source, target))


@st.composite
def linked_pipelines(
    draw: st.DrawFn, modes: Sequence[LinkMode] = (LinkMode.STREAMS,), *, max_devices: int = 3
) -> Pipeline:
    """Draw a pipeline over links, those of streams on one route and without slices."""
    mode = draw(st.sampled_from(modes))
    plain = mode is LinkMode.STREAMS
    slices = (None,) if plain else (None, None, 2)
    pipeline = draw(
        pipelines(min_devices=2, max_devices=max_devices, min_batches=2, slices=slices).filter(
            lambda pipeline: pipeline.routes == 1 or not plain
        )
    )
    return replace(pipeline, link_mode=mode)


@dataclass(frozen=True)
class Built:
    """A schedule, and the order in which it was appended."""

    schedule: Schedule
    sequence: tuple[Job, ...]

    @property
    def rows(self) -> tuple[ActionRow, ...]:
        """A communication order: both ends of a transfer are posted when it was appended.

        Backwards of stages that run none are not there.
        """
        pipeline = self.schedule.pipeline
        rows: list[list[tuple[Action, ...]]] = [[] for _ in range(pipeline.num_devices)]
        for job in self.sequence:
            if isinstance(job[0], str):
                kind, stage, microbatch, _ = job
                neighbour = stage + (1 if kind == "F" else -1)
                for name, end in (("SEND", stage), ("RECV", neighbour)):
                    post = Action(ActionKind(f"{name}_{kind}"), end, microbatch)
                    rows[pipeline.device(end, 0)].append((post,))
            else:
                pair = sorted(job, key=lambda op: op.kind)
                cell = tuple(
                    Action(ActionKind[op.kind.name], op.stage, op.microbatch) for op in pair
                )
                rows[pipeline.device(job[0].stage, 0)].append(cell)
        return tuple(map(tuple, rows))


@st.composite
def built(draw: st.DrawFn, problems: st.SearchStrategy[Pipeline] | None = None) -> Built:
    """Draw a valid schedule, by default over streams; every time is the earliest of its orders."""
    pipeline = draw(linked_pipelines() if problems is None else problems)
    random = Random(draw(st.integers(0, 2**32 - 1)))
    return append_all(pipeline, random, draw(st.sampled_from(["split", "whole", "mixed"])))


def append_all(pipeline: Pipeline, random: Random, backward: str = "mixed") -> Built:
    """Append ready operations and transfers in random order."""
    chance = {"split": 1.0, "whole": 0.0, "mixed": 0.5}[backward]
    pairing, link_first = random.choice((0, 0, 0.5)), random.choice((0, 0.5, 0.9))
    split = {slot: random.random() < chance for slot in places(pipeline)}
    left = jobs(pipeline, split)
    ends: dict[Any, int] = {}
    free: dict[Any, int] = {}
    rows: list[tuple[int, ...]] = []
    transfers: list[tuple[int, ...]] = []
    sequence: list[Job] = []
    while left:
        ready = [job for job in left if all(need in ends for need in _needs(pipeline, split, job))]
        sends = [job for job in ready if isinstance(job[0], str)]
        job = random.choice(sends if sends and random.random() < link_first else ready)
        left.remove(job)
        if not isinstance(job[0], str) and random.random() < pairing:
            partners = [
                partner
                for partner in ready
                if partner in left
                and not isinstance(partner[0], str)
                and may_pair(pipeline, job[0], partner[0])
            ]
            if partners:
                left.remove(partners[0])
                job = (*job, *partners[0])
        needs = [need for part in _parts(job) for need in _needs(pipeline, split, part)]
        machines = _machines(pipeline, job)
        begin = max(free.get(machine, 0) for machine in machines)
        begin = max([begin, *(ends[need] for need in needs)])
        end = begin + _length(pipeline, job)
        free |= dict.fromkeys(machines, end)
        sequence.append(job)
        if isinstance(job[0], str):
            transfers.append(_row(pipeline, job, begin, end))
            ends[job] = end
            continue
        pair_id = len(rows) if len(job) > 1 else ALONE
        for op in job:
            ends[op] = end
            device = pipeline.device(op.stage, op.microbatch)
            rows.append((*op[:3], device, begin, end, op.slice, pair_id))
    schedule = joined(pipeline, rows, transfers=transfers)
    return Built(schedule, tuple(sequence))


def places(pipeline: Pipeline) -> list[tuple[int, int, int]]:
    """Stage, microbatch and slice of all data."""
    return list(
        product(range(pipeline.num_stages), range(pipeline.batches), range(pipeline.num_slices))
    )


def jobs(pipeline: Pipeline, split: Split) -> list[Job]:
    """All operations, then all transfers."""
    work: list[Job] = [
        (op,) for slot, halves in split.items() for op in operations(pipeline, slot, halves)
    ]
    return work + [
        (kind, stage, microbatch, slice_index)
        for stage, microbatch, slice_index in split
        for kind, sender in (("F", stage + 1), ("B", stage - 1))
        if (sender, microbatch, slice_index) in split
        and pipeline.device(sender, microbatch) != pipeline.device(stage, microbatch)
        and (kind == "F" or exists(pipeline, B, sender))
    ]


def _parts(job: Job) -> Sequence[Job]:
    return [job] if isinstance(job[0], str) else [(op,) for op in job]


def _machines(pipeline: Pipeline, job: Job) -> tuple[Any, ...]:
    """What runs nothing else meanwhile; of a transfer that blocks, both devices."""
    if not isinstance(job[0], str):
        return (pipeline.device(job[0].stage, job[0].microbatch),)
    ends = _ends(pipeline, job)
    return ends if pipeline.link_mode == "blocking" else (link_of(pipeline, *ends),)


def _ends(pipeline: Pipeline, job: Any) -> tuple[int, int]:
    """Devices that send and receive a transfer."""
    kind, stage, microbatch, _ = job
    neighbour = stage + (1 if kind == "F" else -1)
    return pipeline.device(stage, microbatch), pipeline.device(neighbour, microbatch)


def _length(pipeline: Pipeline, job: Job) -> int:
    if not isinstance(job[0], str):
        return duration_of(pipeline, job)
    kind, stage, microbatch, _ = job
    op = F if kind == "F" else BW
    neighbour = stage + (1 if kind == "F" else -1)
    return lag_of(pipeline, Op(op, stage, microbatch), Op(op, neighbour, microbatch))


def _row(pipeline: Pipeline, job: Any, begin: int, end: int) -> tuple[int, ...]:
    kind, stage, microbatch, slice_index = job
    devices = _ends(pipeline, job)
    return (F if kind == "F" else B, stage, microbatch, *devices, begin, end, slice_index)


def _needs(pipeline: Pipeline, split: Split, job: Job) -> list[Any]:
    """What must have ended before a job: operations, and transfers."""

    def backward(stage: int, microbatch: int, slice_index: int) -> Op:
        slot = stage, microbatch, slice_index
        return Op(B if split[slot] else BW, *slot)

    if isinstance(job[0], str):
        kind, *slot = job
        return [Op(F, *slot) if kind == "F" else backward(*slot)]
    (op,) = job
    if op.kind is W:
        return [op._replace(kind=B)]
    _, stage, microbatch, slice_index = op
    forward = op.kind is F
    make = (lambda *slot: Op(F, *slot)) if forward else backward
    own = [] if forward else [op._replace(kind=F)]
    earlier = slice_index - 1 if forward else slice_index + 1
    if 0 <= earlier < pipeline.num_slices:
        own.append(make(stage, microbatch, earlier))
    neighbour = stage - 1 if forward else stage + 1
    if not 0 <= neighbour < pipeline.num_stages:
        return own
    if pipeline.device(neighbour, microbatch) == pipeline.device(stage, microbatch):
        return [*own, make(neighbour, microbatch, slice_index)]
    return [*own, ("F" if forward else "B", neighbour, microbatch, slice_index)]
