"""Times of packed microbatches, measured on a GPU, and their factors.

    python -m benchmarks.packed_times measure -o ROWS.jsonl     # with CUDA and PyTorch
    python -m benchmarks.packed_times report ROWS.jsonl > RECORD.md

One decoder layer of Llama 3.1 8B in BF16 and eager PyTorch, without parallelism. A microbatch is a
list of lengths of documents; attention is causal within each (`scaled_dot_product_attention`). F is
the forward, BW the gradient of the input and of all weights, each the median of 12 by CUDA events.

`factor` is that of `ppopt.problem.sequence_lengths`, with the attention share of the whole model
that `ppopt.derive_model` derives for this GPU and 8192 tokens. `measured` is the time of F and BW
relative to one document of 8192 tokens.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import ppopt
from benchmarks.record import Row, add_line, read_lines, table
from ppopt.problem.sequence_lengths import read_lengths, time_factors

HIDDEN, INNER, HEADS, GROUPS = 4096, 14336, 32, 8
"""Dimensions of a layer: https://huggingface.co/meta-llama/Llama-3.1-8B config.json."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
    "num_hidden_layers": 32, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
REFERENCE = 8192
DOCUMENTS = (
    [4096], [8192], [4096] * 2, [2048] * 4, [1024] * 8, [1024, 7168], [16384], [8192] * 2,
    [4096, 12288], [4096] * 4, [32768], [16384] * 2, [8192] * 4, [1024, 31744],
)  # fmt: skip
REPEATS, WARM_UPS = 12, 4


def layer() -> Any:
    """A decoder layer; called with the input and the lengths of its documents."""
    import torch  # noqa: PLC0415  only to measure
    from torch import nn  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    width, kind = HIDDEN // HEADS, torch.bfloat16
    angles = torch.arange(max(map(sum, DOCUMENTS)))[:, None] / 500000 ** (
        torch.arange(0, width, 2) / width
    )

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False, dtype=kind)

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN, dtype=kind) for _ in range(2))
            self.qkv, self.out = (
                linear(HIDDEN, (HEADS + 2 * GROUPS) * width),
                linear(HIDDEN, HIDDEN),
            )
            self.up, self.down = linear(HIDDEN, 2 * INNER), linear(INNER, HIDDEN)
            self.register_buffer("cos", angles.cos().to(kind))
            self.register_buffer("sin", angles.sin().to(kind))

        def rotated(self, tensor: torch.Tensor) -> torch.Tensor:
            cos, sin = (each[: tensor.shape[-2]] for each in (self.cos, self.sin))
            left, right = tensor.chunk(2, -1)
            return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

        def forward(self, hidden: torch.Tensor, documents: Sequence[int]) -> torch.Tensor:
            parts = self.qkv(self.norms[0](hidden)).split(
                [HEADS * width, GROUPS * width, GROUPS * width], -1
            )
            query, key, value = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts)
            cut = (each.split(list(documents), 2) for each in map(self.rotated, (query, key)))
            attended = [
                functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                for q, k, v in zip(*cut, value.split(list(documents), 2), strict=True)
            ]
            hidden = hidden + self.out(torch.cat(attended, 2).transpose(1, 2).flatten(2))
            gate, up = self.up(self.norms[1](hidden)).chunk(2, -1)
            return hidden + self.down(functional.silu(gate) * up)

    return Layer().cuda()


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of a call on the GPU."""
    import torch  # noqa: PLC0415

    times: list[float] = []
    for _ in range(WARM_UPS + REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[WARM_UPS:])


def measure() -> Iterator[Row]:
    """A row per microbatch."""
    import torch  # noqa: PLC0415

    module = layer()
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for documents in DOCUMENTS:
        hidden = torch.randn(
            1, sum(documents), HIDDEN, dtype=torch.bfloat16, device="cuda", requires_grad=True
        )
        forward = milliseconds(lambda: module(hidden, documents))  # noqa: B023  called at once
        output = module(hidden, documents)
        inputs, gradient = [hidden, *module.parameters()], torch.randn_like(output)
        backward = milliseconds(
            lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)  # noqa: B023
        )
        yield {"documents": documents, "F": forward, "BW": backward, **about}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """The record."""
    share = ppopt.derive_model(
        CONFIG, gpu="h200", devices=1, batches=1, sequence=REFERENCE, framework="torch"
    ).attention_share
    assert share is not None
    base = next(row for row in rows if row["documents"] == [REFERENCE])
    cells, errors = [], []
    lengths = read_lengths([row["documents"] for row in rows])
    factors = map(float, time_factors(lengths, REFERENCE, Fraction(share)))
    for row, factor in zip(rows, factors, strict=True):
        measured = (row["F"] + row["BW"]) / (base["F"] + base["BW"])
        errors.append(factor / measured - 1)
        named = " + ".join(map(str, row["documents"]))
        cells.append((named, f"{row['F']:.2f}", f"{row['BW']:.2f}", f"{measured:.3f}",
                      f"{factor:.3f}", f"{100 * errors[-1]:+.1f} %"))  # fmt: skip
    yield f"- {base['gpu']}, PyTorch {base['torch']}; derived attention share {float(share):.4f}\n"
    yield from table(("documents", "F ms", "BW ms", "measured", "factor", "error"), cells)
    sizes = [abs(error) for row, error in zip(rows, errors, strict=True) if row is not base]
    mean, worst = 100 * statistics.mean(sizes), 100 * max(sizes)
    yield f"\nMean absolute error {mean:.1f} %, worst {worst:.1f} %."


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or report."""
    parser = argparse.ArgumentParser(description="times of packed microbatches")
    parser.add_argument("command", choices=("measure", "report"))
    parser.add_argument("rows", nargs="?", type=Path, help="measured rows, for report")
    parser.add_argument("-o", "--output", type=Path, help="measured rows (.jsonl)")
    options = parser.parse_args(arguments)
    if options.command == "measure":
        for row in measure():
            add_line(options.output, row)
    else:
        print("\n".join(report(read_lines(options.rows))))


if __name__ == "__main__":
    main()
