"""The format of measurements by their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.profiles.sources import Source, detected

CONTENTS = {
    "trace.json": ('{"traceEvents": []}', Source.TORCH_PROFILER),
    "step.json": ('{"schema": 2, "pipeline": {}, "ops": []}', Source.MEASURED),
    "timeline.json": ('[{"name": "forward-compute", "args": {"mb_id": 0}}]', Source.STRAGGLER),
    "trace.csv": ("dp_rank,stage,optype,mb_id\n0,0,forward-compute,0\n", Source.STRAGGLER),
    "trace.parquet": ("PAR1", Source.STRAGGLER),
    "a.log": ("time (ms) | forward_microstep: 3.00", Source.DEEPSPEED),
    "b.log": ("time (ms) | forward-compute: 3.00", Source.MEGATRON_TIMERS),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files(name: str, tmp_path: Path) -> None:
    text, source = CONTENTS[name]
    path = tmp_path / name
    path.write_text(text)
    assert detected(path) is source


def test_folders(tmp_path: Path) -> None:
    assert detected(tmp_path) is Source.TORCH_PROFILER
    (tmp_path / "config.json").write_text("{}")
    assert detected(tmp_path) is Source.PRIMUS


def test_every_source_is_detected() -> None:
    assert {source for _, source in CONTENTS.values()} | {Source.PRIMUS} == set(Source)


def test_an_unknown_format_is_refused_with_all_formats(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("epoch 1 loss 3.5")
    with pytest.raises(InputError, match=r"no format that is read: torch-profiler .*, straggler"):
        detected(path)
