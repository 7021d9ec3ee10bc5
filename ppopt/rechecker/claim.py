"""What is to be checked: that no schedule of a pipeline is below a bound, or that there is none."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from ppopt.errors import InputError
from ppopt.op import Op, OpKind
from ppopt.pipeline import Pipeline

if TYPE_CHECKING:
    from ppopt.schedule import Schedule
    from ppopt.solver.result import Result


class Claim(NamedTuple):
    """No schedule of the pipeline has a value below the bound."""

    pipeline: Pipeline
    span: bool
    """Whether the value is the device span; else it is the makespan."""
    fused: bool
    """Whether every backward is whole (BW); else every one is split (B and W)."""
    bound: int | None
    """In ticks; None: there is no schedule at all."""
    devices: tuple[int, ...] = ()
    """Where the certificate says that the argument lies: where to look first, never believed."""

    @property
    def kinds(self) -> tuple[OpKind, ...]:
        """Kinds of operation of every stage and microbatch, in the order in which they run."""
        return (OpKind.F, OpKind.BW) if self.fused else (OpKind.F, OpKind.B, OpKind.W)

    @property
    def size(self) -> int:
        """Number of operations of a schedule."""
        return len(self.kinds) * self.pipeline.num_stages * self.pipeline.batches

    def routes(self) -> list[range]:
        """Microbatches of every route."""
        share = self.pipeline.batches // self.pipeline.routes
        return [range(share * route, share * (route + 1)) for route in range(self.pipeline.routes)]

    def device(self, op: Op) -> int:
        """Device of an operation."""
        return self.pipeline.device(op.stage, op.microbatch)

    def time(self, op: Op) -> int:
        """Time of an operation, in ticks."""
        return self.pipeline.ticks.durations[op.kind][op.stage]


def of_result(result: Result) -> Claim | None:
    """Read the claim of a search: its bound, or that nothing keeps the limits; None: neither."""
    bound = result.lower_bound
    if bound is None and result.status != "infeasible":
        return None
    ticks = None if bound is None else _ticks(result.pipeline, bound)
    devices = result.certificate.devices
    return Claim(result.pipeline, result.objective == "device-span", result.fused, ticks, devices)


def of_schedule(schedule: Schedule) -> Claim | None:
    """Read the claim of a schedule's origin; None where it states no bound."""
    origin, pipeline = schedule.origin, schedule.pipeline
    bound = origin.get("lower_bound")
    if bound is None:
        return None
    span = origin.get("objective", "makespan") == "device-span"
    stated: Mapping[str, Any] = origin.get("certificate") or {}
    devices = tuple(stated.get("devices", ()))
    strange = [device for device in devices if device >= pipeline.num_devices]
    if strange:
        raise InputError(
            f"certificate: device {strange[0]} is not one of 0..{pipeline.num_devices - 1}"
        )
    ticks = _ticks(pipeline, Fraction(bound))
    return Claim(pipeline, span, bool(origin.get("fused")), ticks, devices)


def _ticks(pipeline: Pipeline, bound: Fraction) -> int:
    """Turn a bound into ticks; files write it as the float nearest to it."""
    return round(bound * pipeline.ticks.per_unit)
