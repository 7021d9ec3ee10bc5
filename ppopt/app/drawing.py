"""What an edit is answered with: the schedules of the chosen strategies, as parts of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ppopt.app.limits import Limits
from ppopt.app.query import CONFIG, FIELDS, MODEL, STRATEGIES, Query
from ppopt.cancellation import within
from ppopt.errors import InputError
from ppopt.formats import schedule_json, torch_csv
from ppopt.problem.settings import NAMED
from ppopt.report.html import page, page_parts
from ppopt.schedule.schedule import Schedule
from ppopt.studies.baselines import StrategyBatch

TITLE = "ppopt"
OPTIMUM = "optimum"
"""Name of the schedule of a search among those that are drawn."""


class Drawing:
    """The schedules of a query: those of its strategies, and the best one if it is known."""

    def __init__(self, query: Query, limits: Limits, optimum: Schedule | None = None) -> None:
        """Raises InputError if there is nothing to draw."""
        self.query = query
        pipeline = query.pipeline()
        limits.check(pipeline, len(query.strategies))
        timed: list[tuple[Schedule, float]] = []
        self.skipped: tuple[tuple[str, str], ...] = ()
        """Strategies that are left out, each with the reason."""
        if query.strategies:
            with within(limits.draw_seconds):
                batch = StrategyBatch(
                    [pipeline], query.objective, query.options, names=query.strategies
                )
                batch.evaluate(search_seconds=limits.choosing_seconds)
            timed, self.skipped = batch.schedules, batch.skipped
        self.schedules = {str(schedule.origin.strategy): schedule for schedule, _ in timed}
        """By the name of the strategy."""
        if optimum is not None:
            self.schedules[OPTIMUM] = optimum
        if not self.schedules:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.skipped)
            raise InputError(f"strategies: nothing to draw; {reasons or 'choose one'}")

    def parts(self) -> dict[str, Any]:
        """The parts of the page that depend on the schedules, as JSON has them."""
        parts = page_parts(list(self.schedules.values()), title=TITLE)
        return {
            **parts._asdict(),
            "command": self.query.command(),
            "skipped": dict(self.skipped),
            "drawn": list(self.schedules),
        }

    def file(self, form: str, name: str) -> str:
        """The text of a file: `html` has all schedules, `json` and `csv` have the one of a name.

        Raises InputError if there is no such file, NotApplicableError if PyTorch's format
        cannot express the schedule.
        """
        if form == "html":
            return page(list(self.schedules.values()))
        if form not in _FILES or name not in self.schedules:
            raise InputError(f"file: there is no {form[:20]} of {name[:60]}")
        return _FILES[form](self.schedules[name])


_FILES: Mapping[str, Callable[[Schedule], str]] = {
    "json": schedule_json.dumps,
    "csv": torch_csv.order_csv,
}
"""How the text of one schedule is made, by the end of the file's name."""


def field_of(error: Exception) -> str:
    """The field of the form that an error is about; empty if it names none."""
    word = str(error).split(":")[0].strip()
    if word in (MODEL, CONFIG, STRATEGIES):
        return word
    name = NAMED[word].name if word in NAMED else ""
    return CONFIG if name == "layers" else name if name in FIELDS else ""
