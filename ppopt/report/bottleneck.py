"""The bottleneck of a search: what its lower bound consists of, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR

from ppopt.problem.objective import Objective
from ppopt.report.labels import joined
from ppopt.report.numbers import FEW_DEVICES, significant
from ppopt.report.schedule_report import ScheduleReport
from ppopt.schedule.origin import Argument

_SPACES: Mapping[Argument, str] = {
    Argument.SEARCH: "orders of all operations",
    Argument.TRANSFERS: "orders of all operations and transfers",
}
"""What needs as long, by an argument that names no device and no decisions."""


def describe_bottleneck(report: ScheduleReport) -> str:
    """What needs as long as the lower bound, in one sentence; empty without a certificate."""
    certificate, bound = report.certificate, report.lower_bound
    if certificate is None or bound is None:
        return ""
    time = significant(bound, report.time_unit, ROUND_FLOOR)
    if space := certificate.decisions.configurations or _SPACES.get(certificate.argument):
        return f"no device alone: all {space} need at least {time}"
    if not certificate.devices:
        return ""
    causes = joined(_causes(certificate.argument, report))
    if len(certificate.devices) == 1:
        (device,) = certificate.devices
        verb = "need" if " and " in causes else "needs"
        return f"device {device}: its {causes} already {verb} {time}"
    return f"{_described(certificate.devices, report)} together: their {causes} already need {time}"


def _described(devices: Sequence[int], report: ScheduleReport) -> str:
    """Several devices by their numbers, if these are few and not all."""
    pipeline = report.pipeline
    if pipeline is not None and len(devices) == pipeline.num_devices:
        return "all devices"
    if len(devices) > FEW_DEVICES:
        return f"{len(devices)} devices"
    return f"devices {joined([str(device) for device in devices])}"


def _causes(argument: Argument, report: ScheduleReport) -> list[str]:
    """What takes the time of the devices that an argument names."""
    causes = ["work"]
    if argument in (Argument.ENDS, Argument.DEVICES) and report.mem_limit is not None:
        causes.append("memory limit")
    if argument is Argument.MOVES:
        return ["moves to the host", *causes]
    if argument is Argument.ROUND_TRIP:
        return [*causes, "longest round trip of a microbatch"]
    if argument is Argument.WORK and report.objective == Objective.DEVICE_SPAN.value:
        return causes
    return [*causes, "pipeline latency"]
