"""Least time of two chains of phases on compute and on a link, by trying every tick.

In every tick each chain runs or waits, a phase that has begun never waits, one phase runs on a
machine at a time, and compute that no chain uses may run W that is ready. All states that so many
ticks may lead to are followed until one has nothing left.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from ppopt.problem.phase_pairs import Chain
from ppopt.problem.phases import Machine


class State(NamedTuple):
    """Ticks that F and the backward have run, and ticks of W that are ready."""

    forward: int
    backward: int
    ready: int


def min_time(forward: Chain, backward: Chain) -> int:
    """Ticks until both chains and all W are done; the chains are to be short."""
    ends = sum(forward.times), sum(backward.times)
    weights = backward.weights or (0,) * (len(backward.times) + 1)
    states, ticks = {State(0, 0, weights[0])}, 0
    while State(*ends, 0) not in states:
        states = {after for state in states for after in _after(state, forward, backward, weights)}
        ticks += 1
    return ticks


def _after(state: State, forward: Chain, backward: Chain, weights: tuple[int, ...]) -> set[State]:
    states = set()
    forwards, two = _running(forward, state.forward), _running(backward, state.backward)
    for runs in product(_choices(forwards), _choices(two)):
        used = [phase[0] for phase, run in zip((forwards, two), runs, strict=True) if run and phase]
        if len(set(used)) < len(used):
            continue
        idle = Machine.COMPUTE not in used
        for filled in {0, min(1, state.ready)} if idle else {0}:
            done = state.backward + runs[1]
            ready = state.ready - filled
            if runs[1]:
                ends = [sum(backward.times[: k + 1]) for k in range(len(backward.times))]
                ready += weights[ends.index(done) + 1] if done in ends else 0
            states.add(State(state.forward + runs[0], done, ready))
    return states


def _running(chain: Chain, progress: int) -> tuple[Machine, bool] | None:
    """Machine of the next tick of a chain, and whether its phase has begun; None: it is done."""
    begin = 0
    for on, time in zip(chain.on, chain.times, strict=True):
        if progress < begin + time:
            return on, progress > begin
        begin += time
    return None


def _choices(phase: tuple[Machine, bool] | None) -> tuple[int, ...]:
    """Ticks that a chain may run now: of a phase that has begun, one."""
    if phase is None:
        return (0,)
    return (1,) if phase[1] else (0, 1)
