"""Links that carry one transfer at a time: searches, mutants of transfers and of posted orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import ppopt
from ppopt import Objective, Pipeline, Result, Schedule, Verdict, verify
from ppopt.problem.link_mode import LinkMode
from ppopt.schedule import communication
from ppopt.schedule.actions import Action, ActionKind, ActionRow
from ppopt.solver.parameters import RoundParams, SolveParams
from ppopt.verifier.posting import posting_faults
from tests.factories.schedules import table
from tests.factories.streams import LINK_MODES, Built, append_all
from tests.factories.tables import joined, transfer_table
from tests.fuzz import judge, pipelines
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.oracles.streams import Times, simulate
from tests.oracles.streams_exhaustive import UndecidedError, least_makespan, least_mixed
from tests.oracles.transfer_rules import broken_rules
from tests.verifier import verify_naive

MOST_STATES = 40_000
"""States after which the oracle gives up."""
PARAMS = SolveParams(rounds=RoundParams(most=2))
KINDS = ("split", "whole", "mixed")
CHANGES = ("moved", "swapped", "dropped", "doubled", "longer", "elsewhere", "operation")
POST_CHANGES = ("swapped", "moved", "dropped", "doubled")
Rows = list[tuple[int, ...]]


def _draw(
    rng: Random, ops: int, modes: Sequence[str] = LINK_MODES, **options: Any
) -> dict[str, Any]:
    """Draw a pipeline of several devices; over streams on one route and without slices."""
    mode = rng.choice(modes)
    several = (1,) if mode == LinkMode.STREAMS else (1, 1, 2)
    options |= {"devices": (2, 2, 3), "routes": several, "slices": several}
    return pipelines.draw(rng, ops=ops, fused=False, **options) | {"link_mode": str(mode)}


class Streams(Category):
    """Tiny searches over links, beside every order of devices and links."""

    name = "streams"
    goal = 1500

    def draw(self, rng: Random) -> Case:
        """Draw two to four stages, how they are searched, and perhaps a schedule to start from."""
        options = {
            "objective": rng.choice(("makespan", "makespan", "makespan", "device-span")),
            "backward_kind": rng.choice(KINDS),
            "time_limit": rng.choice((0.02, 5, 5, 5)),
            "seed": rng.randrange(3),
        }
        hint = rng.randrange(1000) if rng.random() < 0.3 else None
        fields = _draw(rng, rng.choice((6, 9, 12)), free=rng.random() < 0.3)
        return {"pipeline": fields, "options": options, "hint": hint, "more": rng.randint(0, 2)}

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, compare with the oracle, and re-check the bound and one that is too high."""
        pipeline, options = pipelines.made(case), case["options"]
        least = _least(pipeline, options["backward_kind"])
        hint = None
        if case["hint"] is not None:
            hint = append_all(pipeline, Random(case["hint"]), options["backward_kind"]).schedule
        found = ppopt.solve(pipeline, workers=1, hint=hint, params=PARAMS, **options)
        if found.schedule is not None:
            yield from valid(found.schedule)
        yield from _values(found, least)
        if hint is not None and hint.fits_limits:
            own = hint.metrics.value_ticks(Objective(found.objective))
            if found.value is None or judge.ticks(pipeline, found.value) > own:
                yield Finding("worse-than-hint", f"{found.value}, the hint takes {own} ticks")
        yield from _rechecked(found, least, case["more"])

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with plain options, and with a simpler pipeline."""
        plain = {"objective": "makespan", "backward_kind": "split", "seed": 0}
        for name, value in plain.items():
            if case["options"][name] != value:
                yield case | {"options": case["options"] | {name: value}}
        if case["hint"] is not None:
            yield case | {"hint": None}
        yield from _simpler(case)


def _simpler(case: Case) -> Iterator[Case]:
    """Yield the case with a simpler pipeline, still over links."""
    return (one for one in pipelines.smaller(case) if "link_mode" in one["pipeline"])


def _least(pipeline: Pipeline, kind: str) -> int | None:
    if pipeline.limits is not None and any(0 in row for row in pipeline.ticks.durations):
        raise SkippedError("the oracle has no limits at instants")
    try:
        if kind == "mixed":
            return least_mixed(pipeline, most=MOST_STATES)
        return least_makespan(pipeline, whole=kind == "whole", most=MOST_STATES)
    except UndecidedError as many:
        raise SkippedError(str(many)) from None


def _values(found: Result, least: int | None) -> Iterator[Finding]:
    """Of device spans the oracle knows only that the least is at most the least makespan."""
    if found.objective == "makespan":
        yield from judge.values(found, least)
    elif least is None:
        yield from judge.values(found, None)
    elif found.lower_bound is not None and judge.ticks(found.pipeline, found.lower_bound) > least:
        yield Finding("wrong-bound", f"{found.lower_bound}, where a makespan takes {least} ticks")


def _rechecked(found: Result, least: int | None, more: int) -> Iterator[Finding]:
    """The bound is never refuted; one above the least value is never confirmed."""
    verdict = ppopt.recheck(found, time_limit=10, workers=1).verdict
    if verdict is Verdict.WRONG:
        yield Finding("true-bound-refuted", f"the bound {found.lower_bound} is refuted")
    if not more or least is None or found.objective != "makespan":
        return
    above = Fraction(least + more, found.pipeline.ticks.per_unit)
    again = ppopt.recheck(replace(found, lower_bound=above), time_limit=10, workers=1)
    if again.verdict is Verdict.CONFIRMED:
        yield Finding("inflated-bound-confirmed", f"the bound {above}: {again.reason}")
    elif again.counterexample is not None:
        yield from valid(again.counterexample)


def valid(schedule: Schedule) -> Iterator[Finding]:
    """Say which rules a schedule breaks, those of transfers among them."""
    yield from judge.broken(schedule, further=broken_rules(schedule))


class Transfers(Category):
    """Random schedules over links, one thing in them changed."""

    name = "transfers"
    goal = 6000

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline, a schedule of it as a seed, and what is changed."""
        fields = _draw(rng, rng.choice((6, 12, 24)), overlap=rng.random() < 0.3)
        return {
            "pipeline": fields,
            "backward": rng.choice(KINDS),
            "seed": rng.randrange(10**6),
            "change": rng.choice((None, *CHANGES, *CHANGES)),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Change it, and compare the verifier with the rules in plain Python."""
        random = Random(case["seed"])
        schedule = append_all(pipelines.made(case), random, case["backward"]).schedule
        if case["change"] is not None:
            schedule = changed(schedule, random, case["change"])
        naive = {one[0] for one in verify_naive.findings(schedule)} | broken_rules(schedule)
        found = {one.rule for one in verify(schedule)}
        if found != naive:
            words = f"the verifier finds {sorted(found)}, the oracle {sorted(naive)}"
            yield Finding(f"{case['change']}-differs", words)

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with a simpler pipeline."""
        yield from _simpler(case)


def changed(schedule: Schedule, random: Random, change: str) -> Schedule:
    """The schedule with a transfer or an operation changed."""
    rows, ops = transfer_table(schedule), table(schedule)
    if not rows:
        raise SkippedError("there is no transfer")
    number = random.randrange(len(rows))
    row, step = rows[number], random.choice((-3, -1, 1, 2))
    match change:
        case "moved":
            rows[number] = (*row[:5], row[5] + step, row[6] + step, *row[7:])
        case "swapped":
            _swap(rows, number, random)
        case "dropped":
            del rows[number]
        case "doubled":
            begin = random.choice((row[5], row[5] + step, max(one[6] for one in rows)))
            rows.append((*row[:5], begin, begin + row[6] - row[5], *row[7:]))
        case "longer":
            rows[number] = (*row[:6], row[6] + step, *row[7:])
        case "elsewhere":
            place = random.randrange(5)
            rows[number] = (*row[:place], row[place] + step, *row[place + 1 :])
        case "operation":
            place = random.randrange(len(ops))
            op = ops[place]
            ops[place] = (*op[:4], op[4] + step, op[5] + step, *op[6:])
    return joined(schedule.pipeline, ops, transfers=rows)


def _swap(rows: Rows, number: int, random: Random) -> None:
    """Let a transfer and another one of its link change places, each of its own length."""
    row = rows[number]
    others = [n for n, one in enumerate(rows) if n != number and {*one[3:5]} == {*row[3:5]}]
    if not others:
        raise SkippedError("the link carries nothing else")
    other = random.choice(others)
    for place, begin in ((number, rows[other][5]), (other, row[5])):
        one = rows[place]
        rows[place] = (*one[:5], begin, begin + one[6] - one[5], *one[7:])


class Posts(Category):
    """Posted orders with posts moved, swapped, dropped, doubled."""

    name = "posts"
    goal = 4000

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline, an order as a seed, and what is changed how often."""
        return {
            "pipeline": _draw(rng, rng.choice((6, 12, 24)), (LinkMode.STREAMS,)),
            "backward": rng.choice(KINDS),
            "seed": rng.randrange(10**6),
            "changes": rng.choices(POST_CHANGES, (6, 3, 1, 1), k=rng.randint(1, 3)),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Change it; it is refused, or it runs, in the times of a plain simulation."""
        random = Random(case["seed"])
        made = append_all(pipelines.made(case), random, case["backward"])
        rows, pipeline = posted(made, random, case["changes"]), made.schedule.pipeline
        faults = posting_faults(pipeline, rows)
        known = simulate(pipeline, rows) if _complete(made.rows, rows) else None
        if (known is None) != bool(faults):
            words = [str(one) for one in faults[:1]]
            yield Finding("posts-differ", f"runs: {known is not None}; faults: {words}")
        elif known is not None:
            yield from _timed(pipeline, rows, known)

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with fewer changes, and with a simpler pipeline."""
        for gone in range(len(case["changes"]) if len(case["changes"]) > 1 else 0):
            yield case | {"changes": case["changes"][:gone] + case["changes"][gone + 1 :]}
        yield from _simpler(case)


def posted(made: Built, random: Random, changes: list[str]) -> tuple[ActionRow, ...]:
    """The communication order of a schedule, its posts changed."""
    rows = [list(row) for row in made.rows]
    for change in changes:
        posts = [(row, n) for row in rows for n, cell in enumerate(row) if _is_post(cell[0])]
        if not posts:
            raise SkippedError("there is no transfer")
        row, number = random.choice(posts)
        cell = row.pop(number)
        match change:
            case "swapped":
                row.insert(max(0, number + random.choice((-1, 1))), cell)
            case "moved":
                row.insert(random.randint(0, len(row)), cell)
            case "doubled":
                row.insert(number, cell)
                row.insert(random.randint(0, len(row)), cell)
    return tuple(map(tuple, rows))


def _is_post(action: Action) -> bool:
    return action.kind.startswith(("SEND", "RECV"))


def _complete(before: tuple[ActionRow, ...], rows: tuple[ActionRow, ...]) -> bool:
    """Whether every post is there as before, and every send behind what it carries.

    The simulation asks for neither.
    """
    same = all(sorted(one) == sorted(other) for one, other in zip(before, rows, strict=True))
    return same and all(map(_sends_behind, rows))


def _sends_behind(row: ActionRow) -> bool:
    place = {action: number for number, cell in enumerate(row) for action in cell}
    makers = {"SEND_F": ("F",), "SEND_B": ("B", "BW")}
    return all(
        place.get(action._replace(kind=ActionKind(kind)), -1) < number
        for action, number in place.items()
        for kind in makers.get(action.kind, ())
    )


def _timed(pipeline: Pipeline, rows: tuple[ActionRow, ...], known: Times) -> Iterator[Finding]:
    """An order that runs has the times of the simulation, and they keep all rules."""
    schedule = communication.schedule_of(pipeline, rows)
    yield from valid(limitless(schedule))
    own = {
        Action(ActionKind[row.kind.name], row.stage, row.microbatch): (row.start, row.end)
        for row in schedule.rows()
    }
    if own != known.operations:
        yield Finding("wrong-times", f"{sorted(own.items() ^ known.operations.items())[:4]}")


def limitless(schedule: Schedule) -> Schedule:
    """The same schedule without limits of memory."""
    return replace(schedule, pipeline=replace(schedule.pipeline, mem_limit=None))
