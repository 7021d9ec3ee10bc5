"""Show and write the rows of sweeps and the studies of a storage."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ppopt.cli import output
from ppopt.cli.files import Target
from ppopt.cli.streams import note
from ppopt.errors import InputError
from ppopt.formats.origin_json import members_of
from ppopt.report import table
from ppopt.report.columns import Column, Grid, left
from ppopt.report.study import study_page
from ppopt.studies import outcome
from ppopt.studies.records import DamagedError, StudyRecord, SweepRow
from ppopt.studies.storage import Storage
from ppopt.studies.sweep import Study

if TYPE_CHECKING:
    from ppopt.schedule.schedule import Schedule

MAX_SHOWN = 200
"""Rows of a table on the terminal; files hold all."""
MAX_OPEN = 20
"""Rows that were not done that are named on the terminal."""
_SCHEMA = 1
_COLUMNS: tuple[Column[StudyRecord], ...] = (
    left("study", attrgetter("name"), wraps=True),
    left("done", lambda study: str(study.complete)),
    left("failed", lambda study: str(study.failed)),
    left("open", lambda study: str(study.open)),
    left("created", attrgetter("created")),
)
Object = dict[str, Any]
"""An object of JSON."""


def show_study(targets: Sequence[Target], study: Study, *, as_json: bool, quiet: bool) -> int:
    """Show the rows of a sweep; return the exit code of the files."""

    def page() -> str:
        with Storage(study.storage, readonly=True) as storage:
            return _page(study.name, study.rows, study.open, storage)

    document = of_study(study)
    code = _write(targets, document, page)
    if as_json:
        output.print_json(document)
    elif not quiet:
        _print(study)
    for reason in sorted(set(study.damaged)):
        note(f"note: {study.damaged.count(reason)} made again: {reason}")
    if study.not_stored is not None:
        note(f"error: {study.not_stored}")
    return code


def of_study(study: Study) -> Object:
    """Object of `ppopt sweep`."""
    return {
        "schema": _SCHEMA,
        "study": study.name,
        **members_of(study, "storage", "done", "cached", "failed", "open"),
        "rows": [_of_row(row) | {"cached": row.cached} for row in study.rows],
    }


def _of_row(row: SweepRow) -> Object:
    return {
        "overrides": dict(row.overrides), "status": None, **row.object, "failed": row.failed,
    }  # fmt: skip


def _print_rows(rows: Sequence[SweepRow]) -> None:
    first_rows = rows[:MAX_SHOWN]
    output.print_parts([table.sweep_table(first_rows), *table.describe_failures(first_rows)])


def _print(study: Study) -> None:
    _print_rows(study.rows)
    if len(study.rows) > MAX_SHOWN:
        print(f"{len(study.rows) - MAX_SHOWN} more rows; -o FILE.csv writes all")
    left = f", {study.open} open: the same command continues" if study.open else ""
    print(
        f"{study.done} of {len(study.rows)} rows done, {study.cached} of them from the storage; "
        f"{study.failed} failed{left}\nstudy {study.name} in {study.storage}"
    )


def list_studies(storage: Storage, *, as_json: bool, quiet: bool) -> int:
    """List the studies of a storage, a line each."""
    studies = storage.studies()
    if as_json:
        names = ("base", "created", "failed", "command", "open")
        rows = [
            {"study": study.name, "done": study.complete, **members_of(study, *names)}
            for study in studies
        ]
        document = {"schema": _SCHEMA, "storage": storage.url, "results": storage.results()}
        output.print_json(document | {"studies": rows})
    elif not quiet:
        output.print_table(Grid(_COLUMNS, studies))
        print(f"{storage.results()} results in {storage.path.absolute()}")
        for study in filter(lambda study: study.open, studies):
            print(f"to continue {study.name}: {_continue(study)}")
        print("`ppopt studies show NAME` has the rows of a study")
    return 0


def show_trials(
    storage: Storage, name: str, targets: Sequence[Target], *, as_json: bool, quiet: bool
) -> int:
    """Show the rows of a study, sorted by their settings; return the exit code of the files."""
    rows = sorted(storage.trials(name), key=_by_settings)
    failed = sum(row.failed is not None for row in rows)
    left = storage.open_rows(name)
    counts = {"done": len(rows) - failed, "failed": failed, "open": len(left)}
    document = {
        "schema": _SCHEMA, "study": name, "storage": storage.url, **counts,
        "rows": list(map(_of_row, rows)), "open_rows": left,
    }  # fmt: skip
    code = _write(targets, document, lambda: _page(name, rows, len(left), storage))
    if as_json:
        output.print_json(document)
    elif not quiet:
        _print_rows(rows)
        print(f"{counts['done']} rows done, {failed} failed, {len(left)} open")
        for overrides in left[:MAX_OPEN]:
            print("open: " + " ".join(f"{key}={value}" for key, value in overrides.items()))
        if len(left) > MAX_OPEN:
            print(f"{len(left) - MAX_OPEN} more are open; --json has them")
        if left:
            (study,) = (known for known in storage.studies() if known.name == name)
            print(f"to continue: {_continue(study)}")
    return code


def _continue(study: StudyRecord) -> str:
    """The command that does the rows that are left."""
    return study.command or "run the same sweep again"


def _by_settings(row: SweepRow) -> list[tuple[bool, float, str]]:
    """Order of rows: by one setting after the other, numbers by value and before text."""
    return [
        (False, value, "") if isinstance(value, int | float) else (True, 0, json.dumps(value))
        for _, value in sorted(row.overrides.items())
    ]


def _page(name: str, rows: Sequence[SweepRow], num_open: int, storage: Storage) -> str:
    """The page of a study; raises InputError if there is no schedule to show."""

    def schedule_of(row: SweepRow) -> Schedule | None:
        try:
            stored = None if row.key is None else storage.result(row.key)
            limits = None if row.figures is None else row.figures.mem_limit
            return stored and outcome.schedule_of(stored, limits)
        except DamagedError as error:
            note(f"note: left out of the page: {error}")
            return None

    page = study_page(name, rows, schedule_of, num_open=num_open)
    if page is None:
        raise InputError("output: a page shows schedules, and no row has one; write .csv or .json")
    return page


def _write(targets: Sequence[Target], document: Object, page: Callable[[], str]) -> int:
    return output.write_targets(
        targets,
        page=page,
        as_json=lambda: json.dumps(document, allow_nan=False) + "\n",
        order=lambda: csv_of(document["rows"]),
    )


def csv_of(rows: Sequence[Object]) -> str:
    """Rows as comma-separated values: settings that vary, then figures; lists as JSON."""
    # settings that vary keep the value that was given
    flat = [{**row, **row["overrides"]} for row in rows]
    varying = [name for row in rows for name in row["overrides"]]
    names = dict.fromkeys([*varying, *(name for row in flat for name in row)])
    del names["overrides"]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in flat:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | dict) else value
