"""Renew what the documents show: the picture, the tables, the output of commands.

    python docs/scripts/make.py [GUIDE...]

Everything comes from real runs of the `ppopt` installed with this Python. In README.md and every
guide of this folder each ```console block is run, its commands in order, all blocks of a document
in one empty folder. Above a block, `<!-- slow -->` says that tests do not run it again, and
`<!-- file: NAME -->` that the block is a file of that folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

import ppopt
from ppopt.problem.layer_settings import LAYER_SETTINGS
from ppopt.problem.setting import Setting
from ppopt.problem.settings import SETTINGS
from ppopt.report.svg import svg
from ppopt.strategies import registry

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MODELS = ROOT / "models" / "README.md"
STRATEGIES = ROOT / "docs" / "strategies.md"
_PAIRS = ppopt.Pipeline(stages=4, batches=4, placement=(0, 1, 1, 0), forward=4, backward=8)
_FROZEN = ppopt.Model(
    [
        ppopt.Layer(name="encoder", count=12, forward=2, activation=3, frozen=True),
        ppopt.Layer(name="projector", forward=1, activation=1),
        ppopt.Layer(name="block", count=11, forward=2, activation=2),
        ppopt.Layer(name="head", role="head", forward=3, activation=1),
    ]
)
COMPARISON = ROOT / "docs" / "pictures" / "llama-3.1-8b.svg"
"""The picture that shows 1F1B above the optimum."""
LEGEND_HEIGHT = 24
"""Height in pixels of a legend of one line, below the times of a picture."""
PICTURES = {
    ROOT / "docs" / "pictures" / "solve-4x8.svg": ppopt.Pipeline(
        stages=4, batches=8, mem_limit="1f1b"
    ),
    COMPARISON: replace(ppopt.read_pipeline("llama-3.1-8b"), batches=12, mem_limit="1f1b"),
    ROOT / "docs" / "pictures" / "pairs-stages.svg": replace(_PAIRS, overlap=[12, 12, 8, 8]),
    ROOT / "docs" / "pictures" / "pairs-matrix.svg": replace(
        _PAIRS, overlap=[[12, 12, 8, 8], [12, 12, 8, 8], [10, 10, 8, 8], [10, 10, 8, 8]]
    ),
    ROOT / "docs" / "pictures" / "offload-3.svg": ppopt.Pipeline(
        stages=4,
        batches=6,
        forward=1,
        backward=2,
        offload_memory=[1, 1, 0, 0],
        offload_time=[2, 2, 0, 0],
        mem_limit=3,
    ),
    ROOT / "docs" / "pictures" / "frozen-layers.svg": _FROZEN.pipeline(
        devices=4, batches=8, partition=(13, 4, 4, 4)
    ),
}
"""Picture -> the pipeline whose optimum it shows. Its schedule is a JSON file next to it."""
MEASURED = ("tutorial.md", "pytorch.md")
"""Documents whose commands measure: tests of their own run them."""
SLOW = "<!-- slow -->"
COLUMNS = 80
_BLOCK = re.compile(r"(?P<mark><!-- slow -->\n)?```console\n(?P<body>.*?)```\n", re.DOTALL)
_FILE = re.compile(r"<!-- file: (?P<name>[\w.-]+) -->\n```\w+\n(?P<text>.*?)```\n", re.DOTALL)
_TABLE = re.compile(
    r"(<!-- (?P<name>strategies|settings|layers) -->\n\n)(?P<rows>.*?)(?=\n<!-- end -->)",
    re.DOTALL,
)
_TIME = re.compile(r"^(time taken +)[\d.e-]+ s$", re.MULTILINE)
_AT_MOST = re.compile(r"(% higher limit .* at most )[\d.]+ %")
"""How far the bound of a plan with more memory is raised depends on the time that is left."""
_OUTSIDE = re.compile(r"(not searched, but faster: .+\), )[\d.]+ %")
"""How good a partition a strategy outside a plan's space gets depends on the time that is left."""
_PEAK = re.compile(r"^optimum +searched, .+ % +([\d,]+) ", re.MULTILINE)
"""Optimal schedules differ in peak memory; which of them a plan has depends on the time left."""
_PEAK_DEVICE = re.compile(r"(peak \.\.\. MiB on device )\d+")
_LESS_MEMORY = re.compile(r"(runs at this speed in .+; below )[\d,]+")
_RECHECKED = re.compile(r"(bound .* confirmed: no schedule below .+? under ).+$", re.MULTILINE)
"""Which devices a search's certificate names depends on which of its workers proves first."""


@dataclass
class Command:
    """A command line and what it prints, stdout and stderr together."""

    line: str
    output: str = ""


@dataclass
class Block:
    """A console block of a document: commands with their outputs."""

    slow: bool
    commands: list[Command] = field(default_factory=list)

    def text(self) -> str:
        """Write the block as it stands in a document."""
        session = "".join(f"$ {command.line}\n{command.output}" for command in self.commands)
        return f"{SLOW}\n" * self.slow + f"```console\n{session}```\n"


def guides() -> list[Path]:
    """Documents whose commands stand with their outputs."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [
        path
        for path in (README, *pages)
        if path.name not in MEASURED
        and "_site" not in path.parts
        and "```console" in path.read_text(encoding="utf-8")
    ]


def solve(pipeline: ppopt.Pipeline) -> ppopt.Schedule:
    """Search the schedule of a picture; one worker, so that it repeats itself."""
    result = ppopt.solve(pipeline, workers=1, time_limit=600)
    assert result.schedule is not None
    assert result.status is ppopt.Status.OPTIMAL
    return result.schedule


def strategies_table() -> str:
    """List every strategy as a row of Markdown."""
    rows = ["| strategy | rule | backward | source |", "|---|---|---|---|"]
    for name, strategy in registry().items():
        backward = "whole" if strategy.fused else "split"
        rows.append(f"| `{name}` | {strategy.summary} | {backward} | {strategy.source} |")
    return "\n".join(rows) + "\n"


def settings_table() -> str:
    """List every setting of a config file as a row of Markdown."""
    return _table_of(SETTINGS, ("stages", "batches"))


def layers_table() -> str:
    """List every setting of a layer as a row of Markdown."""
    return _table_of(LAYER_SETTINGS)


def _table_of(settings: Iterable[Setting], without_default: Collection[str] = ()) -> str:
    rows = ["| key | meaning | default | also read as |", "|---|---|---|---|"]
    for setting in settings:
        required = setting.field in without_default
        default = "required" if required else "" if setting.default is None else setting.default
        names = ", ".join(f"`{name}`" for name in setting.names[1:])
        meaning = setting.meaning.replace("|", "\\|")
        rows.append(f"| `{setting.name}` | {meaning} | {default} | {names} |")
    return "\n".join(rows) + "\n"


def tables_of(document: str) -> dict[str, str]:
    """Return the tables of a document, each between `<!-- NAME -->` and `<!-- end -->`."""
    return {table["name"]: table["rows"] for table in _TABLE.finditer(document)}


def _with_tables(document: str) -> str:
    tables = {"strategies": strategies_table, "settings": settings_table, "layers": layers_table}
    return _TABLE.sub(lambda match: match[1] + tables[match["name"]](), document)


def write_files(document: str, folder: Path) -> None:
    """Write the files that a document shows into a folder."""
    for match in _FILE.finditer(document):
        (folder / match["name"]).write_text(match["text"], encoding="utf-8")


def blocks(document: str) -> list[Block]:
    """Read the console blocks of a document."""
    return [_block(match) for match in _BLOCK.finditer(document)]


def _block(match: re.Match[str]) -> Block:
    block = Block(slow=match["mark"] is not None)
    for line in match["body"].splitlines(keepends=True):
        if line.startswith("$ "):
            block.commands.append(Command(line[2:].strip()))
        else:
            block.commands[-1].output += line
    return block


def run(line: str, folder: Path) -> str:
    """Run a command line by bash in a folder; lines of the output end without blanks."""
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**environment, "PATH": places, "COLUMNS": str(COLUMNS), "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return "".join(f"{row.rstrip()}\n" for row in done.stdout.splitlines())


def without_times(output: str) -> str:
    """Replace what differs from run to run."""
    output = _TIME.sub(r"\1... s", output)
    output = _AT_MOST.sub(r"\1... %", output)
    output = _OUTSIDE.sub(r"\1... %", output)
    output = _RECHECKED.sub(r"\1...", output)
    return _without_peak(output)


def _without_peak(output: str) -> str:
    """Replace the peak memory of a plan's optimum, its device and the bound on less memory."""
    optimum = _PEAK.search(output)
    if optimum is None:
        return output
    output = _PEAK_DEVICE.sub(r"\1...", output.replace(optimum[1], "..."))
    return _LESS_MEMORY.sub(r"\1...", output)


def renewed(document: str) -> str:
    """Return a document with its table and every output renewed; equal outputs keep their times."""

    def renew(match: re.Match[str]) -> str:
        block = _block(match)
        for command in block.commands:
            print(f"$ {command.line}", flush=True)
            output = run(command.line, Path(folder))
            if without_times(output) != without_times(command.output):
                command.output = output
        return block.text()

    document = _with_tables(document)
    with tempfile.TemporaryDirectory() as folder:
        write_files(document, Path(folder))
        return _BLOCK.sub(renew, document)


def main() -> None:
    """Renew the guides that are named; without a name all guides, the pictures and the tables."""
    if not sys.argv[1:]:
        renew_pictures()
    for guide in map(Path, sys.argv[1:]) if sys.argv[1:] else guides():
        guide.write_text(renewed(guide.read_text(encoding="utf-8")), encoding="utf-8")
    for document in (MODELS, STRATEGIES):
        document.write_text(_with_tables(document.read_text(encoding="utf-8")), encoding="utf-8")


def renew_pictures() -> None:
    """Search the schedules of the pictures again and draw them."""
    for picture, pipeline in PICTURES.items():
        schedule = solve(pipeline)
        schedule.to_json(picture.with_suffix(".json"))
        picture.write_text(draw(picture, schedule), encoding="utf-8")


def draw(picture: Path, schedule: ppopt.Schedule) -> str:
    """Draw the schedule of a picture; in `COMPARISON`, 1F1B above it on the same time scale."""
    if picture != COMPARISON:
        return svg(schedule)
    baseline = ppopt.evaluate(PICTURES[picture], "1f1b")
    gain = float(100 * (baseline.makespan / schedule.makespan - 1))
    width_ticks = baseline.metrics.makespan_ticks
    upper = svg(baseline, heading=f"1F1B: {_figures(baseline)}", width_ticks=width_ticks)
    lower = svg(
        schedule,
        heading=f"optimum: {_figures(schedule)}, {gain:.1f} % more throughput",
        width_ticks=width_ticks,
    )
    return stack(upper, lower)


def _figures(schedule: ppopt.Schedule) -> str:
    return f"{schedule.makespan:,.0f} ms, peak memory {max(schedule.peak_memory):,.0f} MiB"


def stack(upper: str, lower: str) -> str:
    """Put one picture above another of the same width; the legend of the lower one is for both."""
    ElementTree.register_namespace("", "http://www.w3.org/2000/svg")
    charts = [ElementTree.fromstring(text) for text in (upper, lower)]
    width = charts[0].attrib["width"]
    heights = [int(charts[0].attrib["height"]) - LEGEND_HEIGHT, int(charts[1].attrib["height"])]
    whole = ElementTree.Element(charts[0].tag, dict(charts[0].attrib))
    whole.set("height", str(sum(heights)))
    whole.set("viewBox", f"0 0 {width} {sum(heights)}")
    whole.set("aria-label", "; ".join(chart.attrib["aria-label"] for chart in charts))
    for chart, y, height in zip(charts, (0, heights[0]), heights, strict=True):
        for name in ("style", "role", "aria-label"):
            del chart.attrib[name]
        chart.set("y", str(y))
        chart.set("height", str(height))
        chart.set("viewBox", f"0 0 {width} {height}")
        whole.append(chart)
    return ElementTree.tostring(whole, encoding="unicode") + "\n"


if __name__ == "__main__":
    main()
