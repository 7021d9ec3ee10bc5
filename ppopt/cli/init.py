"""The command that begins a model file of one's own."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ppopt.cli.application import command
from ppopt.cli.derivation_options import (
    FROM,
    INIT,
    Derivation,
    DerivationGroup,
    calibrated,
    derivation_fields,
    init_command,
    note_unlike_measured,
    refuse_without_configuration,
)
from ppopt.cli.options import argument
from ppopt.cli.streams import note
from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.settings import NAMED

if TYPE_CHECKING:
    from ppopt.derivation.derived_model import DerivedModel

SUFFIXES = (".yaml", ".yml")
SCHEMA = "ppopt-schema.json"
"""The JSON Schema next to a new file: editors complete its keys by it."""


@command(DerivationGroup(INIT), file=argument("[FILE]", "The file to write (.yaml)."))
def init(derivation: Derivation, file: Path | None = None) -> int:
    """Write a commented model file, ready to solve.

    Without FILE, print it. The JSON Schema of model files is written to the same folder, so that
    editors with a YAML language server complete and check the keys. With --from the layers are
    derived from a model's published dimensions; all other options need --from. Example: `ppopt init
    model.yaml --from config.json --gpu h100 --tensor 8`. `ppopt init --gpu` lists the GPUs.
    """
    if derivation == {"gpu": ""} and file is None:
        from rich.text import Text

        from ppopt.cli.output import print_parts
        from ppopt.report.derivation import GPU_LEGEND, gpu_table

        print_parts([gpu_table(), Text(GPU_LEGEND)])
        return 0
    if FROM not in derivation:
        refuse_without_configuration(derivation)
        _write(file, _template(file))
        return 0
    model = _derived(derivation)
    if derivation.get("explain"):
        return _explain(model, file)
    command_line = init_command({**derivation, "explain": True})
    if command_line.isprintable():  # else it is no comment of one line
        model = replace(model, explaining_command=command_line)
    _write(file, model.text)
    for sentence in model.architecture.notes:
        note(f"note: {sentence}")
    note(f"derived, not measured: {model.parameters:,} parameters; {model.training.gpus} GPUs")
    return 0


def _explain(model: DerivedModel, file: Path | None) -> int:
    from ppopt.cli.output import print_parts
    from ppopt.report.derivation import explanation_tables

    if file is not None:
        raise InputError(f"{file}: --explain prints and writes no file; leave one of them out")
    for title, table in explanation_tables(model):
        print_parts([title, table, ""])
    if model.attention_share is not None:
        print_parts(
            [
                f"attention: {100 * model.attention_share:.1f} % of all F and BW grows with the "
                f"square of a document's length, at {model.training.sequence} tokens"
            ]
        )
    return 0


def _template(file: Path | None) -> str:
    """The file that a user fills in, under the name that it gets."""
    from importlib.resources import files

    text = (files("ppopt.formats") / "template.yaml").read_text(encoding="utf-8")
    return text if file is None else text.replace("model.yaml", file.name)


def _derived(derivation: Derivation) -> DerivedModel:
    """The model of a config.json, on a pipeline that there is."""
    from ppopt.derivation.derived_model import derive_model
    from ppopt.formats.typed_values import typed_value

    fields = derivation_fields(derivation)
    fields.pop("explain", None)
    config, measured = Path(derivation[FROM]), fields.pop("calibrate", None)
    if "gpu" not in fields:
        raise InputError("gpu: missing; give --gpu h100, the GPU that trains the model")
    if "partition" in fields:
        fields["partition"] = typed_value(NAMED["partition"], fields["partition"])
    model = derive_model(config, **fields)
    if measured is None:
        return model
    if exact.is_number(measured):
        from ppopt.studies.calibrate import calibrate

        return calibrate(model, float(exact.read(measured, "calibrate").value))
    fitted, shares = calibrated(model, Path(measured))
    note_unlike_measured(fitted, shares)
    return fitted


def _write(file: Path | None, text: str) -> None:
    """Write a model file with its schema next to it, or print it."""
    if file is None:
        print(text, end="")
        return
    from ppopt.cli.files import check_place
    from ppopt.formats.config import schema
    from ppopt.formats.files import write

    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: the file is YAML; end its name in .yaml")
    check_place(file)
    if file.exists():
        raise InputError(f"{file}: exists already; name a new file")
    beside = file.with_name(SCHEMA)
    write(file, f"# yaml-language-server: $schema={SCHEMA}\n{text}")
    if not beside.exists():
        write(beside, json.dumps(schema(), indent=2) + "\n")
    note(f"{file}: written; next: `ppopt plan --config {file}`")
