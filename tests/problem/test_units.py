"""Units: numbers that carry one, by every route, exactly; and one line for what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.formats.config import pipeline_of, read_config
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.units import SCALES, attached, resolve
from tests.cli.cli_run import json_of, run

SIZE: dict[str, Any] = {"stages": 2, "batches": 4}
SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
TIMES = {"ns": 10**9, "us": 10**6, "ms": 10**3, "s": 1}


def test_sizes_of_the_units() -> None:
    """Seconds by SI prefixes; bytes by SI prefixes and by powers of 1024 (IEC 80000-13)."""
    assert SCALES["memory"] == SIZES
    assert SCALES["time"] == {unit: Fraction(1, per_second) for unit, per_second in TIMES.items()}


@pytest.mark.parametrize("unit", [*SIZES, None])
def test_80_gib_are_the_same_ticks_by_flag_file_and_python(
    unit: str | None, tmp_path: Path
) -> None:
    pipeline = Pipeline(**SIZE, activation="1536MiB", mem_limit="80GiB", memory_unit=unit)
    declared = "" if unit is None else f"memory_unit: {unit}\n"
    file = tmp_path / "p.yaml"
    file.write_text(f"stages: 2\nbatches: 4\nactivation: 1536MiB\nmem_limit: 80 GiB\n{declared}")
    flags = "" if unit is None else f"--memory-unit {unit}"
    line = "eval 1f1b --stages 2 --batches 4 --activation 1536MiB --mem-limit 80GiB"
    written = json_of(f"{line} {flags}")["schedule"]
    assert pipeline_of(read_config(file)) == pipeline
    assert written["memory_ticks_per_unit"] == pipeline.ticks.memory_per_unit
    assert written["pipeline"]["mem_limit"] == list(pipeline.ticks.limits or ())
    assert written["pipeline"]["activation"] == list(pipeline.ticks.costs.activation)
    assert pipeline.memory_unit == (unit or "GiB")
    assert pipeline.limits == (Fraction(80 * 2**30, SIZES[unit or "GiB"]),) * 2


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.integers(0, 6), st.sampled_from(sorted(TIMES))),
        min_size=2,
        max_size=4,
    ),
    st.sampled_from([*TIMES, None]),
)
def test_conversion_is_exact(numbers: list[tuple[int, int, str]], unit: str | None) -> None:
    """Digits x 10^-places of one unit are digits x 10^-places x (their ratio) of another."""
    text = [f"{digits}e-{places}{carried}" for digits, places, carried in numbers]
    resolved = resolve("time", unit, {"forward": text})
    largest = min((carried for *_, carried in numbers), key=TIMES.__getitem__)
    assert resolved.unit == (unit or largest)
    assert resolved.rounded == ()
    assert resolved.values["forward"] == [
        Fraction(digits * TIMES[resolved.unit or "s"], 10**places * TIMES[carried])
        for digits, places, carried in numbers
    ]


def test_the_largest_unit_is_declared_by_numbers_that_differ() -> None:
    pipeline = Pipeline(**SIZE, forward=["900us", "1.2ms"], p2p="40us", activation=2, mem_limit=4)
    assert (pipeline.time_unit, pipeline.memory_unit) == ("ms", None)
    assert pipeline.forward == (Fraction(9, 10), Fraction(6, 5))
    assert pipeline.p2p == Fraction(1, 25)


def test_what_is_finer_than_a_millionth_of_its_own_unit_is_rounded_a_limit_down() -> None:
    fine = Pipeline(**SIZE, time_unit="ms", memory_unit="MiB", forward="1.0000005us", p2p="1ns")
    assert fine.rounded == ("forward",)
    assert fine.p2p == Fraction(1, 10**6)
    limited = Pipeline(**SIZE, memory_unit="MiB", mem_limit="3.9999999GiB")
    assert limited.rounded == ("mem_limit",)
    assert limited.limits == (Fraction(3999999 * 1024, 10**6),) * 2


def test_a_resolved_pipeline_stays_as_it_is() -> None:
    pipeline = Pipeline(**SIZE, forward="3ms", activation="1.5GiB", mem_limit="80GiB")
    assert replace(pipeline, batches=4) == pipeline
    assert replace(pipeline, mem_limit="81920MiB") == pipeline


def test_plain_numbers_count_in_the_declared_unit() -> None:
    pipeline = Pipeline(**SIZE, forward="3000us", p2p=0.5, time_unit="ms")
    assert pipeline == Pipeline(**SIZE, forward=3, p2p=0.5, time_unit="ms")
    assert pipeline.forward == (3, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_unit": "min"}, "time_unit: 'min' is unknown; use ns, us, ms or s"),
        ({"memory_unit": "bytes"}, "memory_unit: 'bytes' is unknown; use B, KB, MB, GB, KiB, MiB"),
        ({"memory_unit": "gib"}, "memory_unit: 'gib' is unknown; did you mean GiB?"),
        ({"mem_limit": "80G"}, "'80G': 'G' is not a unit of memory; did you mean GB or GiB?"),
        ({"mem_limit": "80gb"}, "'80gb': 'gb' is not a unit of memory; did you mean GB?"),
        ({"forward": "3m"}, "forward: '3m': 'm' is not a unit of time; did you mean ms?"),
        ({"time_unit": 3}, "time_unit: 3 is unknown"),
        ({"forward": "3GiB"}, "forward: '3GiB': 'GiB' is not a unit of time; use ns, us, ms or s"),
        ({"mem_limit": ["3MiB", "4TiB"]}, "mem_limit: '4TiB': 'TiB' is not a unit of memory"),
        ({"forward": "ms"}, "forward: 'ms' is not a number"),
        ({"forward": "3ms4"}, "forward: '3ms4' is not a number"),
        (
            {"mem_limit": "9GiB"},
            "mem_limit: 9GiB has a unit, but activation, 1 by default, has none; give activation",
        ),
        (
            {"forward": ["3ms", 2]},
            "forward: 2 has no unit, but other numbers of time have, such as 3ms; write 2ms",
        ),
        ({"mem_limit": "9GiB", "static": 5}, "static: 5 has no unit, but other numbers of memory"),
        ({"forward": "1e13ms"}, "forward: '1e13' is too large"),
        ({"tokens_per_microbatch": 0}, "tokens_per_microbatch: 0 is not a whole number from 1 to"),
        ({"peak_flops": "1e25"}, "peak_flops: 1e25 is not a whole number from 1 to 10^24"),
        ({"flops_per_microbatch": 1.5}, "flops_per_microbatch: 1.5 is not a whole number"),
        ({"flops_per_microbatch": "many"}, "flops_per_microbatch: 'many' is not a number"),
    ],
)
def test_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as error:
        Pipeline(**SIZE, **fields)
    assert "\n" not in str(error.value)


def test_a_default_of_no_unit_is_named_on_the_command_line() -> None:
    ran = run("solve --stages 2 --batches 4 --mem-limit 9GiB")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--mem-limit: 9GiB has a unit, but activation, 1 by default, has none" in ran.err


def test_a_flag_may_name_another_unit_than_the_file(tmp_path: Path) -> None:
    """The numbers of the file keep their unit; results are in that of the flag."""
    file = tmp_path / "p.yaml"
    file.write_text(
        "stages: 2\nbatches: 4\nforward_times: [3, 2.5]\np2p_time: 40us\ntime_unit: ms\n"
        "activation: 1.5\nmem_limit: 1f1b\nmemory_unit: GiB\n"
    )
    in_file = json_of(f"eval 1f1b --config {file}")
    in_us = json_of(f"eval 1f1b --config {file} --time-unit us --memory-unit MiB")
    assert (in_file["time_unit"], in_us["time_unit"]) == ("ms", "us")
    assert in_us["makespan"] == 1000 * in_file["makespan"]
    assert in_us["peak_memory"] == [1024 * peak for peak in in_file["peak_memory"]]
    assert in_us["mem_limit"] == [1024 * limit for limit in in_file["mem_limit"]]


def test_layers_are_held_in_one_unit() -> None:
    """Three layers of 3 ms and a head of 500 us on two devices: 6 ms, and 3.5 ms."""
    layers = [
        {"forward": "3ms", "activation": "512MiB", "count": 3},
        {"forward": "500us", "static": "1GiB", "role": "head"},
    ]
    model = Model(layers)
    assert (model.layers[0].time_unit, model.layers[3].memory_unit) == ("ms", "GiB")
    pipeline = model.pipeline(
        devices=2, batches=4, p2p="10us", mem_limit="81920MiB", partition=[2, 2]
    )
    assert (pipeline.time_unit, pipeline.memory_unit) == ("ms", "GiB")
    assert pipeline.costs.forward == (6, Fraction(7, 2))
    assert (pipeline.costs.activation, pipeline.costs.static) == ((1, Fraction(1, 2)), (0, 1))
    assert (pipeline.p2p, pipeline.mem_limit) == (Fraction(1, 100), 80)
    in_us = replace(pipeline, time_unit="us", p2p="10us")
    assert in_us.costs.forward == (6000, 3500)
    assert replace(pipeline, batches=4) == pipeline


@pytest.mark.parametrize(
    ("layers", "more", "message"),
    [
        ([{"forward": "3ms"}, {"forward": 2}], {}, "layers: layer 1: 2 has no unit, but other"),
        ([{"forward": 3, "count": 2}], {"p2p": "3us"}, "layers: 3 has no unit, but other numbers"),
        ([{"forward": "3ms", "count": 2}], {"p2p": 3}, "p2p: 3 has no unit, but other numbers of"),
        (
            [{"forward": "3MiB", "count": 2}],
            {},
            "layer 0: forward: '3MiB': 'MiB' is not a unit",
        ),
    ],
)
def test_layers_and_links_say_units_or_none(
    layers: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Model(layers).pipeline(devices=2, batches=4, **more)


def test_units_of_a_model_in_files(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(
        "stages: 2\nbatches: 4\ntime_unit: ms\nmem_limit: 4GiB\nmemory_unit: MiB\nlayers:\n"
        "- {forward: 3, weight: 3000us, activation: 512, static: 1GiB, count: 3}\n"
        "- {forward: 500us, role: head, recompute: {time: 400us, activation: 0}}\n"
    )
    pipeline = pipeline_of(read_config(file))
    assert pipeline.costs.forward == (6, Fraction(7, 2))
    assert pipeline.costs.static == (2048, 1024)
    assert pipeline.limits == (4096, 4096)
    flags = "--time-unit us --memory-unit GiB"
    in_us = json_of(f"eval 1f1b --config {file} {flags}")
    assert in_us["makespan"] == 1000 * json_of(f"eval 1f1b --config {file}")["makespan"]
    assert (in_us["mem_limit"], in_us["memory_unit"]) == ([4, 4], "GiB")


def test_attached() -> None:
    assert attached([[1, "2us"], [Decimal("0.5"), 0]], "ms") == [["1ms", "2us"], ["0.5ms", "0ms"]]
