"""A list that was cut proves nothing: code that uses one in a proof does not type-check."""

from __future__ import annotations

import ast
import re
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_type_hints

import pytest

import ppopt
from ppopt import InputError, Pipeline, Status, solve
from ppopt.solver.choices.configuration import (
    Configuration,
    SearchedConfigurations,
    SearchedGroups,
)
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Key,
    Partial,
    Unlisted,
    bounds_of_all,
    lower_bound_of,
    min_rest,
)
from ppopt.solver.placements.placement_choice import PlacementChoice
from ppopt.solver.result import Progress
from ppopt.solver.stop import AnyOf, Criterion, FirstSchedule, GapBelow, NoImprovement
from tests.clock import stepping_clock, work_clock
from tests.packages import needed

ROOT = Path(ppopt.__file__).parent
CHOICES, PARTITIONS = "solver/choices", "solver/partitions"
COMPLETE_AT = {
    f"{CHOICES}/choice.py": 1,
    f"{CHOICES}/configuration.py": 1,
    f"{CHOICES}/enumeration.py": 3,
    f"{CHOICES}/single.py": 1,
    f"{CHOICES}/product.py": 1,
    f"{PARTITIONS}/partition_choice.py": 3,
    f"{PARTITIONS}/partition_option_choice.py": 2,
    "solver/microbatch_orders/order_choice.py": 3,
    "solver/placements/space.py": 1,
    "studies/plan_reports.py": 1,
    "studies/plan_candidate.py": 1,
    "studies/plan_product.py": 1,
    "studies/plan_set_up.py": 1,
    "studies/strategy_search.py": 1,
}
"""Where a list is said to be complete, and how often: each is the end of an enumeration."""
CHECKED = (
    *COMPLETE_AT,
    f"{CHOICES}/search.py",
    f"{PARTITIONS}/partition_bounds.py",
)
"""Files that are type-checked; what they import from others has any type."""


class Mistake(NamedTuple):
    """A place in a file, and what is wrong in place of it: it uses a partial list in a proof."""

    file: str
    right: str
    wrong: str


MISTAKES = (
    Mistake(
        f"{CHOICES}/enumeration.py",
        "return Complete([*bounds, rest.bound] if isinstance(rest, Unlisted) else bounds)",
        "return Partial(bounds)",
    ),
    Mistake(
        f"{CHOICES}/configuration.py",
        "self.raise_to(bounds_of_all(ends, self.rest))",
        "self.raise_to(Partial(ends))",
    ),
    Mistake(
        f"{CHOICES}/configuration.py",
        "self.raise_to(bounds_of_all(bounds, self._missing))",
        "self.raise_to(Partial(bounds))",
    ),
    Mistake(
        f"{CHOICES}/configuration.py",
        "bound = lower_bound_of(bounds)",
        "bound = lower_bound_of(Partial(bounds.members))",
    ),
    Mistake(
        f"{CHOICES}/choice.py",
        "return NONE_LEFT if is_complete else Unlisted(self.lower_bound)",
        "return listed",
    ),
    Mistake(
        f"{PARTITIONS}/partition_choice.py",
        "if isinstance(bounds, CompleteBounds) and bounds.min_bound < FOREVER:\n"
        "            order = PartitionOrder(bounds)",
        "if bounds.min_bound < FOREVER:\n            order = PartitionOrder(bounds)",
    ),
    Mistake(
        "studies/plan_reports.py",
        "min(bounds.members) if isinstance(bounds, Complete) else None",
        "lower_bound_of(bounds)",
    ),
)
CODES = "arg-type|return-value|union-attr|attr-defined|assignment|name-defined|index"


def checked_with(mistakes: tuple[Mistake, ...], folder: Path) -> tuple[set[str], set[str]]:
    """Places of type errors, as file:line, in the files with mistakes; and the mistakes' places."""
    mypy = needed("mypy.api")
    shadows, lines = [], set[str]()
    for file in dict.fromkeys(mistake.file for mistake in mistakes):
        text = (ROOT / file).read_text(encoding="utf-8")
        first, rest = text.split("from __future__ import annotations\n")
        if not re.search(r"enumeration import[^)]*\bPartial\b|class Partial", text):
            rest = f"from ppopt.solver.choices.enumeration import Partial\n{rest}"
        text = f"{first}from __future__ import annotations\n{rest}"
        for mistake in mistakes:
            if mistake.file == file:
                assert text.count(mistake.right) == 1, mistake
                text = text.replace(mistake.right, mistake.wrong)
                last = text[: text.index(mistake.wrong) + len(mistake.wrong)]
                lines.add(f"{file}:{last.count(chr(10)) + 1}")
        copy = folder / file.replace("/", "-")
        copy.write_text(text, encoding="utf-8")
        shadows += ["--shadow-file", str(ROOT / file), str(copy)]
    out, _, _ = mypy.run(
        [
            *("--strict", "--follow-imports=skip", "--config-file=", "--no-pretty"),
            *("--cache-dir", str(folder / "cache"), *shadows),
            *(str(ROOT / file) for file in CHECKED),
        ]
    )
    errors = re.findall(rf"^.*?ppopt/(solver|studies)(\S+:\d+): error: .*\[({CODES})\]$", out, re.M)
    return {package + location for package, location, _ in errors}, lines


@pytest.mark.slow
def test_a_partial_list_in_a_proof_does_not_type_check(tmp_path: Path) -> None:
    """Every mistake is an error, and nothing else is."""
    errors, mistakes = checked_with(MISTAKES, tmp_path)
    assert errors == mistakes


def test_what_proves_takes_no_partial_list() -> None:
    """The types that make each of these mistakes an error."""
    for proving in (lower_bound_of, SearchedConfigurations.raise_to):
        assert get_type_hints(proving)["bounds"] == Complete[int]
    assert get_type_hints(bounds_of_all)["rest"] == Complete[Key] | Unlisted
    assert not issubclass(Partial, Complete)


def says_complete(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "Complete"
    return isinstance(node, ast.Name) and node.id == "NONE_LEFT" and isinstance(node.ctx, ast.Load)


def test_every_place_that_says_complete_is_known() -> None:
    """A further one needs a look: it must be where an enumeration ends by itself."""
    counts = {
        path.relative_to(ROOT).as_posix(): sum(map(says_complete, ast.walk(ast.parse(text))))
        for path in ROOT.rglob("*.py")
        if "enumeration" in (text := path.read_text(encoding="utf-8"))
    }
    assert {name: count for name, count in counts.items() if count} == COMPLETE_AT


def test_the_bounds_of_all_have_that_of_the_unlisted() -> None:
    rest = Unlisted(Fraction(2))
    assert lower_bound_of(bounds_of_all([Fraction(3)], rest)) == 2
    assert lower_bound_of(bounds_of_all([Fraction(3)], NONE_LEFT)) == 3
    assert lower_bound_of(bounds_of_all([], NONE_LEFT)) is None
    assert min_rest([NONE_LEFT, rest, Unlisted(Fraction(1), (4,))]) == Unlisted(Fraction(1), (4,))
    assert min_rest([NONE_LEFT, NONE_LEFT]) is NONE_LEFT


def test_infeasible_takes_all_configurations() -> None:
    """With one left out, nothing is proved; with none, no configuration is feasible."""
    state = SearchedConfigurations(1, lambda *_: Unlisted(4))
    state.known[(0,)] = Configuration((0,), 5, impossible=True)
    state.raise_bound()
    assert (state.infeasible, state.lower_bound) == (False, 4)
    state.rest_of = lambda *_: NONE_LEFT
    state.raise_bound()
    assert state.infeasible


def test_the_bound_over_all_groups_is_the_minimum_of_those_that_may_be_feasible() -> None:
    first = SearchedConfigurations(0, lambda *_: Unlisted(3, (7,)))
    second = SearchedConfigurations(0, lambda *_: NONE_LEFT)
    state = SearchedGroups({(0,): first, (1,): second})
    state.add(Configuration((1, 5), 2, impossible=True))
    state.raise_bound()
    assert second.infeasible and [*second.known.values()] == [state.find((1, 5))]
    assert (state.infeasible, state.lower_bound, state.next_key) == (False, 3, (0, 7))
    state.add(scheduled := Configuration((0, 6), 3, value=9))
    state.offer(scheduled)
    assert state.best is first.best is scheduled and second.best is None
    first.rest_of = lambda *_: NONE_LEFT
    scheduled.bound = 9
    state.raise_bound()
    assert state.closed and first.closed and state.value == state.lower_bound == 9


@pytest.mark.parametrize(("optional", "following"), [(True, (1, 7)), (False, None)])
def test_a_group_without_an_order_ends_that_of_all_unless_it_is_optional(
    optional: bool, following: Key | None
) -> None:
    states = (
        SearchedConfigurations(0, lambda *_, rest=rest: rest)
        for rest in (Unlisted(2, optional=optional), Unlisted(3, (7,)))
    )
    state = SearchedGroups({(index,): own for index, own in enumerate(states)})
    state.raise_bound()
    assert isinstance(state.rest, Unlisted) and (state.rest.bound, state.rest.key) == (2, following)


# A search of configurations ends at its deadline, whether or not one of them was searched.


@pytest.mark.parametrize("readings", [1, 100, 1000])
def test_placements_without_memory_end_at_the_deadline(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every placement has a stage on device 0, where none fits: 12! placements are not enumerated,
    and random moves find no placement that can be searched."""
    perturbed, moves = PlacementChoice.perturbed, 0

    def counted(choice: PlacementChoice, key: Any, random: Random) -> Any:
        nonlocal moves
        moves += 1
        assert moves < 1000, "random moves go on without end"
        return perturbed(choice, key, random)

    monkeypatch.setattr(PlacementChoice, "perturbed", counted)
    clock, devices = stepping_clock(monkeypatch, 1.0, readings), 12
    pipeline = Pipeline(
        stages=devices, batches=2, forward=list(range(10, 10 + devices)), activation=1,
        mem_limit=["0.5", *range(100, 99 + devices)],
    )  # fmt: skip
    result = ppopt.solve(pipeline, placement="search", time_limit=1.0, workers=1)
    assert result.status is Status.UNKNOWN
    assert clock.readings < readings + 2000


# Stop criteria: each ends a search when it says, and refuses what makes no sense.


HARD = Pipeline(
    stages=8, batches=16, placement="v", forward=10, backward=20, weight=9, p2p=1,
    activation=2, mem_limit=8,
)  # fmt: skip
"""Not proved within seconds by one worker."""


def state(seconds: float, value: int | None, bound: int) -> Progress:
    return Progress(seconds, "", value, bound, 1)


def test_a_search_ends_where_its_criterion_holds() -> None:
    criterion = AnyOf(FirstSchedule(), GapBelow(0.01))
    with work_clock():
        result = solve(HARD, workers=1, time_limit=300, stop=criterion)
    assert result.status is Status.FEASIBLE
    assert result.solve_seconds < 10


@pytest.mark.parametrize(
    ("criterion", "states", "stops"),
    [
        (FirstSchedule(), [state(0, None, 1), state(1, 9, 1)], [False, True]),
        (GapBelow(0.1), [state(0, 100, 89), state(0, 100, 90)], [False, True]),
        (GapBelow(0), [state(0, None, 100), state(0, 100, 100)], [False, True]),
        (
            NoImprovement(2),
            [state(1, None, 5), state(3.5, 9, 5), state(5, 9, 5), state(5.5, 9, 5), state(0, 9, 5)],
            [False, False, False, True, False],
        ),
    ],
)
def test_a_criterion_holds_when_it_says(
    criterion: Criterion, states: list[Progress], stops: list[bool]
) -> None:
    assert [criterion(state) for state in states] == stops


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="not between 0 and 1"):
        GapBelow(1.5)
    with pytest.raises(InputError, match="not above 0 seconds"):
        NoImprovement(0)
