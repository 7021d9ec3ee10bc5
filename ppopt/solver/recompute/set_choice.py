"""One set of modules that all layers recompute, combined with the partitions and offload of each.

Megatron-LM has one list of modules for all stages. Every set is a choice of its own, with its
bounds: a key has the number of the set, then the key of that choice. A partition by rule is that of
the pipeline, the same for all sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ppopt.cancellation import over
from ppopt.errors import NotApplicableError
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer_options import sets_of_all
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import SearchedConfigurations
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.choices.product import ProductChoice
from ppopt.solver.choices.spaces import check_spaces

MAX_SETS = 64
"""Maximum number of sets that are searched."""
Inner = Callable[[Problem], Choice]
"""Creates the choice of a problem whose recompute is fixed."""


class SetChoice(ProductChoice):
    """Every set of modules, and none and full recompute, each with the choice of its pipeline."""

    def __init__(self, problem: Problem, inner: Inner) -> None:
        """Raises NotApplicableError if there are too many sets, or if time is up before all."""
        check_spaces(problem, Decisions.RECOMPUTE_SET)
        asked = problem.pipeline
        self._models = _models(asked)
        choices: dict[Key, Choice] = {}
        for index, model in enumerate(self._models):
            if over():
                raise NotApplicableError(
                    f"recompute: {index} of {len(self._models)} sets of modules were set up in "
                    "time; raise --time-limit, or give --recompute-modules"
                )
            pipeline = asked.without(Decisions.RECOMPUTE_SET, model=model)
            choices[index,] = inner(replace(problem, pipeline=pipeline))
        super().__init__(choices)
        own = next(iter(choices.values()))
        self.name = f"modules with {own.name}" if own.decisions else "modules"
        self.decisions = Decisions.RECOMPUTE_SET | own.decisions

    def prefixes(self, pipeline: Pipeline) -> list[Key]:
        """The set that the layers of a pipeline recompute; empty if they differ."""
        own = [layer.recompute for layer in pipeline.model.layers]
        return [
            (index,)
            for index, model in enumerate(self._models)
            if own == [layer.recompute for layer in model.layers]
        ]

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all sets."""
        scope = (
            f"all {len(self._models)} sets of modules that all layers recompute, none and full "
            "included (without those that need more time and more memory than another)"
        )
        if search.infeasible:
            return f"none of {scope} fits the memory limits"
        return (
            f"{scope} need at least this long: {search.ruled_out} configurations are excluded by "
            f"the time of one device, {search.searched} were searched"
        )


def _models(pipeline: Pipeline) -> list[Model]:
    """The model with every set that may be best, the cheapest first.

    Without a memory limit that is no recompute. Raises NotApplicableError if there are too many.
    """
    model: Model = pipeline.model
    none = model.with_recompute("none")
    if pipeline.limits is None:
        return [none]
    offload_is_open = Decisions.OFFLOAD in pipeline.open_decisions
    sets = sets_of_all(none.layers, without_dominated=not offload_is_open)
    if len(sets) > MAX_SETS:
        raise NotApplicableError(
            f"recompute: there are {len(sets)} sets of modules, and at most {MAX_SETS} are "
            "searched; give --recompute-modules, or fewer `modules` in the layers"
        )
    models = [
        none if isinstance(own.recompute, bool) else none.with_modules("recompute", own.recompute)
        for own in sets
    ]
    return [*models, none.with_recompute("full")]
