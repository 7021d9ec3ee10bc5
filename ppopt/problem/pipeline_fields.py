"""The fields of a pipeline, as its user gives them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ppopt.problem.cost_table import StageFields
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.link_mode import HostLink, LinkMode
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.placement import PartitionOrder


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PipelineFields(StageFields[Any]):
    """The fields of a pipeline. `ppopt.Pipeline` reads and checks them, and derives the rest.

    Its costs are those of `ppopt.problem.cost_table`: one number for all stages, or one per stage.
    Names in files, flags and shapes are in `ppopt.problem.settings`.
    """

    stages: int
    """Devices when the placement is named; the number of stages when it is a list."""
    batches: int
    """Microbatches, both routes together."""
    chunks: int | None = None
    """Stages per device; None: 1, or 2 if the placement is `interleaved` or `v`."""
    placement: Any = None
    """`linear`, `interleaved`, `v`, or the device of every stage; None: linear, or interleaved
    if `chunks` is above 1. `search`: `ppopt.solve` chooses it with the schedule."""
    model: Any = None
    """None; or the `Model` (or its list of layers) whose layers the stages have, in place of costs
    per stage."""
    partition: Any = None
    """Of a model: `balanced` (None), `even`, layers per stage, or a layout; see
    `ppopt.problem.partition`."""
    partition_order: Any = PartitionOrder.STAGES
    """Of a model: the order of a `partition` that lists layers per stage: `stages`, or `ranks`,
    with all stages of device 0 first; it becomes `stages` when the list is in that order."""
    recompute: Any = None
    """Of a model: `none` of its layers recomputes, or all do (`full`), or their core attention
    (`selective`), or the layers of these numbers, decoder layers before MTP layers; it becomes None
    when the layers of the model are set. `search` and `search-set`: `ppopt.solve` chooses. None: as
    the layers state."""
    recompute_modules: Any = None
    """Of a model: names of the modules that recompute, in place of `recompute`; None: none."""
    recompute_unit: Any = None
    """Of a model: the unit that a whole backward recomputes at once (see
    `ppopt.problem.backward_memory.RecomputeUnit`); it becomes None when that of the model is
    set. None: that of the model."""
    p2p: Any = 0
    """Delay between devices: one number; a list with the delay after every stage but the last; or a
    matrix [from device][to device], zero diagonal."""
    backward_p2p: Any = None
    """The same on the way back; its list too has the boundary after stage 0 first. None: `p2p`."""
    link: Any = None
    """Of a model: the delays by size, a `ppopt.problem.link.Link` or a mapping of `latency`,
    `bandwidth` and optionally `backward`, in place of `p2p`, which then has the list. After a
    stage whose last layer has the size `output` (a slice: its share) the delay is latency +
    output / bandwidth."""
    link_mode: Any = LinkMode.DELAY
    """Whether links are delays, or carry one transfer at a time (see `ppopt.problem.link_mode`)."""
    first_backward: Any = FirstBackward.SPLIT
    """Of a model: `split`, or `weight`: B of the first stage does nothing and its W runs the whole
    backward, as in PyTorch's runtime (see `ppopt.problem.first_backward`)."""
    offload: Any = None
    """Of a model: `none` of its layers offloads, or `all` do that can and do not recompute; both
    become None when the layers of the model are set. `search`: chosen with the schedule. None:
    as the layers state."""
    offload_fraction: Any = None
    """Of a model: share of the offloads of modules of every stage that remain, the first ones (see
    `ppopt.problem.layer_choices.with_offload_fraction`); it becomes None when the layers are set.
    None: all."""
    offload_modules: Any = None
    """Of a model: names of the modules that offload, in place of `offload`; None: none."""
    host_link: Any = HostLink.DUPLEX
    """Whether both directions of a device run at the same time, or one at a time."""
    device_speed: Any = 1
    """Speed of the devices, one number or one per device, above 0: an operation of a stage takes
    its time / the speed of its device. If two routes run a stage on two devices, these have the
    same speed."""
    mem_limit: Any = None
    """None; `1f1b`; one number for every device; or a list, one number per device."""
    optimizer_barrier: bool = False
    """Whether optimizers wait for the gradients of all devices."""
    frozen: Any = None
    """Whether stages are frozen: one value for all, or one per stage; None: none is. With a model
    in layers, its layers state it (see `ppopt.problem.frozen`)."""
    microbatch_times: Any = None
    """Factor on the times of a microbatch, one for all or one per microbatch; None: 1 (see
    `ppopt.problem.microbatches`)."""
    microbatch_memory: Any = None
    """Factor on the memory of a microbatch, in the same form; None: 1."""
    microbatch_tokens: Any = None
    """Lengths of the documents of every microbatch, from which both factors follow; it becomes None
    when these are set (see `ppopt.problem.sequence_lengths`)."""
    attention_share: Any = None
    """Share of the times that grows with the square of a document's length; with slices,
    `slice_times` follow from it. None: 0, or the factors are set."""
    reference_tokens: Any = None
    """Tokens of the document to which the times of the stages belong; None:
    `tokens_per_microbatch`."""
    order: Any = GIVEN_ORDER
    """Order in which microbatches run: `given`, the order of their factors; `search`, chosen with
    the schedule; or a chosen order. The factors are then in that order, and entry k is the
    index, in the given list, of the microbatch that runs k-th."""
    slices: int | None = None
    """Equal parts of every microbatch along the sequence, in causal order; None: 1."""
    slice_times: Any = None
    """Relative times of the slices, one each; factors of mean 1 once they are read. None: equal.
    Their number is the number of slices, too."""
    routes: int = 1
    """2: half of the microbatches run the stages in mirrored placement (bidirectional)."""
    time_unit: str | None = None
    """ns, us, ms or s; None: that of the numbers with a unit; unknown if there are none."""
    memory_unit: str | None = None
    """B, KB, MB, GB, KiB, MiB or GiB; None: as for `time_unit`."""
    tokens_per_microbatch: Any = None
    """Tokens of one microbatch; None: unknown."""
    flops_per_microbatch: Any = None
    """Floating-point operations that the whole model needs for F and BW of one microbatch, without
    recomputation; None: unknown."""
    peak_flops: Any = None
    """Floating-point operations per second of one device, of speed 1, at most; None: unknown."""
    training: Any = None
    """Sizes of the training, a `ppopt.problem.training_sizes.TrainingSizes` or a mapping of them;
    None: unknown."""
    name: str = ""
    rounded: tuple[str, ...] = ()
    """The fields whose input was finer than 10^-6 of the unit and was rounded to it."""
    rounded_by: tuple[tuple[str, Fraction], ...] = ()
    """The fields whose numbers were rounded because the grid would be too fine otherwise, each with
    the largest change of a number, in its unit (see `ppopt.problem.rounding`)."""
    grid: Any = None
    """Ticks per unit of all pipelines of this input, a `ppopt.problem.grid.Grid`. It becomes as
    fine as the input needs when the pipeline is read. None: numbers may be rounded for it."""
