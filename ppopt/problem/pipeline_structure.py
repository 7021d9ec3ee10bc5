"""The structure of a pipeline: its stages, the devices that run them, and its operations."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ppopt.problem import hosting, partition, placement
from ppopt.problem.hosting import Hosts, Layout
from ppopt.problem.operation import NUM_KINDS, Op, OpKind
from ppopt.problem.pipeline_fields import PipelineFields


class PipelineStructure(PipelineFields):
    """What follows from the placement, the chunks, the routes and the slices of a pipeline.

    It does not depend on costs. `ppopt.Pipeline` derives from it.
    """

    @cached_property
    def num_chunks(self) -> int:
        """Stages of each device under a named placement (1 with an explicit placement)."""
        if self.chunks is not None or not self.named_placement:
            return self.chunks or 1
        return self.chunks_of_partition or placement.DEFAULT_CHUNKS.get(self.placement, 1)

    @cached_property
    def chunks_of_partition(self) -> int | None:
        """Stages per device that counts or a layout imply; None if they imply none."""
        num_stages = None if self.model is None else partition.stages_of(self.partition)
        if num_stages is None or num_stages % self.stages or self.placement == "linear":
            return None
        return num_stages // self.stages

    @property
    def num_slices(self) -> int:
        """Parts of every microbatch along the sequence."""
        return self.slices or 1

    @property
    def named_placement(self) -> bool:
        """Whether the placement follows a named rule (a list is explicit)."""
        return self.placement is None or isinstance(self.placement, str)

    @property
    def resolved_placement(self) -> Any:
        """The placement with its default resolved: a name, or the list."""
        if self.placement is not None:
            return self.placement
        return "linear" if self.num_chunks == 1 else "interleaved"

    @cached_property
    def hosts(self) -> Hosts:
        """Device of every stage, per route: `hosts[route][stage]`."""
        if self.named_placement:
            first = placement.named(self.resolved_placement, self.stages, self.num_chunks)
        else:
            first = self.placement
        return hosting.on_routes(first, self.routes)

    @property
    def layout(self) -> Layout:
        """The device of every stage, per route, and the slices of a microbatch.

        Schedules of one layout belong to one search space.
        """
        return self.hosts, self.num_slices

    @cached_property
    def num_stages(self) -> int:
        """Stages S, chunks counted."""
        return len(self.hosts[0])

    @cached_property
    def num_devices(self) -> int:
        """Devices D."""
        return self.stages if self.named_placement else max(self.placement) + 1

    @cached_property
    def hosted(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Stages of every device, ascending, per route: `hosted[route][device]`."""
        return tuple(hosting.hosted_of(row, self.num_devices) for row in self.hosts)

    def route(self, microbatch: Any) -> Any:
        """Route of a microbatch: route 0 for the first half, route 1 for the second half.

        It works on integers and on arrays.
        """
        return microbatch * self.routes // self.batches

    def device(self, stage: int, microbatch: int) -> int:
        """Device that runs the operations of a stage for a microbatch."""
        device: int = self.hosts[self.route(microbatch)][stage]
        return device

    def code(self, kind: Any, stage: Any, microbatch: Any, slice: Any = 0) -> Any:  # noqa: A002
        """Number of an operation, 0 .. num_codes - 1, by kind, then stage, microbatch and slice.

        It works on integers and on arrays.
        """
        index = (kind * self.num_stages + stage) * self.batches + microbatch
        return index * self.num_slices + slice

    def op(self, code: int) -> Op:
        """Operation with this number: the inverse of `code`."""
        rest, slice_index = divmod(int(code), self.num_slices)
        rest, microbatch = divmod(rest, self.batches)
        kind, stage = divmod(rest, self.num_stages)
        return Op(OpKind(kind), stage, microbatch, slice_index)

    @property
    def num_codes(self) -> int:
        """Numbers that `code` can give: kinds x stages x microbatches x slices."""
        return NUM_KINDS * self.num_stages * self.batches * self.num_slices
