"""The least makespan of a tiny job shop, by trying every active schedule: a second opinion.

Some active schedule is optimal, one in which no operation can start earlier without delaying
another one (Giffler and Thompson, Operations Research 8, 1960). Written from the rules alone
(DESIGN 3, rules 1 to 4) for microbatches and slices that differ, without memory limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

Name = tuple[str, int, int, int]
"""Kind, stage, microbatch and slice."""


class Sliced(NamedTuple):
    """Stages, one per device, microbatches and slices; times in the user's unit."""

    forward: Sequence[int]
    backward_input: Sequence[int]
    weight: Sequence[int]
    delay: int
    times: Sequence[Fraction]
    """Factor of every microbatch."""
    slices: Sequence[Fraction]
    """Share of every slice in the time of its microbatch."""
    whole: bool


class Job(NamedTuple):
    """An operation: its device, its time, and what it waits for, with delays."""

    device: int
    time: Fraction
    waits: Sequence[tuple[Name, int]]


def jobs(case: Sliced) -> dict[Name, Job]:
    """The operations of a case."""
    last, parts = len(case.forward) - 1, len(case.slices)
    back = "X" if case.whole else "B"
    jobs_by_name: dict[Name, Job] = {}
    for stage, (f, b, w) in enumerate(
        zip(case.forward, case.backward_input, case.weight, strict=True)
    ):
        for j, factor in enumerate(case.times):
            for q, share in enumerate(case.slices):
                waits: dict[str, list[tuple[Name, int]]] = {
                    "F": [],
                    back: [(("F", stage, j, q), 0)],
                }
                if stage:
                    waits["F"].append((("F", stage - 1, j, q), case.delay))
                if q:
                    waits["F"].append((("F", stage, j, q - 1), 0))
                if stage < last:
                    waits[back].append(((back, stage + 1, j, q), case.delay))
                if q < parts - 1:
                    waits[back].append(((back, stage, j, q + 1), 0))
                times = {"F": f, "X": b + w} if case.whole else {"F": f, "B": b, "W": w}
                waits["W"] = [(("B", stage, j, q), 0)]
                for kind, time in times.items():
                    jobs_by_name[kind, stage, j, q] = Job(stage, factor * share * time, waits[kind])
    return jobs_by_name


def least_makespan(case: Sliced) -> Fraction:
    """The least makespan of any order on the devices."""
    every = jobs(case)
    zero = Fraction(0)
    best = [sum((job.time for job in every.values()), zero) + case.delay * len(every)]
    work = [zero] * len(case.forward)
    for job in every.values():
        work[job.device] += job.time
    seen: dict[frozenset[Name], list[tuple[Fraction, ...]]] = {}

    def extend(ends: Mapping[Name, Fraction], free: list[Fraction], left: list[Fraction]) -> None:
        if len(ends) == len(every):
            best[0] = min(best[0], max(free))
            return
        if max(map(sum, zip(free, left, strict=True))) >= best[0]:
            return
        done = frozenset(ends)
        state = (*free, *(ends[name] for name in sorted(ends)))
        if any(
            all(a <= b for a, b in zip(known, state, strict=True)) for known in seen.get(done, [])
        ):
            return
        seen.setdefault(done, []).append(state)
        starts = {
            name: max([free[job.device], *(ends[before] + lag for before, lag in job.waits)])
            for name, job in every.items()
            if name not in ends and all(before in ends for before, _ in job.waits)
        }
        first = min(starts, key=lambda name: starts[name] + every[name].time)
        until, device = starts[first] + every[first].time, every[first].device
        for name, start in starts.items():
            job = every[name]
            if job.device == device and (start < until or name == first):
                after, rest = list(free), list(left)
                after[device], rest[device] = start + job.time, left[device] - job.time
                extend({**ends, name: start + job.time}, after, rest)

    extend({}, [zero] * len(work), work)
    return best[0]
