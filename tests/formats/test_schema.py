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
from ppopt.formats.schedule_schema import schedule_schema
from ppopt.problem.settings import NAMED, SETTINGS
from tests.cli.cli_run import done, run
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
    value = SAMPLES.get(setting.field, "a" if setting.scope == "about" else 2)
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
@settings(deadline=None)
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


SCHEDULES = sorted((Path(__file__).parents[2] / "docs" / "pictures").glob("*.json"))


class TestSchedules:
    """The schema of native schedule files."""

    def test_the_command_prints_it(self) -> None:
        Draft202012Validator.check_schema(schedule_schema())
        assert json.loads(done("schema schedule").out) == schedule_schema()
        assert json.loads(done("schema config").out) == schema()

    @pytest.mark.parametrize(
        "line",
        ["dualpipe", "seq-1f1b", "1f1b --p2p-time 1 --link-mode streams", "zbv --static 2.5"],
    )
    def test_files_are_valid(self, line: str, tmp_path: Path) -> None:
        done(f"eval {line} --stages 4 --batches 8 --quiet -o", tmp_path / "a.json")
        document = json.loads((tmp_path / "a.json").read_text())
        validator = Draft202012Validator(schedule_schema())
        assert [error.message for error in validator.iter_errors(document)] == []
        for broken in (
            document | {"operations": []},
            document | {"ops": [["F", 0, 0, 0, 0]]},
            document | {"ops": [["X", 0, 0, 0, 0, 1]]},
            document | {"pipeline": document["pipeline"] | {"mem": 3}},
            {key: value for key, value in document.items() if key != "pipeline"},
        ):
            assert not validator.is_valid(broken)

    @pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
    def test_files_of_the_docs_are_valid(self, path: Path) -> None:
        Draft202012Validator(schedule_schema()).validate(json.loads(path.read_text()))


@pytest.mark.parametrize(
    "line",
    [
        "solve --stages 3 --batches 4 --mem-limit --workers 1",
        "solve --stages 2 --batches 2 --mem-limit 0.5",
        "eval v-half --stages 2 --batches 2 --jitter 0.1",
    ],
)
def test_results_have_the_schema_of_their_declared_figures(line: str) -> None:
    described = json.loads(done("schema result").out)
    Draft202012Validator.check_schema(described)
    output = json.loads(run(f"{line} --json").out)
    Draft202012Validator(described).validate(output)
    assert output.keys() <= described["properties"].keys()
    wrong = output | {"makespan": "soon"}
    assert not Draft202012Validator(described).is_valid(wrong)
