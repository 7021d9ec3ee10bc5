"""V-Min: two chunks in a V within a third of the memory of 1F1B."""

from __future__ import annotations

from functools import partial

from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, equal_times, register
from ppopt.strategies.building_block import Block, split_orders
from ppopt.strategies.paced import paced_sequences

PACES = (100, 105, 110, 115, 120, 125)
"""Percent of the busiest device's time at which microbatches enter where passes differ."""


@register(
    name="v-min",
    summary="building block in a V, about a third of the memory of 1F1B",
    source="Controllable Memory, arXiv 2405.15362, section 3",
    placement="v",
    chunks=2,
    adaptive=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Every pass of a microbatch follows its input at once: the shortest life of an activation.

    At most 2 floor((p + 4) / 3) chunks on a device (arXiv 2405.15362, section 3). With F, B and W
    of one length it idles about 2p/3 of a microbatch's time, at its ends alone. With other lengths
    the block stalls in every microbatch (same section): then orders made by the same idea from the
    real times (`paced`) compete with it.
    """
    most = 2 * ((pipeline.num_devices + 4) // 3)
    paces = () if equal_times(pipeline) else PACES
    further = [partial(paced_sequences, most=most, percent=pace) for pace in paces]
    return split_orders(pipeline, v_min_block(pipeline.num_devices), most, further)


def v_min_block(devices: int) -> Block:
    """All offsets between neighbours are 1 slot (arXiv 2405.15362, appendix).

    Two more before the backward where 3 divides p: else two passes would share a slot.
    """
    pause = 2 if devices % 3 == 0 else 0
    return Block(
        slots=tuple(
            (i, 2 * devices - 1 - i, 2 * devices + pause + i, 4 * devices + pause - 1 - i)
            for i in range(devices)
        ),
        back=1,
    )
