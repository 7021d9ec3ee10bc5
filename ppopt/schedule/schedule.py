"""A schedule: a timetable with its figures, its orders, and its output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import RECORDS, Per, ResourceKind
from ppopt.problem.operation import ONCE
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.metrics import Metrics, metrics
from ppopt.schedule.operations import ALONE, Operation, Operations, occurs_per
from ppopt.schedule.origin import Origin
from ppopt.schedule.timetable import Timetable

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure  # type: ignore[import-untyped]


class Schedule(Timetable):
    """A timetable with its figures, and with methods to build, write and draw it.

    `to_json`, `to_html`, `plot` and the notebook view import higher packages on use; no other
    module of the lower packages does.
    """

    @classmethod
    def from_rows(
        cls, pipeline: Pipeline, rows: Iterable[Iterable[int]], origin: Origin | None = None
    ) -> Schedule:
        """Build from rows of the fields of `Operation`, in any order.

        All but the first six fields may be left out, of all rows alike (`Operations.complete`).
        """
        fields = [tuple(row) for row in rows]
        table = np.array(fields, dtype=np.int64).reshape(-1, len(fields[0]) if fields else 6)
        return cls.from_columns(pipeline, *np.ascontiguousarray(table.T), origin=origin)

    @classmethod
    def from_columns(
        cls, pipeline: Pipeline, *columns: Ints, origin: Origin | None = None
    ) -> Schedule:
        """Build from the columns of such rows."""
        operations = Operations.complete(pipeline, columns).ordered()
        return cls(pipeline, operations, origin or Origin())

    def with_starts(self, start: Ints) -> Schedule:
        """The same schedule with other starts, by row of all operations, in ticks."""
        table = self.operations
        operations = replace(table, start=start, end=start + table.end - table.start)
        return replace(self, operations=operations.ordered())

    def limited(self, pipeline: Pipeline) -> Schedule:
        """The schedule on the same pipeline with other limits, which change no figure."""
        schedule = replace(self, pipeline=pipeline)
        vars(schedule)["metrics"] = self.metrics
        return schedule

    def __eq__(self, other: object) -> bool:
        """Whether both run the same operations at the same ticks on equal pipelines."""
        if not isinstance(other, Schedule):
            return NotImplemented
        columns = zip(self.operations.columns, other.operations.columns, strict=True)
        return self.pipeline == other.pipeline and all(starmap(np.array_equal, columns))

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable

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

        Operations other than compute come last. Missing values are <NA>: the microbatch of an
        operation once per step, and the stage of an optimizer. Needs pandas (the extra `frame`).
        """
        from pandas import DataFrame  # noqa: PLC0415  optional

        table = self.operations.where(~self.operations.on(ResourceKind.LINK))
        besides = ~table.computed
        keys = (table.end, table.start, table.device)
        order = np.lexsort((*(np.where(besides, key, 0) for key in keys), besides))
        table, besides = table.where(order), besides[order]
        per_unit = self.pipeline.ticks.per_unit
        used = {"slice": self.pipeline.num_slices > 1, "pair": bool((self.pair != ALONE).any())}
        names = [name for name in Operation._fields[:8] if used.get(name, True)]
        frame = DataFrame({name: getattr(table, name) for name in names})
        frame["kind"] = [RECORDS[code].name for code in table.kind.tolist()]
        frame["start"] = table.start / per_unit
        frame["end"] = table.end / per_unit
        if not besides.any():
            return frame
        once = table.microbatch == ONCE
        absent = {"stage": occurs_per(Per.DEVICE)[table.kind], "microbatch": once}
        absent |= {"device": besides & False, "slice": once, "pair": besides}
        for name in frame.columns.intersection([*absent]):
            frame[name] = frame[name].astype("Int64").mask(absent[name])
        return frame
