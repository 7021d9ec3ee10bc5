"""What a page says of a bound: proved here, confirmed by arithmetic, or only what a file says."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from html import unescape

import pytest

from ppopt.formats.schedule_json import dumps, loads
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.report.html import page
from ppopt.report.search_text import UNCHECKED
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.solver.solve import solve
from ppopt.studies.evaluate import evaluate
from tests.report.drawn import Content

LIE = "because I say so"


def claimed(strategy: str, bound: float, status: str = "optimal") -> Schedule:
    """A baseline on 4 devices, 8 microbatches, limit 4, with a claim of its own."""
    schedule = evaluate(Pipeline(stages=4, batches=8, mem_limit="1f1b"), strategy)
    claims = Origin(
        strategy="searched",
        objective=Objective.MAKESPAN,
        status=status,
        lower_bound=Fraction(bound),
        gap=Fraction(0),
        proof=LIE,
    )
    return replace(schedule, origin=claims)


def read(schedule: Schedule) -> Schedule:
    return loads(dumps(schedule), "here")[0]


def result_text(schedule: Schedule) -> str:
    return unescape(" ".join(" ".join(Content(page([schedule])).texts).split()))


def test_what_was_proved_in_this_process_is_said_to_be() -> None:
    schedule = solve(Pipeline(stages=4, batches=8), mem_limit="1f1b", workers=1).schedule
    assert schedule is not None
    text = result_text(schedule)
    assert "searched optimal (proved) within the memory limit" in text
    assert "the file says" not in text.lower()


def test_a_bound_that_arithmetic_confirms_is_argued_anew() -> None:
    """Device 3 waits 3 and works 24: ZB-1P, which takes 27, is optimal. The file's words go."""
    text = result_text(read(claimed("zb-1p", 27)))
    assert "searched optimal (proved) within the memory limit" in text
    assert "below 27, because device 3 alone needs 27: 24 of work plus 3 before its first" in text
    assert LIE not in text


@pytest.mark.parametrize(
    ("strategy", "bound"),
    [("1f1b", 33), ("1f1b", 27), ("zb-1p", 26), ("zb-1p", 1000)],
)
def test_what_nobody_checked_is_said_to_be_the_files(strategy: str, bound: float) -> None:
    """Bounds that are wrong, 33 and 1000, and those that are not reached."""
    text = result_text(read(claimed(strategy, bound)))
    assert f"searched the file says: optimal {UNCHECKED}" in text
    assert "Proof:" not in text
    assert "The file says: No schedule" in text
    assert "says the file" in text


def test_a_bound_that_leaves_a_gap_is_not_trusted_either() -> None:
    text = result_text(read(claimed("1f1b", 32, "feasible")))
    assert f"the file says: feasible, gap 0 % {UNCHECKED}" in text


def test_a_search_from_a_file_proves_for_itself() -> None:
    hint = read(claimed("zb-1p", 27))
    schedule = solve(hint.pipeline, hint=hint, workers=1).schedule
    assert hint.origin.from_file
    assert not schedule.origin.from_file


def test_a_bound_of_whole_backwards_says_so() -> None:
    """1F1B takes 33: device 0 works 24, and F and BW go down and up three stages, 3 + 6."""
    schedule = claimed("1f1b", 33)
    text = result_text(
        read(replace(schedule, origin=replace(schedule.origin, backward_kind=BackwardKind.WHOLE)))
    )
    assert "searched optimal (proved)" in text
    assert ", where every backward is one operation." in text
