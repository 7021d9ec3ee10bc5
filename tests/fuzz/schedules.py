"""Mutants of schedules, of their files and of their claims: the verifier must find them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from ppopt import InputError, Schedule, read_schedule, verify
from tests.factories.schedules import BACKWARDS, build, limited, peaks
from tests.fuzz import judge, layers, pipelines
from tests.fuzz.category import Case, Category, Finding
from tests.verifier import verify_naive

TIMES = {
    *("forward_times", "backward_times", "weight_times", "input_times", "overlap_times"),
    *("overlap_input_times", "p2p_time", "backward_p2p_time", "recompute_time"),
}
"""Keys of a file's pipeline that are in ticks of time."""
CLAIMS = ("makespan", "device_span", "busy", "peak_memory")


class Schedules(Category):
    """Random valid schedules, changed."""

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline, one in four of layers, and a schedule of it, as a seed."""
        ops = rng.choice((6, 12, 24))
        if rng.random() < 0.25:
            fields = layers.draw(rng, ops=ops, partitions=layers.FIXED)
        else:
            fields = pipelines.draw(
                rng, ops=ops, fused=False, slices=(1, 1, 2, 3), overlap=rng.random() < 0.4
            )
        fields.pop("mem_limit", None)
        return {
            "pipeline": fields,
            "backward": rng.choice(BACKWARDS),
            "seed": rng.randrange(10**6),
            "limited": rng.random() < 0.5,
        }

    def made(self, case: Case) -> Schedule:
        """The schedule of a case, before it is changed; some have no room to spare in memory."""
        pipeline = pipelines.made(case)
        schedule = build(pipeline, Random(case["seed"]), case["backward"])
        return limited(schedule, peaks(schedule)) if case["limited"] else schedule


class Valid(Schedules):
    """Nothing changed but the tick: sound files of schedules are accepted."""

    name = "valid"
    goal = 400

    def draw(self, rng: Random) -> Case:
        """Draw a schedule, the fineness of its file, and a shift in that unit."""
        case = super().draw(rng)
        return case | {"finer": rng.choice((1, 2, 3)), "shift": rng.choice((0, 0, 1))}

    def check(self, case: Case) -> Iterator[Finding]:
        """Write the file with finer ticks, everything later by some of them, and read it."""
        schedule = self.made(case)
        yield from judge.broken(schedule)
        finer, shift = case["finer"], case["shift"]
        document = _document(schedule)
        document["ticks_per_unit"] *= finer
        document["claims"] = {}
        for name in TIMES & document["pipeline"].keys():
            document["pipeline"][name] = _times(document["pipeline"][name], finer)
        for row in document["ops"]:
            row[4:6] = [finer * time + shift for time in row[4:6]]
        try:
            again, claims = _read(json.dumps(document))
        except InputError as refused:
            kind = "finer-start-refused" if shift % finer else "valid-file-refused"
            yield Finding(kind, str(refused))
            return
        found = verify(again, claims)
        if found:
            yield Finding("valid-file-violated", str(found[0]))


def _times(value: Any, finer: int) -> Any:
    if isinstance(value, list):
        return [_times(one, finer) for one in value]
    return value * finer


class Edited(Schedules):
    """Native files with one value edited: refused, found, or still true."""

    name = "edited"
    goal = 1500

    def draw(self, rng: Random) -> Case:
        """Draw a schedule, a place in its file and what is put there."""
        case = super().draw(rng)
        change = rng.choice((-1, 1, 2, 7, "zero", "half", "text", "null", "list", "true"))
        return case | {"place": rng.randrange(10**6), "change": change}

    def check(self, case: Case) -> Iterator[Finding]:
        """Edit the file, read it, and compare the verifier with the rules in plain Python."""
        document = _document(self.made(case))
        place = _edit(document, case["place"], case["change"])
        try:
            schedule, claims = _read(json.dumps(document))
        except InputError:
            return
        found = verify(schedule, claims)
        naive = {finding[0] for finding in verify_naive.findings(schedule)}
        wrong = [name for name, right in _figures(schedule).items() if claims.get(name) != right]
        if (naive or wrong) and not found:
            yield Finding("edit-missed", f"{place}: {sorted(naive)}, claims {wrong}")
        if found and not naive and not wrong and "claims" not in place:
            yield Finding("edit-refused", f"{place}: {found[0]}")


def _figures(schedule: Schedule) -> dict[str, Any]:
    busy, makespan, span = verify_naive.busy_and_span(schedule)
    sane = Schedule.from_rows(schedule.pipeline, verify_naive.sane(schedule))
    return dict(zip(CLAIMS, (makespan, span, busy, peaks(sane)), strict=True))


def _edit(document: dict[str, Any], number: int, change: int | str) -> str:
    """Change one leaf below `claims`, `ops` or the costs; returns where it is."""
    places = [
        place
        for place in _leaves(document, ())
        if place[0] in ("claims", "ops") or (place[0] == "pipeline" and len(place) > 2)
    ]
    *way, last = places[number % len(places)]
    holder: Any = document
    for step in way:
        holder = holder[step]
    holder[last] = _changed(holder[last], change)
    return "/".join(map(str, (*way, last)))


def _leaves(value: object, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        yield place
        return
    for key, one in pairs:
        yield from _leaves(one, (*place, key))


def _changed(value: object, change: int | str) -> object:
    if isinstance(change, int) and isinstance(value, int | float) and not isinstance(value, bool):
        return value + change
    words: dict[int | str, object] = {
        "zero": 0,
        "text": "x",
        "null": None,
        "list": [],
        "true": True,
    }
    if change in words:
        return words[change]
    return value / 2 if isinstance(value, int | float) else "BW"


def _document(schedule: Schedule) -> dict[str, Any]:
    """The native file of a schedule, as an object."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        schedule.to_json(path)
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _read(text: str) -> tuple[Schedule, dict[str, Any]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_text(text, encoding="utf-8")
        return read_schedule(path)
