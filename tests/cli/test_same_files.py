"""Files of one worker are the same on any machine, if a proof ends the search in time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.cli_run import done
from tests.clock import SteppingClock
from tests.tiers import slow

LAYERS = {
    "stages": 2,
    "batches": 2,
    "mem_limit": 14,
    "layers": [{"forward": 1 + index % 3, "activation": 2, "kept": 1} for index in range(3)],
}
SIZE = "--stages 3 --batches 4 --mem-limit --workers 1"
OPEN = "--config layers.json --partition search"
COMMANDS = {
    "eval": ("eval zb-1p --stages 3 --batches 4", "html json csv svg png"),
    "eval, searched": (f"eval 1f1b {OPEN}", "html json"),
    "solve": (f"solve {SIZE}", "html json csv svg png"),
    "solve, searched": (f"solve {OPEN} --workers 1", "html json"),
    "compare": (
        "compare --stages 2 --batches 3 --mem-limit --workers 1 --placement linear,v",
        "html json",
    ),
    "compare, searched": (f"compare {OPEN} --workers 1", "html json"),
    "frontier": ("frontier --stages 2 --batches 2 --placement linear --workers 1", "html json"),
    "frontier, searched": ("frontier --stages 2 --batches 2 --workers 1", "html json"),
    "plan": (
        "plan --config layers.json --placement linear,v --recompute none --workers 1",
        "html json",
    ),
}
"""Command and endings of the files that it writes."""
SECONDS = 45.0
"""Duration of a command on the slow clock; the time limit is a minute."""
DIVIDED_SECONDS = 3.0
"""The same if several searches have a part of the time each."""
DIVIDED = ("frontier", "plan", *(name for name in COMMANDS if "searched" in name))


def files_at(step: float, name: str, patch: pytest.MonkeyPatch) -> tuple[dict[str, bytes], int]:
    """Files of a command if every reading of the clock takes `step` seconds, and the readings."""
    line, endings = COMMANDS[name]
    paths = [Path(f"a.{ending}") for ending in endings.split()]
    clock = SteppingClock(step)
    with patch.context() as context:
        context.setattr(time, "monotonic", clock)
        done(line, *(word for path in paths for word in ("-o", path)))
    return {path.suffix: path.read_bytes() for path in paths}, clock.readings


@pytest.mark.parametrize("name", [slow(name) if "searched" in name else name for name in COMMANDS])
def test_files_do_not_depend_on_the_clock(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layers.json").write_text(json.dumps(LAYERS))
    files, readings = files_at(0.0, name, monkeypatch)
    seconds = DIVIDED_SECONDS if name in DIVIDED else SECONDS
    slower_files, _ = files_at(seconds / readings, name, monkeypatch)
    assert [ending for ending in files if slower_files[ending] != files[ending]] == []
