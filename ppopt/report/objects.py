"""The objects that commands print with --json.

They hold schedules as they are. Only a writer of JSON turns them into their native form
(`ppopt.formats.schedule_json.schedule_to_object`): that takes long, and tables do not need it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ppopt.formats import origin_json
from ppopt.formats.figures import METRICS, PLACED, SEARCHED, ScheduleFigures
from ppopt.formats.origin_json import json_object, members_of
from ppopt.problem.exact import plain
from ppopt.report.headline_table import headline_object
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule, Violation
from ppopt.verifier.measured_steps import is_measured

if TYPE_CHECKING:
    from ppopt.rechecker import Recheck
    from ppopt.report.comparison_report import ComparisonReport
    from ppopt.report.frontier_report import FrontierReport
    from ppopt.report.schedule_report import ScheduleReport

SCHEMA = 1
TIMES = ("solve_seconds", "seconds")
"""Keys of values that differ from run to run."""
_END = ("seed", "workers", "versions")
RESULT = (
    *SEARCHED,
    *METRICS,
    *("idle", "backward_kind", "imbalance", "baseline", *PLACED, "routes", *_END, "hint"),
    *("solve_seconds", "schedule", "verified"),
)
"""Keys of a search; `hint` is there if the search started from a schedule."""
EVALUATION = (
    *("strategy", "status", "objective", "value", *METRICS, "idle", "imbalance", "fits_limit"),
    *("options", *PLACED, "routes", "partition_search", "operations_alone", *_END),
    *("solve_seconds", "jitter", "schedule", "verified"),
)
"""Keys of an evaluation: those of a search without bound and proof. `partition_search` is there if
the partition was chosen, `jitter` with random times, and `operations_alone` if transfers take time
and PyTorch can run the order."""
_COMPARED = (
    *("jitter", "strategy", "fits_limit", "ratio_to_best", "ratio_to_optimum", "optimum_proved"),
    "communication",
)
"""Further keys of a row of a comparison."""


def result_object(report: ScheduleReport) -> dict[str, Any]:
    """Object of `ppopt solve`."""
    return {"schema": SCHEMA, **report.to_object((*RESULT, "elsewhere"))}


def evaluation_object(report: ScheduleReport) -> dict[str, Any]:
    """Object of `ppopt eval`."""
    return {"schema": SCHEMA, **report.to_object(EVALUATION)}


def comparison_object(report: ComparisonReport) -> dict[str, Any]:
    """Object of `ppopt compare`: its search, its headline, and a row for every schedule.

    With random times, `steadiest` names the strategy that degrades least, and `fragile` the best
    strategy on paper and the one that is better on average, or is null.
    """
    search, robustness = report.searches[0], dict[str, Any]()
    if report.steadiest is not None:
        names = ("best", "rival")
        pair = [row.strategy for row in report.fragile or ()]
        fragile = dict(zip(names, pair, strict=True)) if pair else None
        robustness = {"steadiest": report.steadiest.strategy, "fragile": fragile}
    return {
        "schema": SCHEMA,
        **search.to_object((*SEARCHED, "time_unit", "memory_unit", "link_mode")),
        **headline_object(report.headline),
        "rows": [
            {
                "schema": SCHEMA,
                **row.to_object((*(RESULT if row.options is None else EVALUATION), *_COMPARED)),
            }
            for row in report.rows
        ],
        "skipped": _skipped(report.skipped),
        **robustness,
    }


def without(member: Any, keys: Collection[str]) -> Any:
    """A member of JSON without some keys, at any depth."""
    if isinstance(member, dict):
        return {key: without(value, keys) for key, value in member.items() if key not in keys}
    return [without(value, keys) for value in member] if isinstance(member, list) else member


def _skipped(skipped: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"strategy": name, "reason": reason} for name, reason in skipped]


def frontier_object(report: FrontierReport) -> dict[str, Any]:
    """Object of `ppopt frontier`.

    Everything holds within `mem_limit`, the pipeline's own limits. `points`, by ascending limit:
    the object of `ppopt solve` within a `limit`, and whether that limit is proved to be the least
    for its value (`limit_proved`). `searched`: what was chosen with every schedule. `bounds`: no
    schedule within a `limit` is below its `lower_bound`. `placements` names those that were
    searched, if there are several. `strategies`: the object of `ppopt eval`,
    its largest peak (`memory`), and its ratio to the best schedule within that memory. `within`
    exists where a share is asked for: the least `limit` of a point that is at most so much slower
    than the best found, its `value`, and the largest limit proved not to do (`beyond`, or null).
    """
    frontier = report.frontier
    minimum, enough, provenance = frontier.min_memory_point, frontier.enough, frontier.provenance
    pipeline = ScheduleFigures.of(None, frontier.pipeline)
    return json_object(
        {
            "schema": SCHEMA,
            "status": frontier.status.value,
            "objective": frontier.objective.value,
            "proof": frontier.proof,
            **pipeline.to_object(("mem_limit", "time_unit", "memory_unit")),
            **members_of(frontier, "searched", "placements"),
            "link_mode": frontier.pipeline.link_mode.value,
            "least_limit": minimum and minimum.limit,
            "least_limit_proved": minimum is not None and minimum.limit_proved,
            "useful_limit": enough and enough.limit,
            "useful_limit_proved": frontier.enough_proved,
            **({} if report.within is None else {"within": report.within}),
            "points": [
                {"schema": SCHEMA, **point.to_object((*RESULT, "limit", "limit_proved"))}
                for point in report.points
            ],
            "bounds": [{"limit": limit, "lower_bound": bound} for limit, bound in frontier.bounds],
            "strategies": [
                {"schema": SCHEMA, **baseline.to_object((*EVALUATION, "memory", "ratio_to_best"))}
                for baseline in report.baselines
            ],
            "skipped": _skipped(frontier.skipped),
            "backward_kind": frontier.backward_kind.value,
            **members_of(provenance, "seed", "workers", "versions"),
            "solve_seconds": round(frontier.solve_seconds, 3),
        }
    )


def verification_object(
    schedule: Schedule, violations: Sequence[Violation], bound: Recheck | None = None
) -> dict[str, Any]:
    """Object of `ppopt verify`: the violations, or the figures if there are none.

    `fits_limit` is as in `ppopt eval`, which reports the limit that `ppopt verify` enforces.
    `bound` exists where the re-checker has checked the bound.
    """
    pipeline = schedule.pipeline
    figures = (
        ScheduleFigures.of(None, pipeline, mem_limit=None)
        if violations
        else ScheduleFigures.of(schedule, pipeline)
    )
    return {
        "schema": SCHEMA,
        "verified": not violations,
        "measured": is_measured(schedule),
        "fits_limit": all(violation.rule is not Rule.MEMORY for violation in violations),
        "violations": [
            {
                "rule": violation.rule.value,
                "ops": [str(op) for op in violation.ops],
                "device": violation.device,
                "time": None
                if violation.time is None
                else plain(pipeline.ticks.time(violation.time)),
                "message": violation.message,
            }
            for violation in violations
        ],
        **figures.to_object((*METRICS, *PLACED)),
        **({} if bound is None else {"bound": _bound(schedule, bound)}),
    }


def _bound(schedule: Schedule, recheck: Recheck) -> dict[str, Any]:
    from ppopt.formats.schedule_json import schedule_to_object  # noqa: PLC0415  loads on use

    counterexample = recheck.counterexample
    return {
        "lower_bound": origin_json.number(schedule.origin.lower_bound),
        "verdict": recheck.verdict.value,
        "reason": recheck.reason,
        "devices": list(recheck.devices),
        "seconds": round(recheck.seconds, 3),
        "counterexample": None if counterexample is None else schedule_to_object(counterexample),
    }
