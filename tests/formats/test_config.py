"""Config files: every spelling, every format, and every way a file can be wrong."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import MISSING, fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.formats.config import parse_config, pipeline_of, read_config
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.setting import SettingScope
from ppopt.problem.settings import NAMED, SETTINGS
from ppopt.solver.solve import solve
from tests.formats.config_text import as_text, refuse, write

SPELLINGS = {
    "stages": ("stages", "num_stages"),
    "batches": ("batches", "num_batches"),
    "chunks": ("chunks",),
    "placement": ("placement",),
    "model": ("layers", "model"),
    "partition": ("partition",),
    "partition_order": ("partition_order",),
    "recompute": ("recompute",),
    "recompute_unit": ("recompute_unit",),
    "recompute_modules": ("recompute_modules",),
    "offload_modules": ("offload_modules",),
    "offload_fraction": ("offload_fraction",),
    "forward": ("forward_times", "forward"),
    "backward": ("backward_times", "backward"),
    "weight": ("weight_times", "weight"),
    "backward_input": ("input_times", "backward_input"),
    "p2p": ("p2p_time", "p2p"),
    "backward_p2p": ("backward_p2p_time", "backward_p2p"),
    "link": ("link",),
    "link_mode": ("link_mode",),
    "first_backward": ("first_backward",),
    "activation": ("activation",),
    "memory_b": ("memory_b",),
    "static": ("static",),
    "workspace": ("workspace",),
    "forward_workspace": ("forward_workspace",),
    "input_workspace": ("input_workspace",),
    "weight_workspace": ("weight_workspace",),
    "backward_workspace": ("backward_workspace",),
    "recompute_time": ("recompute_time",),
    "recompute_memory": ("recompute_memory",),
    "kept": ("kept",),
    "device_speed": ("device_speed",),
    "mem_limit": ("mem_limit",),
    "overlap": ("overlap_times", "overlap"),
    "overlap_input": ("overlap_input_times", "overlap_input"),
    "unshard": ("unshard",),
    "unshard_memory": ("unshard_memory",),
    "gradient_sync": ("gradient_sync",),
    "optimizer": ("optimizer",),
    "optimizer_barrier": ("optimizer_barrier",),
    "offload": ("offload",),
    "offload_memory": ("offload_memory",),
    "offload_time": ("offload_time",),
    "host_link": ("host_link",),
    "frozen": ("frozen",),
    "training": ("training",),
    "microbatch_times": ("microbatch_times",),
    "microbatch_memory": ("microbatch_memory",),
    "microbatch_tokens": ("microbatch_tokens",),
    "attention_share": ("attention_share",),
    "reference_tokens": ("reference_tokens",),
    "order": ("order",),
    "slices": ("slices",),
    "slice_times": ("slice_times",),
    "routes": ("routes",),
    "time_unit": ("time_unit",),
    "memory_unit": ("memory_unit",),
    "tokens_per_microbatch": ("tokens_per_microbatch",),
    "flops_per_microbatch": ("flops_per_microbatch",),
    "peak_flops": ("peak_flops",),
    "name": ("name",),
    "objective": ("objective",),
    "backward_kind": ("backward_kind",),
    "fused": ("fused",),
    "time_limit": ("time_limit",),
    "workers": ("workers",),
    "seed": ("seed",),
    "group_size": ("group_size",),
    "unshard_ahead": ("unshard_ahead",),
    "waves": ("waves",),
    "output": ("output_file", "output"),
}
"""Canonical name -> every spelling that a file may use."""

SAMPLES = {
    "recompute_modules": "core_attn",
    "offload_modules": ["core_attn", "moe_act"],
    "offload_fraction": 0.5,
    "placement": "v",
    "model": [],
    "partition": [2, 2],
    "partition_order": "ranks",
    "recompute": "full",
    "recompute_unit": "stage",
    "link": {"latency": 1, "bandwidth": 2},
    "link_mode": "streams",
    "first_backward": "weight",
    "mem_limit": 3,
    "optimizer_barrier": True,
    "offload": "all",
    "host_link": "shared",
    "frozen": [True, False],
    "order": "search",
    "microbatch_tokens": [[4096, 2048], 8192],
    "training": {"tensor": 2, "context": 1, "data": 4, "expert": 1, "microbatch": 1, "sequence": 8},
    "time_unit": "us",
    "memory_unit": "GiB",
    "name": "mine",
    "objective": "device-span",
    "backward_kind": "whole",
    "fused": True,
    "time_limit": 2,
    "output": ["a.html"],
}
"""A value of every setting that does not take 2."""

SEEDS_FLAT_FORM = """
num_stages: 4
num_batches: 8
forward_times: [1, 1, 1, 1]
backward_times: [2, 2, 2, 2]
p2p_time: 0.0
output_file: "x.png"
"""


def dashed_too(spelling: str) -> set[str]:
    return {spelling, spelling.replace("_", "-")}


class TestSettings:
    def test_table_is_complete(self) -> None:
        assert set(SPELLINGS) == {
            setting.field for setting in SETTINGS if setting.scope is not SettingScope.ABOUT
        }
        for name, spellings in SPELLINGS.items():
            assert set(NAMED[name].names) == set(spellings)

    def test_pipeline_fields_and_their_defaults_are_those_of_pipeline(self) -> None:
        declared = {
            setting.field: setting for setting in SETTINGS if setting.scope is SettingScope.PIPELINE
        }
        defaults = {field.name: field.default for field in fields(Pipeline)}
        assert set(declared) == set(defaults) - {"rounded", "rounded_by", "grid"}
        for name, setting in declared.items():
            if setting.has_value:
                assert defaults[name] == setting.default
            else:
                assert defaults[name] in (None, "", False, MISSING)

    def test_defaults_of_a_run_are_those_of_solve(self) -> None:
        parameters = inspect.signature(solve).parameters
        for name in ("objective", "time_limit", "seed"):
            assert parameters[name].default == NAMED[name].default

    def test_objectives_are_those_of_metrics(self) -> None:
        assert NAMED["objective"].choices == tuple(objective.value for objective in Objective)

    @pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".toml", ".YAML", ".Json"])
    def test_every_spelling(self, tmp_path: Path, suffix: str) -> None:
        for name, spellings in SPELLINGS.items():
            value = SAMPLES.get(name, 2)
            for spelling in {form for each in spellings for form in dashed_too(each)}:
                path = write(tmp_path, suffix, as_text(suffix.lower(), spelling, value))
                assert read_config(path) == {name: value}, spelling

    @pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
    @pytest.mark.parametrize("name", ["batches", "forward", "p2p", "output"])
    def test_two_spellings_of_one_setting(self, suffix: str, name: str) -> None:
        first, second, *_ = SPELLINGS[name]
        text = {
            ".yaml": f"{first}: 2\n{second}: 2\n",
            ".json": f'{{"{first}": 2, "{second}": 2}}',
            ".toml": f"{first} = 2\n{second} = 2\n",
        }[suffix]
        if name == "output":
            text = text.replace("2", '"a.html"')
        message = refuse(text, suffix)
        assert f"{first} and {second} are the same setting" in message

    def test_dashed_and_underscored_are_the_same_setting(self) -> None:
        assert "time-limit and time_limit" in refuse("time-limit: 1\ntime_limit: 1")

    def test_null_does_not_hide_a_second_spelling(self) -> None:
        assert "are the same setting" in refuse("stages: null\nnum_stages: 2")

    def test_flat_form_of_the_seeds(self, tmp_path: Path) -> None:
        settings_ = read_config(write(tmp_path, ".yaml", SEEDS_FLAT_FORM))
        assert settings_ == {
            "stages": 4,
            "batches": 8,
            "forward": [1, 1, 1, 1],
            "backward": [2, 2, 2, 2],
            "p2p": 0,
            "output": ["x.png"],
        }
        pipe = pipeline_of(settings_)
        assert pipe == Pipeline(stages=4, batches=8, forward=1, backward=2)

    def test_null_means_not_given(self) -> None:
        text = "".join(f"{name}: null\n" for name in SPELLINGS)
        assert parse_config(text, ".yaml", "x") == {}
        assert parse_config("stages:\nbatches: ~\n", ".yaml", "x") == {}

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("true", "1f1b"),
            ("1f1b", "1f1b"),
            ('" 1F1B "', "1f1b"),
            ("7", 7),
            ("0.5", Decimal("0.5")),
            ("[1, 2.5]", [1, Decimal("2.5")]),
        ],
    )
    def test_mem_limit(self, text: str, limit: object) -> None:
        assert parse_config(f"mem_limit: {text}", ".yaml", "x") == {"mem_limit": limit}

    @pytest.mark.parametrize(
        ("text", "names"),
        [("a.html", ["a.html"]), ("[a.html, b.json]", ["a.html", "b.json"]), ("[]", [])],
    )
    def test_output(self, text: str, names: list[str]) -> None:
        assert parse_config(f"output: {text}", ".yaml", "x") == {"output": names}

    @pytest.mark.parametrize("text", ["0.5", "1e-1", "90", '"2.5"'])
    def test_time_limit_is_seconds(self, text: str) -> None:
        seconds = parse_config(f"time_limit: {text}", ".yaml", "x")["time_limit"]
        assert seconds == float(text.strip('"'))
        assert isinstance(seconds, float)

    def test_documentation_comes_back_under_about(self) -> None:
        about = {
            "source": "a paper",
            "description": "what it is",
            "date": "2024-05-01",
        }
        text = "".join(f'{key}: "{value}"\n' for key, value in about.items()) + "stages: 2\n"
        assert parse_config(text, ".yaml", "x") == {"stages": 2, "about": about}

    @pytest.mark.parametrize(
        ("suffix", "text"), [(".yaml", "date: 2024-05-01"), (".toml", "date = 2024-05-01")]
    )
    def test_bare_dates(self, suffix: str, text: str) -> None:
        assert parse_config(text, suffix, "x") == {"about": {"date": "2024-05-01"}}


class TestExactness:
    @pytest.mark.parametrize(
        ("suffix", "text"),
        [
            (".yaml", "forward: [0.1, 1e-3, 2.5E+1, .5, 3., -0.0]"),
            (".json", '{"forward": [0.1, 1e-3, 2.5E+1, 0.5, 3.0, -0.0]}'),
            (".toml", "forward = [0.1, 1e-3, 2.5E+1, 0.5, 3.0, -0.0]"),
        ],
    )
    def test_fractions_are_decimals(self, suffix: str, text: str) -> None:
        times = parse_config(text, suffix, "x")["forward"]
        expected = [Decimal(word) for word in ("0.1", "0.001", "25", "0.5", "3", "0")]
        assert times == expected
        assert all(isinstance(time, Decimal) for time in times)

    @pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
    def test_decimals_reach_the_pipeline_exactly(self, suffix: str) -> None:
        text = as_text(suffix, "p2p", 0.1)
        pipe = pipeline_of({"stages": 2, "batches": 2, **parse_config(text, suffix, "x")})
        assert pipe.p2p == Fraction(1, 10)
        assert pipe.rounded == ()

    @pytest.mark.parametrize("suffix", [".yaml", ".json", ".toml"])
    def test_a_matrix_of_pair_times_reaches_the_pipeline_exactly(self, suffix: str) -> None:
        text = as_text(suffix, "overlap_times", [[0.1, 2], [3, "0.4"]])
        pipe = pipeline_of({"stages": 2, "batches": 2, **parse_config(text, suffix, "x")})
        assert pipe.overlap == ((Fraction(1, 10), 2), (3, Fraction(2, 5)))

    def test_pair_times_carry_units(self) -> None:
        text = "stages: 2\nbatches: 2\ntime_unit: ms\noverlap: [[100us, 2ms], [3, 4]]"
        pipe = pipeline_of(parse_config(text, ".yaml", "x"))
        assert pipe.overlap == ((Fraction(1, 10), 2), (3, 4))

    def test_a_number_in_quotes_is_a_number(self) -> None:
        pipe = pipeline_of(parse_config('stages: 2\nbatches: 2\np2p: "1e-3"', ".yaml", "x"))
        assert pipe.p2p == Fraction(1, 1000)

    @pytest.mark.parametrize("word", ["yes", "no", "on", "1:30", "010", "1_000", "0x10", "<<"])
    def test_yaml_words_of_old_stay_text(self, word: str) -> None:
        assert parse_config(f"name: {word}", ".yaml", "x") == {"name": word}

    def test_leading_zeros_are_decimal_where_a_number_is_wanted(self) -> None:
        read = parse_config("stages: 1\nbatches: 1\nforward: 007", ".yaml", "x")
        assert pipeline_of(read).forward == (7,)

    def test_quotes_make_text_of_anything(self) -> None:
        assert parse_config("name: 'true'", ".yaml", "x") == {"name": "true"}


class TestPipelineOf:
    def test_takes_its_fields_and_leaves_the_rest(self) -> None:
        pipe = pipeline_of(
            {"stages": 4, "batches": 8, "p2p": None, "seed": 3, "output": ["x"], "about": {}}
        )
        assert pipe == Pipeline(stages=4, batches=8)

    @pytest.mark.parametrize("name", ["stages", "batches"])
    @pytest.mark.parametrize("given_as", [{}, {"stages": None, "batches": None}])
    def test_missing(self, name: str, given_as: dict[str, None]) -> None:
        settings_ = {**given_as, "stages": 4, "batches": 8}
        settings_.pop(name)
        example = {"stages": 4, "batches": 8}[name]
        message = f"{name}: missing; give --{name} {example}, or `{name}: {example}` in the config"
        with pytest.raises(InputError) as caught:
            pipeline_of(settings_)
        assert str(caught.value) == message

    @pytest.mark.parametrize("where", [[0, 1, 1, 0], (0, 1, 1, 0)])
    def test_a_placement_list_tells_the_stages(self, where: object) -> None:
        pipe = pipeline_of({"batches": 2, "placement": where})
        assert pipe == Pipeline(stages=4, batches=2, placement=[0, 1, 1, 0])

    def test_a_placement_list_and_stages_must_agree(self) -> None:
        with pytest.raises(InputError, match="placement: has 4 entries for 3 stages"):
            pipeline_of({"stages": 3, "batches": 2, "placement": [0, 1, 1, 0]})

    def test_a_named_placement_does_not(self) -> None:
        with pytest.raises(InputError, match="stages: missing"):
            pipeline_of({"batches": 2, "placement": "v"})


@given(st.text(max_size=60), st.sampled_from([".yaml", ".json", ".toml"]))
@settings(deadline=None)
def test_any_text_is_settings_or_refused(text: str, suffix: str) -> None:
    outcome = read_or_refusal(text, suffix)
    assert isinstance(outcome, dict) or re.fullmatch(r"x: .+", outcome)


def read_or_refusal(text: str, suffix: str) -> dict[str, object] | str:
    try:
        return parse_config(text, suffix, "x")
    except InputError as error:
        return str(error)


numbers = st.one_of(
    st.integers(-3, 6),
    st.booleans(),
    st.none(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["1e-3", "v", "1f1b", 10**40]),
)
values = st.recursive(
    numbers,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(
            sorted(setting.field for setting in SETTINGS if setting.scope is not SettingScope.ABOUT)
        ),
        values,
        max_size=5,
    )
)
@settings(deadline=None)
def test_any_value_is_a_pipeline_or_refused(document: dict[str, object]) -> None:
    try:
        pipeline = pipeline_of(
            {"stages": 2, "batches": 2, **parse_config(json.dumps(document), ".json", "x")}
        )
    except InputError:
        return
    assert pipeline.ticks.per_unit > 0
