"""The command that begins a model file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ppopt.cli.application import command
from ppopt.cli.streams import note
from ppopt.errors import InputError

SUFFIXES = (".yaml", ".yml")
SCHEMA = "ppopt-schema.json"
"""The JSON Schema beside a new file: editors complete its keys by it."""


@command
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The file to write (.yaml).")
    ] = None,
) -> int:
    """Write a commented model file that runs as it is.

    Without FILE, print it. Its JSON Schema is written beside it, so that editors with a YAML
    language server complete and check the keys. Example: `ppopt init model.yaml`.
    """
    from importlib.resources import files  # noqa: PLC0415  commands load on use

    text = (files("ppopt.formats") / "template.yaml").read_text(encoding="utf-8")
    if file is None:
        print(text, end="")
        return 0
    from ppopt.cli.files import check_place  # noqa: PLC0415  commands load on use
    from ppopt.formats.config import schema  # noqa: PLC0415
    from ppopt.formats.files import write  # noqa: PLC0415

    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: the file is YAML; end its name in .yaml")
    check_place(file)
    if file.exists():
        raise InputError(f"{file}: exists already; name a new file")
    beside = file.with_name(SCHEMA)
    named = text.replace("model.yaml", file.name)
    write(file, f"# yaml-language-server: $schema={SCHEMA}\n{named}")
    if not beside.exists():
        write(beside, json.dumps(schema(), indent=2) + "\n")
    note(f"{file}: written; `ppopt solve --config {file}` solves it")
    return 0
