"""The search: infeasibility, bounds, construction, then CP-SAT for what is left."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from ppopt import timing
from ppopt.errors import InputError, VerificationError
from ppopt.evaluation import checked
from ppopt.metrics import Metrics, Objective, metrics
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders
from ppopt.schedule import Schedule
from ppopt.solver import bounds, construct
from ppopt.solver.result import Provenance, Result, Status
from ppopt.strategies import Options, registry

TIME_LIMIT = 60.0
"""Default seconds of a search."""
LARGEST_MODEL = 30_000
"""Most operations for which the full CP-SAT model is built."""


RELAX_SHARE = 0.3
"""Share of the time that is left, for bounds from single devices."""


class Progress(NamedTuple):
    """Where a search stands; times in the user's unit."""

    seconds: float
    phase: str
    value: Fraction | None
    lower_bound: Fraction


@dataclass
class _Search:
    """State of one search: the best schedule and the best bound so far."""

    pipeline: Pipeline
    objective: Objective
    fused: bool
    deadline: float
    began: float
    notify: Callable[[Progress], None]
    bound: bounds.Bound
    best: Schedule | None = None
    value: int | None = None
    phase: str = "bounds"
    interrupted: bool = False
    tried: set[str] = field(default_factory=set)

    @property
    def closed(self) -> bool:
        return self.value == self.bound.value

    @property
    def left(self) -> float:
        return 0.0 if self.interrupted else self.deadline - time.monotonic()

    def offer(self, orders: Orders | None) -> None:
        """Take an order if it keeps the limits and betters the best value."""
        if orders is None:
            return
        self.take(timing.schedule(self.pipeline, orders, self.objective))

    def take(self, made: Schedule) -> None:
        """Take a schedule at its own times if it keeps the limits and betters the best value."""
        figures = metrics(made)
        value = figures.value(self.objective)
        if self._fits(figures) and (self.value is None or value < self.value):
            self.best, self.value = made, value
            self.report()

    def _fits(self, figures: Metrics) -> bool:
        limits = self.pipeline.ticks.limits
        return limits is None or all(
            peak <= limit for peak, limit in zip(figures.peak_memory, limits, strict=True)
        )

    def raise_bound(self, bound: bounds.Bound) -> None:
        """Take a lower bound if it is better."""
        if bound.value > self.bound.value:
            self.bound = bound
            self.report()

    def report(self) -> None:
        """Tell the observer where the search stands."""
        self.tell(self.value, self.bound.value)

    def tell(self, value: int | None, bound: int) -> None:
        """Tell the observer a value and a bound, in ticks."""
        ticks = self.pipeline.ticks
        shown = None if value is None else ticks.time(value)
        seconds = time.monotonic() - self.began
        self.notify(Progress(seconds, self.phase, shown, ticks.time(bound)))


def solve(
    pipeline: Pipeline,
    *,
    mem_limit: Any = None,
    objective: Objective | str = Objective.MAKESPAN,
    fused: bool = False,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Search the schedule of least makespan or device span within the memory limits.

    The search space: every backward split into B and W (default) or every backward whole
    (`fused`); any order on every device. `mem_limit`, when given, replaces the pipeline's own.
    `time_limit` in seconds; `workers` default to the processors available. Ctrl-C ends the search
    and returns the best so far. Raises InputError on misuse only; "infeasible" is a result.
    """
    began = time.monotonic()
    if mem_limit is not None:
        pipeline = replace(pipeline, mem_limit=mem_limit)
    workers = workers or len(os.sched_getaffinity(0))
    _check(time_limit, workers, seed)
    objective = Objective(objective)
    provenance = Provenance(seed, workers, time_limit, versions())
    why = bounds.infeasibility(pipeline, fused=fused)
    if why:
        seconds = time.monotonic() - began
        return Result(
            pipeline,
            objective,
            fused,
            Status.INFEASIBLE,
            None,
            None,
            None,
            why,
            provenance,
            seconds,
        )
    search = _Search(
        pipeline,
        objective,
        fused,
        began + time_limit,
        began,
        progress or (lambda _: None),
        bounds.device_bound(pipeline, objective, fused=fused),
    )
    _run(search, provenance)
    return _result(search, provenance)


def _check(time_limit: float, workers: int, seed: int) -> None:
    if not time_limit > 0:
        raise InputError(f"time_limit: {time_limit} is not above 0 seconds")
    if workers < 1:
        raise InputError(f"workers: {workers} is below 1")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed} is not between 0 and 2^31 - 1")


def _run(search: _Search, provenance: Provenance) -> None:
    try:
        _construct(search)
        _relax(search, provenance)
        if not search.closed and search.left > 0:
            _search_model(search, provenance)
    except KeyboardInterrupt:
        search.interrupted = True


def _construct(search: _Search) -> None:
    search.phase = "construction"
    for orders in _candidates(search):
        search.offer(orders)
        if search.closed or search.left <= 0:
            return


def _candidates(search: _Search) -> Iterator[Orders | None]:
    """Orders worth trying: the safe one, the hand strategies of this placement, list scheduling."""
    yield construct.one_at_a_time(search.pipeline, fused=search.fused)
    for strategy in registry().values():
        if search.pipeline.routes == 1 and (strategy.fused or not search.fused):
            orders = _hand_made(strategy.name, search.pipeline)
            yield orders if search.fused or orders is None else split(search.pipeline, orders)
    for rule in construct.rules(search.pipeline):
        yield construct.construct(search.pipeline, rule, fused=search.fused)


def _hand_made(name: str, pipeline: Pipeline) -> Orders | None:
    """Orders of a strategy on exactly this pipeline, None where it does not apply."""
    strategy = registry()[name]
    try:
        placed = strategy.apply(pipeline, Options())
        if placed.hosts != pipeline.hosts:
            return None
        return strategy.build(placed, Options())
    except InputError:
        return None


def split(pipeline: Pipeline, orders: Orders) -> Orders:
    """The same orders with every BW replaced by B and, at once, W."""
    size = pipeline.num_stages * pipeline.batches
    parts = []
    for order in orders:
        full = order >= OpKind.BW * size
        pair = np.stack([order, order], axis=1)
        pair[full] += np.array([OpKind.B - OpKind.BW, OpKind.W - OpKind.BW]) * size
        keep = np.stack([np.ones_like(full), full], axis=1)
        parts.append(pair[keep])
    return parts


def _relax(search: _Search, provenance: Provenance) -> None:
    """Bounds from single devices, each for a share of the time."""
    if search.closed or search.value is None:
        return
    from ppopt.solver import cpsat, relaxed  # noqa: PLC0415  ortools takes long to load

    search.phase = "bounds"
    share = RELAX_SHARE * search.left
    spent = time.monotonic() + share
    for devices in relaxed.singles(search.pipeline):
        left = spent - time.monotonic()
        if search.closed or left <= 0:
            return
        limits = cpsat.Limits(min(left, share / 4), provenance.workers, provenance.seed)
        search.raise_bound(
            relaxed.bound_of(
                search.pipeline,
                search.objective,
                devices,
                search.bound,
                search.value,
                limits,
                fused=search.fused,
            )
        )


def _search_model(search: _Search, provenance: Provenance) -> None:
    """CP-SAT on the whole problem, from the best schedule and below it."""
    from ppopt.solver import cpsat, model  # noqa: PLC0415  ortools takes long to load

    pipeline, value = search.pipeline, search.value
    operations = (2 if search.fused else 3) * pipeline.num_stages * pipeline.batches
    if value is None or search.best is None or operations > LARGEST_MODEL:
        return
    search.phase = "CP-SAT"
    search.report()
    built = model.build(
        pipeline, search.objective, fused=search.fused, horizon=value, bound=search.bound.value
    )
    model.hint(built, search.best)
    proof = f"CP-SAT searched all orders of the {operations} operations and found none below"
    best, low = value, search.bound.value

    def follow(found: int | None, bound: int) -> None:
        nonlocal best, low
        best = min(best, best if found is None else found)
        low = min(max(low, bound), best)
        search.tell(best, low)

    limits = cpsat.Limits(max(search.left, 0.01), provenance.workers, provenance.seed)
    outcome = cpsat.search(built, limits, follow)
    search.interrupted = outcome.interrupted
    if outcome.schedule is not None:
        search.offer(outcome.schedule.orders)
        search.take(outcome.schedule)
    search.raise_bound(bounds.Bound(outcome.bound, proof))
    if search.value is None or search.value < search.bound.value:
        raise VerificationError("a bound lies above the value of a schedule: please report it")


def _result(search: _Search, provenance: Provenance) -> Result:
    ticks = search.pipeline.ticks
    status = Status.OPTIMAL if search.closed else Status.FEASIBLE
    bound = ticks.time(search.bound.value)
    if search.best is None or search.value is None:
        status = Status.UNKNOWN
    seconds = time.monotonic() - search.began
    result = Result(
        search.pipeline,
        search.objective,
        search.fused,
        status,
        None,
        None if search.value is None else ticks.time(search.value),
        bound,
        search.bound.proof,
        provenance,
        seconds,
    )
    if search.best is None:
        return result
    return replace(result, schedule=checked(replace(search.best, origin=result.origin())))


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    found = {name: metadata.version(name) for name in ("ortools", "numpy")}
    return {
        "ppopt": metadata.version("ppopt-pipeline"),
        "python": platform.python_version(),
        **found,
    }
