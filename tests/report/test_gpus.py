"""The table of GPUs."""

from __future__ import annotations

from ppopt.derivation.gpus import gpus
from ppopt.report.gpus import gpu_rows


def test_rows_have_the_units_of_data_sheets() -> None:
    row = {row.name: row for row in gpu_rows()}["b200"]
    assert list(row[:9]) == ["b200", 2250, 4500, 9000, 180, 8, 8, 900, 50]
    assert 0 < row.measured < row.unpublished


def test_every_gpu_has_a_row() -> None:
    assert [row.name for row in gpu_rows()] == list(gpus())
