"""The tests of `ppopt.torch` under several versions of PyTorch.

python -m benchmarks.pytorch_versions run PYTHON... -o RECORD.jsonl
python -m benchmarks.pytorch_versions report RECORD.jsonl > RECORD.md

Every PYTHON is the interpreter of an environment that has a version of PyTorch, the dependencies of
the package and its extra `test`. The tests run in it with the code of this checkout. Tests that
fail run a second time, because some measure times, which a busy machine makes longer. A version
that the record has is not run again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.record import Row, add_line, head, read_lines, table

ROOT = Path(__file__).parents[1]
TESTS = ("tests/torch", "tests/end_to_end/test_pytorch_guide.py", "tests/cli/test_cli_running.py")
IGNORED = "tests/torch/test_torchtitan.py"
"""torchtitan asks for a PyTorch of its own."""


def version(python: str) -> str:
    """The version of PyTorch that an interpreter imports."""
    code = "import torch; print(torch.__version__)"
    command = [python, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(python: str, tests: Sequence[str] = TESTS) -> Row:
    """Run the tests with an interpreter: number of outcomes, and the tests that failed."""
    with tempfile.TemporaryDirectory() as folder:
        first = outcomes(_results(python, Path(folder), tests))
        if not first["failed"]:
            return {**first, "second": 0}
        second = outcomes(_results(python, Path(folder), ["--last-failed", *tests]))
        passed = first["passed"] + second["passed"]
        return {**first, "passed": passed, "failed": second["failed"], "second": second["passed"]}


def _results(python: str, folder: Path, arguments: Sequence[str]) -> str:
    """What pytest writes of a run, in the format of JUnit."""
    results = folder / "results.xml"
    options = (f"--ignore={IGNORED}", f"--junitxml={results}", "-o", f"cache_dir={folder}/cache")
    subprocess.run(
        [python, "-m", "pytest", "-q", "-m", "", *options, *arguments],
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    return results.read_text(encoding="utf-8")


def outcomes(xml: str) -> Row:
    """Outcomes in the results of a run of pytest, in the format of JUnit."""
    counts: Counter[str] = Counter()
    failed = []
    for case in ElementTree.fromstring(xml).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}")
        else:
            counts["skipped" if "skipped" in kinds else "passed"] += 1
    return {"passed": counts["passed"], "skipped": counts["skipped"], "failed": failed}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """The record as Markdown."""
    yield "# PyTorch, every minor version\n"
    yield f"`{' '.join(TESTS)}`, slow tests included, without `{IGNORED}`.\n"
    yield from table(
        ("PyTorch", "passed", "of these only at the second try", "skipped", "failed", "commit"),
        (
            (
                row["torch"],
                row["passed"],
                row["second"],
                row["skipped"],
                ", ".join(row["failed"]) or 0,
                row["commit"][:8],
            )
            for row in rows
        ),
    )


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("pythons", nargs="+", metavar="PYTHON")
    runs.add_argument("-o", dest="output", type=Path, required=True)
    commands.add_parser("report").add_argument("record", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "report":
        print("\n".join(report(read_lines(arguments.record))))
        return
    known = {row["torch"] for row in read_lines(arguments.output)}
    for python in arguments.pythons:
        torch = version(python)
        if torch not in known:
            add_line(arguments.output, {"torch": torch, **run(python), **head()})


if __name__ == "__main__":
    main()
