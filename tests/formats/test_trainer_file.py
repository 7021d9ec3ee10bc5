"""Recompute, offload and overlap of trainers' files: what exports write is read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Model, NotApplicableError, Pipeline
from ppopt.formats import primus_schedule, trainer_partition
from ppopt.formats.trainer_file import (
    read_offload,
    read_offload_fraction,
    read_overlap,
    read_recompute,
)
from tests.cli.cli_run import done, json_of

MODULES = [
    {"name": "core_attn", "time": 1, "memory": 2, "offload_time": 1},
    {"name": "layernorm", "time": 1, "memory": 2},
    {"name": "expert_fc1", "offload_time": 1, "offload_memory": 3},
]
LAYERS: list[dict[str, Any]] = [
    {"forward": 1, "role": "embedding", "activation": 1},
    {"forward": 12, "activation": 20, "modules": MODULES, "count": 4},
    {"forward": 12, "activation": 20, "role": "mtp"},
    {"forward": 1, "role": "head", "activation": 1},
]
MODEL = """
stages: 2
batches: 4
layers:
  - {forward: 1, role: embedding, activation: 1}
  - {forward: 12, activation: 20, count: 4, modules: [{name: core_attn, time: 1, memory: 2},
     {name: layernorm, time: 1, memory: 2}, {name: expert_fc1, offload_time: 1, offload_memory: 3}]}
  - {forward: 1, role: head, activation: 1}
"""

BY_OPERATION = """mode = "selective"  # none, full, selective, memory_budget
selective_ac_option = "op"  # a number: every n-th layer
per_op_sac_force_recompute_mm_shapes_by_fqns = ["moe.router.gate"]
early_stop = false
"""
"""Keys of torchtitan/config/job_config.py of torchtitan 0.2.2."""
EVERY_SECOND = BY_OPERATION.replace('"op"', '"2"')


def pipeline(**fields: Any) -> Pipeline:
    return Pipeline(stages=2, batches=4, model=Model(LAYERS), partition=[3, 4], **fields)


@pytest.mark.parametrize(
    "chosen",
    [
        {"recompute": "none"},
        {"recompute": "full"},
        {"recompute_modules": "core_attn"},
        {"recompute_modules": "core_attn,layernorm", "offload_modules": "expert_fc1"},
        {"offload_modules": "core_attn,expert_fc1"},
    ],
)
def test_arguments_of_megatron_are_read_back(chosen: dict[str, Any], tmp_path: Path) -> None:
    exported = pipeline(**chosen)
    path = tmp_path / "arguments.txt"
    path.write_text(trainer_partition.megatron_arguments(exported))
    imported = pipeline(recompute=read_recompute(path), offload=read_offload(path))
    assert imported.model.layers == exported.model.layers
    keys = tmp_path / "config.yaml"
    lines = path.read_text().replace("--", "").replace("-", "_").splitlines()
    settings = (line.partition(" ") for line in lines if "layout" not in line)
    keys.write_text("".join(f"{name}: {value or 'true'}\n" for name, _, value in settings))
    assert (read_recompute(keys), read_offload(keys)) == (read_recompute(path), read_offload(path))


@pytest.mark.parametrize("fraction", ["0.9", "0.5", "0.3", "0"])
def test_a_fraction_of_the_modules_is_read_back(fraction: str, tmp_path: Path) -> None:
    """Stages of 2 and 2 blocks with two modules: floor(4 x (1 - fraction)) stay on the device."""
    exported = pipeline(offload_modules="core_attn,expert_fc1", offload_fraction=fraction)
    remaining = 4 - int(4 * (1 - float(fraction)))
    pairs = [
        [name for layer in stage for name in layer.offload or ()]
        for stage in exported.model.stage_layers(exported.counts)
    ]
    assert pairs == [(["core_attn", "expert_fc1"] * 2)[:remaining]] * 2
    path = tmp_path / "arguments.txt"
    path.write_text(trainer_partition.megatron_arguments(exported))
    imported = pipeline(offload=read_offload(path), offload_fraction=read_offload_fraction(path))
    assert imported.model.layers == exported.model.layers


def test_a_difference_between_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("delta_offload_bytes_across_pp_ranks: 1024\n")
    with pytest.raises(InputError, match="offloads less in some microbatches alone"):
        read_offload_fraction(path)


def test_a_fraction_needs_a_partition_and_is_at_most_one() -> None:
    with pytest.raises(InputError, match="of given modules of given stages"):
        Pipeline(stages=2, batches=4, model=LAYERS, partition="search", offload_fraction="0.5")
    with pytest.raises(InputError, match="2 is not between 0 and 1"):
        pipeline(offload_fraction=2)


@pytest.mark.parametrize("numbers", [(), (0, 2), (3, 4)])
def test_layers_of_primus_are_read_back(numbers: tuple[int, ...], tmp_path: Path) -> None:
    exported = pipeline(recompute=numbers)
    assert [layer.recompute for layer in exported.model.layers[1:6]] == [
        number in numbers for number in range(5)
    ]
    path = tmp_path / "primus.yaml"
    path.write_text("\n".join(primus_schedule._recompute(exported.model)) or "a: 1")
    assert pipeline(recompute=read_recompute(path)).model.layers == exported.model.layers
    with pytest.raises(InputError, match="there is no layer 5; the last is 4"):
        pipeline(recompute=(5,))


@pytest.mark.parametrize(
    ("name", "text", "recompute"),
    [
        ("a.toml", '[activation_checkpoint]\nmode = "full"\n', "full"),
        ("a.toml", '[activation_checkpoint]\nmode = "none"\n', "none"),
        ("a.sh", "python p.py --recompute-activations \\\n  --bf16", "selective"),
        ("a.sh", 'A="--recompute-granularity selective"', "core_attn"),
        ("a.txt", "--recompute-granularity=full --recompute-method uniform", "full"),
        ("a.yaml", "model: {recompute_granularity: selective, recompute_modules: [mlp, moe]}",
         "mlp+moe"),
        ("a.yaml", "model: {recompute_granularity: null}", "none"),
    ],
)  # fmt: skip
def test_choices_of_trainers(name: str, text: str, recompute: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert read_recompute(path) == recompute


def test_every_layer_of_torchtitan_recomputes_in_full(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    for option in ("0", "1"):
        text = EVERY_SECOND.replace('"2"', f'"{option}"')
        path.write_text(f"[activation_checkpoint]\n{text}")
        assert read_recompute(path) == "full"


@pytest.mark.parametrize(
    ("schedule", "ranks"),
    [
        ("Interleaved1F1B", [[0, 1, 2, 5, 6], [3, 4, 7]]),
        ("ZBVZeroBubble", [[0, 1, 2, 7], [3, 4, 5, 6]]),
    ],
)
def test_every_second_layer_of_a_rank(
    schedule: str, ranks: list[list[int]], tmp_path: Path
) -> None:
    """torchtitan 0.2.2 counts the blocks of a process in the order of its stages, from one."""
    stages = [[0, 1, 2], [3, 4], [5, 6], [7]]
    names = [[f"layers.{number}" for number in stage] for stage in stages]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "output"]
    path = tmp_path / "a.toml"
    path.write_text(
        f"[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {names}\n"
        f'pipeline_parallel_schedule = "{schedule}"\n[activation_checkpoint]\n{EVERY_SECOND}'
    )
    counted = [rank[index] for rank in ranks for index in range(len(rank)) if (index + 1) % 2 == 0]
    assert read_recompute(path) == tuple(sorted(counted))


@pytest.mark.parametrize("number", [1, 2])
def test_the_first_layers_of_every_stage_are_read_back(number: int, tmp_path: Path) -> None:
    """Four blocks on two stages, three and one: the second has fewer than two."""
    layers = [LAYERS[0], LAYERS[1], LAYERS[3]]
    chosen = (*range(number), 3)
    exported, fields = chosen, {"stages": 2, "batches": 4, "partition": [4, 2]}
    own = Pipeline(**fields, model=Model(layers), recompute=exported)
    path = tmp_path / "arguments.txt"
    path.write_text(trainer_partition.megatron_arguments(own))
    assert f"--recompute-method block\n--recompute-num-layers {number}\n" in path.read_text()
    assert read_recompute(path) == chosen
    uneven = Pipeline(**fields, model=Model(layers), recompute=(1, 3))
    with pytest.raises(NotApplicableError, match="2 of 4 transformer layers recompute"):
        trainer_partition.megatron_arguments(uneven)


@pytest.mark.parametrize("numbers", [(0, 2), (0, 1, 2, 3)])
def test_prediction_modules_do_not_recompute_with_block(
    numbers: tuple[int, ...], tmp_path: Path
) -> None:
    """Stages of 2 and 2 blocks, the second with a prediction module."""
    path = tmp_path / "arguments.txt"
    path.write_text(trainer_partition.megatron_arguments(pipeline(recompute=numbers)))
    assert f"method block\n--recompute-num-layers {len(numbers) // 2}\n" in path.read_text()
    assert read_recompute(path) == numbers
    with pytest.raises(NotApplicableError, match="3 of 5 transformer layers recompute"):
        trainer_partition.megatron_arguments(pipeline(recompute=(0, 2, 4)))


def test_overlap_of_megatron_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("--overlap-moe-expert-parallel-comm\n--delay-wgrad-compute --bf16\n")
    assert read_overlap(path) == ("dispatch", "wgrad")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "--recompute-granularity full --recompute-method block", "has no partition"),
        ("a.txt", "--recompute-granularity full --recompute-method uniform "
         "--recompute-num-layers 2", "uniform, 2 layers is not known"),
        ("a.toml", '[activation_checkpoint]\nmode = "selective"', "mode selective"),
        ("a.toml", f"[activation_checkpoint]\n{BY_OPERATION}", "single operations.* use full"),
        ("a.toml", '[activation_checkpoint]\nmode = "memory_budget"\nmemory_budget = 0.5\n',
         "mode memory_budget"),
        ("a.toml", f"[activation_checkpoint]\n{EVERY_SECOND}", "with module_fqns_per_model_part"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_recompute(path)
    path = tmp_path / "b.yaml"
    path.write_text("cpu_offloading: true\n")
    with pytest.raises(InputError, match="cpu_offloading offloads whole layers"):
        read_offload(path)


def test_the_command_line_reads_an_export(tmp_path: Path) -> None:
    model, plan, file = (tmp_path / name for name in ("model.yaml", "plan.json", "a.txt"))
    model.write_text(MODEL)
    done("eval 1f1b --quiet --config", model, "--recompute-modules", "layernorm", "-o", plan)
    done("export --to megatron-arguments", plan, "-o", file)
    output = json_of("eval 1f1b --config", model, "--partition", file, "--recompute", file)
    assert output["recomputed_layers"][0]["modules"] == ["layernorm"]
    assert output["recompute"] == [2, 2]
    line = "plan --placement linear --strategies 1f1b --workers 1 --config"
    output = json_of(line, model, "--partition", "balanced", "--recompute", file)
    assert {row["recompute"] for row in output["rows"]} == {"layernorm"}
