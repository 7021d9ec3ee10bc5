"""Plans over the parallelism: what `ppopt plan --from config.json` does."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppopt.cli.commands import exit_code
from ppopt.cli.derivation_options import FROM
from ppopt.cli.settings import Settings
from ppopt.errors import InputError
from ppopt.solver import interrupts

NEEDED = ("gpu", "gpus", "global_batch")
TRAINING = ("sequence", "precision")
"""Fields of `Training` that are the same in all combinations."""
TAKEN = ("mem_limit", "link")
"""Settings of a pipeline that such a plan takes; all others are derived."""
LEFT_OUT = ("objective", "backward_kind", "fused", "group_size", "waves")
"""Settings of a run that such a plan does not take: it has the shortest step of mixed backwards."""


def plan_over_parallelism(
    settings: Settings, derivation: Mapping[str, Any], asked: Mapping[str, Any]
) -> int:
    """Plan every combination of a parallelism; `asked` are the options of every plan."""
    from ppopt.cli import output, progress
    from ppopt.derivation.config_json import read_architecture
    from ppopt.derivation.gpus import gpu_named
    from ppopt.report.parallel import of_parallel_plan
    from ppopt.studies.parallel_plan import PlanArguments, plan_parallelism
    from ppopt.studies.parallel_space import ParallelSpace

    _check(settings, derivation)
    if asked["within"] is not None:
        raise InputError("within: not of a plan over the parallelism; leave it out")
    link = settings.get("link")
    own = (FROM, "gpu", *TRAINING)
    space = ParallelSpace(
        architecture=read_architecture(Path(derivation[FROM])),
        gpu=gpu_named(derivation["gpu"]),
        link=link,
        training={name: value for name, value in derivation.items() if name in TRAINING},
        **{name: value for name, value in derivation.items() if name not in own},
    )
    names = ("placement", "chunks", "recompute", "strategies", "runtime")
    chosen = {name: asked[name] for name in names if asked[name] is not None}
    if "placement" in chosen:
        chosen["placements"] = chosen.pop("placement")
    interrupts.only_record()
    with progress.shown(quiet=settings.quiet, limit=settings.seconds) as line:
        found = plan_parallelism(
            space,
            PlanArguments(mem_limit=settings.get("mem_limit"), **chosen),
            time_limit=settings.seconds,
            workers=settings.get("workers"),
            seed=settings.get("seed", 0),
            progress=line.update,
            began=settings.began,
        )
    return output.show_parallel_plan(settings, of_parallel_plan(found), found) or exit_code(
        found.status
    )


def _check(settings: Settings, derivation: Mapping[str, Any]) -> None:
    """Refuse what a plan over the parallelism does not take, and what it lacks."""
    from ppopt.problem.settings import LIMIT_1F1B, SETTINGS, Part

    for name in NEEDED:
        if name not in derivation:
            flag = name.replace("_", "-")
            raise InputError(f"{flag}: missing; a plan over the parallelism needs --{flag}")
    pipeline = {
        setting.field: setting.name for setting in SETTINGS if setting.part is Part.PIPELINE
    }
    for field, name in pipeline.items():
        if field not in TAKEN and settings.get(field) is not None:
            raise InputError(f"{name}: --from config.json derives it; leave it out")
    for name in LEFT_OUT:
        if settings.get(name) is not None:
            raise InputError(f"{name}: not of a plan over the parallelism; leave it out")
    if settings.get("mem_limit") == LIMIT_1F1B:
        raise InputError("mem_limit: give a number, 72GiB; 1F1B differs between combinations")
