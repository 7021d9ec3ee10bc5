"""Settings: one name after another means the same in Python, in files and on the command line."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.formats.config import canonical, pipeline_of
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.setting import Setting, SettingScope, Shape
from ppopt.problem.settings import COUNTS, NAMED, SETTINGS, SYNONYMS
from tests.cli.cli_run import json_of, run

SIZE = {"stages": 2, "batches": 4}
SAMPLES = {
    "placement": "v",
    "name": "mine",
    "routes": 2,
    "stages": 3,
    "batches": 6,
    "overlap": 3,
    "time_unit": "us",
    "memory_unit": "GiB",
    "model": [
        {"forward": 1, "count": 4, "output": 6, "activation": 1, "offload_time": 1}
        | {"modules": [{"name": "norm", "time": 1, "memory": 1, "offload_time": 1}]},
    ],
    "partition": "even",
    "partition_order": "ranks",
    "recompute": "full",
    "recompute_modules": "norm",
    "offload_modules": "norm",
    "offload_fraction": "0.5",
    "link": {"latency": 1, "bandwidth": 2},
    "link_mode": "streams",
    "first_backward": "weight",
    "optimizer_barrier": True,
    "offload": "all",
    "host_link": "shared",
    "recompute_unit": "stage",
    "frozen": True,
    "training": {"tensor": 2, "data": 4, "sequence": 4096},
    "microbatch_tokens": [[1, 2], 3, 4, 5],
    "order": "search",
}
LAYERED = (
    *("partition", "recompute", "recompute_unit", "link", "first_backward", "offload"),
    *("recompute_modules", "offload_modules", "offload_fraction"),
)
NEEDS: dict[str, dict[str, object]] = {
    **{name: {"layers": SAMPLES["model"]} for name in LAYERED},
    "partition_order": {"layers": SAMPLES["model"], "partition": [1, 1, 1, 1]},
    "overlap_input": {"overlap_times": 3},
    "offload_memory": {"offload_time": 1},
    "offload_time": {"offload_memory": 1},
    "microbatch_tokens": {"reference_tokens": 4},
    "attention_share": {"reference_tokens": 4, "microbatch_tokens": [1, 2, 3, 4]},
    "reference_tokens": {"microbatch_tokens": [1, 2, 3, 4]},
}
"""What a setting does not go without."""
ALIASED = [
    (setting, name)
    for setting in SETTINGS
    if setting.scope is SettingScope.PIPELINE
    for name in setting.names
]


def sample(setting: Setting) -> object:
    return SAMPLES.get(setting.field, 1)


def test_names_are_of_one_setting_each() -> None:
    assert len(NAMED) == sum(len(setting.names) for setting in SETTINGS)


@pytest.mark.parametrize(("setting", "name"), ALIASED, ids=lambda value: str(value)[:20])
def test_python_takes_every_name(setting: Setting, name: str) -> None:
    companions = {key: value for key, value in SIZE.items() if key != setting.field}
    companions |= NEEDS.get(setting.field, {})
    expected = pipeline_of(canonical(companions | {setting.name: sample(setting)}))
    assert Pipeline(**companions, **{name: sample(setting)}) == expected


OWN_FLAGS = {setting.own_flag.removeprefix("--") for setting in SETTINGS}
"""Names that as flags are those of another setting: `--backward` is the kind, not the time."""


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (setting, name)
        for setting, name in ALIASED
        if setting.has_flag and setting.field not in NEEDS and name not in OWN_FLAGS
    ],
    ids=lambda v: str(v)[:20],
)
def test_flags_take_every_name(setting: Setting, name: str) -> None:
    sizes = {"stages": 2, "batches": 4, setting.field: sample(setting)}
    size_flags = {
        NAMED[field].flag: value for field, value in sizes.items() if field != setting.field
    }
    flags = " ".join(f"{flag} {value}" for flag, value in size_flags.items())
    strategy = {"placement": "zbv", "chunks": "1f1b", "routes": "dualpipe"}.get(setting.field)
    line = f"eval {strategy or 'gpipe'} {flags}"
    if setting.field == "slices":
        line = line.replace("gpipe", "seq-1f1b")
    if setting in COUNTS:
        line = f"{line} --time-unit ms"
    written = name.replace("_", "-")
    if setting.shape is Shape.FLAG:
        assert json_of(f"{line} --{written}")["schedule"] != json_of(line)["schedule"]
        return
    expected = _schedule(f"{line} {setting.flag} {sample(setting)}")
    assert _schedule(f"{line} --{written} {sample(setting)}") == expected
    if name == setting.names[-1]:
        assert _schedule(f"{line} --{written}={sample(setting)}") == expected


@cache
def _schedule(line: str) -> Any:
    return json_of(line)["schedule"]


def test_one_setting_under_two_names() -> None:
    with pytest.raises(InputError, match="forward and forward_times are the same setting"):
        Pipeline(**SIZE, forward=1, forward_times=1)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("forward_time", "forward_times"),
        ("p2", "p2p"),
        ("seed", ""),
        ("microbatch", "batches"),
        ("num_micro_batches", "batches"),
        ("devices", "stages"),
        ("vpp", "chunks"),
    ],
)
def test_unknown_name(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"Pipeline takes no '{name}'; did you mean {near}"):
        Pipeline(**SIZE, **{name: 1})


@pytest.mark.parametrize("name", ["activation", "static", "forward", "p2p"])
def test_what_nothing_takes_the_place_of_is_not_none(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: None is not a number"):
        Pipeline(**SIZE, **{name: None})


def test_a_pipeline_stays_a_dataclass() -> None:
    pipe = Pipeline(2, 4, forward_times=[1, 2])
    assert replace(pipe, batches=6).forward == pipe.forward
    assert pickle.loads(pickle.dumps(pipe)) == copy.copy(pipe) == pipe


def test_unknown_flag_names_the_nearest() -> None:
    ran = run("solve --stages 2 --batches 2 --forward-time 3")
    assert (ran.code, ran.out) == (2, "")
    assert "--forward-times" in ran.err


def test_a_word_of_other_tools_leads_to_the_flag() -> None:
    assert run("solve --stages 2 --micro-batches 2").err.endswith("did you mean --batches?\n")


def test_no_word_of_other_tools_is_a_name() -> None:
    assert set(chain(*SYNONYMS.values())).isdisjoint(NAMED)
    assert NAMED.keys() >= SYNONYMS.keys()
