"""Links by size: the delay after a stage is latency + output of its last layer / bandwidth."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Layer, Model, Pipeline, Rule, Verdict
from ppopt.formats import schedule_json
from ppopt.formats.config import parse_config, pipeline_of
from ppopt.rechecker import check
from tests.cli.cli_run import json_of, run

OUTPUTS = (2, 6, 8, 4)
MODEL = Model([Layer(forward=1, activation=1, output=size) for size in OUTPUTS])
LINK = {"latency": 1, "bandwidth": 4}
WITH_UNITS = """
time_unit: ms
memory_unit: MiB
stages: 2
batches: 2
link: {latency: 10us, bandwidth: 50GB/s}
layers:
  - {forward: 1, output: 64}
  - {forward: 1, output: 1GiB}
  - {forward: 1}
"""


def linked(**more: Any) -> Pipeline:
    """Two devices, or as many as a placement has."""
    return MODEL.pipeline(**{"devices": 2, "batches": 2, "link": LINK, **more})


@pytest.mark.parametrize(
    ("counts", "delays"),
    [
        ((1, 3), (Fraction(3, 2),)),  # 1 + 2 / 4
        ((2, 2), (Fraction(5, 2),)),  # 1 + 6 / 4
        ((3, 1), (3,)),  # 1 + 8 / 4
    ],
)
def test_the_delay_is_of_the_layer_before_the_cut(counts: Any, delays: Any) -> None:
    pipeline = linked(partition=counts)
    assert pipeline.links == ((delays,), (delays,))
    assert pipeline.ticks.down == ((delays[0] * pipeline.ticks.per_unit,),)
    assert replace(linked(partition=(1, 3)), partition=counts) == pipeline


def test_there_is_none_on_one_device() -> None:
    pipeline = linked(placement=(0, 1, 1, 0), partition=(1, 1, 1, 1))
    assert pipeline.links[0] == ((Fraction(3, 2), 0, 3),)


def test_the_way_back_has_its_own_link_or_time() -> None:
    """Sizes are the same both ways; the way back takes the latency of the way there."""
    back = linked(partition=(3, 1), link={**LINK, "backward": {"bandwidth": 2}})
    assert back.links == (((3,),), ((5,),))
    timed = linked(partition=(3, 1), backward_p2p="0.5")
    assert timed.links == (((3,),), ((Fraction(1, 2),),))
    assert replace(back, partition=(1, 3)).links[1] == ((2,),)


def test_a_slice_hands_on_its_part() -> None:
    assert linked(partition=(3, 1), slices=2).links[0] == ((2,),)


def test_units_are_converted_exactly() -> None:
    """64 MiB at 50 GB/s: 67108864 / 50000000 ms; 10 us are 0.01 ms; in us the same ticks."""
    pipeline = pipeline_of(parse_config(WITH_UNITS, ".yaml", "") | {"partition": [1, 2]})
    expected = Fraction(67108864, 50000000) + Fraction(1, 100)
    assert pipeline.links[0] == ((expected,),)
    text = replace(pipeline, link="latency=10us,bandwidth=50GB/s")
    assert text == pipeline
    slow = replace(pipeline, link={"latency": "0.01ms", "bandwidth": "50000MB/s"})
    assert slow.links == pipeline.links


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"p2p": 1}, "p2p_time: link gives it; keep one of both"),
    (
        {"link": {**LINK, "backward": LINK}, "backward_p2p": 1},
        "backward_p2p_time: link gives it; keep one of both",
    ),
    ({"link": {"latency": 1}}, "link: bandwidth is missing"),
    ({"link": {"bandwidth": 0}}, "link.bandwidth: 0 is not above 0"),
    ({"link": {"bandwidth": 1, "latency": -1}}, "link.latency: -1 is negative"),
    ({"link": {"bandwith": 1}}, "link: unknown key 'bandwith'; did you mean bandwidth"),
    ({"link": {"bandwidth": "50GB"}}, "link.bandwidth: '50GB' is no bandwidth; write 50GB/s"),
    ({"link": {"bandwidth": "50Gb/s"}}, "link.bandwidth: '50Gb/s' is no bandwidth"),
    ({"link": {"bandwidth": "50GB/s"}}, "50GB/s needs the units of times and memory"),
    ({"link": {"bandwidth": 1, "latency": "3us"}}, "3us needs the unit of the times"),
    ({"link": {"bandwidth": "0.0000001"}}, "finer than 10\\^-6; write it in another unit"),
    ({"link": 3}, "link: '3' is no link; write latency=10us,bandwidth=50GB/s"),
    ({"link": "fast"}, "link: 'fast' is no part of a link"),
    ({"link": "bandwidth=1,bandwidth=2"}, "link: bandwidth is given twice"),
    ({"link": {**LINK, "backward": {"backward": {}}}}, "unknown key 'backward'"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_no_link_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        linked(**fields)
    assert "\n" not in str(caught.value)


def test_layers_that_hand_on_are_needed() -> None:
    with pytest.raises(InputError, match="link: needs a model in layers"):
        Pipeline(stages=2, batches=2, link=LINK)
    with pytest.raises(InputError, match="link: no layer gives its output"):
        Model([Layer(forward=1, count=4)]).pipeline(devices=2, batches=2, link=LINK)


@pytest.mark.parametrize(
    "link", [LINK, {**LINK, "backward": {"latency": 0}}, {"bandwidth": 3}], ids=str
)
def test_a_schedule_file_restores_it(link: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    schedule = ppopt.evaluate(linked(link=link, placement="v"), "1f1b-v")
    assert ppopt.verify(schedule) == []
    schedule.to_json(path)
    read, _ = ppopt.read_schedule(path)
    assert read.pipeline == schedule.pipeline
    assert schedule_json.dumps(read) == schedule_json.dumps(schedule)


def test_the_verifier_computes_delays_of_its_own() -> None:
    """Timed as if links took no time: wrong, though the pipeline's own delays are forged too."""
    pipeline = linked(partition=(3, 1))
    assert pipeline.p2p == (3,)
    timed = ppopt.evaluate(replace(pipeline, link=None, p2p=0), "1f1b")
    forged = linked(partition=(3, 1))
    object.__setattr__(forged, "p2p", (Fraction(0),))
    late = ppopt.verify(replace(timed, pipeline=forged))
    assert {violation.rule for violation in late} == {Rule.FORWARD, Rule.BACKWARD}
    assert "p2p takes 3" in late[0].message


def test_the_rechecker_computes_delays_of_its_own() -> None:
    """One microbatch, stages of 3 and 1 layers: F 3, 1, B 1, 3, W 3, and 3 of delay each way."""
    forged = linked(partition=(3, 1), batches=1)
    object.__setattr__(forged, "p2p", (Fraction(0),))
    result = ppopt.solve(linked(partition=(3, 1), batches=1), workers=1)
    assert result.value == 3 + 1 + 1 + 3 + 3 + 2 * 3 and result.claim is not None
    claim = result.claim._replace(pipeline=forged)
    assert check(claim, 30.0, 1, 1, lambda _: None).verdict is Verdict.CONFIRMED


def test_flags_and_files_say_the_same(tmp_path: Path) -> None:
    """A delay of a flag takes the place of that of the file, whichever of both forms it has."""
    file = tmp_path / "model.yaml"
    file.write_text(WITH_UNITS)
    line = f"eval gpipe --config {file} --partition 1,2"
    by_file, by_flag = (
        json_of(f"{line} {more}")["schedule"]
        for more in ("", "--link latency=0.01ms,bandwidth=50000MB/s")
    )
    assert by_file == by_flag
    assert json_of(f"{line} --time-unit us")["makespan"] == 1000 * json_of(line)["makespan"]
    timed = json_of(f"{line} --p2p-time 2")["schedule"]
    assert timed["pipeline"]["p2p_time"] == 2 * timed["ticks_per_unit"]
    file.write_text(WITH_UNITS + "p2p_time: 1\n")
    assert f"error: {file}: p2p_time: link gives it; keep one of both\n" in run(line).err
