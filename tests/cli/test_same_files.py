"""Files that a proof ends are the same at any speed of the machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.cli.cli_run import done
from tests.clock import stepping_clock
from tests.factories.configs import SMALL

LAYERS = {
    "stages": 2,
    "batches": 3,
    "mem_limit": 14,
    "layers": [{"forward": 1 + index % 3, "activation": 2, "kept": 1} for index in range(4)],
}
SIZE = "--stages 3 --batches 4 --mem-limit --workers 1"
COMMANDS = {
    "eval": ("eval zb-1p --stages 3 --batches 4", "html json csv svg png"),
    "eval, searched": ("eval 1f1b --config layers.json --partition search", "html json"),
    "solve": (f"solve {SIZE}", "html json csv svg png"),
    "solve, searched": ("solve --config layers.json --partition search --workers 1", "html json"),
    "compare": (f"compare {SIZE} --placement linear,v", "html json"),
    "compare, searched": ("compare --config layers.json --partition search --workers 1", "html"),
    "frontier": (f"frontier {SIZE}", "html json"),
    "plan": (
        "plan --config layers.json --placement linear,v --recompute none --workers 1",
        "html json",
    ),
    "plan --from": (
        "plan --from config.json --gpu h100 --gpus 4 --global-batch 8 --sequence 1024 "
        "--microbatch 1 --tensor 1 --placement linear,v --workers 1",
        "html json",
    ),
}


def files_of(name: str, folder: Path) -> dict[str, bytes]:
    """Files that a command writes in a folder."""
    line, endings = COMMANDS[name]
    paths = [folder / f"a.{ending}" for ending in endings.split()]
    done(line, *(word for path in paths for word in ("-o", path)))
    return {path.suffix: path.read_bytes() for path in paths}


@pytest.mark.parametrize("name", COMMANDS)
def test_files_do_not_depend_on_the_clock(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clock stands still; on the other every reading takes 5 ms of a minute."""
    monkeypatch.chdir(tmp_path)
    Path("layers.json").write_text(json.dumps(LAYERS))
    Path("config.json").write_text(json.dumps(SMALL))
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 100.0)
        stopped = files_of(name, tmp_path)
    with monkeypatch.context() as patch:
        stepping_clock(patch, 60, 12_000)
        assert files_of(name, tmp_path) == stopped
