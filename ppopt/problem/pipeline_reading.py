"""Reading of a pipeline's fields: each is replaced by its checked, exact value.

`ppopt.problem.pipeline.Pipeline` calls these functions in this order, with its model in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppopt.errors import ConflictError, Faults, InputError
from ppopt.problem import (
    cost_fields,
    exact,
    frozen,
    grid,
    hosting,
    layer_choices,
    link,
    microbatches,
    sequence_lengths,
)
from ppopt.problem.cost_table import ZERO
from ppopt.problem.decisions import Decisions
from ppopt.problem.field_values import FieldReader, check_grid, is_list, whole
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.link_mode import HostLink, LinkMode
from ppopt.problem.memory import check_limit
from ppopt.problem.settings import COUNTS
from ppopt.problem.training_sizes import read_training
from ppopt.problem.units import Unit

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline


def set_fields(pipeline: Pipeline, **fields: object) -> None:
    """Replace fields of a frozen pipeline while it is built."""
    vars(pipeline).update(fields)


def read_counts(pipeline: Pipeline) -> None:
    """Read the numbers of devices or stages, microbatches and chunks."""
    for field in ("stages", "batches", "chunks"):
        if field != "chunks" or pipeline.chunks is not None:
            set_fields(pipeline, **{field: whole(getattr(pipeline, field), field)})


def read_structure(pipeline: Pipeline) -> None:
    """Read the placement of the stages and the modes of their operations."""
    placement = hosting.read_placement(pipeline.placement, pipeline.chunks, pipeline.stages)
    set_fields(pipeline, placement=placement)
    hosting.check_devices(pipeline.num_devices)
    if pipeline.slices is None and is_list(pipeline.slice_times):
        set_fields(pipeline, slices=len(pipeline.slice_times))
    if pipeline.slices is not None:
        set_fields(pipeline, slices=whole(pipeline.slices, "slices"))
    check_grid(pipeline.stages * pipeline.num_chunks, pipeline.batches * pipeline.num_slices)
    if not isinstance(pipeline.name, str):
        raise InputError(f"name: {pipeline.name!r} is not text")
    hosting.check_routes(pipeline.routes, pipeline.batches)
    if not isinstance(pipeline.optimizer_barrier, bool):
        raise InputError(f"optimizer_barrier: {pipeline.optimizer_barrier!r} is not true or false")
    set_fields(pipeline, host_link=HostLink(pipeline.host_link))
    set_fields(pipeline, link_mode=LinkMode(pipeline.link_mode))
    pipeline.link_mode.check(pipeline.routes, pipeline.num_slices)
    set_fields(pipeline, first_backward=FirstBackward(pipeline.first_backward))
    searched = Decisions.open_in(vars(pipeline)) & Decisions.OF_STRATEGY
    pipeline.first_backward.check(pipeline.model, pipeline.routes, searched.names)
    if pipeline.training is not None:
        set_fields(pipeline, training=read_training(pipeline.training, "training: "))
    for count in COUNTS:
        if (number := getattr(pipeline, count.field)) is not None:
            set_fields(pipeline, **{count.field: exact.count(number, count.field)})


def read_values(pipeline: Pipeline) -> None:
    """Read speeds, microbatches, costs, delays and limits, in one unit per measure."""
    reader = FieldReader(pipeline.rounded)
    for measure in Unit:
        set_fields(pipeline, **cost_fields.in_one_unit(vars(pipeline), measure, reader))
    speeds = reader.speeds(pipeline.device_speed, pipeline.hosts, pipeline.num_devices)
    set_fields(pipeline, device_speed=speeds)
    faults = Faults()
    for read in (_read_microbatches, _read_costs, _read_delays, _read_limit):
        with faults.collected():
            read(pipeline, reader)
    faults.check()
    set_fields(pipeline, rounded=reader.rounded)


def _read_microbatches(pipeline: Pipeline, reader: FieldReader) -> None:
    """Read the factors by which microbatches and their slices differ."""
    set_fields(pipeline, **sequence_lengths.factors_of(vars(pipeline), reader))
    stated = pipeline.microbatch_times, pipeline.microbatch_memory
    microbatches.check_memory_known(*stated, pipeline.mem_limit)
    for field in (microbatches.TIMES, microbatches.MEMORY):
        values = getattr(pipeline, field)
        factors = microbatches.read_factors(field, values, pipeline.batches, reader)
        set_fields(pipeline, **{field: factors})
    slices = microbatches.read_slice_times(pipeline.slice_times, pipeline.num_slices, reader)
    order = microbatches.read_order(pipeline.order, pipeline.batches, pipeline.routes)
    set_fields(pipeline, slice_times=slices, order=order)


def _read_costs(pipeline: Pipeline, reader: FieldReader) -> None:
    """Read the costs of stages, or sum those of layers."""
    fields = vars(pipeline)
    if pipeline.model is None:
        if pipeline.frozen is not None:
            stages = frozen.read_frozen(pipeline.frozen, pipeline.stages, pipeline.num_chunks)
            set_fields(pipeline, frozen=stages)
        set_fields(pipeline, **cost_fields.read_stage_costs(fields, pipeline.stages, reader))
        return
    cost_fields.refuse_beside_layers(fields)
    reader.note(pipeline.model.rounded)
    if pipeline.offload_fraction is not None:
        decisions = Decisions.PARTITION | Decisions.OFFLOAD
        if Decisions.open_in(vars(pipeline)) & decisions:
            raise ConflictError(
                "offload_fraction: it is of given modules of given stages; give --partition and "
                "--offload-modules, or leave it out"
            )
        model = layer_choices.with_offload_fraction(
            pipeline.model, pipeline.counts, pipeline.offload_fraction
        )
        set_fields(pipeline, model=model, offload_fraction=None)
    first = pipeline.first_backward
    set_fields(pipeline, **cost_fields.of_layers(pipeline.model, pipeline.counts, first))


def _read_delays(pipeline: Pipeline, reader: FieldReader) -> None:
    """Read the delays between stages, or derive them from the outputs of layers."""
    if pipeline.link is not None:
        link.check_model(pipeline.model)
        link_read = link.read_link(pipeline.link, pipeline.time_unit, pipeline.memory_unit)
        set_fields(pipeline, link=link_read)
    by_size = link.ways_of(pipeline.link)
    for field in ("p2p", "backward_p2p"):
        delays = getattr(pipeline, field)
        if field in by_size:
            link.check_not_stated(field, delays)
            set_fields(pipeline, **{field: ZERO})
        elif field == "p2p" or delays is not None:
            read = reader.delays(field, delays, pipeline.num_stages, pipeline.num_devices)
            set_fields(pipeline, **{field: read})
    if by_size:
        set_fields(pipeline, **grid.delays_of_cuts(grid.sized_delays(pipeline), pipeline.counts))


def _read_limit(pipeline: Pipeline, reader: FieldReader) -> None:
    """Read the memory limit."""
    check_limit(pipeline.mem_limit, pipeline.model)
    set_fields(pipeline, mem_limit=reader.limit(pipeline.mem_limit, pipeline.num_devices))
