"""docs/sweeps.md: every command and its output, from top to bottom in one folder."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.end_to_end.test_readme import make

GUIDE = make.SWEEPS.read_text(encoding="utf-8")


def test_the_guide_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = make.blocks(GUIDE)
    assert len(blocks) == GUIDE.count("```console") == 3
    for block in blocks:
        for command in block.commands:
            printed = make.run(command.line, tmp_path)
            assert make.without_times(printed) == make.without_times(command.output)
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, "sweeps", "sweeps.md", 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
