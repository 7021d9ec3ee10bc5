"""Parts of layers: what they exchange and keep, and their times against measured ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ppopt.derivation.architecture import Decoder, Experts, FeedForward
from ppopt.derivation.attention import GroupedQueryAttention, LatentAttention, LinearAttention
from ppopt.derivation.collectives import DIRECT_EFFICIENCY, Collective
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.derived_layer import Times
from ppopt.derivation.gpus import gpu_named
from ppopt.derivation.layer_costs import Costing
from ppopt.derivation.layer_part import LayerPart, PerKind
from ppopt.derivation.layer_parts import ELEMENT, Rank
from ppopt.derivation.training import ContextType, Training
from ppopt.errors import ConflictError
from tests.factories.configs import CONFIGS

H200 = gpu_named("h200")
LLAMA_8B = Decoder(GroupedQueryAttention(32, 8, 128), FeedForward(14336))
"""A layer; hidden 4096."""
MIB = 2**20


def rank_of(gpu: str = "h200", **fields: Any) -> Rank:
    training = Training(**({"devices": 1} | fields))
    return Rank(training, gpu_named(gpu), training.sequence, training.microbatch)


def times(rank: Rank, *parts: LayerPart) -> Times:
    """Of kernels, in ms."""
    return Costing(rank).computing(parts)


def exchanged(parts: list[LayerPart]) -> PerKind:
    total = PerKind()
    for part in parts:
        total += part.collectives
    return total


@pytest.mark.parametrize(("tensor", "attention", "mlp"), [(1, 305, 896), (8, 38.1, 112)])
def test_eager_pytorch_keeps_what_was_measured(tensor: int, attention: float, mlp: float) -> None:
    """MiB that F leaves allocated, without input and output: a layer of Llama 3.1 8B, 8192 tokens,
    measured with PyTorch 2.11 on an H200 (369 and 960 MiB with an output of 64; 102.1 and 176)."""
    rank = rank_of(framework="torch", sequence=8192, tensor=tensor)
    input_size = 64 / tensor
    activation = rank.attention(LLAMA_8B.attention, 4096).stashed / MIB - input_size
    assert activation == pytest.approx(attention, rel=0.005)
    assert rank.feed_forward(LLAMA_8B.feed_forward, 4096)[0].stashed / MIB - input_size == mlp


def test_a_layer_of_llama_8b_is_as_long_as_measured() -> None:
    """F 6.96, B 9.97 and W 5.67 ms of a layer with 8192 tokens, `ppopt profile` of a pipeline run
    under PyTorch 2.11, eager, on an H200; within 6 %."""
    rank = rank_of(framework="torch", sequence=8192)
    layer_times = times(rank, *rank.decoder(LLAMA_8B, 4096))
    assert layer_times.forward == pytest.approx(6.96, rel=0.06)
    assert layer_times.input == pytest.approx(9.97, rel=0.06)
    assert layer_times.weight == pytest.approx(5.67, rel=0.06)


@pytest.mark.parametrize(
    ("tokens", "tensor", "measured"),
    [
        (8192, 1, (4.16, 5.08, 9.01)),
        (8192, 8, (0.565, 0.698, 1.28)),
        (32768, 2, (9.15, 10.32, 18.48)),
        (2048, 4, (0.294, 0.456, 0.663)),
    ],
)
def test_a_feed_forward_network_is_as_long_as_measured(
    tokens: int, tensor: int, measured: tuple[float, ...]
) -> None:
    """F, B and BW in ms without accumulation, of Llama 3.1 8B; measured as above; within 20 %."""
    rank = rank_of(framework="torch", sequence=tokens, tensor=tensor)
    part = rank.feed_forward(LLAMA_8B.feed_forward, 4096)[0]
    costing = Costing(rank)
    kernels = (part.forward, part.input, part.input + part.weight)
    seconds = [1000 * costing.computed(each) for each in kernels]
    assert seconds == [pytest.approx(time, rel=0.2) for time in measured]


def counts(collectives: PerKind) -> list[int]:
    return [sum(each.repeats for each in kind) for kind in collectives]


def test_sequence_parallel_ranks_gather_and_scatter() -> None:
    """Four in F, six in BW, and eight in B and W, of 2 x tokens x hidden bytes each."""
    rank = rank_of(tensor=4, sequence=8192)
    collectives = exchanged(rank.decoder(LLAMA_8B, 4096))
    assert counts(collectives) == [4, 4, 4, 6]
    assert {each.size for kind in collectives for each in kind} == {ELEMENT * 8192 * 4096}


def test_ranks_without_sequence_parallelism_reduce() -> None:
    """Two all-reduces in F, and two in B."""
    rank = rank_of(tensor=4, sequence=8192, sequence_parallel=False)
    collectives = exchanged(rank.decoder(LLAMA_8B, 4096))
    assert counts(collectives) == [2, 2, 0, 2]
    assert {each.pattern for kind in collectives for each in kind} == {"all-reduce"}


def test_latents_are_gathered_at_their_own_width() -> None:
    """DeepSeek-V3: what is projected down by every rank is gathered for the projections up."""
    latent = LatentAttention(128, query_latent=1536, latent=512, plain=128, position=64, value=128)
    collectives = exchanged([rank_of(tensor=2, sequence=4096).attention(latent, 7168)])
    assert [each.size / 4096 / ELEMENT for each in collectives.forward] == [1536, 512, 7168]


def test_experts_exchange_the_copies_of_tokens() -> None:
    """Two exchanges in F and in B, of 2 x tokens x chosen x hidden bytes."""
    rank = rank_of(data=8, expert=8, sequence=4096)
    collectives = exchanged(rank.feed_forward(Experts(768, 128, chosen=8), 2048))
    assert counts(collectives) == [2, 2, 0, 2]
    assert {each.size for each in collectives.forward} == {ELEMENT * 4096 * 8 * 2048}


def test_a_token_passes_the_network_once_for_a_node() -> None:
    """DeepSeek-V3 over 64 ranks in eight nodes: a token goes to experts in at most four of them,
    3.6 on average, where each of its eight copies may be elsewhere."""
    experts = Experts(2048, 256, chosen=8, groups=8, chosen_groups=4)
    assert experts.nodes_of_token(8) == pytest.approx(4 * (1 - 0.75**8))
    assert experts.nodes_of_token(1) == 1
    copies, once = (
        exchanged(
            rank_of("h800", data=64, expert=64, dispatcher=name).feed_forward(experts, 7168)
        ).forward[0]
        for name in ("alltoall", "flex")
    )
    assert copies.network == 1 and once.network == pytest.approx(3.6 / 8, rel=0.001)
    gpu = gpu_named("h800")
    alphas = [gpu.collective_fixed + hops * gpu.collective_step for hops in (63, 7 + 7)]
    network_time = [
        each.seconds(gpu, 8) / 2 - alpha for each, alpha in zip((copies, once), alphas, strict=True)
    ]
    faster = DIRECT_EFFICIENCY / gpu.network_efficiency
    assert network_time[1] == pytest.approx(network_time[0] * once.network / faster)


def test_tensor_ranks_of_experts() -> None:
    """A rank has half of the tokens; with experts in halves, the group gathers their copies."""
    whole, half = (
        rank_of(data=8, tensor=2, expert=8, expert_tensor=size, sequence=4096) for size in (1, 2)
    )
    experts = Experts(768, 128, chosen=8)
    copies = ELEMENT * 2048 * 8 * 2048
    collectives = [exchanged(rank.feed_forward(experts, 2048)).forward for rank in (whole, half)]
    assert [(each.pattern, each.size) for each in collectives[0]] == [("all-to-all", copies)]
    assert [(each.pattern, each.size) for each in collectives[1]] == [
        ("all-to-all", copies),
        ("all-gather", 2 * copies),
        ("reduce-scatter", 2 * copies),
    ]
    flops = [
        sum(kernel.flops for kernel in rank.feed_forward(experts, 2048)[1].forward)
        for rank in (whole, half)
    ]
    assert flops[0] == flops[1] == 2 * 2048 * 8 * 3 * 2048 * 768


def test_biases_of_experts_are_added_in_fp32() -> None:
    """Bytes an element of the copies of tokens: F 4 + 10 + 8 + 6; B 6 + 6 + 4 + 12 + 12.

    The product of bias and probability; the sum; the copy; BF16. Back: FP32, the gradient of the
    output and its copy, of the bias, and of the probability.
    """
    rank = rank_of(sequence=4096)
    without, with_bias = (
        rank.feed_forward(Experts(2880, 128, 4, bias=bias), 2880)[1] for bias in (False, True)
    )
    elements = 4096 * 4 * 2880
    for kind, size in (("forward", 28), ("input", 40)):
        traffic = [
            sum(kernel.traffic for kernel in getattr(part, kind)) for part in (without, with_bias)
        ]
        assert traffic[1] - traffic[0] == size * elements
    assert len(with_bias.forward) == len(without.forward) + 1


@pytest.mark.parametrize(
    ("kind", "forward", "back"),
    [
        ("ring", [("ring step", 3)], [("ring step", 3)]),
        ("all-gather", [("all-gather", 1)], [("all-gather", 1), ("reduce-scatter", 1)]),
        ("all-to-all", [("all-to-all", 1)] * 2, [("all-to-all", 1)] * 2),
    ],
)
def test_context_ranks_exchange(
    kind: ContextType, forward: list[tuple[str, int]], back: list[tuple[str, int]]
) -> None:
    rank = rank_of(context=4, context_type=kind, sequence=32768)
    collectives = exchanged([rank.attention(LLAMA_8B.attention, 4096)])

    def shapes(kind: tuple[Collective, ...]) -> list[tuple[str, int]]:
        return [(each.pattern, each.repeats) for each in kind]

    assert shapes(collectives.forward) == forward and shapes(collectives.backward) == back
    assert collectives.input == collectives.backward and not collectives.weight


def test_a_ring_hides_behind_attention() -> None:
    """Keys and values of 8192 tokens pass in less time than their attention takes."""
    rank = rank_of(context=4, sequence=32768)
    (ring,) = rank.attention(LLAMA_8B.attention, 4096).collectives.forward
    assert ring.size == ELEMENT * 8192 * 2 * 8 * 128
    assert ring.hidden > 0 and ring.exposed(H200, 8) == 0


def test_adapters_alone_have_weight_gradients() -> None:
    """Llama 3.1 8B with rank 16: (in + out) x 16 of seven matrices."""
    plain, tuned = rank_of(sequence=4096), rank_of(sequence=4096, lora=16)
    whole, parts = plain.decoder(LLAMA_8B, 4096), tuned.decoder(LLAMA_8B, 4096)
    width = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 14336)
    assert sum(part.adapters for part in parts) == 16 * width
    assert sum(part.parameters for part in parts) == sum(part.parameters for part in whole)
    assert not any(part.trained for part in parts if part.parameters)
    assert times(tuned, *parts).weight < 0.2 * times(plain, *whole).weight
    assert times(tuned, *parts).input > times(plain, *whole).input


@pytest.mark.parametrize(("dropout", "activation", "traffic"), [(True, 5, 13), (False, 2, 8)])
def test_scores_in_memory_cost_what_arxiv_2205_05198_counts(
    dropout: bool, activation: int, traffic: int
) -> None:
    """Section 4.1: 5 a s^2 b bytes are kept of a layer; all products, masked ones too."""
    flash, scores = (
        rank_of(sequence=2048, microbatch=2, tensor=4, attention=kernel, dropout=dropout).attention(
            LLAMA_8B.attention, 4096
        )
        for kernel in ("fused", "unfused")
    )
    elements = 32 * 2048**2 * 2 / 4
    assert scores.stashed - flash.stashed == activation * elements
    work = [sum(kernel.flops for kernel in part.forward) for part in (flash, scores)]
    assert work[1] - work[0] == 0.5 * 2 * elements * (128 + 128)
    passes = [kernel.traffic for kernel in scores.forward if kernel.name.startswith("s")]
    assert sum(passes) == pytest.approx(traffic * elements)


def test_dropout_keeps_a_byte_of_both_outputs() -> None:
    """arXiv 2205.05198, section 4.1: s b h bytes each for the masks of a layer."""
    activations = [
        rank_of(sequence=2048, dropout=on).residual(4096).stashed for on in (True, False)
    ]
    assert activations[0] - activations[1] == 2 * 2048 * 4096


def test_scores_in_memory_are_not_shared_by_ranks_of_context() -> None:
    with pytest.raises(ConflictError, match="fused attention only"):
        Training(context=2, attention="unfused")


def test_a_layer_of_a_hybrid_model_has_one_norm_and_one_addition() -> None:
    """Nemotron-H: a Mamba-2 layer has no feed-forward, experts have no attention."""
    config = CONFIGS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"]
    mamba, experts = (run.decoder for run in architecture_of(config).runs[:2])
    rank = rank_of(sequence=8192)
    names = [[part.name for part in rank.decoder(each, 2688)] for each in (mamba, experts)]
    assert names == [
        ["norm", "attention", "residual"],
        ["norm", "router", "experts", "shared expert", "residual"],
    ]
    (_, attention, residual) = rank.decoder(mamba, 2688)
    flops = {kernel.name: kernel.flops for kernel in attention.forward if kernel.flops}
    inner, groups, state, heads = 64 * 64, 8, 128, 64
    assert flops == {
        "gate + value + key + query + steps": 2
        * 8192
        * 2688
        * (2 * inner + 2 * groups * state + heads),
        "chunks": 8192 * (128 * (groups * state + inner) + 4 * inner * state),
        "output": 2 * 8192 * inner * 2688,
    }
    assert residual.forward[0].traffic == 3 * 2 * 8192 * 2688


def test_experts_with_latent_vectors_exchange_those() -> None:
    """Nemotron 3 Super: experts read 1024 of 4096 elements, and have no gate."""
    config = CONFIGS["nvidia/NVIDIA-Nemotron-3-Super-120B-A12B"]
    decoder = architecture_of(config).runs[1].decoder
    rank = rank_of(sequence=8192, data=64, expert=64)
    router, experts, _ = rank.decoder(decoder, 4096)[1:-1]
    (exchange,) = router.collectives.forward
    assert exchange.size == 2 * 8192 * 22 * 1024
    assert sum(kernel.flops for kernel in experts.forward) == 2 * 8192 * 22 * 2 * 1024 * 2688
    latent = {"latent down", "latent up"}
    assert latent < {kernel.name for kernel in router.forward}


def test_parallel_blocks_stash_their_input_once() -> None:
    """Command-R: attention and feed-forward read the output of the same norm."""
    decoder = architecture_of(CONFIGS["CohereLabs/c4ai-command-r-v01"]).runs[0].decoder
    rank = rank_of(sequence=4096)
    parts = rank.decoder(decoder, 8192)
    inputs = [tensor for part in parts for tensor in part.inputs if tensor.tensor == "hidden"]
    assert len(inputs) == 1
    in_a_row = rank.decoder(replace(decoder, norms=2), 8192)
    difference = sum(part.stashed for part in in_a_row) - sum(part.stashed for part in parts)
    assert difference == 2 * 2 * 4096 * 8192  # the input of the second norm, and its output


def test_a_layer_of_longcat_has_two_blocks() -> None:
    decoder = architecture_of(CONFIGS["meituan-longcat/LongCat-Flash-Chat"]).runs[0].decoder
    parts = [part.name for part in rank_of(sequence=4096).decoder(decoder, 6144)]
    block = ["norm", "attention"]
    assert parts == [
        *(*block, "router", "experts", "shared expert", "residual"),
        *(*block, "mlp", "residual"),
    ]


def test_every_block_of_longcat_has_two_norms_and_two_additions() -> None:
    """Additions stash their result, which the norms read: no norm stashes any more."""
    decoder = architecture_of(CONFIGS["meituan-longcat/LongCat-Flash-Chat"]).runs[0].decoder
    parts = rank_of(sequence=4096).decoder(decoder, 6144)
    for name, stashed in (("norm", 0), ("residual", 2 * ELEMENT * 4096 * 6144)):
        assert [part.stashed for part in parts if part.name == name] == [stashed] * 2


def test_a_scan_of_mamba_2_is_as_long_as_measured() -> None:
    """64 heads of 64 x 128 in 8 groups, 4 x 8192 tokens, forward, on a B200: 1.435 ms
    (AIConfigurator 095f58a5, mamba2_perf of TensorRT-LLM 1.3.0rc15); within 2 %."""
    config = CONFIGS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"]
    mamba = architecture_of(config).runs[0].decoder.attention
    assert mamba is not None
    rank = rank_of("b200", sequence=8192, microbatch=4)
    assert times(rank, rank.attention_itself(mamba)).forward == pytest.approx(1.435, rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "measured"), [("h100", 2.024), ("h200", 1.868), ("b200", 1.598), ("gb300", 1.543)]
)
def test_a_gated_delta_rule_is_as_long_as_measured(gpu: str, measured: float) -> None:
    """32 heads of values, 16 of keys, all 128 wide, 4 x 8192 tokens, forward (AIConfigurator
    095f58a5, gdn_perf of TensorRT-LLM 1.3.0rc20); within 4 %."""
    attention = LinearAttention(32, 16, 128, 128, kernel=4)
    rank = rank_of(gpu, sequence=8192, microbatch=4)
    assert times(rank, rank.attention_itself(attention)).forward == pytest.approx(
        measured, rel=0.04
    )


def test_mamba_2_copies_several_sequences_to_its_layout_under_megatron() -> None:
    mamba = architecture_of(CONFIGS["nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B"]).runs[0].decoder

    def copied(**fields: Any) -> list[float]:
        parts = rank_of(sequence=8192, **fields).decoder(mamba, 2688)
        kernels = [kernel for part in parts for kernel in (*part.forward, *part.input)]
        return [each.traffic for each in kernels if each.name == "layouts of tokens"]

    assert copied(microbatch=1) == copied(microbatch=2, framework="torch") == []
    mixed, output = 64 * 64 + 2 * 8 * 128, 64 * 64
    assert copied(microbatch=2) == [2 * 2 * 2 * 8192 * (mixed + 2 * output)] * 2


def test_products_of_heads_that_are_not_aligned() -> None:
    """GPT of BigScience with 128 heads 108 wide, of which a rank of eight has 16: 4 x 2048 tokens,
    and each multiplies 2 x 108 elements of 2048 keys; 20 times as long as at 0.785 of the peak."""
    attention = GroupedQueryAttention(128, 128, 108, rotary=False)
    rank = rank_of("a100", sequence=2048, microbatch=4, tensor=8, attention="unfused")
    products, _ = rank.attention_itself(attention).forward
    flops = 4 * 2048 * 16 * 2 * 2 * 108 * 2048
    a100 = gpu_named("a100")
    work = flops + 2 * a100.matrix_overhead
    seconds = products.seconds(a100, rank.training.precision)
    assert seconds == pytest.approx(20 * work / (312e12 * 0.785))
    aligned, _ = rank.attention_itself(replace(attention, width=112)).forward
    assert 10 * aligned.seconds(a100, rank.training.precision) < seconds
