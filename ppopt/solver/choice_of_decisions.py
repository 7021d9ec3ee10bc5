"""The choice that makes the open decisions of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ppopt.problem.decisions import Decisions
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem

if TYPE_CHECKING:
    from ppopt.solver.choices.choice import Choice


def choice_of(problem: Problem, extra_decisions: Decisions = Decisions.NONE) -> Choice | None:
    """Choice for the open decisions of a pipeline; None if there are none.

    `extra_decisions` are searched in addition. Without time, bounds are
    coarser. Raises NotApplicableError if the search does not apply. The classes load on use.
    """
    choices = problem.pipeline.open_decisions | extra_decisions
    if Decisions.ORDER in choices:
        from ppopt.solver.choices.single import SinglePipeline  # noqa: PLC0415
        from ppopt.solver.microbatch_orders.order_choice import OrderChoice  # noqa: PLC0415

        listed = in_listed_order(problem)
        inner = choice_of(listed, extra_decisions)
        return OrderChoice(problem, inner or SinglePipeline(listed, any_order=True))
    if Decisions.PLACEMENT in choices:
        return _placements(problem, alone=choices == Decisions.PLACEMENT)
    if Decisions.RECOMPUTE_SET in choices:
        from ppopt.solver.recompute.set_choice import SetChoice  # noqa: PLC0415

        return SetChoice(problem, _of_set)
    if choices & Decisions.OF_LAYERS:
        from ppopt.solver.partitions.partition_option_choice import (  # noqa: PLC0415
            PartitionOptionChoice,
        )

        return PartitionOptionChoice(problem)
    if choices:
        from ppopt.solver.partitions.partition_choice import PartitionChoice  # noqa: PLC0415

        return PartitionChoice(problem)
    return None


def _of_set(problem: Problem) -> Choice:
    """Choice of a pipeline whose layers recompute a set of modules."""
    from ppopt.solver.choices.single import SinglePipeline  # noqa: PLC0415

    return choice_of(problem) or SinglePipeline(problem)


def in_listed_order(problem: Problem) -> Problem:
    """The problem in the order in which its microbatches are listed."""
    return replace(problem, pipeline=problem.pipeline.having(order=GIVEN_ORDER))


def _placements(problem: Problem, *, alone: bool) -> Choice:
    if alone:
        from ppopt.solver.placements.placement_choice import PlacementChoice  # noqa: PLC0415

        return PlacementChoice(problem)
    from ppopt.solver.placements.product import PlacementProduct  # noqa: PLC0415

    def placed(pipeline: Pipeline) -> Choice:
        choice = choice_of(replace(problem, pipeline=pipeline))
        assert choice is not None
        return choice

    return PlacementProduct(problem, placed)
