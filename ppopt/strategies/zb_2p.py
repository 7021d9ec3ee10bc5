"""ZB-2p: a greedy heuristic that fills gaps with weight passes, within 2p activations."""

from __future__ import annotations

from dataclasses import replace

from ppopt import timing
from ppopt.metrics import Objective, metrics
from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders
from ppopt.solver.construct import Decoder, one_at_a_time, policies
from ppopt.strategies.base import Options, Strategy, register

SHORTLIST = 3
"""Most schedules whose starts are chosen for device span exactly."""


def build(pipeline: Pipeline, _: Options) -> Orders:
    """The order of least device span among list schedules within 2p activations per device.

    The paper's ZB-2p is what its heuristic finds under that limit (arXiv 2401.10241, section 3.1:
    warm-up as deep as memory allows, then F and B in turn, W where a bubble would be); this is a
    heuristic of the same kind, with its own portfolio of rules, and not the authors' code.
    """
    ticks = pipeline.ticks
    room = [
        ticks.memory(ticks.static[device] + 2 * pipeline.num_devices * ticks.activation[stage])
        for stage, device in enumerate(pipeline.hosts[0])
    ]
    limits = [limit for _, limit in sorted(zip(pipeline.hosts[0], room, strict=True))]
    limited = replace(pipeline, mem_limit=limits)
    decoder = Decoder(limited)
    tried = (decoder.build(policy) for policy in policies(limited))
    found = sorted((one for one in tried if one), key=lambda one: (one.span, one.makespan))
    orders = [one.arrays() for one in found[:SHORTLIST]]
    return min(orders or [one_at_a_time(pipeline)], key=lambda order: _cost(pipeline, order))


def _cost(pipeline: Pipeline, orders: Orders) -> tuple[int, int]:
    figures = metrics(timing.schedule(pipeline, orders, Objective.DEVICE_SPAN))
    return figures.device_span, figures.makespan


register(
    Strategy(
        name="zb-2p",
        summary="greedy zero bubble within 2p activations, by the real stage times",
        source="after the heuristic of Zero Bubble, arXiv 2401.10241, section 3.1",
        build=build,
    )
)
