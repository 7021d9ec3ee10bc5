"""Published tables rebuilt: what the papers print, and the same figures of our schedules.

python -m benchmarks.reproduce

Exits with 1 if a figure differs that should not. A published figure that follows a formula
instead of a simulation is printed with both, and only the formula must agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

from benchmarks.record import heading
from ppopt import Objective, Pipeline, Schedule, evaluate
from ppopt.formats.config import pipeline_of
from ppopt.formats.models import model_names, read_settings

SPAN = Objective.DEVICE_SPAN
COLUMNS = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
STRATEGIES = ("1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
CHUNKS = {"1.5b": 3, "6.2b": 4, "14.6b": 3, "28.3b": 2}
"""Chunks per device of 1F1B-I, one layer each (arXiv 2401.10241, table 3)."""
TABLE_5 = {
    "zb-1.5b-m24": ("0.2431", "0.1055", "0.1585", "0.1083", "0.1585", "0.0433"),
    "zb-1.5b-m32": ("0.1985", "0.0818", "0.1242", "0.0837", "0.1242", "0.0039"),
    "zb-1.5b-m64": ("0.1240", "0.0443", "0.0674", "0.0444", "0.0674", "0.0026"),
}
"""Published bubble rates (arXiv 2401.10241, table 5), as far as they were at hand."""
NOT_AT_HAND = "published value not at hand"
AT_MOST = "at most "
"""Begins a published limit, which a figure may stay below."""


@dataclass(frozen=True)
class Line:
    """A published figure, or row of figures, and ours."""

    what: str
    published: str
    """Empty: not at hand."""
    ours: str
    note: str = ""
    """Why they differ, if they may."""

    @property
    def wrong(self) -> bool:
        """Whether they differ without a reason; of a limit, whether it is passed."""
        if not self.published or self.note:
            return False
        if self.published.startswith(AT_MOST):
            return Fraction(self.ours) > Fraction(self.published.removeprefix(AT_MOST))
        return self.published != self.ours


@dataclass(frozen=True)
class Table:
    """A table of a paper, or the consequences of a formula."""

    title: str
    source: str
    lines: tuple[Line, ...]

    def text(self) -> str:
        """Write it as Markdown."""
        rows = [
            f"| {line.what} | {line.published or NOT_AT_HAND} | {line.ours} | {_verdict(line)} |"
            for line in self.lines
        ]
        head = "| | published | ours | |\n|---|---|---|---|"
        return "\n".join((f"## {self.title}\n\n{self.source}\n", head, *rows))


def _verdict(line: Line) -> str:
    if line.wrong:
        return "DIFFERS"
    agrees = "kept" if line.published.startswith(AT_MOST) else "equal"
    return line.note or (agrees if line.published else "")


def table_5() -> Table:
    """Bubble rates of the device span on the twelve measured pipelines."""
    lines = []
    for model, pipeline in _measured():
        published = TABLE_5.get(model, ("",) * len(COLUMNS))
        for column, strategy, figure in zip(COLUMNS, STRATEGIES, published, strict=True):
            lines.append(_rate(pipeline, model, column, strategy, figure))
    return Table(
        "Zero Bubble, table 5: bubble rates",
        "arXiv 2401.10241; costs of table 9; rate = (cost - m(F + B + W)) / cost, cost the largest "
        "device span. The published 1F1B-I rates follow (p-1)(F+B+W)/v + c(2p(v-1)+p-2); in a "
        "simulation the delays add up to c(2p(v-1)+2p-2).",
        tuple(lines),
    )


def _measured() -> Iterator[tuple[str, Pipeline]]:
    """The twelve measured pipelines of the paper by name."""
    for model in model_names():
        if model.startswith("zb-"):
            yield model, pipeline_of(read_settings(model))


def _chunks_of(model: str, strategy: str) -> int | None:
    return CHUNKS[model.split("-")[1]] if strategy == "interleaved" else None


def table_5_memory() -> Table:
    """Largest peaks of the same schedules, by the formulas of table 2 and by their limits."""
    lines = []
    for model, pipeline in _measured():
        p = pipeline.num_devices
        v = _chunks_of(model, "interleaved") or 1
        activations = {
            "1f1b": f"{p}",
            "interleaved": f"{((v - 1) * p + 2 * (p - 1) + 1) / v:.5g}",
            "zb-h1": f"{p}",
            "zb-h2": f"{2 * p - 1}",
            "zb-1p": f"{AT_MOST}{p}",
            "zb-2p": f"{AT_MOST}{2 * p}",
        }
        for column, strategy in zip(COLUMNS, STRATEGIES, strict=True):
            schedule = evaluate(
                replace(pipeline, chunks=_chunks_of(model, strategy)), strategy, SPAN
            )
            peak = schedule.pipeline.ticks.memory(max(schedule.metrics.peak_memory_ticks))
            ours = f"{float(peak / pipeline.activation[0]):.5g}"
            lines.append(Line(f"{model} {column}", activations[strategy], ours))
    return Table(
        "Zero Bubble, table 5: largest peak of a device, in activations of one microbatch",
        "arXiv 2401.10241, table 2 for 1F1B, ZB-H1 and ZB-H2, section 3.1 for the limits of ZB-1p "
        "and ZB-2p; arXiv 2104.04473 for 1F1B-I, ((v-1)p + 2(p-1) + 1)/v. The papers' measured "
        "gigabytes hold weights and more besides, which the pipelines here leave out.",
        tuple(lines),
    )


def _rate(pipeline: Pipeline, model: str, column: str, strategy: str, published: str) -> Line:
    chunks = _chunks_of(model, strategy)
    schedule = evaluate(replace(pipeline, chunks=chunks), strategy, SPAN)
    ours = f"{float(schedule.metrics.bubble_rate(SPAN)):.4f}"
    note = ""
    if chunks is not None:
        formula = _interleaved_formula(pipeline, chunks)
        agrees = published in ("", formula)
        note = f"formula {formula}" if agrees else ""
    return Line(f"{model} {column}", published, ours, note)


def _interleaved_formula(pipeline: Pipeline, chunks: int) -> str:
    """Published rate of 1F1B-I: the delays of fewer links than a simulation passes."""
    p, m, c = pipeline.num_devices, pipeline.batches, pipeline.p2p
    work = pipeline.forward[0] + pipeline.backward[0]
    idle = Fraction(p - 1, chunks) * work + c * (2 * p * (chunks - 1) + p - 2)
    return f"{float(idle / (idle + m * work)):.4f}"


def table_2() -> Table:
    """Memory of every worker and idle time of the published schedules, by formula."""
    lines = []
    workers = range(1, 9)
    p, m, activation, weight_memory, f, b, w = len(workers), 24, 3537, 1296, 10, 9, 7
    memory: dict[str, Callable[[int], int]] = {
        "1f1b": lambda i: (p - i + 1) * activation,
        "zb-h1": lambda i: (p - i + 1) * activation + (i - 1) * weight_memory,
        "zb-h2": lambda i: (2 * p - 2 * i + 1) * activation + (2 * i - 2) * weight_memory,
    }
    idle = {"1f1b": f + b + w, "zb-h1": f + b - w, "zb-h2": f + b - 2 * w}
    pipeline = Pipeline(
        stages=p,
        batches=m,
        forward=f,
        backward_input=b,
        weight=w,
        activation=activation,
        memory_b=weight_memory - activation,
    )
    for name, of_worker in memory.items():
        schedule = evaluate(pipeline, name, SPAN)
        lines.append(
            Line(f"{name} memory of workers 1..8", _row(map(of_worker, workers)), _peaks(schedule))
        )
        lines.append(Line(f"{name} idle", str((p - 1) * idle[name]), str(_idle(schedule))))
    return Table(
        "Zero Bubble, table 2: memory and bubbles of the hand schedules",
        "arXiv 2401.10241; p = 8, m = 24, F/B/W = 10/9/7, no delay, M_B = 3537 and M_W = 1296 MiB "
        "(the 1.5B model).",
        tuple(lines),
    )


def _row(values: Iterator[int] | Sequence[int]) -> str:
    return " ".join(map(str, values))


def _peaks(schedule: Schedule) -> str:
    unit = schedule.pipeline.ticks.memory
    return _row([int(unit(peak)) for peak in schedule.metrics.peak_memory_ticks])


def _idle(schedule: Schedule) -> Fraction:
    """Device span less the work of the busiest device."""
    figures = schedule.metrics
    return schedule.pipeline.ticks.time(figures.device_span_ticks - max(figures.busy_ticks))


def v_family() -> Table:
    """Peaks of V schedules, in chunks, p = 2..12."""
    sizes = range(2, 13)
    formulas: dict[str, tuple[str, Callable[[int], int]]] = {
        "v-min": ("2 floor((p + 4) / 3)", lambda p: 2 * ((p + 4) // 3)),
        "v-half": ("2 floor((p + 2) / 2)", lambda p: 2 * ((p + 2) // 2)),
        "zbv": ("2p", lambda p: 2 * p),
    }
    lines = [
        Line(
            f"{name}: {label}",
            _row([formula(p) for p in sizes]),
            _row([int(max(_chunks(p, name).metrics.peak_memory_ticks)) for p in sizes]),
        )
        for name, (label, formula) in formulas.items()
    ]
    idle = _row([int(_idle(_chunks(p, "zbv"))) for p in sizes])
    lines.append(Line("zbv: idle, F = B = W", _row([0 for _ in sizes]), idle))
    return Table(
        "Controllable Memory: peaks of the V schedules, in chunks, p = 2..12",
        "arXiv 2405.15362, section 3; m = 3p, F = B = W, all freed at W.",
        tuple(lines),
    )


def _chunks(devices: int, name: str) -> Schedule:
    """A schedule of two chunks per device, each of one unit of time and memory."""
    pipeline = Pipeline(
        stages=devices,
        batches=3 * devices,
        forward=2,
        backward_input=2,
        weight=2,
        activation=2,
    )
    return evaluate(pipeline, name, SPAN)


def megatron() -> Table:
    """Idle time and memory of GPipe, 1F1B and interleaved 1F1B."""
    lines = []
    for p, m in ((4, 8), (8, 24), (16, 512)):
        pipeline = Pipeline(stages=p, batches=m)
        for name in ("gpipe", "1f1b"):
            makespan = evaluate(pipeline, name).metrics.makespan_ticks
            label = f"{name} {p} x {m}: 3(m + p - 1)"
            lines.append(Line(label, str(3 * (m + p - 1)), str(makespan)))
    for p, v in product((4, 8), (2, 3)):
        pipeline = Pipeline(
            stages=p, batches=3 * p, chunks=v, forward=v, backward=2 * v, activation=v
        )
        schedule = evaluate(pipeline, "interleaved")
        expected = 3 * (p - 1)
        lines.append(
            Line(
                f"interleaved p={p} v={v}: (p-1)(F+BW) of a chunk",
                str(expected),
                str(_idle(schedule)),
            )
        )
        live_chunks = [(v - 1) * p + 2 * (p - rank - 1) + 1 for rank in range(p)]
        lines.append(Line("chunks held, ranks 0..p-1", _row(live_chunks), _peaks(schedule)))
    return Table(
        "Megatron-LM: idle time and memory",
        "arXiv 2104.04473, section 2.2; F = 1, BW = 2.",
        tuple(lines),
    )


def dualpipe() -> Table:
    """Totals, idle times and memory of DualPipe and DualPipe-V."""
    lines = []
    for p, m, pair, total, idle in (
        (8, 20, 3, 66, [6] * 8),
        (8, 20, 2, 52, [1, 2, 3, 3, 3, 3, 2, 1]),
        (4, 8, 3, 26, [2] * 4),
    ):
        schedule = evaluate(_overlapped(p, m, pair), "dualpipe")
        name = f"dualpipe p={p} m={m}, F and BW as one {pair}"
        waits = [schedule.metrics.makespan_ticks - busy for busy in schedule.metrics.busy_ticks]
        lines.append(Line(f"{name}: makespan", str(total), str(schedule.metrics.makespan_ticks)))
        lines.append(Line("idle time of every device", _row(idle), _row(waits)))
    for name, ends in (("dualpipe", 1), ("dualpipe-v", 2)):
        sizes = (4, 8) if ends == 1 else (2, 4)
        schedules = [evaluate(_overlapped(p, 4 * p, 3 * ends, ends), name) for p in sizes]
        # P = devices, or twice as many stages: (P/2 - 1)(FB + BW - 3W), P + 1 activations
        formula = [(p * ends // 2 - 1) * 2 for p in sizes]
        waits = [
            schedule.metrics.makespan_ticks - min(schedule.metrics.busy_ticks)
            for schedule in schedules
        ]
        lines.append(
            Line(f"{name}: (P/2-1)(FB+BW-3W), p = {_row(sizes)}", _row(formula), _row(waits))
        )
    return Table(
        "DualPipe: totals and idle time",
        "github.com/deepseek-ai/DualPipe, its order run, and its README; F = B = W = 1.",
        tuple(lines),
    )


def _overlapped(devices: int, batches: int, pair: int, chunks: int = 1) -> Pipeline:
    """F, B and W of one per stage; an F and a BW as one take `pair` per device's share."""
    return Pipeline(
        stages=devices,
        batches=batches,
        forward=chunks,
        backward_input=chunks,
        weight=chunks,
        overlap=pair,
    )


def tables() -> Iterator[Table]:
    """All tables, one after another."""
    yield table_5()
    yield table_5_memory()
    yield table_2()
    yield v_family()
    yield megatron()
    yield dualpipe()


def main() -> None:
    """Print every table; exit with 1 if a figure differs without a reason."""
    print(heading("Published figures rebuilt", "numpy"), end="\n\n")
    wrong = checked = 0
    for table in tables():
        print(table.text(), end="\n\n", flush=True)
        wrong += sum(line.wrong for line in table.lines)
        checked += sum(bool(line.published) for line in table.lines)
    print(f"{checked} published figures or rows of figures, {wrong} differ without a reason")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
