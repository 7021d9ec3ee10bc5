"""Random schedules over links that are streams, and communication orders of them.

Independent of the package's own timing: operations and transfers are appended one after the other,
each as soon as its device or link is free and what it needs has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.actions import Action, ActionKind, ActionRow
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import ALONE, BW, B, F, W, duration_of, lag_of, may_pair, pipelines

Job = tuple[Op, ...] | tuple[str, int, int]
"""An operation or a pair of them; or a transfer: F or B, sending stage, microbatch."""


@st.composite
def stream_pipelines(draw: st.DrawFn, *, max_devices: int = 3) -> Pipeline:
    """Draw a pipeline of streams: one route, no slices, delays per boundary and way."""
    given = draw(
        pipelines(min_devices=2, max_devices=max_devices, min_batches=2, slices=(None,)).filter(
            lambda pipeline: pipeline.routes == 1
        )
    )
    return replace(given, link_mode="streams")


def transfer_table(schedule: Schedule) -> list[tuple[int, ...]]:
    """The transfers of a schedule as plain integers, with the fields of `Transfers`."""
    return list(zip(*(column.tolist() for column in schedule.transfers.columns), strict=True))


@dataclass(frozen=True)
class Built:
    """A schedule, and the order in which it was appended."""

    schedule: Schedule
    sequence: tuple[Job, ...]

    @property
    def rows(self) -> tuple[ActionRow, ...]:
        """A communication order: both ends of a transfer are posted when it was appended."""
        pipeline = self.schedule.pipeline
        rows: list[list[tuple[Action, ...]]] = [[] for _ in range(pipeline.num_devices)]
        for job in self.sequence:
            if isinstance(job[0], str):
                kind, stage, microbatch = job
                other = stage + (1 if kind == "F" else -1)
                for name, here in (("SEND", stage), ("RECV", other)):
                    post = Action(ActionKind(f"{name}_{kind}"), here, microbatch)
                    rows[pipeline.device(here, 0)].append((post,))
            else:
                pair = sorted(job, key=lambda op: op.kind)
                cell = tuple(
                    Action(ActionKind[op.kind.name], op.stage, op.microbatch) for op in pair
                )
                rows[pipeline.device(job[0].stage, 0)].append(cell)
        return tuple(map(tuple, rows))


@st.composite
def built(draw: st.DrawFn, problems: st.SearchStrategy[Pipeline] | None = None) -> Built:
    """Draw a valid schedule over streams; every time is the earliest of its orders."""
    pipeline = draw(stream_pipelines() if problems is None else problems)
    random = Random(draw(st.integers(0, 2**32 - 1)))
    return append_all(pipeline, random, draw(st.sampled_from(["split", "whole", "mixed"])))


def append_all(pipeline: Pipeline, random: Random, backward: str = "mixed") -> Built:
    """Append ready operations and transfers in random order."""
    chance = {"split": 1.0, "whole": 0.0, "mixed": 0.5}[backward]
    pairing, link_first = random.choice((0, 0, 0.5)), random.choice((0, 0.5, 0.9))
    size = range(pipeline.num_stages), range(pipeline.batches)
    split = {(s, j): random.random() < chance for s in size[0] for j in size[1]}
    left: list[Job] = [
        (Op(kind, *place),)
        for place, halves in split.items()
        for kind in ((F, B, W) if halves else (F, BW))
    ]
    left += [
        (kind, s, j)
        for s, j in split
        for kind, other in (("F", s + 1), ("B", s - 1))
        if other in size[0] and pipeline.device(other, 0) != pipeline.device(s, 0)
    ]
    ends: dict[Any, int] = {}
    free: dict[Any, int] = {}
    rows, transfers, sequence = [], [], []
    while left:
        ready = [job for job in left if all(one in ends for one in _needs(pipeline, split, job))]
        sends = [job for job in ready if isinstance(job[0], str)]
        job = random.choice(sends if sends and random.random() < link_first else ready)
        left.remove(job)
        if not isinstance(job[0], str) and random.random() < pairing:
            partners = [
                one
                for one in ready
                if one in left
                and not isinstance(one[0], str)
                and may_pair(pipeline, job[0], one[0])
            ]
            if partners:
                left.remove(partners[0])
                job = (*job, *partners[0])
        needs = [one for part in _parts(job) for one in _needs(pipeline, split, part)]
        machine = _machine(pipeline, job)
        begin = max([free.get(machine, 0), *(ends[one] for one in needs)])
        end = free[machine] = begin + _length(pipeline, job)
        sequence.append(job)
        if isinstance(job[0], str):
            transfers.append(_row(pipeline, job, begin, end))
            ends[job] = end
            continue
        number = len(rows) if len(job) > 1 else ALONE
        for op in job:
            ends[op] = end
            rows.append((*op[:3], pipeline.device(op.stage, 0), begin, end, 0, number))
    made = Schedule.from_rows(pipeline, rows, transfers=transfers)
    return Built(made, tuple(sequence))


def _parts(job: Job) -> Sequence[Job]:
    return [job] if isinstance(job[0], str) else [(op,) for op in job]


def _machine(pipeline: Pipeline, job: Job) -> Any:
    if isinstance(job[0], str):
        kind, stage, _ = job
        ends = (pipeline.device(s, 0) for s in (stage, stage + (1 if kind == "F" else -1)))
        return frozenset(ends)
    return pipeline.device(job[0].stage, 0)


def _length(pipeline: Pipeline, job: Job) -> int:
    if not isinstance(job[0], str):
        return duration_of(pipeline, job)
    kind, stage, microbatch = job
    op = F if kind == "F" else BW
    other = stage + (1 if kind == "F" else -1)
    return lag_of(pipeline, Op(op, stage, microbatch), Op(op, other, microbatch))


def _row(pipeline: Pipeline, job: Any, begin: int, end: int) -> tuple[int, ...]:
    kind, stage, microbatch = job
    other = stage + (1 if kind == "F" else -1)
    devices = pipeline.device(stage, 0), pipeline.device(other, 0)
    return (F if kind == "F" else B, stage, microbatch, *devices, begin, end)


def _needs(pipeline: Pipeline, split: dict[tuple[int, int], bool], job: Job) -> list[Any]:
    """What must have ended before a job: operations, and transfers."""

    def backward(stage: int, microbatch: int) -> Op:
        return Op(B if split[stage, microbatch] else BW, stage, microbatch)

    if isinstance(job[0], str):
        kind, stage, microbatch = job
        return [Op(F, stage, microbatch) if kind == "F" else backward(stage, microbatch)]
    (op,) = job
    if op.kind is W:
        return [op._replace(kind=B)]
    name, other = ("F", op.stage - 1) if op.kind is F else ("B", op.stage + 1)
    own = [] if op.kind is F else [op._replace(kind=F)]
    if not 0 <= other < pipeline.num_stages:
        return own
    if pipeline.device(other, 0) == pipeline.device(op.stage, 0):
        return [*own, op._replace(stage=other) if name == "F" else backward(other, op.microbatch)]
    return [*own, (name, other, op.microbatch)]
