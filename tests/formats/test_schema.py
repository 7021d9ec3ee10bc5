"""The JSON Schema of config files: valid itself, and of one mind with the reader about types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ppopt.errors import InputError
from ppopt.formats.config import canonical, parse_config, pipeline_of, schema
from ppopt.formats.documents import parse_json
from ppopt.problem.settings import NAMED, SETTINGS
from tests.cli.cli_run import done
from tests.formats.test_config import SAMPLES, values
from tests.formats.test_config_refused import ANY_FORMAT

VALIDATOR = Draft202012Validator(schema())
MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.yaml"))
BEYOND = {
    "whole fraction for an int",
    "long text for a number",
    "huge int",
    "huge time",
    "two lines of text",
    "time",
    "empty file name",
}
"""Defects that the reader alone finds; in JSON Schema 8.0 is a whole number."""


def test_it_is_a_schema_and_the_command_prints_it() -> None:
    Draft202012Validator.check_schema(schema())
    assert json.loads(done("schema").out) == schema()


def test_every_name_is_in_it_and_described() -> None:
    properties = schema()["properties"]
    for name, setting in NAMED.items():
        for form in (name, name.replace("_", "-")):
            assert form in properties
        assert setting.meaning in properties[setting.name]["description"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_samples_and_defaults_are_valid(setting: Any) -> None:
    value = SAMPLES.get(setting.field, "a" if setting.part == "about" else 2)
    for name in setting.names:
        assert VALIDATOR.is_valid({name: value})
    assert VALIDATOR.is_valid({setting.name: None})
    if setting.has_value:
        assert VALIDATOR.is_valid({setting.name: setting.default})


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_are_valid(path: Path) -> None:
    read = parse_config(path.read_text(encoding="utf-8"), ".yaml", path.name)
    about = read.pop("about")
    assert VALIDATOR.is_valid(json.loads(json.dumps(read | about, default=float)))


@pytest.mark.parametrize("case", ANY_FORMAT)
def test_defects_of_type_are_refused(case: str) -> None:
    (key, value), _ = ANY_FORMAT[case]
    assert VALIDATOR.is_valid({key: value}) == (case in BEYOND)


@given(st.sampled_from(sorted(NAMED)), values)
@settings(max_examples=300, deadline=None)
def test_what_the_reader_takes_is_valid(name: str, value: object) -> None:
    text = json.dumps({name: value})
    assume("e-" not in text)  # below 0, and read as 0
    try:
        document = parse_json(text, "x")
        assert isinstance(document, dict)
        pipeline_of({"stages": 2, "batches": 2} | canonical(document))
    except InputError:
        return
    assert VALIDATOR.is_valid(json.loads(text))
