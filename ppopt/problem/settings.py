"""Every setting of a pipeline and of a run, declared once.

These records define the fields that `ppopt.Pipeline` accepts, the options of the command line, the
reader of config files with its JSON Schema, the costs in schedule files, and the table in
`models/README.md`. A setting has one key in files, the same with dashes as a flag, and sometimes
other names, which files, flags and Python accept as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from ppopt.errors import InputError
from ppopt.problem import cost_table, placement, units
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import costs_in
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.link_mode import HostLink, LinkMode
from ppopt.problem.setting import Heading, Setting, SettingScope, Shape
from ppopt.problem.units import Unit

LIMIT_1F1B = "1f1b"
"""The value of `mem_limit` for the largest device peak of 1F1B on this pipeline."""


def _cost_settings(*groups: type) -> Iterator[Setting]:
    """Settings of the costs in these classes."""
    for cost in costs_in(*groups):
        yield Setting(
            cost.field,
            Shape.PAIRS if cost.of_pairs else Shape.STAGES,
            cost.meaning,
            cost.default.value_or_rule,
            key=cost.key,
            unit=cost.unit,
            minimum=cost.minimum,
            placeholder="LIST" if cost.of_pairs else "",
            has_flag=cost.has_flag,
            set_by_plan=True,
        )


def _size(field: str, placeholder: str, meaning: str, **fields: Any) -> Setting:
    return Setting(field, Shape.WHOLE, meaning, placeholder=placeholder, minimum=1, **fields)


def _count(field: str, meaning: str) -> Setting:
    return Setting(field, Shape.COUNT, meaning, minimum=1, under=Heading.UNITS, stored_as_is=True)


def _run(field: str, shape: Shape, meaning: str, default: Any = None, **fields: Any) -> Setting:
    return Setting(field, shape, meaning, default, scope=SettingScope.RUN, **fields)


def _choice(field: str, kind: type[StrEnum], meaning: str, default: str, **fields: Any) -> Setting:
    return Setting(
        field,
        Shape.CHOICE,
        meaning,
        default,
        choices=tuple(map(str, kind)),
        placeholder="|".join(kind),
        **fields,
    )


def _text(
    field: str, shape: Shape, meaning: str, scope: SettingScope = SettingScope.ABOUT, **fields: Any
) -> Setting:
    return Setting(field, shape, meaning, scope=scope, has_flag=False, **fields)


SETTINGS = (
    _size(
        "stages",
        "P",
        "number of devices, with one stage each unless chunks or placement says otherwise; with a "
        "placement list, number of stages",
        aliases=("num_stages",),
        set_by_plan=True,
    ),
    _size(
        "batches",
        "M",
        "microbatches per step (of each replica)",
        aliases=("num_batches",),
        set_by_plan=True,
    ),
    _size(
        "chunks",
        "V",
        "stages per device; without layers, the costs of each device are divided by this number",
        default="1; 2 with the placements interleaved and v",
        set_by_plan=True,
    ),
    Setting(
        "placement",
        Shape.PLACEMENT,
        "which device hosts each stage: linear, interleaved, v, search (chosen with the schedule), "
        "or a list with the device of every stage",
        "linear; interleaved with chunks",
        choices=tuple(placement.NAMED),
        set_by_plan=True,
    ),
    Setting(
        "model",
        Shape.LAYERS,
        "the model in layers, in forward order, instead of costs per stage; see the table of "
        "layers",
        key="layers",
        has_flag=False,
        set_by_plan=True,
    ),
    Setting(
        "partition",
        Shape.PARTITION,
        "layers of each stage: balanced (the slowest stage is as fast as possible), even, search "
        "(chosen with the schedule), a list of counts, or a layout of Megatron-LM such as "
        "Et*3|(tt|)*2tL. Counts are of all layers, or of decoder layers only. Names per stage, a "
        "pattern of a hybrid model such as M-M-|M-M*-, and a trainer's file are read, too",
        "balanced",
        set_by_plan=True,
        replaceable=True,
    ),
    _choice(
        "partition_order",
        placement.PartitionOrder,
        "order of a list of layers per stage: `stages`, along the forward pass, or `ranks`, the "
        "stages of device 0 first, as Primus lists them",
        "stages",
        replaceable=True,
    ),
    Setting(
        "recompute",
        Shape.CHOICE,
        "layers that recompute: none, full (every decoder and mtp layer, full activation "
        "checkpointing), selective (core attention, the module `core_attn` of the layers), search, "
        "search-set, or a trainer's file. The value search chooses with the schedule, also among "
        "the `modules` of the layers. The value search-set does the same with one set of modules "
        "for all layers, as Megatron-LM has it. An embedding or head recomputes only if it sets "
        "`recompute`",
        "set per layer in the file",
        choices=("none", "full", "selective", "search", "search-set"),
        under=Heading.MEMORY,
        set_by_plan=True,
        replaceable=True,
    ),
    Setting(
        "recompute_modules",
        Shape.NAMES,
        "modules that recompute, in every layer that has them, such as core_attn,moe_act; instead "
        "of --recompute",
        under=Heading.MEMORY,
        replaceable=True,
    ),
    _choice(
        "recompute_unit",
        RecomputeUnit,
        "what a whole backward (BW) recomputes at once. `layer`: one layer at a time, from last to "
        "first, each freed when its backward ends. `stage`: all layers of the stage",
        "layer, as trainers do",
        has_flag=False,
        under=Heading.MEMORY,
    ),
    *_cost_settings(cost_table.TimeFields),
    Setting(
        "p2p",
        Shape.LINKS,
        "time to send an activation to the next device; in files also a matrix [from][to], or a "
        "list with the delay after every stage but the last",
        0,
        key="p2p_time",
        unit=Unit.TIME,
        minimum=0,
    ),
    Setting(
        "backward_p2p",
        Shape.LINKS,
        "time to send a gradient back, if it differs",
        "p2p_time",
        key="backward_p2p_time",
        unit=Unit.TIME,
        minimum=0,
    ),
    Setting(
        "link",
        Shape.LINK,
        "link of a model in layers, instead of p2p_time, for example "
        "latency=10us,bandwidth=50GB/s: the delay after a stage is latency + output of its last "
        "layer / bandwidth. In files {latency: 10us, bandwidth: 50GB/s}; its key `backward` has "
        "the same keys for gradients",
        under=Heading.TIMES,
        of_parallelism=True,
    ),
    _choice(
        "link_mode",
        LinkMode,
        ". ".join(f"With {mode}, {mode.meaning}" for mode in LinkMode),
        LinkMode.DELAY.value,
        under=Heading.TIMES,
        stored_as_is=True,
    ),
    _choice(
        "first_backward",
        FirstBackward,
        "split backward of the first stage of a model in layers: B and W (split), or the whole "
        "backward in W and nothing in B, as in PyTorch's runtime (weight)",
        FirstBackward.SPLIT.value,
        under=Heading.TIMES,
    ),
    Setting(
        "device_speed",
        Shape.PER_DEVICE,
        "speed of the devices, one number or one per device: the duration of an operation is its "
        "time / speed",
        1,
        minimum=0,
        under=Heading.TIMES,
    ),
    *_cost_settings(cost_table.MemoryFields, cost_table.StageWorkspaceField),
    *_cost_settings(cost_table.WorkspaceFields),
    *_cost_settings(cost_table.RecomputeFields, cost_table.RecomputeMemoryField),
    Setting(
        "offload",
        Shape.CHOICE,
        "layers that offload their activation to the host between F and the backward: none, all "
        "that have an `offload_time`, search (chosen with the schedule), or a trainer's file. A "
        "layer that recomputes does not offload",
        "set per layer in the file",
        choices=("none", "all", "search"),
        under=Heading.MEMORY,
        replaceable=True,
        of_parallelism=True,
    ),
    Setting(
        "offload_modules",
        Shape.NAMES,
        "modules whose activation moves to the host, in every layer that has them; instead of "
        "--offload",
        under=Heading.MEMORY,
        replaceable=True,
    ),
    Setting(
        "offload_fraction",
        Shape.NUMBER,
        "share of the modules that offload in every stage, with --offload-modules: the last ones "
        "in the order of F stay on the device, as with `--activation-offload-fraction` of "
        "Megatron-LM",
        "1",
        minimum=0,
        under=Heading.MEMORY,
        replaceable=True,
    ),
    *_cost_settings(cost_table.OffloadFields),
    _choice(
        "host_link",
        HostLink,
        "link between a device and its host: one move per direction at a time (duplex), or one "
        "move at a time (shared)",
        HostLink.DUPLEX.value,
        under=Heading.TIMES,
        stored_as_is=True,
    ),
    Setting(
        "mem_limit",
        Shape.DEVICES,
        "memory limit of each device, one value or a list; without a value (true in files): the "
        "largest device peak of 1F1B on this pipeline with one route",
        unit=Unit.MEMORY,
        minimum=0,
        set_by_plan=True,
        replaceable=True,
        of_parallelism=True,
    ),
    *_cost_settings(cost_table.PairFields, cost_table.StepFields),
    Setting(
        "optimizer_barrier",
        Shape.FLAG,
        "optimizers wait for the gradients of all devices, as gradient clipping needs",
        under=Heading.TIMES,
        stored_as_is=True,
    ),
    Setting(
        "frozen",
        Shape.SWITCHES,
        "whether a stage is frozen: true, false, or a list with one per stage. A frozen stage has "
        "no W, gradient_sync or optimizer. If all stages before it are frozen too, it has no "
        "backward, and F frees its activation",
        "false",
        has_flag=False,
    ),
    Setting(
        "microbatch_times",
        Shape.PER_DEVICE,
        "factor on the times of a microbatch, one number or one per microbatch, if microbatches "
        "differ (packed or variable-length sequences). Every stage runs every kind of operation in "
        "the order of the list",
        "1",
        minimum=0,
        under=Heading.TIMES,
    ),
    Setting(
        "microbatch_memory",
        Shape.PER_DEVICE,
        "factor on the activation of a microbatch, memory_b, kept and offload_memory, but not on "
        "workspace. Required if microbatch_times and a memory limit are set",
        "1",
        minimum=0,
        under=Heading.MEMORY,
    ),
    Setting(
        "microbatch_tokens",
        Shape.LENGTHS,
        "lengths of the documents of every microbatch, from which both factors follow: a list with "
        "one entry per microbatch, its tokens or a list of lengths",
        has_flag=False,
    ),
    Setting(
        "attention_share",
        Shape.NUMBER,
        "share of the times that grows with the square of the length of a document (attention); "
        "with slices, with the tokens that a slice attends to",
        "0",
        minimum=0,
        under=Heading.TIMES,
    ),
    Setting(
        "reference_tokens",
        Shape.COUNT,
        "length in tokens of the document for which the times of the stages hold",
        "tokens_per_microbatch",
        minimum=1,
        under=Heading.TIMES,
    ),
    Setting(
        "order",
        Shape.CHOICE,
        "order of microbatches that differ, on every stage: given (the order of their factors), or "
        "search (chosen with the schedule)",
        "given",
        choices=("given", "search"),
        under=Heading.TIMES,
        of_parallelism=True,
        stored_as_is=True,
    ),
    _size(
        "slices",
        "Q",
        "number of slices of each microbatch along the sequence",
        default="1",
        stored_as_is=True,
    ),
    Setting(
        "slice_times",
        Shape.PER_DEVICE,
        "relative times of the slices of a microbatch, one number each, if they differ (causal "
        "attention); their sum is scaled to the time of the microbatch",
        "equal, or by attention_share",
        minimum=0,
        under=Heading.TIMES,
    ),
    Setting(
        "routes",
        Shape.WHOLE,
        "with 2, half of the microbatches pass the devices in the opposite direction, as in "
        "DualPipe and Chimera",
        1,
        choices=(1, 2),
    ),
    Setting(
        "time_unit",
        Shape.CHOICE,
        "unit of times, in results and for numbers without a unit",
        "the largest unit used in the input",
        choices=tuple(units.SCALES[Unit.TIME]),
        placeholder="UNIT",
        under=Heading.UNITS,
        set_by_plan=True,
        stored_as_is=True,
    ),
    Setting(
        "memory_unit",
        Shape.CHOICE,
        "unit of memory, in results and for numbers without a unit",
        "the largest unit used in the input",
        choices=tuple(units.SCALES[Unit.MEMORY]),
        placeholder="UNIT",
        under=Heading.UNITS,
        set_by_plan=True,
        stored_as_is=True,
    ),
    _count("tokens_per_microbatch", "tokens of a microbatch, to show tokens per second"),
    _count(
        "flops_per_microbatch", "FLOPs of a microbatch in the whole model, F and BW, to show MFU"
    ),
    _count("peak_flops", "peak FLOPs per second of a device (of speed 1), to show MFU"),
    Setting(
        "training",
        Shape.TRAINING,
        "sizes for the arguments of trainers, such as `{tensor: 2, data: 4, microbatch: 1, "
        "sequence: 4096}`. Ranks of `tensor` (with sequence parallelism), `context`, `data` (with "
        "sharded optimizer states) and `expert` parallelism; sequences per `microbatch`; tokens "
        "per `sequence`. `arguments` lists further arguments of Megatron-LM that the costs assume, "
        "and `assumes` what no argument says",
        has_flag=False,
        under=Heading.UNITS,
    ),
    _text("name", Shape.LINE, "name of the pipeline", SettingScope.PIPELINE, set_by_plan=True),
    _run(
        "objective",
        Shape.CHOICE,
        "what to minimize: makespan, or device-span, the maximum time from the first to the last "
        "operation of a device",
        "makespan",
        choices=("makespan", "device-span"),
    ),
    _run(
        "backward_kind",
        Shape.CHOICE,
        "how the backward runs: as B and W (split), as BW (whole), or chosen per stage and "
        "microbatch (mixed)",
        BackwardKind.MIXED.value,
        choices=tuple(map(str, BackwardKind)),
        own_flag="--backward",
    ),
    _run("fused", Shape.FLAG, "same as --backward whole"),
    _run(
        "time_limit", Shape.SECONDS, "time limit of the search in seconds", 60, of_parallelism=True
    ),
    _run(
        "workers",
        Shape.WHOLE,
        "number of processors; with 1, a search that ends before its time limit is reproducible",
        "all",
        minimum=1,
        of_parallelism=True,
    ),
    _run("seed", Shape.WHOLE, "seed of the search", 0, minimum=0, of_parallelism=True),
    _run(
        "group_size",
        Shape.WHOLE,
        "microbatches per group of interleaved strategies",
        "P, or slightly more so that the last group has at least P",
        minimum=1,
        under=Heading.STRATEGIES,
    ),
    _run("waves", Shape.WHOLE, "waves of hanayo", 2, minimum=1, under=Heading.STRATEGIES),
    _run(
        "unshard_ahead",
        Shape.WHOLE,
        "device r prefetches the weights of at most its next r + N stages; 2 is `auto` of "
        "torchtitan",
        "all stages, as early as memory allows",
        minimum=1,
        under=Heading.STRATEGIES,
    ),
    _run(
        "output",
        Shape.FILES,
        "file to write: page (.html), picture (.svg, .png), exact schedule (.json), or order for "
        "PyTorch (.csv); may be repeated",
        aliases=("output_file",),
        under=Heading.OUTPUT,
        of_parallelism=True,
    ),
    _text("source", Shape.LINE, "where the numbers come from"),
    _text("description", Shape.LINE, "what the file describes"),
    _text("date", Shape.DATE, "when it was measured"),
)
COUNTS = tuple(setting for setting in SETTINGS if setting.shape is Shape.COUNT)
NAMED: Mapping[str, Setting] = {name: setting for setting in SETTINGS for name in setting.names}
"""Every accepted name -> its setting."""


SYNONYMS = {
    "batches": ("microbatch", "microbatches", "num_microbatches", "n_microbatches"),
    "stages": ("device", "devices", "num_devices", "rank", "ranks", "pp"),
    "chunks": ("virtual_stages", "vpp", "num_model_chunks"),
}
"""Words of other tools for a setting. They are not accepted, but lead to its name."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word of the same meaning, or else the most similar one, for "did you mean"."""
    names = tuple(known)
    bare = word.lower().lstrip("-").replace("-", "_").replace("micro_batch", "microbatch")
    meant = (name for name in names if bare in SYNONYMS.get(name.lstrip("-"), ()))
    return next(meant, None) or get_close_matches(word[:60].lower(), names, n=1, cutoff=0.0)[0]


def same_setting(first: str, second: str) -> InputError:
    """Error of a setting that is given under two names."""
    return InputError(f"{first} and {second} are the same setting; keep one")
