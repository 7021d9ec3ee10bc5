"""Schedule files hold the factors of microbatches that differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from ppopt import InputError, Pipeline, evaluate
from ppopt.formats.schedule_json import dumps, loads, schedule_to_object
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import pipelines, schedules


@settings(deadline=None)
@given(schedules(pipelines(different=(True,))))
def test_a_file_restores_them(schedule: Schedule) -> None:
    loaded, claims = loads(dumps(schedule), "x")
    assert loaded == schedule
    assert loaded.pipeline.factors == schedule.pipeline.factors
    assert claims == schedule_to_object(schedule)["claims"]


@pytest.mark.parametrize("value", [[[1, 1]], [[1, 1], 2], [[1, 0], [1, 1]]])
def test_other_values_are_refused(value: Any) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2, microbatch_times=[1, 2]), "1f1b")
    text = dumps(schedule)
    start = text.index('"microbatch_times"')
    end = text.index("]]", start) + 2
    with pytest.raises(InputError, match="microbatch_times"):
        loads(f'{text[:start]}"microbatch_times": {value}{text[end:]}', "x")
