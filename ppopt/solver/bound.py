"""Lower bounds: a bound, and its rounding up to the next value that an optimum can have.

For fixed orders the minimum makespan is the length of a path, which is a sum of times. The minimum
of the largest device span is a maximum cycle ratio (Lawler, "Combinatorial Optimization", 1976,
section 3.13): the length of a cycle of waits, divided by the number of devices that the cycle
enters at their first operation, coming from their last one. A simple cycle enters each device at
most once. So if all times are multiples of g ticks, a makespan is a multiple of g, and a span one
of g / L, with L the least common multiple of 1, 2, ..., devices. A span between two ticks is
rounded up: starts are whole ticks.

Restricting starts to whole ticks loses nothing for makespan, because earliest starts are sums of
times. It loses nothing for the span of one device, because its cycles enter one device. It loses
less than a tick for the largest of several spans: round all starts down to ticks. Every wait is an
integer, so it still holds. Simultaneous events stay simultaneous, so memory never rises. A span
grows by less than a tick. `docs/exactness.md` has an example that loses half a tick.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import NamedTuple

from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.arguments import COMMON_DIVISOR


class Bound(NamedTuple):
    """A proved lower bound in ticks, with its argument as text and as a certificate."""

    value: int
    proof: str
    certificate: Certificate


TRIVIAL = Bound(0, "trivial bound 0", Certificate(Argument.WORK))


def common_divisor(instance: Instance) -> int:
    """Largest number of ticks of which all times of equal microbatches are multiples."""
    return gcd(*instance.costs.ticks.times)


def min_possible_value(problem: Problem, bound: int) -> int:
    """Minimum value of at least `bound` that an optimum can have, in ticks."""
    if not COMMON_DIVISOR.applies(problem.traits):
        return bound
    times = common_divisor(problem.instance)
    span = problem.objective is Objective.DEVICE_SPAN
    divisor = lcm(*range(1, problem.pipeline.num_devices + 1)) if span and times > 1 else 1
    if times <= divisor:
        return bound
    multiple = (bound - 1) * divisor // times + 1
    return -(-multiple * times // divisor)


WHOLE_TICKS = "; for start times on the time grid (off-grid starts gain less than one tick)"
"""Text for a device span: starts between ticks might make it smaller, by less than a tick."""


def start_scope(problem: Problem, bound: int = 0, devices: tuple[int, ...] = ()) -> str:
    """Text that a bound covers starts at whole ticks only; empty if other starts gain nothing.

    `devices` are the devices of the certificate of the bound. The bound of a single device holds
    for all starts, unless it was rounded up to a tick.
    """
    span = problem.objective is Objective.DEVICE_SPAN and problem.pipeline.num_devices > 1
    exact = len(devices) == 1 and bound % (common_divisor(problem.instance) or 1) == 0
    return WHOLE_TICKS if span and not exact else ""
