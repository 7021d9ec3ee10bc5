"""Models derived from a configuration: their costs, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import ppopt
from ppopt import InputError, derive_model
from ppopt.derivation.training import Training
from tests.factories.configs import CONFIGS, DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, Config


@pytest.mark.parametrize(
    ("config", "training", "name"),
    [
        (LLAMA_8B, {"data": 8, "sequence": 8192}, "llama-3.1-8b"),
        (LLAMA_8B, {"tensor": 2, "context": 8, "sequence": 131072}, "llama-3.1-8b-128k"),
        (LLAMA_70B, {"tensor": 8, "data": 4, "sequence": 8192}, "llama-3.1-70b"),
        (DEEPSEEK_V3, {"data": 128, "expert": 64, "devices": 16}, "deepseek-v3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_layers_are_those_of_the_models_that_come_along(
    config: Config, training: dict[str, int], name: str
) -> None:
    """They are derived from the same dimensions, published elsewhere."""
    derived, there = derive_model(config, gpu="h100", **training), ppopt.read_pipeline(name)
    assert derived.model.layers == there.model.layers
    for figure in ("tokens_per_microbatch", "flops_per_microbatch", "peak_flops", "link"):
        assert getattr(derived.pipeline, figure) == getattr(there, figure)


def test_a_file_says_what_it_is_and_reads_back() -> None:
    model = derive_model(LLAMA_8B, gpu="H100", devices=2, batches=4, tensor=2, data=3)
    assert "none is measured" in model.text and "8,030,261,248" in model.text
    assert "989.4 TFLOP/s (h100, bf16)" in model.text
    assert repr(model) == (
        "<DerivedModel LlamaForCausalLM, 8,030,261,248 parameters, 12 x h100 at 0.4 of the peak>"
    )
    assert (model.pipeline.num_devices, model.pipeline.batches) == (2, 4)
    assert model.pipeline.limits == (80 * 1024,) * 2


def test_two_sequences_a_microbatch_take_twice_as_much() -> None:
    """Times and activations double, attention too: each sequence sees itself alone."""
    one, two = (derive_model(LLAMA_8B, gpu="h100", microbatch=size) for size in (1, 2))
    for before, after in zip(one.layers, two.layers, strict=True):
        assert after.forward == pytest.approx(2 * before.forward, abs=0.002)
        assert after.backward == pytest.approx(2 * before.backward, abs=0.002)
        assert (after.activation, after.static) == (2 * before.activation, before.static)


def test_fp8_halves_the_products_of_matrices_and_no_attention() -> None:
    """1978.9 TFLOP/s where BF16 has 989.4."""
    bf16, fp8 = (
        derive_model(LLAMA_8B, gpu="h100", precision=name).layers[1] for name in ("bf16", "fp8")
    )
    assert fp8.weight == pytest.approx(bf16.weight * 989.4 / 1978.9, abs=0.001)
    attention = bf16.forward - bf16.weight
    assert fp8.forward == pytest.approx(fp8.weight + attention, abs=0.002)


def test_experts_are_spread_over_ranks() -> None:
    """Qwen3-30B-A3B, a layer: 128 experts of 3 x 2048 x 768, 8 a rank of 16; r = 16 / 16 for them.

    The rest: 2048 x 128 x 72 of attention and 2048 x 128 of the router; r = 16.
    """
    model = derive_model(CONFIGS["Qwen/Qwen3-30B-A3B"], gpu="h100", data=16, expert=16)
    mine, rest = 8 * 3 * 2048 * 768, 2 * 2048 * 128 * 36 + 2048 * 128
    held = mine * (6 + 12) + rest * (6 + Fraction(12, 16))
    assert model.layers[1].static == -(-held // 2**20)


def test_efficiency_scales_the_work() -> None:
    fast, slow = (derive_model(LLAMA_8B, gpu="h100", efficiency=e) for e in (0.5, 0.25))
    assert slow.layers[1].forward == pytest.approx(2 * fast.layers[1].forward, abs=0.002)
    assert slow.layers[0] == fast.layers[0]  # memory traffic


def test_a_calibrated_model_takes_as_long_as_was_measured() -> None:
    model = derive_model(LLAMA_8B, gpu="h100", data=8, sequence=8192)
    found = ppopt.calibrate(model, 6000)
    step = ppopt.evaluate(found.pipeline, "1f1b")
    assert step.makespan == pytest.approx(6000, rel=1e-4)
    assert found.efficiency == pytest.approx(0.36, rel=0.01)  # 0.4 x 5400 / 6000
    assert "one measured step took 6000 ms" in found.text


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (0, "0 ms is not above 0"),
        (float("nan"), "nan ms is not above 0"),
        (5, r"5 ms is faster than h100 at its peak, 217\d\.\d+ ms; check the unit"),
    ],
)
def test_no_efficiency_does(measured: float, told: str) -> None:
    model = derive_model(LLAMA_8B, gpu="h100", data=8, sequence=8192)
    with pytest.raises(InputError, match=told):
        ppopt.calibrate(model, measured)


REFUSED: dict[str, tuple[Config, dict[str, Any], str]] = {
    "gpu": (LLAMA_8B, {"gpu": "h10"}, "gpu: 'h10' is unknown; did you mean h100"),
    "fp8": (LLAMA_8B, {"gpu": "a100", "precision": "fp8"}, "a100 has no fp8"),
    "precision": (LLAMA_8B, {"precision": "int4"}, "'int4' is neither bf16 nor fp8"),
    "efficiency": (LLAMA_8B, {"efficiency": 1.5}, "1.5 is not within 0 .. 1"),
    "heads": (LLAMA_8B, {"tensor": 64}, "64 ranks cannot share 32 heads"),
    "keys": (LLAMA_8B, {"tensor": 16}, "16 ranks would copy 8 heads of keys and values"),
    "sequence": (LLAMA_8B, {"tensor": 8, "sequence": 100}, "100 tokens cannot be shared by 1 x 8"),
    "no experts": (LLAMA_8B, {"data": 2, "expert": 2}, "the model has no experts"),
    "experts": (DEEPSEEK_V3, {"data": 96, "expert": 96}, "96 ranks cannot share 256 experts"),
    "ranks": (DEEPSEEK_V3, {"data": 2, "expert": 4}, "4 does not divide data x context = 2"),
    "zero": (LLAMA_8B, {"microbatch": 0}, "microbatch: 0 is not within"),
    "devices": (LLAMA_8B, {"devices": 40}, "34 layers"),
    "link": (LLAMA_8B, {"link": "fast"}, "link"),
    "partition": (LLAMA_8B, {"partition": "Et*6|t*6L"}, "partition"),
}


@pytest.mark.parametrize(("config", "given", "told"), REFUSED.values(), ids=REFUSED)
def test_refused(config: Config, given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        derive_model(config, **({"gpu": "h100"} | given))


def test_gpus_of_a_training() -> None:
    training = Training(devices=2, tensor=4, context=2, data=3, expert=6, sequence=8192)
    assert (training.gpus, training.ranks, training.tokens) == (48, 6, 4096)
    assert training.words() == "tensor 4, context 2, data 3, expert 6"
