"""Objects of JSON: every key is a declared figure, and every declaration says what it is."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

import ppopt
from ppopt.derivation.gpus import gpus
from ppopt.formats.figures import METRICS, PLACED, SEARCHED, Figure, ScheduleFigures, declared
from ppopt.problem.pipeline import Pipeline
from ppopt.report.derivation import GPU_COLUMNS, gpu_table
from ppopt.report.entries import entries
from ppopt.report.objects import EVALUATION, RESULT, evaluation_object, result_object
from ppopt.report.schedule_report import ScheduleReport, report_evaluation, report_result
from ppopt.report.sections import overview
from ppopt.schedule.origin import Origin
from ppopt.studies.evaluate import evaluate

PIPELINE = ppopt.Pipeline(stages=2, batches=4, mem_limit=2)
NO_FIGURES = {"checked", "stopped_early", "predicted", "pipeline", "certificate"}
"""Fields of a report that change its text alone."""


@pytest.mark.parametrize("keys", [SEARCHED, METRICS, PLACED, RESULT, EVALUATION])
def test_every_key_is_a_declared_figure(keys: tuple[str, ...]) -> None:
    assert set(keys) <= declared(ScheduleReport).keys()
    assert len(set(keys)) == len(keys)


def test_a_sweep_stores_figures_that_a_report_has() -> None:
    stored, reported = declared(ScheduleFigures), declared(ScheduleReport)
    assert stored.items() <= reported.items()
    assert {entry.name for entry in fields(ScheduleReport)} == reported.keys() | NO_FIGURES


@pytest.mark.parametrize("figure", declared(ScheduleReport).values(), ids=lambda figure: figure.key)
def test_a_declaration_has_a_label_and_a_meaning(figure: Figure) -> None:
    assert figure.label and figure.meaning
    assert figure.each in ("", "device", "stage", "microbatch")
    assert figure.in_json(None) is None


def test_figures_that_do_not_apply_are_left_out_and_others_are_null() -> None:
    figures = ScheduleReport().to_object(("value", "hint", "jitter", "partition_search", "gap"))
    assert figures == {"value": None, "gap": None}


def test_objects_are_those_of_their_keys() -> None:
    """1F1B of two devices holds two microbatches; both are JSON without their schedules."""
    report = report_result(ppopt.solve(PIPELINE, workers=1))
    solved = result_object(report)
    absent = ("hint", "order")
    assert list(solved) == ["schema", *(key for key in RESULT if key not in absent), "elsewhere"]
    optional = ("partition_search", "operations_alone", "jitter", "order")
    evaluated = evaluation_object(report_evaluation(ppopt.evaluate(PIPELINE, "1f1b"), 0.5))
    assert list(evaluated) == ["schema", *(key for key in EVALUATION if key not in optional)]
    assert (evaluated["peak_memory"], evaluated["solve_seconds"]) == ([2, 1], 0.5)
    for output in (solved, evaluated):
        assert json.loads(json.dumps(output | {"schedule": None})) == output | {"schedule": None}


# The entries of a page: schedules compared with the best of them.


def test_the_best_of_a_comparison_is_one_that_fits() -> None:
    """A shorter schedule over the limit comes last, in a part of its own of the table."""
    pipeline = Pipeline(stages=4, batches=8, mem_limit=4)
    over, within = evaluate(pipeline, "zb-2p"), evaluate(pipeline, "1f1b")
    assert over.metrics.makespan_ticks < within.metrics.makespan_ticks
    best, second = entries([over, within])
    assert (best.title, best.report.ratio_to_best) == ("1f1b", 1)
    assert best.note.startswith("makespan 33 within memory 4 each; ")
    assert second.title == "zb-2p"
    assert second.note.startswith("makespan 27 over the limit of memory 4 each; ")
    fitting, apart = overview([best, second]).split("over the memory limit")
    assert ("1f1b" in fitting, "zb-2p" in fitting, "zb-2p" in apart) == (True, False, True)


def test_schedules_shown_with_a_measured_step_are_called_predicted() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    step = replace(schedule, origin=Origin(strategy="measured"))
    assert [entry.title for entry in entries([schedule, step], ordered=True)] == [
        "1f1b, predicted",
        "measured",
    ]
    assert [entry.title for entry in entries([schedule, schedule])] == ["1f1b", "1f1b"]


def test_the_table_has_the_placements_of_the_terminal() -> None:
    pipeline = Pipeline(stages=4, batches=8)
    names = ("1f1b", "zbv", "interleaved", "chimera")
    listed = Pipeline(stages=2, batches=2, placement=(1, 0))
    table = overview(entries([evaluate(pipeline, name) for name in names]))
    table += overview(entries([evaluate(listed, "1f1b")] * 2))
    for cell in ("linear", "v/2", "interleaved/2", "linear x2", "explicit"):
        assert f'<td class="text" style="text-align:left">{cell}</td>' in table


# The table of GPUs.


def test_rows_have_the_units_of_data_sheets() -> None:
    *figures, measured = (str(column.cell(gpus()["b200"])) for column in GPU_COLUMNS)
    assert figures == ["b200", "2250", "4500", "9000", "180", "8", "8", "900", "50"]
    count, total = map(int, measured.split(" of "))
    assert 0 < count < total


def test_every_gpu_has_a_row() -> None:
    grid = gpu_table()
    names = [grid.columns[0].cell(gpu) for gpu in grid.rows]
    assert names == list(gpus())
