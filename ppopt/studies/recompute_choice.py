"""Which layers recompute under a hand strategy: as few as its memory limit allows.

What a device holds depends on the order of its operations and on what its own stages keep, not on
other devices. So every device is given the choice of least time with which it keeps its limit; all
devices are narrowed down together. For an order that does not depend on times, and one stage per
device, no other choice within the limit is faster: longer operations of the same order end no
sooner. Devices of several stages choose among combinations that no other betters in both the time
and the memory of all their stages together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod

from ppopt.errors import NotApplicableError
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.recompute.space import StageChoice, stage_choices
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate

MOST_OF_DEVICE = 4096
"""Most combinations of the choices of a device's stages."""
Scheduled = Callable[[Sequence[int]], Schedule]
"""The schedule of the strategy with a choice of every device."""


def choose_recompute(
    pipeline: Pipeline,
    strategy: str,
    objective: Objective | str = Objective.MAKESPAN,
    options: Options | None = None,
) -> Schedule:
    """The schedule of a strategy in which as few layers recompute as its memory limit asks for.

    The pipeline has a model in layers with a partition. Without a limit nothing recomputes. Where
    a device is over its limit whatever recomputes, all of its layers that may recompute do. Raises
    InputError where the strategy is unknown, and NotApplicableError where it does not apply.
    """
    options, objective = options or Options(), Objective(objective)
    placed = resolve(strategy).apply(replace(pipeline, mem_limit=pipeline.limits), options)
    base = replace(
        pipeline,
        model=pipeline.model.recomputing(lambda _: False),
        recompute=None,
        partition=placed.counts,
        mem_limit=pipeline.limits,
    )
    made = evaluate(base, strategy, objective, options)
    if base.limits is None or made.fits_limits:
        return made
    search = _Narrowing(base, placed)

    def scheduled(numbers: Sequence[int]) -> Schedule:
        return evaluate(search.pipeline(numbers), strategy, objective, options)

    return search.run(scheduled)


class _Narrowing:
    """The choices of every device, and bisection for the cheapest that keeps its limit."""

    def __init__(self, base: Pipeline, placed: Pipeline) -> None:
        if placed.routes > 1:
            raise NotApplicableError("recompute: search knows one route only; use none or full")
        self._base, self._hosted = base, placed.hosted[0]
        stages = base.model.stage_layers(placed.counts)
        self._starts = [sum(placed.counts[:stage]) for stage in range(len(stages))]
        fronts = [stage_choices(layers) for layers in stages]
        self._choices = [_combined([fronts[stage] for stage in own]) for own in self._hosted]

    def pipeline(self, numbers: Sequence[int]) -> Pipeline:
        """The pipeline in which the layers of the choice of every device recompute."""
        places: set[int] = set()
        for own, choices, number in zip(self._hosted, self._choices, numbers, strict=True):
            for stage, one in zip(own, choices[number], strict=True):
                places |= {self._starts[stage] + place for place in one.layers}
        layers = tuple(
            replace(layer, recompute=place in places)
            for place, layer in enumerate(self._base.model.layers)
        )
        return replace(self._base, model=replace(self._base.model, layers=layers))

    def run(self, scheduled: Scheduled) -> Schedule:
        """Bisect all devices at once; then raise those that are still over their limits."""
        low = [0] * len(self._choices)
        high = [len(choices) - 1 for choices in self._choices]
        while low != high:
            middle = [(one + other) // 2 for one, other in zip(low, high, strict=True)]
            over = _over_limit(scheduled(middle))
            low = [
                min(number + 1, top) if beyond else bottom
                for number, beyond, top, bottom in zip(middle, over, high, low, strict=True)
            ]
            high = [
                top if beyond else number
                for number, beyond, top in zip(middle, over, high, strict=True)
            ]
        return self._raised(scheduled, low)

    def _raised(self, scheduled: Scheduled, numbers: list[int]) -> Schedule:
        """The schedule of these choices, or of the next ones of devices over their limits."""
        while True:
            made, before = scheduled(numbers), numbers
            numbers = [
                min(number + over, len(choices) - 1)
                for number, over, choices in zip(
                    numbers, _over_limit(made), self._choices, strict=True
                )
            ]
            if numbers == before:
                return made


def _over_limit(schedule: Schedule) -> list[bool]:
    """Per device, whether its peak is over its limit."""
    limits = schedule.pipeline.ticks.limits
    assert limits is not None
    return [peak > limit for peak, limit in zip(schedule.metrics.peak_memory, limits, strict=True)]


def _combined(fronts: list[list[StageChoice]]) -> list[tuple[StageChoice, ...]]:
    """Combinations of the choices of a device's stages that no other betters, cheapest first.

    Compared are the time and what is kept of all stages together. Very long lists are thinned out.
    """
    lists = [list(front) for front in fronts]
    while prod(map(len, lists)) > MOST_OF_DEVICE:
        longest = max(lists, key=len)
        longest[1:-1] = longest[1:-1:2]
    found: list[tuple[StageChoice, ...]] = []
    least: Fraction | None = None
    for one in sorted(product(*lists), key=_cost):
        _, kept = _cost(one)
        if least is None or kept < least:
            found.append(one)
            least = kept
    return found


def _cost(choice: tuple[StageChoice, ...]) -> tuple[Fraction, Fraction]:
    """Time and what is kept of all stages together."""
    time = sum((stage.time for stage in choice), Fraction(0))
    return time, sum((stage.kept for stage in choice), Fraction(0))
