"""A schedule: when every operation runs, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.op import Op, OpKind
from ppopt.pipeline import Pipeline

if TYPE_CHECKING:
    from pandas import DataFrame

    from ppopt.metrics import Metrics

Ints = npt.NDArray[np.int64]


class Row(NamedTuple):
    """One operation of a schedule, in ticks; the order of fields is that of the native file."""

    kind: OpKind
    stage: int
    microbatch: int
    device: int
    start: int
    end: int

    @property
    def op(self) -> Op:
        """The operation without its place and time."""
        return Op(self.kind, self.stage, self.microbatch)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Operations with start and end, sorted by device, then start, then end.

    The columns are arrays of one length n (operations): `kind` codes of OpKind, `stage`,
    `microbatch`, `device` numbers from 0, `start` and `end` in ticks. Nothing is promised of
    their contents: `ppopt.verify` says whether they are a schedule of the pipeline.
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

    @classmethod
    def from_rows(
        cls,
        pipeline: Pipeline,
        rows: Iterable[Iterable[int]],
        origin: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Build from rows (kind, stage, microbatch, device, start, end), in any order."""
        table = np.array([tuple(row) for row in rows], dtype=np.int64).reshape(-1, 6)
        return cls.from_columns(pipeline, *np.ascontiguousarray(table.T), origin=origin)

    @classmethod
    def from_columns(
        cls, pipeline: Pipeline, *columns: Ints, origin: Mapping[str, Any] | None = None
    ) -> Schedule:
        """Build from the six columns in the order of `Row`, their operations in any order.

        Operations of no length that share an instant are put in the order of the data flow.
        """
        kind, stage, microbatch, device, start, end = columns
        depth = np.where(kind == OpKind.F, stage, 2 * pipeline.num_stages - stage)
        place = np.lexsort((kind == OpKind.W, microbatch, depth, end, start, device))
        kind, stage, microbatch, device, start, end = (column[place] for column in columns)
        return cls(pipeline, kind, stage, microbatch, device, start, end, dict(origin or {}))

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        """Whether both run the same operations at the same ticks on equal pipelines."""
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.pipeline == other.pipeline and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(self.columns, other.columns, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays are not hashable

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """The six columns in the order of `Row`."""
        return self.kind, self.stage, self.microbatch, self.device, self.start, self.end

    @property
    def orders(self) -> list[Ints]:
        """For every device, the numbers of its operations (`Pipeline.code`) in their order."""
        codes = self.pipeline.code(self.kind, self.stage, self.microbatch)
        return np.split(
            codes, np.searchsorted(self.device, np.arange(1, self.pipeline.num_devices))
        )

    @cached_property
    def metrics(self) -> Metrics:
        """Makespan, spans, busy time and peak memory, in ticks; see `ppopt.metrics`."""
        from ppopt.metrics import metrics  # noqa: PLC0415  it builds on this module

        return metrics(self)

    def to_json(self, path: str | Path) -> None:
        """Write the native schedule file; raises InputError where that cannot be done."""
        from ppopt.files import write  # noqa: PLC0415  loads on use
        from ppopt.formats.schedule_json import dumps  # noqa: PLC0415

        write(Path(path), dumps(self))

    def to_html(self, path: str | Path) -> None:
        """Write the page with Gantt chart and memory; raises InputError where it cannot be."""
        from ppopt.files import write  # noqa: PLC0415  loads on use
        from ppopt.report.html import page  # noqa: PLC0415

        write(Path(path), page([self]))

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
        frame = DataFrame(dict(zip(Row._fields, self.columns, strict=True)))
        frame["kind"] = [OpKind(kind).name for kind in self.kind]
        frame["start"] = self.start / per_unit
        frame["end"] = self.end / per_unit
        return frame

    def rows(self) -> Iterator[Row]:
        """The operations, sorted by device, then start."""
        lists = (column.tolist() for column in self.columns)
        for kind, *rest in zip(*lists, strict=True):
            yield Row(OpKind(kind), *rest)


def split_codes(pipeline: Pipeline, codes: Ints) -> tuple[Ints, Ints, Ints]:
    """Kind, stage and microbatch of operation numbers: `Pipeline.op` for arrays."""
    kind_stage, microbatch = np.divmod(codes, pipeline.batches)
    kind, stage = np.divmod(kind_stage, pipeline.num_stages)
    return kind, stage, microbatch
