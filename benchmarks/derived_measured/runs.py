"""Measured runs as they are read from a file, and which of them are set apart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
BIGSCIENCE = "BigScience 176B prequel (Megatron-DeepSpeed)"
MEGATRON_CI = "Megatron-LM CI golden values"
CARDS = "Megatron-Bridge verification cards"
SC21 = "Megatron-LM SC21 Table 1"
LLAMA_3 = "Llama 3 Table 4"
KORTHIKANTI = "Korthikanti 2022 Table 5"
LLM_FOUNDRY = "llm-foundry MPT benchmarks (FSDP only)"


WHOLE = (
    *("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "seq", "mbs"),
    *("gbs", "microbatches", "gpus", "tp", "pp", "vp", "cp", "ep", "etp", "dp", "fsdp", "zero"),
)
"""Keys of a row whose value is a whole number from 0 on, if there is one."""
FIGURES = ("step_ms", "tflops_gpu", "tokens_s_gpu", "mem_gib")
"""Keys of a row whose value is a number above 0, if there is one."""


class NotPredictedError(Exception):
    """A run that cannot be predicted; its text is the reason."""


@dataclass(frozen=True)
class Run:
    """A run: its parallelism, its batch and what was measured, as its source published them."""

    number: int
    """Place in the file."""
    row: Row

    @property
    def source(self) -> str:
        """Who published it."""
        return str(self.row.get("source", "no source"))

    @property
    def section(self) -> str:
        """The table or case of the source."""
        return str(self.row.get("ref", "")).rpartition(", ")[2]

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.row.get("model", "no model"))

    @property
    def hardware(self) -> str:
        """GPUs and network."""
        return str(self.row.get("hardware", "no hardware"))

    @property
    def machine(self) -> tuple[str, str]:
        """What one calibration is for."""
        return self.source, self.hardware

    @property
    def note(self) -> str:
        """What the file says besides."""
        return str(self.row.get("note", ""))

    def check(self) -> None:
        """Raise NotPredictedError, naming the key, if a value is not the number that it should be.

        What a source publishes as text (`zero: 1 over 8`) is no number, and is not guessed.
        """
        for key in (*WHOLE, *FIGURES):
            value = self.row.get(key)
            try:
                number = float(value or 0)
            except (TypeError, ValueError):
                number = -1
            if not 0 <= number < inf or (key in WHOLE and number % 1):
                raise NotPredictedError(f"{key}: {value!r} is no number that it may be")

    def count(self, key: str) -> int:
        """A degree of parallelism, 1 if the row has none."""
        return int(self.row.get(key) or 1)

    def needed(self, key: str, reason: str) -> int:
        """A whole number that a prediction needs; raises NotPredictedError without it."""
        if not self.row.get(key):
            raise NotPredictedError(reason)
        return int(self.row[key])

    @property
    def sequence(self) -> int:
        """Tokens of a sequence."""
        return self.needed("seq", "no length of sequences")

    @property
    def microbatch(self) -> int:
        """Sequences of a microbatch; one if the row names the batch alone."""
        return self.count("mbs")

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.needed("gpus", "number of GPUs not published")

    @property
    def data(self) -> int:
        """Data-parallel ranks."""
        return self.needed("dp", "number of GPUs not published")

    @property
    def batches(self) -> int:
        """Microbatches of a step per data-parallel rank."""
        if self.row.get("microbatches"):
            return int(self.row["microbatches"])
        batch = self.needed("gbs", "no batch")
        if batch % (self.data * self.microbatch):
            raise NotPredictedError("the batch is not a multiple of data x microbatch")
        return batch // (self.data * self.microbatch)

    @property
    def precision(self) -> str:
        """bf16, fp8 or nvfp4: fp16 is as fast as bf16."""
        name = str(self.row.get("precision") or "").lower()
        if "fp4" in name:
            return "nvfp4"
        return "fp8" if "fp8" in name else "bf16"

    @property
    def fp8_recipe(self) -> str:
        """Scaling of FP8: MXFP8 where the row says so, else one scale for a tensor."""
        return "mxfp8" if "mx" in str(self.row.get("precision")).lower() else "tensorwise"

    @property
    def full_recompute(self) -> bool:
        """Whether every layer is recomputed."""
        return str(self.row.get("recompute") or "").startswith("full")

    @property
    def shards_weights(self) -> bool:
        """Whether weights are sharded over data-parallel ranks (FSDP, ZeRO 3)."""
        return self.count("fsdp") > 1 or self.row.get("zero") == 3

    @cached_property
    def label(self) -> str:
        """Model, GPUs and parallelism in a few words."""
        degrees = {name: self.count(name) for name in ("tp", "pp", "vp", "cp", "ep", "dp", "mbs")}
        degrees_text = " ".join(f"{name}{size}" for name, size in degrees.items() if size > 1)
        return f"{self.model}, {self.hardware.partition(' (')[0]}, {degrees_text or 'one GPU'}"


TRANSCRIPTION = {
    (BIGSCIENCE, "GBS Variations", "GPT 181B"): {"layers": 72, "hidden": 14336, "heads": 64}
}
"""Dimensions by the head of the table in the source, where the file has others. Here the file has
those of the next table (96 layers of 12288); with these the published TFLOP/s follow to 0.1 %."""


SIMUMAX = "SimuMax B200 v1.2"
SIMUMAX_CASE: Row = {
    "source": SIMUMAX,
    "model": "llama3-70b",
    "hidden": 8192,
    "heads": 64,
    "kv_heads": 8,
    "ffn": 28672,
    "vocab": 128256,
    "hardware": "B200 SXM (one node)",
    "gpus": 8,
    "zero": 1,
    "mbs": 1,
    "seq": 4096,
    "precision": "bf16",
    "recompute": "none",
    "schedule": "1F1B",
    "mem_kind": "most that PyTorch allocated, largest rank",
}
"""What the runs of docs/b200/b200_release_v1.2_summary.json of MooreThreads/SimuMax share."""
CASE_KEYS = {"l": "layers", "mbc": "microbatches"}
"""Names in a case of SimuMax that differ from those of rows."""


def read_runs(*paths: Path) -> list[Run]:
    """Every run of the files, in their order; a run of SimuMax that was read before is left out."""
    rows = [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    named = {str(row["ref"]).rpartition(" ")[2] for row in rows if "ref" in row}
    whole = (_whole(row) for row in rows if row.get("case") not in named)
    return [_corrected(Run(index, row)) for index, row in enumerate(whole)]


def _whole(row: Row) -> Row:
    """A row; one that SimuMax published says its parallelism in the name of its case."""
    if "case" not in row:
        return row
    degrees = re.findall(r"(?<![a-z0-9])([a-z]+)(\d+)(?![a-z0-9])", row["case"].partition("_")[2])
    values = {CASE_KEYS.get(name, name): int(size) for name, size in degrees}
    measured = {"step_ms": row["real_ms"], "mem_gib": row["real_alloc_gib"]}
    return {**SIMUMAX_CASE, **values, **measured, "ref": f"case {row['case']}"}


def _corrected(run: Run) -> Run:
    changes = TRANSCRIPTION.get((run.source, run.section, run.model))
    return run if changes is None else Run(run.number, {**run.row, **changes})


SUSPECT: tuple[tuple[str, Row, str], ...] = (
    (
        "GPT 18B",
        {},
        "head of the table: 512 sequences, its column: 2048; steps 4 times too short",
    ),
    ("GPT 181B", {"gbs": 1568, "pp": 6}, "takes as long as the run of 2048 sequences beside it"),
    ("GPT 187B", {"gpus": 320, "dp": 8}, "320 GPUs published, 640 by data x tensor x pipeline"),
)
"""Of BigScience: model (any if empty), values of the row, and why the row is suspect."""


def time_apart(run: Run) -> str | None:
    """Why the step of a run is not set against the aims; None if it is."""
    if run.source.startswith(MEGATRON_CI) and "small" in run.source:
        return _untypical_test(run)
    if run.source == CARDS and "pretrain_performance" not in run.model:
        return "functional or fine-tuning run, not tuned for speed"
    if run.row.get("task", "pretrain") != "pretrain":
        return "fine-tuning"
    if run.source == BIGSCIENCE:
        return _suspect(run)
    return None


def _untypical_test(run: Run) -> str | None:
    """Why a small model of Megatron-LM's tests is no case of launches alone."""
    if run.model.endswith("_1node"):
        return "one node of GB200: up to 20 times as long as the same test on two"
    if "muon" in run.model:
        return "Muon in place of Adam"
    return None


def _suspect(run: Run) -> str | None:
    if "swapped upstream" in run.note:
        return "step and TFLOP/s may be swapped in the source"
    for model, values, reason in SUSPECT:
        if model in ("", run.model) and values.items() <= run.row.items():
            return reason
    return None
