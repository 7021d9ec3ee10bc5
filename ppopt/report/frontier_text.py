"""What a frontier says of memory, as text."""

from __future__ import annotations

from ppopt.formats.figures import known
from ppopt.report.frontier_report import FrontierReport
from ppopt.report.labels import objective_name
from ppopt.report.numbers import grouped, measured, percent
from ppopt.report.placement_text import explain_routes, placement_of
from ppopt.report.schedule_report import ScheduleReport

AT_MOST = "≤ "
"""Stands before a limit that is not proved to be the least for its value."""
OVER = " over"
"""Stands behind memory that is above a limit."""


def describe_frontier(found: FrontierReport) -> list[str]:
    """The least memory that works and the most that is worth having: a sentence each.

    Empty without points.
    """
    points, frontier = found.points, found.frontier
    if not points:
        return []
    least = measured(points[0].limit, frontier.pipeline.memory_unit)
    if not points[0].limit_proved:
        least = f"at most {least}, not proved"
    lines = [
        f"least memory that works: {least}; {frontier.proof}",
        _most_useful(found),
        *_within(found),
        *_faster_elsewhere(found),
        *explain_routes(found.hands),
    ]
    if not all(point.limit_proved for point in points):
        objective = objective_name(frontier.objective)
        lines.append(f"{AT_MOST.strip()}: less memory may reach the same {objective}")
    return lines


def _within(found: FrontierReport) -> list[str]:
    """The least memory for almost the best value, where a share was asked for."""
    within, pipeline = found.within, found.frontier.pipeline
    if within is None:
        return []
    value = measured(within.value, pipeline.time_unit)
    text = f"within {percent(within.share)} of the best: {value} in "
    text += measured(within.limit, pipeline.memory_unit)
    if within.beyond is None:
        return [f"{text}; perhaps less memory is enough"]
    return [f"{text}; not in {measured(within.beyond, pipeline.memory_unit)}, proved"]


def _most_useful(found: FrontierReport) -> str:
    """The most memory that is worth having in the placement, and how much of that is proved."""
    frontier, last = found.frontier, found.points[-1]
    pipeline, objective = frontier.pipeline, objective_name(frontier.objective)
    memory = measured(last.limit, pipeline.memory_unit)
    value = measured(last.value, pipeline.time_unit)
    if last.tokens_per_second is not None:
        value += f" ({grouped(last.tokens_per_second)} tokens/s)"
    within = "" if pipeline.limits is None else " within the pipeline's own limits"
    worth = "most memory worth having"
    if "placement" not in frontier.searched:
        worth += f" in placement {placement_of(last)}"
    if last.status != "optimal":
        return (
            f"{worth}: not known; the least {objective} found, {value} (gap "
            f"{percent(last.gap)}), takes {memory}{within}"
        )
    most = f"{memory}, proved" if frontier.enough_proved else f"at most {memory}, not proved"
    return f"{worth}: {most}; with any more the {objective} stays {value}{within}"


def _faster_elsewhere(found: FrontierReport) -> list[str]:
    """Lines for the best hand strategies outside the search that are faster than every point.

    One of another placement with no more routes, and one with a second route, for which devices
    hold the weights twice, if that is faster still.
    """
    last = found.points[-1]
    faster = sorted(
        (
            row
            for row in found.hands
            if _value(row) < _value(last)
            and row.fits_limit is not False
            and (row.placement, row.chunks, row.routes)
            != (last.placement, last.chunks, last.routes)
        ),
        key=lambda row: (_value(row), row.memory or 0),
    )
    two = next((row for row in faster if _routes(row) > _routes(last)), None)
    other = next((row for row in faster if _routes(row) <= _routes(last)), None)
    lines = [] if other is None else [f"faster in another placement: {_hand(other)}"]
    if two is not None and (other is None or _value(two) < _value(other)):
        lines.append(f"faster with two routes: {_hand(two)}")
    return lines


def _value(row: ScheduleReport) -> float:
    return known(row.value)


def _routes(row: ScheduleReport) -> int:
    return row.routes or 1


def _hand(hand: ScheduleReport) -> str:
    value = measured(hand.value, hand.time_unit)
    memory = measured(hand.memory, hand.memory_unit)
    return f"{hand.strategy}, {placement_of(hand)}, {value} in {memory}"
