"""The aims of derived costs, each met or missed by the runs that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import NamedTuple

from benchmarks.derived_measured.outcomes import (
    Outcome,
    calibrated,
    calibrated_by_three,
    percent,
)
from benchmarks.derived_measured.runs import SIMUMAX
from benchmarks.record import table

GPUS_PER_NODE = 8
ENOUGH = 5
"""Rows of a machine from which three of them may be calibrated, and others are left."""


class Aim(NamedTuple):
    """A limit of a mean absolute error, and the errors found."""

    what: str
    limit: float
    errors: Sequence[float]
    besides: str = ""
    """A figure that the limit is not about."""

    def row(self) -> list[object]:
        """The aim as a row of a table."""
        if not self.errors:
            return [self.what, percent(self.limit), 0, "-", "-", "no runs", self.besides]
        absolute = [abs(error) for error in self.errors]
        verdict = "pass" if mean(absolute) <= self.limit else "FAIL"
        figures = percent(mean(absolute)), percent(max(absolute))
        return [self.what, percent(self.limit), len(absolute), *figures, verdict, self.besides]


def aim_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every aim with its limit, the mean absolute error and whether it is met."""
    columns = ("aim", "limit", "rows", "mean", "worst", "verdict", "besides")
    yield from table(columns, (aim.row() for aim in aims(outcomes)))


def aims(outcomes: Sequence[Outcome]) -> Iterator[Aim]:
    """Aims of steps and of memory.

    The calibrated row of a machine is its first row in the file, or every one of its rows in turn.
    """
    aimed = [outcome for outcome in outcomes if outcome.aimed]
    machines = _machines(aimed)
    simumax = [rows for rows in machines if rows[0].run.source == SIMUMAX]
    yield Aim("step, nothing calibrated", 0.12, _errors(aimed), _with_suspects(outcomes))
    yield from _one_row("step", 0.06, machines)
    near = [[o for o in rows if o.run.gpus <= GPUS_PER_NODE] for rows in machines]
    everywhere = mean(map(abs, [*_tensor(machines), 0.0]))
    besides = f"{percent(everywhere)} with tensor groups of runs on several nodes"
    yield Aim("tensor 2 to 8 on one node, tensor 1 calibrated", 0.08, [*_tensor(near)], besides)
    yield from _one_row("SimuMax's B200 runs", 0.04, simumax)
    allocated = [outcome for outcome in outcomes if outcome.memory is not None and outcome.large]
    errors = [o.memory_error for o in allocated if o.memory and o.memory.allocated]
    yield Aim("allocated memory", 0.03, [error for error in errors if error is not None])


def _errors(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.error for outcome in outcomes if outcome.error is not None]


def _with_suspects(outcomes: Sequence[Outcome]) -> str:
    """The error with rows that are listed apart as suspect."""
    large = [outcome for outcome in outcomes if outcome.large and outcome.error is not None]
    absolute = [abs(error) for error in _errors(large)]
    return f"{percent(mean(absolute))} of {len(absolute)} with those listed apart" if large else ""


def _machines(aimed: Sequence[Outcome]) -> list[list[Outcome]]:
    """Outcomes of every machine (source and hardware), in the order of the file."""
    machines: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in aimed:
        machines.setdefault(outcome.run.machine, []).append(outcome)
    return list(machines.values())


def _one_row(what: str, limit: float, machines: Sequence[Sequence[Outcome]]) -> Iterator[Aim]:
    """Errors with a calibrated row per machine: its first one, and each in turn."""
    first = [error for rows in machines for error in calibrated(rows, rows[0])]
    each = [error for rows in machines for row in rows for error in calibrated(rows, row)]
    yield Aim(f"{what}, the first row of a machine calibrated", limit, first)
    yield Aim(f"{what}, each row of a machine calibrated in turn", limit, each)
    larger = [rows for rows in machines if len(rows) >= ENOUGH]
    three = [error for rows in larger for error in calibrated_by_three(rows)]
    same = [error for rows in larger for error in calibrated(rows, rows[0])]
    besides = f"{percent(mean(map(abs, same)))} with the first row alone" if same else ""
    yield Aim(f"{what}, three rows that differ in communication calibrated", limit, three, besides)


def _tensor(machines: Sequence[Sequence[Outcome]]) -> Iterator[float]:
    """Errors at tensor 2 to 8 with every row at tensor 1 of the machine calibrated in turn."""
    for rows in machines:
        shared = [outcome for outcome in rows if 1 < outcome.run.count("tp") <= GPUS_PER_NODE]
        for reference in rows:
            if reference.run.count("tp") == 1:
                yield from calibrated(shared, reference)


def machine_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every machine with runs that the aims are about: errors without and with calibration."""
    columns = (
        *("source", "hardware", "rows", "mean", "signed"),
        *("first calibrated", "each in turn", "three calibrated"),
    )
    yield from table(columns, map(_machine_row, _machines([o for o in outcomes if o.aimed])))


def _machine_row(rows: Sequence[Outcome]) -> list[object]:
    errors, run = _errors(rows), rows[0].run
    first = calibrated(rows, rows[0])
    each = [error for row in rows for error in calibrated(rows, row)]
    three = calibrated_by_three(rows) if len(rows) >= ENOUGH else []
    calibrations = [
        percent(mean(map(abs, errors))) if errors else "-" for errors in (first, each, three)
    ]
    absolute, signed = percent(mean(map(abs, errors))), percent(mean(errors), sign=True)
    return [run.source, run.hardware, len(rows), absolute, signed, *calibrations]
