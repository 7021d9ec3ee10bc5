"""Stop criteria: each ends a search when it says, and refuses what makes no sense."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ppopt import InputError, Pipeline, Status, solve
from ppopt.solver.result import Progress
from ppopt.solver.stop import AnyOf, Criterion, FirstSchedule, GapBelow, NoImprovement
from tests.clock import work_clock

HARD = Pipeline(
    stages=8, batches=16, placement="v", forward=10, backward=20, weight=9, p2p=1,
    activation=2, mem_limit=8,
)  # fmt: skip
"""Not proved within seconds by one worker."""


def state(seconds: float, value: int | None, bound: int) -> Progress:
    return Progress(seconds, "", None if value is None else Fraction(value), Fraction(bound))


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
    assert [criterion(one) for one in states] == stops


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="not between 0 and 1"):
        GapBelow(1.5)
    with pytest.raises(InputError, match="not above 0 seconds"):
        NoImprovement(0)
