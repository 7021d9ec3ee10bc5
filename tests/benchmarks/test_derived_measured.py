"""Derived steps and memory, against what others measured: how the record reads, sorts and sums up.

Rows are transcribed from their sources: SimuMax (github.com/MooreThreads/SimuMax at 4dcaae5,
docs/b200/b200_release_v1.2_summary.json), BigScience (train/tr11-176B-ml/chronicles-prequel.md of
github.com/bigscience-workshop/bigscience at 9e64ede), Table 4 of arXiv 2407.21783.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.derived_measured import report, runs, zero_bubble
from benchmarks.derived_measured.aims import aim_table, machine_table
from benchmarks.derived_measured.outcomes import calibrated, hardware_flops, outcome_of
from benchmarks.derived_measured.parts import part_table, read_parts
from benchmarks.derived_measured.runs import BIGSCIENCE, LLAMA_3, Run

SIMUMAX = {
    "source": runs.SIMUMAX,
    "ref": "docs/b200/b200_release_v1.2_summary.json",
    "model": "llama3-70b",
    "layers": 12,
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
BIG = {
    "source": BIGSCIENCE,
    "ref": "chronicles-prequel.md, 48 node contenders",
    "model": "GPT 181B",
    "layers": 72,
    "hidden": 14336,
    "vocab": 250000,
    "gpus": 384,
    "hardware": "A100 80GB, 8 per node, 4 x 100 Gb/s OPA",
    "tp": 8,
    "zero": 1,
    "seq": 2048,
    "gbs": 2048,
    "precision": "fp16",
    "recompute": "full",
    "schedule": "1F1B",
    "mem_kind": "GB, most of the first and last nodes",
}


def simumax(tensor: int, pipeline: int, data: int, batches: int, step: float, gib: float) -> Run:
    degrees = {"tp": tensor, "pp": pipeline, "dp": data, "microbatches": batches}
    return Run(0, SIMUMAX | degrees | {"step_ms": step, "mem_gib": gib})


B200 = [
    simumax(1, 2, 4, 4, 843.0, 66.55),
    simumax(1, 2, 4, 8, 1476.8, 66.55),
    simumax(1, 2, 4, 32, 5436.5, 66.55),
    simumax(2, 1, 4, 8, 1387.0, 60.68),
    simumax(4, 1, 2, 8, 765.6, 39.07),
    simumax(8, 1, 1, 8, 556.7, 28.29),
]


def big(pipeline: int, microbatch: int, seconds: float, **values: object) -> Run:
    data = 48 // pipeline
    batches = 2048 // (data * microbatch)
    degrees = {"pp": pipeline, "dp": data, "mbs": microbatch, "microbatches": batches}
    return Run(0, BIG | degrees | {"step_ms": 1000 * seconds} | values)


CONTENDERS = [
    big(12, 1, 143.31),
    big(12, 2, 134.02),
    big(12, 4, 123.69),
    big(12, 8, 129.26),
    big(6, 1, 139.82),
    big(6, 2, 131.02),
    big(6, 4, 121.48),
]


@pytest.mark.parametrize("run", B200, ids=lambda run: f"{run.label} m{run.batches}")
def test_memory_of_megatron_on_b200_is_within_three_per_cent(run: Run) -> None:
    assert outcome_of(run).memory_error == pytest.approx(0, abs=0.03)


def test_two_stages_calibrated_on_eight_microbatches() -> None:
    """4 and 32 microbatches within 8 %; optimizer and reduction are in what is measured."""
    outcomes = [outcome_of(run) for run in B200[:3]]
    assert calibrated(outcomes, outcomes[1]) == pytest.approx([0, 0], abs=0.08)


@pytest.mark.parametrize(
    ("run", "teraflops"),
    [(CONTENDERS[6], 132.71), (CONTENDERS[2], 130.34), (CONTENDERS[0], 112.49)],
)
def test_published_teraflops_follow_from_steps(run: Run, teraflops: float) -> None:
    """So a step follows from TFLOP/s where only these are published."""
    assert hardware_flops(run) / (run.row["step_ms"] * run.gpus * 1e9) == pytest.approx(
        teraflops, rel=0.001
    )
    published = Run(0, {**run.row, "tflops_gpu": teraflops, "step_ms": None})
    assert outcome_of(published).measured == pytest.approx(run.row["step_ms"], rel=0.001)


LLAMA = {
    "source": LLAMA_3,
    "ref": "arXiv 2407.21783 Table 4",
    "model": "Llama 3 405B",
    "layers": 126,
    "hidden": 16384,
    "heads": 128,
    "kv_heads": 8,
    "ffn": 53248,
    "vocab": 128256,
    "hardware": "H100 (700 W), 400 Gb/s RoCE",
    "tp": 8,
    "pp": 16,
    "mbs": 1,
    "precision": "bf16",
    "schedule": "interleaved (chunks not published)",
}
PUBLISHED = ("gpus", "cp", "dp", "seq", "microbatches", "tflops_gpu")
TABLE_4 = [
    Run(0, LLAMA | dict(zip(PUBLISHED, row, strict=True)))
    for row in (
        (8192, 1, 64, 8192, 32, 430),
        (16384, 1, 128, 8192, 16, 400),
        (16384, 16, 8, 131072, 16, 380),
    )
]


@pytest.mark.slow
def test_llama_3_405b_calibrated_on_its_first_row() -> None:
    """Table 4 of arXiv 2407.21783: 430, 400 and 380 TFLOP/s per GPU."""
    outcomes = [outcome_of(run) for run in TABLE_4]
    shorter, longer = calibrated(outcomes, outcomes[0])
    assert shorter == pytest.approx(0, abs=0.02)
    assert longer == pytest.approx(0, abs=0.15)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"layers": None, "model": "GPT 52B"}, "no dimensions"),
        ({"hardware": "TPU v5p"}, "unknown GPU: TPU"),
        ({"hardware": "RTX-3090, Titan-RTX (8 per node)"}, "several kinds"),
        ({"gpus": None, "dp": None, "microbatches": None, "gbs": 16}, "number of GPUs"),
        ({"gbs": None, "microbatches": None}, "no batch"),
        ({"mem_kind": "out of memory"}, "out of memory"),
        ({"model": "Nemotron_3_Ultra"}, "no dimensions of this Nemotron"),
        ({"zero": "1 over -1"}, "zero: '1 over -1' is no number"),
        ({"heads": [64]}, "heads: [64] is no number"),
        ({"tp": 1.5}, "tp: 1.5 is no number"),
        ({"step_ms": "n/a"}, "step_ms: 'n/a' is no number"),
        ({"source": f"{runs.MEGATRON_CI} (x)", "model": "gpt/x", "heads": None}, "number of heads"),
        ({"hardware": None}, "unknown GPU"),
    ],
)
def test_what_is_not_predicted_says_why(values: dict[str, object], reason: str) -> None:
    row = {key: value for key, value in (B200[0].row | values).items() if value is not None}
    outcome = outcome_of(Run(0, row))
    assert outcome.prediction is None and reason in outcome.reason
    assert any(reason in line for line in report.not_predicted([outcome]))


def test_zero_bubble_gains_are_those_published() -> None:
    """2590 and 2886 tokens/s a GPU (InternEvo 282); no gain (sail 10)."""
    assert [case.gain for case in zero_bubble.COMPARISONS] == pytest.approx([0.114, 0], abs=0.0005)
    for case in zero_bubble.COMPARISONS:
        split = zero_bubble.explaining_split(case)
        assert zero_bubble.gain(case.setup, split) == pytest.approx(case.gain, abs=0.005)


def test_tables_name_rows_that_they_do_not_expect() -> None:
    rows = (B200[0].row, {"zero": "1 over -1"}, {"mem_gib": "60 to 66", "step_ms": True})
    outcomes = [outcome_of(Run(0, {**B200[0].row, **row})) for row in rows]
    tables = (report.step_table, report.memory_table, report.not_predicted, report.apart_table)
    lines = [line for table in (*tables, aim_table, machine_table) for line in table(outcomes)]
    assert [line for line in lines if "is no number" in line] == [
        "| SimuMax B200 v1.2 | 1 | zero: '1 over -1' is no number that it may be |",
        "| SimuMax B200 v1.2 | 1 | mem_gib: '60 to 66' is no number that it may be |",
    ]
    assert any(line.startswith("| SimuMax B200 v1.2 | 3 | 1 | 1 |") for line in lines)


PART = {"part": "mlp", "shape": [1, 8192, 4096], "F": 4.1599, "B": 5.0768, "BW": 9.0145}
"""Of Llama 3.1 8B on an H200, ms."""


def test_parts_of_unknown_models_are_listed_and_not_derived(tmp_path: Path) -> None:
    rows = [
        {"part": "matmul8192", "ms": 1.3853, "tflops": 793.7},
        {**PART, "model": "llama-3.1-8b", "tp": 1},
        {**PART, "model": "llama-4-8b"},
        {**PART, "model": "llama-3.1-8b", "part": "conv"},
        {"part": "adamw_fused_fp32", "params": 500000000, "ms": 4.2565},
    ]
    path = tmp_path / "parts.json"
    path.write_text(json.dumps({"rows": rows}))
    table = [line.strip("| ").split(" | ") for line in part_table(read_parts(path))]
    verdicts = {(name, kind): verdict for name, kind, *_, verdict in table[2:]}
    for kind in ("F", "B", "BW"):
        assert verdicts["mlp", kind] == "pass"
        assert verdicts["mlp of llama-4-8b", kind] == "not derived"
        assert verdicts["conv of llama-3.1-8b", kind] == "not derived"
    assert verdicts["all", "F, B, BW"] == "pass"
