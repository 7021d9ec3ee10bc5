"""How many workers a search has by default."""

import os
import sys

import pytest

from ppopt import processors


def test_what_the_system_grants_is_what_there_is_to_use() -> None:
    assert 1 <= processors.available() <= (os.cpu_count() or 1)


def test_a_system_that_does_not_say_gives_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of macOS and Windows Python knows no affinity."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert processors.available() == os.cpu_count()
