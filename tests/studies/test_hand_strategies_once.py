"""Every baseline is timed once: the search and the studies read the same schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ppopt
from ppopt import Options, Pipeline
from ppopt.schedule import timing
from ppopt.solver.parameters import SolveParams
from ppopt.solver.portfolio import NAMES
from ppopt.strategies import registry
from ppopt.studies.baselines import baseline, best_other_placement

HAND_STRATEGIES_ALONE = SolveParams(without=frozenset(NAMES) - {"baselines"})


def own_orders(pipeline: Pipeline) -> dict[str, bytes]:
    """Orders of every strategy whose placement is that of the pipeline."""
    orders = {}
    for name, strategy in registry().items():
        try:
            placed = strategy.apply(pipeline, Options())
        except ppopt.NotApplicableError:
            continue
        if placed.layout == pipeline.layout:
            orders[name] = np.concatenate(strategy.built(placed, Options())).tobytes()
    return orders


def solve(pipeline: Pipeline) -> None:
    """As the command does: the search, then the baselines of both kinds."""
    result = ppopt.solve(pipeline, workers=1, time_limit=600, params=HAND_STRATEGIES_ALONE)
    best = baseline(result, pipeline)
    best_other_placement(pipeline, result, best)


def compare(pipeline: Pipeline) -> None:
    ppopt.compare(pipeline, workers=1, time_limit=600, params=HAND_STRATEGIES_ALONE)


def compare_twice(pipeline: Pipeline) -> None:
    """As a page that evaluates on every edit, and then searches."""
    compare(pipeline)
    compare(pipeline)


@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("study", [solve, compare, compare_twice], ids=lambda each: each.__name__)
def test_every_hand_strategy_is_timed_once(
    study: Callable[[Pipeline], None], limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the search timed those of its placement, and the study timed them again."""
    pipeline = Pipeline(stages=4, batches=8, forward=[3, 4, 5, 4], p2p=1, mem_limit=limit)
    orders = own_orders(pipeline)  # to build some of them takes timings, too
    time_orders, counts = timing.schedule, Counter[bytes]()

    def counted(timed: Pipeline, order: Any, *more: Any, **options: Any) -> Any:
        if timed.layout == pipeline.layout:
            counts[np.concatenate(order).tobytes()] += 1
        return time_orders(timed, order, *more, **options)

    monkeypatch.setattr(timing, "schedule", counted)
    study(pipeline)
    sharing = Counter(orders.values())
    assert len(sharing) > 5
    times = {name: counts[each] / sharing[each] for name, each in orders.items()}
    assert times == dict.fromkeys(orders, 1)
