"""The least makespan or device span of a pipeline with frozen stages, by trying every schedule.

Written from the rules alone (DESIGN 3, rules 1 to 5, 7, 17 and 19), from what is stated of every
stage as if it were trained. What a frozen stage does not have is not there: no W, no optimizer, and
of the first frozen stages no backward. A transfer is a job of its own that occupies nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.pipeline import Pipeline
from tests.oracles.gradient_exhaustive import Job, Key, least_of_jobs


class StageGiven(NamedTuple):
    """What is stated of a stage, as whole numbers."""

    device: int
    frozen: bool
    forward: int
    backward_input: int
    weight: int
    activation: int
    memory_b: int
    unshard: int
    unshard_memory: int
    gradient_sync: int
    optimizer: int


def least_frozen_value(
    pipeline: Pipeline, stages: list[StageGiven], delay: int, *, whole: bool, span: bool
) -> int | None:
    """The least value; None where no schedule keeps the limits of `pipeline`.

    Of the pipeline only its limits, static memory, devices, microbatches and barrier are read. A
    whole backward takes as long as both its parts.
    """
    jobs = _jobs(pipeline, stages, delay, whole=whole)
    index_of = {key: index for index, key in enumerate(jobs)}
    return least_of_jobs(
        pipeline,
        [
            job._replace(after=frozenset(index_of[key] for key in waits if key in index_of))
            for job, waits in jobs.values()
        ],
        span=span,
    )


Waiting = tuple[Job, list[Key]]
"""A job, and those that it waits for where they exist."""


def _jobs(
    pipeline: Pipeline, stages: list[StageGiven], delay: int, *, whole: bool
) -> dict[Key, Waiting]:
    jobs: dict[Key, Waiting] = {}
    nowhere, last = pipeline.num_devices, len(stages) - 1
    trained = next((n for n, stage in enumerate(stages) if not stage.frozen), len(stages))

    def sent(key: Key, source: int, target: int) -> Key:
        """The key to wait for where a job's result is needed on another stage."""
        source_device, target_device = stages[source].device, stages[target].device
        if source_device == target_device or not delay:
            return key
        jobs["sent", *key] = Job(nowhere, ("sent", hash(key)), delay, frozenset(), 0, 0), [key]
        return ("sent", *key)

    for j in range(pipeline.batches):
        for n, stage in enumerate(stages):
            given_back = stage.activation if n < trained else 0
            waits = [("F", n, j - 1), ("unshard", n)]
            if n:
                waits.append(sent(("F", n - 1, j), n - 1, n))
            jobs["F", n, j] = _compute(stage, stage.forward, stage.activation, given_back), waits
        for n in range(last, trained - 1, -1):
            stage = stages[n]
            waits = [("B", n, j - 1), ("F", n, j)]
            if n < last:
                waits.append(sent(("B", n + 1, j), n + 1, n))
            jobs["B", n, j] = _backward(stage, whole=whole), waits
            if not (whole or stage.frozen):
                left = stage.activation + stage.memory_b
                w = _compute(stage, stage.weight, 0, left)
                jobs["W", n, j] = w, [("W", n, j - 1), ("B", n, j)]
    _add_step(jobs, pipeline, stages, trained, whole=whole)
    return jobs


def _compute(stage: StageGiven, time: int, allocates: int, frees: int) -> Job:
    return Job(stage.device, ("compute", stage.device), time, frozenset(), allocates, frees)


def _backward(stage: StageGiven, *, whole: bool) -> Job:
    if stage.frozen:
        return _compute(stage, stage.backward_input, 0, stage.activation)
    if whole:
        return _compute(stage, stage.backward_input + stage.weight, 0, stage.activation)
    allocates, frees = max(0, stage.memory_b), max(0, -stage.memory_b)
    return _compute(stage, stage.backward_input, allocates, frees)


def _add_step(
    jobs: dict[Key, Waiting],
    pipeline: Pipeline,
    stages: list[StageGiven],
    trained: int,
    *,
    whole: bool,
) -> None:
    """What there is once in a step. Weights of a frozen stage go by a sync of no length."""
    gathered = any(stage.unshard_memory for stage in stages)
    opens = gathered or any(stage.unshard for stage in stages)
    syncs = gathered or any(stage.gradient_sync for stage in stages if not stage.frozen)
    closed: dict[int, list[Key]] = {}
    for n, stage in enumerate(stages):
        kind = "F" if n < trained else "B" if stage.frozen or whole else "W"
        closed[n] = [(kind, n, j) for j in range(pipeline.batches)]
        queue, memory = ("collective", stage.device), stage.unshard_memory
        if opens:
            opened = Job(stage.device, queue, stage.unshard, frozenset(), memory, 0)
            jobs["unshard", n] = opened, []
        if gathered or (syncs and not stage.frozen):
            time = 0 if stage.frozen else stage.gradient_sync
            jobs["sync", n] = Job(stage.device, queue, time, frozenset(), 0, memory), closed[n]
            closed[n] = [("sync", n)]
    for device in range(pipeline.num_devices):
        updated = [n for n, stage in enumerate(stages) if not stage.frozen]
        own_stages = [n for n in updated if stages[n].device == device]
        time = sum(stages[n].optimizer for n in own_stages)
        if own_stages and any(stages[n].optimizer for n in updated):
            waits = updated if pipeline.optimizer_barrier else own_stages
            job = Job(device, ("compute", device), time, frozenset(), 0, 0)
            jobs["optimizer", device] = job, [key for n in waits for key in closed[n]]
