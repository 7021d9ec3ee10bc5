"""Configurations of a strategy: partitions, with a recompute option for every stage.

A key has the layers of every stage. If recompute or offload is searched, the index of the option of
every stage follows (`ppopt.solver.recompute.stage_options`); options are ordered by time. An array
of keys has one configuration per row. Keys and bounds are those of the search for schedules
(`ppopt.solver.partitions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice, pairwise, product
from math import comb
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.decisions import Decisions
from ppopt.problem.partition import all_by_rule
from ppopt.problem.partition_table import CostTable, Recomputed
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.recompute.stage_options import StageOptions

MAX_COUNTED_LAYERS = 24
"""Maximum number of layers for which the recompute options of all partitions are counted."""
MAX_MOVE_DISTANCE = 24
"""Maximum distance between the two stages of a move."""


class OptionTable(NamedTuple):
    """Recompute options of the stages of partitions, in ticks."""

    row_id: Ints
    """Row of every stage of every partition: `[partition, stage]`."""
    last: Ints
    """Index of the last option of every stage: `[partition, stage]`."""
    options: Ints
    """Added time, retained memory and peak in BW of every option: `[row, option, 3]`; rows are
    padded with copies of their last option."""


class StrategyConfigurations:
    """All configurations of a pipeline that a strategy has placed."""

    def __init__(self, placed: Pipeline, seed: int) -> None:
        """Read the open decisions of a pipeline: partition, recompute and offload.

        Raises NotApplicableError if times or memory are too finely divided to stay exact.
        """
        self.random = np.random.default_rng(seed)
        opened = placed.open_decisions
        self.cut = Decisions.PARTITION in opened
        """Whether the partition is searched."""
        self.optional = bool(opened & Decisions.OF_LAYERS)
        """Whether recompute or offload is searched; without a limit, every stage has one option."""
        self.offloaded = Decisions.OFFLOAD in opened and placed.limits is not None
        self._options = StageOptions(placed, full=True)
        self.base = placed.without(Decisions.OF_STRATEGY, model=self._options.bare)
        """Pipeline on one partition, in which only layers that must recompute do."""
        self.costs = self.base.partitions
        self.costs.refuse_inexact_sums(self.base.batches * self.base.num_slices)
        self.limits: Ints | None = None
        """Memory limit, `[device, 1]`, in ticks of `costs`; None: unlimited."""
        if self.base.limits is not None:
            self.limits = np.array(self.base.ticks.limits)[:, None]
        self.hosts = np.array(self.base.hosts[0])
        """Device of every stage."""
        self.num_stages, self._layers = self.base.num_stages, len(self.base.model)
        self.width = self.num_stages * (1 + self.optional)
        """Length of a key."""
        self._option_ticks: dict[int, list[tuple[int, int, int, int]]] = {}
        self._moves = _layer_moves(self.num_stages if self.cut else 1)

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return comb(self._layers - 1, self.num_stages - 1) if self.cut else 1

    @property
    def enumerates_options(self) -> bool:
        """Whether every stage so far has all of its non-dominated options."""
        return self._options.complete

    @property
    def leaves_out(self) -> bool:
        """Whether dominated options are omitted: each takes more time, and saves no more memory.

        An order that depends on times may be shorter with such an option, or need less memory.
        """
        return self.optional and self.limits is not None and self._options.leaves_out

    def every(self, max_count: int, size: int) -> list[Ints] | None:
        """All configurations in batches of a size; None if there are more than `max_count`.

        Those of the partition of the pipeline come first. Returns None also if counting the options
        of all partitions would take too long.
        """
        if self.partitions > max_count or (
            self.cut and self.optional and self._layers > MAX_COUNTED_LAYERS
        ):
            return None
        keys = list(islice(self._every_key(), max_count + 1))
        if len(keys) > max_count:
            return None
        keys.sort(key=lambda key: key[: self.num_stages] != self.base.counts)
        return [np.array(keys[low : low + size]) for low in range(0, len(keys), size)]

    def _every_key(self) -> Iterator[Key]:
        cuts = combinations(range(1, self._layers), self.num_stages - 1) if self.cut else [None]
        for positions in cuts:
            counts = self.base.counts
            if positions is not None:
                counts = tuple(high - low for low, high in pairwise((0, *positions, self._layers)))
            options = self._options.of_partition(counts) if self.optional else []
            for numbers in product(*(range(len(own)) for own in options)):
                yield (*counts, *numbers)

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of a configuration."""
        counts, numbers = key[: self.num_stages], key[self.num_stages :]
        model = self._options.model(counts, numbers) if numbers else None
        return self.base.with_partition(counts, model)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of a pipeline with as many stages, or of one that is no worse; None: there is none.

        The recompute of the pipeline does not matter if recompute is not searched.
        """
        counts = pipeline.counts
        if len(counts) != self.num_stages or not (self.cut or counts == self.base.counts):
            return None
        numbers = self._options.numbers(pipeline) if self.optional else ()
        return None if numbers is None else (*counts, *numbers)

    def first(self) -> Iterator[Key]:
        """Partitions by rule, then endless random ones, each with its first options."""
        numbers = (0,) * (self.width - self.num_stages)
        if not self.cut:
            yield (*self.base.counts, *numbers)
            return
        speeds = tuple(self.base.device_speed[host] for host in self.base.hosts[0])
        for counts in reversed(all_by_rule(self.base.model, self.num_stages, speeds)):
            yield (*counts, *numbers)
        while True:
            yield self.after_random_moves((*self.base.counts, *numbers), 2 * self.num_stages)

    # Arrays of keys.

    def table(self, keys: Ints, options: OptionTable | None = None) -> CostTable:
        """Costs of the pipelines of keys; `options` are those of their partitions."""
        counts, numbers = self.split(keys)
        if not self.optional or self.limits is None:
            return self.costs.table(counts)
        options = options or self.option_table(counts)
        chosen = options.options[options.row_id, np.minimum(numbers, options.last)]
        return self.costs.table(counts, Recomputed(*np.moveaxis(chosen, 2, 0)))

    def split(self, keys: Ints) -> tuple[Ints, Ints]:
        """Layers of every stage, and indices of their options if these are searched."""
        return keys[:, : self.num_stages], keys[:, self.num_stages :]

    def option_table(self, counts: Ints) -> OptionTable:
        """Recompute options of the stages of partitions."""
        high = np.cumsum(counts, axis=1)
        ends = (high - counts) * (self._layers + 1) + high
        distinct, row_ids = np.unique(ends, return_inverse=True)
        rows = [self._ticks(each) for each in distinct.tolist()]
        sizes = np.array([len(row) for row in rows])
        padded = np.array([[*row, *row[-1:] * (sizes.max() - len(row))] for row in rows])
        row_ids = row_ids.reshape(ends.shape)
        return OptionTable(row_ids, sizes[row_ids] - 1, padded)

    def _ticks(self, ends: int) -> list[tuple[int, int, int, int]]:
        """Time, retained memory, workspace of B and peak in BW of the options of a stage, in ticks.

        Offload counts as if it took no time.
        """
        if ends not in self._option_ticks:
            checkpoint()
            self._option_ticks[ends] = [
                (option.time, option.resident, option.workspace, option.peak)
                for option in self._options.of(*divmod(ends, self._layers + 1))
            ]
        return self._option_ticks[ends]

    def after_layer_move(self, key: Key) -> Ints:
        """Keys after a move of one layer to another stage within `MAX_MOVE_DISTANCE`.

        Every stage keeps the index of its option, or has its last option.
        """
        start, numbers = self.split(np.array([key]))
        counts = start + self._moves if self.cut else start[:0]
        counts = counts[(counts >= 1).all(axis=1)]
        numbers = np.tile(numbers, (len(counts), 1))
        if self.optional and len(counts):
            numbers = np.minimum(numbers, self.option_table(counts).last)
        return np.concatenate([counts, numbers], axis=1)

    def rechosen(self, key: Key) -> Ints:
        """Keys of the same partition with other options.

        Either one stage changes its option by one or two, or to the first or last; or two stages of
        one device change by one in opposite directions.
        """
        counts, numbers = self.split(np.array([key]))
        if not self.optional:
            return np.array([key])[:0]
        last, current = self.option_table(counts).last[0], numbers[0]
        unit, stages = np.eye(self.num_stages, dtype=np.int64), np.arange(self.num_stages)
        same_device = self.hosts[:, None] == self.hosts
        lowered, raised = np.nonzero(same_device & (stages[:, None] != stages))
        changed = [current + step * unit for step in (1, -1, 2, -2)]
        changed += [current + unit * (end - current) for end in (np.zeros_like(last), last)]
        changed.append(current + unit[raised] - unit[lowered])
        chosen = np.unique(np.concatenate(changed), axis=0)
        chosen = chosen[((chosen >= 0) & (chosen <= last)).all(axis=1)]
        return np.concatenate([np.tile(counts, (len(chosen), 1)), chosen], axis=1)

    def with_more_recompute(self, key: Key, devices: Bools, steps: int) -> Key:
        """Key of the same partition with options that are some steps higher on some devices."""
        counts, numbers = self.split(np.array([key]))
        if not self.optional:
            return key
        raised = numbers + steps * devices[self.hosts]
        numbers = np.minimum(raised, self.option_table(counts).last)
        return (*key[: self.num_stages], *numbers[0].tolist())

    def after_random_moves(self, key: Key, max_moves: int = 5) -> Key:
        """Key after at least two and at most `max_moves` random moves."""
        for _ in range(self.random.integers(2, max_moves + 1)):
            near = self.after_layer_move(key) if self.cut else self.rechosen(key)
            if len(near):
                key = tuple(near[self.random.integers(len(near))].tolist())
        return key


def _layer_moves(stages: int) -> Ints:
    """Changes of layer counts by moves of one layer, near ones first: `[move, stage]`."""
    pairs = [
        (source, target)
        for distance in range(1, min(stages - 1, MAX_MOVE_DISTANCE) + 1)
        for low in range(stages - distance)
        for source, target in ((low, low + distance), (low + distance, low))
    ]
    unit = np.eye(stages, dtype=np.int64)
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return unit[target] - unit[source]
