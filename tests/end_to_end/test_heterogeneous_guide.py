"""docs/heterogeneous.md: every command and its output, from top to bottom in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.test_readme import make

GUIDE = make.HETEROGENEOUS.read_text(encoding="utf-8")


def test_the_guide_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = make.blocks(GUIDE)
    assert len(blocks) == GUIDE.count("```console") > 4
    for block in blocks:
        for command in block.commands:
            printed = make.run(command.line, tmp_path)
            assert make.without_times(printed) == make.without_times(command.output)
