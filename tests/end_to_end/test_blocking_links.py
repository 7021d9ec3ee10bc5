"""Blocking links: transfers occupy both devices; strategies, violations, bounds, files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import NotApplicableError, Pipeline, evaluate, recheck, solve, verify
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.link_mode import LinkMode
from ppopt.rechecker import Verdict
from ppopt.schedule import timing
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule
from tests.cli.cli_run import done
from tests.factories.schedules import F, table
from tests.factories.streams import linked_pipelines
from tests.factories.tables import joined, transfer_table
from tests.oracles.streams_exhaustive import least_makespan
from tests.tiers import examples

TWO = Pipeline(stages=2, batches=2, forward=1, backward=2, p2p=2, link_mode="blocking")
STRATEGIES = ("1f1b", "gpipe", "looped-bfs", "zb-h1", "chimera", "seq-1f1b")


def test_a_transfer_occupies_both_devices() -> None:
    """Device 0: F0 0..1, sent until 3, F1 3..4, sent until 6, while device 1 runs F0 3..4.

    Device 1: BW0 6..8, sent until 10, F1 10..11, BW1 11..13, sent until 15. Device 0: BW0 10..12,
    BW1 15..17. With delays 13.
    """
    schedule = evaluate(TWO, "1f1b")
    unit = schedule.pipeline.ticks.per_unit
    sent = [(row[5] // unit, row[6] // unit) for row in transfer_table(schedule)]
    assert sorted(sent) == [(1, 3), (4, 6), (8, 10), (13, 15)]
    assert schedule.makespan == 17
    assert evaluate(replace(TWO, link_mode="delay"), "1f1b").makespan == 13


@pytest.mark.parametrize("kind", ["whole", "split"])
def test_an_optimizer_starts_after_the_last_transfer_of_its_device(kind: str) -> None:
    """BW1 of device 1 ends at 13, and its transfer at 15; device 0 ends with an optimizer, too."""
    schedule = evaluate(replace(TWO, optimizer=2), "1f1b" if kind == "whole" else "zb-h1")
    assert verify(schedule) == []
    result = solve(replace(TWO, optimizer=2), backward_kind=kind, workers=1, time_limit=5)
    assert result.value <= schedule.makespan
    assert kind == "split" or schedule.makespan == 19


@given(linked_pipelines((LinkMode.BLOCKING,)), st.sampled_from(STRATEGIES))
@examples(25)
def test_strategies_keep_the_rule(pipeline: Pipeline, strategy: str) -> None:
    """They are no faster than over delays, and their orders have these times again."""
    try:
        schedule = evaluate(pipeline, strategy)
    except NotApplicableError:
        return
    assert verify(schedule) == []
    delays = evaluate(replace(pipeline, link_mode="delay"), strategy)
    assert schedule.makespan >= delays.makespan
    retimed = timing.retimed(schedule, schedule.objective)
    assert verify(retimed) == []
    assert retimed.makespan == schedule.makespan


def changed(schedule: Schedule, transfer: int | None = None) -> Schedule:
    """F1 of device 0 a unit earlier; or a transfer, counted by its start, a unit later."""
    unit = schedule.pipeline.ticks.per_unit
    rows, transfers = (list(map(list, f(schedule))) for f in (table, transfer_table))
    if transfer is None:
        earlier = next(row for row in rows if row[:3] == [F, 0, 1])
        earlier[4:6] = [earlier[4] - unit, earlier[5] - unit]
    else:
        late = sorted(transfers, key=lambda row: row[5])[transfer]
        late[5:7] = [late[5] + unit, late[6] + unit]
    return joined(schedule.pipeline, rows, transfers=transfers)


def test_compute_while_the_device_sends_is_a_violation() -> None:
    """F1 at 2..3, within its transfer, 1..3; a link alone allows it."""
    broken = changed(evaluate(TWO, "1f1b"))
    assert {violation.rule for violation in verify(broken)} == {Rule.OVERLAP}
    exclusive = replace(broken, pipeline=replace(TWO, link_mode="exclusive"))
    assert verify(exclusive) == []


def test_compute_while_the_device_receives_is_a_violation() -> None:
    """The activation of F1 at 5..7, on device 1 until BW0 has begun, at 6."""
    broken = changed(evaluate(TWO, "1f1b"), transfer=1)
    messages = [str(violation) for violation in verify(broken)]
    assert any("0BW0" not in text and "1BW0 starts at 6" in text for text in messages), messages


def test_a_search_is_verified_and_its_bound_holds() -> None:
    """It has strategies and bounds alone; the minimum over all orders is found exhaustively."""
    optimum = TWO.ticks.time(least_makespan(TWO, whole=True) or 0)
    result = solve(TWO, backward_kind="whole", workers=1, time_limit=5)
    assert result.schedule is not None
    assert verify(result.schedule) == []
    assert 0 < result.lower_bound <= optimum <= result.value <= 17
    assert recheck(result, workers=1).verdict is not Verdict.WRONG


def test_files_and_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "blocking.json"
    line = "eval 1f1b --stages 2 --batches 2 --p2p-time 2 --link-mode blocking"
    assert "blocking: a transfer occupies both devices" in done(line, "-o", path).out
    schedule, _ = read_schedule(path)
    assert schedule.pipeline.link_mode is LinkMode.BLOCKING
    done("verify", path)
    assert np.array_equal(schedule.operations.start, evaluate(TWO, "1f1b").operations.start)
