"""With one worker, results that end by proof do not depend on the speed of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_run import done
from tests.clock import SteppingClock
from tests.tiers import slow

LAYERS = """\
layers:
  - {forward: 1, activation: 1, role: embedding, static: 1}
  - {forward: 3, activation: 2, count: 6, static: 1}
  - {forward: 4, activation: 1, role: head, static: 2}
"""
COMMANDS = {
    "plan": "plan --stages 2 --batches 2 --placement v --chunks 2 --mem-limit 20",
    "compare": "compare --stages 2 --batches 3 --mem-limit 20 --partition search "
    "--strategies 1f1b,zb-1p",
    "frontier": "frontier --stages 2 --batches 2",
}
"""Commands that end by proof."""
SPEEDS = 1e-6, 0.03
"""Seconds from one reading of the clock to the next: the slower run takes a minute or more."""
MEASURED = "solve_seconds", "seconds"
"""Keys of measured time."""


def without_times(value: Any) -> Any:
    """JSON without the keys of measured time."""
    if isinstance(value, dict):
        return {key: without_times(entry) for key, entry in value.items() if key not in MEASURED}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", [slow("plan"), "compare", "frontier"])
def test_json_and_page_are_those_of_any_speed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of the time limit would end parts of the slow run earlier."""
    (tmp_path / "layers.yaml").write_text(LAYERS, encoding="utf-8")
    runs = []
    for speed in SPEEDS:
        clock = SteppingClock(speed)
        monkeypatch.setattr("time.monotonic", clock)
        line = f"{COMMANDS[command]} --workers 1 --time-limit 600 --json --config"
        output = done(line, tmp_path / "layers.yaml", "-o", tmp_path / "page.html").json
        assert clock.readings * speed < 600
        runs.append((without_times(output), (tmp_path / "page.html").read_text(encoding="utf-8")))
    (quick, quick_page), (slow, slow_page) = runs
    assert quick["status"] == "optimal"
    assert slow == quick
    assert slow_page == quick_page
