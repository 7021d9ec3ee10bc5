"""Layers from the times of stages: exact where decoder layers are equal."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Layer, Model, evaluate, read_pipeline
from ppopt.profiles.layers_of_stages import SHORTEST, parts, read_layers
from tests.cli.cli_run import done, run
from tests.profiles.test_straggler import SCHEDULE, operations, written

LAYERS = (
    Layer(name="embedding", role="embedding", forward=1, backward=2),
    Layer(name="decoder", count=8, forward=2, backward=4, unshard=1),
    Layer(name="head", role="head", forward=7, backward=9, gradient_sync=3),
)
RUN = Model(LAYERS).pipeline(devices=3, batches=4, partition=(4, 3, 3))
"""Embedding with three decoder layers, three, and two with the head."""


def columns() -> dict[str, Any]:
    fields = ("forward", "backward", "unshard", "gradient_sync")
    return {field: list(getattr(RUN.costs, field)) for field in fields}


@pytest.mark.parametrize("text", ["Et*3|t*3|ttL", "3,3,2"])
def test_the_layers_are_given_back(text: str) -> None:
    groups = parts(read_layers(text, 3), columns())
    assert [(part.role, part.layers) for part in groups] == [
        ("embedding", 1), ("decoder", 8), ("head", 1),
    ]  # fmt: skip
    assert [part.costs["forward"] for part in groups] == [1, 2, 7]
    assert [part.costs["backward"] for part in groups] == [2, 4, 9]
    assert [part.costs["unshard"] for part in groups] == [SHORTEST, 1, SHORTEST]
    assert [part.costs["gradient_sync"] for part in groups] == [SHORTEST, 0, 3]


def test_two_stages_have_no_stage_of_decoder_layers_alone() -> None:
    """Those of the first stage count as all of it: its embedding takes next to nothing."""
    groups = parts(read_layers("4,4", 2), {"forward": [Fraction(8), Fraction(15)]})
    assert [part.costs["forward"] for part in groups] == [SHORTEST, 2, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3,3", "layers: they are of 2 stages; the run has 3"),
        ("Et*3|t*3|tmL", "has more than decoder layers, an embedding before and a head behind"),
        ("t*3|Et|tL", "has more than decoder layers"),
        ("E|t|tL|", "empty"),
        ("3,3,x", "partition: layout"),
        ("3,,3", "layers: '' is not a whole number"),
        ("3,-1,3", "is not a list of 0 to"),
        ("3,1,99999999999999999999", "is not a list of 0 to"),
        ("0,0,9", "no stage without a head has decoder layers"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_layers(text, 3)
    assert message in str(caught.value)


class TestCommand:
    @pytest.fixture
    def timeline(self, tmp_path: Path) -> Path:
        return written(tmp_path, [*operations(SCHEDULE, 0)])

    def test_a_model_in_layers(self, timeline: Path, tmp_path: Path) -> None:
        """F 3 and BW 8 of one stage, 5 and 9 of the next: of one decoder layer each, and a head."""
        out = tmp_path / "run.yaml"
        done("profile --from straggler --layers 1,1", timeline, "-o", out)
        pipeline = read_pipeline(out)
        assert pipeline.counts == (2, 2)
        forward, backward = (
            [float(layer_cost) for layer_cost in column]
            for column in (pipeline.costs.forward, pipeline.costs.backward)
        )
        assert forward == pytest.approx([3000, 5000]) and backward == pytest.approx([8000, 9000])
        schedule = evaluate(pipeline, "1f1b")
        assert schedule.makespan == pytest.approx(76000)

    def test_a_page_says_what_imbalance_costs(self, timeline: Path, tmp_path: Path) -> None:
        """Equal stages, F 4 and BW 8.5, by hand: device 1 begins F at 7, 19.5, 34 and 46.5.

        Twice it waits for device 0. Its last BW ends at 59; device 0 begins BW at 60, gradient sync
        at 68.5, optimizer at 71.5, and ends at 73.5.
        """
        page = tmp_path / "run.html"
        stderr = done("profile --from straggler --layers 1,1", timeline, "-o", page).err
        assert "note: with equal stages the order takes 73500 ms, 3.4 % more throughput" in stderr
        assert "note: the partition 2,2 that ran is balanced" in stderr
        assert "equal stages" in page.read_text()

    def test_a_page_shows_a_better_partition(self, tmp_path: Path) -> None:
        """F and BW of the stages are 21, 18 and 28; with 4, 4 and 2 layers 21, 24 and 22."""
        schedule = evaluate(RUN, "1f1b")
        better = evaluate(replace(RUN, partition=(4, 4, 2)), "1f1b")
        before, after = schedule.makespan, better.makespan
        timeline, page = written(tmp_path, [*operations(schedule, 0)]), tmp_path / "run.html"
        stderr = done("profile --from straggler --layers 3,3,2", timeline, "-o", page).err
        assert 1.099 < before / after <= 1.1
        wanted = f"with partition 4,4,2 the order takes {1000 * after:g} ms, 9.9 % more throughput"
        assert f"note: {wanted}" in stderr, (
            "times of a file are rounded, and a gain is rounded down"
        )
        assert "partition 4,4,2" in page.read_text()

    def test_only_of_recorded_operations(self, timeline: Path, tmp_path: Path) -> None:
        line = "profile --from megatron-timers --stages 2 --batches 2 --layers 1,1"
        ran = run(line, timeline, "-o", tmp_path / "x.yaml")
        assert (ran.code, ran.out) == (2, "")
        assert "--layers: of runs whose operations are recorded; leave it out" in ran.err
