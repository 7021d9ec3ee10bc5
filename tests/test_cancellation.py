"""Scopes end the work inside them at its checkpoints."""

from __future__ import annotations

import threading
from math import inf
from types import SimpleNamespace

import pytest

from ppopt import cancellation
from ppopt.cancellation import LOOK, checkpoint, each, over, part, scope, seconds_left, shield
from tests.clock import stepping_clock


def test_without_a_scope_nothing_ends() -> None:
    checkpoint()
    assert seconds_left() == inf
    assert list(each(range(2 * LOOK))) == list(range(2 * LOOK))


def test_work_that_ends_in_time_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping_clock(monkeypatch, 1.0, 10)
    with scope(1.0) as entered:
        checkpoint()
        assert seconds_left() == pytest.approx(0.8)
    assert not entered.ended


def test_a_scope_swallows_its_end_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stepping_clock(monkeypatch, 1.0, 10)
    with scope(1.0) as entered:
        while True:
            checkpoint()
    assert entered.ended
    assert clock.readings == 10


@pytest.mark.parametrize(("outer_end", "inner_end"), [(5.0, 9.0), (9.0, 5.0)])
def test_the_earliest_end_holds(
    outer_end: float, inner_end: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stepping_clock(monkeypatch, 1.0, 1)
    with scope(outer_end) as outer:
        with scope(inner_end) as inner:
            while True:
                checkpoint()
        assert clock.readings == 5
        checkpoint()
    assert inner.ended
    assert outer.ended == (outer_end == 5.0)


def test_a_shield_hides_the_outer_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stepping_clock(monkeypatch, 1.0, 1)
    with scope(0.0), shield(), scope(3.0):
        while True:
            checkpoint()
    assert clock.readings == 3


def test_other_errors_pass_and_the_end_is_removed() -> None:
    with pytest.raises(ValueError, match="a bug"), scope(0.0):
        raise ValueError("a bug")
    checkpoint()


def test_a_loop_has_a_checkpoint_per_so_many_items(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stepping_clock(monkeypatch, 1.0, 3)
    items: list[int] = []
    with scope(1.0):
        items.extend(each(range(100 * LOOK)))
    assert (len(items), clock.readings) == (3 * LOOK - 1, 3)


def test_another_thread_has_scopes_of_its_own() -> None:
    left: list[float] = []
    with scope(0.0):
        thread = threading.Thread(target=lambda: left.append(cancellation.seconds_left()))
        thread.start()
        thread.join()
    assert left == [inf]


def test_a_part_ends_after_its_share_of_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "time", SimpleNamespace(monotonic=lambda: 2.0))
    with scope(10.0):
        with part(0.25):
            assert seconds_left() == 2.0
        with part(1):
            assert seconds_left() == 8.0
    with scope(1.0), part(0.5):
        assert seconds_left() == -1.0 and over()
    with part(0.5):
        assert seconds_left() == inf and not over()
