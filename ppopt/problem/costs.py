"""Costs of stages: in the user's units, and as integer ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from operator import add
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ppopt.problem.cost_table import (
    AUXILIARY_TIMES,
    STAGE_COSTS,
    Cost,
    StageFields,
    WorkspaceFields,
    costs_in,
)
from ppopt.problem.operation import OpKind
from ppopt.problem.units import Unit

MAX_TICKS = 2**53
"""Bound on every sum of ticks: integers below it are exact in JSON readers and in float64."""
Row = tuple[int, ...]
"""One number per stage, in ticks."""
PairTimes = tuple[Fraction, ...] | tuple[tuple[Fraction, ...], ...]
"""One number per stage, or a matrix [stage of F][stage of BW, or of B]."""
Number = TypeVar("Number", Fraction, int)


@dataclass(frozen=True, repr=False)
class StageCosts(StageFields[tuple[Number, ...]], Mapping[str, Any]):
    """Costs of stages by field, one number per stage: `costs["static"]`, or `costs.static`.

    The fields, with their meanings, are those of `ppopt.problem.cost_table.STAGE_COSTS`. Exact
    numbers are in the user's units (times on a device of speed 1), whole numbers are ticks. Times
    of pairs may be a matrix, and are empty if they are not stated.
    """

    def __getitem__(self, field: str) -> Any:
        return vars(self)[field]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    @property
    def memory_fields(self) -> tuple[str, ...]:
        """Fields of memory, without those that say what holds if they are not given."""
        return tuple(
            cost.field
            for cost in STAGE_COSTS
            if cost.unit is Unit.MEMORY and cost.field != "workspace" and self.has_effect(cost)
        )

    def has_effect(self, cost: Cost) -> bool:
        """Whether a cost belongs to every schedule file, or its values change a schedule."""
        if cost.field in ("kept", "recompute_memory"):
            return self.kept != self.activation
        return not cost.optional or any(self[cost.field])

    def __repr__(self) -> str:
        return f"StageCosts({len(self.forward)} stages)"


WORKSPACES = {OpKind[cost.mapping[1]]: cost.field for cost in costs_in(WorkspaceFields)}
"""Kind of operation -> field of its workspace."""


def costs_of(
    stated: Mapping[str, tuple[Fraction, ...] | None],
    share: Sequence[int],
    chunks: int,
    slices: int,
) -> StageCosts[Fraction]:
    """Costs of every stage for one slice of a microbatch.

    `stated` has the costs of whole shares of the model, by field; None: the default. `share` is the
    share of every stage, which is divided into `chunks` stages.
    """
    rows: dict[str, tuple[Any, ...]] = {}
    for cost in STAGE_COSTS:
        values = stated.get(cost.field)
        if values is None:
            unstated = cost.of_pairs and cost.default.function is None
            values = () if unstated else cost.default.stage_values(rows)
        rows[cost.field] = values
    return StageCosts(
        **{
            cost.field: _cut(
                rows[cost.field],
                share,
                (chunks if cost.cut_by_chunks else 1) * (slices if cost.per_microbatch else 1),
            )
            for cost in STAGE_COSTS
        }
    )


def _cut(values: tuple[Any, ...], share: Sequence[int], parts: int) -> tuple[Any, ...]:
    """The value of one of `parts` equal parts, for every stage the value of its share."""
    if not values:
        return values
    if is_matrix(values):
        return tuple(_cut(values[entry], share, parts) for entry in share)
    same = parts == 1 or not any(values)
    cut = values if same else tuple(value / parts for value in values)
    return tuple(cut[entry] for entry in share)


def times(values: Any, factor: int | Fraction) -> Any:
    """Numbers, in rows of any depth, multiplied by a factor."""
    if isinstance(values, list | tuple):
        return tuple(times(value, factor) for value in values)
    return values * factor


def is_matrix(values: Any) -> bool:
    """Whether there is a row of numbers per stage, or per device, and not one number."""
    return isinstance(values, tuple) and bool(values) and isinstance(values[0], tuple)


def flat(values: Any) -> Iterator[Any]:
    """All numbers of delays, or of costs, in any form."""
    if isinstance(values, tuple):
        for value in values:
            yield from flat(value)
    else:
        yield values


class Ticks(NamedTuple):
    """Costs as whole ticks; times and memory have each their own tick."""

    per_unit: int
    """Ticks in one unit of time."""
    memory_per_unit: int
    """Ticks in one unit of memory."""
    costs: StageCosts[int]
    """Costs per stage; times are those on the device of the stage."""
    durations: tuple[tuple[int, ...], ...]
    """Time of an operation, recompute included: `durations[kind][stage]`."""
    overlap: Row | tuple[Row, ...]
    """Time of an F and a BW run as one, recompute included: of one stage, or [stage of F][stage of
    BW] (see `pair_time`)."""
    overlap_input: Row | tuple[Row, ...]
    """The same of an F and a B; empty: not stated."""
    down: tuple[Row, ...]
    """Delay from every stage to the next one: `down[route][stage]`, 0 on one device."""
    up: tuple[Row, ...]
    """Delay from every stage's successor back to it: `up[route][stage]`, 0 on one device."""
    workspace: tuple[tuple[int, ...], ...]
    """Memory that an operation needs only while it runs: `workspace[kind][stage]`.

    The offloaded part of an activation is modelled as workspace of F, and B or BW allocates it at
    its start. This makes the compute-only problem a relaxation."""
    allocates: tuple[tuple[int, ...], ...]
    """Memory that an operation allocates at its start: `allocates[kind][stage]`."""
    frees: tuple[tuple[int, ...], ...]
    """Memory that an operation frees at its end: `frees[kind][stage]`. F, B and W together free
    what they allocate, and so do F and BW."""
    static: tuple[int, ...]
    """Static memory, per device."""
    limits: tuple[int, ...] | None
    """Memory limit per device; None: unlimited."""

    @property
    def times(self) -> Iterator[int]:
        """All times of operations and delays."""
        auxiliary = (self.costs[cost.field] for cost in AUXILIARY_TIMES)
        pairs = chain(flat(self.overlap), flat(self.overlap_input))
        return chain(*self.durations, pairs, *self.down, *self.up, *auxiliary)

    def amounts(self, kind: OpKind, *, with_host: bool = False) -> list[tuple[int, int, int, int]]:
        """Duration of an operation of each stage, memory that it allocates and frees, and the rest.

        At the same instant ends come before starts, so an operation of zero duration needs no
        workspace. The rest is that workspace, which it needs in a pair: a pair has a duration.
        `with_host`: moves to the host and back are operations of their own. They free the offloaded
        memory after F, and allocate it before B or BW: always before an operation of zero duration.
        """
        forward, backward, rows = kind is OpKind.F, kind in (OpKind.B, OpKind.BW), []
        amounts = self.allocates[kind], self.frees[kind], self.costs.offload_memory
        columns = zip(self.durations[kind], *amounts, strict=True)
        for time, allocates, frees, offloaded in columns:
            own = allocates - offloaded * backward
            left = frees - offloaded * (forward and with_host)
            at_once = 0 if time else min(own, left)
            taken = own if with_host else allocates
            rows.append((time, taken - at_once, left - at_once, at_once))
        return rows

    def memory_change(self, kind: OpKind, stage: int) -> int:
        """Net change of memory by an operation."""
        return self.allocates[kind][stage] - self.frees[kind][stage]

    def allocates_at_an_instant(self, kind: OpKind, stage: int) -> bool:
        """Whether an operation has zero duration and allocates memory."""
        return not self.durations[kind][stage] and self.memory_change(kind, stage) > 0

    def headroom(self, device: int) -> int | None:
        """Memory limit of a device minus its static memory; None: unlimited."""
        return None if self.limits is None else self.limits[device] - self.static[device]

    def pair_time(self, forward: int, kind: OpKind, backward: int) -> int:
        """Time of an F of one stage and a B or BW (`kind`) of another that run as one operation.

        - F with BW: the entry of the matrix, if the stated times are one. Otherwise the sum of both
          times minus the smaller of the two stages' savings, but at least the smallest of the two
          stated times and of the longer part.
        - F with B: the same rule on the stated times of F with B. Without such times, F with B
          saves the same time as F with BW, but never takes less than the longer of F and B, unless
          F with BW does.

        Recompute makes B and BW longer, and saves nothing.
        """
        if kind is OpKind.B and self.overlap_input:
            return self._stated_pair_time(self.overlap_input, forward, kind, backward)
        forward_time, backward_time = (
            self.durations[OpKind.F][forward],
            self.durations[kind][backward],
        )
        whole = self._stated_pair_time(self.overlap, forward, OpKind.BW, backward)
        longer = backward_time - self.durations[OpKind.BW][backward]
        return max(whole + longer, min(whole, max(forward_time, backward_time)))

    def pair_saving(self, forward: int, kind: OpKind, backward: int) -> int:
        """Time that such a pair saves; below 0 if it is slower than one after the other."""
        alone = self.durations[OpKind.F][forward] + self.durations[kind][backward]
        return alone - self.pair_time(forward, kind, backward)

    def _stated_pair_time(self, times: Any, forward: int, kind: OpKind, backward: int) -> int:
        """Time of an F and a backward that run as one, from the stated times of such pairs."""
        if is_matrix(times):
            entry: int = times[forward][backward]
            return entry
        f, full = self.durations[OpKind.F], self.durations[kind]
        saved = min(f[stage] + full[stage] - times[stage] for stage in (forward, backward))
        recompute = self.costs.recompute_time
        recompute_time = recompute[backward]
        stated = (times[stage] - recompute[stage] for stage in (forward, backward))
        minimum = recompute_time + min(*stated, max(f[forward], full[backward] - recompute_time))
        pair: int = max(f[forward] + full[backward] - saved, minimum)
        return pair

    def with_costs(self, costs: StageCosts[int]) -> Ticks:
        """The same ticks of time and memory with other costs of stages."""
        return self._replace(**by_kind(costs))

    def time(self, ticks: int) -> Fraction:
        """Ticks to the user's unit of time."""
        return Fraction(ticks, self.per_unit)

    def memory(self, ticks: int) -> Fraction:
        """Ticks to the user's unit of memory."""
        return Fraction(ticks, self.memory_per_unit)

    def __repr__(self) -> str:
        units = f"{self.per_unit} per unit of time, {self.memory_per_unit} per unit of memory"
        return f"Ticks({units})"


class StageArrays:
    """Costs of stages as arrays, `[stage]`, and times and memory of their operations."""

    def __init__(self, costs: Mapping[str, Any]) -> None:
        """`costs` are those of `StageCosts`, by field."""
        offloaded, recompute = costs["offload_memory"], costs["recompute_time"]
        self.costs = costs
        self.durations = (
            costs["forward"],
            costs["backward_input"] + recompute,
            costs["weight"],
            costs["backward"] + recompute,
        )
        """Time of an operation, recompute included: `[kind][stage]`."""
        self.retained = costs["kept"] - offloaded
        """Activation that F retains, without the offloaded part."""
        allocated = costs["recompute_memory"] + offloaded
        bare = memory_by_kind(costs["activation"], self.retained, allocated, costs["memory_b"])
        forward, *remaining = (costs[WORKSPACES[kind]] for kind in OpKind)
        self.workspace = (forward + offloaded, *remaining)
        """Memory that an operation needs only while it runs: `[kind][stage]`."""
        self.allocates, self.frees = (tuple(map(add, amounts, self.workspace)) for amounts in bare)
        """Memory that an operation allocates at its start, and frees at its end."""

    @property
    def has_workspace(self) -> bool:
        """Whether an operation frees what it allocates."""
        pairs = zip(self.allocates, self.frees, strict=True)
        return any(((allocated != 0) & (freed != 0)).any() for allocated, freed in pairs)

    def memory_change(self, kind: OpKind) -> Any:
        """Net change of memory by an operation of every stage."""
        return self.allocates[kind] - self.frees[kind]


def by_kind(costs: StageCosts[int], arrays: StageArrays | None = None) -> dict[str, Any]:
    """Costs of stages, and the fields of `Ticks` that follow from them for each kind.

    `arrays` has the same costs as arrays, if they exist.
    """
    arrays = arrays or StageArrays({field: np.array(row) for field, row in costs.items()})
    rows = {
        "durations": arrays.durations,
        "workspace": arrays.workspace,
        "allocates": arrays.allocates,
        "frees": arrays.frees,
    }
    return {
        "costs": costs,
        "overlap": _sum(costs.overlap, costs.recompute_time),
        "overlap_input": _sum(costs.overlap_input, costs.recompute_time),
        **{field: tuple(tuple(row.tolist()) for row in kinds) for field, kinds in rows.items()},
    }


def memory_by_kind(
    activation: Any, retained: Any, allocated: Any, memory_b: Any
) -> tuple[list[Any], list[Any]]:
    """Memory that F, B, W and BW allocate at their start and free at their end, without workspace.

    `allocated` is what BW allocates for what F did not retain. Works on integers and on arrays.
    """
    missing, taken_by_b = activation - retained, memory_b * (memory_b > 0)
    allocates = [retained, missing + taken_by_b, 0 * retained, allocated]
    frees = [0 * retained, taken_by_b - memory_b, activation + memory_b, retained + allocated]
    return allocates, frees


def _sum(left: tuple[Any, ...], right: Row) -> tuple[Any, ...]:
    """Sums per stage; of a matrix, per row."""
    if is_matrix(left):
        return tuple(_sum(row, right) for row in left)
    return tuple(map(add, left, right))
