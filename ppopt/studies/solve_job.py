"""A job: a search or the evaluation of a strategy, with the hash of its content (the cache key)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ppopt.errors import NotApplicableError
from ppopt.formats import model_json, pipeline_json
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.settings import COUNTS
from ppopt.schedule.origin import SEARCHED
from ppopt.solver.options import TIME_LIMIT
from ppopt.strategies import OPTIONS, Options, resolve
from ppopt.studies import best_choice
from ppopt.studies.records import canonical
from ppopt.versions import SEARCH_VERSION

_APPEARANCE = (
    *("name", "rounded", "rounded_by", "placement_name", "chunks", "mem_limit_given"),
    *("time_unit", "memory_unit", *(setting.field for setting in COUNTS)),
)
"""Keys of a pipeline's JSON object that are not content: names, units and forms of input."""
NO_OPTIONS = Options()


@dataclass(frozen=True)
class SolveJob:
    """A pipeline to solve, or to evaluate a strategy on, and the effort."""

    pipeline: Pipeline
    strategy: str = SEARCHED
    """`searched` for a search, or the name of a strategy."""
    objective: Objective = Objective.MAKESPAN
    backward_kind: BackwardKind = BackwardKind.MIXED
    options: Options = NO_OPTIONS
    """Options of the strategy."""
    seed: int = 0
    time_limit: float = TIME_LIMIT
    """Time limit in seconds. This and `workers` are effort: they are no part of the content."""
    workers: int = 1

    @property
    def searched(self) -> bool:
        """Whether the job is a search; otherwise it evaluates a strategy."""
        return self.strategy == SEARCHED

    @property
    def limited(self) -> bool:
        """Whether the schedule depends on the memory limits."""
        return self.searched or bool(self.pipeline.open_decisions & Decisions.OF_STRATEGY)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the content: equal for jobs with interchangeable results.

        The content is the instance (in ticks, without names and units), the objective, the open
        decisions or the strategy with its options, the seed, and `SEARCH_VERSION`. For a strategy,
        memory limits belong to the content only if they affect its open decisions.
        """
        content: dict[str, Any] = {
            "version": SEARCH_VERSION,
            "instance": instance_of(self.pipeline, limited=self.limited),
            "strategy": self.strategy,
            "objective": self.objective,
        }
        if self.searched:
            content |= {"backward_kind": self.backward_kind, "seed": self.seed}
        else:
            content["options"] = asdict(self.options)
        return hashlib.sha256(canonical(content).encode()).hexdigest()

    @property
    def checked(self) -> SolveJob:
        """Return self; raises NotApplicableError if the strategy does not apply."""
        if self.searched:
            return self
        rule = resolve(self.strategy)
        if self.backward_kind is BackwardKind.WHOLE and not rule.fused:
            raise NotApplicableError(
                f"backward_kind: strategy {self.strategy} splits the backward, "
                "which `whole` rules out"
            )
        rule.apply(self.pipeline, self.options)
        return self

    @property
    def fixed_pipeline(self) -> Pipeline | None:
        """Pipeline of the schedules; None if the job has open decisions."""
        requested = self.pipeline
        return None if requested.open_decisions else self.resolved_pipeline(requested)

    def resolved_pipeline(self, chosen: Pipeline) -> Pipeline:
        """Pipeline of the job with the decisions of the pipeline `chosen`.

        Decisions are placement, partition, recompute, offload, and the order of microbatches. Those
        that are not open are as in the job; a strategy sets its chunks and placement. Raises
        InputError if these do not fit.
        """
        requested = self.pipeline
        limits = requested.limits if self.limited else None
        opened = requested.open_decisions
        if Decisions.PLACEMENT in opened:
            requested = requested.having(mem_limit=limits).placed(chosen.hosts[0])
        if Decisions.ORDER in opened and isinstance(chosen.order, tuple):
            requested = requested.having(order=GIVEN_ORDER).reordered(chosen.order)
        if opened & (Decisions.PARTITION | Decisions.OF_MODEL):
            model = requested.model.decided_as(chosen.model, opened)
            fields = {"model": model, "partition": chosen.counts, "mem_limit": limits}
            requested = requested.without(opened, **fields)
        return requested if self.searched else resolve(self.strategy).apply(requested, self.options)


def job_of(pipeline: Pipeline, settings: Mapping[str, Any], strategy: str = SEARCHED) -> SolveJob:
    """Make a job from settings of a run by their names in Python; raises InputError.

    The default is one worker.
    """
    seconds = TIME_LIMIT if strategy == SEARCHED else best_choice.TIME_LIMIT
    values = {name: value for name, value in settings.items() if value is not None}
    return SolveJob(
        pipeline=pipeline,
        strategy=strategy,
        objective=Objective(values.get("objective", Objective.MAKESPAN)),
        backward_kind=BackwardKind.read(values.get("backward_kind"), values.get("fused")),
        options=Options(**{name: values.get(name) for name in OPTIONS}),
        seed=values.get("seed", 0),
        time_limit=values.get("time_limit", seconds),
        workers=values.get("workers", 1),
    )


def instance_of(pipeline: Pipeline, *, limited: bool = True) -> dict[str, Any]:
    """Data that a schedule of a pipeline depends on, as an object of JSON; costs are in ticks.

    It has the layers if partition, recompute or offload is searched; no limits unless `limited`.
    """
    ticks = pipeline.ticks
    fields = pipeline_json.pipeline_to_object(pipeline)
    left_out = (*_APPEARANCE, *(() if limited else ("mem_limit",)))
    content = {key: value for key, value in fields.items() if key not in left_out}
    content |= {"ticks": ticks.per_unit, "memory_ticks": ticks.memory_per_unit}
    searched = pipeline.open_decisions & ~Decisions.ORDER
    if searched:
        content["searched"] = [*searched.names]
        if pipeline.model is not None:
            content["layers"] = model_json.model_to_object(pipeline) | {"name": None}
    return content
