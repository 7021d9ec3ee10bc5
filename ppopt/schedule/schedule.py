"""A schedule: a timetable with its figures, its orders, and the ways it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import RECORDS, Per, ResourceKind
from ppopt.problem.operation import ONCE, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.auxiliary import NO_AUXILIARY, AuxiliaryOperations
from ppopt.schedule.metrics import Metrics, metrics
from ppopt.schedule.operations import (
    Operation,
    OperationColumns,
    Operations,
    of_per,
    operations_of,
    receivers,
    split_tables,
)
from ppopt.schedule.origin import Origin
from ppopt.schedule.timetable import ALONE, ScheduledOperation, Timetable
from ppopt.schedule.transfers import NO_TRANSFERS, Transfers

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]


class Schedule(Timetable):
    """A timetable with its figures, and with methods to build, write and draw it.

    `to_json`, `to_html`, `plot` and the notebook view import the rooms above on use; no other
    module of the lower rooms does.
    """

    @classmethod
    def from_rows(
        cls,
        pipeline: Pipeline,
        rows: Iterable[Iterable[int]],
        origin: Origin | None = None,
        transfers: Iterable[Iterable[int]] = (),
        auxiliary: Iterable[Iterable[int]] = (),
    ) -> Schedule:
        """Build from rows of the fields of `ScheduledOperation`, the last two optional.

        `transfers` are rows of the fields of `Transfers`, the last one optional, in any order;
        `auxiliary` those of `AuxiliaryOperations`.
        """
        columns, carried = _columns(rows, 6), Transfers(*_columns(transfers, 7))
        other = AuxiliaryOperations(*_columns(auxiliary, 5))
        return cls.from_columns(
            pipeline, *columns, origin=origin, transfers=carried, auxiliary=other
        )

    @classmethod
    def from_columns(
        cls,
        pipeline: Pipeline,
        *columns: Ints,
        origin: Origin | None = None,
        transfers: Transfers = NO_TRANSFERS,
        auxiliary: AuxiliaryOperations = NO_AUXILIARY,
    ) -> Schedule:
        """Build from columns in the order of `ScheduledOperation`, the last two optional.

        Rows may come in any order.

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
        part, pair, made = part[place], _renumbered(pair[place]), origin or Origin()
        columns = (kind, stage, microbatch, device, start, end, part, pair)
        return cls(
            pipeline,
            *columns,
            origin=made,
            transfers=transfers.ordered(),
            auxiliary=auxiliary.ordered(),
        )

    @classmethod
    def from_operations(
        cls, pipeline: Pipeline, columns: OperationColumns, origin: Origin | None = None
    ) -> Schedule:
        """Build from all operations of a schedule, in any order."""
        computed, sent, others = split_tables(columns)
        return cls.from_columns(
            pipeline,
            *(*computed[:2], computed.microbatch, computed.device),
            *(computed.start, computed.end, computed.slice, computed.pair),
            origin=origin,
            transfers=sent,
            auxiliary=others,
        )

    @classmethod
    def from_numbers(
        cls, pipeline: Pipeline, numbers: Ints, start: Ints, end: Ints, pair: Ints
    ) -> Schedule:
        """Build from the numbers of all operations (`Instance.codes`), their times and pairs."""
        kind, stage, microbatch, part = split_codes(pipeline, numbers)
        route = microbatch * pipeline.routes // pipeline.batches
        hosts, receiver = np.array(pipeline.hosts, dtype=np.int64), receivers(kind, stage)
        once = of_per(Per.STAGE, Per.DEVICE)[kind]
        return cls.from_operations(
            pipeline,
            OperationColumns(
                *(kind, stage, np.where(once, ONCE, microbatch), hosts[route, stage]),
                *(start, end, part, pair, route, hosts[route, receiver]),
            ),
        )

    def __eq__(self, other: object) -> bool:
        """Whether both run the same operations at the same ticks on equal pipelines."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.pipeline == other.pipeline and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(
                self._all_columns(),
                other._all_columns(),
                strict=True,
            )
        )

    def _all_columns(self) -> tuple[Ints, ...]:
        own = (*self.columns, self.slice, self.pair)
        return *own, *self.transfers.columns, *self.auxiliary.columns

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable

    @cached_property
    def operations(self) -> Operations:
        """All its operations in one table: compute, transfers, and all others."""
        return operations_of(self)

    @cached_property
    def metrics(self) -> Metrics:
        """Makespan, spans, busy time and peak memory; see `ppopt.schedule.metrics`."""
        return metrics(self)

    @property
    def makespan(self) -> int | float:
        """End of the last operation, in the user's unit of time; the first starts at 0."""
        return self.metrics.makespan

    @property
    def peak_memory(self) -> tuple[int | float, ...]:
        """Largest memory of each device, static memory included, in the user's unit of memory."""
        return self.metrics.peak_memory

    @property
    def fits_limits(self) -> bool:
        """Whether every device's peak memory is within its limit."""
        limits, peaks = self.pipeline.ticks.limits, self.metrics.peak_memory_ticks
        return limits is None or all(
            peak <= limit for peak, limit in zip(peaks, limits, strict=True)
        )

    def to_json(self, path: str | Path) -> None:
        """Write the native schedule file; raises InputError if that cannot be done."""
        from ppopt.formats.files import write  # noqa: PLC0415  loads on use
        from ppopt.formats.schedule_json import dumps  # noqa: PLC0415

        write(Path(path), dumps(self))

    def to_html(self, path: str | Path) -> None:
        """Write the page with Gantt chart and memory; raises InputError if it cannot be."""
        from ppopt.formats.files import write  # noqa: PLC0415  loads on use
        from ppopt.report.html import page  # noqa: PLC0415

        write(Path(path), page([self]))

    def plot(self) -> Figure:
        """Draw it as a plotly figure: one bar per operation, and the memory of every device."""
        from ppopt.report.figure import figure  # noqa: PLC0415  loads on use

        return figure(self)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.origin.strategy or 'own'}: makespan {self.makespan}, peak memory "
            f"{max(self.peak_memory)}, {len(self)} operations; {self.pipeline!r})"
        )

    def _repr_html_(self) -> str:
        """Show it in notebooks as a light inline picture."""
        from ppopt.report.svg import svg  # noqa: PLC0415  loads on use

        return svg(self)

    def to_frame(self) -> DataFrame:
        """One row per operation, times in the user's unit, as a pandas DataFrame.

        Operations besides compute come last. What they have not is <NA>: a microbatch around the
        microbatches, and of an optimizer a stage. Needs pandas (the extra `frame`).
        """
        from pandas import DataFrame, concat  # noqa: PLC0415  optional

        per_unit = self.pipeline.ticks.per_unit
        frame = DataFrame({name: getattr(self, name) for name in self._shown()})
        frame["kind"] = [OpKind(kind).name for kind in self.kind]
        frame["start"] = self.start / per_unit
        frame["end"] = self.end / per_unit
        table = self.operations
        besides = ~table.computed & ~table.on(ResourceKind.LINK)
        if not besides.any():
            return frame
        whole = [name for name in frame if name not in ("kind", "start", "end")]
        rows = sorted(table.where(besides).rows(), key=lambda row: (row.device, row.start, row.end))
        others = DataFrame(map(self._shown_besides, rows), columns=frame.columns)
        both = [part.astype(dict.fromkeys(whole, "Int64")) for part in (frame, others)]
        return concat(both, ignore_index=True)

    def _shown_besides(self, row: Operation) -> dict[str, object]:
        """A row of the frame."""
        per_unit, record = self.pipeline.ticks.per_unit, RECORDS[row.kind]
        place = {} if record.per is Per.DEVICE else {"stage": row.stage}
        if row.microbatch != ONCE:
            place |= {"microbatch": row.microbatch, "slice": row.slice}
        times = {"start": row.start / per_unit, "end": row.end / per_unit}
        return {"kind": record.name, **place, "device": row.device, **times}

    def _shown(self) -> tuple[str, ...]:
        """Fields of the frame: slice and pair only if there are any."""
        used = {"slice": self.pipeline.num_slices > 1, "pair": bool((self.pair != ALONE).any())}
        return tuple(name for name in ScheduledOperation._fields if used.get(name, True))


def _columns(rows: Iterable[Iterable[int]], fields: int) -> Ints:
    """Columns of a table of rows of one length; `fields` of them if there is no row."""
    given = [tuple(row) for row in rows]
    table = np.array(given, dtype=np.int64).reshape(-1, len(given[0]) if given else fields)
    return np.ascontiguousarray(table.T)


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
