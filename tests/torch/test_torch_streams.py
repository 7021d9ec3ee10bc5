"""Communication orders in PyTorch's own runtime: read by its loader, run with exact gradients."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.packages import needed

needed("torch")

from ppopt import Pipeline, evaluate, solve, verify
from ppopt.errors import RunError
from ppopt.formats import torch_comms, torch_csv
from ppopt.formats.loader_order import microbatch_numbers
from ppopt.schedule.actions import Action, ActionKind
from ppopt.solver.stop import FirstSchedule
from ppopt.torch import execution
from ppopt.torch.world import World
from tests.factories.streams import LINK_MODES, append_all
from tests.torch.torch_jobs import RANKS, run_sleeping, run_text

pytestmark = pytest.mark.slow

STREAMS = Pipeline(stages=RANKS, batches=6, p2p="0.5", link_mode="streams")


@pytest.mark.parametrize("strategy", ["1f1b", "zbv", "interleaved", "interleaved-overlap"])
def test_strategies(world: World, strategy: str) -> None:
    schedule = evaluate(STREAMS, strategy)
    ran = run_sleeping(world, schedule, seconds_per_unit=1e-4)
    assert ran.difference <= 1e-12
    assert ran.gradients == 2 * schedule.pipeline.num_stages


@pytest.mark.parametrize("link_mode", LINK_MODES)
def test_a_prediction_has_the_times_of_pytorch(link_mode: str) -> None:
    """B of the first stage does nothing there, and its W runs the whole backward."""
    schedule = evaluate(replace(STREAMS, link_mode=link_mode), "zb-h1")
    predicted = execution.predicted_schedule(schedule)
    assert verify(predicted) == []
    unit = predicted.pipeline.ticks.per_unit
    lengths = {
        row.kind.name: (row.end - row.start) // unit for row in predicted.rows() if row.stage == 0
    }
    assert lengths == {"F": 1, "B": 0, "W": 2}


def test_solved_and_what_pytorch_adds_to_its_operations(world: World) -> None:
    """The solved order with its sends and receives; and its operations alone."""
    unequal = replace(STREAMS, forward=[1, 2, 1, 2], mem_limit="1f1b")
    result = solve(unequal, workers=1, stop=FirstSchedule()).schedule
    assert result is not None
    for text in (torch_comms.communication_csv(result), torch_csv.order_csv(result)):
        ran = run_sleeping(world, result, text=text, seconds_per_unit=1e-4)
        assert ran.difference <= 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_posts(world: World, seed: int) -> None:
    """Random placements on all four ranks; every post where it was appended."""
    random = Random(seed)
    hosts = [*range(RANKS), *(random.randrange(RANKS) for _ in range(3))]
    random.shuffle(hosts)
    pipeline = Pipeline(
        stages=len(hosts), batches=3, placement=hosts, p2p="0.5", link_mode="streams"
    )
    built = append_all(pipeline, random)
    numbers = microbatch_numbers(built.schedule)
    rows = [
        (*row, *((Action(ActionKind.REDUCE_GRAD, stage),) for stage in pipeline.hosted[0][rank]))
        for rank, row in enumerate(built.rows)
    ]
    text = torch_csv.written(rows, numbers)
    ran = run_sleeping(world, built.schedule, text=text, seconds_per_unit=1e-4)
    assert ran.difference <= 1e-12


def test_ends_that_do_not_match_are_seen_by_the_links() -> None:
    """Two ranks that post in different orders, which gloo lets pass and NCCL does not."""
    pipeline = Pipeline(stages=2, batches=2, p2p=1, link_mode="streams")
    schedule = evaluate(pipeline, "gpipe")
    text = torch_comms.communication_csv(schedule)
    first, second = text.splitlines()
    crossed = second.replace("1RECV_F0,1RECV_F1", "1RECV_F1,1RECV_F0")
    assert crossed != second
    with World(2) as two, pytest.raises(RunError, match="their post number 0 is of two transfers"):
        run_sleeping(two, schedule, text=f"{first}\n{crossed}\n", seconds_per_unit=1e-4)


def test_pytorch_itself_reads_the_file(world: World) -> None:
    """Without any of our stages' waits: the plain text in the plain runtime."""
    schedule = evaluate(STREAMS, "zbv")
    text = torch_comms.communication_csv(schedule)
    assert run_text(world, text, schedule.pipeline.hosts[0], 6) <= 1e-12
