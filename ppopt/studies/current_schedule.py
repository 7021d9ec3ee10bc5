"""The current schedule: what the user runs today, with which a study compares what it finds.

It is a schedule, or a strategy with its partition, chunks and recompute. Either is timed with the
costs of the study, and verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from ppopt.errors import ConflictError, InputError, NotApplicableError, not_applicable
from ppopt.formats.fields import within
from ppopt.formats.typed_values import typed_value
from ppopt.problem import placement
from ppopt.problem.cost_table import LAYER_COSTS
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.layer import Layer
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.objective import Objective
from ppopt.problem.partition import BALANCED
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.settings import NAMED, nearest
from ppopt.schedule.origin import SEARCHED, Origin
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate
from ppopt.verifier.measured_steps import faults, is_measured

DEFAULT = "1f1b"
"""Strategy of users who name none."""
CHOICES = ("partition", "chunks", "recompute")
"""Settings that may follow the name of a strategy."""
OPEN_RECOMPUTE = (None, "full")
"""Recompute of the default strategy if recompute is open: as set per layer, or full if that
exceeds the limits."""


class CurrentStrategy(NamedTuple):
    """A strategy that a user runs, with the settings that the user names."""

    name: str
    settings: dict[str, Any]
    """Values of `CHOICES`, as `ppopt.Pipeline` takes them."""


def parse_strategy(text: str) -> CurrentStrategy:
    """Read a strategy with its settings: `interleaved chunks=2 partition=2,3,3,2 recompute=full`.

    Raises InputError on anything else.
    """
    name, *assignments = text.split() or [""]
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if key not in CHOICES:
            raise InputError(
                f"{assignment!r} does not follow a strategy; "
                f"did you mean {nearest(key, CHOICES)}=...?"
            )
        if not equals or value in ("", SEARCH):
            raise InputError(f"{assignment!r} names no value; write {key}=VALUE, and not search")
        settings[key] = typed_value(NAMED[key], value)
    return CurrentStrategy(resolve(name).name, settings)


def current_schedule(
    current: Schedule | str | None,
    pipeline: Pipeline,
    objective: Objective,
    options: Options | None = None,
    recompute: Iterable[str | None] | None = None,
) -> Schedule | None:
    """The current schedule on a pipeline, verified: a schedule, or that of a strategy.

    `current` None stands for 1F1B with the partition of the pipeline, or the balanced one if it is
    open or of another number of stages. It has the first mode of `recompute` that fits the limits
    (default: that of the pipeline, or `OPEN_RECOMPUTE`). The result is None if 1F1B does not apply.
    `options` are those of strategies. Raises InputError if `current` is of another pipeline or no
    strategy, and NotApplicableError if the strategy does not apply.
    """
    options = options or Options()
    if pipeline.limits is not None:
        pipeline = pipeline.having(mem_limit=pipeline.limits)
    if current is None:
        if recompute is None:
            is_open = Decisions.RECOMPUTE in pipeline.open_decisions
            recompute = OPEN_RECOMPUTE if is_open else (None,)
        return _default(pipeline, objective, options, recompute)
    if isinstance(current, Schedule):
        return within("given", schedule_on, current, pipeline, objective)
    strategy = within("given", parse_strategy, current)
    try:
        return within("given", _of_strategy, strategy, pipeline, objective, options)
    except NotApplicableError as error:
        raise NotApplicableError(f"given: {error}") from None


def _default(
    pipeline: Pipeline, objective: Objective, options: Options, recompute: Iterable[str | None]
) -> Schedule | None:
    schedules = []
    for mode in recompute:
        settings = {} if mode is None else {"recompute": mode}
        for partition in ({}, {"partition": BALANCED} if pipeline.model else {}):
            strategy = CurrentStrategy(DEFAULT, settings | partition)
            with suppress(NotApplicableError):
                schedules.append(_of_strategy(strategy, pipeline, objective, options))
                break
        if schedules and schedules[-1].fits_limits:
            break
    fitting = [schedule for schedule in schedules if schedule.fits_limits]
    return next(iter(fitting or schedules), None)


def _of_strategy(
    strategy: CurrentStrategy, pipeline: Pipeline, objective: Objective, options: Options
) -> Schedule:
    """Schedule of a strategy; what the pipeline leaves open has its default.

    Raises NotApplicableError if the strategy does not apply.
    """
    rule = resolve(strategy.name)
    unplaced = rule.unplaced(pipeline)
    settings = _defaults_of_open(unplaced) | strategy.settings
    with not_applicable():
        unplaced = replace(unplaced, **settings)
    return evaluate(unplaced, rule.name, objective, rule.own_options(options))


def _defaults_of_open(pipeline: Pipeline) -> dict[str, Any]:
    """Partition, recompute, offload and order in place of those that are to be searched."""
    opened = pipeline.open_decisions & (Decisions.OF_STRATEGY | Decisions.ORDER)
    settings: dict[str, Any] = dict.fromkeys(opened.fields)
    return settings | ({"order": GIVEN_ORDER} if Decisions.ORDER in opened else {})


def can_start_from(schedule: Schedule) -> bool:
    """Whether a search may start from a current schedule.

    It may not from a measured step, nor from starts between the ticks of the costs.
    """
    own = schedule.pipeline
    on_grid = own.rounded_by or own.grid == replace(own, grid=None).grid
    return bool(on_grid) and schedule.fits_limits and not is_measured(schedule)


# A schedule of a file, on the pipeline of the study.


def schedule_on(schedule: Schedule, pipeline: Pipeline, objective: Objective) -> Schedule:
    """A schedule with the costs and limits of a pipeline, and its own placement and partition.

    A measured step keeps its times. What a search claimed of the schedule is dropped, its name,
    too. Raises InputError if it is of another pipeline.
    """
    own = schedule.pipeline
    _check_sizes(own, pipeline)
    placed = within("it is of another pipeline", _placed_as, own, pipeline)
    table, strategy = schedule.operations, schedule.origin.strategy
    coarser = own.grid.time // gcd(own.grid.time, placed.grid.time)
    if (np.concatenate([table.start, table.end]) % coarser).any():
        placed, coarser = replace(placed, grid=placed.grid.joined(own.grid)), 1
    scale = placed.grid.time * coarser // own.grid.time
    start, end = (column // coarser * scale for column in (table.start, table.end))
    if strategy == SEARCHED:
        strategy = None
    retimed = Schedule(
        placed,
        replace(table, pipeline=placed, start=start, end=end),
        Origin(strategy=strategy, objective=objective, status="feasible"),
    )
    violations = faults(retimed)
    if violations:
        raise InputError(
            f"it is no schedule of this pipeline: {violations[0]}; give one with the same costs"
        )
    return retimed


def _check_sizes(own: Pipeline, pipeline: Pipeline) -> None:
    """Raise InputError unless devices, microbatches, units and layers are the same."""
    for what, value, expected in (
        ("devices", own.num_devices, pipeline.num_devices),
        ("microbatches", own.batches, pipeline.batches),
        ("unit of time", own.time_unit, pipeline.time_unit),
        ("unit of memory", own.memory_unit, pipeline.memory_unit),
    ):
        if value != expected:
            raise InputError(
                f"it is of another pipeline: {what} {value}, not {expected}; give a schedule of "
                "the same model, devices and microbatches"
            )
    if _layer_costs(own.model) != _layer_costs(pipeline.model):
        raise InputError(
            "it is of another model: its layers differ; give a schedule of the same model"
        )


def _layer_costs(model: Model | None) -> tuple[object, ...]:
    """Role and costs of every layer, whether or not it recomputes or offloads."""
    if model is None:
        return ()

    def costs(layer: Layer) -> object:
        return layer.role, layer.frozen, [getattr(layer, cost.field) for cost in LAYER_COSTS]

    return tuple(map(costs, model.layers))


def _placed_as(own: Pipeline, pipeline: Pipeline) -> Pipeline:
    """A pipeline with the placement, partition, recompute and offload of another one."""
    if pipeline.model is None and not (own.named_placement and pipeline.named_placement):
        if own.num_stages != pipeline.num_stages:
            raise ConflictError(f"{own.num_stages} stages, not {pipeline.num_stages}")
        return replace(pipeline.placed(own.hosts[0]), routes=own.routes, slices=own.slices)
    fields: dict[str, Any] = {"routes": own.routes, "slices": own.slices}
    named = placement.name_and_chunks(own.hosts[0])
    fields["placement"], fields["chunks"] = named or (own.hosts[0], None)
    fields["stages"] = own.num_stages if named is None else own.num_devices
    if own.model is not None:
        fields["model"] = pipeline.model.decided_as(own.model, Decisions.OF_LAYERS)
        fields |= {"partition": own.counts, "recompute": None, "offload": None}
    placed = replace(pipeline, **fields)
    return placed.reordered(own.order) if isinstance(own.order, tuple) else placed
