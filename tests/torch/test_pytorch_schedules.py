"""The schedules of torch.distributed.pipelining, and the strategies that stand for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.packages import needed

schedules = needed("torch.distributed.pipelining.schedules")

from ppopt import Pipeline, evaluate
from ppopt.formats import torch_csv
from ppopt.strategies import registry, resolve

pytestmark = pytest.mark.slow


def test_every_schedule_of_pytorch_is_a_strategy() -> None:
    """Its names are read with and without `Schedule`; no strategy names one that is not there."""
    names = {name for name in dir(schedules) if name.startswith("Schedule")}
    assert {resolve(name).pytorch_name for name in names} == {
        name.removeprefix("Schedule") for name in names
    }
    ours = {strategy.pytorch_name for strategy in registry().values()}
    assert {f"Schedule{name}" for name in ours if name} == names


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_interleaved_zero_bubble_is_the_order_of_pytorch(ranks: int, chunks: int) -> None:
    """Every number of microbatches that PyTorch admits, its bubbles left out."""
    for batches in range(1, 13):
        rounds = max(1, batches // ranks)
        if batches % rounds:
            continue
        sizes = SimpleNamespace(
            n_local_stages=chunks,
            microbatches_per_round=batches // rounds,
            pp_group_size=ranks,
            _n_microbatches=batches,
        )
        kind = schedules.ScheduleInterleavedZeroBubble
        theirs = [
            [
                str(action)
                for action in kind._calculate_single_rank_operations(sizes, rank)
                if action
            ]
            for rank in range(ranks)
        ]
        ours = evaluate(Pipeline(stages=ranks, batches=batches, chunks=chunks), "interleaved-zb")
        assert [row.split(",") for row in torch_csv.order_csv(ours).splitlines()] == theirs
