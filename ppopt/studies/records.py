"""Record types of the storage, each with the checks of its columns.

A storage is untrusted input: SQLite accepts a value of any type in any column, a file may be
damaged, and other programs can write it. So every value is checked here: its type, its range, the
form of compressed JSON. The annotation of a field states its check (`read_record`).
`ppopt.studies.outcome` checks the content of a schedule. Every reader raises InputError, which
names the column.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from ppopt.errors import InputError, NotApplicableError
from ppopt.formats.documents import finite_float, parse_json
from ppopt.formats.fields import abbreviated, finite, flag, section, text, whole, within
from ppopt.formats.figures import Figure, LayerRun, Quantity, ScheduleFigures, declared
from ppopt.formats.schedule_json import LARGEST_FILE
from ppopt.schedule.origin import SEARCHED
from ppopt.solver.result import Status

LARGEST_RECORD = LARGEST_FILE
"""Maximum bytes of JSON in a compressed value: the maximum of a schedule file."""
MAX_DEPTH = 8
"""Maximum nesting of lists and objects in settings and figures of a row."""
LARGEST_INT = 2**63 - 1
"""Largest whole number of SQLite."""
COMPLETE, FAIL = "complete", "fail"
"""States of a trial, in Optuna's terms."""
Check = Callable[[object], Any]
Record = TypeVar("Record")


class DamagedError(InputError):
    """A record with values that ppopt does not write."""


@contextmanager
def damage(what: str, advice: str = "") -> Iterator[None]:
    """Context manager that turns errors of the block into DamagedError."""
    try:
        yield
    except (InputError, NotApplicableError) as error:
        suffix = f"; {advice}" if advice else ""
        raise DamagedError(f"{what} is damaged ({error}){suffix}") from None


def one_line(error: Exception) -> str:
    """Text of an error in one line."""
    return " ".join(str(error).split())


class StoredResult(NamedTuple):
    """A stored search or evaluation; see `ppopt.studies.outcome`."""

    key: Annotated[str, utf8]
    strategy: Annotated[str, utf8]
    status: Annotated[str, STATUS]
    closed: Annotated[bool, _closed]
    """Whether more time cannot improve the result."""
    time_limit: Annotated[float | None, optional(seconds)]
    """Time limit in seconds; None: the job has none."""
    workers: Annotated[int | None, optional(workers)]
    seconds: Annotated[float, seconds]
    version: Annotated[str, utf8]
    record: Annotated[bytes, _blob]

    @property
    def effort(self) -> tuple[bool, float]:
        """Effort as a sort key: (closed, seconds)."""
        return self.closed, self.time_limit or 0.0


@dataclass(frozen=True)
class SweepRow:
    """One row of a study: settings and result."""

    overrides: Mapping[str, Any]
    """Settings of the row, by the names of their flags with `_`."""
    figures: ScheduleFigures | None
    """None if the row failed or was not done."""
    failed: str | None
    """Why the row failed, in one line; None if it did not."""
    cached: bool
    """Whether the result was in the storage."""
    key: str | None = None
    """Key of the result in the storage; None if there is none."""

    @property
    def status(self) -> str | None:
        """`optimal`, `feasible`, `infeasible` or `unknown`; None if the row was not done."""
        return None if self.figures is None else self.figures.status

    @property
    def value(self) -> float | None:
        """Objective of the schedule, in the user's unit."""
        return None if self.figures is None else self.figures.value

    @property
    def lower_bound(self) -> float | None:
        """Lower bound of the schedules of the row."""
        return None if self.figures is None else self.figures.lower_bound

    @property
    def object(self) -> dict[str, Any]:
        """Figures as an object of JSON; empty if there are none."""
        return {} if self.figures is None else self.figures.to_object()


class StudyRecord(NamedTuple):
    """A study without its trials; `Storage.studies` counts them."""

    study_id: Annotated[int, _integer]
    name: Annotated[str, utf8]
    base: Annotated[str, utf8]
    """Identity of what all its trials share."""
    created: Annotated[str, utf8]
    asked: Annotated[tuple[str, ...], _asked]
    """Settings of the requested rows, each as text of JSON."""
    command: Annotated[str | None, optional(utf8)]
    """Last command that requested rows; None: they were requested from Python."""
    complete: int = 0
    failed: int = 0
    open: int = 0
    """Number of requested rows that have not ended."""


class Trial(NamedTuple):
    """Columns of a row of a study."""

    params: Annotated[dict[str, Any], _object]
    state: Annotated[str, one_of(COMPLETE, FAIL)]
    key: Annotated[str | None, optional(utf8)]
    row: Annotated[dict[str, Any], _object]


def canonical(value: object) -> str:
    """JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def packed(value: object) -> bytes:
    """Compressed JSON; its checksum shows whether it is complete."""
    return zlib.compress(json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def unpacked(value: object) -> object:
    """Reverse `packed`."""
    if not isinstance(value, bytes):
        raise InputError(f"{abbreviated(value)} is no compressed JSON")
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(value, LARGEST_RECORD)
        if not reader.eof or reader.unused_data:
            raise InputError("it is cut short, or too large")
        return parse_json(content.decode(), "JSON", finite_float)
    except (zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"it is no compressed JSON ({error})") from None


def renamed_strategy(settings: Any) -> Any:
    """Settings of a row as text of version 2, in which the strategy `searched` is `optimal`."""
    if not isinstance(settings, str):
        return settings
    return settings.replace('"strategy":"optimal"', f'"strategy":"{SEARCHED}"')


def renamed_rows(asked: Any) -> Any:
    """The same for the requested rows of a study; those that are damaged stay as they are."""
    try:
        return packed([renamed_strategy(row) for row in _asked(asked)]) if asked else asked
    except InputError:
        return asked


def read_record(record: Callable[..., Record], row: Sequence[object]) -> Record:
    """Record in a row of the storage, whose columns are its checked fields."""
    return record(**_checked(checks_of(record), row))


@cache
def checks_of(record: Callable[..., Any]) -> Mapping[str, Check]:
    """Checks of the fields of a record type, which their annotations state."""
    hints = get_type_hints(record, include_extras=True)
    annotated = {name: getattr(hint, "__metadata__", None) for name, hint in hints.items()}
    return {name: checks[0] for name, checks in annotated.items() if checks}


def trial_of(columns: Sequence[object]) -> SweepRow:
    """Row of a study in a row of `trials`, with the columns of `Trial`."""
    params, state, key, row = read_record(Trial, columns)
    if state == FAIL:
        failed = within("row", _reason, row)
        return SweepRow(params, None, failed, cached=True)
    if key is None:
        raise InputError("key: it is missing")
    figures = within("row", _figures, row)
    return SweepRow(params, figures, None, cached=True, key=key)


def columns_of(row: SweepRow) -> tuple[str, str, str | None, str]:
    """Values of the columns of `Trial`."""
    content = {"failed": row.failed} if row.figures is None else row.object
    state = FAIL if row.figures is None else COMPLETE
    return canonical(row.overrides), state, row.key, canonical(content)


def settings_of(asked: str) -> dict[str, Any]:
    """Settings of a row, from their text."""
    return _object(asked)


def _checked(checks: Mapping[str, Check], row: Sequence[object]) -> dict[str, Any]:
    return {
        name: within(name, check, value)
        for (name, check), value in zip(checks.items(), row, strict=True)
    }


def utf8(value: object) -> str:
    """Text in UTF-8: other bytes come from the storage as halves of surrogate pairs."""
    try:
        return text(value).encode().decode()
    except UnicodeEncodeError:
        raise InputError("it is no UTF-8 text") from None


def section_of(value: object, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check an object of JSON with exactly these keys; returns its values in their order."""
    fields = section(value, checks)
    return _checked(checks, [fields[name] for name in checks])


def one_of(*known: str) -> Check:
    """Check for one of some texts."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{abbreviated(value)} is unknown; it is {' or '.join(known)}")
        return str(value)

    return check


def optional(check: Check) -> Check:
    """Check for a value or null."""
    return lambda value: None if value is None else check(value)


def list_of(check: Check) -> Check:
    """Check for a list, each of whose entries is checked."""

    def check_all(value: object) -> list[Any]:
        if not isinstance(value, list):
            raise InputError(f"{abbreviated(value)} is not a list")
        return [check(entry) for entry in value]

    return check_all


def seconds(value: object) -> float:
    """Check for a finite number of seconds, at least 0."""
    if finite(value) < 0:
        raise InputError(f"{abbreviated(value)} is negative")
    return float(finite(value))


def whole_number(value: object) -> int:
    """Check for a whole number, at least 0."""
    return whole(value, 0, LARGEST_INT)


def workers(value: object) -> int:
    """Check for a number of workers."""
    return whole(value, 1, LARGEST_INT)


def _integer(value: object) -> int:
    return whole(value, -LARGEST_INT, LARGEST_INT)


def _closed(value: object) -> bool:
    return bool(whole(value, 0, 1))


def _blob(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise InputError(f"{abbreviated(value)} is no compressed JSON")
    return value


def _asked(value: object) -> tuple[str, ...]:
    return () if value is None else tuple(list_of(text)(unpacked(value)))


def _object(value: object) -> dict[str, Any]:
    """Read an object of JSON from its text: no number beyond floats, and limited depth."""
    content = parse_json(utf8(value), "JSON", finite_float)
    if not isinstance(content, dict):
        raise InputError(f"{abbreviated(content)} is not an object {{...}}")
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        entries = (entry.values() if isinstance(entry, dict) else entry for entry in level)
        below = list(chain.from_iterable(entries))
        for entry in below:
            if isinstance(entry, int) and not isinstance(entry, bool):
                finite(entry)
        level = [entry for entry in below if isinstance(entry, dict | list)]
    if level:
        raise InputError("lists or objects are nested too deeply")
    return content


def _reason(row: dict[str, Any]) -> str:
    return str(section_of(row, {"failed": text})["failed"])


def _figures(row: dict[str, Any]) -> ScheduleFigures:
    """Read the figures of a row that is done; those that an earlier version lacks are None."""
    return ScheduleFigures(
        **{figure.key: within(figure.key, _check_of(figure), row.get(figure.key))
           for figure in _FIGURES}
    )  # fmt: skip


def _check_of(figure: Figure) -> Check:
    """Check of the value of a figure; all but the status may be null."""
    if figure.quantity is Quantity.STATUS:
        return STATUS
    check = _CHECKS[figure.quantity]
    return optional(list_of(check) if figure.each else check)


def _run_of_layers(value: object) -> LayerRun:
    run = section(value, ("name", "first", "last"), ("modules",))
    return LayerRun(**_checked(_RUN, [run.get(key) for key in _RUN]))


def _placement(value: object) -> Any:
    return value if isinstance(value, str) else list_of(whole_number)(value)


STATUS = one_of(*Status)
"""Check for the status of a search."""
_RUN: Mapping[str, Check] = {
    "name": text,
    "first": whole_number,
    "last": whole_number,
    "modules": optional(list_of(text)),
}
_FIGURES = tuple(declared(ScheduleFigures).values())
_CHECKS: Mapping[Quantity, Check] = {
    Quantity.TIME: finite,
    Quantity.MEMORY: finite,
    Quantity.SHARE: finite,
    Quantity.RATE: finite,
    Quantity.SECONDS: finite,
    Quantity.COUNT: whole_number,
    Quantity.TEXT: text,
    Quantity.FLAG: flag,
    Quantity.LAYERS: list_of(_run_of_layers),
    Quantity.PLACEMENT: _placement,
}
