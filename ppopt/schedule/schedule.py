"""A schedule: when every operation runs, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.precedence import Ints

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]

    from ppopt.schedule.metrics import Metrics

ALONE = -1
"""Pair number of an operation that runs alone."""


class Row(NamedTuple):
    """One operation of a schedule, in ticks."""

    kind: OpKind
    stage: int
    microbatch: int
    device: int
    start: int
    end: int
    slice: int = 0
    pair: int = ALONE

    @property
    def op(self) -> Op:
        """The operation without its place and time."""
        return Op(self.kind, self.stage, self.microbatch, self.slice)


def _not_given() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Operations with start and end, sorted by device, then start, then end.

    The columns are arrays of one length n (operations): `kind` codes of OpKind, `stage`,
    `microbatch`, `slice`, `device` numbers from 0, `start` and `end` in ticks. The two operations
    of an overlapped pair have one start, one end and one number `pair`, those that run alone have
    ALONE. Nothing is promised of their contents: `ppopt.verify` says whether they are a schedule
    of the pipeline.
    """

    pipeline: Pipeline
    kind: Ints
    stage: Ints
    microbatch: Ints
    device: Ints
    start: Ints
    end: Ints
    origin: Mapping[str, Any] = field(default_factory=dict)
    """How it was made: `strategy` and, of a search, status, bound, proof and provenance."""
    slice: Ints = field(default_factory=_not_given)
    """Part of the microbatch; left out: 0 throughout."""
    pair: Ints = field(default_factory=_not_given)
    """Number of the overlapped pair; left out: ALONE throughout."""
    from_file: bool = False
    """Whether it was read: what its origin says of a bound was not proved here."""

    def __post_init__(self) -> None:
        for name, value in (("slice", 0), ("pair", ALONE)):
            if len(self.kind) and not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.kind), value, dtype=np.int64))

    @classmethod
    def from_rows(
        cls,
        pipeline: Pipeline,
        rows: Iterable[Iterable[int]],
        origin: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Build from rows with the fields of `Row`, the last two or none, in any order."""
        given = [tuple(row) for row in rows]
        table = np.array(given, dtype=np.int64).reshape(-1, len(given[0]) if given else 6)
        return cls.from_columns(pipeline, *np.ascontiguousarray(table.T), origin=origin)

    @classmethod
    def from_columns(
        cls, pipeline: Pipeline, *columns: Ints, origin: Mapping[str, Any] | None = None
    ) -> Schedule:
        """Build from columns in the order of `Row`, the last two or none, rows in any order.

        Operations of no length that share an instant are put in the order of the data flow, and
        pairs are numbered in the order of rows.
        """
        kind, stage, microbatch, device, start, end, *more = columns
        part, pair = more or (np.zeros_like(kind), np.full_like(kind, ALONE))
        depth = np.where(kind == OpKind.F, stage, 2 * pipeline.num_stages - stage)
        within = np.where(kind == OpKind.F, part, -part)
        keys = (kind == OpKind.W, within, microbatch, depth, end, start, device)
        place = np.lexsort(keys)
        kind, stage, microbatch = kind[place], stage[place], microbatch[place]
        device, start, end = device[place], start[place], end[place]
        part, pair, made = part[place], _renumbered(pair[place]), dict(origin or {})
        return cls(pipeline, kind, stage, microbatch, device, start, end, made, part, pair)

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        """Whether both run the same operations at the same ticks on equal pipelines."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.pipeline == other.pipeline and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(
                (*self.columns, self.slice, self.pair),
                (*other.columns, other.slice, other.pair),
                strict=True,
            )
        )

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """The first six columns in the order of `Row`."""
        return self.kind, self.stage, self.microbatch, self.device, self.start, self.end

    @property
    def orders(self) -> list[Ints]:
        """For every device, the numbers of its operations in order; see `schedule.orders`."""
        codes = self.pipeline.code(self.kind, self.stage, self.microbatch, self.slice)
        codes = np.where(self.seconds, ~codes, codes)
        return np.split(
            codes, np.searchsorted(self.device, np.arange(1, self.pipeline.num_devices))
        )

    @property
    def seconds(self) -> npt.NDArray[np.bool_]:
        """Whether an operation is the second of its pair, the first being the row before it."""
        same = (self.pair[1:] == self.pair[:-1]) & (self.pair[1:] != ALONE)
        return np.append(False, same)[: len(self)]

    @cached_property
    def metrics(self) -> Metrics:
        """Makespan, spans, busy time and peak memory, in ticks; see `ppopt.schedule.metrics`."""
        from ppopt.schedule.metrics import metrics  # noqa: PLC0415  it builds on this module

        return metrics(self)

    def to_json(self, path: str | Path) -> None:
        """Write the native schedule file; raises InputError where that cannot be done."""
        from ppopt.formats.files import write  # noqa: PLC0415  loads on use
        from ppopt.formats.schedule_json import dumps  # noqa: PLC0415

        write(Path(path), dumps(self))

    def to_html(self, path: str | Path) -> None:
        """Write the page with Gantt chart and memory; raises InputError where it cannot be."""
        from ppopt.formats.files import write  # noqa: PLC0415  loads on use
        from ppopt.report.html import page  # noqa: PLC0415

        write(Path(path), page([self]))

    def plot(self) -> Figure:
        """Draw it as a plotly figure, a bar for every operation above the memory of devices."""
        from ppopt.report.figure import figure  # noqa: PLC0415  loads on use

        return figure(self)

    def _repr_html_(self) -> str:
        """Show it in notebooks as a light inline picture."""
        from ppopt.report.svg import svg  # noqa: PLC0415  loads on use

        return svg(self)

    def to_frame(self) -> DataFrame:
        """One row per operation, times in the user's unit, as a pandas DataFrame.

        Needs pandas (the extra `frame`).
        """
        from pandas import DataFrame  # noqa: PLC0415  optional

        per_unit = self.pipeline.ticks.per_unit
        frame = DataFrame({name: getattr(self, name) for name in self._shown()})
        frame["kind"] = [OpKind(kind).name for kind in self.kind]
        frame["start"] = self.start / per_unit
        frame["end"] = self.end / per_unit
        return frame

    def _shown(self) -> tuple[str, ...]:
        """Fields that tell something: slice and pair only where there are any."""
        told = {"slice": self.pipeline.num_slices > 1, "pair": bool((self.pair != ALONE).any())}
        return tuple(name for name in Row._fields if told.get(name, True))

    def rows(self) -> Iterator[Row]:
        """The operations, sorted by device, then start."""
        lists = (column.tolist() for column in (*self.columns, self.slice, self.pair))
        for kind, *rest in zip(*lists, strict=True):
            yield Row(OpKind(kind), *rest)


def split_codes(pipeline: Pipeline, codes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Kind, stage, microbatch and slice of operation numbers: `Pipeline.op` for arrays."""
    rest, part = np.divmod(codes, pipeline.num_slices)
    kind_stage, microbatch = np.divmod(rest, pipeline.batches)
    kind, stage = np.divmod(kind_stage, pipeline.num_stages)
    return kind, stage, microbatch, part


def _renumbered(pair: Ints) -> Ints:
    """Pairs numbered 0, 1, ... in the order of their first rows."""
    if (pair == ALONE).all():
        return pair
    found, first, number = np.unique(pair, return_index=True, return_inverse=True)
    first[found == ALONE] = -1
    rank = np.argsort(np.argsort(first)) - (found == ALONE).sum()
    return np.asarray(rank[number])
