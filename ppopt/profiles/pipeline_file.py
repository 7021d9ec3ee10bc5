"""A measured pipeline as a config file, with its provenance."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date
from fractions import Fraction
from pathlib import Path

from ppopt.formats.files import write
from ppopt.problem.costs import StageCosts
from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import Link, Profile
from ppopt.profiles.megatron_timers import Stages

MILLISECOND = 10**6
MEBIBYTE = 2**20
_TIMES = {
    "forward_times": "forward",
    "backward_times": "backward",
    "weight_times": "weight",
    "input_times": "backward_input",
}
"""Key in the file -> field of the pipeline."""
_MEMORY = ("activation", "memory_b", "static")
"""Keys and fields of memory."""
_MOST_LISTED = 5


def write_pipeline(profile: Profile, path: str | Path, *, description: str, source: str) -> None:
    """Write the pipeline file that `ppopt solve --config` takes; see `dumps`.

    Raises InputError where it cannot be written.
    """
    write(Path(path), dumps(profile, description=description, source=source))


def dumps(
    profile: Profile,
    *,
    description: str,
    source: str,
    day: date | None = None,
    memory: StageCosts | None = None,
) -> str:
    """Write a profile in milliseconds and MiB, as YAML that `--config` takes.

    Comments tell what was measured, and what was not. Where the profile holds no memory, it may
    be given: `memory` is in any unit.
    """
    devices = max(profile.hosts) + 1
    linear = profile.hosts == tuple(range(devices))
    lines = [
        *_head(description, source, day),
        *(["memory_unit: MiB"] if profile.held else []),
        "",
        f"stages: {len(profile.hosts)}",
        f"batches: {profile.batches}",
        *([] if linear else [f"placement: {list(profile.hosts)}"]),
        "",
        *(f"# {note}" for note in notes(profile)),
    ]
    costs = profile.costs(MILLISECOND)
    lines += [f"{key}: {_listed(costs[field])}" for key, field in _TIMES.items()]
    lines.append(f"p2p_time: {_number(costs['p2p'])}")
    if profile.held:
        held = [profile.held[stage] for stage in range(len(profile.hosts))]
        lines.append(f"activation: {_listed(Fraction(h.activation, MEBIBYTE) for h in held)}")
        if None not in (changes := [h.memory_b for h in held]):
            lines.append(f"memory_b: {_listed(Fraction(b or 0, MEBIBYTE) for b in changes)}")
        static = (Fraction(h.static(profile.batches), MEBIBYTE) for h in held)
        lines.append(f"static: {_listed(static)}")
    elif memory is not None:
        lines.append("# Memory is that of the schedule that ran, not measured.")
        lines += [f"{key}: {_listed(getattr(memory, key))}" for key in _MEMORY]
    return "\n".join(lines) + "\n"


def notes(profile: Profile) -> list[str]:
    """Say how the times came about: counts, what is derived, outliers; one line each."""
    counts = [times.runs for times in profile.times.values()]
    least, most = min(counts), max(counts)
    each = str(most) if least == most else f"{least} to {most}"
    told = [f"Medians of {each} operations each, steps: {profile.steps}."]
    kinds = {kind for kind, _ in profile.times}
    if OpKind.B not in kinds:
        told.append("No backward was split: W and B are half of BW each, unmeasured.")
    if OpKind.BW not in kinds:
        told.append("Every backward was split: BW is B and W together, unmeasured.")
    if profile.link is None:
        told.append(
            "No operation waited for another device alone: p2p is unmeasured, 0 is written."
        )
    elif profile.link.above_noise:
        told.append(f"p2p is the median of {_delays(profile.link)}.")
    if profile.held:
        told.append(
            "Memory of storages. static: weights, gradients, buffers for receives, and what stays "
            f"until the step of {profile.batches} microbatches ends; no optimizer."
        )
        if None in (held.memory_b for held in profile.held.values()):
            told.append("No backward was split on every stage: memory_b is unmeasured.")
    told += warnings(profile)
    outliers = profile.outliers
    if outliers:
        shown = ", ".join(
            f"{record.op} {(record.end - record.start) / MILLISECOND:.3f} ms"
            for record in outliers[:_MOST_LISTED]
        )
        more = ", ..." if len(outliers) > _MOST_LISTED else ""
        told.append(f"{len(outliers)} outliers (they do not move a median): {shown}{more}")
    return told


def warnings(profile: Profile) -> list[str]:
    """Say where what is written is not what was measured; one line each."""
    told = [
        f"BW of stage {stage} was measured at {_ms(whole)}, below a part of it, {_ms(part)}: that "
        "is written."
        for stage, (whole, part) in profile.shortened.items()
    ]
    if profile.link is not None and not profile.link.above_noise:
        told.append(
            f"p2p was measured at {_ms(profile.link.median)}, not above its noise "
            f"({_delays(profile.link)}): 0 is written."
        )
    return told


def _delays(link: Link) -> str:
    return f"{link.delays} delays, standard deviation {_ms(link.deviation)}"


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / MILLISECOND:.3f} ms"


def _listed(values: Iterable[Fraction]) -> str:
    return f"[{', '.join(map(_number, values))}]"


def _number(value: Fraction) -> str:
    """Write at most six decimals, without trailing zeros."""
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def of_timers(stages: Stages, batches: int, *, description: str, day: date | None = None) -> str:
    """Write the times of Megatron's timers: one per device, the whole backward alone."""
    told = [f"Medians of {stages.reports} reports; the split of the backward is unmeasured."]
    if stages.outliers:
        told.append(f"{stages.outliers} values lay 20 % or more above their median.")
    return "\n".join(
        [
            *_head(description, "Megatron-LM timers", day),
            "",
            f"stages: {len(stages.forward)}",
            f"batches: {batches}",
            "",
            *(f"# {note}" for note in told),
            f"forward_times: {_listed(stages.forward)}",
            f"backward_times: {_listed(stages.backward)}",
            "# p2p_time is unmeasured: the timers of transfers hold the waiting too.",
            "",
        ]
    )


def _head(description: str, source: str, day: date | None) -> list[str]:
    return [
        f"description: {json.dumps(description)}",
        f"source: {json.dumps(source)}",
        f"date: {(day or date.today()).isoformat()}",
        "time_unit: ms",
    ]
