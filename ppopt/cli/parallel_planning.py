"""Plans over the parallelism: what `ppopt plan --from config.json` does."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import dataclasses
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppopt.cli.application import EXIT_INCOMPLETE
from ppopt.cli.commands import exit_code
from ppopt.cli.derivation_options import (
    FROM,
    Derivation,
    calibrated,
    derivation_fields,
    note_unlike_measured,
)
from ppopt.cli.engines import STORAGE, engine_of
from ppopt.cli.settings import Settings
from ppopt.cli.streams import note
from ppopt.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ppopt.studies.parallel_result import ParallelPlan
    from ppopt.studies.parallel_space import ParallelSpace

NEEDED = ("gpu", "gpus", "global_batch")


def plan_over_parallelism(
    settings: Settings, derivation: Derivation, asked: Mapping[str, Any]
) -> int:
    """Plan every combination of a parallelism; `asked` are the options of a plan that are given."""
    from ppopt.cli import output, progress
    from ppopt.problem.microbatches import GIVEN_ORDER
    from ppopt.studies.parallel_plan import plan_parallelism
    from ppopt.studies.parallel_set_up import PlanArguments
    from ppopt.studies.parallel_task import StudyOptions

    _check(settings, derivation, asked)
    fields = derivation_fields(derivation)
    processes = [fields.pop(name, None) for name in ("jobs", "dask", "dask_scheduler_file")]
    storage, study = (fields.pop(name, None) for name in ("storage", "study_name"))
    space, shares = _space(settings, fields, Path(derivation[FROM]))
    names = {"placement": "placements"}
    chosen = {names.get(name, name): asked[name] for name in asked if name != "options"}
    with ExitStack() as stack:
        own = processes == [None] * len(processes)
        engine = None if own else stack.enter_context(engine_of(*processes))
        line = stack.enter_context(progress.live_line(quiet=settings.quiet, limit=settings.seconds))
        parallel_plan = plan_parallelism(
            space,
            PlanArguments(
                mem_limit=settings.get("mem_limit"),
                order=settings.get("order", GIVEN_ORDER),
                offload=settings.get("offload"),
                **chosen,
            ),
            time_limit=settings.seconds,
            workers=settings.get("workers", None if own else 1),
            seed=settings.get("seed", 0),
            progress=line.update,
            began=settings.began,
            engine=engine,
            study=StudyOptions(storage or STORAGE, study, shlex.join(("ppopt", *sys.argv[1:])))
            if storage or study
            else None,
        )
    code = output.show_parallel_plan(settings, parallel_plan)
    if shares and parallel_plan.best is not None:
        note_unlike_measured(parallel_plan.best.model, shares)
    return code or _incomplete(parallel_plan) or exit_code(parallel_plan.status)


def _space(
    settings: Settings, fields: dict[str, Any], config: Path
) -> tuple[ParallelSpace, Sequence[float]]:
    """Space of the fields of a derivation, and shares of communication of measured steps."""
    from ppopt.derivation.config_json import read_architecture
    from ppopt.derivation.derived_model import DerivedModel
    from ppopt.derivation.gpus import gpu_named
    from ppopt.derivation.training import Training
    from ppopt.studies.parallel_space import DIMENSIONS, ParallelSpace

    measured = fields.pop("calibrate", None)
    trained = {field.name for field in dataclasses.fields(Training)} - set(DIMENSIONS)
    space = ParallelSpace(
        architecture=read_architecture(config),
        gpu=gpu_named(fields.pop("gpu")),
        link=settings.get("link"),
        training={name: fields.pop(name) for name in trained & fields.keys()},
        **fields,
    )
    if measured is None:
        return space, ()
    training = Training(devices=1, **space.training)
    model = DerivedModel(space.architecture, training, space.gpu, link=space.link)
    fitted, shares = calibrated(model, Path(measured))
    note(f"calibrated: {fitted.calibration}")
    return dataclasses.replace(space, scale=fitted.scale), shares


def _incomplete(parallel_plan: ParallelPlan) -> int:
    """Note what is missing, and return the exit code for it; 0: nothing is."""
    storage = parallel_plan.storage
    failed = any(row.failed is not None for row in parallel_plan.rows)
    if storage is not None:
        for reason in storage.damaged:
            note(f"note: searched again: {reason}")
        if storage.not_stored is not None:
            note(f"error: not stored: {storage.not_stored}")
            failed = True
    return EXIT_INCOMPLETE if failed else 0


def _check(settings: Settings, derivation: Derivation, asked: Mapping[str, Any]) -> None:
    """Refuse what a plan over the parallelism does not take, and what it lacks."""
    from ppopt.problem.setting import SettingScope
    from ppopt.problem.settings import LIMIT_1F1B, SETTINGS

    for name in NEEDED:
        if name not in derivation:
            flag = name.replace("_", "-")
            raise InputError(f"{flag}: missing; a plan over the parallelism needs --{flag}")
    for setting in SETTINGS:
        if setting.of_parallelism or settings.get(setting.field) is None:
            continue
        if setting.scope is SettingScope.PIPELINE:
            raise InputError(f"{setting.name}: --from config.json derives it; leave it out")
        if setting.scope is SettingScope.RUN:
            raise InputError(f"{setting.name}: not of a plan over the parallelism; leave it out")
    if settings.get("mem_limit") == LIMIT_1F1B:
        raise InputError("mem_limit: give a number, 72GiB; 1F1B differs between combinations")
    _check_asked(asked)


def _check_asked(asked: Mapping[str, Any]) -> None:
    """Refuse options of a plan of one model."""
    if "batches" in asked:
        raise InputError("batches: --global-batch and --microbatch decide it; leave it out")
    if not isinstance(asked.get("current"), str | None):
        raise InputError(
            "given: a schedule has one parallelism, and this plan compares several; name a strategy"
        )
    if "within" in asked:
        raise InputError("within: not of a plan over the parallelism; leave it out")
