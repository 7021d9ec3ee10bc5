"""The order of microbatches that a data loader hands out, written with exported schedules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ppopt import Pipeline, evaluate, verify
from ppopt.errors import InputError
from ppopt.formats import torch_csv
from ppopt.formats.loader_order import (
    describe_loader_order,
    file_beside,
    loader_order,
    read_beside,
)
from tests.factories.tables import changed

TIMES = (1, 4, 2, 3)
LISTED = Pipeline(stages=2, batches=4, microbatch_times=TIMES)


def test_the_order_that_was_chosen() -> None:
    """Microbatch k of a schedule in a chosen order is the one of the list at that place."""
    schedule = evaluate(LISTED.reordered([2, 0, 3, 1]), "1f1b")
    assert loader_order(schedule) == (2, 0, 3, 1)
    assert describe_loader_order(schedule).endswith("in the order 2, 0, 3, 1")


def test_as_listed() -> None:
    assert loader_order(evaluate(LISTED, "1f1b")) == (0, 1, 2, 3)
    assert describe_loader_order(evaluate(LISTED, "1f1b")) == ""


def test_forwards_of_the_last_stage_number_the_microbatches() -> None:
    """A schedule that runs microbatches 3, 2, 1, 0 on every stage is written with 0, 1, 2, 3."""
    uniform = evaluate(replace(LISTED, microbatch_times=None), "1f1b")
    turned = changed(uniform, microbatch=3 - uniform.microbatch)
    assert loader_order(turned) == (0, 1, 2, 3), "any order of equal ones will do"
    uniform = evaluate(replace(LISTED, microbatch_times=2), "1f1b")
    turned = changed(uniform, microbatch=3 - uniform.microbatch)
    assert verify(turned) == []
    assert loader_order(turned) == (3, 2, 1, 0)
    reordered = replace(turned, pipeline=turned.pipeline.reordered([2, 0, 3, 1]))
    assert loader_order(reordered) == (1, 3, 0, 2)


def test_it_comes_back(tmp_path: Path) -> None:
    """Factors in the order of the list, with the order of the file, give the same schedule."""
    schedule, path = evaluate(LISTED.reordered([2, 0, 3, 1]), "1f1b"), tmp_path / "a.csv"
    path.write_text(torch_csv.order_csv(schedule))
    ((beside, text),) = file_beside(path, schedule).items()
    assert (beside.name, json.loads(text)) == ("a.order.json", {"order": [2, 0, 3, 1]})
    beside.write_text(text)
    read = torch_csv.schedule(torch_csv.read_order(path), {"microbatch_times": list(TIMES)})
    assert read.pipeline.order == (2, 0, 3, 1)
    assert list(read.rows()) == list(schedule.rows())


def test_an_earlier_order_is_replaced(tmp_path: Path) -> None:
    """Else the next import would read the order of another schedule."""
    plain = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    assert file_beside(tmp_path / "a.csv", plain) == {}
    (tmp_path / "a.order.json").write_text('{"order": [1, 0]}')
    ((_, text),) = file_beside(tmp_path / "a.csv", plain).items()
    assert json.loads(text) == {"order": [0, 1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 0]", r"\[1, 0\] is not an object"),
        ("{}", "order is missing"),
        ('{"order": [0]}', "order: has 1 entries; 2 are needed"),
        ('{"order": [0, 2]}', "order: entry 1: 2 is not within 0 .. 1"),
        ('{"order": [0, 0]}', "order: lists a microbatch twice; list all 2, each once"),
        ('{"order": [0, 1], "of": 1}', "unknown key 'of'"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.order.json").write_text(text)
    with pytest.raises(InputError, match=rf"a\.order\.json: {message}"):
        read_beside(tmp_path / "a.csv", 2)
