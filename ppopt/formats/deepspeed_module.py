"""The partition of a model in layers, as the code of DeepSpeed's pipeline module."""

from __future__ import annotations

from itertools import accumulate

from ppopt.errors import NotApplicableError
from ppopt.formats.trainer_partition import check_no_stage_is_empty, recompute_of
from ppopt.problem import placement
from ppopt.problem.pipeline import Pipeline


def deepspeed_module(pipeline: Pipeline) -> str:
    """Write the subclass of DeepSpeed's PipelineModule with the pipeline's partition.

    No `partition_method` of DeepSpeed accepts counts of layers: `uniform`, `parameters` and
    `type:REGEX` balance weights. So the class sets the bounds that `_partition_layers` sets, for
    one layer spec per layer of the model, in its order (deepspeed/runtime/pipe/module.py of
    deepspeedai/DeepSpeed, 12e65a6). Its docstring names the arguments with which the transformer
    layers recompute (`_is_checkpointable` there). Raises NotApplicableError if there are no layers,
    if a rank would have more than one stage, or if only some of them recompute.
    """
    if pipeline.model is None:
        raise NotApplicableError("deepspeed cuts layers, and this schedule knows stages alone")
    devices = pipeline.num_devices
    if pipeline.routes > 1 or placement.name_and_chunks(pipeline.hosts[0]) != ("linear", 1):
        raise NotApplicableError(
            "deepspeed: it puts stage s on rank s; solve with placement linear"
        )
    check_no_stage_is_empty(pipeline.counts, "deepspeed")
    parts = [0, *accumulate(pipeline.counts)]
    recompute = "activation_checkpoint_interval=0: no layer recomputes."
    if recompute_of(pipeline.model, "deepspeed"):
        recompute = (
            "activation_checkpoint_interval=1 and checkpointable_layers with the class of the "
            "transformer layers: these recompute."
        )
    return (
        "from deepspeed.pipe import PipelineModule\n\n\n"
        "class PartitionedPipeline(PipelineModule):\n"
        f'    """{parts[-1]} layer specs over {devices} stages.\n\n'
        f'    Give it {recompute}\n    """\n\n'
        "    def _partition_layers(self, method=None):\n"
        f"        self.parts = {parts}\n"
        "        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])\n"
    )
