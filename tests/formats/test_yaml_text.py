"""YAML by the parser of libyaml and by PyYAML's own: the same documents, the same errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ppopt.errors import InputError
from ppopt.formats import yaml_text

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.yaml"))
BROKEN = [
    "a: [1",
    "a: *b",
    "a: !x 1",
    "a: 1\na: 2",
    "1: 2",
    "a: {b: 1",
    "a: 'b",
    "\ta: 1",
    "- a\nb",
]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_both_parsers_read_the_same(path: Path) -> None:
    text = path.read_text()
    documents = [
        yaml.load(text, Loader=loader) for loader in (yaml_text._FAST_LOADER, yaml_text._Loader)
    ]
    assert documents[0] == documents[1] and len(documents[0]) > 3


@pytest.mark.parametrize("text", BROKEN)
def test_errors_do_not_depend_on_the_parser(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as fast:
        yaml_text.parse_yaml(text, "here")
    monkeypatch.setattr(yaml_text, "_FAST_LOADER", yaml_text._Loader)
    with pytest.raises(InputError) as slow:
        yaml_text.parse_yaml(text, "here")
    assert str(fast.value) == str(slow.value)
