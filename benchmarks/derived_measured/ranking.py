"""What it costs to choose the configuration that is predicted best of several measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from benchmarks.derived_measured.outcomes import Outcome, percent
from benchmarks.derived_measured.runs import SIMUMAX, Run
from benchmarks.record import table

BEST = 3
KEYS = ("layers", "hidden", "heads", "gpus", "seq", "precision", "recompute", "task")
"""Of runs that train a model on as many GPUs; they also have the same batch."""
DEGREES = ("tp", "pp", "vp", "cp", "ep", "dp", "mbs")
MEAN_REGRET, WORST_REGRET = 0.01, 0.05
"""Aims."""

Group = Sequence[Outcome]


def ranking_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Groups of runs with at least `BEST` configurations, and a line over all of them.

    Of several runs of a configuration, the fastest counts. The regret is how much longer the step
    of the configuration is that is predicted best.
    """
    columns = (
        *("model", "configurations", "best measured", "its predicted rank"),
        *("best predicted", "regret", "verdict"),
    )
    compared = groups(outcomes)
    yield from table(columns, map(_row, compared))
    if compared:
        regrets = [regret(group) for group in compared]
        met = mean(regrets) <= MEAN_REGRET and max(regrets) <= WORST_REGRET
        yield (
            f"\nRegret over {len(compared)} groups: {percent(mean(regrets))} on average, "
            f"{percent(max(regrets))} at most: {'pass' if met else 'FAIL'} (aims: "
            f"{percent(MEAN_REGRET)} and {percent(WORST_REGRET)})"
        )


def groups(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Configurations of the same model, GPUs and batch, where there are at least `BEST`."""
    outcomes_by_setup: dict[tuple[object, ...], dict[tuple[int, ...], Outcome]] = {}
    for outcome in outcomes:
        run = outcome.run
        if not outcome.compared:
            continue
        table_of_source = "" if run.source == SIMUMAX else run.row.get("ref")
        key = (
            *(run.source, table_of_source, run.hardware, _sequences(run)),
            *(run.row.get(name) for name in KEYS),
        )
        configuration = tuple(map(run.count, DEGREES))
        group = outcomes_by_setup.setdefault(key, {})
        group[configuration] = min(group.get(configuration, outcome), outcome, key=_measured)
    return [list(group.values()) for group in outcomes_by_setup.values() if len(group) >= BEST]


def regret(group: Group) -> float:
    """How much longer a step of the configuration takes that is predicted best, as a share."""
    return _measured(min(group, key=_predicted)) / _measured(min(group, key=_measured)) - 1


def _sequences(run: Run) -> int:
    """Sequences of a step."""
    return run.data * run.batches * run.microbatch


def _measured(outcome: Outcome) -> float:
    assert outcome.measured is not None
    return outcome.measured


def _predicted(outcome: Outcome) -> float:
    assert outcome.prediction is not None
    return outcome.prediction.step


def _row(group: Group) -> list[object]:
    best = min(group, key=_measured)
    ranked = sorted(group, key=_predicted)
    rank = 1 + ranked.index(best)
    run = best.run
    sizes = f"{run.row['layers']} x {run.row['hidden']}, {run.row.get('heads') or 64} heads"
    model = f"{run.section or run.source}: {sizes}, {_sequences(run)} sequences"
    loss = regret(group)
    return [
        *(model, len(group), _configuration(best), rank, _configuration(ranked[0])),
        *(percent(loss), "pass" if loss <= WORST_REGRET else "FAIL"),
    ]


def _configuration(outcome: Outcome) -> str:
    return " ".join(f"{name}{outcome.run.count(name)}" for name in ("tp", "pp", "dp", "mbs"))
