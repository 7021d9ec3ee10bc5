"""Compute, transfers and what else a step has are rows of one table, held to the same rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ppopt import Pipeline, Schedule, evaluate, verify
from ppopt.problem.operation import AuxiliaryKind, OpKind, TransferKind
from ppopt.verifier import Rule, figures
from ppopt.verifier.rows import read
from tests.factories.schedules import BW, B, F, W, table
from tests.factories.tables import auxiliary_table, joined, transfer_table

UNSHARD, SYNC, OPTIMIZER, OFFLOAD, RELOAD = AuxiliaryKind

FULL = Pipeline(
    stages=2,
    batches=2,
    p2p=1,
    link_mode="exclusive",
    offload_memory=(1, 1),
    offload_time=1,
    unshard=1,
    gradient_sync=1,
    optimizer=1,
)
"""Everything that a step can have, on two devices."""


def changed(
    schedule: Schedule,
    compute: Sequence[tuple[int, ...]] | None = None,
    auxiliary: Sequence[tuple[int, ...]] | None = None,
) -> Schedule:
    """The schedule with other rows of compute, or of what else a step has."""
    return joined(
        schedule.pipeline,
        table(schedule) if compute is None else compute,
        transfers=transfer_table(schedule),
        auxiliary=auxiliary_table(schedule) if auxiliary is None else auxiliary,
    )


def rules(schedule: Schedule) -> list[Rule]:
    return [violation.rule for violation in verify(schedule)]


@pytest.mark.parametrize(
    ("fields", "resources"),
    [
        ({}, 10),
        ({"link_mode": "streams"}, 9),
        ({"host_link": "shared"}, 8),
        ({"link_mode": "delay"}, 8),
    ],
)
def test_every_resource_has_a_number_of_its_own(fields: dict[str, Any], resources: int) -> None:
    """Of two devices: compute, collectives, two ways to the host, and a link each way."""
    rows = read(evaluate(replace(FULL, **fields), "1f1b"))
    shared = {OpKind.F: "c", OpKind.B: "c", OpKind.W: "c", OpKind.BW: "c", OPTIMIZER: "c"}
    shared |= {UNSHARD: "q", SYNC: "q", OFFLOAD: "h", RELOAD: "r"}
    if "host_link" in fields:
        shared[RELOAD] = "h"
    kinds: dict[int, set[tuple[int, str]]] = {}
    for kind, device, resource_id in zip(rows.kind, rows.device, rows.resource, strict=True):
        if kind in shared:
            kinds.setdefault(int(resource_id), set()).add((int(device), shared[kind]))
    assert all(len(users) == 1 for users in kinds.values())
    assert len(set(rows.resource.tolist())) == resources
    links = set(rows.resource[rows.sends].tolist())
    assert len(links) == {"streams": 1, "delay": 0}.get(fields.get("link_mode", ""), 2)
    assert links.isdisjoint(kinds)


def test_what_a_step_lacks_is_counted_whatever_its_kind() -> None:
    """Of 50,000 microbatches on two routes one forward is there; its transfer is not."""
    pipeline = Pipeline(
        stages=2, batches=50_000, routes=2, offload_memory=(1, 0), offload_time=(1, 0)
    )
    violations = verify(Schedule.from_rows(pipeline, [(F, 0, 30_000, 1, 0, 1)]))
    count = Counter[Rule]()
    for violation in violations:
        count[violation.rule] += violation.count
    assert count == {Rule.MISSING: 4 * 50_000 - 1, Rule.AUXILIARY: 2 * 50_000}
    linked = Pipeline(stages=3, batches=50_000, link_mode="streams")
    violations = verify(Schedule.from_rows(linked, []))
    assert (
        sum(violation.count for violation in violations if violation.rule is Rule.TRANSFER)
        == 4 * 50_000
    )
    assert {violation.device for violation in violations if violation.rule is Rule.TRANSFER} <= {
        0,
        1,
        2,
        None,
    }


def test_what_is_beyond_exact_times_breaks_the_rule_on_times() -> None:
    schedule = evaluate(FULL, "1f1b")
    assert verify(schedule) == []
    for time in (2**53 + 1, 2**63 - 1, -(2**63)):
        rows = auxiliary_table(schedule)
        rows[0] = (*rows[0][:3], time, time, *rows[0][5:])
        assert rules(changed(schedule, auxiliary=rows)) == [Rule.AUXILIARY_TIME]


def test_what_the_pipeline_does_not_have_occupies_nothing() -> None:
    """The step ends before a sync that there is not, which no memory waits for."""
    plain = evaluate(Pipeline(stages=2, batches=2, mem_limit=[2, 1]), "1f1b")
    rows = [(SYNC, 0, 0, 0, 500), (RELOAD, 1, 1, 0, 500)]
    added = changed(plain, auxiliary=rows)
    assert [(violation.rule, violation.device, violation.time) for violation in verify(added)] == [
        (Rule.AUXILIARY, 0, 0),
        (Rule.AUXILIARY, 1, 0),
    ]
    assert figures(added) == figures(plain)
    assert str(verify(added)[0]) == (
        "auxiliary-operation: GRADIENT_SYNC of stage 0, microbatch -1, slice 0, route 0, device 0, "
        "target 0 at 0 does not exist in this pipeline"
    )


def test_every_operation_beside_an_optimizer_is_named() -> None:
    schedule = evaluate(Pipeline(stages=1, batches=2, optimizer=20), "1f1b")
    rows = [(OPTIMIZER, 0, 0, 0, 20)]
    violations = [
        str(violation)
        for violation in verify(changed(schedule, auxiliary=rows))
        if violation.rule is Rule.OVERLAP
    ]
    assert violations == [
        "overlap: OPTIMIZER of device 0 starts at 0 on device 0 while 0F0 runs from 0 to 1",
        *(
            f"overlap: {op} starts at {time} on device 0 while OPTIMIZER of device 0 runs from 0 "
            "to 20"
            for op, time in (("0BW0", 1), ("0F1", 3), ("0BW1", 4))
        ),
    ]


def test_both_backwards_wait_for_what_they_need() -> None:
    """A whole backward and a split one, before its activation is back and its gradient there."""
    schedule = evaluate(FULL, "zb-h1")
    backward = (BW, 0, 0, 0, 0, 0, 0, -1)
    violations = verify(changed(schedule, compute=[*table(schedule), backward]))
    early = [
        violation.rule
        for violation in violations
        if "ends after 0BW0 starts at 0" in violation.message
    ]
    assert {Rule.RECEIVE, Rule.RELOAD} <= set(early)


def test_of_many_that_share_a_pair_three_are_shown() -> None:
    rows = [
        (kind, 0, j, 0, first + j, first + j + 1, 0, pair)
        for kind, first, pair in ((F, 0, 7), (B, 6, -1), (W, 12, -1))
        for j in range(6)
    ]
    violations = verify(Schedule.from_rows(Pipeline(stages=1, batches=6), rows))
    pairs = [violation for violation in violations if violation.rule is Rule.PAIR]
    assert [len(violation.ops) for violation in pairs] == [4] * 6
    assert all(violation.message.count("..") == 4 for violation in pairs)


def test_times_of_pairs_follow_the_factors_of_their_microbatches() -> None:
    """F 1 and BW 2 save 1 as one; of factors 3 and 2 they take 3 + 4 - 2."""
    pipeline = Pipeline(
        stages=1, batches=2, overlap=2, microbatch_times=(2, 3), microbatch_memory=1
    )
    rows = [(F, 0, 0, 0, 0, 2, 0, -1), (F, 0, 1, 0, 2, 7, 0, 0), (BW, 0, 0, 0, 2, 7, 0, 0)]
    rows += [(BW, 0, 1, 0, 7, 13, 0, -1)]
    assert verify(Schedule.from_rows(pipeline, rows)) == []


@pytest.mark.parametrize("kind", list(AuxiliaryKind))
def test_of_two_equal_ones_the_first_counts(kind: AuxiliaryKind) -> None:
    """A second one is there twice, runs in parallel with the first, and breaks no rule of order."""
    schedule = evaluate(FULL, "1f1b")
    row = np.flatnonzero(schedule.operations.kind == kind)[0]
    twice = schedule.operations.where(np.append(np.arange(len(schedule.operations)), row))
    broken = set(rules(replace(schedule, operations=twice)))
    beside = {OPTIMIZER: Rule.OVERLAP, UNSHARD: Rule.COLLECTIVE, SYNC: Rule.COLLECTIVE}
    assert broken == {Rule.AUXILIARY, beside.get(kind, Rule.HOST)}


def test_an_operation_is_on_the_route_of_its_microbatch() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    route = schedule.operations.route.copy()
    route[0] = 1
    violations = verify(replace(schedule, operations=replace(schedule.operations, route=route)))
    assert [violation.rule for violation in violations] == [Rule.UNKNOWN, Rule.MISSING]
    assert violations[0].message == (
        "an operation at 0 on device 0: route 1 is not that of the microbatch"
    )


def test_every_pair_of_devices_has_a_link_of_its_own() -> None:
    pipeline = Pipeline(stages=3, batches=3, chunks=2, placement="interleaved", p2p=1)
    for mode, links in (("streams", 3), ("exclusive", 6)):
        rows = read(evaluate(replace(pipeline, link_mode=mode), "interleaved"))
        ends = np.stack((rows.device, rows.target))[:, rows.sends]
        if mode == "streams":
            ends = np.sort(ends, axis=0)
        numbers = rows.resource[rows.sends]
        assert len(np.unique(numbers)) == links
        assert len(np.unique(np.vstack((ends, numbers)), axis=1).T) == links


@pytest.mark.parametrize(
    ("kind", "stage", "target"),
    [(TransferKind.SEND_F, 1, 0), (TransferKind.SEND_B, 0, 1), (TransferKind.SEND_F, 0, 0)],
)
def test_nothing_is_handed_on_beyond_the_ends(kind: int, stage: int, target: int) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=1, p2p=1, link_mode="streams"), "1f1b")
    extra = (kind, stage, 0, stage, 50, 51, 0, -1, 0, target)
    rows = [*zip(*(column.tolist() for column in schedule.operations.columns), strict=True), extra]
    violations = verify(Schedule.from_rows(schedule.pipeline, rows))
    assert [(violation.rule, violation.device, violation.time) for violation in violations] == [
        (Rule.TRANSFER, stage, 50)
    ]


def test_a_pair_with_b_takes_the_time_stated_for_b() -> None:
    """F with B takes 4, and recompute 1 more."""
    pipeline = Pipeline(
        stages=1,
        batches=2,
        forward=3,
        backward_input=3,
        weight=3,
        backward=6,
        overlap=7,
        overlap_input=4,
        recompute_time=1,
    )
    rows = [(F, 0, 0, 0, 0, 3, 0, -1), (F, 0, 1, 0, 3, 8, 0, 0), (B, 0, 0, 0, 3, 8, 0, 0)]
    rows += [(W, 0, 0, 0, 8, 11, 0, -1), (B, 0, 1, 0, 11, 15, 0, -1), (W, 0, 1, 0, 15, 18, 0, -1)]
    assert verify(Schedule.from_rows(pipeline, rows)) == []
