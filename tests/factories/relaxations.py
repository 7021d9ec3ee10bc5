"""The pipeline whose instance a relaxation is, for oracles that read pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ppopt import Pipeline
from ppopt.problem.cost_fields import of_slice
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.instance import Instance
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.traits import Trait
from ppopt.problem.units import Unit


def pipeline_of(relaxed: Instance) -> Pipeline:
    """A pipeline with the costs of a relaxation, one number per stage, in the same ticks."""
    costs, ticks = relaxed.costs, relaxed.costs.ticks
    per_unit = {Unit.TIME: ticks.per_unit, Unit.MEMORY: ticks.memory_per_unit}
    stages = {
        cost.field: _divided(ticks.costs[cost.field], per_unit[cost.unit]) for cost in STAGE_COSTS
    }
    fields: dict[str, Any] = {"device_speed": 1}
    if Trait.LINKS in costs.removed:
        fields["link_mode"] = LinkMode.DELAY
    if Trait.MICROBATCHES in costs.removed:
        fields |= {"microbatch_times": None, "microbatch_memory": None}
    return with_stage_costs(costs.pipeline, stages, **fields)


def with_stage_costs(pipeline: Pipeline, costs: Mapping[str, Any], **fields: Any) -> Pipeline:
    """The same pipeline with other costs of one slice given stage by stage, on the same grid."""
    stages = pipeline.without_model()
    unstated = {} if stages.overlap is not None else {"overlap": (), "overlap_input": ()}
    values = {**stages.costs, **unstated, **costs}
    return replace(
        stages,
        **of_slice(values, stages.num_slices),
        stages=stages.num_stages,
        placement=stages.hosts[0],
        chunks=None,
        mem_limit=pipeline.limits,
        **fields,
    )


def _divided(values: Any, per_unit: int) -> Any:
    if isinstance(values, tuple):
        return tuple(_divided(value, per_unit) for value in values)
    return Fraction(values, per_unit)
