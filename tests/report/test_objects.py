"""Objects of JSON: every key is a declared figure, and every declaration says what it is."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

import ppopt
from ppopt.formats.figures import METRICS, PLACED, SEARCHED, Figure, ScheduleFigures, declared
from ppopt.report.objects import EVALUATION, RESULT, of_evaluation, of_result
from ppopt.report.schedule_report import ScheduleReport, report_evaluation, report_result

PIPELINE = ppopt.Pipeline(stages=2, batches=4, mem_limit=2)
NO_FIGURES = {"checked", "stopped_early", "predicted"}
"""Fields of a report that change its text alone."""


@pytest.mark.parametrize("keys", [SEARCHED, METRICS, PLACED, RESULT, EVALUATION])
def test_every_key_is_a_declared_figure(keys: tuple[str, ...]) -> None:
    assert set(keys) <= declared(ScheduleReport).keys()
    assert len(set(keys)) == len(keys)


def test_a_sweep_stores_figures_that_a_report_has() -> None:
    stored, shown = declared(ScheduleFigures), declared(ScheduleReport)
    assert stored.items() <= shown.items()
    assert {entry.name for entry in fields(ScheduleReport)} == shown.keys() | NO_FIGURES


@pytest.mark.parametrize("figure", declared(ScheduleReport).values(), ids=lambda one: one.key)
def test_a_declaration_has_a_label_and_a_meaning(figure: Figure) -> None:
    assert figure.label and figure.meaning
    assert figure.each in ("", "device", "stage")
    assert figure.in_json(None) is None


def test_figures_that_do_not_apply_are_left_out_and_others_are_null() -> None:
    found = ScheduleReport().to_object(("value", "hint", "jitter", "partition_search", "gap"))
    assert found == {"value": None, "gap": None}


def test_objects_are_those_of_their_keys() -> None:
    """1F1B of two devices holds two microbatches; both are JSON without their schedules."""
    report = report_result(ppopt.solve(PIPELINE, workers=1))
    solved = of_result(report)
    absent = ("hint", "order")
    assert list(solved) == ["schema", *(key for key in RESULT if key not in absent), "elsewhere"]
    optional = ("partition_search", "operations_alone", "jitter", "order")
    evaluated = of_evaluation(report_evaluation(ppopt.evaluate(PIPELINE, "1f1b"), 0.5))
    assert list(evaluated) == ["schema", *(key for key in EVALUATION if key not in optional)]
    assert (evaluated["peak_memory"], evaluated["solve_seconds"]) == ([2, 1], 0.5)
    for found in (solved, evaluated):
        assert json.loads(json.dumps(found | {"schedule": None})) == found | {"schedule": None}
