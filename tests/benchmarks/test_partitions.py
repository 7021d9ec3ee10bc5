"""The benchmark of partition search: its models, limits and table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import pytest

import ppopt
from benchmarks import partitions
from benchmarks.partitions import Row

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("blocks", [43, 61])
def test_the_models_have_so_many_blocks_and_three_layers_more(blocks: int) -> None:
    made = partitions.model(blocks)
    assert sum(layer.role == "decoder" for layer in made.layers) == blocks
    assert len(made) == blocks + 3


def test_the_large_model_is_the_bundled_one() -> None:
    assert partitions.model(61).layers == ppopt.read_model("deepseek-v3").layers


@pytest.mark.parametrize("placement", list(partitions.LAYOUTS))
def test_published_layouts_fit_the_large_model(placement: str) -> None:
    row = Row(61, 16, 32, placement, None)
    made = partitions.pipeline(row, partitions.LAYOUTS[placement])
    assert sum(made.counts) == 64 and made.num_devices == 16


def test_a_limit_is_a_share_of_that_of_1f1b_on_the_balanced_partition() -> None:
    half = partitions.pipeline(Row(43, 8, 16, "linear", Fraction(1, 2)), "even")
    full = partitions.pipeline(Row(43, 8, 16, "linear", Fraction(1)), "balanced")
    peak = ppopt.evaluate(full, "1f1b").metrics.peak_memory
    assert half.limits is not None
    assert half.limits[0] * 2 == max(map(full.ticks.memory, peak))


def test_a_line_has_every_column() -> None:
    row = Row(43, 8, 8, "linear", None)
    cells = partitions.line(row, 2.0).strip("|").split("|")
    assert len(cells) == len(partitions.COLUMNS)
    even, balanced, _, moved, search, bound, gap = map(str.strip, cells[4:11])
    assert float(bound) <= min(map(float, (search, even, balanced, moved)))
    assert gap == "proved" or float(gap) >= 0


def test_a_record_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First one row, then all of one size: the row that is there is not made again."""
    made: list[Row] = []

    def lines(wanted: Sequence[Row], seconds: float, jobs: int) -> Iterator[tuple[str, str]]:
        made.extend(wanted)
        assert jobs == 2
        for row in reversed(wanted):
            yield row.title, f"| {' | '.join((*row.cells, str(seconds)))} |"

    monkeypatch.setattr(partitions, "lines", lines)
    record = tmp_path / "record.md"
    common = ["--seconds", "2", "--jobs", "2", "-o", str(record)]
    partitions.main([*common, "--only", "43, 8 x 32 | v"])
    partitions.main([*common, "--only", "43, 8 x 32"])
    assert len(made) == len(set(made)) == len(partitions.FORMS)
    assert made[0].placement == "v"
    rows = [text for text in record.read_text().splitlines() if text.startswith("| 43")]
    assert len(rows) == len(made) and rows[0].startswith("| 43, 8 x 32 | linear | - | - |")
