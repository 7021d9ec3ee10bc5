"""Phases of a layer of experts: compute, and exchanges of tokens, which overlap in a pair.

F computes attention and the router, sends tokens to their experts, computes these, and sends the
tokens back; the backward does the reverse (`run` of a layer in
megatron/core/models/common/model_chunk_schedule_plan.py of Megatron-LM, d98e8a6). An exchange
occupies a link, but for its visible share: that is compute, as is the time in which the CPU
launches kernels.
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.derivation.layer_part import VISIBLE
from ppopt.derivation.layer_parts import DISPATCHES
from ppopt.problem.phases import Machine, Phase, Phases

DIGITS = 3
"""Decimals of a time in ms."""


class ExchangeTimes(NamedTuple):
    """Times of F, or of a backward, of a layer, in ms."""

    total: float
    """All of it, alone."""
    experts: float
    """Compute between the exchanges."""
    exchange: float
    """Exchanges of tokens."""
    launching: float
    """Of the CPU, which launches the kernels."""
    weight: float = 0.0
    """W that may follow any time later, not in `total`."""
    weight_of_experts: float = 0.0
    """Its part of the experts."""


def exchange_phases(forward: ExchangeTimes, backward: ExchangeTimes) -> Phases:
    """Phases of F and of the backward of a layer."""
    return Phases(tuple(_phases(forward)), tuple(reversed(_phases(backward))))


def _phases(times: ExchangeTimes) -> list[Phase]:
    """In the order of F: the other parts, an exchange, experts, an exchange."""
    link = max(0.0, min((1 - VISIBLE) * times.exchange, times.total - times.launching))
    each = round(link / DISPATCHES, DIGITS)
    computed = round(times.total - DISPATCHES * each, DIGITS)
    experts = min(computed, round(times.experts + VISIBLE * times.exchange / DISPATCHES, DIGITS))
    later = round(times.weight_of_experts, DIGITS)
    exchange = Phase(Machine.LINK, each, 0)
    return [
        Phase(
            Machine.COMPUTE, round(computed - experts, DIGITS), round(times.weight - later, DIGITS)
        ),
        exchange,
        Phase(Machine.COMPUTE, experts, later),
        exchange,
    ]
