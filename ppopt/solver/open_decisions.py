"""The open decisions of a pipeline (partition, placement, recompute, ...), and their choice."""

from __future__ import annotations

from dataclasses import replace
from enum import Flag, auto
from typing import TYPE_CHECKING

from ppopt.problem import partition, placement
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.deadline import Deadline

if TYPE_CHECKING:
    from ppopt.solver.choices.choice import Choice


class OpenDecisions(Flag):
    """Decisions that are searched together with the schedule: any combination of these."""

    PARTITION = auto()
    PLACEMENT = auto()
    RECOMPUTE = auto()
    RECOMPUTE_SET = auto()
    OFFLOAD = auto()
    ORDER = auto()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the open decisions."""
        return tuple(str(choice.name).lower() for choice in self)


NO_DECISIONS = OpenDecisions(0)


def open_decisions(pipeline: Pipeline) -> OpenDecisions:
    """Open decisions of a pipeline."""
    choices = NO_DECISIONS
    if pipeline.placement == placement.SEARCH:
        choices |= OpenDecisions.PLACEMENT
    if pipeline.partition == partition.SEARCH:
        choices |= OpenDecisions.PARTITION
    for field in pipeline.searched_of_layers:
        choices |= OpenDecisions[field.upper()]
    if pipeline.searches_set:
        choices |= OpenDecisions.RECOMPUTE_SET
    return choices | OpenDecisions.ORDER if pipeline.order_is_open else choices


def choice_of(
    problem: Problem, deadline: Deadline, extra_decisions: OpenDecisions = NO_DECISIONS
) -> Choice | None:
    """Choice for the open decisions of a pipeline; None if there are none.

    `extra_decisions` are searched in addition. Bounds end at the deadline. Raises
    NotApplicableError if the search does not apply. The classes load on use.
    """
    choices = open_decisions(problem.pipeline) | extra_decisions
    if OpenDecisions.ORDER in choices:
        from ppopt.solver.choices.single import SinglePipeline  # noqa: PLC0415
        from ppopt.solver.microbatch_orders.order_choice import OrderChoice  # noqa: PLC0415

        listed = in_listed_order(problem)
        inner = choice_of(listed, deadline, extra_decisions)
        return OrderChoice(problem, inner or SinglePipeline(listed, any_order=True), deadline)
    if OpenDecisions.PLACEMENT in choices:
        return _placements(problem, deadline, alone=choices == OpenDecisions.PLACEMENT)
    if OpenDecisions.RECOMPUTE_SET in choices:
        from ppopt.solver.recompute.set_choice import SetChoice  # noqa: PLC0415

        return SetChoice(problem, lambda own: _of_set(own, deadline), deadline)
    if OpenDecisions.PARTITION in choices:
        return _partitions(problem, deadline)
    if choices:
        from ppopt.solver.recompute.recompute_choice import RecomputeChoice  # noqa: PLC0415

        return RecomputeChoice(problem, deadline)
    return None


def _of_set(problem: Problem, deadline: Deadline) -> Choice:
    """Choice of a pipeline whose layers recompute a set of modules."""
    from ppopt.solver.choices.single import SinglePipeline  # noqa: PLC0415

    return choice_of(problem, deadline) or SinglePipeline(problem)


def in_listed_order(problem: Problem) -> Problem:
    """The problem in the order in which its microbatches are listed."""
    return replace(problem, pipeline=replace(problem.pipeline, order=GIVEN_ORDER))


def _placements(problem: Problem, deadline: Deadline, *, alone: bool) -> Choice:
    if alone:
        from ppopt.solver.placements.placement_choice import PlacementChoice  # noqa: PLC0415

        return PlacementChoice(problem, deadline)
    from ppopt.solver.placements.product import PlacementProduct  # noqa: PLC0415

    def placed(pipeline: Pipeline) -> Choice:
        choice = choice_of(replace(problem, pipeline=pipeline), deadline)
        assert choice is not None
        return choice

    return PlacementProduct(problem, placed, deadline)


def _partitions(problem: Problem, deadline: Deadline) -> Choice:
    if problem.pipeline.searched_of_layers:
        from ppopt.solver.partitions.partition_option_choice import (  # noqa: PLC0415
            PartitionOptionChoice,
        )

        return PartitionOptionChoice(problem, deadline)
    from ppopt.solver.partitions.partition_choice import PartitionChoice  # noqa: PLC0415

    return PartitionChoice(problem, deadline)
