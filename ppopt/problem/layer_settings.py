"""Every setting of a layer of a model, declared once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ppopt.errors import InputError
from ppopt.problem import cost_table
from ppopt.problem.cost_table import LAYER_COSTS, costs_in
from ppopt.problem.setting import Setting, SettingScope, Shape

LETTERS: Mapping[str, str] = {"embedding": "E", "decoder": "t", "mtp": "m", "head": "L"}
"""Role of a layer -> its letter in Megatron-LM's layouts (docs/user-guide/features/
pipeline_parallel_layout.md of NVIDIA/Megatron-LM)."""
DECODER = "decoder"


def _layer(field: str, shape: Shape, meaning: str, default: Any = None, **fields: Any) -> Setting:
    return Setting(
        field, shape, meaning, default, scope=SettingScope.LAYER, has_flag=False, **fields
    )


def _cost_settings(*groups: type) -> Iterator[Setting]:
    """Settings of the costs in these classes."""
    for cost in costs_in(*groups):
        yield _layer(
            cost.field,
            Shape.NUMBER,
            cost.layer_meaning,
            cost.layer_default.value_or_rule,
            key=cost.layer_key,
            unit=cost.unit,
            minimum=cost.minimum,
        )


LAYER_SETTINGS = (
    _layer("name", Shape.LINE, "name of the layer"),
    _layer(
        "role", Shape.CHOICE, "embedding, decoder, mtp or head", DECODER, choices=tuple(LETTERS)
    ),
    _layer("count", Shape.WHOLE, "number of such layers in a row", 1, minimum=1),
    *_cost_settings(cost_table.TimeFields),
    _layer(
        "phases",
        Shape.PHASES,
        "instead of these times, the steps of F and B, each on compute or on a link: `{F: [{on: "
        "compute, time: 4}, {on: link, time: 6}], B: [{on: link, time: 6}, {on: compute, time: 5, "
        "weight: 4}]}`, `weight` is the W of a phase of B. F, B and W take the sums; the times of "
        "overlapped pairs follow",
    ),
    *_cost_settings(cost_table.MemoryFields, cost_table.OutputField),
    _layer(
        "workspace",
        Shape.WORKSPACE,
        "memory that F, B and BW need only while they run, or one number per kind, as `{F: 2, B: "
        "1, W: 1, BW: 2}`; a stage has the maximum over its layers (for BW, see `recompute_unit`)",
        0,
    ),
    *_cost_settings(cost_table.WorkspaceFields),
    _layer(
        "recompute",
        Shape.RECOMPUTE,
        "true: F keeps only part of the activation, and the backward recomputes the rest and takes "
        "longer; or `{time: 1, activation: 0}`, which sets `recompute_time` and `kept`; or a list "
        "of `modules`, such as `[core_attn]`. An embedding or head recomputes only if this is set",
        "false",
    ),
    *_cost_settings(cost_table.RecomputeFields),
    _layer(
        "modules",
        Shape.MODULES,
        "parts that recompute or offload on their own: `[{name: core_attn, time: 1, memory: 2}]`. "
        "`time` computes the module again, `memory` is the part of the activation that F then does "
        "not keep, `workspace` (0) is needed meanwhile; `offload_time` and `offload_memory` "
        "(default: `memory`) are for its move to the host. `inside` names a module that contains "
        "it, which includes it; `excludes` lists those that do not go with it",
    ),
    _layer(
        "offload",
        Shape.OFFLOAD,
        "true: `offload_memory` moves to the host after F and back before B or BW, each in "
        "`offload_time`; or `{memory: 1, time: 1}`, which sets both; or a list of `modules`",
        "false",
    ),
    *_cost_settings(cost_table.OffloadFields, cost_table.StepFields),
    _layer(
        "frozen",
        Shape.FLAG,
        "true: it is not trained, and has no W, gradient_sync or optimizer. If all layers before "
        "it are frozen too, it has no backward, and F frees its activation",
        "false",
    ),
)
"""Every setting of a layer: files, their JSON Schema and the table in `models/README.md` are made
from these records. All are optional, except that a layer needs `forward` or `phases`."""
LAYER_NAMES: Mapping[str, Setting] = {
    name: setting for setting in LAYER_SETTINGS for name in setting.names
}
"""Every accepted name -> its setting."""
OF_WORKSPACE = ("F", "B", "BW")
"""Kinds of operations whose workspace one number sets."""


def flat(raw_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a layer, with workspace, recompute and offload written out as numbers.

    Raises InputError if a mapping has an unknown key.
    """
    settings = dict(raw_settings)
    workspace = settings.pop("workspace", None)
    if workspace is not None and not isinstance(workspace, Mapping):
        workspace = dict.fromkeys(OF_WORKSPACE, workspace)
    _write_out(settings, "workspace", workspace or {})
    for name in ("recompute", "offload"):
        flag = settings.pop(name, None)
        if isinstance(flag, Mapping):
            _write_out(settings, name, flag)
            flag = True
        if flag is not None:
            settings[name] = flag
    return settings


def _write_out(settings: dict[str, Any], name: str, values: Mapping[str, Any]) -> None:
    """Set the costs that the mapping of a setting gives, unless they are given on their own."""
    fields = {cost.mapping[1]: cost.field for cost in LAYER_COSTS if cost.mapping[0] == name}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"{name}: {key!r} is unknown; use {', '.join(fields)}")
        settings.setdefault(fields[key], value)
