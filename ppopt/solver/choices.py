"""What of a pipeline is chosen with the schedule, and the configurations to choose from."""

from __future__ import annotations

from dataclasses import replace
from enum import Flag, auto
from typing import TYPE_CHECKING

from ppopt.problem import partition, placement
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.solver.deadline import Deadline

if TYPE_CHECKING:
    from ppopt.solver.configurations import Candidates


class Choice(Flag):
    """What is chosen with the schedule: none, some or all of these."""

    PLACEMENT = auto()
    PARTITION = auto()
    RECOMPUTE = auto()


NO_CHOICE = Choice(0)


def choices_of(pipeline: Pipeline) -> Choice:
    """What of a pipeline is to be searched."""
    choices = NO_CHOICE
    if pipeline.placement == placement.SEARCH:
        choices |= Choice.PLACEMENT
    if pipeline.partition == partition.SEARCH:
        choices |= Choice.PARTITION
    if pipeline.recompute == SEARCH_RECOMPUTE:
        choices |= Choice.RECOMPUTE
    return choices


def candidates_of(
    problem: Problem, deadline: Deadline, further: Choice = NO_CHOICE
) -> Candidates | None:
    """The configurations of what is chosen with the schedule; None where nothing is.

    `further` is chosen beside what the pipeline says. Bounds end by the deadline. Raises
    NotApplicableError where the search does not apply. The classes load on use.
    """
    choices = choices_of(problem.pipeline) | further
    if Choice.PLACEMENT in choices:
        return _placements(problem, deadline, alone=choices == Choice.PLACEMENT)
    if Choice.PARTITION in choices:
        return _partitions(problem, deadline, recompute=Choice.RECOMPUTE in choices)
    if Choice.RECOMPUTE in choices:
        from ppopt.solver.recompute.candidates import RecomputeCandidates  # noqa: PLC0415

        return RecomputeCandidates(problem)
    return None


def _placements(problem: Problem, deadline: Deadline, *, alone: bool) -> Candidates:
    if alone:
        from ppopt.solver.placements.candidates import PlacementCandidates  # noqa: PLC0415

        return PlacementCandidates(problem)
    from ppopt.solver.placements.placed_candidates import PlacedCandidates  # noqa: PLC0415

    def placed(pipeline: Pipeline) -> Candidates:
        candidates = candidates_of(replace(problem, pipeline=pipeline), deadline)
        assert candidates is not None
        return candidates

    return PlacedCandidates(problem, placed, deadline)


def _partitions(problem: Problem, deadline: Deadline, *, recompute: bool) -> Candidates:
    if recompute:
        from ppopt.solver.partitions.recompute_candidates import (  # noqa: PLC0415
            PartitionRecomputeCandidates,
        )

        return PartitionRecomputeCandidates(problem, deadline)
    from ppopt.solver.partitions.candidates import PartitionCandidates  # noqa: PLC0415

    return PartitionCandidates(problem, deadline)
