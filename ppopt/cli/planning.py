"""The command that plans: which configuration to train with."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ppopt.cli.application import command
from ppopt.cli.commands import exit_code, search_options, strategy_options
from ppopt.cli.derivation_options import option, refuse_without_configuration
from ppopt.cli.parallel_planning import plan_over_parallelism
from ppopt.cli.settings import Settings, with_settings_but
from ppopt.problem.settings import NAMED, Heading
from ppopt.solver import interrupts


def _list(flag: str, words: str) -> Any:
    """An option that takes a list; it stands with the setting of its name, if there is one."""
    setting = NAMED.get(flag.removeprefix("--"))
    heading = Heading.STRATEGIES if setting is None else setting.heading
    return typer.Option(
        flag, metavar="LIST", help=words, show_default=False, rich_help_panel=heading
    )


@command
@with_settings_but(
    time_limit="time limit of the whole plan in seconds (default: 60)",
    partition="layers of each stage: search (chosen with the schedule), balanced (the slowest "
    "stage is as fast as possible), even, a list of counts, or a layout of Megatron-LM such as "
    "Et*3|(tt|)*2tL (default: search)",
    offload="which layers of the model move their activation to the host between F and the "
    "backward: none, or all that have an `offload_time` (default: as the layers say)",
)
def plan(
    settings: Settings,
    batches: Annotated[
        str | None, _list("--batches", "Numbers of microbatches to try, e.g. 16,32.")
    ] = None,
    placement: Annotated[
        str | None, _list("--placement", "Placements to try (linear,interleaved,v).")
    ] = None,
    chunks: Annotated[str | None, _list("--chunks", "Stages per device to try (1,2).")] = None,
    recompute: Annotated[
        str | None,
        _list(
            "--recompute",
            "Recompute modes to try: none, full (every decoder and mtp layer), search (chosen per "
            "stage), layers (as the layers say). Default: layers if any layer recomputes; else "
            "none, and with a memory limit also full and, but for Megatron-LM, search.",
        ),
    ] = None,
    strategies: Annotated[
        str | None,
        _list(
            "--strategies", "Schedules to try: optimal (the best of any order), 1f1b, zb-1p, ..."
        ),
    ] = None,
    runtime: Annotated[
        str,
        typer.Option(
            "--runtime",
            metavar="NAME",
            help="Only schedules that this runtime runs: any, torch, or megatron (1F1B and "
            "interleaved 1F1B).",
            rich_help_panel=Heading.STRATEGIES,
        ),
    ] = "any",
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="SHARE",
            help="Also report the least memory at which a step is at most this much slower than "
            "the best, e.g. 1%.",
            rich_help_panel=Heading.SEARCH,
        ),
    ] = None,
    derived_from: Annotated[
        Path | None,
        option(
            "--from",
            "CONFIG",
            "Also choose the parallelism: derive models from this config.json or folder.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, option("--gpu", "NAME", "With --from: the GPU; see `ppopt init --help`.")
    ] = None,
    gpus: Annotated[int | None, option("--gpus", "N", "With --from: total number of GPUs.")] = None,
    global_batch: Annotated[
        int | None,
        option("--global-batch", "N", "With --from: sequences of a step, over all GPUs."),
    ] = None,
    tensor: Annotated[
        str | None,
        option("--tensor", "LIST", "With --from: tensor parallel sizes, e.g. 1,2,4 (1)."),
    ] = None,
    microbatch: Annotated[
        str | None,
        option("--microbatch", "LIST", "With --from: sequences of a microbatch, e.g. 1,2 (1)."),
    ] = None,
    data: Annotated[
        str | None, option("--data", "LIST", "With --from: data parallel sizes, e.g. 1,2 (1).")
    ] = None,
    context_ranks: Annotated[
        int | None, option("--context", "N", "With --from: context parallel size (1).")
    ] = None,
    expert: Annotated[
        int | None, option("--expert", "N", "With --from: expert parallel size (1).")
    ] = None,
    sequence: Annotated[
        int | None, option("--sequence", "N", "With --from: tokens of a sequence (4096).")
    ] = None,
    precision: Annotated[
        str | None,
        option(
            "--precision",
            "NAME",
            "With --from: number format of matrix products, bf16 (default) or fp8.",
        ),
    ] = None,
    efficiency: Annotated[
        str | None,
        option(
            "--efficiency",
            "LIST",
            "With --from: achieved share of the GPU's peak FLOPs per second (0.4), one for all or "
            "one for each of --tensor.",
        ),
    ] = None,
) -> int:
    """Choose partition, placement, chunks, recompute and schedule.

    With --from config.json it also chooses among the sizes that --tensor, --data and --microbatch
    list, for a fixed number of GPUs and a fixed batch. Without these three it chooses among all
    tensor and data parallel sizes, and spreads experts over as many ranks as can share them.
    Example: `ppopt plan --model llama-3.1-8b --stages 8 --batches 32 --mem-limit 64GiB`.
    """
    from ppopt.cli import output, progress
    from ppopt.errors import InputError
    from ppopt.formats.config import missing, model_of
    from ppopt.formats.typed_values import share
    from ppopt.report.plan_objects import of_plan
    from ppopt.studies.plan import plan as search

    asked = {
        "batches": _numbers("batches", batches),
        "placement": _names(placement),
        "chunks": _numbers("chunks", chunks),
        "recompute": _names(recompute),
        "strategies": _names(strategies),
        "runtime": runtime.lower(),
        "options": strategy_options(settings),
        "within": None if within is None else share("within", within),
    }
    lists = {"tensor": tensor, "microbatch": microbatch, "data": data}
    typed = {
        "gpu": gpu,
        "gpus": gpus,
        "global_batch": global_batch,
        "efficiency": None if efficiency is None else _shares(efficiency),
        "context": context_ranks,
        "expert": expert,
        "sequence": sequence,
        "precision": precision,
        **{name: _numbers(name, words) for name, words in lists.items()},
    }
    parallel = {name: value for name, value in typed.items() if value is not None}
    if derived_from is not None:
        return plan_over_parallelism(settings, derived_from, parallel, asked)
    refuse_without_configuration(parallel)
    given = _given(settings) | {name: value for name, value in asked.items() if value is not None}
    for name in ("stages", "batches"):
        if name not in given:
            raise InputError(missing(name))
    model, devices = model_of(settings.values), given.pop("stages")
    interrupts.only_record()
    with progress.shown(quiet=settings.quiet, limit=settings.seconds) as line:
        found = search(
            model,
            devices=devices,
            **given,
            **search_options(settings),
            progress=line.update,
            began=settings.began,
        )
    code = output.show_plan(settings, of_plan(found), found)
    return code or exit_code(found.status)


def _given(settings: Settings) -> dict[str, Any]:
    """What files and flags say of the pipeline, but for the model."""
    from ppopt.problem.settings import SETTINGS, Part

    return {
        setting.field: value
        for setting in SETTINGS
        if setting.part is Part.PIPELINE
        and setting.field not in ("model", "name")
        and (value := settings.get(setting.field)) is not None
    }


def _names(text: str | None) -> tuple[str, ...] | None:
    """The words of a list."""
    if text is None:
        return None
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    """The numbers of a list; raises InputError on anything else."""
    from ppopt.formats.typed_values import whole

    if text is None:
        return None
    return tuple(whole(name, part.strip()) for part in text.split(","))


def _shares(text: str) -> tuple[float, ...]:
    """The shares of a list; raises InputError on anything else."""
    from ppopt.formats.typed_values import share

    return tuple(float(share("efficiency", part)) for part in text.split(","))
