"""What trainers' files say of recompute, offload and overlap: what exports write, and more.

A TOML, YAML or JSON file has the keys at any depth: of Megatron-LM (Megatron-Bridge, Primus), or
torchtitan's table `activation_checkpoint`. Any other file is text with arguments of Megatron-LM.
Defaults are those of megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py of Megatron-LM, d98e8a6: nothing recomputes, and
`selective` alone recomputes core attention. torchtitan: the modes of
torchtitan/distributed/activation_checkpoint.py; every n-th layer up to release 0.2.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.config import SUFFIXES
from ppopt.formats.documents import label, members, read_text
from ppopt.formats.partition_file import LARGEST_FILE, TEXTS, read_partition
from ppopt.problem import layout, placement

OVERLAPS = {
    "tp_comm_overlap": "tp",
    "overlap_moe_expert_parallel_comm": "dispatch",
    "delay_wgrad_compute": "wgrad",
    "overlap_grad_reduce": "grads",
    "overlap_param_gather": "params",
}
"""Key of Megatron-LM -> what overlaps."""
_KEYS = (
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("recompute_activations", "recompute_layer_ids", "activation_checkpoint"),
    *("module_fqns_per_model_part", "pipeline_parallel_degree", "pipeline_parallel_schedule"),
    *("fine_grained_activation_offloading", "offload_modules", "cpu_offloading"),
    *("activation_offload_fraction", "delta_offload_bytes_across_pp_ranks"),
    *OVERLAPS,
)
_OFF = (None, False, "", "null", "none", "false")


def read_recompute(path: Path) -> str | tuple[int, ...]:
    """What recomputes: `none`, `full`, modules joined by `+`, or the numbers of layers.

    Raises InputError, naming the file and the key, if ppopt does not know the choice.
    """
    keys, where = _read(path), label(path)
    if isinstance(table := keys.get("activation_checkpoint"), Mapping):
        return _of_torchtitan(table, keys, where)
    if (ids := keys.get("recompute_layer_ids")) not in _OFF:
        return tuple(map(int, _listed(ids)))
    granularity = keys.get("recompute_granularity")
    if granularity in _OFF:
        return "selective" if keys.get("recompute_activations") not in _OFF else "none"
    if granularity == "selective":
        return "+".join(_listed(keys.get("recompute_modules") or "core_attn"))
    if keys.get("recompute_method") == "block":
        return _first_of_stages(path, int(keys.get("recompute_num_layers") or 0))
    method, layers = keys.get("recompute_method"), str(keys.get("recompute_num_layers") or 1)
    if granularity != "full" or method not in ("uniform", None) or layers != "1":
        raise InputError(
            f"recompute: {where}: {granularity}, {method}, {layers} layers is not known: layers "
            "recompute on their own, not in groups; use selective with modules, full with method "
            "block, or uniform and 1 layer, or recompute_layer_ids"
        )
    return "full"


def _first_of_stages(path: Path, number: int) -> tuple[int, ...]:
    """The numbers of the first decoder layers of every stage of the layout in a file.

    Raises InputError, naming the file, if it has no layout.
    """
    partition = read_partition(path)
    if not isinstance(partition, str):
        raise InputError(f"recompute: {label(path)}: method block needs a layout; use uniform")
    sizes = [letters.count("t") for letters in layout.stages(partition)]
    starts = accumulate(sizes, initial=0)
    return tuple(
        start + index
        for start, size in zip(starts, sizes, strict=False)
        for index in range(min(number, size))
    )


def read_offload(path: Path) -> str | tuple[str, ...]:
    """The modules that offload; `none` if fine-grained offload is off.

    Raises InputError, naming the file, if it offloads whole layers.
    """
    keys = _read(path)
    if keys.get("cpu_offloading") not in _OFF:
        raise InputError(
            f"offload: {label(path)}: cpu_offloading offloads whole layers; use "
            "fine_grained_activation_offloading with offload_modules"
        )
    if keys.get("fine_grained_activation_offloading") in _OFF:
        return "none"
    return tuple(_listed(keys.get("offload_modules") or ())) or "none"


def read_offload_fraction(path: Path) -> str | None:
    """The fraction of the modules of every stage that offload; None: all.

    Raises InputError, naming the file, if ranks differ: Megatron-LM then retains the activations of
    the microbatches whose backward comes first, and here all microbatches offload the same.
    """
    keys = _read(path)
    if str(keys.get("delta_offload_bytes_across_pp_ranks") or 0) != "0":
        raise InputError(
            f"offload: {label(path)}: delta_offload_bytes_across_pp_ranks offloads less in some "
            "microbatches alone; here all offload the same: leave it out"
        )
    fraction = keys.get("activation_offload_fraction")
    return None if fraction is None else str(fraction)


def read_overlap(path: Path) -> tuple[str, ...]:
    """What overlaps with compute, by the names of `--overlap`."""
    keys = _read(path)
    return tuple(name for key, name in OVERLAPS.items() if keys.get(key) not in _OFF)


def _of_torchtitan(
    table: Mapping[str, Any], keys: Mapping[str, Any], where: str
) -> str | tuple[int, ...]:
    """The mode of a table `activation_checkpoint`; without a number, `selective` is by operation.

    Raises InputError, naming the file, if the mode recomputes parts of a layer.
    """
    mode, option = table.get("mode", "selective"), str(table.get("selective_ac_option", "op"))
    if mode in ("none", "full"):
        return str(mode)
    if mode != "selective" or not option.isdigit():
        raise InputError(
            f"recompute: {where}: mode {mode} of activation_checkpoint recomputes single "
            "operations, which layers do not list: measure a layer with this mode, give it "
            "`recompute: {time, activation}`, and use full"
        )
    period = int(option) or 1
    return "full" if period == 1 else _every_nth(period, keys, where)


def _every_nth(period: int, keys: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The numbers of every n-th layer of each rank, which counts them in the order of its stages.

    Raises InputError, naming the file, if it does not list the modules of every stage.
    """
    parts = keys.get("module_fqns_per_model_part")
    if not isinstance(parts, list):
        raise InputError(
            f"recompute: {where}: selective_ac_option {period} counts the layers of a rank: list "
            "them with module_fqns_per_model_part, or use full or none"
        )
    in_v = keys.get("pipeline_parallel_schedule") in ("ZBVZeroBubble", "DualPipeV")
    rank_of = placement.NAMED["v" if in_v else "interleaved"]
    devices = int(keys.get("pipeline_parallel_degree") or 1)
    layers: dict[int, list[int]] = {}
    for stage, names in enumerate(parts):
        numbers = map(int, re.findall(r"\blayers\.(\d+)", " ".join(names)))
        layers.setdefault(rank_of(stage, devices), []).extend(numbers)
    return tuple(sorted(n for rank in layers.values() for n in rank[period - 1 :: period]))


def _listed(value: object) -> list[str]:
    """The entries of a list, or of text separated by commas or spaces."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(entry) for entry in value]
    return re.findall(r"[^\s,\[\]\"']+", str(value))


def _read(path: Path) -> dict[str, Any]:
    """The keys of a file that are known here; the last one of a name counts."""
    text = read_text(path, LARGEST_FILE)
    parse = SUFFIXES.get(path.suffix.lower())
    pairs = _arguments(text) if parse is None else members(parse(text, label(path)))
    return {key: value for key, value in pairs if key in _KEYS}


def _arguments(text: str) -> Iterator[tuple[str, Any]]:
    """Arguments with their values: True, a text, or several texts joined by spaces."""
    arguments = re.sub(r"#.*|[\"'\\]", " ", text).split()
    name, values = "", list[str]()
    for part in (*arguments, "--"):
        if not part.startswith("--"):
            values.append(part.strip())
            continue
        if name:
            yield name, " ".join(filter(None, values)) or True
        name, _, value = part[2:].replace("-", "_").partition("=")
        values = [part.partition("=")[2]] if value else []


READERS: Mapping[str, Callable[[Path], Any]] = {
    "partition": read_partition,
    "recompute": read_recompute,
    "offload": read_offload,
    "overlap": read_overlap,
}
"""Option whose value may be the name of a file -> its reader."""


def value_of(option: str, text: str) -> Any:
    """The value that a file states for an option; None if the text is no name of such a file."""
    if option not in READERS or Path(text).suffix.lower() not in (*SUFFIXES, *TEXTS):
        return None
    return READERS[option](Path(text))
