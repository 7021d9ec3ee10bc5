"""The script of the page: typed, linted and formatted by Deno, and joined without a clash."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import ppopt
from ppopt.report.script import MODULES, module, script
from tests.packages import needed
from tests.tiers import first

FOLDER = Path(ppopt.__file__).parent / "report" / "script"


@pytest.mark.parametrize(
    "command", first(2, ["lint", "fmt --check", "check page.js study.js app.js"])
)
def test_deno_is_content(command: str, tmp_path: Path) -> None:
    """`check` reads the types in the comments, strictly (deno.json)."""
    done = subprocess.run(
        [needed("deno").find_deno_bin(), *command.split()],
        cwd=FOLDER,
        env=os.environ | {"DENO_DIR": str(tmp_path), "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_module_is_joined_after_those_it_imports() -> None:
    assert sorted(MODULES) == sorted(path.stem for path in FOLDER.glob("*.js"))
    for index, name in enumerate(MODULES):
        imported = set(re.findall(r'^(?:import|\}) .*from "\./(\w+)\.js"', module(name), re.M))
        assert imported <= set(MODULES[:index])


def test_names_differ_between_modules() -> None:
    """They share one scope once joined."""
    names = Counter(
        re.findall(
            r"^(?:async )?(?:function|const|let|class) (\w+)",
            script(study=True, app=True),
            re.MULTILINE,
        )
    )
    assert len(names) > 50
    assert [name for name, count in names.items() if count > 1] == []
    assert not re.search(r"^(import|export) ", script(study=True), re.MULTILINE)


def test_the_script_stays_small() -> None:
    assert len(script()) < 80_000
    assert len(script(study=True)) < len(script()) + 25_000
