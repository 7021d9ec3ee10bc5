"""The registry of readers: one file per format, detected by the content of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.profiles import readers
from ppopt.studies.headline import RUNTIME_NAMES
from tests.cli.cli_run import run

CONTENTS = {
    "trace.json": ('{"traceEvents": []}', "torch-profiler"),
    "step.json": ('{"schema": 2, "pipeline": {}, "ops": []}', "measured"),
    "timeline.json": ('[{"name": "forward-compute", "args": {"mb_id": 0}}]', "straggler"),
    "trace.csv": ("dp_rank,stage,optype,mb_id\n0,0,forward-compute,0\n", "straggler"),
    "trace.parquet": ("PAR1", "straggler"),
    "a.log": ("time (ms) | forward_microstep: 3.00", "deepspeed"),
    "b.log": ("time (ms) | forward-compute: 3.00", "megatron-timers"),
    "c.log": ('"name": "megatron.microbatch.forward"', "megatron-spans"),
    "d.csv": ("Start (ns),End (ns),Name,PID,RangeStack\n", "nsys"),
    "d.sqlite": ("SQLite format 3", "nsys"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files(name: str, tmp_path: Path) -> None:
    text, source = CONTENTS[name]
    path = tmp_path / name
    path.write_text(text)
    assert readers.detected(path) == source


def test_folders(tmp_path: Path) -> None:
    assert readers.detected(tmp_path) == "torch-profiler"
    (tmp_path / "rank0.sqlite").touch()
    assert readers.detected(tmp_path) == "nsys"
    (tmp_path / "rank0.sqlite").unlink()
    (tmp_path / "config.json").write_text("{}")
    assert readers.detected(tmp_path) == "primus"


def test_every_reader_is_detected_and_has_a_runtime() -> None:
    assert {source for _, source in CONTENTS.values()} | {"primus"} == set(readers.names())
    assert {readers.reader(name).runtime for name in readers.names()} <= set(RUNTIME_NAMES)


def test_an_unknown_format_is_refused_with_all_formats(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("epoch 1 loss 3.5")
    with pytest.raises(InputError) as caught:
        readers.detected(path)
    assert all(f"{name} (" in str(caught.value) for name in readers.names())
    layers = tmp_path / "layers.csv"
    layers.write_text("name,forward_ms\nblock,3\n")
    with pytest.raises(InputError, match=r"a table of layer times is a config: --config$"):
        readers.detected(layers)
    ran = run("profile --from nsight", path, "-o", tmp_path / "a.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "from: 'nsight' is unknown; formats that are read: deepspeed (" in ran.err
