"""What `ppopt frontier` reports: points and hand strategies with their figures."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.exact import plain, plain_or_none
from ppopt.report.schedule_report import ScheduleReport, report_evaluation, report_result
from ppopt.studies.baselines import best
from ppopt.studies.frontier import Frontier


class WithinFigures(NamedTuple):
    """The least memory for a value that is at most a share above the best found."""

    share: float
    limit: float
    value: float | None
    beyond: float | None
    """Largest limit that is proved not to be enough; None if unknown."""


class FrontierReport(NamedTuple):
    """A frontier with the figures of its points and hand strategies."""

    frontier: Frontier
    points: Sequence[ScheduleReport]
    """By ascending `limit`."""
    hands: Sequence[ScheduleReport]
    """Hand strategies by `memory`, then value."""
    within: WithinFigures | None = None
    """None unless a share is asked for."""


def report_frontier(found: Frontier, share: Fraction | None = None) -> FrontierReport:
    """Figures of a frontier; `share`: which slowdown relative to the best is acceptable."""
    schedules = [hand.schedule for hand in found.baselines]
    points = [
        report_result(
            point.result,
            best(schedules, point.result),
            limit=plain(point.limit),
            limit_proved=point.least,
        )
        for point in found.points
    ]
    hands = [
        report_evaluation(
            hand.schedule,
            hand.seconds,
            memory=plain(hand.memory),
            ratio_to_best=plain_or_none(hand.ratio),
        )
        for hand in found.baselines
    ]
    return FrontierReport(found, points, hands, _within(found, share))


def _within(found: Frontier, share: Fraction | None) -> WithinFigures | None:
    point = None if share is None else found.within(share)
    if share is None or point is None:
        return None
    value, beyond = point.result.value, found.beyond(share)
    return WithinFigures(
        plain(share), plain(point.limit), plain_or_none(value), plain_or_none(beyond)
    )
