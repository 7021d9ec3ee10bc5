"""1F1B-V: two chunks in a V with whole backwards, within two thirds of the memory of 1F1B."""

from __future__ import annotations

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.generation import class_orders
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, register
from ppopt.strategies.building_block import Block, Passes, class_sequences


@register(
    name="1f1b-v",
    summary="building block in a V with whole backwards, two thirds of the memory of 1F1B",
    source="Controllable Memory, arXiv 2405.15362, appendix",
    placement="v",
    chunks=2,
    fused=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """A building block without split backward.

    At most 2 (floor(2p / 3) + 1) chunks on a device, asymptotically two thirds of 1F1B (arXiv
    2405.15362, appendix on 1F1B-V).
    """
    instance = Instance.of(pipeline, BackwardKind.WHOLE)
    passes = Passes(one_f_one_b_v_block(pipeline.num_devices), pipeline.batches).backbone()
    return class_orders(instance, class_sequences(instance, passes))


def one_f_one_b_v_block(devices: int) -> Block:
    """Forwards as in V-Min; backwards of two slots each, with a pause of 3 after every third.

    Three backwards fill the 6 slots between microbatches, so that the fourth would meet the next
    microbatch's first; the pauses are placed such that forwards find their slots as well.
    """
    start = 2 * devices + (3 if devices % 3 == 0 else 0)

    def back(index: int) -> int:
        return start + 2 * index + 3 * ((index + (1 - devices) % 3) // 3)

    return Block(
        slots=tuple(
            (i, 2 * devices - 1 - i, back(i), back(2 * devices - 1 - i)) for i in range(devices)
        ),
        back=2,
    )
