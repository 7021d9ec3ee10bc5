"""Strategies, their registry, and helpers for orders."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from itertools import chain
from statistics import median_low
from typing import Any

import numpy as np

from ppopt.errors import InputError, NotApplicableError, not_applicable
from ppopt.problem import placement
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.field_values import whole
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import ArgumentClass, Trait, Traits, handled, unhandled
from ppopt.schedule.orders import Orders
from ppopt.schedule.origin import SEARCHED, current_name

ADAPTIVE_SECONDS = 1e-4
"""Estimated seconds per operation of a strategy that adapts to the times: twice the slowest one
measured."""
FIXED_SECONDS = 1e-5
"""The same for all others. Half is for timing and verification, the rest for the slowest of them,
which simulate rounds of equal length."""


@dataclass(frozen=True)
class Options:
    """Options of some strategies; None: the default of the strategy.

    Raises InputError if one is no whole number above 0.
    """

    group_size: int | None = None
    """Microbatches per group of interleaved schedules; default: the smallest valid size, which is
    the number of devices if it divides the number of microbatches."""
    waves: int | None = None
    """Waves of hanayo; default: 2."""
    unshard_ahead: int | None = None
    """Of any strategy with `unshard`: device r prefetches the weights of at most its next r + this
    many stages; default: of all, as early as memory allows."""

    def __post_init__(self) -> None:
        for name, value in self.explicit.items():
            whole(value, name)

    @property
    def explicit(self) -> dict[str, int]:
        """Options that are not left to the strategy, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


OPTIONS = tuple(field.name for field in fields(Options))
"""Names of all options."""
OF_TIMING = ("unshard_ahead",)
"""Options of every strategy: they do not change the order, only its times."""
TIMED = handled(ArgumentClass.EVERY_OPERATION) | {Trait.BLOCKING}
"""Traits that every strategy handles: its order is one of compute, and is timed with all other
operations. Microbatches that differ run in their given order."""
REFUSED = {
    Trait.ROUTES: "routes: 2 contradicts strategy {}, which has one; leave --routes out",
    Trait.SLICES: "slices: strategy {} cuts no microbatch; leave it out",
}
"""Message of a strategy, named first, that refuses a trait."""
UNKNOWN = "strategy: {} knows no {}; use another strategy, or leave it out"
"""The same of all other traits, whose label comes second."""
Build = Callable[[Pipeline, Options], Orders]
Defaults = Callable[[Pipeline], Options]


@dataclass(frozen=True)
class Strategy:
    """A published rule that determines an order of operations per device."""

    name: str
    summary: str
    source: str
    """The paper and section, or the code, that defines it."""
    build: Build
    """Orders for a pipeline whose chunks and placement are the strategy's own.

    Raises NotApplicableError if the strategy cannot run on it, whatever its times."""
    placement: str = "linear"
    chunks: int | Callable[[Options], int] | None = 1
    """Stages per device, or a function of the options; None: any number, by default 2."""
    routes: int = 1
    """2: half of the microbatches run the stages in mirrored placement."""
    slices: int = 1
    """Default number of slices of a microbatch; 1: the strategy does not slice."""
    fused: bool = False
    """Whether backwards are whole (BW); else they are split (B and W)."""
    adaptive: bool = False
    """Whether the order depends on the times; orders for simpler times then compete with it."""
    option_names: tuple[str, ...] = ()
    """Names of its options: fields of Options."""
    defaults: Defaults | None = None
    """Default of each of them, for a pipeline."""
    pytorch_name: str | None = None
    """Name of its class in torch.distributed.pipelining.schedules, without `Schedule`."""
    alias: str | None = None
    """Its name elsewhere, which no class of PyTorch has."""
    alias_options: Defaults | None = None
    """As `pytorch_options`, of what has the alias."""
    pytorch_options: Defaults | None = None
    """Options that this class has for a pipeline, if they are not those of `defaults`; raises
    NotApplicableError if the class refuses the pipeline."""

    @property
    def handles(self) -> Traits:
        """Traits of the pipelines that it supports."""
        own = {Trait.ROUTES: self.routes > 1, Trait.SLICES: self.slices > 1}
        return TIMED | {trait for trait, has in own.items() if has}

    def apply(self, pipeline: Pipeline, options: Options) -> Pipeline:
        """The pipeline with the chunks, placement, routes and slices of this strategy.

        Raises NotApplicableError, naming both sides, if the pipeline contradicts them, and
        InputError on an option that the strategy does not have.
        """
        for field in options.explicit:
            if field not in (*self.option_names, *OF_TIMING):
                raise InputError(f"{field}: strategy {self.name} takes no {field}; leave it out")
        if options.unshard_ahead is not None and not pipeline.has_unshard:
            raise InputError(
                "unshard_ahead: no weights are gathered; give unshard, or leave it out"
            )
        own, units = self.chunks_of(options), self._units(pipeline)
        if not pipeline.named_placement:
            return self._apply_explicit(_changed(pipeline, **units), own)
        asked = pipeline.chunks or pipeline.chunks_of_partition
        chunks = own or asked or placement.DEFAULT_CHUNKS[self.placement]
        if pipeline.chunks not in (None, chunks):
            raise NotApplicableError(
                f"chunks: {pipeline.chunks} contradicts strategy {self.name}, "
                f"which has {chunks} per device; leave --chunks out"
            )
        if pipeline.placement not in (None, self.placement):
            raise NotApplicableError(
                f"placement: {pipeline.placement} contradicts strategy {self.name}, "
                f"which is placed {self.placement}; leave --placement out"
            )
        return _changed(pipeline, chunks=chunks, placement=self.placement, **units)

    def chunks_of(self, options: Options) -> int | None:
        """Stages per device with these options; None: any number."""
        return self.chunks(options) if callable(self.chunks) else self.chunks

    def own_options(self, options: Options) -> Options:
        """Those of the options that the strategy has."""
        return Options(
            **{field: getattr(options, field) for field in (*self.option_names, *OF_TIMING)}
        )

    @property
    def of_pytorch(self) -> Strategy:
        """The strategy with the rules of PyTorch's class."""
        if self.pytorch_options is None:
            return self
        return replace(self, defaults=self.pytorch_options)

    def with_defaults(self, pipeline: Pipeline, options: Options) -> Options:
        """The options with defaults filled in, for the strategy's own pipeline."""
        if self.defaults is None:
            return options
        return replace(self.defaults(pipeline), **options.explicit)

    def order_pipelines(self, pipeline: Pipeline) -> tuple[Pipeline, ...]:
        """Pipelines whose orders compete for the strategy's own pipeline, that one first.

        All orders have the memory of the strategy: live memory depends on the order, not on times.
        """
        return _variants_of_times(pipeline) if self.adaptive else (pipeline,)

    def built(self, pipeline: Pipeline, options: Options) -> Orders:
        """The orders of `build`, cached; they do not depend on the memory limit."""
        none: dict[str, Any] = dict.fromkeys(OF_TIMING)
        options = replace(self.with_defaults(pipeline, options), **none)
        return _built(self, pipeline.unlimited, options)

    def seconds(self, pipeline: Pipeline) -> float:
        """Estimated time to build, time and verify its schedule for a pipeline."""
        return (ADAPTIVE_SECONDS if self.adaptive else FIXED_SECONDS) * pipeline.num_codes

    def _units(self, pipeline: Pipeline) -> dict[str, int | None]:
        """Routes and slices of the strategy's own pipeline, by field."""
        for trait in unhandled(pipeline.traits, self.handles):
            raise NotApplicableError(REFUSED.get(trait, UNKNOWN).format(self.name, trait.label))
        slices = pipeline.slices if self.slices == 1 else pipeline.slices or self.slices
        return {"routes": self.routes, "slices": slices}

    def _apply_explicit(self, pipeline: Pipeline, own: int | None) -> Pipeline:
        devices = pipeline.num_devices
        chunks, rest = divmod(pipeline.stages, devices)
        expected = placement.named(self.placement, devices, chunks)
        permuted = own == self.routes == 1 and sorted(pipeline.placement) == list(range(devices))
        placed = permuted or pipeline.placement == expected
        if rest or chunks != (own or chunks) or not placed:
            raise NotApplicableError(
                f"placement: the list contradicts strategy {self.name}, which is placed "
                f"{self.placement} with {own or 'two or more'} stage(s) per device"
            )
        return pipeline

    def unplaced(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline without the chunks and placement that `apply` sets for this strategy.

        Raises NotApplicableError if there is no such pipeline, as with delays listed per stage.
        """
        fields = dict.fromkeys(("slices", "slice_times")) if self.slices == 1 else {}
        pipeline = _changed(pipeline, routes=1, **fields)
        if not pipeline.named_placement:
            return pipeline
        keep = pipeline.chunks if self.chunks is None and (pipeline.chunks or 1) > 1 else None
        return _changed(pipeline, chunks=keep, placement=None)


def _changed(pipeline: Pipeline, **fields: Any) -> Pipeline:
    """The pipeline with these fields; unchanged if it has them, which avoids another check.

    Raises NotApplicableError if they contradict the rest of it.
    """
    same = all(getattr(pipeline, field) == value for field, value in fields.items())
    if same:
        return pipeline
    with not_applicable():
        return replace(pipeline, **fields)


@lru_cache(maxsize=32)
def _built(strategy: Strategy, pipeline: Pipeline, options: Options) -> Orders:
    return strategy.build(pipeline, options)


def _variants_of_times(pipeline: Pipeline) -> tuple[Pipeline, ...]:
    """The pipeline itself, with equal times as in publications, and with its median times.

    Other tools use constants, or the median over the stages of F, B and W each.
    """
    if equal_times(pipeline):
        return (pipeline,)
    stages = pipeline.without_model()
    kinds = (stages.forward, stages.backward_input, stages.weight)
    equal, medians = (1, 1, 1), tuple(map(median_low, kinds))
    variants = (_timed(stages, equal, p2p=0, backward_p2p=None), _timed(stages, medians))
    return tuple(dict.fromkeys((pipeline, *variants)))


def _timed(stages: Pipeline, times: tuple[Any, ...], **links: Any) -> Pipeline:
    """The pipeline with other times of F, B and W, the same for all stages, and other links."""
    forward, backward, weight = times
    return replace(
        stages,
        forward=forward,
        backward_input=backward,
        weight=weight,
        backward=backward + weight,
        device_speed=1,
        overlap=None,
        overlap_input=None,
        **links,
    )


def equal_times(pipeline: Pipeline) -> bool:
    """Whether F, B and W of all stages take the same time, and links none."""
    ticks, instance = pipeline.ticks, Instance.of(pipeline, BackwardKind.SPLIT)
    times = set(chain.from_iterable(map(instance.times, range(len(instance.classes)))))
    return len(times) == 1 and not any(map(any, (*ticks.down, *ticks.up)))


_REGISTRY: dict[str, Strategy] = {}


def register(name: str, **fields: Any) -> Callable[[Build], Build]:
    """Add the strategy of an order to the registry; `fields` are those of `Strategy`."""

    def add(build: Build) -> Build:
        assert name not in _REGISTRY, f"two strategies are called {name}"
        _REGISTRY[name] = Strategy(name, build=build, **fields)
        return build

    return add


@cache
def registry() -> dict[str, Strategy]:
    """Every strategy by name, sorted: the modules of this package register theirs on import."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def names() -> tuple[str, ...]:
    """Names of all strategies, sorted."""
    return tuple(registry())


def resolve(name: str) -> Strategy:
    """Return the strategy of a name, in upper or lower case.

    PyTorch's name of its schedule is accepted, too, and has the rules of its class: `ZBVZeroBubble`
    or `ScheduleZBVZeroBubble` is `zbv`. A name of both, as `1F1B`, has no rules of PyTorch without
    the prefix. Raises InputError, naming the nearest strategy, if there is none.
    """
    key = name.lower()
    known = registry() | _elsewhere()
    strategy = registry().get(key) or known.get(key) or known.get(key.removeprefix("schedule"))
    if strategy is not None:
        return strategy
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {known[near[0]].name}?" if near else f"known: {', '.join(registry())}"
    raise InputError(f"strategy: {name!r} is unknown; {hint}")


def canonical_name(name: str) -> str:
    """Return the name of a strategy under any of its names, or `searched`.

    Raises InputError if there is none.
    """
    if current_name(name.lower()) == SEARCHED:
        return SEARCHED
    return resolve(name).name


@cache
def _elsewhere() -> dict[str, Strategy]:
    """Strategies by their names in PyTorch, in lower case, and elsewhere, with the rules there."""
    strategies = registry().values()
    aliases = {
        each.alias: replace(each, defaults=each.alias_options) for each in strategies if each.alias
    }
    return aliases | {
        each.pytorch_name.lower(): each.of_pytorch for each in strategies if each.pytorch_name
    }


def at_least_stages(pipeline: Pipeline) -> Options:
    """The rule of `Schedule1F1B` (torch 2.13): as many microbatches as stages, or more."""
    if pipeline.batches < pipeline.num_stages:
        raise NotApplicableError(
            f"batches: PyTorch's class needs as many as stages, {pipeline.num_stages}, and got "
            f"{pipeline.batches}; the strategy under its own name runs"
        )
    return Options()


def stream(pipeline: Pipeline, kind: OpKind, stage: int) -> Ints:
    """Operations of one kind and stage in microbatch order."""
    return np.asarray(pipeline.code(kind, stage, np.arange(pipeline.batches)))


def alternating(forward: Ints, backward: Ints, warm_up: int, *later: tuple[Ints, int]) -> Ints:
    """The order of 1F1B: `warm_up` F, then in every step an F and a backward, then those left.

    A stream (ops, first) of `later` adds its k-th operation at the end of step first + k.
    """
    streams = ((forward[warm_up:], 0), (backward, 0), *later)
    step = np.concatenate([first + np.arange(len(ops)) for ops, first in streams])
    steady = np.concatenate([ops for ops, _ in streams])[np.argsort(step, kind="stable")]
    return np.concatenate([forward[:warm_up], steady])


def overlapping(forward: Ints, backward: Ints, warm_up: int) -> Ints:
    """The order of 1F1B where the F and the backward of every step run as one."""
    steady = len(forward) - warm_up
    pairs = np.stack([forward[warm_up:], ~backward[:steady]], axis=1).ravel()
    return np.concatenate([forward[:warm_up], pairs, backward[steady:]])


def by_stage(pipeline: Pipeline, order: Callable[[int], Ints]) -> Orders:
    """Orders of a pipeline with one stage per device, from the order of each stage."""
    orders: list[Ints] = [np.empty(0, dtype=np.int64)] * pipeline.num_devices
    for stage, device in enumerate(pipeline.hosts[0]):
        orders[device] = order(stage)
    return orders
