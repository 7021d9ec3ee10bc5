"""Local search over policies: change a few entries, keep what is not much worse, cool down.

Simulated annealing (Kirkpatrick, Gelatt, Vecchi, Science 220, 1983) with list scheduling as
decoder; the search runs for a number of evaluations, not for a time, so that it repeats itself.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ppopt.problem.problem import Objective
from ppopt.schedule.list_scheduling import Built, Decoder, Policy

WARMTH = 0.005
"""Share of the value by which a step may be worse at the start."""
PATIENCES = (0, 25, 50, 75, 99)


def climb(
    decoder: Decoder,
    start: Policy,
    value: int,
    objective: Objective,
    *,
    steps: int,
    rng: Random,
    found: Callable[[Built], None],
    stop: Callable[[], bool],
) -> tuple[int, Policy]:
    """Search from a policy of this value (ticks); return the best one met and its value.

    `found` is told of every schedule that is better than all before.
    """
    best, best_value = start, value
    current, current_value = start, value
    for step in range(steps):
        if stop():
            break
        policy = _neighbour(current, decoder, rng)
        built = decoder.build(policy)
        if built is None:
            continue
        reached = built.value(objective)
        slack = WARMTH * best_value * (1 - step / steps) * rng.random()
        if reached <= current_value + slack:
            current, current_value = policy, reached
        if reached < best_value:
            best, best_value = policy, reached
            found(built)
    return best_value, best


def _neighbour(policy: Policy, decoder: Decoder, rng: Random) -> Policy:
    """Change one to three entries."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        field = rng.randrange(len(Policy._fields) - (decoder.pipeline.num_chunks == 1))
        entries: list[Any] = list(policy[field])
        place = rng.randrange(len(entries))
        entries[place] = _changed(entries[place], field, rng)
        policy = policy._replace(**{Policy._fields[field]: tuple(entries)})
    return policy


def _changed(entry: Any, field: int, rng: Random) -> Any:
    match Policy._fields[field]:
        case "cap":
            return max(1, entry + rng.choice((-2, -1, 1, 2)))
        case "patience":
            return rng.choice(PATIENCES)
        case "reserve":
            return max(0, entry + rng.choice((-2, -1, 1, 2)))
    return not entry
