"""Recomputes a reference schedule from the settings in its file and reports differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ppopt.formats import origin_json
from ppopt.formats.fields import unknown_key, whole, within
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.schedule import timing
from ppopt.schedule.operations import Operation
from ppopt.schedule.orders import codes
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Progress
from ppopt.strategies import OPTIONS, Options, names
from ppopt.studies.evaluate import evaluate
from ppopt.verifier.measured_steps import planned

FREE = ("order", "times", "proof", "peak memory")
"""Items in which schedules of equal value may differ; not compared if the search had several
workers."""


class Difference(NamedTuple):
    """A difference between a reference and its recomputation."""

    what: str
    """`status`, `value`, `lower bound`, `proof`, `peak memory`, `order` or `times`."""
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: was {self.before}, is {self.after}"


class ReferenceCheck(NamedTuple):
    """Result of recomputing a reference."""

    schedule: Schedule | None
    """Recomputed schedule; None if a search found nothing within its time."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    """Reasons why a difference may be insignificant."""
    ignored_differences: tuple[Difference, ...] = ()
    """Differences in items that are not compared."""
    order_compared: bool = True
    """Whether the order, and the items that depend on it (`FREE`), were compared."""


def check_reference(
    reference: Schedule, progress: Callable[[Progress], None] | None = None
) -> ReferenceCheck:
    """Recompute a reference and compare.

    A search runs with the objective, seed, workers and time limit in the file, a strategy with its
    options; any other order (an imported one) is timed again. If a search had several workers, or
    chose the order of the microbatches, another schedule may have the same value: orders, and the
    items that depend on them (`FREE`), are not compared; differences in these are in
    `ignored_differences`. Raises InputError if the file lacks settings, or a strategy no longer
    applies.
    """
    planned(reference, "check")
    schedule = _remade(reference, progress)
    notes = _notes(reference, schedule)
    order_compared = _order_not_compared(reference) is None
    if schedule is None:
        status = Difference("status", _claim_text(reference, "status"), "unknown")
        return ReferenceCheck(None, (status,), notes, order_compared=order_compared)
    all_differences = differences(reference, schedule)
    uncompared = {*(() if order_compared else FREE), *_not_repeated(reference)}
    free = tuple(entry for entry in all_differences if entry.what in uncompared)
    counted = tuple(entry for entry in all_differences if entry not in free)
    return ReferenceCheck(schedule, counted, notes, free, order_compared)


def differences(before: Schedule, after: Schedule) -> tuple[Difference, ...]:
    """Compare the claims, the metrics, then the order or, if orders are equal, the times.

    Both must be schedules of the same pipeline with all operations.
    """
    changes = []
    for what, key in (("status", "status"), ("lower bound", "lower_bound"), ("proof", "proof")):
        old, new = _claim_text(before, key), _claim_text(after, key)
        if old != new:
            changes.append(Difference(what, old, new))
    figures = [_figures(schedule) for schedule in (before, after)]
    for what in figures[0]:
        if figures[0][what] != figures[1][what]:
            changes.append(Difference(what, figures[0][what], figures[1][what]))
    difference = first_difference(before, after)
    return tuple(changes if difference is None else [*changes, difference])


def first_difference(before: Schedule, after: Schedule) -> Difference | None:
    """Find the first operation in which two orders differ or, if none, that has another time."""
    for device, (old, new) in enumerate(zip(before.orders, after.orders, strict=True)):
        shared = min(len(old), len(new))  # an overlapped pair differs from its parts in turn
        unequal = np.flatnonzero(old[:shared] != new[:shared])
        if len(unequal) or len(old) != len(new):
            position = int(unequal[0]) if len(unequal) else shared
            what = [
                _op(schedule, codes, position) for schedule, codes in ((before, old), (after, new))
            ]
            return Difference(
                "order", f"{what[0]} as number {position} on device {device}", what[1]
            )
    time = before.pipeline.ticks.time

    def describe_row(row: Operation | None) -> str:
        if row is None:
            return "nothing"
        start, end = (exact.plain(time(tick)) for tick in (row.start, row.end))
        return f"{row} on device {row.device} from {start} to {end}"

    both = zip_longest(before.operations.rows(), after.operations.rows())
    changed = next((pair for pair in both if pair[0] != pair[1]), None)
    return None if changed is None else Difference("times", *map(describe_row, changed))


def _remade(reference: Schedule, progress: Callable[[Progress], None] | None) -> Schedule | None:
    origin = reference.origin
    if _searched(reference):
        from ppopt.solver.options import TIME_LIMIT  # noqa: PLC0415  loads on use
        from ppopt.solver.solve import solve  # noqa: PLC0415  loads on use

        return solve(
            reference.pipeline,
            objective=reference.objective,
            backward_kind=origin.backward_kind or BackwardKind.SPLIT,
            time_limit=origin.time_limit or TIME_LIMIT,
            workers=origin.workers,
            seed=origin.seed or 0,
            progress=progress,
        ).schedule
    if origin.strategy in names():
        options = within("origin: options", _options, origin.options)
        return evaluate(reference.pipeline, origin.strategy, reference.objective, options)
    return timing.schedule(reference.pipeline, reference.orders, reference.objective, origin)


def _options(values: Mapping[str, int]) -> Options:
    for name, value in values.items():
        if name not in OPTIONS:
            unknown_key(str(name), OPTIONS)
        within(name, whole, value, 1, 2**31)
    return Options(**values)


def _not_repeated(reference: Schedule) -> tuple[str, ...]:
    """Claims about all configurations, which are not compared with a search of one.

    These are the proof and, if the gap was open, status and bound, which may be better for one.
    """
    if not _claimed_over(reference):
        return ()
    return (
        ("proof",) if reference.origin.status == "optimal" else ("proof", "status", "lower bound")
    )


def _claimed_over(reference: Schedule) -> str:
    """What the bound of a file quantifies over besides orders; empty if nothing."""
    certificate = reference.origin.certificate
    return certificate.decisions.configurations if certificate else ""


def _searched(reference: Schedule) -> bool:
    return reference.origin.strategy == SEARCHED


def _order_not_compared(reference: Schedule) -> str | None:
    """Why another order of operations may have the same value; None if orders are compared."""
    if not _searched(reference):
        return None
    if reference.origin.workers != 1:
        return (
            "the search had several workers, which may find another of equal value; --workers 1 "
            "repeats itself"
        )
    certificate = reference.origin.certificate
    chosen = isinstance(reference.pipeline.order, tuple)
    if chosen or (certificate is not None and Decisions.ORDER in certificate.decisions):
        return (
            "the search chose the order of the microbatches, which is kept here; another order of "
            "operations may be of equal value"
        )
    return None


def _notes(reference: Schedule, schedule: Schedule | None) -> tuple[str, ...]:
    origin = reference.origin
    notes = []
    reason = _order_not_compared(reference)
    if reason is not None:
        notes.append(f"order not compared: {reason}")
    every = _claimed_over(reference)
    if every:
        notes.append(
            f"the file claims its bound over all {every}; that is not proved again here, where the "
            "search keeps those of the file (ppopt verify --bound checks it)"
        )
    if origin.hint is not None:
        notes.append("the search began from a schedule of its user's, which is not at hand")
    if _searched(reference) and origin.status != "optimal":
        notes.append("the search ended by its time limit: another machine may find more or less")
    versions = {} if schedule is None else schedule.origin.versions or {}
    for name, old in (origin.versions or {}).items():
        if name in versions and versions[name] != old:
            notes.append(f"{name} was {old}, is {versions[name]}")
    return tuple(notes)


def _claim_text(schedule: Schedule, key: str) -> str:
    return str(origin_json.origin_to_object(schedule.origin).get(key, "none"))


def _figures(schedule: Schedule) -> dict[str, str]:
    ticks, metrics = schedule.pipeline.ticks, schedule.metrics
    peaks: list[Any] = [exact.plain(ticks.memory(peak)) for peak in metrics.peak_memory_ticks]
    return {
        "value": str(exact.plain(ticks.time(metrics.value_ticks(schedule.objective)))),
        "peak memory": " ".join(map(str, peaks)),
    }


def _op(schedule: Schedule, order: Any, position: int) -> str:
    if position >= len(order):
        return "nothing"
    name = str(schedule.pipeline.op(codes(order)[position]))
    return name if order[position] >= 0 else f"{name} overlapped"
