"""The headline of a study: the current schedule, the best one that a runtime runs, the best one.

Every row says its gain over the current schedule, and which decisions differ from the row above.
Tables, pages and JSON read these rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.formats import megatron_schedule, primus_schedule, torch_csv, trainer_partition
from ppopt.problem.exact import ratio
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import objective_value

CURRENT, OPTIMUM, BEST = "current", "optimum", "best found"
"""Labels of the first row and of the last, which is `OPTIMUM` only if that is proved."""
RUNTIME_NAMES = {"torch": "PyTorch", "megatron": "Megatron-LM", "primus": "Primus"}
"""Runtimes and their names."""
RUNNABLE = {runtime: f"on {name}" for runtime, name in RUNTIME_NAMES.items()}
"""Labels of the row that a runtime runs."""
DEFAULT_RUNTIME = "torch"


class BestSchedule(NamedTuple):
    """The best schedule of a study, and what is proved of it."""

    schedule: Schedule
    lower_bound: Fraction | None
    """Lower bound of all schedules that were searched, in the user's unit; None: there is none."""

    def is_proved(self, objective: Objective) -> bool:
        """Whether no schedule is better."""
        return objective_value(self.schedule, objective) == self.lower_bound


class HeadlineRow(NamedTuple):
    """One row of a headline; times in the user's unit."""

    label: str
    """`CURRENT`, one of `RUNNABLE`, `OPTIMUM` or `BEST`."""
    schedule: Schedule
    value: Fraction
    """Objective of the schedule."""
    gain: float | None
    """By which share its throughput exceeds that of the first row; None: the first row itself, or
    there is no current schedule."""
    changes: tuple[str, ...]
    """Names of the decisions that differ from the row above; empty for the first row."""
    proved: bool
    """Whether it is proved that no schedule of the study is better."""
    lower_bound: Fraction | None = None
    """Lower bound of all schedules that were searched; of the last row only."""

    @property
    def per_microbatch(self) -> Fraction:
        """Value per microbatch."""
        return self.value / self.schedule.pipeline.batches


class Headline(NamedTuple):
    """The first rows of a study; a row is None if there is no such schedule."""

    runtime: str = RUNTIME_NAMES[DEFAULT_RUNTIME]
    """Name of the runtime that runs the second row."""
    current: HeadlineRow | None = None
    """What the user has."""
    runnable: HeadlineRow | None = None
    """The best schedule that the runtime runs."""
    best: HeadlineRow | None = None
    """The best schedule."""

    def within_bound(self, lower_bound: Fraction | None) -> Headline:
        """The rows with a bound that covers more schedules, which may prove less of the best."""
        best = self.best
        if best is None or lower_bound == best.value:
            return self
        runnable = self.runnable and self.runnable._replace(proved=False)
        unproved = best._replace(label=BEST, proved=False, lower_bound=lower_bound)
        return self._replace(runnable=runnable, best=unproved)

    @property
    def rows(self) -> tuple[HeadlineRow, ...]:
        """The rows that there are, in this order."""
        return tuple(row for row in (self.current, self.runnable, self.best) if row is not None)


def headline(
    current: Schedule | None,
    schedules: Iterable[Schedule],
    best: BestSchedule | None,
    objective: Objective,
    runtime: str = DEFAULT_RUNTIME,
) -> Headline:
    """The headline of a study with these schedules within the limits, one of them the best.

    Schedules are compared by their values per microbatch. Of several best ones that the runtime
    runs, the best schedule of the study comes first.
    """

    def per_microbatch(schedule: Schedule) -> Fraction:
        return objective_value(schedule, objective) / schedule.pipeline.batches

    best_schedule = None if best is None else best.schedule
    proved = best is not None and best.is_proved(objective)

    def row(label: str, schedule: Schedule, above: Schedule | None = None) -> HeadlineRow:
        gain, time = None, per_microbatch(schedule)
        if current is not None and label != CURRENT and time:
            gain = ratio(per_microbatch(current) - time, time)
        changes = () if above is None else changed_decisions(above, schedule)
        value = objective_value(schedule, objective)
        return HeadlineRow(
            label, schedule, value, gain, changes, proved and schedule is best_schedule
        )

    of_study = [*schedules] if best_schedule is None else [best_schedule, *schedules]
    candidates = sorted(of_study, key=per_microbatch)
    runnable = next((schedule for schedule in candidates if runs_on(runtime, schedule)), None)
    last = None
    if best is not None:
        above = current if runnable is None else runnable
        last = row(OPTIMUM if proved else BEST, best.schedule, above)
        last = last._replace(lower_bound=best.lower_bound)
    return Headline(
        RUNTIME_NAMES[runtime],
        None if current is None else row(CURRENT, current),
        None if runnable is None else row(RUNNABLE[runtime], runnable, current),
        last,
    )


def runs_on(runtime: str, schedule: Schedule) -> bool:
    """Whether a runtime runs a schedule in its order and with its times.

    PyTorch runs the operations of an overlapped pair one after the other, so it runs no pair whose
    duration is stated. Megatron-LM runs orders of its own only. Primus runs any order of the
    placements that it has.
    """
    pipeline = schedule.pipeline
    with suppress(NotApplicableError):
        if runtime == "megatron":
            if pipeline.model is not None:
                group_size = megatron_schedule.stated_group_size(schedule)
                trainer_partition.megatron_arguments(pipeline, group_size)
            return megatron_schedule.runs_order(schedule)
        if runtime == "primus":
            primus_schedule.check_runs(schedule)
            return True
        torch_csv.check_pipeline(pipeline)
        return pipeline.overlap is None or not (schedule.pair != ALONE).any()
    return False


# What differs between two schedules.


def changed_decisions(before: Schedule, after: Schedule) -> tuple[str, ...]:
    """Names of the decisions that differ between two schedules."""
    old, new = _decisions(before.pipeline), _decisions(after.pipeline)
    differs = {name: old[name] != new[name] for name in old}
    differs["placement"] &= before.pipeline.hosts != after.pipeline.hosts
    differs["order"] = not _same_order(before, after)
    return tuple(name for name, is_changed in differs.items() if is_changed)


def _decisions(pipeline: Pipeline) -> dict[str, object]:
    """Decisions of a pipeline, but for the order."""
    model = pipeline.model
    layers = () if model is None else model.layers
    return {
        "microbatches": pipeline.batches,
        "placement": pipeline.resolved_placement,
        "chunks": (pipeline.num_stages, pipeline.num_devices),
        "routes": pipeline.routes,
        "slices": pipeline.num_slices,
        "partition": pipeline.counts,
        "recompute": [layer.recompute for layer in layers],
        "offload": [layer.offload for layer in layers],
        "microbatch order": pipeline.order if isinstance(pipeline.order, tuple) else (),
    }


def _same_order(before: Schedule, after: Schedule) -> bool:
    """Whether every device computes the same operations in the same order."""
    columns = [
        (table.device, table.kind, table.stage, table.microbatch, table.slice, table.seconds)
        for table in (before.compute, after.compute)
    ]
    return all(map(np.array_equal, *columns))
