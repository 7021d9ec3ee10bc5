"""The command that plans: which configuration to train with."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from typing import Annotated, Any

import typer

from ppopt.cli.application import command
from ppopt.cli.commands import exit_code, search_options, strategy_options
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
    time_limit="seconds that the whole plan takes at most (default: 60)",
    partition="how many layers of the model each stage holds: search (chosen with the schedule, "
    "with a bound over all partitions), balanced (the slowest stage is as fast as possible), even, "
    "a list of counts, or a layout of Megatron-LM such as Et*3|(tt|)*2tL (default: search)",
)
def plan(
    settings: Settings,
    batches: Annotated[
        str | None, _list("--batches", "Microbatches, one number or several: 16,32.")
    ] = None,
    placement: Annotated[
        str | None, _list("--placement", "Placements to try (linear,interleaved,v).")
    ] = None,
    chunks: Annotated[str | None, _list("--chunks", "Stages per device to try (1,2).")] = None,
    recompute: Annotated[
        str | None,
        _list(
            "--recompute",
            "Recompute to try: none, full (every decoder and mtp layer, as trainers do), search "
            "(chosen per stage), or layers, as the layers say (layers where one recomputes, else "
            "none; with a limit none,full,search, for Megatron-LM none,full).",
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
            help="What is to run the schedule: any, torch, or megatron (1F1B and interleaved).",
            rich_help_panel=Heading.STRATEGIES,
        ),
    ] = "any",
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="SHARE",
            help="Also name the least memory that is at most this much slower than the best: 1%.",
            rich_help_panel=Heading.SEARCH,
        ),
    ] = None,
) -> int:
    """Choose partition, placement, chunks, recompute and schedule.

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
        one.field: value
        for one in SETTINGS
        if one.part is Part.PIPELINE
        and one.field not in ("model", "name")
        and (value := settings.get(one.field)) is not None
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
