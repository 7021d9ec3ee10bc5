"""Models derived from published configurations: parameters, work and memory by their sources."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

import ppopt
from benchmarks import derived_models as derived
from benchmarks.sailor import PLANS, step
from ppopt.derivation.architecture import Decoder
from ppopt.derivation.attention import parameters_of
from ppopt.formats.models import read_settings

FOLDER = Path(__file__).parents[2] / "models"
NAMES = tuple(derived.FILES)
H100 = derived.H100


def test_files_are_those_that_the_script_writes() -> None:
    for name, text in derived.texts():
        assert (FOLDER / name).read_text() == text, "python -m benchmarks.derived_models models"


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_is_and_runs(name: str) -> None:
    settings = read_settings(name)
    assert (settings["time_unit"], settings["memory_unit"]) == ("ms", "MiB")
    assert {"source", "description"} <= set(settings["about"])
    assert settings["about"]["source"].startswith("derived from ")
    pipe = ppopt.read_pipeline(name)
    assert pipe.rounded == ()
    assert sum(pipe.counts) == len(ppopt.read_model(name))
    assert ppopt.evaluate(pipe, "1f1b").metrics.makespan_ticks > 0


BLOCK = derived.llama(4096, 32, 8, 14336)
DENSE, MIXED = (run.decoder for run in derived.DEEPSEEK_V3.runs)


@pytest.mark.parametrize(
    ("actual", "published"),
    [
        (derived.LLAMA_8B.parameters, 8.03e9),
        (derived.LLAMA_70B.parameters, 70.6e9),
        (derived.DEEPSEEK_V3.parameters, 671e9),
        (derived.DEEPSEEK_V3.prediction_parameters, 11.5e9),
        (45 * derived.VISION.parameters(3200), 5.5e9),
        (48 * derived.llama(6144, 48, 8, 16384).stored(6144) + 2 * 92544 * 6144, 19.9e9),
    ],
    ids=["llama 8b", "llama 70b", "deepseek-v3", "its mtp", "internvit", "internlm2-20b"],
)
def test_parameters_are_those_published(actual: int, published: float) -> None:
    """Model cards of Llama 3.1 8B (8.03B) and 70B (70.6B), README_WEIGHTS.md of
    github.com/deepseek-ai/DeepSeek-V3 (671B; MTP: 11.5B unique), model cards of InternViT-6B-448px-
    V1-5 (5.5B) and InternLM2-20B (19.9B)."""
    assert actual == pytest.approx(published, rel=0.01)


def passed(decoder: Decoder, hidden: int) -> int:
    """Parameters of matrices that a token passes in a layer."""
    attention = parameters_of(decoder.attention.matrices(hidden))
    return attention + decoder.feed_forward.passed(hidden)


def test_parameters_that_a_token_of_deepseek_v3_passes() -> None:
    """36.7B, 0.9B for the embedding and 0.9B for the head included (README_WEIGHTS.md)."""
    dense, mixed = (passed(layer, 7168) for layer in (DENSE, MIXED))
    assert 3 * dense + 58 * mixed + 2 * 129280 * 7168 == pytest.approx(36.7e9, rel=0.03)


def test_a_block_of_llama_8b_by_hand() -> None:
    """4096 x (4096 + 2 x 1024 + 4096) + 3 x 4096 x 14336 = 218,103,808 parameters; 8192 tokens."""
    block = next(
        layer for layer in ppopt.read_model("llama-3.1-8b").layers if layer.name == "block"
    )
    work = 2 * 218_103_808 * 8192 + 4 * H100.matrix_overhead
    products = work / (H100.bf16 * H100.matrix_efficiency)
    bandwidth = H100.memory_speed * H100.memory_efficiency
    accumulated = 8 * 218_103_808 / bandwidth + 2 * H100.kernel_time
    split = 1.05 * 1000 * (products + accumulated)  # W as an operation of its own
    assert float(block.weight) == pytest.approx(split, abs=1e-3)
    scores = 0.5 * 8192 * 2 * 8192 * 32 * (128 + 128)
    attention = scores * (1 + H100.attention_blocks / (32 * 64))
    attention /= H100.bf16 * H100.attention_efficiency
    vectors = 2 * 2 + 2 * 3  # norms and residual additions
    memory_time = 2 * 8192 * (vectors * 4096 + 2 * (4096 + 1024) + 3 * 14336) / bandwidth
    memory = memory_time + (2 + 2 + 2 + 1) * H100.kernel_time
    assert float(block.forward) == pytest.approx(1000 * (products + attention + memory), abs=1e-3)
    elements = 6 * 4096 + 2 * 1024 + 3 * 14336
    assert block.activation == 2 * elements * 8192 // 2**20 == 1088
    assert (block.output, block.kept) == (64, 64)  # 2 bytes x 4096 x 8192
    gradients = 2 * (4096 + 3 * 14336) * 8192
    assert block.input_workspace == block.backward_workspace == gradients // 2**20 == 736
    assert block.forward_workspace == block.weight_workspace == 0 and not block.recompute
    assert block.static == -(-218_103_808 * 15 // (2 * 2**20)) == 1560  # 6 + 12 / 8 = 7.5 bytes


def test_the_link_of_llama_8b_by_hand() -> None:
    """64 MiB at 50 GB/s take 2^26 / (50 x 10^6) ms; the A100 of the mixed model have half of it."""
    for name, rate in (("llama-3.1-8b", 50), ("llama-3.1-8b-mixed", 25)):
        delay = Fraction(2**26, rate * 10**6)
        assert ppopt.read_pipeline(name).links[0] == ((delay,) * 3,)


def test_the_head_needs_logits_in_fp32_while_it_runs() -> None:
    head = ppopt.read_model("llama-3.1-8b").layers[-1]
    assert head.forward_workspace == head.backward_workspace == 8192 * 128256 * 4 // 2**20


def test_the_encoder_hands_on_less_than_the_language_model() -> None:
    """6 tiles of 1025 vectors of 3200, 6 x 256 vectors of 6144 and 8192 of 6144, over 2 ranks."""
    outputs = {layer.name: layer.output for layer in ppopt.read_model("internvl2-26b").layers}
    assert float(outputs["vision block"]) == round(6 * 1025 * 3200 / 2**20, 3)
    assert outputs["projection"] == Fraction(6 * 256 * 6144, 2**20)
    assert outputs["embedding"] == outputs["block"] == Fraction(8192 * 6144, 2**20)


def test_work_of_llama_8b_is_six_flops_a_parameter_and_attention() -> None:
    """Kaplan et al., arXiv 2001.08361, section 2.1: 6 N FLOPs a token, embedding left out, and
    attention added, three times that of F."""
    pipe = ppopt.read_pipeline("llama-3.1-8b")
    parameters = 32 * BLOCK.stored(4096) + 128256 * 4096
    scores = 32 * 3 * 0.5 * 8192 * 2 * 8192 * 32 * 256
    assert pipe.flops_per_microbatch == 6 * parameters * 8192 + scores
    assert pipe.tokens_per_microbatch == 8192


def test_experts_of_a_device() -> None:
    """Of 256 experts over 64 ranks a device has 4, whose optimizer state two ranks share; all else
    is shared by 128."""
    layers = ppopt.read_model("deepseek-v3").layers
    expert_block = next(layer for layer in layers if layer.name == "expert block")
    own_expert = 4 * 3 * 7168 * 2048
    other_experts = MIXED.stored(7168) - 64 * own_expert
    static_bytes = own_expert * (6 + 6) + other_experts * (6 + 12 / 128)
    assert float(expert_block.static) == pytest.approx(static_bytes / 2**20, abs=1)


def test_the_embedding_has_no_input_gradient() -> None:
    for name in NAMES:
        (embedding,) = (
            layer for layer in ppopt.read_model(name).layers if layer.role == "embedding"
        )
        assert embedding.backward_input == 0


def test_published_layout_of_deepseek_v3_is_a_partition() -> None:
    """docs/user-guide/features/pipeline_parallel_layout.md of Megatron-LM: 16 ranks, 2 chunks."""
    model = ppopt.read_model("deepseek-v3")
    pipe = model.pipeline(devices=16, batches=24, partition="Et*3|(tt|)*29,m|L")
    assert (pipe.num_chunks, pipe.resolved_placement) == (2, "interleaved")
    assert pipe.counts == (4, *[2] * 29, 1, 1)


# Predictions of Sailor's plans: what gradient work adds, and what is within reach of measured.


def test_one_stage_adds_its_reduction_and_its_optimizer() -> None:
    """26 layers of 0.447 ms."""
    for plan in PLANS[:2]:
        added = step(plan) - step(plan, gradients=False)
        assert added == pytest.approx(plan.reduction + 26 * 0.447)


def test_two_stages_of_eight_samples_are_within_4_percent() -> None:
    for plan in PLANS:
        if plan.stages == 2 and plan.samples == 8:
            assert step(plan, transfers=True) / plan.step == pytest.approx(1, abs=0.04)
