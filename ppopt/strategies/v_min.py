"""V-Min: two chunks in a V within a third of the memory of 1F1B."""

from __future__ import annotations

from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders
from ppopt.strategies.base import Options, Strategy, register
from ppopt.strategies.building_block import Block, split_orders


def build(pipeline: Pipeline, _: Options) -> Orders:
    """Every pass of a microbatch follows its input at once: the shortest life of an activation.

    At most 2 floor((p + 4) / 3) chunks on a device (arXiv 2405.15362, section 3). With
    F, B and W of one length it idles about 2p/3 of a microbatch's time, at its ends alone; with
    other lengths it stalls in every microbatch, too (same section).
    """
    devices = pipeline.num_devices
    return split_orders(pipeline, block(devices), most=2 * ((devices + 4) // 3))


def block(devices: int) -> Block:
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


register(
    Strategy(
        name="v-min",
        summary="building block in a V, about a third of the memory of 1F1B",
        source="Controllable Memory, arXiv 2405.15362, section 3",
        build=build,
        placement="v",
        chunks=2,
    )
)
