"""The command that begins a model file of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppopt.cli.application import command
from ppopt.cli.derivation_options import option, refuse_without_configuration
from ppopt.cli.streams import note
from ppopt.errors import InputError
from ppopt.problem.settings import NAMED, Heading

if TYPE_CHECKING:
    from ppopt.derivation.derived_model import DerivedModel

SUFFIXES = (".yaml", ".yml")
SCHEMA = "ppopt-schema.json"
"""The JSON Schema beside a new file: editors complete its keys by it."""


@command
def init(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The file to write (.yaml).")
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "--from",
            "CONFIG",
            "Derive the layers from the config.json, or the folder, of a Hugging Face model: "
            "Llama, Mistral, Mixtral, Qwen2 and Qwen3 (dense and MoE), DeepSeek V2 and V3.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option(
            "--gpu",
            "NAME",
            "Required with --from: a100, h100, h200, h800, b200 or mi300x.",
            Heading.TIMES,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        option(
            "--precision",
            "NAME",
            "Number format of matrix products: bf16 (default) or fp8.",
            Heading.TIMES,
        ),
    ] = None,
    efficiency: Annotated[
        float | None,
        option(
            "--efficiency",
            "SHARE",
            "Achieved share of the GPU's peak FLOPs per second (default: 0.4).",
            Heading.TIMES,
        ),
    ] = None,
    measured: Annotated[
        float | None,
        option(
            "--calibrate",
            "MS",
            "Measured time of a step of 1F1B in milliseconds; sets the efficiency so that 1F1B "
            "takes as long.",
            Heading.TIMES,
        ),
    ] = None,
    link: Annotated[
        str | None,
        option(
            "--link", "LINK", "Link between devices (default: bandwidth=50GB/s).", Heading.TIMES
        ),
    ] = None,
    devices: Annotated[
        int | None, option("--devices", "N", "Pipeline parallel size (default: 4).")
    ] = None,
    batches: Annotated[
        int | None, option("--batches", "N", "Microbatches of a step, per data rank (default: 16).")
    ] = None,
    tensor: Annotated[int | None, option("--tensor", "N", "Tensor parallel size (1).")] = None,
    context: Annotated[int | None, option("--context", "N", "Context parallel size (1).")] = None,
    data: Annotated[int | None, option("--data", "N", "Data parallel size (1).")] = None,
    expert: Annotated[
        int | None, option("--expert", "N", "Expert parallel size, of data x context ranks (1).")
    ] = None,
    sequence: Annotated[
        int | None, option("--sequence", "N", "Tokens of a sequence (4096).")
    ] = None,
    microbatch: Annotated[
        int | None, option("--microbatch", "N", "Sequences of a microbatch (1).")
    ] = None,
    partition: Annotated[
        str | None,
        option(
            "--partition",
            "LIST",
            "Layers of every stage; see `ppopt solve --help`.",
            Heading.PIPELINE,
        ),
    ] = None,
) -> int:
    """Write a commented model file, ready to solve.

    Without FILE, print it. The JSON Schema of model files is written to the same folder, so that
    editors with a YAML language server complete and check the keys. With --from the layers are
    derived from a model's published dimensions; all other options need --from. Example: `ppopt init
    model.yaml --from config.json --gpu h100 --tensor 8`.
    """
    training = {
        "devices": devices,
        "batches": batches,
        "tensor": tensor,
        "context": context,
        "data": data,
        "expert": expert,
        "sequence": sequence,
        "microbatch": microbatch,
        "precision": precision,
    }
    hardware = {"gpu": gpu, "efficiency": efficiency, "link": link, "partition": partition}
    given = {name: value for name, value in (training | hardware).items() if value is not None}
    if config is None:
        refuse_without_configuration([*given, *([] if measured is None else ["calibrate"])])
        _write(file, _template(file))
        return 0
    model = _derived(config, given, measured)
    _write(file, model.text)
    note(f"derived, not measured: {model.parameters:,} parameters; {model.training.gpus} GPUs")
    return 0


def _template(file: Path | None) -> str:
    """The file that a user fills in, under the name that it gets."""
    from importlib.resources import files  # noqa: PLC0415  commands load on use

    text = (files("ppopt.formats") / "template.yaml").read_text(encoding="utf-8")
    return text if file is None else text.replace("model.yaml", file.name)


def _derived(config: Path, given: dict[str, Any], measured: float | None) -> DerivedModel:
    """The model of a config.json, on a pipeline that there is."""
    from ppopt.derivation.derived_model import derive_model  # noqa: PLC0415  loads on use
    from ppopt.formats.typed_values import typed_value  # noqa: PLC0415
    from ppopt.studies.calibrate import calibrate  # noqa: PLC0415

    if "gpu" not in given:
        raise InputError("gpu: missing; give --gpu h100, the GPU that trains the model")
    if measured is not None and "efficiency" in given:
        raise InputError("efficiency: --calibrate sets it; leave one of them out")
    if "partition" in given:
        given["partition"] = typed_value(NAMED["partition"], given["partition"])
    model = derive_model(config, **given)
    return model if measured is None else calibrate(model, measured)


def _write(file: Path | None, text: str) -> None:
    """Write a model file with its schema beside it, or print it."""
    if file is None:
        print(text, end="")
        return
    from ppopt.cli.files import check_place  # noqa: PLC0415  commands load on use
    from ppopt.formats.config import schema  # noqa: PLC0415
    from ppopt.formats.files import write  # noqa: PLC0415

    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file}: the file is YAML; end its name in .yaml")
    check_place(file)
    if file.exists():
        raise InputError(f"{file}: exists already; name a new file")
    beside = file.with_name(SCHEMA)
    write(file, f"# yaml-language-server: $schema={SCHEMA}\n{text}")
    if not beside.exists():
        write(beside, json.dumps(schema(), indent=2) + "\n")
    note(f"{file}: written; `ppopt solve --config {file}` solves it")
