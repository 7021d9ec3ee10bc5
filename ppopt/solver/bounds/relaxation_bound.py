"""Lower bounds from few devices: the relaxed models solved, most promising devices first."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from ppopt.errors import VerificationError
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.rechecker.certificate import Argument, Certificate
from ppopt.solver.bounds.destructive_bounds import Between, question
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.incumbent import Search

Devices = tuple[int, ...]
SPREADS = (2, 3, 4, 8)
"""Sizes of the sets of devices spread along the pipeline."""
FOCUSES = (cpsat.PROOFS, cpsat.PROOFS, ("core", "objective_lb_search"), ())
"""CP-SAT's subsolvers per round that searches: on these models each is, now and then, ten times
faster."""
FIRST = 4
"""Devices alone that come before the sets."""
SHARE = 0.5
"""Largest share of a round's time for one relaxed model, and of that for one question."""


class Relaxations:
    """The relaxed models worth solving, and which of them are settled."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._round = 0
        pipeline = search.problem.pipeline
        first, *others = singles(pipeline), *(spread(pipeline, count) for count in SPREADS)
        self._open = [*first[:FIRST], *chain.from_iterable(others), *first[FIRST:]]
        self._next = self._open
        """The same sets, as they are to be asked."""
        self.fruitful = True
        """Whether the last round raised the bound."""

    @property
    def settled(self) -> bool:
        """Whether every relaxed model has been solved to its end."""
        return not self._open

    def raise_bound(self, budget: Budget) -> None:
        """Solve what is open, each set for a share of the time; settled ones do not come back.

        Every other round searches, the most promising sets first; those between ask, sets that
        raised the bound first, and last those that were asked in vain.
        """
        self._search.enter("bounds")
        before = self._search.bound.value
        asks = self._round % 2
        raised, vain, settled = self._tried(self._next if asks else self._open, budget)
        if asks:
            done = {*raised, *vain, *settled}
            self._next = [*raised, *(one for one in self._next if one not in done), *vain]
        self._open = [one for one in self._open if one not in settled]
        self._next = [one for one in self._next if one not in settled]
        self._round += 1
        self.fruitful = self._search.bound.value > before

    def _tried(self, sets: list[Devices], budget: Budget) -> tuple[list[Devices], ...]:
        """Try sets of devices in turn; return what raised the bound, was in vain, is settled."""
        search = self._search
        settle = self._ask if self._round % 2 else self._minimize
        raised: list[Devices] = []
        vain: list[Devices] = []
        settled: list[Devices] = []
        for devices in sets:
            if budget.over or search.value is None:
                break
            before = search.bound.value
            if settle(devices, budget):
                settled.append(devices)
            else:
                (raised if search.bound.value > before else vain).append(devices)
        return raised, vain, settled

    def _minimize(self, devices: Devices, budget: Budget) -> bool:
        """Search the least value of a relaxed model; return whether it is found."""
        search = self._search
        assert search.value is not None
        focus = FOCUSES[self._round // 2 % len(FOCUSES)]
        limits = replace(budget.limits(SHARE, focus), presolve=False)
        bound, outcome = bound_of(search.problem, devices, search.bound, search.value, limits)
        budget.pay(outcome)
        search.raise_bound(bound)
        return outcome.complete

    def _ask(self, devices: Devices, budget: Budget) -> bool:
        """Close in on that value by questions; return whether it is found."""
        search = self._search
        assert search.value is not None
        part = budget.part(SHARE)
        between = Between(search.bound.value, search.value)
        for target in between.questions(lambda: search.bound.value):
            if part.over:
                break
            limits = replace(part.limits(SHARE, cpsat.PROOFS), presolve=False)
            outcome = _answer(question(search.problem, target, devices), limits)
            part.pay(outcome)
            if outcome.infeasible:
                search.raise_bound(needed(devices, target + 1))
            elif outcome.ended:
                between.high = target
            else:
                between.skip(target)
        budget.spent += part.spent
        return between.low == between.high


def bound_of(
    problem: Problem, devices: Devices, known: Bound, value: int, limits: cpsat.Limits
) -> tuple[Bound, cpsat.Outcome]:
    """Raise a known bound by what `devices` alone need, up to the value of a known schedule.

    Of a relaxed model not solved to its end, the outcome gives its best bound, never its
    incumbent.
    """
    relaxed = model.build(
        problem.pipeline,
        problem.objective,
        fused=problem.fused,
        horizon=value,
        bound=known.value,
        devices=devices,
    )
    outcome = _answer(relaxed, limits)
    if outcome.infeasible:
        raise VerificationError(
            f"the relaxation to devices {devices} lost a schedule of {value} ticks: "
            "please report it"
        )
    if outcome.bound <= known.value:
        return known, outcome
    return needed(devices, outcome.bound), outcome


def _answer(built: model.Model, limits: cpsat.Limits) -> cpsat.Outcome:
    outcome = cpsat.search(built, limits, lambda _value, _bound: None)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def needed(devices: Devices, value: int, how: str = "solved by CP-SAT") -> Bound:
    """What `devices` alone need, as a bound."""
    names = " and ".join(map(str, devices))
    alone = f"device {names} alone needs" if len(devices) == 1 else f"devices {names} alone need"
    return Bound(
        value,
        f"{alone} that long, whatever the others do: their operations, memory limits and the "
        f"delays through all other stages already take it ({how})",
        Certificate(Argument.DEVICES, tuple(sorted(devices))),
    )


def singles(pipeline: Pipeline) -> list[Devices]:
    """Every device alone: the busiest, the first and the last before the others."""
    ticks = pipeline.ticks
    work = [
        sum(
            ticks.durations[kind][stage]
            for hosted in pipeline.hosted
            for stage in hosted[device]
            for kind in (OpKind.F, OpKind.BW)
        )
        for device in range(pipeline.num_devices)
    ]
    ranked = sorted(range(pipeline.num_devices), key=lambda device: (-work[device], device))
    first = dict.fromkeys((ranked[0], 0, pipeline.num_devices - 1, *ranked))
    return [(device,) for device in first]


def spread(pipeline: Pipeline, count: int) -> list[Devices]:
    """Sets of `count` devices evenly spaced along the pipeline, from the first and the second.

    Where memory is tight, devices hold each other up: a few of them, far apart, often need as
    long as all together.
    """
    devices = pipeline.num_devices
    if not 1 < count < devices:
        return []
    step = devices / count
    return list(
        dict.fromkeys(
            tuple(int(shift + step * place) % devices for place in range(count))
            for shift in (0, int(step) // 2)
        )
    )
