"""A small transformer, profiled, solved and run: the solved step beside 1F1B.

The three commands of docs/pytorch.md on docs/examples/small_transformer.py with wider blocks, for
four devices and for two. The schedules run by turns, step by step, in rounds of processes of their
own. Every schedule is predicted from the profile. The record is a file of JSON lines that grows
with every round; what it holds is not run again. Beside it stands its report, a Markdown file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.record import add_line, heading, read_lines
from ppopt import processors, read_model, read_schedule
from ppopt.problem.operation import OpKind

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "small_transformer.py"
SIZES = {"WIDTH": 256, "HEADS": 4, "SEQUENCE": 64, "BLOCKS": 6}
BATCHES = 8
DEVICES = (4, 2)
STEPS = 3
"""Measured steps of every schedule in a round."""
SECONDS = 5
"""Time limit of every search."""
HAND = "1f1b"
SCHEDULES = {
    HAND: "eval 1f1b",
    "zb-h1": "eval zb-h1",
    "solved, memory of 1F1B": "solve --mem-limit",
    "solved, no limit": "solve",
    "solved, whole backwards": "solve --mem-limit --backward whole",
}
"""What makes each schedule; of all, the first stage runs its whole backward in W."""


def build(microbatches: int) -> Any:
    """The job for `--stages-from`."""
    spec = importlib.util.spec_from_file_location("small_transformer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, size in SIZES.items():
        setattr(example, name, size)
    return example.build(microbatches)


class Study:
    """The record of all devices, and the files of the commands in a folder beside it."""

    def __init__(self, record: Path) -> None:
        self.record, self.folder = record, record.with_suffix(".work")
        self.rows = read_lines(record)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, at once in the file."""
        self.rows.append(row)
        add_line(self.record, row)

    def of(self, what: str, devices: int) -> list[dict[str, Any]]:
        """The rows of one kind."""
        return [row for row in self.rows if row["what"] == what and row["devices"] == devices]

    def file(self, devices: int, name: str) -> Path:
        """A file of the commands."""
        return self.folder / f"{devices}-{name.replace(', ', '-').replace(' ', '-')}"

    def prepare(self, devices: int) -> None:
        """Profile and solve, unless that is done."""
        model = self.file(devices, "model.yaml")
        schedules = {name: self.file(devices, f"{name}.json") for name in SCHEDULES}
        if not model.exists():
            job = f"{__file__}:build"
            ppopt(
                *("profile", "--stages-from", job, "--stages", devices, "--batches", BATCHES),
                *("-o", model),
            )
        for name, line in SCHEDULES.items():
            if not schedules[name].exists():
                limit = ("--time-limit", SECONDS) if line.startswith("solve") else ()
                common = ("--config", model, "--first-backward", "weight", "--quiet")
                ppopt(*line.split(), *common, *limit, "-o", schedules[name])
        if not self.of("profile", devices):
            made = {name: told(path) for name, path in schedules.items()}
            self.add({"what": "profile", "devices": devices, **costs(model), "schedules": made})

    def round(self, devices: int) -> None:
        """Run all schedules by turns; the first time with every gradient compared."""
        files = [self.file(devices, f"{name}.json") for name in SCHEDULES]
        check = ("--unchecked",) if self.of("round", devices) else ()
        job = ("--stages-from", f"{__file__}:build", "--steps", STEPS, "--json", *check)
        rows = json.loads(ppopt("run", *files, *job))["rows"]
        ran = dict(zip(SCHEDULES, rows, strict=True))
        self.add(
            {
                "what": "round",
                "devices": devices,
                "predicted": {name: row["predicted_seconds"] for name, row in ran.items()},
                "steps": {name: row["steps"] for name, row in ran.items()},
                "difference": max(row["largest_difference"] or 0 for row in rows),
            }
        )


def ppopt(*words: object) -> str:
    """Run a command; its output."""
    command = [str(Path(sys.executable).with_name("ppopt")), *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def costs(model: Path) -> dict[str, Any]:
    """Times of the layers in ms: F, BW, and what B and W take together."""
    layers = read_model(model).layers
    return {
        "forward": [round(float(layer.forward), 3) for layer in layers],
        "whole": [round(float(layer.backward), 3) for layer in layers],
        "split": [round(float(layer.backward_input + layer.weight), 3) for layer in layers],
    }


def told(path: Path) -> dict[str, Any]:
    """What the record keeps of a schedule."""
    schedule, _ = read_schedule(path)
    return {
        "status": schedule.origin.status,
        "counts": list(schedule.pipeline.counts),
        "split": int((schedule.kind == OpKind.B).sum()),
        "backwards": schedule.pipeline.num_stages * schedule.pipeline.batches,
        "peak": round(max(schedule.metrics.peak_memory) / schedule.pipeline.ticks.memory_per_unit),
    }


class Line(NamedTuple):
    """One schedule in the report, times in ms."""

    name: str
    predicted: float
    steps: Sequence[float]

    @property
    def measured(self) -> float:
        """Median of the steps."""
        return median(self.steps)


def lines(study: Study, devices: int) -> list[Line]:
    """All rounds of every schedule."""
    rounds = study.of("round", devices)
    return [
        Line(
            name,
            1000 * rounds[0]["predicted"][name],
            [1000 * step for one in rounds for step in one["steps"][name]],
        )
        for name in SCHEDULES
    ]


def report(study: Study) -> Iterator[str]:
    """The record in Markdown."""
    yield next(row["text"] for row in study.rows if row["what"] == "head")
    for devices in DEVICES:
        if study.of("round", devices):
            yield from part(study, devices)


def part(study: Study, devices: int) -> Iterator[str]:
    """The table of one number of devices, and what it says."""
    found, profile = lines(study, devices), study.of("profile", devices)[0]
    hand = found[0]
    differs = study.of("round", devices)[0]["difference"]
    yield f"\n## {devices} processes\n"
    yield (
        f"{len(hand.steps)} steps of each, by turns; gradients within {differs:.1g} of those of "
        f"one process. Layers per stage of 1F1B: {profile['schedules'][HAND]['counts']}.\n"
    )
    yield (
        "| schedule | predicted ms | measured ms (median, least, most) | of the prediction | "
        "beside 1F1B, predicted | measured | split backwards | peak MiB |"
    )
    yield f"|{'---|' * 8}"
    for one in found:
        made = profile["schedules"][one.name]
        beside = f"{one.measured / hand.measured - 1:+.1%}"
        spread = f"{one.measured:.0f} ({min(one.steps):.0f}, {max(one.steps):.0f})"
        yield (
            f"| {one.name} | {one.predicted:.0f} | {spread} | {one.measured / one.predicted:.3f} "
            f"| {one.predicted / hand.predicted - 1:+.1%} | {beside} "
            f"| {made['split']} of {made['backwards']} | {made['peak']} |"
        )
    yield from conclusions(found, profile, devices)


def conclusions(found: Sequence[Line], profile: dict[str, Any], devices: int) -> Iterator[str]:
    """What splitting costs, what the processors allow, and why there is no gain."""
    whole, split = sum(profile["whole"]), sum(profile["split"])
    work = BATCHES * (sum(profile["forward"]) + whole)
    share = work / processors.available()
    yield (
        f"\n- Cost of the split: B and W of all layers take {split:.1f} ms, BW {whole:.1f} ms, "
        f"{split / whole - 1:+.1%}."
    )
    yield (
        f"- All operations of a step take {work:.0f} ms with whole backwards; on "
        f"{processors.available()} processors no step takes less than {share:.0f} ms."
    )
    if devices > processors.available():
        yield (
            f"- {devices} processes share {processors.available()} processors: predictions are of "
            "a processor per process, so measured steps are longer. Stages that wait, as for "
            "an accelerator, leave the processors free: [record](2026-11-21-sleeping.md)."
        )
    hand = found[0]
    for one in found[1:]:
        if one.measured >= hand.measured:
            yield (
                f"- {one.name}: no gain measured, {one.predicted / hand.predicted - 1:+.1%} "
                f"predicted."
            )


def main() -> None:
    """Grow the record, and write its report."""
    parser = argparse.ArgumentParser(description="the solved step beside 1F1B")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record (.jsonl)")
    parser.add_argument("--minutes", type=float, default=6, help="to run at most (default 6)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each (default 4)")
    given = parser.parse_args()
    study, until = Study(given.output), time.monotonic() + 60 * given.minutes
    study.folder.mkdir(exist_ok=True)
    if not study.rows:
        title = "A small transformer: solved beside 1F1B"
        study.add({"what": "head", "devices": 0, "text": heading(title, "torch", "ortools")})
    for devices in DEVICES:
        if len(study.of("round", devices)) < given.rounds:
            study.prepare(devices)
    longest = 0.0
    for number in range(given.rounds):
        for devices in DEVICES:
            began = time.monotonic()
            if len(study.of("round", devices)) > number:
                continue
            if number and began + longest > until:
                break
            study.round(devices)
            longest = max(longest, time.monotonic() - began)
    report_file = given.output.with_suffix(".md")
    report_file.write_text("\n".join(report(study)) + "\n", encoding="utf-8")
    print(f"{report_file} is written")
    if all(len(study.of("round", devices)) >= given.rounds for devices in DEVICES):
        shutil.rmtree(study.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
