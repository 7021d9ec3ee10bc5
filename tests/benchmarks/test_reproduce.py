"""The published tables as `python -m benchmarks.reproduce` rebuilds them."""

from __future__ import annotations

import pytest

from benchmarks import reproduce
from benchmarks.reproduce import Line, Table
from tests.tiers import slow


@pytest.mark.parametrize(
    "table", [reproduce.table_2, slow(reproduce.v_family), reproduce.megatron, reproduce.dualpipe]
)
def test_formulas_are_met(table) -> None:
    result = table()
    assert [line for line in result.lines if line.wrong] == []
    assert all(line.published for line in result.lines)


@pytest.mark.slow
def test_published_rates_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows at hand; 1F1B-I follows a formula, as the table says."""
    monkeypatch.setattr(reproduce, "model_names", lambda: tuple(reproduce.TABLE_5))
    result = reproduce.table_5()
    assert len(result.lines) == 3 * 6
    for line in result.lines:
        assert not line.wrong
        same = line.published == line.ours
        assert same or line.note == f"formula {line.published}"
        assert same != line.what.endswith("1F1B-I")


def test_a_limit_may_be_stayed_below() -> None:
    lines = [Line("peak", "at most 8", ours) for ours in ("7.5", "8", "8.5")]
    assert [line.wrong for line in lines] == [False, False, True]
    assert "| peak | at most 8 | 7.5 | kept |" in Table("t", "s", tuple(lines)).text()


def test_every_pipeline_and_schedule_has_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """All twelve are printed; here the three of 8 devices and 1.5B are run."""
    assert len([name for name in reproduce.model_names() if name.startswith("zb-")]) == 12
    monkeypatch.setattr(reproduce, "model_names", lambda: tuple(reproduce.TABLE_5))
    result = reproduce.table_5_memory()
    assert [line.what.split()[1] for line in result.lines] == [*reproduce.COLUMNS] * 3
    assert not any(line.wrong for line in result.lines)
