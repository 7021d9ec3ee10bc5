"""Sets up the combinations of a plan over the parallelism: costs, plan spaces and quick bounds.

Tasks of an engine do so, one for each combination. What a task returns is small: the pipeline of a
derived model is derived again where it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from typing import Any, NamedTuple

from ppopt.cancellation import over, shield
from ppopt.derivation.derived_model import DerivedModel
from ppopt.errors import InputError, NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import ZERO
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.sequence_lengths import Lengths
from ppopt.problem.traits import Trait
from ppopt.solver.arguments import LAYER_WORK
from ppopt.solver.choices.spaces import traits_of_any
from ppopt.solver.engines.engine import ALONE, Done, Ended, Engine, Link, run_tasks
from ppopt.studies.baselines import OUT_OF_TIME
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.plan_space import (
    CHUNKS,
    PLACEMENTS,
    PlanSpace,
    default_recompute,
    default_strategies,
    fields_of,
)
from ppopt.studies.quick_bound import quick_bound
from ppopt.studies.records import one_line


class Combination(NamedTuple):
    """A combination that is set up."""

    model: DerivedModel
    space: PlanSpace
    lower_bound: Fraction | None
    """See `quick_bound`."""


@dataclass(frozen=True)
class PlanArguments:
    """Arguments of `ppopt.plan` that all combinations share."""

    placements: tuple[str, ...] = PLACEMENTS
    chunks: tuple[int, ...] = CHUNKS
    recompute: tuple[str, ...] | None = None
    """Recompute modes; None: the default of `ppopt.plan`."""
    strategies: tuple[str, ...] | None = None
    runtime: str = "any"
    mem_limit: Any = None
    """Memory limit of every device; None: the memory of the GPU."""
    order: str = GIVEN_ORDER
    """Order of microbatches that differ, as `ppopt.Pipeline` reads it."""
    offload: str | None = None
    """Offload of the layers, as `ppopt.Pipeline` reads it; None: none."""
    current: str | None = None
    """Strategy that the user runs today, perhaps with its chunks and recompute; None: 1F1B. It has
    the parallelism of the best combination."""

    def space(self, model: DerivedModel, lengths: Lengths | None = None) -> PlanSpace:
        """Plan space of a combination.

        `lengths` are those of the documents of every microbatch; None: one sequence each.
        """
        pipeline = model.pipeline
        layers = pipeline.model
        assert layers is not None
        limit = pipeline.mem_limit if self.mem_limit is None else self.mem_limit
        recompute = default_recompute(layers, limited=True)
        return PlanSpace(
            model=layers,
            devices=pipeline.num_devices,
            batches=(pipeline.batches,),
            placements=self.placements if pipeline.num_devices > 1 else ("linear",),
            chunks=self.chunks if pipeline.num_devices > 1 else (1,),
            recompute=self.recompute or recompute,
            strategies=self.strategies or default_strategies(self.runtime, pipeline.training),
            runtime=self.runtime,
            fields={
                **fields_of(pipeline),
                "mem_limit": limit,
                "offload": self.offload,
                **self._microbatches(model, lengths),
            },
        )

    def _microbatches(self, model: DerivedModel, lengths: Lengths | None) -> dict[str, Any]:
        """Fields of a pipeline that say how microbatches differ; none if they are equal."""
        if lengths is None:
            return {}
        return {
            "microbatch_tokens": lengths,
            "attention_share": model.attention_share,
            "reference_tokens": model.training.sequence,
            "order": self.order,
        }

    def set_up(self, model: DerivedModel, lengths: Lengths | None = None) -> Combination:
        """Plan space of a combination with its quick bound; `lengths` as for `space`.

        Raises NotApplicableError if no configuration is valid.
        """
        try:
            space = self.space(model, lengths)
        except InputError as error:
            if model.training.devices > 1:
                raise
            raise NotApplicableError(f"{error}, and the pipeline has 1 device") from None
        reason: NotApplicableError | None = None
        for configuration in space:
            try:
                pipeline = space.pipeline(configuration)
            except NotApplicableError as error:
                reason = error
            else:
                problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
                pairs = {Trait.PAIRS, Trait.SHORT_PAIRS}
                if not LAYER_WORK.applies(traits_of_any(problem) - pairs):
                    return Combination(model, space, ZERO)
                bound = quick_bound(space, pipeline.limits, pipeline.factors)
                return Combination(model, space, bound)
        assert reason is not None
        raise reason


@dataclass(frozen=True)
class SetUpDone(Done):
    """Outcome of a `SetUpTask`."""

    combination: Combination | None = None
    """None: it is invalid, or the input is wrong."""
    skipped: str | None = None
    """Why the combination is invalid."""


LATE = SetUpDone(skipped=OUT_OF_TIME)
"""Outcome of a combination that is not set up."""


@dataclass(frozen=True)
class SetUpTask:
    """The set-up of a combination."""

    space: ParallelSpace
    choices: PlanArguments
    parallelism: Parallelism
    workers = 1

    @shield()
    def perform(self, _: Link = ALONE) -> SetUpDone:
        """Set up the combination; fails if the input is wrong."""
        try:
            model = self.space.model(self.parallelism)
            return SetUpDone(combination=self.choices.set_up(model, self.space.microbatch_tokens))
        except NotApplicableError as error:
            return SetUpDone(skipped=one_line(error))
        except InputError as error:
            return SetUpDone(failed=one_line(error))


class SetUp:
    """The set-up of all combinations of a space, by the tasks of an engine."""

    def __init__(self, space: ParallelSpace, choices: PlanArguments, engine: Engine) -> None:
        """Set up; raises InputError if the input is wrong.

        Skipped are invalid combinations and, after the first valid one, those after the end of a
        scope.
        """
        every = dict.fromkeys(space.combinations())
        self._tasks = [SetUpTask(space, choices, each) for each in every]
        self._outcomes = dict.fromkeys(every, LATE)
        self._valid = self._wrong = False
        """Whether a combination is valid, and whether the input is wrong."""
        self._run(engine)
        outcomes = self._outcomes.items()
        for _, done in outcomes:
            if done.failed is not None:
                raise InputError(done.failed)
        self.combinations = {each: done.combination for each, done in outcomes if done.combination}
        """Valid combinations, in the order of the space."""
        self.skipped = {each: done.skipped for each, done in outcomes if done.skipped}
        """Those that are left out, each with the reason."""

    def _run(self, engine: Engine) -> None:
        waiting = takewhile(lambda _: not self._ends, enumerate(self._tasks))
        run_tasks(engine, lambda: next(waiting, None), self._take)
        for index, task in enumerate(self._tasks):
            if not (self._valid or self._wrong) and self._outcomes[task.parallelism] is LATE:
                self._take([(index, task.perform())])

    @property
    def _ends(self) -> bool:
        """Whether no further combination is set up."""
        return self._wrong or (self._valid and over())

    def _take(self, ended: Ended) -> None:
        """Process the outcomes of tasks; those that failed are performed in this process."""
        for index, done in ended:
            task = self._tasks[index]
            outcome = done if isinstance(done, SetUpDone) else task.perform()
            self._outcomes[task.parallelism] = outcome
            self._valid |= outcome.combination is not None
            self._wrong |= outcome.failed is not None

    @property
    def spaces(self) -> dict[Parallelism, PlanSpace]:
        """Plan spaces of the valid combinations."""
        return {each: combination.space for each, combination in self.combinations.items()}

    @property
    def is_complete(self) -> bool:
        """Whether those that are left out are invalid: time sufficed for all."""
        return OUT_OF_TIME not in self.skipped.values()
