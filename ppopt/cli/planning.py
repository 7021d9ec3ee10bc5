"""The command that plans: which configuration to train with."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from typing import Any

from ppopt.cli.application import command
from ppopt.cli.commands import exit_code, searching, strategy_options
from ppopt.cli.current import CURRENT, read_current
from ppopt.cli.derivation_options import (
    FROM,
    PLAN,
    Derivation,
    DerivationGroup,
    refuse_without_configuration,
)
from ppopt.cli.options import flag, names, option
from ppopt.cli.parallel_planning import plan_over_parallelism
from ppopt.cli.settings import Settings, settings_but
from ppopt.errors import InputError
from ppopt.problem.setting import Heading
from ppopt.problem.settings import NAMED


@command(
    DerivationGroup(PLAN),
    settings_but(
        time_limit="time limit of the whole plan in seconds (default: 60)",
        partition="layers of each stage: search (chosen with the schedule), balanced (the slowest "
        "stage is as fast as possible), even, a list of counts, or a layout of Megatron-LM such as "
        "Et*3|(tt|)*2tL (default: search)",
        offload="which layers of the model move their activation to the host between F and the "
        "backward: none, all that have an `offload_time`, or search (chosen with the schedule) "
        "(default: set per layer in the file)",
    ),
    batches=option("LIST", "Numbers of microbatches to try, e.g. 16,32.", Heading.PIPELINE),
    placement=option("LIST", "Placements to try (linear,interleaved,v).", Heading.PIPELINE),
    chunks=option("LIST", "Stages per device to try (1,2).", Heading.PIPELINE),
    recompute=option(
        "LIST",
        "Recompute modes to try: none, full (every decoder and mtp layer), selective (core "
        "attention), modules such as layernorm+moe_act, search, search-set, layers (set per layer "
        "in the file), or a trainer's file. The mode search chooses per stage; for Megatron-LM it "
        "is search-set, which chooses one set of modules for all layers. Default: layers if any "
        "layer sets recompute. Otherwise none; with a memory limit also full and search.",
        NAMED["recompute"].heading,
    ),
    strategies=option(
        "LIST",
        "Schedules to try: searched (the best of any order), 1f1b, zb-1p, ...",
        Heading.STRATEGIES,
    ),
    current=CURRENT,
    details=flag("Also print exact figures and the proof.", Heading.OUTPUT),
    runtime=option(
        "NAME",
        "Only schedules that this runtime runs: any, torch, primus, or megatron (1F1B and "
        "interleaved 1F1B).",
        Heading.STRATEGIES,
    ),
)
def plan(
    settings: Settings,
    derivation: Derivation,
    batches: str | None = None,
    placement: str | None = None,
    chunks: str | None = None,
    recompute: str | None = None,
    strategies: str | None = None,
    current: str | None = None,
    runtime: str = "any",
    within: str | None = None,
    *,
    details: bool = False,
) -> int:
    """Choose partition, placement, chunks, recompute and schedule.

    With --from config.json it also chooses the sizes of tensor, context, data and expert
    parallelism and of a microbatch, for a fixed number of GPUs and a fixed batch: those that are
    listed, or all that make sense.
    Example: `ppopt plan --model llama-3.1-8b --stages 8 --batches 32 --mem-limit 64GiB`.
    """
    from ppopt.cli import output
    from ppopt.formats.config import missing, model_of
    from ppopt.formats.typed_values import share
    from ppopt.studies.plan import plan as search

    lists = {
        "batches": _numbers("batches", batches),
        "placement": names(placement),
        "chunks": _numbers("chunks", chunks),
        "recompute": _recompute_modes(recompute),
        "strategies": names(strategies),
        "current": read_current(settings, current),
        "runtime": runtime.lower(),
        "options": strategy_options(settings),
        "within": None if within is None else share("within", within),
    }
    asked = {name: value for name, value in lists.items() if value is not None}
    if FROM in derivation:
        return plan_over_parallelism(settings, derivation, asked)
    refuse_without_configuration(derivation)
    arguments = _pipeline_arguments(settings) | asked
    for name in ("stages", "batches"):
        if name not in arguments:
            raise InputError(missing(name))
    model, devices = model_of(settings.values), arguments.pop("stages")
    with searching(settings) as options:
        result = search(model, devices=devices, **arguments, **options)
    code = output.show_plan(settings, result, details=details)
    return code or exit_code(result.status)


def _pipeline_arguments(settings: Settings) -> dict[str, Any]:
    """What files and flags say of the pipeline, but for the model."""
    from ppopt.problem.setting import SettingScope
    from ppopt.problem.settings import SETTINGS

    return {
        setting.field: value
        for setting in SETTINGS
        if setting.scope is SettingScope.PIPELINE
        and setting.field not in ("model", "name")
        and (value := settings.get(setting.field)) is not None
    }


def _numbers(name: str, text: str | None) -> tuple[int, ...] | None:
    """The numbers of a list; raises InputError on anything else."""
    from ppopt.formats.typed_values import whole

    if text is None:
        return None
    return tuple(whole(name, part.strip()) for part in text.split(","))


def _recompute_modes(text: str | None) -> tuple[str, ...] | None:
    """The modes of a list, or that of a trainer's file; raises InputError if it is of layers."""
    from ppopt.formats import trainer_file

    stated = None if text is None else trainer_file.value_of("recompute", text)
    if stated is None:
        return names(text)
    if not isinstance(stated, str):
        raise InputError(f"recompute: {text} lists layers, and a plan chooses them; use search")
    return (stated,)
