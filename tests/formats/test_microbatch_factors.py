"""Schedule files have the factors of microbatches that differ, and their chosen order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given

from ppopt import InputError, Pipeline, evaluate
from ppopt.formats.pipeline_json import LISTED
from ppopt.formats.schedule_json import dumps, loads, schedule_from_object, schedule_to_object
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import pipelines, schedules
from tests.tiers import examples


@examples(10)
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


def chosen_order(*order: int) -> Any:
    """The file of four microbatches, of which 0 and 2 are equal, that run in this order."""
    pipeline = Pipeline(
        stages=2, batches=4, microbatch_times=[1, 4, 1, 2], microbatch_memory=[1, 2, 1, "1.5"]
    )
    return schedule_to_object(evaluate(pipeline.reordered(order), "1f1b"))


def written_earlier(file: Any) -> Any:
    """The same file without the factors in the user's order, as earlier versions wrote it."""
    stated = {key: value for key, value in file["pipeline"].items() if key not in LISTED}
    return file | {"pipeline": stated}


def refusal(file: Any) -> str:
    with pytest.raises(InputError) as caught:
        schedule_from_object(file)
    return str(caught.value)


class TestOrder:
    def test_a_file_has_the_factors_in_the_order_of_the_list(self) -> None:
        file = chosen_order(2, 3, 0, 1)
        assert file["pipeline"]["microbatch_times"] == [[1, 1], [2, 1], [1, 1], [4, 1]]
        assert file["pipeline"]["listed_microbatch_times"] == [[1, 1], [4, 1], [1, 1], [2, 1]]
        assert file["pipeline"]["listed_microbatch_memory"] == [[1, 1], [2, 1], [1, 1], [3, 2]]
        assert schedule_from_object(file)[0].pipeline.order == (2, 3, 0, 1)

    @pytest.mark.parametrize("order", [*permutations(range(4))])
    def test_another_order_is_refused_unless_it_exchanges_equal_microbatches(
        self, order: tuple[int, ...]
    ) -> None:
        file = chosen_order(2, 3, 0, 1)
        file["pipeline"]["order"] = list(order)
        if order in ((2, 3, 0, 1), (0, 3, 2, 1)):
            assert schedule_from_object(file)[0].pipeline.order == order
        else:
            assert refusal(file).startswith("pipeline: order: makes microbatch_times of listed_")

    @pytest.mark.parametrize("order", ["given", ...])
    def test_a_file_without_the_order_is_refused(self, order: object) -> None:
        file = chosen_order(2, 3, 0, 1)
        file["pipeline"]["order"] = order
        if order is ...:
            del file["pipeline"]["order"]
        assert "order: makes microbatch_times of listed_microbatch_times" in refusal(file)

    def test_an_open_order_is_refused(self) -> None:
        file = written_earlier(chosen_order(2, 3, 0, 1))
        file["pipeline"]["order"] = "search"
        assert refusal(file) == (
            "pipeline: order: the microbatches differ, so a schedule has an order of them; list it"
        )

    def test_an_open_order_of_equal_microbatches_is_read(self) -> None:
        pipeline = Pipeline(stages=2, batches=2, microbatch_times=2, order="search")
        schedule = evaluate(pipeline, "1f1b")
        assert loads(dumps(schedule), "x")[0] == schedule

    def test_files_of_earlier_versions_are_read(self) -> None:
        file = chosen_order(2, 3, 0, 1)
        assert schedule_from_object(written_earlier(file)) == schedule_from_object(file)

    def test_in_these_a_search_lists_equal_microbatches_in_order(self) -> None:
        searched = {"certificate": {"argument": "orders", "devices": []}}
        right, wrong = (
            written_earlier(chosen_order(*order)) | {"origin": searched}
            for order in ((0, 3, 2, 1), (2, 3, 0, 1))
        )
        assert schedule_from_object(right)[0].pipeline.order == (0, 3, 2, 1)
        assert refusal(wrong) == (
            "pipeline: order: 0 follows 2, but a search keeps the order of equal microbatches; "
            "solve again"
        )
