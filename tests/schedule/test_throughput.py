"""Tokens per second and MFU, by hand; unknown where the pipeline does not say enough."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ppopt.problem.pipeline import Pipeline
from ppopt.report.schedule_report import report_schedule
from ppopt.report.search_text import describe_throughput
from ppopt.schedule.metrics import throughput
from ppopt.studies.evaluate import evaluate
from tests.cli.cli_run import done, json_of

COUNTS = {
    "tokens_per_microbatch": 4096,
    "flops_per_microbatch": "6e12",
    "peak_flops": "100e12",
}
FLAGS = "--tokens-per-microbatch 4096 --flops-per-microbatch 6e12 --peak-flops 100e12"


def of_1f1b(**more: Any) -> tuple[Fraction | None, Fraction | None]:
    """Throughput of 1F1B on 4 devices with 8 microbatches, F = 1 and BW = 2 units."""
    schedule = evaluate(Pipeline(stages=4, batches=8, **more), "1f1b")
    return throughput(schedule.pipeline, schedule.metrics.makespan_ticks)


@pytest.mark.parametrize(("unit", "per_second"), [("ns", 10**9), ("ms", 1000), ("s", 1)])
def test_of_1f1b(unit: str, per_second: int) -> None:
    """1F1B takes (8 + 3) x 3 = 33 units: 8 x 4096 tokens, and 8 x 6e12 FLOPs of 4 x 33 x 1e14."""
    tokens, mfu = of_1f1b(time_unit=unit, **COUNTS)
    assert tokens == 8 * 4096 * per_second / 33
    assert mfu == 8 * 6 * per_second / (33 * 4 * 100)


def test_peaks_of_devices_of_other_speeds_add_up() -> None:
    """On devices of speed 2 all takes half the time: twice the tokens, and the same MFU."""
    tokens, mfu = of_1f1b(time_unit="ms", device_speed=2, **COUNTS)
    assert tokens == 2 * 8 * 4096 * 1000 / 33
    assert mfu == 8 * 6 * 1000 / (33 * 4 * 100)


@pytest.mark.parametrize("missing", ["time_unit", *COUNTS])
def test_unknown_where_something_is_missing(missing: str) -> None:
    options = {
        key: value for key, value in (COUNTS | {"time_unit": "ms"}).items() if key != missing
    }
    tokens, mfu = of_1f1b(**options)
    assert (tokens is None) == (missing in ("time_unit", "tokens_per_microbatch"))
    assert (mfu is None) == (missing != "tokens_per_microbatch")


def test_on_the_command_line() -> None:
    output = json_of(f"eval 1f1b --stages 4 --batches 8 --time-unit ms {FLAGS}")
    assert output["tokens_per_second"] == 8 * 4096 * 1000 / 33
    assert output["tokens_per_second_per_device"] == 8 * 4096 * 1000 / 33 / 4
    assert output["mfu"] == pytest.approx(48 * 1000 / (33 * 4 * 100))
    assert (output["time_unit"], output["memory_unit"]) == ("ms", None)
    table = done(f"eval 1f1b --stages 4 --batches 8 --time-unit ms {FLAGS}").out
    assert "993,000 tokens/s, 248,200 per device, MFU 363.6 %; check the" in table


@pytest.mark.parametrize(
    ("training", "text"),
    [
        (None, "993,000 tokens/s, 248,200 per device"),
        ({"tensor": 2}, "993,000 tokens/s, 248,200 per device"),
        ({"data": 8}, "993,000 tokens/s per replica, 248,200 per GPU"),
        ({"tensor": 2, "context": 2, "data": 8}, "993,000 tokens/s per replica, 62,060 per GPU"),
    ],
)
def test_with_data_parallelism_it_is_that_of_one_replica(
    training: dict[str, int] | None, text: str
) -> None:
    """8 x 4096 tokens in 33 ms are 992,969.7 per second, of 4 devices of tensor x context GPUs."""
    pipeline = Pipeline(stages=4, batches=8, time_unit="ms", training=training, **COUNTS)
    assert describe_throughput(report_schedule(evaluate(pipeline, "1f1b"))).startswith(text)


def test_null_in_every_object_where_unknown() -> None:
    keys = ("time_unit", "memory_unit", "tokens_per_second", "tokens_per_second_per_device", "mfu")
    solved = json_of("solve --stages 2 --batches 2")
    compared = json_of("compare --stages 2 --batches 2")
    for entry in (solved, *compared["rows"]):
        assert [entry[key] for key in keys] == [None] * 5


def test_the_objective_says_what_an_iteration_takes() -> None:
    line = f"eval zb-2p --stages 4 --batches 8 --time-unit ms {FLAGS} --objective device-span"
    output = json_of(line)
    assert output["device_span"] < output["makespan"]
    assert output["tokens_per_second"] == pytest.approx(8 * 4096 * 1000 / output["device_span"])
