"""The query of a page: read as the command line reads its flags, and bounded."""

from __future__ import annotations

import shlex

import pytest

import ppopt
from ppopt import InputError
from ppopt.app.drawing import Drawing, field_of
from ppopt.app.examples import EXAMPLES, examples
from ppopt.app.limits import Limits
from ppopt.app.query import FIRST_STRATEGIES, Query
from ppopt.formats.models import model_names

LIMITS = Limits()
LAYERS = "- {name: block, count: 6, forward: 2, backward: 4}"


def read(**query: str) -> Query:
    return Query.read(query, LIMITS)


def test_text_means_what_it_means_as_a_flag() -> None:
    query = read(
        stages="2", batches="4", forward_times="1,2", p2p_time="0.5", mem_limit="1f1b",
        strategies="zbv, 1f1b,zbv",
    )  # fmt: skip
    expected = ppopt.Pipeline(stages=2, batches=4, forward=[1, 2], p2p="0.5", mem_limit="1f1b")
    assert query.pipeline() == expected
    assert query.strategies == ("zbv", "1f1b")
    assert read(stages="2", batches="4").strategies == FIRST_STRATEGIES
    assert read(stages="2", batches="4", strategies="").strategies == ()


def test_a_config_may_be_layers_alone_or_a_whole_file_that_fields_override() -> None:
    layers = read(stages="2", batches="4", config=LAYERS, partition="2,4").pipeline()
    assert layers.counts == (2, 4)
    whole = f"stages: 3\nbatches: 9\noutput: /tmp/x.html\nlayers:\n{LAYERS}"
    query = read(config=whole, batches="5")
    assert (query.pipeline().num_devices, query.pipeline().batches) == (3, 5)
    assert "output" not in query.settings


def test_the_command_line_reads_the_command_as_the_same_pipeline() -> None:
    query = read(stages="2", batches="4", memory_b="-1", mem_limit="1f1b", strategies="1f1b")
    assert shlex.split(query.command()) == [
        *("ppopt", "compare", "--stages", "2", "--batches", "4", "--memory-b=-1"),
        *("--mem-limit", "--strategies", "1f1b"),
    ]
    assert "--config pipeline.yaml" in read(stages="2", batches="4", config=LAYERS).command()
    assert "--model llama-3.1-8b" in read(model="llama-3.1-8b").command()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"stages": "x", "batches": "4"}, "stages"),
        ({"stages": "4"}, "batches"),
        ({"stages": "4", "batches": "1e999999"}, "batches"),
        ({"stages": "513", "batches": "1"}, "stages"),
        ({"stages": "8", "batches": "90000"}, "batches"),
        ({"stages": "4", "batches": "8", "forward_times": "1,2"}, "forward_times"),
        ({"stages": "4", "batches": "8", "strategies": "2f2b"}, ""),
        ({"stages": "4", "batches": "8", "config": "- ["}, "config"),
        ({"stages": "4", "batches": "8", "config": "a: &a [*a]"}, "config"),
        ({"model": "../../etc/passwd"}, "model"),
        ({"stages": "4", "batches": "8", "config": LAYERS, "partition": "9,9"}, "partition"),
        ({"stages": "4", "batches": "8", "output": "/tmp/x"}, ""),
        ({"stages": "4", "batches": "8", "strategies": ""}, "strategies"),
    ],
)
def test_bad_input_is_one_line_at_its_field(query: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Drawing(Query.read(query, LIMITS), LIMITS)
    assert "\n" not in str(caught.value)
    assert field_of(caught.value) == field


@pytest.mark.parametrize("name", [*EXAMPLES, *(f"model {name}" for name in model_names()[:2])])
def test_every_example_is_drawn_with_all_its_strategies(name: str) -> None:
    query = Query.read(examples()[name], LIMITS)
    drawing = Drawing(query, LIMITS)
    assert drawing.skipped == ()
    assert set(drawing.schedules) == set(query.strategies)
    for schedule in drawing.schedules.values():
        assert ppopt.verify(schedule) == []


def test_strategies_that_do_not_apply_say_why_and_the_others_are_drawn() -> None:
    drawing = Drawing(read(stages="3", batches="5", strategies="1f1b,dualpipe"), LIMITS)
    assert list(drawing.schedules) == ["1f1b"]
    assert dict(drawing.skipped)["dualpipe"]
    with pytest.raises(InputError, match="nothing to draw; dualpipe"):
        Drawing(read(stages="3", batches="5", strategies="dualpipe"), LIMITS)
