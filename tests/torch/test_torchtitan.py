"""torchtitan's own functions cut a model, place its stages and run the order that was exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packages import needed

needed("torch")
needed("torchtitan")

from ppopt.errors import RunError
from ppopt.torch.world import World
from tests.cli.cli_run import done
from tests.torch import titan_jobs
from tests.torch.torch_jobs import RANKS

pytestmark = pytest.mark.slow

LAYERS = 8
MODEL = f"""
layers:
  - {{role: embedding, forward: 1}}
  - {{forward: 2, count: {LAYERS}}}
  - {{role: head, forward: 1}}
"""


def exported(folder: Path, options: str) -> Path:
    """Solve a model in layers, and export the schedule for torchtitan."""
    (folder / "model.yaml").write_text(MODEL)
    best, keys = folder / "best.json", folder / "keys.toml"
    done(f"solve --batches 8 --time-limit 1 --quiet {options} --config", folder / "model.yaml",
         "-o", best)  # fmt: skip
    done("export --to torchtitan", best, "-o", keys)
    return keys


@pytest.mark.parametrize(
    "options",
    [
        "--stages 4",
        "--stages 4 --placement interleaved",
        "--stages 4 --placement v",
        "--placement 0,1,1,0",
        "--stages 4 --placement v --backward split",
    ],
)
def test_gradients_are_exact(world: World, tmp_path: Path, options: str) -> None:
    keys = exported(tmp_path, options)
    differences = world.run(titan_jobs.trained, [(keys, LAYERS, None)] * RANKS)
    assert max(differences) <= 1e-12


@pytest.mark.parametrize(
    ("options", "ranks"), [("--placement 0,1,1,0", 2), ("--stages 4 --placement v", 4)]
)
def test_the_wrong_name_does_not_run(tmp_path: Path, options: str, ranks: int) -> None:
    """A V under a name that stands for a loop: stages sit elsewhere than the order says.

    Seen: two ranks read metadata of each other that were meant for another stage, and fail at once,
    out of memory; four wait for each other.
    """
    keys = exported(tmp_path, options)
    with World(ranks) as world:
        assert max(world.run(titan_jobs.trained, [(keys, LAYERS, None)] * ranks)) <= 1e-12
        world.patience = 15
        with pytest.raises(RunError, match=r"has not answered in 15 s|Error"):
            world.run(titan_jobs.trained, [(keys, LAYERS, "Interleaved1F1B")] * ranks)
