"""A job: one search or one evaluation of a strategy, and the key of its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from ppopt.errors import InputError, NotApplicableError
from ppopt.formats import model_json, pipeline_json
from ppopt.problem import partition, placement
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.offload import SEARCH_OFFLOAD
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.problem.settings import COUNTS
from ppopt.schedule.origin import SEARCHED
from ppopt.solver.open_choices import open_choices
from ppopt.solver.options import TIME_LIMIT
from ppopt.strategies import OPTIONS, Options, resolve
from ppopt.studies import best_choice
from ppopt.studies.best_choice import has_open_choices
from ppopt.studies.records import canonical

_APPEARANCE = (
    *("name", "rounded", "placement_name", "chunks", "mem_limit_given"),
    *("time_unit", "memory_unit", *(setting.field for setting in COUNTS)),
)
"""What a pipeline's object of JSON says besides its content: how its user gave it."""
NO_OPTIONS = Options()
_SEARCH = (
    *("problem", "schedule", "solver", "strategies"),
    *("studies/evaluate.py", "studies/best_choice.py", "studies/strategy_search.py"),
    "studies/strategy_points.py",
)
"""Sources that decide which schedule a job comes to."""


@cache
def search_version() -> str:
    """SHA-256 of the sources of the search and the strategies.

    Nobody has to remember to count it up: a result of other sources is never taken for one of
    these, were it only a bound that has since turned out to be wrong.
    """
    digest = hashlib.sha256()
    for name in _SEARCH:
        for path, text in _sources(name, files("ppopt").joinpath(name)):
            digest.update(f"{path} {len(text)}\n".encode())
            digest.update(text)
    return digest.hexdigest()


def version() -> str:
    """The version of ppopt with that of its search, as in `0.1.0+3f2a9c01b7de`."""
    return f"{metadata.version('ppopt-pipeline')}+{search_version()[:12]}"


def _sources(name: str, place: Traversable) -> Iterator[tuple[str, bytes]]:
    """The modules in a file or a folder, in the order of their names."""
    if place.is_file():
        if name.endswith(".py"):
            yield name, place.read_bytes()
        return
    for entry in sorted(place.iterdir(), key=lambda one: one.name):
        yield from _sources(f"{name}/{entry.name}", entry)


@dataclass(frozen=True)
class SolveJob:
    """What to solve, or which strategy to evaluate, and with how much effort."""

    pipeline: Pipeline
    strategy: str = SEARCHED
    """`optimal` for a search, or the name of a hand strategy."""
    objective: Objective = Objective.MAKESPAN
    backward_kind: BackwardKind = BackwardKind.MIXED
    options: Options = NO_OPTIONS
    """Of the strategy."""
    seed: int = 0
    time_limit: float = TIME_LIMIT
    """Seconds. This and `workers` are effort: they are no part of the content."""
    workers: int = 1

    @property
    def searched(self) -> bool:
        """Whether it is a search, and not the evaluation of a strategy."""
        return self.strategy == SEARCHED

    @property
    def limited(self) -> bool:
        """Whether its schedule depends on the memory limits."""
        return self.searched or has_open_choices(self.pipeline)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the content: equal for jobs whose results are of one kind.

        The content is the instance (in ticks; names and units are not part of it), the objective,
        what is searched or which strategy with its options, the seed, and the version of the search
        (`search_version`). A strategy is held to memory limits only by what it may choose, so else
        they are no part of its content.
        """
        content: dict[str, Any] = {
            "version": search_version(),
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
        """Itself; raises NotApplicableError where its strategy does not apply to what is asked."""
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
        """The pipeline of its schedules, where nothing of it is searched."""
        requested = self.pipeline
        return None if open_choices(requested) else self.resolved_pipeline(requested)

    def resolved_pipeline(self, found: Pipeline) -> Pipeline:
        """Pipeline of the job with the placement, partition, recompute and offload of `found`.

        What is not searched is as asked. Of a strategy, with its chunks and placement. Raises
        InputError where these do not fit.
        """
        requested = self.pipeline
        limits = requested.limits if self.limited else None
        if requested.placement == placement.SEARCH:
            requested = replace(requested, mem_limit=limits).placed(found.hosts[0])
        if requested.partition == partition.SEARCH:
            requested = replace(requested, partition=found.counts, mem_limit=limits)
        again, moved = requested.recompute == SEARCH_RECOMPUTE, requested.offload == SEARCH_OFFLOAD
        if again or moved:
            layers = found.model.layers if found.model else ()
            if len(layers) != len(requested.model.layers):
                raise InputError("layers: they are not those that are asked for")
            own = requested.model.layers
            model = requested.model.with_choice(
                {n for n, one in enumerate(layers if again else own) if one.recompute},
                {n for n, one in enumerate(layers if moved else own) if one.offload},
            )
            requested = replace(
                requested, model=model, recompute=None, offload=None, partition=found.counts,
                mem_limit=limits,
            )  # fmt: skip
        return requested if self.searched else resolve(self.strategy).apply(requested, self.options)


def job_of(pipeline: Pipeline, settings: Mapping[str, Any], strategy: str = SEARCHED) -> SolveJob:
    """A job of settings of a run by their names in Python; raises InputError.

    One worker, unless they say otherwise.
    """
    seconds = TIME_LIMIT if strategy == SEARCHED else best_choice.TIME_LIMIT
    given = {name: value for name, value in settings.items() if value is not None}
    return SolveJob(
        pipeline=pipeline,
        strategy=strategy,
        objective=Objective(given.get("objective", Objective.MAKESPAN)),
        backward_kind=BackwardKind.read(given.get("backward_kind"), given.get("fused")),
        options=Options(**{name: given.get(name) for name in OPTIONS}),
        seed=given.get("seed", 0),
        time_limit=given.get("time_limit", seconds),
        workers=given.get("workers", 1),
    )


def instance_of(pipeline: Pipeline, *, limited: bool = True) -> dict[str, Any]:
    """What a schedule of a pipeline depends on, as an object of JSON; costs are in ticks.

    With the layers where partition, recompute or offload is searched; without limits unless
    `limited`.
    """
    ticks = pipeline.ticks
    found = pipeline_json.pipeline_to_object(pipeline)
    left_out = (*_APPEARANCE, *(() if limited else ("mem_limit",)))
    content = {key: value for key, value in found.items() if key not in left_out}
    content |= {"ticks": ticks.per_unit, "memory_ticks": ticks.memory_per_unit}
    searched = {
        "partition": pipeline.partition == partition.SEARCH,
        "placement": pipeline.placement == placement.SEARCH,
        "recompute": pipeline.recompute == SEARCH_RECOMPUTE,
        "offload": pipeline.offload == SEARCH_OFFLOAD,
    }
    if any(searched.values()):
        content["searched"] = [name for name, is_searched in searched.items() if is_searched]
        if pipeline.model is not None:
            content["layers"] = model_json.model_to_object(pipeline) | {"name": None}
    return content
