"""Differences between training frameworks: fusion of memory-bound passes, and memory.

Counted from their code: `megatron` is Megatron-LM with Transformer Engine, `torch` is eager
PyTorch, `torch-compile` the same code under torch.compile, which fuses passes as Megatron-LM does.

The CPU launches a kernel of Megatron-LM in 140 us with the Python code around it: small models of
its tests on H100 take as long (`benchmarks.derived_measured`), about 1.5 ms for F and 3 ms for BW
of a dense layer, 4 and 6 ms with experts. A kernel of PyTorch is assumed to take half: eager, there
are twice as many.

Under DeepSpeed, F, B and W of a layer wait a millisecond besides their kernels. In BigScience's
runs on A100 (Megatron-DeepSpeed, full recompute), steps with smaller microbatches are longer by as
much.

A backward that is split into B and W takes longer than a whole one. Under PyTorch 2.11 on an H200,
B and W of a layer of Llama 3.1 8B take 9.97 and 5.67 ms, BW 15.03: 1.04 times as long. In 51 runs
of the zero-bubble paper on Megatron-LM (arXiv 2401.10241, tables 4, 6 and 12) it is 1.05.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated


class PassTraffic(NamedTuple):
    """Memory traffic of a memory-bound function, in elements or bytes per element of its unit."""

    forward: float
    backward: float
    forward_launches: float = 1
    backward_launches: float = 1
    stashed: float = 0
    """Elements that it stashes for the backward, per element of its unit, besides the inputs of
    matrices."""
    weight: float = 0
    """Traffic of the kernels of `backward` if they compute the gradient of weights, too."""


class Framework(NamedTuple):
    """How a framework runs the layers of a transformer."""

    launch: float
    """Seconds in which the CPU of a node of H100 launches a kernel, with Python code around it."""
    split: float
    """Time of the kernels of B and of W as separate operations, relative to those of BW."""
    norm: PassTraffic
    """Per element of the vectors of tokens."""
    residual: PassTraffic
    rotary: PassTraffic
    """Per element of queries and keys."""
    gated: PassTraffic
    """The activation function and its product with the other half, per element of the product."""
    plain: PassTraffic
    """The activation function of a network without a gate."""
    merge: PassTraffic
    """Copies between the layouts of tokens and of heads, per element of attention's output."""
    loss: PassTraffic
    """The loss, per logit, in bytes; `stashed` in bytes, too."""
    loss_workspace: float
    """Bytes of a logit that are live while the loss runs, besides those that it stashes."""
    accumulated: float
    """Memory traffic per parameter to add its gradient to earlier microbatches, in bytes."""
    parameter: int
    """Bytes of a parameter."""
    gradient: int
    state: int
    """Bytes of a parameter's optimizer state, its copy in FP32 included."""
    besides: float = 0.0
    """Seconds that each of F, B and W of a layer waits besides its kernels."""
    bucket: float = 25e6 / 4
    """Parameters whose gradients are reduced in a single collective: 25 MB in FP32 by PyTorch's
    DistributedDataParallel."""
    stores_fp8: bool = False
    """Whether products in FP8 keep inputs and weights in FP8. Float8Linear of PyTorch does not: it
    casts them again in the backward (torchao/float8/float8_linear.py of pytorch/ao, 024fe94)."""


class LossCosts(NamedTuple):
    """What the loss costs per logit."""

    passes: PassTraffic
    """In bytes."""
    workspace: float
    """Bytes that are live while it runs, besides those that it stashes."""


FUSED_LOSS = LossCosts(PassTraffic(2, 4, 1, 1, stashed=2), 2)
"""A kernel for the loss and another for its gradient, on logits in BF16
(flash_attn/losses/cross_entropy.py of Dao-AILab/flash-attention)."""
LOSS_CHUNKS = 8
"""Parts of the tokens whose logits are computed, and whose backward runs, one after the other
(torchtitan's chunked loss)."""


class ProductStorage(NamedTuple):
    """What products of matrices keep, in bytes."""

    element: float
    """Of an element of their input, for W."""
    parameter: float
    """Of a parameter, with its copies."""
    gathered: float
    """Of a parameter that data-parallel ranks gather."""
    copies_attended: bool = False
    """Whether the matrix behind attention keeps a copy of its input, which attention stashes."""


class Fp8Recipe(NamedTuple):
    """Scaling of products in FP8, or in NVFP4."""

    element: float
    """Bytes of an element of an input, with its share of a scale."""
    weight: float = 1
    """The same of a parameter."""
    scales_blocks: bool = False
    """Whether blocks of elements have their own scales, which differ between rows and columns."""
    stores_weights: bool = True
    """Whether weights are stored in FP8; otherwise they have copies in FP8."""
    copies_attended: bool = False
    """As of `ProductStorage`."""


BOTH_LAYOUTS = 2
"""Layouts of a matrix: by rows and by columns."""
BLOCK_SCALE = 1 + 1 / 32
"""Bytes of an element with its share of the scale of its block: a byte for 32 elements in MXFP8,
FP32 for 128 in blockwise scaling."""
FP8_RECIPES: Mapping[str, Fp8Recipe] = {
    "tensorwise": Fp8Recipe(1),
    "delayed": Fp8Recipe(1, copies_attended=True),
    "mxfp8": Fp8Recipe(BLOCK_SCALE, BLOCK_SCALE, scales_blocks=True),
    "blockwise": Fp8Recipe(BLOCK_SCALE, scales_blocks=True, stores_weights=False),
}
"""Recipes of Transformer Engine, as `--fp8-recipe` of Megatron-LM names them.

- A linear layer keeps its quantized input for W, in one of two layouts (`update_usage` in
  transformer_engine/pytorch/module/linear.py, d0067d0). The one behind attention keeps what
  attention stashes anyway, except with delayed scaling (`set_save_original_input` in
  megatron/core/transformer/attention.py of Megatron-LM, d98e8a6).
- Weights are in FP8, in the layouts of both F and B (`Float8Tensor` and its transpose in
  transformer_engine/pytorch/tensor/float8_tensor.py), and are gathered in FP8: these recipes set
  `fp8_param_gather`, blockwise scaling does not (src/megatron/bridge/training/mixed_precision.py of
  Megatron-Bridge, 067f987). GPUs that multiply every layout need no transpose with tensorwise and
  delayed scaling (transformer_engine/pytorch/utils.py, "non-TN layouts").
"""

NVFP4 = Fp8Recipe(0.5 + 1 / 16, 0.5 + 1 / 16, scales_blocks=True, stores_weights=False)
"""NVFP4: half a byte and its share of a scale of a byte for 16 elements (arXiv 2509.25149).
Megatron-LM keeps weights in BF16 besides."""

FUSED = Framework(
    launch=140e-6,
    split=1.05,
    norm=PassTraffic(2, 4, 1, 2),
    residual=PassTraffic(3, 1, stashed=1),
    rotary=PassTraffic(2, 2),
    gated=PassTraffic(3, 5),
    plain=PassTraffic(2, 3),
    merge=PassTraffic(0, 0, 0, 0),
    loss=PassTraffic(24, 14, 6, 3, stashed=2),
    loss_workspace=4,
    accumulated=8,
    parameter=2,
    gradient=4,
    state=12,
    bucket=40e6,  # or a million for each data-parallel rank (DistributedDataParallelConfig)
    stores_fp8=True,
)
EAGER = Framework(
    launch=70e-6,
    split=1.04,
    norm=PassTraffic(2, 4, 1.25, 5, weight=2),
    residual=PassTraffic(3, 3, stashed=1),
    rotary=PassTraffic(9, 10, 7, 8, stashed=1),
    gated=PassTraffic(5, 13, 2, 6, stashed=1),
    plain=PassTraffic(2, 3),
    merge=PassTraffic(2, 5, 1, 4, stashed=1),
    loss=PassTraffic(18, 18, 3, 3, stashed=4),
    loss_workspace=8,
    accumulated=6,
    parameter=4,
    gradient=4,
    state=8,
)
FRAMEWORKS: Mapping[str, Framework] = {
    "megatron": FUSED,
    "deepspeed": FUSED._replace(besides=1e-3, bucket=500e6, stores_fp8=False),
    "torch": EAGER,
    "torch-compile": FUSED._replace(
        launch=70e-6,
        split=1.04,
        loss=PassTraffic(12, 10, 3, 2, stashed=2),
        accumulated=6,
        parameter=4,
        gradient=4,
        state=8,
        bucket=25e6 / 4,
        stores_fp8=False,
    ),
}
"""Framework by the name that `--framework` takes."""


def framework_named(name: str) -> Framework:
    """A framework by its name; raises InputError if there is none."""
    if name not in FRAMEWORKS:
        raise InputError(
            f"framework: {abbreviated(name)} is unknown; known are {', '.join(FRAMEWORKS)}"
        )
    return FRAMEWORKS[name]
