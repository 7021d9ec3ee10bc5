"""The command that rates a partition, for a person or for a test of a configuration."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppopt.cli.application import EXIT_REJECTED, command
from ppopt.cli.commands import choice_arguments
from ppopt.cli.options import argument, option
from ppopt.cli.settings import Settings, settings_but

if TYPE_CHECKING:
    from fractions import Fraction

    from ppopt.schedule.schedule import Schedule
    from ppopt.studies.partition_rating import PartitionRating


@command(
    settings_but(
        *("workers", "seed", "output", "backward_kind", "fused"),
        time_limit="seconds of the search of the best partition (default: 30)",
        partition="the partition to rate: a layout of Megatron-LM such as Et*3|(tt|)*2tL, a list "
        "of counts, names per stage, a pattern of a hybrid model, or a trainer's file with one of "
        "these",
    ),
    strategy=argument("STRATEGY", "Strategy that the trainer runs; `ppopt strategies` lists them."),
    tolerance=option(
        "PERCENT",
        "Exit with code 8 if the best partition has more throughput than this, as 5%, or if the "
        "partition exceeds the memory limit (default: only report).",
    ),
)
def rate(settings: Settings, *, strategy: str, tolerance: str | None = None) -> int:
    """Rate a partition against the best one of the same layers.

    Placement, recompute and strategy do not change. Example: `ppopt rate 1f1b --config model.yaml
    --partition 'Et*6|(t*6|)*2t*6L' --tolerance 5%`.
    """
    from ppopt.cli import output, progress
    from ppopt.formats.typed_values import share
    from ppopt.problem.objective import Objective
    from ppopt.studies.partition_rating import rate_partition

    limit = None if tolerance is None else share("tolerance", tolerance)
    objective = Objective(settings.get("objective", "makespan"))
    pipeline = settings.pipeline()
    with progress.live_line(quiet=settings.quiet) as line:
        rating = rate_partition(
            pipeline,
            strategy,
            objective,
            **choice_arguments(settings, line.update),
        )
    accepted = rating.schedule.fits_limits and (limit is None or rating.gain <= limit)
    if settings.json:
        output.print_json(_object(rating, objective, limit, accepted=accepted))
    elif not settings.quiet:
        print("\n".join(_lines(rating, objective, limit)))
    return EXIT_REJECTED if limit is not None and not accepted else 0


def _object(
    rating: PartitionRating, objective: Any, tolerance: Fraction | None, *, accepted: bool
) -> dict[str, Any]:
    from ppopt.formats.origin_json import json_object, members_of

    choice = rating.choice
    return json_object(
        {
            "schema": 1,
            "strategy": rating.schedule.origin.strategy,
            "objective": objective,
            "value": rating.schedule.metrics.value(objective),
            **_partition(rating.schedule),
            "fits_limit": rating.schedule.fits_limits,
            "best": {"value": choice.value, **_partition(choice.schedule)},
            "lower_bound": choice.lower_bound,
            **members_of(rating, "gain", "max_gain"),
            "proved": choice.proved,
            "tolerance": tolerance,
            "accepted": accepted,
        }
    )


def _partition(schedule: Schedule) -> dict[str, Any]:
    from ppopt.problem import layout

    pipeline = schedule.pipeline
    assert pipeline.model is not None
    counts = pipeline.counts
    return {"partition": list(counts), "layout": layout.write(pipeline.model, counts)}


def _lines(rating: PartitionRating, objective: Any, tolerance: Fraction | None) -> list[str]:
    """The rated partition, the best one, and the gain, for a terminal."""
    from ppopt.report.numbers import percent, significant
    from ppopt.report.placement_text import describe_partition, describe_partition_search
    from ppopt.report.throughput_text import gain_text, max_gain_text

    choice, pipeline = rating.choice, rating.schedule.pipeline
    rows = {"partition": rating.schedule, "best": choice.schedule}
    lines = [
        f"{name:<9}  {objective.value} "
        f"{significant(schedule.metrics.value(objective), pipeline.time_unit)}, "
        f"{describe_partition(**_partition(schedule))}"
        for name, schedule in rows.items()
    ]
    proof = describe_partition_search(choice, limited=pipeline.limits is not None)
    bound = "" if choice.proved or not rating.max_gain else f", {max_gain_text(rating.max_gain)}"
    lines.append(f"rating     the best has {gain_text(rating.gain)}{bound}; {proof}")
    if not rating.schedule.fits_limits:
        lines.append("memory     the partition exceeds the memory limit")
    if tolerance is not None and rating.gain > tolerance:
        lines.append(f"tolerance  above {percent(tolerance)}: exit code {EXIT_REJECTED}")
    return lines
