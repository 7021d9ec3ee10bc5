"""A hand strategy on its own best choices: its partition, and which layers recompute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import Chosen, open_choices
from ppopt.strategies import Options
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.strategy_proof import StrategyProof, bounded_points
from ppopt.studies.strategy_search import StrategySearch

TIME_LIMIT = 30.0
"""Default seconds of a choice."""
SEARCHING = 0.5
"""Share of the time limit that the search may take; the proof has the rest."""
BOUNDING = 0.5
"""Share of what is left that bounds of all partitions may take."""


@dataclass(frozen=True)
class StrategyChoice:
    """The best partition and recompute found for a strategy."""

    schedule: Schedule
    """The strategy on them: its pipeline has the layers per stage (`counts`) and says which
    recompute (`recomputed`). Over the memory limits only where nothing was found that keeps them.
    """
    value: Fraction
    """Objective of the schedule, in the user's unit."""
    lower_bound: Fraction | None
    """The strategy has no lower value within the memory limits, in the user's unit; None where
    nothing was found that keeps them."""
    partitions: int
    """Number of partitions to choose from."""
    evaluations: int
    """Partitions, with their recompute, that were evaluated; some perhaps twice."""
    proved: bool
    """Whether nothing is better that keeps the limits; where nothing was found that does: whether
    there is nothing."""
    interrupted: bool = False
    """Whether Ctrl-C ended the choice."""

    @property
    def gap(self) -> Fraction | None:
        """(value - lower_bound) / value; None without a bound."""
        if self.lower_bound is None:
            return None
        return (self.value - self.lower_bound) / self.value if self.value else Fraction(0)


def is_open(pipeline: Pipeline) -> bool:
    """Whether a pipeline leaves its partition or its recompute to be chosen."""
    return bool(open_choices(pipeline) & ~Chosen.PLACEMENT)


def best_choice(
    pipeline: Pipeline,
    strategy: str,
    objective: Objective | str = Objective.MAKESPAN,
    options: Options | None = None,
    *,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[str], None] = lambda _: None,
    began: float | None = None,
) -> StrategyChoice:
    """Choose the partition and the recompute on which a strategy has the least value.

    With `partition="search"` the pipeline's partition is chosen, with `recompute="search"` the
    layers that recompute; what is given is kept. What keeps the memory limits comes first; where
    nothing does, what exceeds them least, all devices together. Without limits nothing recomputes
    that may. `time_limit` is in seconds, from `began` (of `time.monotonic`) or else from now.
    Ctrl-C ends the choice with the best so far. Raises InputError where the strategy is unknown,
    and NotApplicableError where it does not apply.
    """
    if not is_open(pipeline):
        made = evaluate(pipeline, strategy, objective, options)
        value = objective_value(made, Objective(objective))
        return StrategyChoice(made, value, value if made.fits_limits else None, 1, 1, proved=True)
    deadline = Deadline.after(time_limit, began)
    search = StrategySearch(pipeline, strategy, Objective(objective), options)
    proof, interrupted = StrategyProof(search), False

    def tell() -> None:
        progress(f"strategy {strategy}, {search.evaluations} evaluations")

    try:
        with interrupts.heard():
            search.settle(deadline.share(SEARCHING), tell)
            if not proof.proved:
                proof = StrategyProof(search, bounded_points(search, deadline))
                ceiling = search.value if search.fits else None
                proof.bound(deadline.share(BOUNDING), ceiling)
                proof.run(deadline, tell)
    except KeyboardInterrupt:
        interrupted = True
        search.run(0)
    return StrategyChoice(
        schedule=search.schedule(),
        value=search.value,
        lower_bound=proof.lower_bound if search.fits else None,
        partitions=search.space.partitions,
        evaluations=search.evaluations,
        proved=proof.proved,
        interrupted=interrupted,
    )
