"""The table of costs: a row is all that a cost needs on its way from a file into ticks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ppopt.problem import cost_table
from ppopt.problem.cost_table import COSTS, LAYER_COSTS, STAGE_COSTS
from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Model, Pipeline
from tests.packages import needed

SOURCE = Path(cost_table.__file__)
ROW = """
    save: T = _time(
        "time to save a stage's optimizer states, in STEP",
        "time to save its optimizer states",
        key="save_times",
        per=Occurrence.STEP,
        needs=Needs.WEIGHT_GRADIENT,
    )
"""
"""A cost that nothing knows."""
WITH_ROW = """
import sys, types
source, path = sys.argv[1:]
name = "ppopt.problem.cost_table"
sys.modules[name] = types.ModuleType(name)
import ppopt.problem
ppopt.problem.cost_table = sys.modules[name]
exec(compile(source, path, "exec"), vars(sys.modules[name]))

from dataclasses import replace
import ppopt
from ppopt.formats.config import parse_config, pipeline_of, schema
from ppopt.formats.schedule_json import dumps, loads
from ppopt.studies.evaluate import evaluate

assert "save_times" in schema()["properties"]
STAGES = "stages: 2\\nbatches: 3\\nforward_times: [1, 3]\\nsave_times: [5, '0.5']"
given = pipeline_of(parse_config(STAGES, ".yaml", "x"))
assert given.save == (5, ppopt.Pipeline(stages=1, batches=1, p2p="0.5").p2p)
assert given.ticks.per_unit == 2
assert given.ticks.costs.save == (10, 1)
assert 10 in set(given.ticks.times)
fast = replace(given, device_speed=[5, 1])
assert fast.ticks.costs.save[0] == fast.ticks.per_unit
assert replace(given, slices=5).costs.save == given.costs.save
assert ppopt.Pipeline(stages=2, batches=3, chunks=2, save=4).costs.save == (2, 2, 2, 2)
assert given.placed((1, 0)).costs.save == given.costs.save
assert replace(given, frozen=[True, False]).save[0] == 0
schedule = evaluate(given, "1f1b")
assert loads(dumps(schedule), "x")[0] == schedule

TRAINED, FROZEN = "{forward: 1, count: 3, save: 7}", "{forward: 1, frozen: true, save: 7}"
LAYERS = f"stages: 2\\nbatches: 3\\npartition: [1, 3]\\nlayers: [{TRAINED}, {FROZEN}]"
layers = pipeline_of(parse_config(LAYERS, ".yaml", "x"))
assert layers.costs.save == layers.ticks.costs.save == (7, 14)
assert layers.without_model().costs == layers.costs
schedule = evaluate(layers, "1f1b")
assert loads(dumps(schedule), "x")[0] == schedule
print("found")
"""
"""What every reader of the table does with a row that it does not know."""


def test_a_row_is_all_that_a_cost_needs_from_a_file_to_ticks() -> None:
    source = SOURCE.read_text(encoding="utf-8")
    last_of_step = "    optimizer: T = _time("
    assert last_of_step in source
    changed = source.replace(last_of_step, f"{ROW}{last_of_step}", 1)
    run = subprocess.run(
        [sys.executable, "-c", WITH_ROW, changed, str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("found\n", "")


USES = """
from fractions import Fraction
from ppopt.problem.costs import StageCosts, Ticks
from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Pipeline

def right(stage: StageCosts[Fraction], ticks: Ticks, layer: Layer) -> None:
    reveal_type(stage.static)
    reveal_type(ticks.costs.unshard_memory)
    reveal_type(layer.backward_input)
    Pipeline(stages=2, batches=3, forward=[1, "3ms"])

def wrong(stage: StageCosts[Fraction], ticks: Ticks, layer: Layer, pipeline: Pipeline) -> None:
    stage.statics
    ticks.costs.unshard_memroy
    layer.backward_inputs
    pipeline.forwards
    Pipeline(stages=2, batches=3, forwards=1)
    pipeline.output
    layer.overlap
"""
NEEDED = (
    *("cost_table", "costs", "layer", "pipeline", "pipeline_fields", "pipeline_structure"),
    *("setting_fields", "units"),
)


def test_a_misspelt_cost_does_not_type_check(tmp_path: Path) -> None:
    """Type checkers know every cost of a stage, a layer and a pipeline, with its type."""
    mypy = needed("mypy.api")
    uses = tmp_path / "uses.py"
    uses.write_text(USES, encoding="utf-8")
    options = ("--strict", "--follow-imports=skip", "--config-file=", "--no-pretty")
    files = [str(SOURCE.with_name(f"{name}.py")) for name in NEEDED]
    out, _, _ = mypy.run([*options, "--cache-dir", str(tmp_path / "cache"), str(uses), *files])
    revealed = re.findall(r"uses\.py:(\d+): (note: .*|error)", out)
    assert [what for _, what in revealed if what != "error"] == [
        f'note: Revealed type is "{kind}"'
        for kind in (
            "tuple[fractions.Fraction, ...]",
            "tuple[int, ...]",
            "fractions.Fraction",
        )
    ]
    first = USES[: USES.index("    stage.statics")].count("\n") + 1
    wrong = [str(line) for line in range(first, USES.count("\n") + 1)]
    assert [line for line, what in revealed if what == "error"] == wrong


def test_costs_are_fields_of_pipelines_and_layers_and_no_other_names() -> None:
    stages, layers = Pipeline.__dataclass_fields__, Layer.__dataclass_fields__
    assert len({cost.field for cost in COSTS}) == len(COSTS)
    assert {cost.field for cost in STAGE_COSTS} <= set(stages)
    assert {cost.field for cost in LAYER_COSTS} <= set(layers)


def test_costs_of_stages_print_short_and_do_not_change() -> None:
    costs = Pipeline(stages=3, batches=2, static=[1, 2, 3]).costs
    assert repr(costs) == "StageCosts(3 stages)"
    assert costs.static == costs["static"] == (1, 2, 3)
    assert list(costs) == [cost.field for cost in STAGE_COSTS]
    with pytest.raises(AttributeError, match="cannot assign to field 'static'"):
        costs.static = ()  # type: ignore[misc]


@pytest.mark.parametrize("cost", LAYER_COSTS, ids=lambda cost: cost.field)
def test_a_cost_of_a_layer_that_is_none_is_the_default(cost: cost_table.Cost) -> None:
    """An activation, or an unshard, of None ended in the traceback of another module."""
    fields = {"phases": {"F": [{"on": "compute", "time": 1}], "B": [{"on": "compute", "time": 2}]}}
    layers = [Layer(**fields), Layer(**fields, **{cost.field: None})]
    assert layers[0] == layers[1]
    assert Model((layers[1],)).pipeline(devices=1, batches=1).ticks.per_unit == 1
