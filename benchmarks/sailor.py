"""Steps of Sailor's plans on GH200, predicted with gradient work and transfers, against measured.

    python -m benchmarks.sailor > benchmarks/records/DATE-sailor.md

Nothing is measured here. Times of layers, and measured steps with their gradient reduction, are
from github.com/eth-easl/sailor at cf2c8e3 (MIT; SOSP 2025, arXiv 2504.17096):
sailor/Planner/simulations/profiles_tmp.json and validation/clariden/OPT-350 (`real`, `red_grads`).
The runtime is Megatron-DeepSpeed: 1F1B, tensor parallel over the four GPUs of a node.

The gradient reduction that was measured stands for `gradient_sync` of every stage, and the time of
an optimizer step of all layers of a stage for `optimizer`. A transfer takes the size of a
microbatch's output over a bandwidth of 25 GB/s, that of one Slingshot-11 port, of which Alps has
one per GPU. No figure is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.record import heading, table
from ppopt import Pipeline, evaluate

Costs = tuple[float, float, float]
"""F, BW and the optimizer step of a layer, in ms."""
LAYERS: dict[int, tuple[Costs, Costs, Costs, Costs]] = {
    1: ((0.967, 0.002, 0.447), (1.5, 1.938, 0.447), (1.5, 1.719, 0.447), (2.405, 1.663, 0.447)),
    2: ((0.456, 0.002, 0.429), (1.7, 1.821, 0.429), (1.7, 1.846, 0.429), (1.632, 1.493, 0.429)),
    4: ((0.63, 0.002, 0.472), (1.8, 3.312, 0.472), (1.7, 3.32, 0.472), (2.424, 2.579, 0.472)),
    8: ((0.922, 0.001, 0.479), (3.021, 6.469, 0.479), (2.683, 6.47, 0.479), (4.014, 5.944, 0.479)),
}
"""By samples of a microbatch: the first layer, the second, each of the 23 that follow, the last.
Values of 1 and 2 samples were rounded by hand where they are published."""
PARTITIONS = {1: (26,), 2: (12, 14), 4: (5, 7, 7, 7)}
"""Layers of every stage, by the number of stages."""
OUTPUT = 8_388_608
"""Bytes of the output of a layer for one sample: 2048 tokens of 1024 values in fp32."""
BANDWIDTH = 25e6
"""Bytes per ms."""


class Measured(NamedTuple):
    """A plan: its parallelism, and what was measured, in ms."""

    stages: int
    data: int
    samples: int
    """Of a microbatch."""
    batches: int
    step: float
    reduction: float
    """Of gradients."""


PLANS = (
    Measured(1, 1, 1, 1, 73.59, 8.23),
    Measured(1, 1, 1, 32, 2281.23, 8.03),
    Measured(1, 2, 2, 8, 804.8, 36.01),
    Measured(1, 4, 4, 8, 1235.16, 1060.94),
    Measured(1, 16, 8, 8, 1925.57, 103.594),
    Measured(1, 32, 8, 4, 1025.94, 77.19),
    Measured(2, 1, 8, 4, 657.05, 4.14),
    Measured(2, 2, 1, 32, 1445.23, 16.9),
    Measured(2, 4, 8, 16, 2298.8, 45.99),
    Measured(2, 8, 8, 16, 2311.16, 54.3),
    Measured(2, 16, 8, 8, 1224.76, 37.98),
    Measured(4, 1, 1, 64, 1601.96, 4.65),
    Measured(4, 2, 8, 32, 2697.95, 13.84),
    Measured(4, 4, 8, 32, 2725.78, 61.51),
    Measured(4, 8, 8, 16, 1474.85, 40.85),
)


def main() -> None:
    """Print the record."""
    print(heading("Sailor's plans, predicted and measured"), "\n")
    print(__doc__.partition("\n\n")[2].partition("\n\n")[2])
    print(*table(NAMES, map(_row, PLANS)), sep="\n")


NAMES = (
    *("stages", "data", "samples", "microbatches", "compute", "with gradient work"),
    *("and transfers", "as streams", "measured", "predicted / measured"),
)


def _row(plan: Measured) -> list[str]:
    compute, gradients, delays, streams = (
        step(plan, **fields)
        for fields in (
            {"gradients": False},
            {},
            {"transfers": True},
            {"transfers": True, "link_mode": "streams"},
        )
    )
    figures = [compute, gradients, delays, streams, plan.step]
    ratios = f"{delays / plan.step:.3f} to {streams / plan.step:.3f}"
    return [*map(str, plan[:4]), *(f"{figure:.1f}" for figure in figures), ratios]


def step(
    plan: Measured, *, gradients: bool = True, transfers: bool = False, link_mode: str = "delay"
) -> float:
    """A step of 1F1B in ms."""
    forward, backward, optimizer = zip(*_stages(plan), strict=True)
    work: dict[str, Any] = {"gradient_sync": plan.reduction, "optimizer": optimizer}
    pipeline = Pipeline(
        stages=plan.stages,
        batches=plan.batches,
        forward=forward,
        backward=backward,
        p2p=round(OUTPUT * plan.samples / BANDWIDTH, 6) if transfers else 0,
        link_mode=link_mode,
        **(work if gradients else {}),
    )
    schedule = evaluate(pipeline, "1f1b")
    return float(pipeline.ticks.time(schedule.metrics.makespan_ticks))


def _stages(plan: Measured) -> Iterator[Costs]:
    """F, BW and optimizer of every stage: sums over its layers."""
    first, second, middle, last = LAYERS[plan.samples]
    layers = [first, second, *[middle] * 23, last]
    for count in PARTITIONS[plan.stages]:
        own_layers, layers = layers[:count], layers[count:]
        forward, backward, optimizer = (
            round(sum(times), 3) for times in zip(*own_layers, strict=True)
        )
        yield forward, backward, optimizer


if __name__ == "__main__":
    main()
