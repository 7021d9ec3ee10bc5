"""The page of a plan: its configurations, the best first, then the schedule of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ppopt.report.html import page
from ppopt.report.labels import objective_words
from ppopt.report.numbers import headed, measured, number, percent, rounded, spread
from ppopt.report.payload import embedded
from ppopt.report.plan_rows import PlanCells, has_batches, plan_rows, value_head
from ppopt.report.plan_words import (
    beyond_words,
    configuration_words,
    gain_words,
    late_words,
    least_memory_words,
    more_memory_words,
    outside_words,
    space_words,
    use_words,
    within_words,
)
from ppopt.report.sections import Tile, html_table, tiles
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
        f'<section class="plan">\n{_cards(data)}\n'
        f'<div class="scroll" tabindex="0">{_table(data)}</div>\n'
        f"{_sentences(data)}\n{_more(data)}\n"
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


def _cards(data: Shown) -> str:
    """The answer at a glance: configuration, value, bound, gain and memory."""
    best, time, memory = data["rows"][0], data["time_unit"], data["memory_unit"]
    proved = {"optimal": "proved best of the whole space", "feasible": "best found"}
    low = f"no configuration is below {measured(data['lower_bound'], time)}"
    limit = "no limit"
    if data["mem_limit"] is not None:
        limit = f"limit of a device: {spread(data['mem_limit'], memory)}"
    gain = gain_words(data).removeprefix("gain: ")
    first, _, rest = gain.partition(" than ")
    rows: list[Tile] = [
        (
            "best configuration",
            configuration_words(best),
            f"{number(best['batches'])} microbatches; {proved[data['status']]}",
            "",
        ),
        (objective_words(data), rounded(data["value"], time), low, measured(data["value"], time)),
        ("gap", percent(data["gap"]), "over the whole space", ""),
        *([("gain", first, f"than {rest}" if rest else "", "")] if gain else []),
        (
            "peak memory",
            rounded(max(best["peak_memory"]), memory),
            "; ".join(filter(None, (limit, least_memory_words(data), within_words(data)))),
            measured(max(best["peak_memory"]), memory),
        ),
        *_more_memory(data),
    ]
    return tiles(rows)


def _more_memory(data: Shown) -> Iterator[Tile]:
    """What more memory brings, if there is a limit."""
    more, value = data["more_memory"], data["value"]
    if more is not None:
        gain = 1 - more["value"] / value
        nothing = "nothing" if more["lower_bound"] == value else "nothing found"
        headline = f"{percent(gain)} faster" if gain else nothing
        yield "with more memory", headline, more_memory_words(data), ""


def _sentences(data: Shown) -> str:
    """What is proved, what there was no time for, and what was not searched; folded away."""
    further = (late_words, outside_words, space_words, beyond_words)
    lines = [data["proof"], *filter(None, (words(data) for words in further))]
    text = "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in lines)
    return f"<details><summary>What is proved, and what was not searched</summary>{text}</details>"


def _table(data: Shown) -> str:
    several, time = has_batches(data), data["time_unit"]
    head = (
        *("configuration", *(["microbatches"] if several else []), "status", value_head(data)),
        *(headed("lower bound", time), headed("memory", data["memory_unit"]), "bubble rate"),
        *("partition", "versus the best"),
    )
    rows = zip(plan_rows(data), data["rows"], strict=True)
    return html_table(head, (_row(cells, row["section"], several) for cells, row in rows))


def _row(cells: PlanCells, section: str | None, several: bool) -> tuple[str, ...]:
    words = escape(cells.configuration)
    if section:
        words = f'<a href="#{section}">{words}</a>'
    tone = _BADGES.get(cells.status, "warn" if cells.status == "feasible" else "quiet")
    return (
        f"<strong>{words}</strong>" if cells.is_best else words,
        *([cells.batches] if several else []),
        f'<span class="{tone}">{cells.status}</span>',
        *(cells.value, cells.bound, cells.memory, cells.bubble_rate),
        escape(cells.partition),
        escape(cells.versus_best),
    )


def _more(data: Shown) -> str:
    """What could not be set up, and how to use the best; folded away."""
    lines = [*use_words(data)]
    lines += [
        f"skipped {skipped['configuration']}: {skipped['reason']}" for skipped in data["skipped"]
    ]
    if not lines:
        return ""
    text = escape("\n".join(lines))
    return f"<details><summary>How to use it</summary><pre>{text}</pre></details>"
