"""Lower bounds from few devices: the relaxed models solved, most promising devices first."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from ppopt.errors import VerificationError
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bounds.destructive_bounds import Between, question
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.budget import Budget, Limits
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import CP_SAT, RelaxationParams

Devices = tuple[int, ...]


class RelaxationBound:
    """The relaxed models worth solving, and which of them are settled.

    Every other turn minimises, the most promising sets first; those between ask whether given
    values can be met (`destructive_bounds`), sets that raised the bound first, and last those that
    were asked in vain. Each set gets a share of the time; settled ones do not come back.
    """

    name = "relaxation bounds"

    def __init__(self, problem: Problem, params: RelaxationParams) -> None:
        self._params = params
        self._turn = 0
        pipeline = problem.pipeline
        first, *others = (
            singles(pipeline),
            *(spread(pipeline, count) for count in params.spreads),
        )
        self._open = [*first[: params.first], *chain.from_iterable(others), *first[params.first :]]
        self._next = self._open
        """The same sets, in the order in which they are asked."""

    def supports(self, problem: Problem) -> bool:
        """A device subset replaces the others by delays, which knows no slices."""
        return problem.pipeline.num_slices == 1

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Solve what is open, or ask it."""
        before = incumbent.bound.value
        asks = self._turn % 2
        raised, in_vain, settled = self._tried(
            self._next if asks else self._open, incumbent, budget
        )
        if asks:
            done = {*raised, *in_vain, *settled}
            self._next = [*raised, *(one for one in self._next if one not in done), *in_vain]
        self._open = [one for one in self._open if one not in settled]
        self._next = [one for one in self._next if one not in settled]
        self._turn += 1
        fruitful = incumbent.bound.value > before
        return Outcome(budget.spent, exhausted=not self._open, fruitful=fruitful)

    def _tried(
        self, sets: list[Devices], incumbent: Incumbent, budget: Budget
    ) -> tuple[list[Devices], ...]:
        """Try sets of devices in turn; return those that raised the bound, in vain, settled."""
        solve = self._ask if self._turn % 2 else self._minimize
        raised: list[Devices] = []
        in_vain: list[Devices] = []
        settled: list[Devices] = []
        for devices in sets:
            if budget.over or incumbent.value is None:
                break
            before = incumbent.bound.value
            if solve(devices, incumbent, budget):
                settled.append(devices)
            else:
                (raised if incumbent.bound.value > before else in_vain).append(devices)
        return raised, in_vain, settled

    def _minimize(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Search the least value of a relaxed model; return whether it is found."""
        assert incumbent.value is not None
        focuses = self._params.focuses
        focus = focuses[self._turn // 2 % len(focuses)]
        limits = replace(budget.limits(self._params.share, focus), presolve=False)
        bound, outcome = bound_of(
            incumbent.problem, devices, incumbent.bound, incumbent.value, limits
        )
        budget.pay(outcome.work)
        incumbent.raise_bound(bound)
        return outcome.complete

    def _ask(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Close in on that value by questions; return whether it is found."""
        assert incumbent.value is not None
        share = self._params.share
        part = budget.part(share)
        between = Between(incumbent.bound.value, incumbent.value)
        for target in between.questions(lambda: incumbent.bound.value):
            if part.over:
                break
            limits = replace(part.limits(share, CP_SAT.proof_subsolvers), presolve=False)
            outcome = _answer(question(incumbent.problem, target, devices), limits)
            part.pay(outcome.work)
            if outcome.infeasible:
                incumbent.raise_bound(needed(devices, target + 1))
            elif outcome.ended:
                between.high = target
            else:
                between.skip(target)
        budget.pay(part.spent)
        return between.low == between.high


def bound_of(
    problem: Problem, devices: Devices, known: Bound, value: int, limits: Limits
) -> tuple[Bound, cpsat.Outcome]:
    """Raise a known bound by what `devices` alone need, up to the value of a known schedule.

    Of a relaxed model not solved to its end, the outcome gives its best bound, never its
    incumbent.
    """
    relaxed = model.build(problem, horizon=value, bound=known.value, devices=devices)
    outcome = _answer(relaxed, limits)
    if outcome.infeasible:
        raise VerificationError(
            f"the relaxation to devices {devices} lost a schedule of {value} ticks: "
            "please report it"
        )
    if outcome.bound <= known.value:
        return known, outcome
    return needed(devices, outcome.bound), outcome


def _answer(built: model.Model, limits: Limits) -> cpsat.Outcome:
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
