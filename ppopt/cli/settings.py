"""The options that commands share, made from `ppopt.problem.settings`, and their result."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ppopt.cli.options import one_of, option, optional
from ppopt.cli.streams import note
from ppopt.errors import InputError
from ppopt.formats.typed_values import WHOLE, typed_value
from ppopt.problem.setting import Heading, Setting, SettingScope, Shape
from ppopt.problem.settings import COUNTS, NAMED, SETTINGS

if TYPE_CHECKING:
    from ppopt.cli.files import Target
    from ppopt.problem.pipeline import Pipeline


@dataclass(frozen=True)
class Settings:
    """Settings by their names in Python (see `ppopt.formats.config`), and where results go."""

    values: dict[str, Any]
    output: tuple[Target, ...]
    json: bool
    quiet: bool
    began: float
    """The instant of `time.monotonic` from which time limits count."""

    def pipeline(self, default: Pipeline | None = None) -> Pipeline:
        """Build the pipeline, or change the default if only replaceable fields are given.

        Raises InputError if they do neither.
        """
        from ppopt.formats.config import pipeline_of

        changes = {
            setting.field: setting
            for setting in SETTINGS
            if setting.scope is SettingScope.PIPELINE and setting.field in self.values
        }
        fixed = [field for field, setting in changes.items() if not setting.replaceable]
        if default is not None and not fixed:
            return replace(default, **{field: self.values[field] for field in changes})
        if default is not None and not changes.keys() & {"stages", "model"}:
            raise InputError(
                f"{min(fixed)}: of the pipeline of the hint only the memory limit, "
                "partition, recompute and offload can change; leave it out, or describe the whole "
                "pipeline (--config)"
            )
        described = pipeline_of(self.values)
        if not self.quiet:
            _note_slow_pairs(described)
            _note_unknown_rates(described)
            note_equal_chunks(described)
            self._note_partition_order(described)
        return described

    def _note_partition_order(self, pipeline: Pipeline) -> None:
        """Print a note if a list of layers per stage implies the number of chunks."""
        stated = self.get("chunks") or self.get("partition_order")
        listed = isinstance(pipeline.partition, tuple) and not isinstance(
            self.get("partition"), str
        )
        if listed and stated is None and pipeline.num_chunks > 1:
            note(
                f"note: partition: {len(pipeline.partition)} counts for {pipeline.num_devices} "
                f"devices are those of stages 0, 1, ..., with {pipeline.num_chunks} chunks per "
                "device; `--partition-order ranks` reads those of device 0 first"
            )

    def pipelines(self, placements: str | None) -> list[Pipeline]:
        """Build the pipeline of every placement of a list of names; of a list of devices, one."""
        if placements is None:
            return [self.pipeline()]
        names = [name.strip() for name in placements.split(",")]
        if len(names) == 1 or any(map(WHOLE.fullmatch, names)):
            return [self.placed(placements).pipeline()]
        chunked = {key: value for key, value in self.values.items() if key != "chunks"}
        linear = replace(self, values=chunked)
        return [(linear if name == "linear" else self).placed(name).pipeline() for name in names]

    def placed(self, placement: str) -> Settings:
        """The settings with the placement of a flag."""
        from ppopt.formats.config import canonical

        placed = canonical({"placement": _value(NAMED["placement"], placement)})
        return replace(self, values=self.values | placed)

    @property
    def seconds(self) -> float:
        """The time limit of a search."""
        from ppopt.solver.options import TIME_LIMIT

        return float(self.get("time_limit", TIME_LIMIT))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting of the run, or the default if it is not given."""
        value = self.values.get(name)
        return default if value is None else value


def note_equal_chunks(pipeline: Pipeline) -> None:
    """Print a note if chunks cut devices' shares of a model whose parts may be unequal."""
    if pipeline.num_chunks > 1 and pipeline.has_unequal_shares:
        note(
            f"note: chunks: stages differ, and each is cut into {pipeline.num_chunks} equal "
            "chunks; a model in `layers:` is cut where its layers are"
        )


def _note_unknown_rates(pipeline: Pipeline) -> None:
    """Print a note if throughput is asked for and the unit of time is missing."""
    names = [setting.name for setting in COUNTS if getattr(pipeline, setting.field) is not None]
    if names and pipeline.time_unit is None:
        note(f"note: {names[0]}: no throughput without the unit of the times; give time_unit")


def _note_slow_pairs(pipeline: Pipeline) -> None:
    """Print a note if an F and a BW as one take longer than one after the other."""
    if pipeline.overlap is None:
        return
    from ppopt.problem.exact import plain

    slow, stages = [], pipeline.without_model()
    for stage, times in enumerate(stages.overlap):
        matrix = isinstance(times, tuple)
        for other_stage, time in enumerate(times) if matrix else [(stage, times)]:
            apart = stages.forward[stage] + stages.backward[other_stage]
            if time > apart:
                place = f"stage {stage}" + f" with stage {other_stage}" * matrix
                slow.append(f"{place}: {plain(time)} is above F + BW = {plain(apart)}")
    if slow:
        more = f", as in {len(slow) - 1} more" if len(slow) > 1 else ""
        note(
            f"note: overlap_times: {slow[0]}{more}: overlapping this pair is slower than running "
            "it sequentially; only overlap strategies use it"
        )


def _parameter(setting: Setting, *, hidden: bool, meaning: str | None) -> Parameter:
    """Make the option of a setting; `meaning`: what it means to the command, if that differs."""
    kind: Any = {Shape.FLAG: bool, Shape.FILES: list[str] | None}.get(setting.shape, str | None)
    meaning = meaning or setting.described
    flag_option = option(
        setting.placeholder or setting.shape.value,
        f"{meaning[0].upper()}{meaning[1:]}.",
        setting.heading,
        names=("-o", setting.flag) if setting.shape is Shape.FILES else (setting.flag,),
        hidden=hidden,
        autocompletion=one_of(setting.choices) if setting.choices else None,
    )
    return optional(setting.field, Annotated[kind, flag_option], False if kind is bool else None)


_FLAGS = tuple(setting for setting in SETTINGS if setting.has_flag)
OF_STRATEGIES = tuple(setting.field for setting in _FLAGS if setting.heading is Heading.STRATEGIES)
OF_SEARCHES = tuple(setting.field for setting in _FLAGS if setting.heading is Heading.SEARCH)


class SettingsGroup(NamedTuple):
    """The options of all settings, which a command receives as `Settings`."""

    unused: Sequence[str]
    """Those that make no difference to the command: its help leaves them out. They are accepted,
    so that all commands can be called with the same options."""
    meanings: Mapping[str, str]
    """What settings mean to the command, if that differs."""
    name: str = "settings"

    def parameters(self, own: Collection[str]) -> Iterator[Parameter]:
        """The options, but for those that the command has itself."""
        yield Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
        yield optional("config", Path | None)
        yield optional("model", str | None)
        for flag in _FLAGS:
            if flag.field not in own:
                hidden, meaning = flag.field in self.unused, self.meanings.get(flag.field)
                yield _parameter(flag, hidden=hidden, meaning=meaning)
        yield optional("json", bool, False)
        yield optional("quiet", bool, False)

    def value(self, **values: Any) -> Settings:
        """The settings of files and flags."""
        return _settings(**values)


def settings_but(*unused: str, **meanings: str) -> SettingsGroup:
    """The options of all settings: see `SettingsGroup`."""
    return SettingsGroup(unused, meanings)


def _settings(
    *,
    config: Path | None,
    model: str | None,
    json: bool,
    quiet: bool,
    context: typer.Context,
    **flags: Any,
) -> Settings:
    """Merge model, config file and flags; the later override the earlier."""
    from ppopt.cli.files import writable
    from ppopt.formats.config import canonical, merged, read_config
    from ppopt.formats.models import read_settings

    stated = _stated_by_files(flags)
    flag_values = {
        setting.name: _value(setting, flags.get(setting.field))
        for setting in _FLAGS
        if setting.field not in stated
    }
    values: dict[str, Any] = {} if model is None else read_settings(model)
    for layer in ({} if config is None else read_config(config), canonical(flag_values)):
        values = merged(values, layer)
    values = merged(values, stated)
    return Settings(values, writable(values.get("output") or []), json, quiet, context.obj)


def _stated_by_files(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Values of --recompute and --offload that name a file of a trainer."""
    values: dict[str, Any] = {}
    for field in ("recompute", "offload"):
        text = flags.get(field)
        if isinstance(text, str) and "." in text:
            from ppopt.formats import trainer_file

            if (stated := trainer_file.value_of(field, text)) is not None:
                values[field] = stated
                if field == "offload" and stated != "none":
                    values["offload_fraction"] = trainer_file.read_offload_fraction(Path(text))
    return values


def _value(setting: Setting, raw_value: Any) -> Any:
    """Turn what a flag holds into what a file would hold; None if it is not given."""
    if not isinstance(raw_value, str):
        return raw_value or None
    if setting.shape is Shape.PARTITION and "." in raw_value:
        from ppopt.formats import trainer_file

        if (stated := trainer_file.value_of(setting.field, raw_value)) is not None:
            return stated
    return typed_value(setting, raw_value)
