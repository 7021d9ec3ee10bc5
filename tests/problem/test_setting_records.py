"""Every setting of a pipeline reaches schedule files and plans, or its record says why not."""

from __future__ import annotations

from typing import Any

import pytest

from ppopt import Model, Pipeline
from ppopt.formats.pipeline_json import pipeline_from_object, pipeline_to_object
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.setting import SettingScope
from ppopt.problem.settings import SETTINGS
from ppopt.studies.plan_space import fields_of

BASE: dict[str, Any] = {"stages": 2, "batches": 4}
FACTORS = {"microbatch_times": [1, 2, 1, 3], "microbatch_memory": [1, 2, 2, 3]}
TOKENS = {"microbatch_tokens": [4, 8, 4, 2], "reference_tokens": 8}
OF_STAGES: dict[str, dict[str, Any]] = {
    "stages": {"stages": 3},
    "batches": {"batches": 6},
    "chunks": {"chunks": 2},
    "placement": {"placement": [1, 0]},
    "p2p": {"p2p": 1},
    "backward_p2p": {"backward_p2p": 2},
    "link_mode": {"link_mode": "exclusive"},
    "device_speed": {"device_speed": [1, 2]},
    "host_link": {"host_link": "shared"},
    "mem_limit": {"mem_limit": [7, 9]},
    "optimizer_barrier": {"optimizer_barrier": True},
    "frozen": {"frozen": [True, False]},
    "microbatch_times": FACTORS,
    "microbatch_memory": FACTORS,
    "microbatch_tokens": TOKENS,
    "reference_tokens": TOKENS,
    "attention_share": {"attention_share": "0.5", "slices": 2, "tokens_per_microbatch": 8},
    "order": {"order": [1, 0, 2, 3], **FACTORS},
    "slices": {"slices": 2},
    "slice_times": {"slice_times": [1, 3]},
    "routes": {"routes": 2},
    "time_unit": {"time_unit": "ms"},
    "memory_unit": {"memory_unit": "GiB"},
    "tokens_per_microbatch": {"tokens_per_microbatch": 8},
    "flops_per_microbatch": {"flops_per_microbatch": 9},
    "peak_flops": {"peak_flops": 10},
    "training": {"training": {"tensor": 2}},
    "name": {"name": "two"},
}
"""Setting -> fields of a pipeline with costs per stage that state it."""
OF_LAYERS: dict[str, dict[str, Any]] = {
    "model": {},
    "partition": {"partition": [1, 3]},
    "partition_order": {"partition": [1, 1, 1, 1], "partition_order": "ranks", "chunks": 2},
    "recompute": {"recompute": "search"},
    "recompute_modules": {"recompute_modules": ["core_attn"]},
    "recompute_unit": {"recompute_unit": "stage"},
    "link": {"link": {"latency": 1, "bandwidth": 2}},
    "first_backward": {"first_backward": "weight"},
    "offload": {"offload": "search"},
    "offload_modules": {"offload_modules": ["core_attn"]},
    "offload_fraction": {"offload_modules": ["core_attn"], "offload_fraction": "0.5"},
}
"""The same of settings that only a pipeline with layers has."""
MODULE = {"name": "core_attn", "time": 1, "memory": 1, "offload_time": 1}
MODEL = Model(
    [
        {
            "forward": 1,
            "activation": 2,
            "output": 2,
            "offload_time": 1,
            "count": 4,
            "modules": [MODULE],
        }
    ]
)


def test_every_setting_of_a_pipeline_is_here() -> None:
    fields = {setting.field for setting in SETTINGS if setting.scope is SettingScope.PIPELINE}
    assert fields - {cost.field for cost in STAGE_COSTS} == OF_STAGES.keys() | OF_LAYERS.keys()


@pytest.mark.parametrize("fields", OF_STAGES.values(), ids=OF_STAGES)
def test_schedule_files_have_every_setting(fields: dict[str, Any]) -> None:
    pipeline = Pipeline(**(BASE | fields))
    assert pipeline != Pipeline(**BASE)
    ticks = pipeline.ticks
    file = pipeline_to_object(pipeline)
    assert pipeline_from_object(file, ticks.per_unit, ticks.memory_per_unit) == pipeline


@pytest.mark.parametrize(
    "fields",
    [stated for field, stated in (OF_STAGES | OF_LAYERS).items() if field != "frozen"],
    ids=[field for field in OF_STAGES | OF_LAYERS if field != "frozen"],
)
def test_a_plan_from_a_pipeline_has_every_setting_that_it_does_not_choose(
    fields: dict[str, Any],
) -> None:
    """Relative times of slices were lost."""
    pipeline = Pipeline(**(BASE | {"model": MODEL} | fields))
    fields_of_plan = fields_of(pipeline)
    for setting in SETTINGS:
        if setting.scope is SettingScope.PIPELINE and setting.set_by_plan:
            assert setting.field not in fields_of_plan
    if pipeline.link is None:
        chosen = {"chunks": pipeline.chunks, "placement": pipeline.placement}
        planned = MODEL.pipeline(
            devices=pipeline.num_devices, batches=pipeline.batches, **chosen, **fields_of_plan
        )
        for setting in SETTINGS:
            if setting.scope is SettingScope.PIPELINE and not setting.set_by_plan:
                name = setting.field
                assert getattr(planned, name) == getattr(pipeline, name), name
