"""The configurations of a plan: every combination of its dimensions that can be set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import lcm
from typing import Any, NamedTuple

from ppopt.errors import InputError, NotApplicableError, not_applicable
from ppopt.formats import megatron_schedule, primus_schedule, trainer_partition
from ppopt.problem.decisions import SEARCH, SEARCH_SET, Decisions
from ppopt.problem.grid import ANY_GRID
from ppopt.problem.layer_options import convex_hull, sets_of_all, shortest_by_memory
from ppopt.problem.microbatches import GIVEN_ORDER, MEMORY, SLICE_TIMES, TIMES
from ppopt.problem.objective import Objective
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.pipeline_fields import PipelineFields
from ppopt.problem.setting import SettingScope
from ppopt.problem.settings import NAMED, SETTINGS
from ppopt.problem.training_sizes import TrainingSizes, read_training
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options, canonical_name, resolve
from ppopt.studies.current_schedule import current_schedule
from ppopt.studies.headline import RUNTIME_NAMES

PLACEMENTS = ("linear", "interleaved", "v")
"""Placements of a plan by default."""
CHUNKS = (1, 2)
"""Default numbers of stages per device."""
ANY_RUNTIME = "any"
"""Value of `runtime` for a plan that no runtime restricts."""
RUNTIMES = (ANY_RUNTIME, *RUNTIME_NAMES)
"""Runtimes of the schedule: PyTorch runs any order of a named placement, of one route."""
AS_GIVEN = "layers"
"""Value of `recompute` for the recompute that the layers of the model set."""
MAX_SETS = 16
"""Maximum number of sets of modules of a plan, if all layers recompute the same ones."""
RECOMPUTE = ("none", "full", "selective", "search", AS_GIVEN)
"""Values of `recompute` in a plan."""
_DEFAULT_RECOMPUTE = {"none": "none", "full": "full", SEARCH: "full", AS_GIVEN: None}
"""Recompute of the default current schedule for each of them."""


class PlanConfiguration(NamedTuple):
    """One combination of the dimensions of a plan."""

    batches: int
    """Number of microbatches."""
    placement: str
    chunks: int
    """Number of stages per device."""
    recompute: str
    """Layers that recompute: `none`, `full`, `search` (chosen per stage with the schedule), or
    `layers` (as set per layer)."""
    strategy: str = SEARCHED
    """Schedules: of any order, of which the best is `searched`, or of a strategy."""

    def __str__(self) -> str:
        strategy = "" if self.strategy == SEARCHED else f"{self.strategy}, "
        chunks = f"/{self.chunks}" if self.chunks > 1 else ""
        recompute = "" if self.recompute == AS_GIVEN else f", recompute {self.recompute}"
        return f"{strategy}{self.placement}{chunks}{recompute}, {self.batches} microbatches"


@dataclass(frozen=True)
class PlanSpace:
    """Search space of a plan: lists per dimension, and settings that all configurations share.

    Raises InputError if a list is empty or has an unknown entry, if no combination of placements,
    chunks and strategies is valid, and if the runtime does not run a strategy or the model with a
    recompute mode.
    """

    model: Model
    devices: int
    batches: tuple[int, ...]
    placements: tuple[str, ...] = PLACEMENTS
    chunks: tuple[int, ...] = CHUNKS
    recompute: tuple[str, ...] = (AS_GIVEN,)
    """Any of `none`, `full`, `search` (chosen per stage with the schedule) and `layers` (as set per
    layer). Default of `ppopt.plan`: `layers` if any layer sets recompute; else `none`, and with a
    memory limit also `full` and `search`."""
    strategies: tuple[str, ...] = (SEARCHED,)
    """`searched` (the best schedule of any order) and names of strategies."""
    runtime: str = ANY_RUNTIME
    """Runtime of the schedule, one of `RUNTIMES`. Megatron-LM runs 1F1B and interleaved 1F1B only,
    on partitions that it supports; `torch` runs schedules of one route without slices."""
    options: Options = field(default_factory=Options)
    """Options of the strategies."""
    partition: Any = SEARCH
    """`search`, or a partition as `ppopt.Pipeline` takes it, for every configuration."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every `ppopt.Pipeline`, such as `p2p` and `mem_limit`."""
    _pipelines: dict[tuple[Any, ...], Pipeline] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Pipelines of the configurations without their strategies, each read once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "recompute", self._recompute_modes())
        object.__setattr__(self, "model", self._model_of_runtime())
        _check("placement", self.placements, PLACEMENTS)
        self._check_recompute()
        for name in ("batches", "chunks"):
            if not getattr(self, name):
                raise InputError(f"{name}: the list is empty")
        if not any(_go_together(*pair) for pair in product(self.placements, self.chunks)):
            raise InputError(
                "chunks: linear has 1 per device, interleaved and v 2 or more; no placement and "
                f"chunks of {', '.join(self.placements)} and {', '.join(map(str, self.chunks))} "
                "go together"
            )
        self._check_strategies()
        if next(iter(self), None) is None:
            raise InputError(
                f"strategies: {', '.join(self.strategies)} have other placements and chunks than "
                f"{', '.join(self.placements)} and {', '.join(map(str, self.chunks))}"
            )

    def _check_strategies(self) -> None:
        _check("runtime", (self.runtime,), RUNTIMES)
        if Decisions.OFFLOAD in self.open_decisions and self.runtime not in (ANY_RUNTIME, "primus"):
            raise InputError(
                f"offload: search knows no --runtime {self.runtime}; use none or all, or leave "
                "--runtime out"
            )
        if not self.strategies:
            raise InputError("strategies: the list is empty")
        names = map(canonical_name, self.strategies)
        object.__setattr__(self, "strategies", tuple(dict.fromkeys(names)))
        runs = megatron_schedule.strategies_of(training_of(self.fields))
        for name in self.strategies:
            if self.runtime == "megatron" and name not in runs:
                raise InputError(
                    f"strategies: Megatron-LM runs {' and '.join(runs)} only, not {name}; "
                    "leave --strategies or --runtime out"
                )

    def _recompute_modes(self) -> tuple[str, ...]:
        """The modes, with every set of modules for all layers in place of a search of sets."""
        searches = {SEARCH, SEARCH_SET} if self.runtime == "megatron" else {SEARCH_SET}
        if not searches.intersection(self.recompute):
            return self.recompute
        options = sets_of_all(self.model.undecided(Decisions.RECOMPUTE).layers)
        for fewer in (shortest_by_memory, convex_hull):
            options = fewer(options) if len(options) > MAX_SETS else options
        sets = (
            "+".join(own.recompute)
            for own in options[:MAX_SETS]
            if not isinstance(own.recompute, bool)
        )
        stated = (mode for mode in self.recompute if mode not in searches)
        return tuple(dict.fromkeys((*stated, "none", *sets, "full")))

    def _model_of_runtime(self) -> Model:
        """The model; Primus and torchtitan recompute whole layers, and not modules of them."""
        if self.runtime not in ("primus", "torch"):
            return self.model
        stated = (layer.recompute or layer.offload for layer in self.model.distinct)
        if any(isinstance(chosen, tuple) for chosen in stated):
            return self.model
        layers = tuple(replace(layer, modules=()) for layer in self.model.layers)
        return replace(self.model, layers=layers)

    def _check_recompute(self) -> None:
        sets = {choice for choice in self.recompute if self._is_set(choice)}
        _check("recompute", self.recompute, (*RECOMPUTE, *sets))
        for choice in self.recompute:
            if self.runtime == "megatron":
                model = self.model if choice == AS_GIVEN else self.model.with_recompute(choice)
                try:
                    trainer_partition.check_model(model, trainer_partition.MEGATRON)
                except NotApplicableError as error:
                    raise InputError(f"runtime: {error}") from None

    def _is_set(self, choice: str) -> bool:
        """Whether a recompute mode is a set of modules, joined by `+`."""
        known = {module.name for layer in self.model.distinct for module in layer.modules}
        return known.issuperset(choice.split("+"))

    @property
    def open_decisions(self) -> Decisions:
        """Decisions that are open in every configuration; recompute is a mode of each."""
        return Decisions.open_in({**self.fields, "partition": self.partition})

    @property
    def on_one_grid(self) -> dict[str, Any]:
        """Further fields of every pipeline, none of which is rounded for a grid of its own."""
        return {"grid": ANY_GRID, **self.fields}

    @property
    def order(self) -> Any:
        """Order of the microbatches of every configuration, as `ppopt.Pipeline` takes it."""
        return self.fields.get("order", GIVEN_ORDER)

    def __iter__(self) -> Iterator[PlanConfiguration]:
        dimensions = (
            self.batches, self.placements, self.chunks, self.recompute, self.strategies
        )  # fmt: skip
        for combination in dict.fromkeys(product(*dimensions)):
            configuration = PlanConfiguration(*combination)
            if self._is_set_up(configuration):
                yield configuration

    def _is_set_up(self, configuration: PlanConfiguration) -> bool:
        """Whether placement, chunks and strategy are compatible."""
        if not _go_together(configuration.placement, configuration.chunks):
            return False
        if configuration.strategy == SEARCHED:
            return True
        rule = resolve(configuration.strategy)
        chunks = rule.chunks_of(self.options) or configuration.chunks
        return (rule.placement, chunks) == (configuration.placement, configuration.chunks)

    def weight(self, batches: int) -> int:
        """Factor on times of so many microbatches that makes them comparable with others."""
        return lcm(*self.batches) // batches

    def pipeline(self, configuration: PlanConfiguration) -> Pipeline:
        """Pipeline of a configuration, on which its strategy and the runtime can run.

        Raises NotApplicableError if there is none.
        """
        recompute, fields = configuration.recompute, self.on_one_grid
        if recompute == "full" and Decisions.OFFLOAD in self.open_decisions:
            fields["offload"] = "none"
        key = configuration[:-1]
        with not_applicable():
            pipeline = self._pipelines.get(key) or self.model.pipeline(
                devices=self.devices,
                batches=configuration.batches,
                placement=configuration.placement,
                chunks=configuration.chunks,
                partition=self.partition,
                recompute=None if recompute == AS_GIVEN else recompute,
                **fields,
            )
        self._pipelines[key] = pipeline
        if self.runtime == "megatron":
            check_megatron(pipeline, self.options_of(configuration).group_size)
        if self.runtime == "primus":
            primus_schedule.check_pipeline(pipeline)
        if configuration.strategy == SEARCHED:
            return pipeline
        rule, options = resolve(configuration.strategy), self.options_of(configuration)
        placed = rule.apply(pipeline, options)
        rule.built(placed, options)
        return placed

    def current_schedule(
        self, current: Schedule | str | None, objective: Objective
    ) -> Schedule | None:
        """What the user runs today, for the microbatches of the space; see `current_schedule`.

        A strategy has the first number of microbatches. If the space has recompute modes, the
        default strategy has the first that fits the limits.
        """
        batches = self.batches[0]
        if isinstance(current, Schedule) and current.pipeline.batches in self.batches:
            batches = current.pipeline.batches
        pipeline = self.model.pipeline(
            devices=self.devices, batches=batches, partition=self.partition, **self.on_one_grid
        )
        modes = dict.fromkeys(_DEFAULT_RECOMPUTE.get(mode, mode) for mode in self.recompute)
        return current_schedule(current, pipeline, objective, self.options, modes)

    def options_of(self, configuration: PlanConfiguration) -> Options:
        """Options that the strategy of a configuration takes."""
        return resolve(configuration.strategy).own_options(self.options)


def check_megatron(pipeline: Pipeline, group_size: int | None = None) -> None:
    """Raise NotApplicableError if Megatron-LM supports no partition that a plan may choose.

    Nor may it refuse the group size of interleaved 1F1B, by default the smallest that it runs.
    Megatron-LM needs all MTP layers in one stage, and takes at most a head after them. The first
    stage has all of an encoder and the embedding. So if it supports any partition, it supports one
    in which a single stage, the last or the one before, has more layers than it needs.
    """
    megatron_schedule.strategy_of(pipeline)
    megatron_schedule.group_size_of(pipeline, group_size)
    trainer_partition.megatron_sizes(pipeline)
    if Decisions.PARTITION not in pipeline.open_decisions:
        trainer_partition.megatron_arguments(pipeline, group_size)
        return
    supports = trainer_partition.megatron_partitions(pipeline)
    smallest = [1] * pipeline.num_stages
    smallest[0] += trainer_partition.num_encoder_layers(pipeline.model)
    rest = len(pipeline.model) - sum(smallest)
    if rest < 0:
        raise NotApplicableError(
            f"megatron: it runs the encoder and the embedding, {smallest[0]} layers, in the first "
            f"stage, so that {pipeline.num_stages} stages need {sum(smallest)} layers; the model "
            f"has {len(pipeline.model)}"
        )
    last, before = [*smallest], [*smallest]
    last[-1] += rest
    before[max(0, pipeline.num_stages - 2)] += rest
    if not (supports(tuple(before)) or supports(tuple(last))):
        trainer_partition.megatron_arguments(
            replace(pipeline, partition=tuple(last), mem_limit=None)
        )


def partitions_on(runtime: str, pipeline: Pipeline) -> Callable[[Counts], bool] | None:
    """Test of the partitions of a pipeline that a runtime supports; None: all of them.

    Raises NotApplicableError if it supports none.
    """
    return trainer_partition.megatron_partitions(pipeline) if runtime == "megatron" else None


def training_of(fields: Mapping[str, Any]) -> TrainingSizes | None:
    """Sizes of the training among the fields of a pipeline; None: they are not stated."""
    stated = fields.get("training")
    return None if stated is None else read_training(stated, "training: ")


def default_strategies(runtime: str, training: TrainingSizes | None) -> tuple[str, ...]:
    """Default strategies of a plan."""
    return megatron_schedule.strategies_of(training) if runtime == "megatron" else (SEARCHED,)


def fields_of(pipeline: Pipeline) -> dict[str, Any]:
    """Pipeline fields that a plan neither chooses nor takes as arguments: links, speeds, counts.

    Default values are omitted: they hold for any number of devices.
    """
    fields = {
        setting.field: value
        for setting in SETTINGS
        if setting.scope is SettingScope.PIPELINE and not setting.set_by_plan
        if (value := getattr(pipeline, setting.field)) != getattr(PipelineFields, setting.field)
    }
    if pipeline.link is not None:
        del fields["p2p"]
    if set(pipeline.device_speed) == {1}:
        del fields["device_speed"]
    if pipeline.rounded_by:
        fields |= {"rounded_by": pipeline.rounded_by, "grid": pipeline.grid}
    return fields


def rounded_once(
    model: Model, devices: int, batches: int, fields: Mapping[str, Any]
) -> tuple[Model, dict[str, Any]]:
    """The model and the fields of a plan, rounded if their numbers are too fine (`rounding`).

    All configurations then have the same numbers. They are rounded for the largest number of
    microbatches.
    """
    chosen = {name: fields[name] for name in fields if name.startswith(("recompute", "offload"))}
    stated = {name: value for name, value in fields.items() if name not in chosen}
    with suppress(NotApplicableError), not_applicable():
        pipeline = model.pipeline(devices=devices, batches=batches, **stated)
        if pipeline.rounded_by:
            named = (NAMED[name].field if name in NAMED else name for name in stated)
            names = (*named, TIMES, MEMORY, SLICE_TIMES, "rounded_by", "grid")
            return pipeline.model, chosen | {name: getattr(pipeline, name) for name in names}
    return model, dict(fields)


def default_recompute(model: Model, *, limited: bool) -> tuple[str, ...]:
    """Default recompute modes of a plan.

    If the model sets recompute for a layer, only that. Without a memory limit none: recompute saves
    memory only, and takes time. For Megatron-LM, `search` stands for every set of modules that all
    layers recompute.
    """
    if any(layer.recompute for layer in model.layers):
        return (AS_GIVEN,)
    if not limited:
        return ("none",)
    return ("none", "full", "search")


def _go_together(placement: str, chunks: int) -> bool:
    return (chunks == 1) == (placement == "linear")


def _check(name: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not values:
        raise InputError(f"{name}: the list is empty")
    for value in values:
        if value not in known:
            raise InputError(
                f"{name}: {value!r} is unknown; a plan chooses from {', '.join(known)}"
            )
