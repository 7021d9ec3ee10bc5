"""V-Half: two chunks in a V within half of the memory of 1F1B."""

from __future__ import annotations

from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register
from ppopt.strategies.building_block import Block, split_orders


@register(
    name="v-half",
    summary="building block in a V, about half of the memory of 1F1B",
    source="Controllable Memory, arXiv 2405.15362, section 3",
    placement="v",
    chunks=2,
    adaptive=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Passes go down the devices at half the speed at which they come up.

    With F, B and W of one length it idles about p/2 of a microbatch's time, at its ends alone.
    """
    devices = pipeline.num_devices
    return split_orders(pipeline, v_half_block(devices), max_in_flight=max_activations(devices))


def max_activations(devices: int) -> int:
    """Maximum number of chunks whose activations a device has (arXiv 2405.15362, section 3)."""
    return 2 * ((devices + 2) // 2)


def v_half_block(devices: int) -> Block:
    """Offsets 2 slots down and 1 up, the pause at the turn 1, or 4 if p is even.

    From arXiv 2405.15362, appendix: 2, 1, 2, 1 for F down, F up, B down, B up.
    """
    turn = 3 * devices + (2 if devices % 2 == 0 else -1)
    return Block(
        slots=tuple(
            (2 * i, 3 * devices - 2 - i, turn + 2 * i, turn + 3 * devices - 1 - i)
            for i in range(devices)
        ),
        back=1,
    )
