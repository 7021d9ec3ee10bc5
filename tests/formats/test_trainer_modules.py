"""Modules that recompute, in the arguments of trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ppopt import Model, Pipeline
from ppopt.errors import InputError, NotApplicableError
from ppopt.formats import primus_schedule, trainer_partition
from ppopt.formats.deepspeed_module import deepspeed_module
from ppopt.formats.torchtitan_keys import torchtitan_keys
from ppopt.studies.plan_space import PlanSpace

MODULES = [
    {"name": "layernorm", "time": 1, "memory": 2},
    {"name": "moe", "time": 9, "memory": 12},
    {"name": "moe_act", "time": 1, "memory": 4, "inside": "moe"},
]
BLOCK: dict[str, Any] = {"forward": 12, "activation": 20, "modules": MODULES}
MODEL = Model(
    [
        {"forward": 1, "role": "embedding", "activation": 1},
        {**BLOCK, "modules": MODULES[:1]},
        {**BLOCK, "count": 3},
        {"forward": 1, "role": "head", "activation": 1},
    ]
)


def pipeline(**fields: Any) -> Pipeline:
    """Two stages of the model."""
    return Pipeline(stages=2, batches=4, model=MODEL, **fields)


def test_megatron_recomputes_one_set_of_modules_in_all_layers() -> None:
    text = trainer_partition.megatron_arguments(pipeline(recompute_modules="moe_act,layernorm"))
    assert "--recompute-granularity selective\n--recompute-modules layernorm moe_act" in text
    assert "granularity full" not in text


def test_megatron_offloads_one_set_of_modules_in_all_layers() -> None:
    moving = {"name": "expert_fc1", "offload_time": 1, "offload_memory": 3}
    own = Model([{**BLOCK, "count": 2, "modules": [*MODULES, moving]}, BLOCK])
    fields: dict[str, Any] = {"stages": 3, "batches": 3, "offload_modules": "expert_fc1"}
    text = trainer_partition.megatron_arguments(
        Pipeline(**fields, model=own, recompute_modules="moe_act")
    )
    assert text.endswith(
        "--recompute-modules moe_act\n"
        "--fine-grained-activation-offloading\n--offload-modules expert_fc1\n"
    )
    first, *further = own.layers
    single = Model([first.having(offload=("expert_fc1",)), *further])
    with pytest.raises(NotApplicableError, match="megatron: it offloads"):
        trainer_partition.megatron_arguments(Pipeline(stages=3, batches=3, model=single))


def test_megatron_does_not_offload_other_modules() -> None:
    own = Model(
        [{**BLOCK, "count": 2, "modules": [{"name": "moe", "memory": 1, "offload_time": 1}]}]
    )
    with pytest.raises(NotApplicableError, match="it does not offload moe; take offload none"):
        trainer_partition.megatron_arguments(
            Pipeline(stages=2, batches=2, model=own, offload_modules="moe")
        )


@pytest.mark.parametrize("write", [torchtitan_keys, deepspeed_module])
def test_other_trainers_have_no_such_modules(write: Callable[[Pipeline], str]) -> None:
    with pytest.raises(NotApplicableError, match="it does not recompute layernorm of a layer"):
        write(pipeline(recompute_modules="layernorm"))


def test_primus_recomputes_whole_layers() -> None:
    with pytest.raises(NotApplicableError, match="whole layers by their numbers"):
        primus_schedule._recompute(pipeline(recompute_modules="layernorm").model)


def test_megatron_has_no_sets_of_single_layers() -> None:
    layers = [layer.having(recompute=()) for layer in MODEL.layers]
    layers[2] = layers[2].having(recompute=("moe_act",))
    own = Pipeline(stages=2, batches=4, model=Model(layers))
    with pytest.raises(NotApplicableError, match="its layers recompute the same modules"):
        trainer_partition.megatron_arguments(own)


def test_a_plan_for_megatron_has_one_set_for_all_layers_in_place_of_a_search() -> None:
    space = PlanSpace(
        MODEL, 2, (4,), recompute=("search",), runtime="megatron", strategies=("1f1b",)
    )
    sets = ("moe_act", "layernorm", "layernorm+moe_act", "moe", "layernorm+moe")
    assert space.recompute == ("none", *sets, "full")
    with pytest.raises(InputError, match="'norm' is unknown"):
        PlanSpace(MODEL, 2, (4,), recompute=("norm",))


def test_a_plan_for_primus_has_layers_in_place_of_modules() -> None:
    space = PlanSpace(MODEL, 2, (4,), recompute=("search",), runtime="primus")
    assert not any(layer.modules for layer in space.model.layers)
