"""Rounds: a method gets less time after a turn in vain, and a turn that is skipped is none."""

from __future__ import annotations

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver.budget import Budget
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.options import checked_options
from ppopt.solver.parameters import RoundParams, Share
from ppopt.solver.search import Search
from ppopt.solver.turns import Turn, TurnTaker, round_seconds, rounds

PROBLEM = Problem(Pipeline(stages=2, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
PARAMS = RoundParams(max_rounds=4)


class Idle(Method):
    """Does nothing."""

    name = "idle"
    handles = frozenset()

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:  # noqa: ARG002
        """Do nothing."""
        return Outcome()


class OneAtATime(Idle):
    """Submits a schedule of one microbatch after another."""

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:  # noqa: ARG002
        """Submit it."""
        incumbent.submit_orders(one_at_a_time(incumbent.problem.instance))
        return Outcome()


def multiples(share: Share, fruitful: list[bool]) -> list[float]:
    """Lengths of the turns of one method, as multiples of the unit of their rounds."""
    turns = rounds([TurnTaker(Idle(), share)], PROBLEM, 1e9, PARAMS)
    turn, lengths = next(turns), []
    for round_index, useful in enumerate(fruitful, start=PARAMS.max_rounds - len(fruitful)):
        lengths.append(turn.seconds / round_seconds(PROBLEM, round_index, PARAMS))
        try:
            turn = turns.send(Outcome(fruitful=useful))
        except StopIteration:
            break
    return lengths


def test_a_turn_after_one_in_vain_is_shorter() -> None:
    share = Share(4, first=2, in_vain=1)
    assert multiples(share, [True, False, False, True]) == [2, 4, 1, 1]
    assert multiples(share, [False, True, True, False]) == [2, 1, 4, 4]
    assert multiples(Share(4), [False, False, True, True]) == [4, 4, 4, 4]


def test_a_turn_that_is_skipped_is_not_in_vain() -> None:
    assert multiples(Share(4, first=0, in_vain=1), [True, False, True]) == [4, 4, 1]


def test_a_better_schedule_makes_a_turn_fruitful() -> None:
    search = Search(PROBLEM, checked_options(60, 1))
    methods = Idle(), OneAtATime(), OneAtATime()
    outcomes = [search._turn(Turn(method, 1.0)) for method in methods]
    assert [outcome.fruitful for outcome in outcomes] == [False, True, False]


def test_a_fruitful_turn_is_repeated_at_most_so_often() -> None:
    """Within a round, and before the turn of the next method."""
    repeated, following = Idle(), OneAtATime()
    entries = [TurnTaker(repeated, Share(3, repeats=2)), TurnTaker(following, Share(1))]
    turns = rounds(entries, PROBLEM, 1e9, PARAMS)
    methods = [next(turns).method]
    for fruitful in (True, True, True, False, True, False, False):
        methods.append(turns.send(Outcome(fruitful=fruitful)).method)
    assert methods == [
        repeated,
        repeated,
        repeated,
        following,
        repeated,
        repeated,
        following,
        repeated,
    ]
