"""Whether the best of several measured configurations of a model is among the best predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.derived_measured.outcomes import Outcome, percent
from benchmarks.derived_measured.runs import BIGSCIENCE
from benchmarks.record import table

BEST = 3
KEYS = ("layers", "hidden", "heads", "gpus", "gbs", "precision")
"""Of runs that train a model on as many GPUs with the same batch."""


def ranking_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Groups of BigScience's runs with more configurations than `BEST`.

    A configuration is data, tensor, pipeline and microbatch; of several runs of it, the fastest
    counts.
    """
    columns = (
        *("model", "configurations", "best measured", "its predicted rank"),
        *("best predicted", "loss of choosing it", "verdict"),
    )
    yield from table(columns, map(_row, groups(outcomes)))


def groups(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Configurations of the same model, GPUs and batch, where there are more than `BEST`."""
    outcomes_by_setup: dict[tuple[object, ...], dict[tuple[int, ...], Outcome]] = {}
    for outcome in outcomes:
        run = outcome.run
        if run.source != BIGSCIENCE or not outcome.compared:
            continue
        key = (run.section, *(run.row.get(name) for name in KEYS))
        configuration = tuple(run.count(name) for name in ("dp", "tp", "pp", "mbs"))
        group = outcomes_by_setup.setdefault(key, {})
        group[configuration] = min(group.get(configuration, outcome), outcome, key=_measured)
    return [list(group.values()) for group in outcomes_by_setup.values() if len(group) > BEST]


def _measured(outcome: Outcome) -> float:
    assert outcome.measured is not None
    return outcome.measured


def _predicted(outcome: Outcome) -> float:
    assert outcome.prediction is not None
    return outcome.prediction.step


def _row(group: Sequence[Outcome]) -> list[object]:
    best = min(group, key=_measured)
    ranked = sorted(group, key=_predicted)
    rank = 1 + ranked.index(best)
    run = best.run
    heads = run.row.get("heads") or 64
    model = f"{run.row['layers']} x {run.row['hidden']}, {heads} heads, {run.row['gbs']} sequences"
    loss = _measured(ranked[0]) / _measured(best) - 1
    return [
        *(f"{run.section}: {model}", len(group), _configuration(best), rank),
        *(_configuration(ranked[0]), percent(loss), "pass" if rank <= BEST else "FAIL"),
    ]


def _configuration(outcome: Outcome) -> str:
    return " ".join(f"{name}{outcome.run.count(name)}" for name in ("tp", "pp", "dp", "mbs"))
