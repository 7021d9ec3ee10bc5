"""The table of GPUs."""

from __future__ import annotations

from ppopt.derivation.gpus import gpus
from ppopt.report.derivation import GPU_COLUMNS, gpu_table


def test_rows_have_the_units_of_data_sheets() -> None:
    *figures, measured = (str(column.cell(gpus()["b200"])) for column in GPU_COLUMNS)
    assert figures == ["b200", "2250", "4500", "9000", "180", "8", "8", "900", "50"]
    number, total = map(int, measured.split(" of "))
    assert 0 < number < total


def test_every_gpu_has_a_row() -> None:
    names = [str(cell) for cell in gpu_table().columns[0].cells]
    assert names == list(gpus())
