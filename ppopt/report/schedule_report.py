"""What commands and pages report of one schedule, or of a search that found none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ppopt.formats.figures import (
    Quantity,
    ScheduleFigures,
    exposed_time,
    figure,
    known,
    measured,
    placed,
)
from ppopt.formats.origin_json import json_object, members_of, number
from ppopt.problem.exact import plain
from ppopt.schedule.communication import Loss
from ppopt.schedule.idle import by_cause
from ppopt.schedule.imbalance import Imbalance, imbalance
from ppopt.schedule.origin import Certificate, HintRecord, Origin
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Result
from ppopt.versions import versions

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.studies.baselines import Baseline
    from ppopt.studies.best_choice import StrategyChoice
    from ppopt.studies.robustness import Jitter


def _baseline_object(baseline: Baseline) -> dict[str, Any]:
    layers = ("partition", "layout", "recompute", "recomputed_layers")
    cut = ScheduleFigures.of(None, baseline.pipeline)
    return {
        **_read(baseline, "strategy", "value", "speedup", "skipped", "chosen"),
        **cut.to_object((*layers, "offload", "offloaded_layers")),
    }


def _other_placement_object(baseline: Baseline) -> dict[str, Any]:
    return {
        **_read(baseline, "strategy", "value", "speedup"),
        "placement": baseline.pipeline.resolved_placement,
        "chunks": baseline.pipeline.num_chunks,
        "routes": baseline.pipeline.routes,
    }


def _partition_search_object(choice: StrategyChoice) -> dict[str, Any]:
    """How the partition of a strategy was chosen.

    The least value of the strategy over all partitions within the memory limits lies between the
    bound and its value. Without a bound nothing within the limits was found; `proved` then says
    whether there is nothing.
    """
    names = ("lower_bound", "gap", "proved", "partitions")
    return {**_read(choice, *names), "evaluated": choice.evaluations}


def _jitter_object(run: Jitter) -> dict[str, Any]:
    rounded = {name: round(getattr(run, name), 6) for name in ("mean", "p95", "degradation")}
    return _read(run, "deviation", "samples", "seed") | rounded


def _read(record: object, *names: str) -> dict[str, Any]:
    return json_object(members_of(record, *names))


class OperationsAlone(NamedTuple):
    """Makespan over streams in the order of a schedule's times, and as PyTorch lowers a file."""

    own: float
    lowered: float
    loss: float

    @classmethod
    def of(cls, loss: Loss, schedule: Schedule) -> Self:
        """Figures of the loss of a schedule, in the user's unit."""
        time = schedule.pipeline.ticks.time
        own, lowered = plain(time(loss.own)), plain(time(loss.lowered))
        return cls(own, lowered, round(loss.share, 6))


_Q = Quantity


@dataclass(frozen=True, kw_only=True)
class ScheduleReport(ScheduleFigures):
    """All figures of a schedule that a command or a page may show; None if there is none."""

    routes: int | None = figure("routes", _Q.COUNT, "1, or 2 of opposite direction")
    versions: Mapping[str, str] | None = figure("versions", _Q.RECORD, "of programs")
    hint: HintRecord | None = figure(
        "your schedule", _Q.RECORD, "the schedule that the search started from", optional=True
    )
    options: Mapping[str, int] | None = figure("options", _Q.RECORD, "options of the strategy")
    idle: Mapping[str, Sequence[float]] | None = figure(
        "idle", _Q.RECORD, "idle time by cause, of every device"
    )
    imbalance: Imbalance | None = figure(
        "imbalance", _Q.RECORD, "idle time that uneven work forces"
    )
    baseline: Baseline | None = figure(
        "gain", _Q.RECORD, "the best baseline of the same placement", form=_baseline_object
    )
    elsewhere: Baseline | None = figure(
        "other placement",
        _Q.RECORD,
        "a better baseline of another placement",
        form=_other_placement_object,
    )
    partition_search: StrategyChoice | None = figure(
        "best partition",
        _Q.RECORD,
        "how the partition was chosen",
        optional=True,
        form=_partition_search_object,
    )
    operations_alone: OperationsAlone | None = figure(
        "for PyTorch", _Q.RECORD, "what a file of operations alone loses", optional=True
    )
    jitter: Jitter | None = figure(
        "under jitter",
        _Q.RECORD,
        "the objective under random times",
        optional=True,
        form=_jitter_object,
    )
    schedule: Schedule | None = figure("schedule", _Q.RECORD, "the schedule in its native form")
    verified: bool | None = figure("verified", _Q.FLAG, "whether the verifier accepted it")
    ratio_to_best: float | None = figure("vs best", _Q.RATIO, "value over that of the best")
    ratio_to_optimum: float | None = figure("vs opt.", _Q.RATIO, "value over the optimum")
    optimum_proved: bool | None = figure("proved", _Q.FLAG, "whether the optimum is proved")
    communication: int | None = figure("transfers", _Q.COUNT, "tensors sent between devices")
    limit: float | None = figure("memory", _Q.MEMORY, "memory limit of every device")
    limit_proved: bool | None = figure("proved", _Q.FLAG, "whether no smaller limit is enough")
    memory: float | None = figure("memory", _Q.MEMORY, "largest device peak")
    pipeline: Pipeline | None = None
    """Pipeline of the schedule or of the search."""
    certificate: Certificate | None = None
    """What the lower bound consists of."""
    checked: bool = True
    """False: a file claims a bound that the re-checker does not confirm."""
    stopped_early: bool = False
    """Whether Ctrl-C ended the search."""
    predicted: bool = False
    """Whether it is shown next to measured schedules."""

    @property
    def largest_peak(self) -> float | None:
        """The largest peak of a device."""
        return max(self.peak_memory) if self.peak_memory else None

    @property
    def place(self) -> tuple[float, float]:
        """Memory and value of a point of a frontier, or of a baseline."""
        return known(self.memory if self.limit is None else self.limit), known(self.value)


def report_result(
    result: Result, baseline: Baseline | None = None, elsewhere: Baseline | None = None, **more: Any
) -> ScheduleReport:
    """Report of a search; figures are None if there is no schedule.

    `baseline` is the best baseline of the placement within the limit, `elsewhere` a better one of
    another placement. `more` are further fields of the report.
    """
    schedule, pipeline = result.schedule, result.pipeline
    return ScheduleReport.of(
        schedule,
        pipeline,
        **{
            **_claims(result.origin()),
            **_of_run(schedule, pipeline, result.solve_seconds),
            "strategy": None,
            "objective": result.objective.value,
            "value": number(result.value),
            "baseline": baseline,
            "elsewhere": elsewhere,
            **more,
        },
    )


def _of_run(schedule: Schedule | None, pipeline: Pipeline, seconds: float) -> dict[str, Any]:
    """Fields of a command that made a schedule, or none, in so many seconds."""
    return {
        "idle": None if schedule is None else by_cause(schedule),
        "imbalance": None if schedule is None else imbalance(schedule),
        "routes": pipeline.routes,
        "solve_seconds": round(seconds, 3),
        "schedule": schedule,
        "pipeline": pipeline if schedule is None else schedule.pipeline,
        "verified": schedule is not None,
    }


def report_evaluation(
    schedule: Schedule,
    seconds: float,
    *,
    jitter: Jitter | None = None,
    choice: StrategyChoice | None = None,
    lowering: Loss | None = None,
    **more: Any,
) -> ScheduleReport:
    """Report of a strategy, or of an order that was read.

    An evaluation is not random and runs on one thread: seed 0, workers 1. `more` are further fields
    of the report.
    """
    fields = {
        **_of_run(schedule, schedule.pipeline, seconds),
        **members_of(schedule.origin, "strategy", "status"),
        "options": dict(schedule.origin.options),
        "partition_search": choice,
        "operations_alone": None if lowering is None else OperationsAlone.of(lowering, schedule),
        "jitter": jitter,
        "seed": 0,
        "workers": 1,
        "versions": versions(),
        **more,
    }
    if choice is not None:
        fields["imbalance"] = fields["imbalance"]._replace(relief=None)
    return ScheduleReport.of(schedule, schedule.pipeline, **fields)


def report_caption(schedule: Schedule, **more: Any) -> ScheduleReport:
    """Report of a schedule by itself: figures that take little time, and claims of its origin."""
    fields = {**measured(schedule), **_checked_claims(schedule), "pipeline": schedule.pipeline}
    return ScheduleReport(**fields, schedule=schedule, **more)


def report_schedule(schedule: Schedule) -> ScheduleReport:
    """The same, for a page, with figures that take time."""
    pipeline = schedule.pipeline
    more = {"imbalance": imbalance(schedule), "routes": pipeline.routes, **placed(pipeline)}
    return report_caption(schedule, exposed=exposed_time(schedule), **more)


def _claims(origin: Origin) -> dict[str, Any]:
    """Fields that an origin states, but for the objective and its value."""
    names = ("strategy", "status", "gap", "proof", "certificate")
    more = ("seed", "workers", "time_limit", "versions", "hint")
    return {
        **members_of(origin, *names, *more),
        **_read(origin, "lower_bound", "backward_kind"),
    }


def _checked_claims(schedule: Schedule) -> dict[str, Any]:
    """The claims of an origin; of a file's, the re-checker says whether the bound is confirmed."""
    stated = _claims(schedule.origin)
    if not schedule.origin.from_file:
        return stated
    del stated["certificate"]
    from ppopt.rechecker import confirmed  # noqa: PLC0415  loads on use

    reason = confirmed(schedule)
    if reason is None:
        return stated | {"checked": False}
    return stated | {"proof": reason}
