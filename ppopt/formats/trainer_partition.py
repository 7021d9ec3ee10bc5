"""The partition of a model in layers as Megatron-LM's arguments, and what trainers support of it.

Megatron-LM and torchtitan build embedding and head themselves: where a model has no layer of that
role, it is named in the first and in the last stage. One that is named so and has no such role is
refused, for it would count as a transformer layer. Both recompute either every transformer layer or
none, and never the embedding or the head: other choices are refused.

Layers before the embedding are an encoder. Megatron-LM runs all of it in the first stage, with the
embedding, and its layout is that of the language model alone (`LLaVAModel` in
megatron/core/models/multimodal/llava_model.py; `model_provider` of examples/multimodal/model.py,
which adds `--recompute-vision`). torchtitan's language models have no encoder.

Megatron-LM (d98e8a6): `--pipeline-model-parallel-layout`, and what is checked of it, from
`validate_layer_layout` in megatron/core/transformer/pipeline_parallel_layer_layout.py; recompute
from `_add_training_args` in megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

from ppopt.errors import NotApplicableError
from ppopt.formats import megatron_schedule
from ppopt.problem import layout, placement
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.layer import ENDS, Layer
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.modules import Chosen
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Model, Pipeline

MEGATRON = "Megatron-LM"
_NAME_PARTS = {"embedding": "embed", "head": "head"}
"""Role of an end -> text that is part of the name of such a layer."""
MODULES = frozenset(
    ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
)
"""Values of `--recompute-modules` of Megatron-LM (megatron/core/transformer/transformer_config.py,
d98e8a6)."""
OFFLOADED_MODULES = frozenset(
    ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
)
"""Values of `--offload-modules` of Megatron-LM (user-guide/features/
fine_grained_activation_offloading of Megatron Core 0.19)."""
Roles = Sequence[Sequence[str]]
"""The role of every layer, stage by stage; the costs of layers play no part here."""


def megatron_arguments(pipeline: Pipeline, group_size: int | None = None) -> str:
    """Write the arguments of Megatron-LM for the pipeline's partition, one per line.

    They say what its transformer layers recompute and offload and, if ranks have several stages,
    the group size of interleaved 1F1B: that of the schedule, or the smallest that Megatron-LM runs.
    The sizes of `pipeline.training` come first, if these are known, with the arguments that the
    costs assume. Raises NotApplicableError if there are no layers, or if Megatron-LM does not
    support the partition, recompute, offload, group size or sizes. Equal stages without layers are
    Megatron-LM's default: they need no layout.
    """
    if pipeline.model is None and not pipeline.has_unequal_shares:
        return _arguments_of_equal_stages(pipeline, group_size)
    stages = roles_with_ends(pipeline, MEGATRON)
    block = _first_recomputed(pipeline)
    recompute = False if block else recompute_of(pipeline.model, MEGATRON)
    _check_megatron_placement(pipeline)
    lines = [*megatron_costs(pipeline), *layout_arguments(stages, pipeline.num_devices)]
    lines += _group_argument(megatron_schedule.group_size_of(pipeline, group_size))
    if block:
        first = ("granularity full", "method block", f"num-layers {block}")
        lines += [f"--recompute-{argument}" for argument in first]
    if recompute is True:
        full = ("granularity full", "method uniform", "num-layers 1")
        lines += [f"--recompute-{argument}" for argument in full]
        lines += ["--recompute-vision"] * (num_encoder_layers(pipeline.model) > 0)
    elif recompute:
        lines += ["--recompute-granularity selective", f"--recompute-modules {' '.join(recompute)}"]
    if offloaded := _offloaded_modules(pipeline.model):
        lines += ["--fine-grained-activation-offloading"]
        lines += [f"--offload-modules {' '.join(offloaded)}", *_offload_fraction(pipeline)]
    return "\n".join(lines) + "\n"


def layout_arguments(stages: Roles, devices: int) -> list[str]:
    """Arguments of the numbers of layers and their partition.

    Raises NotApplicableError if Megatron-LM refuses the position of MTP layers.
    """
    mtp = _mtp_layers(stages, devices)
    return [
        f"--num-layers {sum(roles.count('decoder') for roles in stages)}",
        *[f"--mtp-num-layers {mtp}"] * (mtp > 0),
        f"--pipeline-model-parallel-size {devices}",
        f'--pipeline-model-parallel-layout "{layout.write_roles(stages)}"',
    ]


def _arguments_of_equal_stages(pipeline: Pipeline, group_size: int | None) -> str:
    """Arguments of stages without layers: their number; all have equally many layers."""
    _check_megatron_placement(pipeline)
    if any(pipeline.costs.recompute_time):
        raise NotApplicableError(
            "megatron: it recomputes layers, and this schedule has stages alone; solve a model in "
            "layers"
        )
    group = megatron_schedule.group_size_of(pipeline, group_size)
    lines = [*megatron_costs(pipeline), *equal_stages_arguments(pipeline)]
    return "\n".join([*lines, *_group_argument(group)]) + "\n"


def equal_stages_arguments(pipeline: Pipeline) -> list[str]:
    """Arguments of the number of ranks and of stages per rank, of equally many layers each."""
    devices = pipeline.num_devices
    chunks = pipeline.num_stages // devices
    virtual = [f"--num-virtual-stages-per-pipeline-rank {chunks}"]
    return [f"--pipeline-model-parallel-size {devices}", *virtual * (chunks > 1)]


def _group_argument(group: int | None) -> list[str]:
    return [] if group is None else [f"--microbatch-group-size-per-virtual-pipeline-stage {group}"]


def megatron_sizes(pipeline: Pipeline) -> list[str]:
    """Arguments of the sizes of the training and of what costs assume; none if they are unknown.

    Raises NotApplicableError if Megatron-LM refuses them (`validate_args`).
    """
    sizes = pipeline.training
    if sizes is None:
        return []
    if megatron_schedule.overlaps(sizes) and pipeline.model is not None:
        _check_overlap(pipeline.model)
    ways = 2 * sizes.context
    if sizes.context > 1 and sizes.sequence is not None and sizes.sequence % ways:
        raise NotApplicableError(
            f"megatron: a sequence is a multiple of 2 x context = {ways} tokens, and it has "
            f"{sizes.sequence}"
        )
    sequence_parallel, sharded = "--sequence-parallel", "--use-distributed-optimizer"
    known = sizes.arguments
    if known is None:
        known = (
            *[sequence_parallel] * (sizes.tensor > 1),
            *[sharded] * (sizes.data * sizes.context > 1),
        )
    lines = [
        f"--tensor-model-parallel-size {sizes.tensor}",
        *[sequence_parallel] * (sequence_parallel in known),
        f"--context-parallel-size {sizes.context}",
        f"--expert-model-parallel-size {sizes.expert}",
        *[sharded] * (sharded in known),
        f"--micro-batch-size {sizes.microbatch}",
        f"--global-batch-size {sizes.microbatch * sizes.data * pipeline.batches}",
        *([] if sizes.sequence is None else [f"--seq-length {sizes.sequence}"]),
    ]
    return lines + [argument for argument in known if argument not in lines]


def _check_overlap(model: Model) -> None:
    """Raise NotApplicableError if layers recompute what Megatron-LM does not overlap.

    See `__post_init__` of megatron/core/transformer/transformer_config.py.
    """
    recompute = recompute_of(model, MEGATRON)
    if recompute is True or (recompute and "moe" in recompute):
        raise NotApplicableError(
            "megatron: it overlaps exchanges of experts if neither whole layers nor moe recompute; "
            "solve with other modules, or without dispatch in --overlap"
        )


def megatron_costs(pipeline: Pipeline) -> list[str]:
    """Arguments of the sizes and of what costs assume. Raises as `megatron_sizes`."""
    return [*megatron_sizes(pipeline), *_overlaps(pipeline)]


def _overlaps(pipeline: Pipeline) -> list[str]:
    """Arguments with which gradients and parameters move in parallel to compute, as costs do.

    Megatron-LM gathers parameters so only with a distributed optimizer, and if gradients do.
    """
    costs, sizes = pipeline.costs, pipeline.training
    gathers = any(costs.unshard)
    is_sharded = sizes is not None and "--use-distributed-optimizer" in megatron_sizes(pipeline)
    return [
        *["--use-distributed-optimizer"] * (gathers and not is_sharded),
        *["--overlap-grad-reduce"] * (gathers or any(costs.gradient_sync)),
        *["--overlap-param-gather"] * gathers,
    ]


def check_model(model: Model, trainer: str) -> None:
    """Raise NotApplicableError if a trainer supports no partition of a model.

    That is if an embedding or a head is not at its end or has no role, or if the trainer cannot
    recompute just these layers.
    """
    _check_roles(model, trainer)
    recompute_of(model, trainer)


def _check_roles(model: Model, trainer: str) -> None:
    """Raise NotApplicableError if an embedding or a head has another place, or has no role."""
    roles = [layer.role for layer in model.layers]
    encoder = num_encoder_layers(model)
    if encoder and trainer != MEGATRON:
        raise NotApplicableError(
            f"{trainer}: the {encoder} layers before the embedding are an encoder, which its "
            "language models do not have"
        )
    for role, place in zip(ENDS, (encoder, len(roles) - 1), strict=True):
        at = [index for index, listed_role in enumerate(roles) if listed_role == role]
        if at not in ([], [place]):
            end = "first" if place == 0 else "last"
            raise NotApplicableError(f"{trainer}: the {role} is one layer, the {end}; it is {at}")
        layer = model.layers[place]
        if layer.role == DECODER and _NAME_PARTS[role] in layer.name.lower():
            raise NotApplicableError(
                f"{trainer}: layer {place} is named {layer.name} and has the role of a transformer "
                f"layer; give it `role: {role}` (`ppopt profile --roles` writes roles), or another "
                "name"
            )


def num_encoder_layers(model: Model) -> int:
    """Number of layers before the embedding, if they are an encoder: all of role decoder."""
    roles = [layer.role for layer in model.layers]
    before = roles[: roles.index("embedding")] if "embedding" in roles else []
    return len(before) if set(before) <= {DECODER} else 0


def added_ends(model: Model) -> list[str]:
    """Roles of ends that a trainer adds although the layer at that end may be one.

    Such a layer differs from the layer next to it.
    """
    roles = {layer.role for layer in model.layers}
    pairs = zip(ENDS, (model.layers[:2], model.layers[-2:]), strict=True)
    return [role for role, pair in pairs if role not in roles and len(set(pair)) > 1]


def check_recompute(model: Model, trainer: str) -> None:
    """Raise NotApplicableError if an end recomputes, or if whole stages do at once."""
    for layer in model.layers:
        if layer.role in ENDS and layer.recompute:
            raise NotApplicableError(
                f"{trainer}: the {layer.role} recomputes, and its full recompute leaves that out; "
                f"take recompute none, or leave `recompute` of the {layer.role} out of the model"
            )
    is_whole = model.recompute_unit is RecomputeUnit.STAGE
    if is_whole and any(layer.recompute for layer in model.layers):
        raise NotApplicableError(
            f"{trainer}: it recomputes one layer at a time; take recompute_unit layer"
        )


def recompute_of(model: Model, trainer: str) -> Chosen:
    """What all transformer layers recompute: nothing, everything, or these modules of each.

    Raises NotApplicableError as `check_recompute`, if transformer layers differ, and if the trainer
    has no such modules.
    """
    layers = [layer for layer in model.layers if layer.role not in ENDS]
    check_recompute(model, trainer)
    names = chosen_modules(layers, "recompute")
    if not names:
        every = [bool(layer.recompute) for layer in layers]
        if len(set(every)) > 1:
            raise NotApplicableError(
                f"{trainer}: {sum(every)} of {len(every)} transformer layers recompute, and it has "
                "one choice for all of them; take recompute none or full"
            )
        return any(every)
    if trainer != MEGATRON or not MODULES.issuperset(names):
        raise NotApplicableError(
            f"{trainer}: it does not recompute {', '.join(names)} of a layer; take recompute none "
            "or full"
        )
    _check_same(layers, "recompute", names)
    return names


def _first_recomputed(pipeline: Pipeline) -> int:
    """Number of layers that recompute in every stage, if these are the first of it; else 0.

    That is `--recompute-method block`. A stage may have fewer layers. MTP layers never recompute
    then (`_checkpointed_forward` in megatron/core/transformer/multi_token_prediction.py). 0 also if
    all or none of the layers recompute, and with an encoder.
    """
    if num_encoder_layers(pipeline.model):
        return 0
    check_recompute(pipeline.model, MEGATRON)
    stages = [
        [layer.recompute for layer in stage if layer.role == DECODER]
        for stage in pipeline.model.stage_layers(pipeline.counts)
    ]
    predictions = [layer.recompute for layer in pipeline.model.layers if layer.role == "mtp"]
    number = max(stage.count(True) for stage in stages)
    first = [[index < number for index in range(len(stage))] for stage in stages]
    is_block = stages == first and not any(predictions)
    return number if is_block and any(False in stage for stage in [*stages, predictions]) else 0


def _offloaded_modules(model: Model) -> tuple[str, ...]:
    """The modules that all transformer layers offload, where they have them; empty: none.

    Raises NotApplicableError if layers differ, or if Megatron-LM does not offload what they do.
    """
    names = chosen_modules(model.layers, "offload")
    strange = [name for name in names if name not in OFFLOADED_MODULES]
    if strange or any(layer.offload is True for layer in model.layers):
        raise NotApplicableError(
            f"megatron: it does not offload {', '.join(strange) or 'whole layers'}; take offload "
            f"none, or offload_modules of {', '.join(sorted(OFFLOADED_MODULES))}"
        )
    return names


def _offload_fraction(pipeline: Pipeline) -> list[str]:
    """The fraction of the modules of every stage that offload; nothing if all do.

    Raises NotApplicableError if no fraction leaves just these.
    """
    names = chosen_modules(pipeline.model.layers, "offload")
    low, high = -1.0, 1.0
    for layers in pipeline.model.stage_layers(pipeline.counts):
        chosen = [
            module.name in (layer.offload or ())
            for layer in layers
            for module in layer.modules
            if module.name in names
        ]
        if chosen != sorted(chosen, reverse=True):
            raise NotApplicableError(
                "megatron: it offloads the first modules of a stage, in the order of F; give "
                "offload_modules and offload_fraction, or take offload none"
            )
        if chosen:
            disabled, number = chosen.count(False), len(chosen)
            low, high = max(low, 1 - (disabled + 1) / number), min(high, 1 - disabled / number)
    if high == 1:
        return []
    fraction = f"{max((low + high) / 2, 0):.6f}"
    if not low < float(fraction) <= high:
        raise NotApplicableError(
            "megatron: it offloads one fraction of the modules of every stage, and these differ; "
            "give offload_fraction, or take offload none"
        )
    return [f"--activation-offload-fraction {fraction}"]


def _check_same(layers: Iterable[Layer], field: str, names: Sequence[str]) -> None:
    """Raise NotApplicableError if a layer does not recompute, or offload, all of these it has."""
    for layer in layers:
        own = tuple(module.name for module in layer.modules if module.name in names)
        if getattr(layer, field) != (own or False):
            raise NotApplicableError(
                f"{MEGATRON}: its layers {field} the same modules; give {field}_modules, or take "
                f"{field} none"
            )


def chosen_modules(layers: Iterable[Layer], field: str) -> tuple[str, ...]:
    """Names of the modules that recompute, or offload, in some layers, in the order of these."""
    chosen = (getattr(layer, field) for layer in layers)
    return tuple(
        dict.fromkeys(name for names in chosen if isinstance(names, tuple) for name in names)
    )


def megatron_partitions(pipeline: Pipeline) -> Callable[[Counts], bool]:
    """The predicate of partitions that Megatron-LM supports.

    It is about the positions of MTP layers, and of an encoder, which belongs to the first stage.

    Raises NotApplicableError if it supports none: because of placement, recompute, or the order of
    layers.
    """
    _check_layers(pipeline, MEGATRON)
    _check_megatron_placement(pipeline)
    recompute_of(pipeline.model, MEGATRON)
    _check_same(pipeline.model.layers, "offload", _offloaded_modules(pipeline.model))
    roles = [layer.role for layer in pipeline.model.layers]
    encoder = num_encoder_layers(pipeline.model)
    if "mtp" not in roles and not encoder:
        return lambda _: True
    _mtp_layers([roles[encoder:]], 1)

    def taken(counts: Counts) -> bool:
        if counts[0] <= encoder:
            return False
        ends = pairwise(accumulate(counts, initial=0))
        try:
            _mtp_layers([roles[low:high] for low, high in ends], pipeline.num_devices)
        except NotApplicableError:
            return False
        return True

    return taken


def _check_megatron_placement(pipeline: Pipeline) -> None:
    """Raise NotApplicableError if Megatron-LM has other routes or places, or no such offload."""
    _check_one_route(pipeline, MEGATRON)
    name, _ = placement.name_and_chunks(pipeline.hosts[0]) or ("v", 1)
    if name == "v":
        raise NotApplicableError(
            "megatron: it puts stage s on rank s mod ranks; solve with placement linear or "
            "interleaved"
        )
    if pipeline.has_offload and pipeline.model is None:
        raise NotApplicableError(
            "megatron: it offloads modules of layers, and this schedule has stages alone; solve a "
            "model in layers"
        )


def _mtp_layers(stages: Roles, devices: int) -> int:
    """Number of MTP layers; raises NotApplicableError if Megatron-LM refuses their position."""
    with_mtp = [stage for stage, roles in enumerate(stages) if "mtp" in roles]
    if not with_mtp:
        return 0
    roles = [role for stage in stages for role in stage]
    if "decoder" in roles[roles.index("mtp") :]:
        raise NotApplicableError("megatron: MTP layers come after all decoder layers")
    first_of_last = len(stages) - devices
    if len(with_mtp) > 1 or with_mtp[0] < first_of_last:
        raise NotApplicableError(
            f"megatron: MTP layers are in stages {', '.join(map(str, with_mtp))}; it takes them in "
            f"one stage, the last of its rank: one of {first_of_last} .. {len(stages) - 1}"
        )
    return roles.count("mtp")


def named_placement(pipeline: Pipeline, trainer: str, more: str = "") -> str:
    """`linear`, `interleaved`, or `v` of two stages per rank; else NotApplicableError."""
    name, chunks = placement.name_and_chunks(pipeline.hosts[0]) or ("v", 1)
    if name == "v" and chunks != 2:
        raise NotApplicableError(
            f"{trainer}: stage s sits on rank s mod ranks, or in a V of two per rank; solve with "
            f"placement linear, interleaved or v{more}"
        )
    return name


def check_no_stage_is_empty(counts: Sequence[int], trainer: str) -> None:
    """Raise NotApplicableError if a stage is empty: PyTorch's optimizers need parameters."""
    if 0 in counts:
        raise NotApplicableError(
            f"{trainer}: stage {counts.index(0)} is empty, and its optimizers need parameters in "
            "every stage"
        )


def _check_one_route(pipeline: Pipeline, trainer: str) -> None:
    if pipeline.routes > 1:
        raise NotApplicableError(f"{trainer} runs one route; solve with --routes 1")


def _check_layers(pipeline: Pipeline, trainer: str) -> None:
    """Raise NotApplicableError if a trainer supports no partition of the pipeline's layers."""
    if pipeline.model is None:
        raise NotApplicableError(
            f"{trainer} cuts layers, and this schedule knows stages alone; solve a model in layers"
        )
    _check_one_route(pipeline, trainer)
    _check_roles(pipeline.model, trainer)


def roles_with_ends(pipeline: Pipeline, trainer: str) -> Roles:
    """Roles of the layers of every stage, embedding first and head last, without an encoder."""
    _check_layers(pipeline, trainer)
    encoder = num_encoder_layers(pipeline.model)
    if encoder and pipeline.counts[0] <= encoder:
        raise NotApplicableError(
            f"megatron: it runs the encoder, {encoder} layers, and the embedding in the first "
            f"stage, which has {pipeline.counts[0]} layers here; give it at least {encoder + 1}"
        )
    layers = pipeline.model.stage_layers(pipeline.counts)
    stages = [[layer.role for layer in stage] for stage in layers]
    del stages[0][:encoder]
    stages[0][:0] = ["embedding"] * (stages[0][0] != "embedding")
    stages[-1] += ["head"] * (stages[-1][-1] != "head")
    return stages
