"""The commands of studies: `ppopt sweep` and `ppopt studies`."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import re
import shlex
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ppopt.cli.application import EXIT_INCOMPLETE, EXIT_UNKNOWN, command
from ppopt.cli.engines import ENGINE_OPTIONS, RETRIES, STORAGE, engine_of
from ppopt.cli.options import argument, option
from ppopt.cli.options import output as output_option
from ppopt.cli.settings import Settings, settings_but
from ppopt.cli.streams import note
from ppopt.errors import InputError

if TYPE_CHECKING:
    from ppopt.studies.sweep_grid import Grid

_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@command(
    settings_but(
        time_limit="time limit of the search of a row in seconds (default: 60)",
        workers="processors of every search; with 1, a search that ends before its time limit "
        "gives the same value each time (default: 1)",
        output="file for the rows: page (.html), .csv or .json; may be repeated",
    ),
    values=argument(
        "KEY=VALUES...",
        "Settings that vary, named as their flags without dashes, and `strategy`, e.g. "
        "batches=8,16 chunks=range(1,5) strategy=searched,1f1b.",
    ),
    retries=option("N", "Retries of a row whose process dies.", min=0, max=100),
    shard=option("I/N", "Only rows I, I + N, I + 2N, ..."),
    **ENGINE_OPTIONS,
)
def sweep(
    settings: Settings,
    values: list[str] | None = None,
    storage: str = STORAGE,
    study_name: str | None = None,
    jobs: int | None = None,
    retries: int = RETRIES,
    dask: str | None = None,
    dask_scheduler_file: str | None = None,
    shard: str = "1/1",
) -> int:
    """Solve every combination of a grid and store the results.

    The same command continues an interrupted sweep: stored rows are not solved again. Example:
    `ppopt sweep --stages 4 batches=8,16 strategy=searched,1f1b --mem-limit`.
    """
    from ppopt.cli import progress, studies_output
    from ppopt.studies import sweep as sweeps

    if not values:
        raise InputError(
            "sweep: nothing varies; name settings that vary, without dashes: batches=8,16"
        )
    grid = _grid(settings, values, shard)
    with ExitStack() as stack:
        engine = stack.enter_context(engine_of(jobs, dask, dask_scheduler_file, retries))
        line = stack.enter_context(progress.live_line(quiet=settings.quiet))
        study = sweeps.run(
            grid, engine, storage=storage, study_name=study_name, progress=line.update,
            command=shlex.join(("ppopt", *sys.argv[1:])),
        )  # fmt: skip
    code = studies_output.show_study(
        settings.output, study, as_json=settings.json, quiet=settings.quiet
    )
    if study.failed or study.not_stored:
        return EXIT_INCOMPLETE
    return code or (EXIT_UNKNOWN if study.interrupted and not study.done else 0)


def _grid(settings: Settings, values: list[str], shard: str) -> Grid:
    from ppopt.problem.settings import same_setting
    from ppopt.studies.overrides import parse
    from ppopt.studies.sweep_grid import Base, grid_of

    match = _SHARD.fullmatch(shard)
    if match is None:
        raise InputError(f"shard: {shard!r} is not I/N, as in 1/8")
    axes = {}
    for override in map(parse, values):
        if override.key in axes:
            raise same_setting(override.key, override.key)
        axes[override.key] = override.values
    base = {key: value for key, value in settings.values.items() if key != "output"}
    return grid_of(Base(base), axes, (int(match[1]), int(match[2])))


@command(
    arguments=argument(
        "[show NAME | merge URL...]",
        "Show the rows of a study, or copy the results of other storages into this one.",
    ),
    output=output_option("File for the rows of the study: .html, .csv or .json."),
    storage=ENGINE_OPTIONS["storage"],
)
def studies(
    arguments: list[str] | None = None,
    *,
    storage: str = STORAGE,
    output: list[str] | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """List, show, merge and export stored sweeps.

    Without arguments all studies of the storage are listed. Example: `ppopt studies show NAME -o
    rows.csv`.
    """
    from ppopt.cli import studies_output
    from ppopt.cli.files import writable
    from ppopt.studies.storage import Storage

    targets = writable(output or [])
    action, *rest = arguments or ["list"]
    if targets and action != "show":
        raise InputError("output: name the study whose rows are to be written: show NAME")
    match action, rest:
        case "list", []:
            with Storage(storage, readonly=True) as opened:
                return studies_output.list_studies(opened, as_json=json, quiet=quiet)
        case "show", [name]:
            with Storage(storage, readonly=True) as opened:
                return studies_output.show_trials(opened, name, targets, as_json=json, quiet=quiet)
        case "merge", [_, *_]:
            return _merge(storage, rest, as_json=json, quiet=quiet)
        case _:
            name = action if not rest and action not in ("show", "merge") else "NAME"
            raise InputError(
                f"{' '.join((action, *rest))}: write `ppopt studies show {name}` or `ppopt studies "
                "merge URL...`"
            )


def _merge(url: str, sources: list[str], *, as_json: bool, quiet: bool) -> int:
    """Take over storages, all of which can be read, into one that is made if there is none."""
    from ppopt.cli import studies_output
    from ppopt.studies.storage import Storage, named_by

    with ExitStack() as stack:
        named = [path for source in sources for path in named_by(source)]
        taken = [stack.enter_context(Storage(path, readonly=True)) for path in named]
        opened = stack.enter_context(Storage(url))
        for storage in taken:
            for reason in opened.merge(storage):
                note(f"note: left out: {reason}")
        return studies_output.list_studies(opened, as_json=as_json, quiet=quiet)
