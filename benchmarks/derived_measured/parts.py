"""Parts of layers measured on one GPU, against the derived times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.derived_measured.architectures import QWEN3_06B, QWEN3_30B
from benchmarks.derived_measured.outcomes import percent
from benchmarks.derived_models import LLAMA_8B
from benchmarks.record import table
from ppopt.derivation.architecture import Architecture, Experts
from ppopt.derivation.data_parallel import ADAM
from ppopt.derivation.gpus import gpu_named
from ppopt.derivation.kernels import Kernel, KernelBound
from ppopt.derivation.layer_costs import Costing
from ppopt.derivation.layer_part import LayerPart
from ppopt.derivation.training import Training

MODELS = {"llama-3.1-8b": LLAMA_8B, "qwen3-0.6b": QWEN3_06B, "qwen3-30b-a3b": QWEN3_30B}
LAUNCH_ALONE = 18e-6
"""Seconds in which the CPU launches a kernel of a part that runs alone, many times in a row."""
KINDS = ("F", "B", "BW")
MEDIAN, WORST = 0.10, 0.30
"""Aims of absolute errors, as shares."""


class Timing(NamedTuple):
    """A part of a layer: measured and derived times of a kind of operation, in ms."""

    name: str
    shape: str
    kind: str
    measured: float
    derived: float | None

    @property
    def error(self) -> float | None:
        """Derived / measured - 1."""
        return None if self.derived is None else self.derived / self.measured - 1


def read_parts(path: Path) -> list[Timing]:
    """Every measured time of the file against the derived one."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [part for row in rows for part in _parts(row)]


def _parts(row: Mapping[str, Any]) -> Iterator[Timing]:
    if row["part"] == "adamw_fused_fp32":
        yield Timing(
            "optimizer",
            f"{row['params']} parameters",
            "step",
            row["ms"],
            optimizer_time(row["params"]),
        )
    elif "F" in row:
        degree = " ".join(f"{name}{row[name]}" for name in ("tp", "ep") if name in row)
        shape = f"{row['model']} {degree} {'x'.join(map(str, row['shape']))}"
        derived = derived_times(row)
        name = row["part"] if derived else f"{row['part']} of {row['model']}"
        for kind in KINDS:
            yield Timing(name, shape, kind, row[kind], derived.get(kind))


def derived_times(row: Mapping[str, Any]) -> dict[str, float]:
    """Derived ms of F, B and BW of a part; none if its model or the part is unknown.

    As they were measured, there are no collectives, and gradients are added to no earlier ones.
    """
    architecture = MODELS.get(row["model"])
    if architecture is None:
        return {}
    costing = Costing.of(_training(row, architecture), gpu_named("h200"))
    part = _part(row["part"], architecture, costing)
    if part is None:
        return {}
    kernels = {"F": part.forward, "B": part.input, "BW": part.input + part.weight}
    return {kind: 1000 * _alone(costing, each) for kind, each in kernels.items()}


def _alone(costing: Costing, kernels: Sequence[Kernel]) -> float:
    """Seconds of kernels that are measured alone: the GPU waits for the CPU if they are short."""
    launching = LAUNCH_ALONE * sum(kernel.launches for kernel in kernels)
    return max(costing.computed(kernels), launching)


def _training(row: Mapping[str, Any], architecture: Architecture) -> Training:
    """The training of which the part is a rank's."""
    shape, tensor, expert = row["shape"], row.get("tp", 1), row.get("ep", 1)
    feed_forward = architecture.last.feed_forward
    if isinstance(feed_forward, Experts):
        sequences, tokens = 1, shape[0] // feed_forward.chosen
    else:
        sequences, tokens = shape[0], shape[1] * (tensor if row["part"] == "norm" else 1)
    return Training(
        tensor=tensor,
        expert=expert,
        data=expert,
        sequence=tokens,
        microbatch=sequences,
        framework="torch",
    )


def _part(name: str, architecture: Architecture, costing: Costing) -> LayerPart | None:
    """A part of a layer of an architecture on a rank; None if it has no part of this name."""
    rank, hidden, decoder = costing.rank, architecture.hidden, architecture.last
    match name:
        case "attention" if decoder.attention:
            return rank.attention(decoder.attention, hidden)
        case "norm":
            return rank.norm(hidden)
        case "head":
            return rank.head(hidden, architecture.vocabulary)[-1]
    networks = decoder.feed_forwards
    parts = [part for network in networks for part in rank.feed_forward(network, hidden)]
    return next((part for part in parts if part.name == name), None)


def optimizer_time(parameters: int) -> float:
    """Derived ms of Adam in FP32, without the norm of the gradients, which was not measured."""
    costing = Costing.of(Training(framework="torch"), gpu_named("h200"))
    adam = Kernel("Adam", KernelBound.MEMORY, traffic=ADAM * parameters)
    return 1000 * costing.computed([adam])


def single_parts(parts: Sequence[Timing]) -> Iterator[str]:
    """A line for every time."""
    rows = (
        [part.name, part.shape, part.kind, part.measured, _derived(part), _error(part)]
        for part in parts
    )
    yield from table(("part", "shape", "kind", "measured", "derived", "error"), rows)


def _derived(part: Timing) -> str:
    return "-" if part.derived is None else f"{part.derived:.4f}"


def _error(part: Timing) -> str:
    return "-" if part.error is None else percent(part.error, sign=True)


def part_table(parts: Sequence[Timing]) -> Iterator[str]:
    """Errors by part and kind, and over all of them."""
    columns = ("part", "kind", "times", "derived", "median", "worst", "of", "verdict")
    groups: dict[tuple[str, str], list[Timing]] = {}
    for part in parts:
        groups.setdefault((part.name, part.kind), []).append(part)
    groups["all", "F, B, BW"] = [
        part for part in parts if part.kind in KINDS and part.derived is not None
    ]
    yield from table(columns, (_row(*key, rows) for key, rows in groups.items()))


def _row(name: str, kind: str, parts: Sequence[Timing]) -> list[object]:
    errors = [(abs(part.error), part) for part in parts if part.error is not None]
    if not errors:
        return [name, kind, len(parts), 0, "-", "-", "-", "not derived"]
    middle = median(error for error, _ in errors)
    worst, part = max(errors, key=lambda item: item[0])
    met = middle <= MEDIAN and worst <= WORST and len(errors) == len(parts)
    label = f"{part.name} {part.kind} {part.shape}: {_error(part)}"
    verdict = "pass" if met else "FAIL"
    return [name, kind, len(parts), len(errors), percent(middle), percent(worst), label, verdict]
