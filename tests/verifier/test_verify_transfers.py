"""The rules of transfers against plain Python, and those of posted orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ppopt import Pipeline, evaluate, verify
from ppopt.errors import InputError
from ppopt.schedule.actions import POSTS, Action, ActionKind, ActionRow
from ppopt.verifier import Rule
from ppopt.verifier.posting import PostingRule, posting_faults
from tests.factories.schedules import table
from tests.factories.streams import LINK_MODES, Built, built, linked_pipelines
from tests.factories.tables import changed as with_columns
from tests.factories.tables import joined, transfer_table
from tests.oracles.streams import simulate
from tests.oracles.transfer_rules import broken_rules
from tests.tiers import examples
from tests.verifier.verify_mutations import STREAMS

SEEDS = st.integers(0, 2**32 - 1)
OVER_LINKS = linked_pipelines(LINK_MODES)


@examples(20)
@given(built(OVER_LINKS))
def test_a_schedule_over_links_is_valid(built: Built) -> None:
    assert verify(built.schedule) == []
    assert broken_rules(built.schedule) == set()


@examples(20)
@given(built(OVER_LINKS), SEEDS)
def test_moved_transfers_break_the_rules_that_plain_python_names(built: Built, seed: int) -> None:
    random = Random(seed)
    rows = transfer_table(built.schedule)
    moved_rows = []
    for row in rows:
        by, longer = (random.choice((0, 0, 0, -1, 1, 3, -4)) for _ in range(2))
        end = max(row[5] + by, row[6] + by + (longer if random.random() < 0.1 else 0))
        moved_rows.append((*row[:5], row[5] + by, end, *row[7:]))
    schedule = built.schedule
    given_rows = table(schedule)
    changed = joined(schedule.pipeline, given_rows, transfers=moved_rows)
    assert {violation.rule for violation in verify(changed)} & STREAMS == broken_rules(changed)


def test_violations_are_told_in_words() -> None:
    pipeline = Pipeline(stages=2, batches=1, p2p=1, link_mode="streams")
    schedule = evaluate(pipeline, "1f1b")
    late = with_columns(schedule, end=schedule.operations.end + ~schedule.operations.computed)
    assert next(map(str, verify(late))) == (
        "transfer-time: 0SEND_F0 from device 0 to 1 at 1..3 is not 1 long from 0 or later on"
    )
    none = replace(schedule, operations=schedule.compute)
    assert [str(violation) for violation in verify(none)] == [
        "transfer: 0SEND_F0 is missing",
        "transfer: 1SEND_B0 is missing",
    ]
    assert [violation.device for violation in verify(none)] == [0, 1]
    delays = replace(schedule, pipeline=replace(schedule.pipeline, link_mode="delay"))
    assert [str(violation) for violation in verify(delays)] == [
        "transfer: 2 transfers are given, but the links are delays"
    ]


def test_columns_that_are_none_are_refused() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=1, link_mode="streams"), "1f1b")
    for wrong in (np.array([0.5, 1]), np.array([[1], [2]]), np.array([1, 2, 3])):
        with pytest.raises(InputError, match="schedule: column"):
            verify(with_columns(schedule, start=wrong))


@pytest.mark.parametrize("tick", [-(2**63), 2**63 - 1, 2**53 + 1])
def test_times_that_cannot_be_computed_with(tick: int) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=1, link_mode="streams"), "1f1b")
    first = ~schedule.operations.computed & (schedule.operations.stage == 0)
    changed = with_columns(schedule, first, start=tick, end=tick)
    assert Rule.TRANSFER_TIME in {violation.rule for violation in verify(changed)}


# Posted orders


def _removed(random: Random, rows: list[list[Action]]) -> None:
    row = _with_posts(random, rows)
    row.remove(random.choice([post for post in row if post.kind in POSTS]))


def _twice(random: Random, rows: list[list[Action]]) -> None:
    row = _with_posts(random, rows)
    row.append(random.choice([post for post in row if post.kind in POSTS]))


def _unknown(random: Random, rows: list[list[Action]]) -> None:
    row = random.choice(rows)
    row.append(random.choice((Action(ActionKind.SEND_B, 0, 0), Action(ActionKind.RECV_F, 0, 0))))


def _send_first(random: Random, rows: list[list[Action]]) -> None:
    """A send in front of everything, the operation that it carries too."""
    row = _with_posts(random, rows, "SEND")
    post = random.choice([action for action in row if action.kind.startswith("SEND")])
    row.remove(post)
    row.insert(0, post)


def _receive_last(random: Random, rows: list[list[Action]]) -> None:
    """The last receive of a device behind everything, the operation that needs it too."""
    row = _with_posts(random, rows, "RECV")
    position = max(n for n, post in enumerate(row) if post.kind.startswith("RECV"))
    post = row.pop(position)
    row.append(post)


def _with_posts(random: Random, rows: list[list[Action]], kind: str = "") -> list[Action]:
    """A row with posts of a kind; of all kinds by default."""
    suited = [
        row
        for row in rows
        if any(post.kind in POSTS and post.kind.startswith(kind) for post in row)
    ]
    assume(suited)
    return random.choice(suited)


POSTING: dict[PostingRule, Callable[[Random, list[list[Action]]], None]] = {
    PostingRule.UNKNOWN: _unknown,
    PostingRule.ONCE: _twice,
    PostingRule.AFTER: _send_first,
    PostingRule.BEFORE: _receive_last,
}


def _changed(built: Built, change: Callable[[list[list[Action]]], None]) -> tuple[ActionRow, ...]:
    rows = [[action for cell in row for action in cell] for row in built.rows]
    change(rows)
    return tuple(tuple((action,) for action in row) for row in rows)


@examples(20)
@given(built())
def test_an_order_as_appended_keeps_all_rules(built: Built) -> None:
    assert posting_faults(built.schedule.pipeline, built.rows) == []


@pytest.mark.parametrize("rule", POSTING)
@examples(10)
@given(built=built(), seed=SEEDS)
def test_breaking_a_rule_of_posts_reports_it(rule: PostingRule, built: Built, seed: int) -> None:
    rows = _changed(built, lambda posts: POSTING[rule](Random(seed), posts))
    assert rule in {fault.rule for fault in posting_faults(built.schedule.pipeline, rows)}


@examples(10)
@given(built=built(), seed=SEEDS)
def test_a_post_that_is_missing(built: Built, seed: int) -> None:
    rows = _changed(built, lambda posts: _removed(Random(seed), posts))
    reported = {fault.rule for fault in posting_faults(built.schedule.pipeline, rows)}
    assert PostingRule.ONCE in reported


@examples(20)
@given(built(), SEEDS)
def test_faults_are_found_exactly_where_a_simulation_stops(built: Built, seed: int) -> None:
    """Two neighbours of a row change places; what still runs to its end keeps all rules."""
    random, pipeline = Random(seed), built.schedule.pipeline
    rows = [list(row) for row in built.rows]
    for _ in range(random.randint(1, 4)):
        row = random.choice(rows)
        position = random.randrange(len(row) - 1)
        row[position : position + 2] = row[position : position + 2][::-1]
    given_rows = tuple(map(tuple, rows))
    assume(all(_in_order(row) for row in given_rows))
    runs = simulate(pipeline, given_rows) is not None
    assert runs == (not posting_faults(pipeline, given_rows))


def _in_order(row: ActionRow) -> bool:
    """Whether a row's own F, B and W, its sends and receives follow each other."""
    position_of = {action: position for position, cell in enumerate(row) for action in cell}

    def behind(action: Action, *kinds: str) -> Iterator[bool]:
        for kind in kinds:
            before = position_of.get(action._replace(kind=ActionKind(kind)))
            yield before is None or before < position_of[action]

    kinds = {"B": ("F",), "BW": ("F",), "W": ("B",), "SEND_F": ("F",), "SEND_B": ("B", "BW")}
    return all(all(behind(action, *kinds.get(action.kind, ()))) for action in position_of)


def _rows(*lines: str) -> tuple[ActionRow, ...]:
    """Rows of actions such as `0SEND_F1`."""

    def action(text: str) -> Action:
        return Action(ActionKind(text[1:-1]), int(text[0]), int(text[-1]))

    return tuple(tuple((action(word),) for word in line.split()) for line in lines)


def test_orders_that_do_not_match() -> None:
    pipeline = Pipeline(stages=2, batches=2, link_mode="streams")

    def faults(*lines: str) -> list[str]:
        return list(map(str, posting_faults(pipeline, _rows(*lines))))

    right = "1RECV_F0 1F0 1BW0 1SEND_B0 1RECV_F1 1F1 1BW1 1SEND_B1"
    assert faults("0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0BW0 0RECV_B1 0BW1", right) == []
    assert faults("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1", right) == [
        "matching-order: device 0: transfer 1 of its queue with device 1 is that of 0SEND_F1, "
        "and of 1SEND_B0 there; both wait forever (deadlock): device 0 at 0SEND_F1, device 1 at "
        "1SEND_B0"
    ]
    receives = "1RECV_F0 1F0 1RECV_F1 1F1 1BW0 1SEND_B0 1BW1 1SEND_B1"
    assert faults("0F0 0SEND_F0 0RECV_B0 0BW0 0F1 0SEND_F1 0RECV_B1 0BW1", receives) == [
        "matching-order: device 0: transfer 1 of its queue with device 1 is that of 1SEND_B0, "
        "and of 0SEND_F1 there; both wait forever (deadlock): device 0 at 0RECV_B0, device 1 at "
        "1RECV_F1"
    ]
    crossed = "1RECV_F0 1F0 1RECV_F1 1F1 1BW0 1SEND_B0 1BW1 1SEND_B1"
    late = "0F0 0SEND_F0 0RECV_B0 0BW0 0F1 0SEND_F1 0RECV_B1 0BW1"
    assert [fault.split(":")[0] for fault in faults(late, crossed)] == ["matching-order"]
    # both ends agree, and each waits for what the other does behind its own wait
    waits = "1RECV_F0 1F0 1F1 1BW0 1SEND_B0 1RECV_F1 1BW1 1SEND_B1"
    assert faults("0F0 0SEND_F0 0RECV_B0 0BW0 0F1 0SEND_F1 0RECV_B1 0BW1", waits) == [
        "receive-before: device 1: 1RECV_F1 stands behind 1F1"
    ]


def test_a_circle_over_three_devices() -> None:
    """Every queue agrees and every post is in its place; still the devices wait for each other."""
    pipeline = Pipeline(stages=4, batches=1, placement=[0, 1, 2, 0], link_mode="streams")
    rows = _rows(
        "3RECV_F0 3F0 3BW0 3SEND_B0 0F0 0SEND_F0 0RECV_B0 0BW0",
        "1RECV_F0 1F0 1SEND_F0 1RECV_B0 1BW0 1SEND_B0",
        "2RECV_F0 2F0 2SEND_F0 2RECV_B0 2BW0 2SEND_B0",
    )
    assert list(map(str, posting_faults(pipeline, rows))) == [
        "deadlock: device 0: 3F0 waits forever",
        "deadlock: device 1: 1F0 waits forever",
        "deadlock: device 2: 2F0 waits forever",
    ]
