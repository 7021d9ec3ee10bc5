"""A schedule: when every operation runs, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.op import Op, OpKind
from ppopt.pipeline import Pipeline

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
        cls, pipeline: Pipeline, rows: Iterable[Iterable[int]], origin: Mapping[str, Any] | None = None
    ) -> Schedule:
        """Build from rows (kind, stage, microbatch, device, start, end), in any order."""
        table = np.array([tuple(row) for row in rows], dtype=np.int64).reshape(-1, 6)
        by_place = np.lexsort((table[:, 2], table[:, 1], table[:, 0], *table[:, [5, 4, 3]].T))
        return cls(pipeline, *np.ascontiguousarray(table[by_place].T), dict(origin or {}))

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

    def rows(self) -> Iterator[Row]:
        """The operations, sorted by device, then start."""
        lists = (column.tolist() for column in self.columns)
        for kind, *rest in zip(*lists, strict=True):
            yield Row(OpKind(kind), *rest)
