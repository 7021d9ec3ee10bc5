"""The published tables as `python -m benchmarks.reproduce` rebuilds them."""

from __future__ import annotations

import pytest

from benchmarks import reproduce
from benchmarks.reproduce import Line, Table


@pytest.mark.parametrize(
    "table", [reproduce.table_2, reproduce.v_family, reproduce.megatron, reproduce.dualpipe]
)
def test_formulas_are_met(table) -> None:
    made = table()
    assert [line for line in made.lines if line.wrong] == []
    assert all(line.published for line in made.lines)


def test_published_rates_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows at hand; 1F1B-I follows a formula, as the table says."""
    monkeypatch.setattr(reproduce, "model_names", lambda: tuple(reproduce.TABLE_5))
    made = reproduce.table_5()
    assert len(made.lines) == 3 * 6
    for line in made.lines:
        assert not line.wrong
        same = line.published == line.ours
        assert same or line.note == f"formula {line.published}"
        assert same != line.what.endswith("1F1B-I")


def test_a_difference_is_shown() -> None:
    table = Table("title", "source", (Line("idle", "3", "4"), Line("rate", "", "0.1")))
    assert [line.wrong for line in table.lines] == [True, False]
    assert "| idle | 3 | 4 | DIFFERS |" in table.text()
    assert "| rate | not at hand | 0.1 |  |" in table.text()
