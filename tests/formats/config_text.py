"""Config files for tests: settings written in the syntax of each format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats.config import parse_config


def write(folder: Path, suffix: str, text: str) -> Path:
    path = folder / f"pipe{suffix}"
    path.write_text(text, encoding="utf-8")
    return path


def as_text(suffix: str, key: str, value: object) -> str:
    """One setting, written in the syntax of a format."""
    literal = json.dumps(value)
    inline = literal.replace('": ', '" = ')
    return {
        ".yaml": f"{key}: {literal}\n",
        ".yml": f"{key}: {literal}\n",
        ".json": f'{{"{key}": {literal}}}',
        ".toml": f"{key} = {inline}\n",
    }[suffix]


def refuse(text: str, suffix: str = ".yaml") -> str:
    """Message of the refusal of a config: one line that begins with the name of the file."""
    with pytest.raises(InputError) as caught:
        parse_config(text, suffix, "conf/x.cfg")
    message = str(caught.value)
    assert message.startswith("conf/x.cfg: ")
    assert message.isprintable()
    return message
