"""Commands that a signal ends at a random moment exit with what is known by then."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cli.cli_run import HARD, hears, process
from tests.clock import HANGS, wait_until

CUT = "--config layers.yaml --partition search"
LAYERS = """
{stages: 4, batches: 16, p2p_time: 0.2, mem_limit: 24, layers: [
  {forward: 1.1, backward: 2.3, weight: 1, activation: 1.1, kept: 0.1, static: 1, count: 17},
  {forward: 3, backward: 6, weight: 2.8, activation: 2, static: 1}]}
"""
COMMANDS = {
    "solve": f"solve {HARD}",
    "solve, partition": f"solve {CUT} --recompute search",
    "solve, placement": "solve --stages 4 --chunks 2 --batches 16 --placement search --mem-limit 9",
    "plan": "plan --config layers.yaml",
    "compare, partition": f"compare {CUT}",
    "frontier": f"frontier {HARD}",
    "eval, partition": f"eval 1f1b {CUT}",
    "sweep": f"sweep {HARD.replace('--batches 64 ', '')} batches=24,32,40 strategy=1f1b,searched",
}
MOMENTS = 2
AT_ONCE = 2
"""Commands that run at a time; sweeps share a storage, and so run one by one."""
LONGEST = 0.5
"""Seconds after which the signal comes, at most; later if nothing is known by then."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_known_is_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 with something known, of one moment at least; 4 with nothing at all."""
    monkeypatch.chdir(tmp_path)
    Path("layers.yaml").write_text(LAYERS)
    rng, line = Random(name), f"{COMMANDS[name]} --time-limit 600 --json"
    moments = [LONGEST, *(rng.uniform(0, LONGEST) for _ in range(MOMENTS - 1))]
    numbers = [rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP)) for _ in moments]
    with ThreadPoolExecutor(1 if name == "sweep" else AT_ONCE) as pool:
        ended = list(pool.map(ended_by, numbers, moments, [line] * MOMENTS))
    while not any(known(output) for _, output in ended):
        moments.append(2 * max(moments))
        ended.append(ended_by(signal.SIGINT, moments[-1], line))
    for after, (code, output) in zip(moments, ended, strict=True):
        assert code in (0, 4), (code, after)
        assert known(output) == (code == 0), (after, output)


def ended_by(signal_number: int, after: float, line: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a command that a signal ends so many seconds after it has begun."""
    ran = process(line)
    wait_until(lambda: hears(ran.pid))
    time.sleep(after)
    ran.send_signal(signal_number)
    out, errors = ran.communicate(timeout=HANGS)
    assert out, (ran.returncode, after, errors)
    return ran.returncode, json.loads(out)


def known(output: dict[str, Any]) -> bool:
    """Whether the JSON of a command has a schedule, a point, or a row that is done."""
    rows = output.get("rows", [])
    return (
        output.get("value") is not None
        or bool(output.get("points"))
        or bool(output.get("done"))
        or any(row.get("value") is not None and row.get("fits_limit", True) for row in rows)
    )
