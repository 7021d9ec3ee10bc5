"""Lower bounds: a bound, and its rounding up to the next value that an optimum can have.

For given orders the least makespan is the length of a path, a sum of times. The least largest
device span is a largest cycle ratio (Lawler, "Combinatorial Optimization", 1976, section 3.13): the
length of a cycle of waits, divided by the number of devices whose first operation the cycle enters
from their last one. A simple cycle enters each device once. So if all times are multiples of g
ticks, a makespan is a multiple of g, and a span one of g / L, with L the least common multiple of
1, 2, ..., devices. A span between two ticks is rounded up: starts are whole ticks.

What whole ticks lose: nothing for makespan (earliest starts are sums of times), nothing for the
span of one device (its cycles enter one device), and less than a tick for the largest of several
spans. For the last, round all starts down to ticks: every wait is an integer, so it is kept; events
at the same instant stay at the same instant, so memory never rises; and a span grows by less than a
tick. `docs/exactness.md` has an example in which half a tick is lost.
"""

from __future__ import annotations

from math import gcd, lcm
from typing import NamedTuple

from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.arguments import COMMON_DIVISOR


class Bound(NamedTuple):
    """A proved lower bound in ticks, with its argument as text and as a certificate."""

    value: int
    proof: str
    certificate: Certificate


TRIVIAL = Bound(0, "trivial bound 0", Certificate(Argument.WORK))


def common_divisor(pipeline: Pipeline) -> int:
    """Largest number of ticks of which all times are multiples."""
    return gcd(*pipeline.ticks.times)


def least_possible_value(problem: Problem, bound: int) -> int:
    """Least value of an optimum that is at least `bound`, in ticks."""
    if not COMMON_DIVISOR.applies(problem.traits):
        return bound
    times = common_divisor(problem.pipeline)
    span = problem.objective is Objective.DEVICE_SPAN
    parts = lcm(*range(1, problem.pipeline.num_devices + 1)) if span and times > 1 else 1
    if times <= parts:
        return bound
    number = (bound - 1) * parts // times + 1
    return -(-number * times // parts)


WHOLE_TICKS = "; for start times on the time grid (off-grid starts gain less than one tick)"
"""Text for a device span that starts between ticks may make smaller."""


def start_scope(problem: Problem, bound: int = 0, devices: tuple[int, ...] = ()) -> str:
    """Text that says that a bound covers starts at whole ticks; empty if other starts gain nothing.

    `devices` are those that alone need as long, by the certificate of the bound. For a single
    device no starts give less, unless the bound was rounded up to a tick.
    """
    span = problem.objective is Objective.DEVICE_SPAN and problem.pipeline.num_devices > 1
    exact = len(devices) == 1 and bound % (common_divisor(problem.pipeline) or 1) == 0
    return WHOLE_TICKS if span and not exact else ""
