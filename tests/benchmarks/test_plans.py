"""The benchmark of plans: its hand-made configurations and its table."""

from __future__ import annotations

import pytest

import ppopt
from benchmarks import plans

pytestmark = pytest.mark.slow


def test_published_configurations_fit_the_model() -> None:
    hand = plans.by_hand("deepseek-v3", ppopt.read_pipeline("deepseek-v3"), plans.LIMIT)
    assert hand is not None and hand.value > 0
    assert any(layout in hand.words for _, layout in plans.PUBLISHED["deepseek-v3"])


def test_every_model_is_bundled_and_in_layers() -> None:
    for name in plans.MODELS:
        assert ppopt.read_pipeline(name).model is not None


def test_a_line_has_every_column() -> None:
    name = "llama-3.1-8b"
    task, *others = plans.tasks([name], 3.0, "80GiB", loop=True)
    alone = plans.done(others[0]._replace(seconds=0.1))
    plan = plans.done(task)
    for rows in ([], [alone]):
        assert len(plans.cells(name, [plan, *rows])) == len(plans.COLUMNS)
