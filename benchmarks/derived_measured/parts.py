"""Parts of layers measured on one GPU, beside what is derived for them."""

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
from ppopt.derivation.architecture import Architecture, Decoder
from ppopt.derivation.gpus import gpu_named
from ppopt.derivation.layer_costs import Costing
from ppopt.derivation.layer_work import LayerWork
from ppopt.derivation.training import Training

MODELS = {"llama-3.1-8b": LLAMA_8B, "qwen3-0.6b": QWEN3_06B, "qwen3-30b-a3b": QWEN3_30B}
KINDS = ("F", "B", "BW")
MEDIAN, WORST = 0.10, 0.30
"""Aims of absolute errors, as shares."""


class Part(NamedTuple):
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


def read_parts(path: Path) -> list[Part]:
    """Every measured time of the file beside the derived one."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [part for row in rows for part in _parts(row)]


def _parts(row: Mapping[str, Any]) -> Iterator[Part]:
    if row["part"] == "adamw_fused_fp32":
        yield Part("optimizer", f"{row['params']} parameters", "step", row["ms"], None)
    elif "F" in row:
        degree = " ".join(f"{name}{row[name]}" for name in ("tp", "ep") if name in row)
        shape = f"{row['model']} {degree} {'x'.join(map(str, row['shape']))}"
        derived = derived_times(row)
        for kind in KINDS:
            yield Part(row["part"], shape, kind, row[kind], derived.get(kind))


def derived_times(row: Mapping[str, Any]) -> dict[str, float]:
    """Derived ms of F, B and BW of a part; empty if nothing is derived for it."""
    architecture: Architecture = MODELS[row["model"]]
    work = _work(row["part"], architecture, row["shape"])
    if work is None:
        return {}
    tensor = row.get("tp", 1)
    sequences, tokens = row["shape"][0], row["shape"][1]
    if row["part"] == "experts":
        sequences, tokens = 1, row["shape"][0]
    training = Training(tensor=tensor, sequence=tokens, microbatch=sequences)
    costs = Costing(training, gpu_named("h200")).layer("part", work)
    return {
        "F": costs.forward,
        "B": costs.backward - costs.weight,
        "BW": costs.backward,
    }


def _work(part: str, architecture: Architecture, shape: Sequence[int]) -> LayerWork | None:
    decoder: Decoder = architecture.last
    hidden = architecture.hidden
    match part:
        case "attention":
            scores = decoder.attention.scores(shape[1])
            return LayerWork(decoder.attention.matrices(hidden), scores, 0)
        case "mlp":
            return LayerWork(decoder.feed_forward.passed(hidden), 0, 0)
        case "experts":
            return LayerWork(3 * hidden * decoder.feed_forward.width, 0, 0)
        case "head":
            return LayerWork(hidden * architecture.vocabulary, 0, 0)
    return None


def single_parts(parts: Sequence[Part]) -> Iterator[str]:
    """A line for every time."""
    rows = (
        [part.name, part.shape, part.kind, part.measured, part.derived, _error(part)]
        for part in parts
    )
    yield from table(("part", "shape", "kind", "measured", "derived", "error"), rows)


def _error(part: Part) -> str:
    return "-" if part.error is None else percent(part.error, sign=True)


def part_table(parts: Sequence[Part]) -> Iterator[str]:
    """Errors by part and kind, and over all of them."""
    columns = ("part", "kind", "times", "derived", "median", "worst", "of", "verdict")
    groups: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        groups.setdefault((part.name, part.kind), []).append(part)
    groups["all", "F, B, BW"] = [part for part in parts if part.kind in KINDS]
    yield from table(columns, (_row(*key, rows) for key, rows in groups.items()))


def _row(name: str, kind: str, parts: Sequence[Part]) -> list[object]:
    errors = [(abs(part.error), part) for part in parts if part.error is not None]
    if not errors:
        return [name, kind, len(parts), 0, "-", "-", "-", "not derived"]
    middle = median(error for error, _ in errors)
    worst, part = max(errors, key=lambda item: item[0])
    met = middle <= MEDIAN and worst <= WORST and len(errors) == len(parts)
    shown = f"{part.name} {part.kind} {part.shape}: {_error(part)}"
    verdict = "pass" if met else "FAIL"
    return [name, kind, len(parts), len(errors), percent(middle), percent(worst), shown, verdict]
