"""Rules of activations that move to the host: each one is caught alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ppopt import InputError, Pipeline, Schedule, evaluate, verify
from ppopt.problem.operation import AuxiliaryKind
from ppopt.verifier import Rule, figures
from tests.factories.tables import besides_of
from tests.verifier.verify_fixtures import with_auxiliary

OFFLOAD, RELOAD = AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD
LINEAR = Pipeline(stages=2, batches=2, offload_memory=(1, 0), offload_time=(1, 0))
"""1F1B, device 0: F in 0..1 and 1..2, BW in 4..6 and 7..9; moves out in 1..2 and 2..3, back in 3..4
and 6..7."""


def scheduled(pipeline: Pipeline = LINEAR) -> Schedule:
    return evaluate(pipeline, "1f1b")


def row_of(schedule: Schedule, kind: int, microbatch: int) -> int:
    ops = besides_of(schedule)
    return int(np.flatnonzero((ops.kind == kind) & (ops.microbatch == microbatch))[0])


def changed(schedule: Schedule, move: tuple[int, int], **columns: int) -> Schedule:
    """The schedule with other values in the row of a move; times in units."""
    return with_auxiliary(schedule, row_of(schedule, *move), **columns)


def rules(schedule: Schedule) -> list[Rule]:
    return [violation.rule for violation in verify(schedule)]


def test_moves_of_1f1b_by_hand() -> None:
    schedule = scheduled()
    assert rules(schedule) == []
    times = {
        (row.kind, row.microbatch): (row.start, row.end) for row in besides_of(schedule).rows()
    }
    assert times == {
        (OFFLOAD, 0): (1, 2),
        (OFFLOAD, 1): (2, 3),
        (RELOAD, 0): (3, 4),
        (RELOAD, 1): (6, 7),
    }
    assert figures(schedule).makespan == 9
    assert figures(schedule).peak_memory == schedule.metrics.peak_memory_ticks == (2, 1)


def test_memory_is_free_at_the_host() -> None:
    """F of microbatch 1 waits for the first move out until 2, so BW of 0 comes at 5."""
    schedule = scheduled(replace(LINEAR, mem_limit=1))
    assert rules(schedule) == []
    assert schedule.metrics.peak_memory_ticks == (1, 1)
    device = schedule.device == 0
    assert schedule.start[device].tolist() == [0, 2, 5, 8]


@pytest.mark.parametrize(
    ("kind", "microbatch", "columns", "rule"),
    [
        (OFFLOAD, 1, {"end": 4}, Rule.AUXILIARY_TIME),
        (OFFLOAD, 0, {"start": 0, "end": 1}, Rule.OFFLOAD),
        (RELOAD, 1, {"start": 2, "end": 3}, Rule.RELOAD),
        (RELOAD, 1, {"start": 7, "end": 8}, Rule.RELOAD),
        (RELOAD, 1, {"start": 3, "end": 4}, Rule.HOST),
        (RELOAD, 1, {"microbatch": 2}, Rule.AUXILIARY),
        (RELOAD, 1, {"microbatch": 0}, Rule.AUXILIARY),
        (RELOAD, 1, {"microbatch": -1}, Rule.AUXILIARY),
        (RELOAD, 1, {"slice": 1}, Rule.AUXILIARY),
        (RELOAD, 1, {"stage": 1}, Rule.AUXILIARY),
        (RELOAD, 1, {"device": 1}, Rule.AUXILIARY),
        (RELOAD, 1, {"route": 1}, Rule.AUXILIARY),
    ],
)
def test_every_rule(kind: int, microbatch: int, columns: dict[str, int], rule: Rule) -> None:
    assert set(rules(changed(scheduled(), (kind, microbatch), **columns))) == {rule}


def test_both_ways_of_a_shared_link_are_one() -> None:
    early = changed(scheduled(), (RELOAD, 0), start=2, end=3)
    assert rules(early) == []
    shared = replace(early.pipeline, host_link="shared")
    assert rules(replace(early, pipeline=shared)) == [Rule.HOST]


def test_what_is_back_early_counts() -> None:
    """With the RELOAD of microbatch 1 at 4 device 0 holds both from then on."""
    schedule = scheduled(replace(LINEAR, mem_limit=1))
    assert rules(changed(schedule, (RELOAD, 1), start=5, end=6)) == [Rule.MEMORY]


def test_moves_are_all_there_and_only_where_a_stage_has_them() -> None:
    schedule = scheduled()
    assert set(rules(replace(schedule, operations=schedule.compute))) == {Rule.AUXILIARY}
    plain = Pipeline(stages=2, batches=2)
    assert set(rules(replace(schedule, pipeline=plain))) == {Rule.AUXILIARY}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"offload_memory": 2, "offload_time": 1}, "stage 0: 2 is more than F keeps, 1"),
        ({"offload_memory": 1}, "offload_time: stage 0: 0, but offload_memory is above 0"),
        ({"offload_time": 1}, "offload_memory: stage 0: 0, but offload_time is above 0"),
        ({"host_link": "both"}, "host_link: 'both' is unknown; use duplex or shared"),
        ({"offload": "all"}, "offload: needs a model in layers"),
    ],
)
def test_what_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline(stages=2, batches=2, **fields)
