"""Partitions as Megatron-LM and torchtitan take them."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt.errors import InputError, NotApplicableError
from ppopt.formats.deepspeed_module import deepspeed_module
from ppopt.formats.torch_csv import read_order
from ppopt.formats.torchtitan_keys import torchtitan_keys
from ppopt.formats.trainer_partition import megatron_arguments
from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Model, Pipeline
from tests.cli.cli_run import done, run
from tests.factories.configs import SMALL
from tests.packages import needed

DECODERS = Layer(1, count=61)
STACK = Model((Layer(1, role="embedding"), DECODERS, Layer(1, role="mtp"), Layer(1, role="head")))
PUBLISHED = "Et*3|(tt|)*29m|L"
"""docs/user-guide/features/pipeline_parallel_layout.md of Megatron-LM, its comma left out; on 16
ranks."""


WITH_ENCODER = Model(
    (Layer(1, count=3), Layer(1, role="embedding"), Layer(1, count=5), Layer(1, role="head"))
)


def test_the_layout_of_a_model_with_an_encoder_is_that_of_its_language_model() -> None:
    """Megatron-LM builds the encoder in the first stage (examples/multimodal/model.py)."""
    pipe = WITH_ENCODER.pipeline(devices=2, batches=2, partition=[5, 5], recompute="full")
    assert shlex.split(megatron_arguments(pipe)) == [
        *("--num-layers", "5", "--pipeline-model-parallel-size", "2"),
        *("--pipeline-model-parallel-layout", "Et|t*4L"),
        *("--recompute-granularity", "full", "--recompute-method", "uniform"),
        *("--recompute-num-layers", "1", "--recompute-vision"),
    ]


def test_megatron_arguments() -> None:
    pipe = STACK.pipeline(devices=16, batches=32, partition=PUBLISHED)
    assert shlex.split(megatron_arguments(pipe)) == [
        *("--num-layers", "61", "--mtp-num-layers", "1", "--pipeline-model-parallel-size", "16"),
        *("--pipeline-model-parallel-layout", PUBLISHED),
        *("--microbatch-group-size-per-virtual-pipeline-stage", "16"),
    ]


@pytest.mark.parametrize("memory_unit", [None, "GiB"])
@pytest.mark.parametrize("time_unit", [None, "ms"])
def test_units_play_no_part(time_unit: str | None, memory_unit: str | None) -> None:
    """The embedding and the head that Megatron-LM builds itself have no costs here."""
    layers = [{"forward": 1.5, "activation": 2, "count": 8}]
    model = Model(layers, time_unit=time_unit, memory_unit=memory_unit)
    pipe = model.pipeline(devices=4, batches=4)
    assert shlex.split(megatron_arguments(pipe)) == [
        *("--num-layers", "8", "--pipeline-model-parallel-size", "4"),
        *("--pipeline-model-parallel-layout", "Ett|(tt|)*2ttL"),
    ]
    names = tomllib.loads(torchtitan_keys(pipe))["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in names] == [3, 2, 2, 4]


def test_equal_stages_need_no_layout() -> None:
    """Megatron-LM divides its layers evenly over as many stages (`validate_args`)."""
    plain = Pipeline(stages=4, batches=6, chunks=2)
    assert shlex.split(megatron_arguments(plain)) == [
        *("--pipeline-model-parallel-size", "4", "--num-virtual-stages-per-pipeline-rank", "2"),
        *("--microbatch-group-size-per-virtual-pipeline-stage", "6"),
    ]
    sized = Pipeline(stages=4, batches=6, training={"microbatch": 2})
    assert shlex.split(megatron_arguments(sized))[-4:] == [
        *("--global-batch-size", "12", "--pipeline-model-parallel-size", "4"),
    ]


def test_recompute_of_all_transformer_layers_or_none_is_written_and_any_other_refused() -> None:
    def recomputing(*places: int) -> Pipeline:
        roles = ("embedding", "decoder", "decoder", "decoder", "head")
        layers = [Layer(1, role=role, recompute=n in places) for n, role in enumerate(roles)]
        return Model(tuple(layers)).pipeline(devices=2, batches=2)

    writers = (megatron_arguments, torchtitan_keys, deepspeed_module)
    full, none = recomputing(1, 2, 3), recomputing()
    assert shlex.split(megatron_arguments(full))[-6:] == [
        *("--recompute-granularity", "full", "--recompute-method", "uniform"),
        *("--recompute-num-layers", "1"),
    ]
    assert "recompute" not in megatron_arguments(none)
    for pipe, mode in ((full, "full"), (none, "none")):
        tables = tomllib.loads(torchtitan_keys(pipe))
        assert tables["activation_checkpoint"] == {"mode": mode}
    assert "activation_checkpoint_interval=1 and checkpointable_layers" in deepspeed_module(full)
    assert "activation_checkpoint_interval=0" in deepspeed_module(none)
    for write in writers:
        with pytest.raises(NotApplicableError, match="1 of 3 transformer layers recompute"):
            write(recomputing(2))
        for index, role in ((0, "embedding"), (4, "head")):
            for places in ((index,), (index, 1, 2, 3)):
                with pytest.raises(NotApplicableError, match=f"the {role} recomputes") as error:
                    write(recomputing(*places))
                assert "\n" not in str(error.value)


def test_export_says_what_a_trainer_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layers = "layers: [{forward: 1, count: 4, activation: 1}]"
    Path("four.yaml").write_text(f"{layers}\nstages: 2\nbatches: 2\n")
    done("solve --config four.yaml --recompute full -o solved.json")
    done("eval 1f1b --config four.yaml -o hand.json")
    done("export solved.json --to torchtitan -o titan.toml")
    assert 'mode = "full"' in Path("titan.toml").read_text()
    megatron = done("export solved.json --to megatron-arguments -o arguments.txt")
    assert "the partition alone" in megatron.err
    assert "--recompute-granularity full" in Path("arguments.txt").read_text()
    assert done("export hand.json --to megatron-arguments -o hand.txt").err == ""


@pytest.mark.parametrize(
    ("names", "role", "where"),
    [
        (("Embedding", "Block", "Head"), "embedding", "layer 0 is named Embedding"),
        (("words", "Block", "lm_head"), "head", "layer 2 is named lm_head"),
    ],
)
def test_an_end_without_its_role_is_not_counted_as_a_transformer_layer(
    names: tuple[str, ...], role: str, where: str
) -> None:
    """As old profiles have them: torchtitan would cut its blocks two places away."""
    pipe = Model(tuple(Layer(1, name=name) for name in names)).pipeline(devices=2, batches=2)
    for write in (megatron_arguments, torchtitan_keys):
        with pytest.raises(NotApplicableError, match=where) as error:
            write(pipe)
        assert f"`role: {role}`" in str(error.value)


def test_an_export_says_which_ends_it_adds_where_a_layer_may_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equal layers none is an embedding or a head."""
    monkeypatch.chdir(tmp_path)
    for layers, added in (
        ("{forward: 1}, {forward: 2, count: 2}, {forward: 3}", "embedding or head"),
        ("{forward: 1, role: embedding}, {forward: 2, count: 2}, {forward: 3}", "head"),
        ("{forward: 1, role: embedding}, {forward: 2, count: 3}", ""),
        ("{forward: 2, count: 4}", ""),
    ):
        Path("layers.yaml").write_text(f"layers: [{layers}]\nstages: 2\nbatches: 2\n")
        done("eval 1f1b --config layers.yaml -o made.json")
        for to, name in (("torchtitan", "made.toml"), ("megatron-arguments", "made.txt")):
            stderr = done(f"export made.json --to {to} -o {name}").err
            assert stderr.startswith(f"note: the model has no layer of role {added}, ") or not added
            assert bool(stderr) is bool(added)


def test_embedding_and_head_are_named_where_the_model_leaves_them_out() -> None:
    pipe = Model((Layer(1, count=4),)).pipeline(devices=2, batches=2)
    assert '--pipeline-model-parallel-layout "Ett|ttL"' in megatron_arguments(pipe)
    (first, last) = tomllib.loads(torchtitan_keys(pipe))["parallelism"][
        "module_fqns_per_model_part"
    ]
    assert first == ["tok_embeddings", "layers.0", "layers.1"]
    assert last == ["layers.2", "layers.3", "norm", "lm_head"]


def test_torchtitan_keys() -> None:
    """The names and their order: `_generate_llm_fqn_per_model_part` for 2 stages of 3 layers,
    embedding and head counted as two layers each, has 1 + 2 layers."""
    layers = (Layer(1, role="embedding"), Layer(1, count=3), Layer(1, role="head"))
    pipe = Model(layers).pipeline(devices=2, batches=6, partition=[2, 3])
    assert tomllib.loads(torchtitan_keys(pipe)) == {
        "parallelism": {
            "pipeline_parallel_degree": 2,
            "pipeline_parallel_schedule": "1F1B",
            "num_pp_microbatches": 6,
            "module_fqns_per_model_part": [
                ["tok_embeddings", "layers.0"],
                ["layers.1", "layers.2", "norm", "lm_head"],
            ],
        },
        "activation_checkpoint": {"mode": "none"},
    }


@pytest.mark.parametrize(
    ("placement", "schedule"),
    [("linear", "1F1B"), ("interleaved", "Interleaved1F1B"), ("v", "ZBVZeroBubble")],
)
def test_the_schedule_named_sits_as_the_pipeline_does(placement: str, schedule: str) -> None:
    pipe = Model((Layer(1, count=8),)).pipeline(devices=2, batches=2, placement=placement)
    keys = tomllib.loads(torchtitan_keys(pipe))["parallelism"]
    assert keys["pipeline_parallel_schedule"] == schedule
    assert len(keys["module_fqns_per_model_part"]) == pipe.num_stages


EIGHT = Model((Layer(1, count=8),))
EARLY = Model((Layer(1, count=2), Layer(1, role="mtp"), Layer(1, role="head")))
MTP_TWICE = Model((Layer(1, count=4), Layer(1, role="mtp", count=2)))
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "stages": (
        megatron_arguments,
        Pipeline(stages=2, batches=2, forward=[1, 2]),
        "solve a model in layers",
    ),
    "stages that recompute": (
        megatron_arguments,
        Pipeline(stages=2, batches=2, recompute_time=1),
        "solve a model in layers",
    ),
    "stages in a v": (
        megatron_arguments,
        Pipeline(stages=2, batches=2, placement="v"),
        "stage s on rank s mod ranks",
    ),
    "v": (
        megatron_arguments,
        EIGHT.pipeline(devices=2, batches=2, placement="v"),
        "stage s on rank s mod ranks",
    ),
    "routes": (megatron_arguments, EIGHT.pipeline(devices=2, batches=2, routes=2), "one route"),
    "mtp in two stages": (
        megatron_arguments,
        MTP_TWICE.pipeline(devices=2, batches=2, partition=[5, 1]),
        "MTP layers are in stages 0, 1",
    ),
    "mtp early": (
        megatron_arguments,
        EARLY.pipeline(devices=1, batches=2, partition=[3, 1]),
        "are in stages 0; it takes them in one stage, the last of its rank: one of 1 .. 1",
    ),
    "mtp in front": (
        megatron_arguments,
        Model((Layer(1, role="mtp"), Layer(1))).pipeline(devices=1, batches=2),
        "MTP layers come after all decoder layers",
    ),
    "two heads": (
        megatron_arguments,
        Model((Layer(1, role="head", count=2),)).pipeline(devices=1, batches=2),
        "the head is one layer, the last; it is [0, 1]",
    ),
    "encoder in two stages": (
        megatron_arguments,
        WITH_ENCODER.pipeline(devices=2, batches=2, partition=[3, 7]),
        "it runs the encoder, 3 layers, and the embedding in the first stage, which has 3 layers "
        "here; give it at least 4",
    ),
    "encoder": (
        torchtitan_keys,
        WITH_ENCODER.pipeline(devices=2, batches=2),
        "torchtitan: the 3 layers before the embedding are an encoder",
    ),
    "embedding after mtp": (
        megatron_arguments,
        Model([Layer(1, role=role) for role in ("mtp", "embedding", "decoder")]).pipeline(
            devices=1, batches=2
        ),
        "the embedding is one layer, the first; it is [1]",
    ),
    "context": (
        megatron_arguments,
        EIGHT.pipeline(devices=2, batches=2, training={"context": 4, "sequence": 4092}),
        "a sequence is a multiple of 2 x context = 8 tokens, and it has 4092",
    ),
    "offload": (
        megatron_arguments,
        Model((Layer(1, count=4, activation=1, offload={"time": 1}),)).pipeline(
            devices=2, batches=2
        ),
        "it does not offload whole layers; take offload none",
    ),
    "empty stage": (
        torchtitan_keys,
        EIGHT.pipeline(devices=3, batches=2, partition=[4, 0, 4]),
        "torchtitan: stage 1 is empty, and its optimizers need parameters in every stage",
    ),
    "empty stage of deepspeed": (
        deepspeed_module,
        EIGHT.pipeline(devices=3, batches=2, partition=[4, 0, 4]),
        "deepspeed: stage 1 is empty, and its optimizers need parameters in every stage",
    ),
    "mtp": (torchtitan_keys, STACK.pipeline(devices=2, batches=2), "no MTP layers"),
    "list": (
        torchtitan_keys,
        EIGHT.pipeline(devices=2, batches=2, placement=[0, 0, 1, 1]),
        "in a V of two per rank",
    ),
    "wide v": (
        torchtitan_keys,
        EIGHT.pipeline(devices=2, batches=2, placement="v", chunks=4),
        "in a V of two per rank",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    write, pipe, message = REFUSED[case]
    with pytest.raises(NotApplicableError) as error:
        write(pipe)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_export_writes_them(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done("init mine.yaml")
    done("eval 1f1b --config mine.yaml --partition even -o made.json")
    done("export made.json --to megatron-arguments -o arguments.txt")
    assert shlex.split((tmp_path / "arguments.txt").read_text())[-1] == "Et*6|(t*6|)*2t*6L"
    done("export made.json --to torchtitan -o keys.toml")
    keys = tomllib.loads((tmp_path / "keys.toml").read_text())["parallelism"]
    assert [len(part) for part in keys["module_fqns_per_model_part"]] == [7, 6, 6, 8]
    assert keys["pipeline_parallel_schedule_csv"] == "keys.csv"
    lines = (tmp_path / "keys.toml").read_text().splitlines()
    name = lines.index('pipeline_parallel_schedule = "1F1B"')  # no schedule that runs
    assert lines[name - 1].startswith("# the name places the stages; the order that runs is")
    assert read_order(tmp_path / "keys.csv").placement == (0, 1, 2, 3)


def test_what_torchtitan_cannot_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages by hand have an order and no modules; uneven counts and wide Vs have no name."""
    monkeypatch.chdir(tmp_path)
    done("eval 1f1b --stages 2 --batches 3 -o plain.json")
    done("export plain.json --to torchtitan -o plain.toml")
    assert tomllib.loads((tmp_path / "plain.toml").read_text())["parallelism"] == {
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "1F1B",
        "pipeline_parallel_schedule_csv": "plain.csv",
        "num_pp_microbatches": 3,
    }
    for placement, chunks in (("0,1,1", ""), ("v", "--chunks 4")):
        done(
            f"solve --stages 2 --batches 2 --placement {placement} {chunks} -o odd.json".replace(
                "--stages 2", "" if "," in placement else "--stages 2"
            )
        )
        ran = run("export odd.json --to torchtitan -o odd.toml")
        assert ran.code == 2
        assert "or run this one with ppopt.torch.runtime" in ran.err
    assert run("export plain.json --to torchtitan -o plain.csv").code == 2
    assert not {"odd.toml", "odd.csv"} & {path.name for path in tmp_path.iterdir()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("placement", "partition"),
    [("linear", [3, 2, 2, 4]), ("interleaved", [2, 1, 1, 1, 1, 1, 1, 3])],
)
def test_megatron_core_reads_the_layout(placement: str, partition: list[int]) -> None:
    """Its own parser and its own checks; rank r, chunk c is stage c x ranks + r."""
    layout = needed("megatron.core.transformer.pipeline_parallel_layer_layout")
    layers = (Layer(1, role="embedding"), Layer(1, count=9), Layer(1, role="head"))
    pipe = Model(layers).pipeline(devices=4, batches=4, placement=placement, partition=partition)
    arguments = shlex.split(megatron_arguments(pipe))
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    ranks = int(options["--pipeline-model-parallel-size"])
    read = layout.PipelineParallelLayerLayout(options["--pipeline-model-parallel-layout"], ranks)
    read.validate_layer_layout(int(options["--num-layers"]), 0)
    stages = [read.layout[s % ranks][s // ranks] for s in range(len(partition))]
    assert [len(stage) for stage in stages] == partition
    assert stages[0][0].name == "embedding"
    assert stages[-1][-1].name == "loss"


SIZED = {"tensor": 2, "context": 2, "data": 4, "expert": 8, "microbatch": 3, "sequence": 4096}


def megatron_given(pipe: Pipeline) -> dict[str, str]:
    """The arguments by their names in Python; those that take no value have none."""
    lines = [shlex.split(line) for line in megatron_arguments(pipe).splitlines()]
    return {name.removeprefix("--").replace("-", "_"): "".join(value) for name, *value in lines}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("devices", "partition", "recompute"),
    [
        (4, "Ett|tt|(tt|)*5tttmL", "none"),
        (4, "Et*6||t*11|mL", "full"),
        (2, "Et*6|t*11mL", "none"),
        (2, "Et*6|(|)*2t*11mL", "none"),
        (1, "Et*17mL", "full"),
    ],
)
def test_megatron_core_takes_the_arguments(devices: int, partition: str, recompute: str) -> None:
    """Its config of a transformer checks layout, recompute, group size and sizes of parallelism."""
    torch = needed("torch")
    config = needed("megatron.core.transformer.transformer_config").TransformerConfig
    layers = (
        *(Layer(1, role="embedding"), Layer(1, count=17)),
        *(Layer(1, role="mtp"), Layer(1, role="head")),
    )
    pipe = Model(layers).pipeline(
        devices=devices, batches=6, partition=partition, recompute=recompute, training=SIZED
    )
    arguments = megatron_given(pipe)
    assert ("sequence_parallel", "") in arguments.items()
    batch, micro = int(arguments.pop("global_batch_size")), int(arguments.pop("micro_batch_size"))
    unchecked = ("seq_length", "use_distributed_optimizer", "sequence_parallel")
    fields = {name: value for name, value in arguments.items() if name not in unchecked}
    group = fields.pop("microbatch_group_size_per_virtual_pipeline_stage", None)
    parsed = config(
        **{name: int(value) if value.isdigit() else value for name, value in fields.items()},
        microbatch_group_size_per_vp_stage=None if group is None else int(group),
        hidden_size=64,
        num_attention_heads=8,
        num_moe_experts=16,
        add_bias_linear=False,
        sequence_parallel=True,
        pipeline_dtype=torch.bfloat16,
    )
    assert (parsed.virtual_pipeline_model_parallel_size or 1) == pipe.num_stages // devices
    read = parsed.pipeline_model_parallel_layout.layout
    stages = [read[s % devices][s // devices] for s in range(pipe.num_stages)]
    assert tuple(map(len, stages)) == pipe.counts
    steps = needed("megatron.core.num_microbatches_calculator").ConstantNumMicroBatchesCalculator
    assert steps(batch, micro, SIZED["data"], False, 0).get() == pipe.batches


def test_sizes_are_written_where_they_are_known() -> None:
    sizes = {"training": SIZED}
    pipe = EIGHT.pipeline(devices=2, batches=5, **sizes)
    assert shlex.split(megatron_arguments(pipe))[:16] == [
        *("--tensor-model-parallel-size", "2", "--sequence-parallel"),
        *("--context-parallel-size", "2", "--expert-model-parallel-size", "8"),
        *("--use-distributed-optimizer", "--micro-batch-size", "3", "--global-batch-size", "60"),
        *("--seq-length", "4096", "--num-layers", "8"),
    ]
    alone = EIGHT.pipeline(devices=2, batches=5, training={"microbatch": 2})
    assert shlex.split(megatron_arguments(alone))[:10] == [
        *("--tensor-model-parallel-size", "1", "--context-parallel-size", "1"),
        *("--expert-model-parallel-size", "1", "--micro-batch-size", "2"),
        *("--global-batch-size", "10"),
    ]
    assert megatron_arguments(EIGHT.pipeline(devices=2, batches=5)).startswith("--num-layers")


def test_a_derived_model_states_its_sizes_in_files_and_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    done(
        "init derived.yaml --from config.json --gpu h100 --devices 2 --batches 4 --tensor 2 "
        "--context 2 --data 2 --microbatch 3 --sequence 2048"
    )
    done("eval interleaved --config derived.yaml -o made.json")
    done("export made.json --to megatron-arguments -o made.txt")
    assert shlex.split((tmp_path / "made.txt").read_text())[:14] == [
        *("--tensor-model-parallel-size", "2", "--sequence-parallel"),
        *("--context-parallel-size", "2", "--expert-model-parallel-size", "1"),
        *("--use-distributed-optimizer", "--micro-batch-size", "3", "--global-batch-size", "24"),
        *("--seq-length", "2048"),
    ]
    output = json.loads(
        done(
            "plan --from config.json --gpu h100 --gpus 8 --global-batch 16 --tensor 2 --data 2 "
            "--microbatch 2 --runtime megatron --recompute none --workers 1 --json"
        ).out
    )
    written = output["use"]["megatron_arguments"]
    assert "--tensor-model-parallel-size 2\n--sequence-parallel" in written
    assert "--micro-batch-size 2\n--global-batch-size 16\n" in written


def test_an_export_notes_what_the_costs_assume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assumed = "training: {data: 2, arguments: [--bf16], assumes: [this, that]}"
    (tmp_path / "m.yaml").write_text(
        f"stages: 2\nbatches: 2\n{assumed}\nlayers: [{{forward: 1, count: 4}}]\n"
    )
    done("eval 1f1b --config m.yaml -o m.json")
    notes = done("export m.json --to megatron-arguments -o m.txt").err
    assert "note: the costs assume this; that" in notes
    assert "--use-distributed-optimizer" not in (tmp_path / "m.txt").read_text()


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"tensr": 2}, "training: unknown key 'tensr'; did you mean tensor?"),
        ({"tensor": 0}, "training: tensor: 0 is not a whole number from 1 to 2^31"),
        ({"data": 1.5}, "training: data: 1.5 is not a whole number"),
        ({"data": True}, "training: data: True is not a whole number"),
        ([2, 4], "training: '[2, 4]' is no mapping of sizes"),
    ],
)
def test_sizes_that_are_none_are_refused(training: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        EIGHT.pipeline(devices=2, batches=5, training=training)
    assert message in str(error.value)


def test_deepspeed_cuts_its_specs_where_the_pipeline_is_cut() -> None:
    """The class on a stand-in that has what `_partition_layers` of DeepSpeed uses and sets."""
    model = ppopt.Model([ppopt.Layer(forward=time) for time in (3, 1, 4, 1, 5)])
    pipeline = model.pipeline(devices=3, batches=2, partition=[2, 2, 1])
    text = deepspeed_module(pipeline)
    source = "from deepspeed.pipe import PipelineModule\n"
    assert text.startswith(source)

    class Stand:
        stage_id = 1
        bounds: tuple[int, int]

        def _set_bounds(self, start: int, stop: int) -> None:
            self.bounds = start, stop

    names: dict[str, Any] = {"PipelineModule": Stand}
    exec(text.removeprefix(source), names)
    module = names["PartitionedPipeline"]()
    module._partition_layers("parameters")
    assert (module.parts, module.bounds) == ([0, 2, 4, 5], (2, 4))


@pytest.mark.parametrize("where", [{"placement": "v"}, {"placement": "interleaved"}])
def test_deepspeed_has_one_stage_per_rank(where: dict[str, str]) -> None:
    model = ppopt.Model([ppopt.Layer(forward=1)] * 4)
    with pytest.raises(NotApplicableError, match="solve with placement linear"):
        deepspeed_module(model.pipeline(devices=2, batches=2, **where))
    with pytest.raises(NotApplicableError, match="knows stages alone"):
        deepspeed_module(ppopt.Pipeline(stages=2, batches=2))
