"""Time of `ppopt --help` beside that of a Python that does nothing, run in turn."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.machine import heading

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "ppopt --help": [str(Path(sys.executable).with_name("ppopt")), "--help"],
}


def seconds(command: list[str]) -> float:
    """Run a command once."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="start-up time of the command line")
    parser.add_argument("--repeats", type=int, default=25, help="runs of each (default 25)")
    repeats = parser.parse_args().repeats
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    bare, ours = taken.values()
    print(heading("Start-up", "typer"))
    print(f"\nMedians of {repeats} runs in turn, smallest in brackets.\n")
    print("| command | ms |\n|---|---|")
    for name, times in taken.items():
        print(f"| `{name}` | {1000 * median(times):.0f} ({1000 * min(times):.0f}) |")
    ratio = median(b / a for a, b in zip(bare, ours, strict=True))
    print(f"\nRatio, median of the runs' own: {ratio:.1f}")


if __name__ == "__main__":
    main()
