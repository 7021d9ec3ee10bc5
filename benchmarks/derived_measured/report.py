"""Tables of the record: every source, what is not predicted, what is listed apart, single runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.derived_measured.architectures import architecture_of
from benchmarks.derived_measured.outcomes import GIB, Errors, Outcome, errors_of, percent
from benchmarks.derived_measured.remarks import remarks
from benchmarks.record import table

NONE = "-"


def by_source(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by their source, in the order of the file."""
    sources: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        sources.setdefault(outcome.run.source, []).append(outcome)
    return sources


def step_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every source: rows, rows predicted, errors of the step."""
    columns = ("source", "rows", "predicted", "compared", "mean", "median", "signed", "worst row")
    yield from table(columns, (_step_row(*item) for item in by_source(outcomes).items()))


def _step_row(source: str, outcomes: Sequence[Outcome]) -> list[object]:
    compared = [outcome for outcome in outcomes if outcome.compared]
    predicted = sum(outcome.prediction is not None for outcome in outcomes)
    errors = errors_of(outcome.error for outcome in compared if outcome.error is not None)
    worst = max(compared, key=lambda outcome: abs(outcome.error or 0), default=None)
    return [
        *(source, len(outcomes), predicted, len(compared)),
        *_format_errors(errors),
        NONE if worst is None or worst.error is None else _worst(worst, worst.error),
    ]


def memory_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every source with memory: errors of the peak, and what the measured figure is."""
    columns = ("source", "measured figure", "rows", "mean", "median", "signed", "worst row")
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.memory_error is not None:
            key = outcome.run.source, str(outcome.run.row["mem_kind"])
            groups.setdefault(key, []).append(outcome)
    yield from table(columns, (_memory_row(*key, rows) for key, rows in groups.items()))


def _memory_row(source: str, kind: str, outcomes: Sequence[Outcome]) -> list[object]:
    errors = errors_of(o.memory_error for o in outcomes if o.memory_error is not None)
    worst = max(outcomes, key=lambda outcome: abs(outcome.memory_error or 0))
    worst_run = _worst(worst, worst.memory_error or 0)
    return [source, kind, len(outcomes), *_format_errors(errors), worst_run]


def _format_errors(errors: Errors | None) -> list[str]:
    if errors is None:
        return [NONE] * 3
    signed = percent(errors.signed, sign=True)
    return [percent(errors.mean_absolute), percent(errors.median_absolute), signed]


def _worst(outcome: Outcome, error: float) -> str:
    reasons = "; ".join(remarks(outcome.run, architecture_of(outcome.run)))
    return f"{percent(error, sign=True)}: {outcome.run.label}" + (reasons and f" ({reasons})")


def not_predicted(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Rows that are not predicted, grouped by source and reason."""
    groups = Counter(
        (outcome.run.source, outcome.reason or "no step measured")
        for outcome in outcomes
        if outcome.prediction is None or (outcome.measured is None and outcome.memory is None)
    )
    rows = ([source, count, reason] for (source, reason), count in groups.items())
    yield from table(("source", "rows", "reason"), rows)


def apart_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Rows whose step is predicted and listed apart, grouped by reason."""
    groups: dict[tuple[str, str], list[float]] = {}
    for outcome in outcomes:
        if outcome.apart is not None and outcome.error is not None:
            groups.setdefault((outcome.run.source, outcome.apart), []).append(outcome.error)
    rows = (
        [*key, len(errors), *_format_errors(errors_of(errors))] for key, errors in groups.items()
    )
    yield from table(("source", "reason", "rows", "mean", "median", "signed"), rows)


RUN_COLUMNS = (
    *("row", "model", "tp", "pp", "vp", "cp", "ep", "dp", "mbs", "batches", "seq", "hidden"),
    *("layers", "measured", "predicted", "error", "compute", "communication"),
    *("bubble", "around", "optimizer"),
    *("GiB", "derived", "error of memory", "remarks"),
)


def run_table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """A line for every run that is predicted: times in ms, memory in GiB."""
    predicted = (outcome for outcome in outcomes if outcome.prediction is not None)
    yield from table(RUN_COLUMNS, map(_run_row, predicted))


def _run_row(outcome: Outcome) -> list[object]:
    run, prediction = outcome.run, outcome.prediction
    assert prediction is not None
    architecture = architecture_of(run)
    layers = sum(part.count for part in architecture.runs)
    degrees = [run.count(name) for name in ("tp", "pp", "vp", "cp", "ep", "dp", "mbs")]
    times = (outcome.measured, prediction.step)
    times_text = [NONE if time is None else f"{time:.1f}" for time in times]
    parts = [
        f"{time:.1f}"
        for time in (
            *(prediction.compute, prediction.communication, prediction.bubble),
            *(prediction.around, prediction.optimizer),
        )
    ]
    reasons = [*remarks(run, architecture)]
    return [
        *(run.number, run.model, *degrees, run.batches, run.sequence, architecture.hidden, layers),
        *(*times_text, _error(outcome.error), *parts, *_memory(outcome)),
        "; ".join([*([f"apart: {outcome.apart}"] if outcome.apart else []), *reasons]),
    ]


def _memory(outcome: Outcome) -> list[str]:
    memory, predicted = outcome.memory, outcome.predicted_memory
    if memory is None or predicted is None:
        return [NONE] * 3
    sizes = [f"{size / GIB:.2f}" for size in (memory.size, predicted)]
    return [*sizes, _error(outcome.memory_error)]


def _error(share: float | None) -> str:
    return NONE if share is None else percent(share, sign=True)
