"""The page of a plan: its configurations, the best first, then the schedule of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ppopt.report.html import page
from ppopt.report.payload import embedded
from ppopt.report.plan_table import (
    beyond_words,
    gain_words,
    lacks,
    late_words,
    least_memory_words,
    more_memory_words,
    outside_words,
    space_words,
    use_words,
    value_words,
)
from ppopt.report.sections import html_table
from ppopt.report.words import NONE, headed, measured, number, objective_words, percent, spread
from ppopt.schedule.schedule import Schedule

TITLE = "Plan"
MOST_OPERATIONS = 100_000
"""Operations of all schedules that a page draws; above, it has those of the best configurations."""
_BADGES = {"optimal": "good", "infeasible": "bad"}
Shown = Mapping[str, Any]


def plan_page(found: Shown, schedules: Sequence[Schedule | None]) -> str:
    """One HTML page with the table of a plan and its schedules, one at least.

    `found` has the keys of `ppopt plan --json`, `schedules` are those of its rows, one each. The
    element `plan` holds `found` as JSON, without schedules and without what differs from run to
    run: `section` of a row names its schedule, which is `schedule-1` and so on.
    """
    shown = list(_drawn(schedules))
    sections = {place: f"schedule-{index}" for index, (place, _) in enumerate(shown, start=1)}
    rows = [row | {"section": sections.get(place)} for place, row in enumerate(found["rows"])]
    data = {
        key: value for key, value in found.items() if key not in ("schedule", "solve_seconds")
    } | {"rows": rows}
    opening = (
        f'<section class="plan">\n{_sentences(data)}\n'
        f'<div class="scroll" tabindex="0">{_table(data)}</div>\n'
        f"{_more(data)}\n"
        f'<script type="application/json" id="plan">{embedded(data)}</script>\n</section>'
    )
    made = [schedule for _, schedule in shown]
    name = made[0].pipeline.name
    title = f"{name}: {TITLE.lower()}" if name else TITLE
    return page(made, title=title, opening=opening)


def _drawn(schedules: Sequence[Schedule | None]) -> Iterator[tuple[int, Schedule]]:
    """The schedules that the page draws, each with the place of its row; the best in any case."""
    operations = 0
    for place, made in enumerate(schedules):
        if made is None:
            continue
        if operations and operations + len(made) > MOST_OPERATIONS:
            return
        operations += len(made)
        yield place, made


def _sentences(data: Shown) -> str:
    """The answer, what is proved of the whole space, and how much of it bounds alone ruled out."""
    best, time = data["rows"][0], data["time_unit"]
    words = {"optimal": "proved best of the whole space", "feasible": "best found"}
    lines = [
        f"Best: {_words(best)}, {number(best['batches'])} microbatches: {objective_words(data)} "
        f"{measured(data['value'], time)}, {words[data['status']]}",
        f"No configuration is below {measured(data['lower_bound'], time)}: gap "
        f"{percent(data['gap'])} over the whole space",
        data["proof"],
    ]
    if data["mem_limit"] is not None:
        limit = spread(data["mem_limit"], data["memory_unit"])
        lines.append(f"Memory limit of a device: {limit}")
    further = (
        *(gain_words, late_words, outside_words, least_memory_words),
        *(more_memory_words, space_words, beyond_words),
    )
    lines += filter(None, (words(data) for words in further))
    return "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in lines)


def _words(row: Shown) -> str:
    """A configuration in words: `1f1b, v/2, recompute none`."""
    strategy = [] if row["strategy"] == "optimal" else [row["strategy"]]
    return ", ".join([*strategy, _placed(row), f"recompute {row['recompute']}"])


def _placed(row: Shown) -> str:
    return f"{row['placement']}/{row['chunks']}" if row["chunks"] > 1 else str(row["placement"])


def _table(data: Shown) -> str:
    several = len(data["space"]["batches"]) > 1
    time = data["time_unit"]
    value = headed("per microbatch" if several else objective_words(data), time)
    head = (
        *("configuration", *(["microbatches"] if several else []), "status", value),
        *(headed("lower bound", time), headed("memory", data["memory_unit"]), "bubble rate"),
        *("partition", "beside the best"),
    )
    key = "_per_microbatch" if several else ""
    return html_table(head, (_row(place, row, data, key) for place, row in enumerate(data["rows"])))


def _row(place: int, row: Shown, data: Shown, key: str) -> tuple[str, ...]:
    words = escape(_words(row))
    if row["section"]:
        words = f'<a href="#{row["section"]}">{words}</a>'
    value, bound = row[f"value{key}"], row[f"bound{key}" if key else "lower_bound"]
    tone = _BADGES.get(row["status"], "warn" if row["status"] == "feasible" else "quiet")
    peaks, partition = row["peak_memory"], row["layout"] or _counts(row["partition"])
    return (
        f"<strong>{words}</strong>" if place == 0 else words,
        *([number(row["batches"])] if key else []),
        f'<span class="{tone}">{row["status"]}</span>',
        *(value_words(row, value), number(bound), number(max(peaks)) if peaks else NONE),
        percent(row["bubble_rate"]),
        escape(partition if value is not None else NONE),
        escape("best" if place == 0 else lacks(row, data)),
    )


def _counts(partition: Sequence[int] | None) -> str:
    return NONE if partition is None else " ".join(map(str, partition))


def _more(data: Shown) -> str:
    """What could not be set up, and how to use the best; folded away."""
    lines = [*use_words(data)]
    lines += [f"skipped {one['configuration']}: {one['reason']}" for one in data["skipped"]]
    if not lines:
        return ""
    text = escape("\n".join(lines))
    return f"<details><summary>How to use it</summary><pre>{text}</pre></details>"
