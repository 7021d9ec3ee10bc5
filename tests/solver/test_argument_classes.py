"""A new trait is let in by one file: the table of argument classes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import importlib.util, json, sys
from pathlib import Path

name = "ppopt.problem.traits"
spec = importlib.util.find_spec(name)
text = Path(spec.origin).read_text(encoding="utf-8")
added = {
    '    MIXED = "mixed"': '    NOVEL = "novel", "novelty"',
    "    Trait.LINKS: _BESIDE": "    Trait.NOVEL: frozenset({CLASSES}),",
    "    Trait.SLICES: lambda": "    Trait.NOVEL: lambda _: True,",
}
for before, line in added.items():
    assert text.count(before) == 1, before
    text = text.replace(before, line.replace("{CLASSES}", sys.argv[1]) + chr(10) + before)
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
exec(compile(text, spec.origin, "exec"), vars(module))

from ppopt import rechecker
from ppopt.problem.decisions import Decisions
from ppopt.problem.pipeline import Pipeline
from ppopt.solver import portfolio
from ppopt.solver.arguments import applicable
from ppopt.solver.choices.spaces import SPACES
from ppopt.strategies import registry

novel = Pipeline(stages=2, batches=2).traits
methods = [each for each in vars(portfolio).values() if {"name", "handles"} <= {*dir(each)}]
handles = {
    **{each.name: each.handles for each in methods},
    **{strategy.name: strategy.handles for strategy in registry().values()},
    "placement": SPACES[Decisions.PLACEMENT].handles,
    "re-checker": rechecker.MODELLED,
}
who = {*(name for name, handled in handles.items() if novel <= handled)}
strategies = sorted(who & registry().keys())
print(json.dumps([sorted(who - registry().keys()), len(strategies), len(applicable(novel))]))
"""
DP = {"dynamic program", "subset dynamic program"}
OF_ALL = {"full model", "critical swaps", "window LNS"}


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([], (set(), 0, 0)),
        (["EQUAL_MICROBATCHES"], ({*DP, "relaxation bounds"}, 0, 4)),
        (["SMALLEST_MICROBATCH", "EVERY_OPERATION"], ({*OF_ALL, "placement"}, 20, 5)),
    ],
)
def test_what_names_a_class_takes_a_trait_that_joins_it(
    classes: list[str], expected: tuple[set[str], int, int]
) -> None:
    """All but the re-checker, which refuses a trait until it states its rules."""
    joined = "".join(f"ArgumentClass.{name}, " for name in classes)
    command = [sys.executable, "-c", PROGRAM, f"({joined})"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    who, strategies, arguments = json.loads(run.stdout)
    assert (set(who), strategies, arguments) == expected
