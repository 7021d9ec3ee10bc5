"""Names as they are shown: kinds of operations, causes of idle time, links, strategies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from ppopt.problem.exact import plain
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.resources import Resource
from ppopt.problem.traits import Trait
from ppopt.report.numbers import number
from ppopt.schedule.idle import Cause

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.report.schedule_report import ScheduleReport

LONGEST_NAME = 80
"""Letters of a name that the page shows at most."""
MAX_LISTED = 16
"""Most microbatches that are listed."""
CAUSE_TEXTS = {
    Cause.WARM_UP: "warm-up",
    Cause.INPUT: "waiting for an input",
    Cause.LINK: "waiting for a link",
    Cause.MEMORY: "waiting for memory",
    Cause.ORDER: "the schedule itself waits",
    Cause.COOL_DOWN: "cool-down",
    Cause.COLLECTIVE: "waiting for weights or gradients",
    Cause.HOST: "waiting for the host",
}


def describe_rounding(pipeline: Pipeline) -> Iterator[str]:
    """Which numbers of the input were rounded, and by how much."""
    if pipeline.rounded:
        yield f"finer than 10^-6 and rounded to it: {', '.join(pipeline.rounded)}"
    if pipeline.rounded_by:
        changes = ", ".join(
            f"{field} by at most {plain(change)}" for field, change in pipeline.rounded_by
        )
        yield f"too fine to compute exactly, and rounded: {changes}"


def describe_links(mode: str | None) -> str:
    """What links are, if they are more than delays."""
    return LinkMode(mode or LinkMode.DELAY).label


def link_label(resource: Resource) -> str:
    """A link by its two devices, short as in the margin of a chart: `0–1`, or one way `0→1`."""  # noqa: RUF002
    return ("→" if resource.one_way else "–").join(map(str, resource.devices))  # noqa: RUF001


def link_title(resource: Resource) -> str:
    """A link by its two devices, and which way it carries."""
    source, destination = resource.devices
    if resource.one_way:
        return f"link from device {source} to device {destination}"
    return f"link of devices {source} and {destination}, both ways"


def describe_order(pipeline: Pipeline) -> str:
    """In which order the microbatches of the user's list run, if it was chosen; else empty."""
    if not isinstance(pipeline.order, tuple):
        return ""
    listed = ", ".join(map(str, pipeline.order[:MAX_LISTED]))
    return f"microbatch order {listed}{', ..' * (len(pipeline.order) > MAX_LISTED)}"


def describe_microbatches(pipeline: Pipeline) -> list[str]:
    """What every microbatch multiplies times and memory by, and its place in the user's list.

    Empty if the microbatches are alike.
    """
    if Trait.MICROBATCHES not in pipeline.traits:
        return []
    listed = pipeline.order if isinstance(pipeline.order, tuple) else range(pipeline.batches)
    return [
        f"microbatch {place} of the list: times x {number(times)}, memory x {number(memory)}"
        for place, (times, memory) in zip(listed, pipeline.factors, strict=True)
    ]


def joined(parts: Sequence[str]) -> str:
    """Parts of a sentence: `a, b and c`."""
    *firsts, last = parts
    return f"{', '.join(firsts)} and {last}" if firsts else last


def objective_name(objective: str | None) -> str:
    """The objective without a hyphen: `makespan` (also if there is none) or `device span`."""
    return (objective or "makespan").replace("-", " ")


def describe_skipped(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What was not evaluated, and why, a line each."""
    return (f"skipped {name}: {reason}" for name, reason in skipped)


def describe_causes(idle: Mapping[str, Sequence[float]]) -> str:
    """What the causes of idle time mean, by their labels; warm-up and cool-down are omitted."""
    ramps = (Cause.WARM_UP, Cause.COOL_DOWN)
    causes = [cause for cause in Cause if cause not in ramps and any(idle.get(cause.label, ()))]
    return "; ".join(f"{cause.label}: {CAUSE_TEXTS[cause]}" for cause in causes)


def clean(name: str) -> str:
    """A name without invisible letters: control characters, and marks of text direction."""
    return "".join(letter if letter.isprintable() else " " for letter in name)


def isolated(name: str) -> str:
    """A name as HTML: it cannot change the direction of other text; a very long one is cut."""
    cleaned = clean(name)
    if len(cleaned) <= LONGEST_NAME:
        return f"<bdi>{escape(cleaned)}</bdi>"
    return f'<bdi title="{escape(cleaned)}">{escape(cleaned[: LONGEST_NAME - 1])}…</bdi>'


def title(report: ScheduleReport) -> str:
    """Strategy that made a schedule."""
    strategy = report.strategy or "schedule"
    return f"{strategy}, predicted" if report.predicted else strategy
