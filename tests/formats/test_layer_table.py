"""A CSV table of layers as a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError
from ppopt.formats.config import model_of, parse_config
from ppopt.formats.layer_table import parse_csv
from tests.cli.cli_run import done

TABLE = """\
layer,name,fwd_ms,bwd_ms,act_mib
0,embedding,0.4,0.6,60
1,block,6.3,12.9,1250
2,head,7.9,16.2,2100
"""


def layers(text: str) -> list[Any]:
    return list(model_of(parse_config(text, ".csv", "t.csv")).layers)


def test_a_column_may_have_a_unit_and_a_short_name() -> None:
    embedding, block, head = layers(TABLE)
    assert (block.forward, block.backward, block.activation) == (
        pytest.approx(6.3), pytest.approx(12.9), 1250,
    )  # fmt: skip
    assert (block.time_unit, block.memory_unit) == ("ms", "MiB")
    assert [layer.role for layer in (embedding, block, head)] == ["embedding", "decoder", "head"]


def test_columns_are_named_as_in_other_config_files() -> None:
    table = (
        "name,role,count,forward,backward,weight,activation,recompute,frozen\n"
        "first,embedding,1,1,2,,3,,true\n"
        "block,,2,2.5,5,2,4,\"{time: 1, activation: 2}\",\n"
    )  # fmt: skip
    yaml = """
layers:
  - {name: first, role: embedding, forward: 1, backward: 2, activation: 3, frozen: true}
  - {name: block, count: 2, forward: 2.5, backward: 5, weight: 2, activation: 4,
     recompute: {time: 1, activation: 2}}
"""
    assert layers(table) == list(model_of(parse_config(yaml, ".yaml", "t.yaml")).layers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv: has 0 rows below its header"),
        ("forward\n", "t.csv: has 0 rows below its header"),
        ("forward,backward\n1\n", "t.csv: line 2: 1 values; the header has 2"),
        ("forward,forward\n1,2\n", "t.csv: line 1: forward is given twice; keep one"),
        ("fwd,forward\n1,2\n", "t.csv: line 1: forward is given twice; keep one"),
        ("forward\nx\n", "'x'"),
        ("forward\n4 # or 5\n", "'4 # or 5'"),
        ("forwrd\n1\n", "did you mean forward"),
        ("forward,layer\n1,7\n", "layer"),
        ("forward_parsecs\n1\n", "forward_parsecs"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        model_of(parse_config(text, ".csv", "t.csv"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["block #3", "#1", "a: b", "*all", "7", "null", "head"])
def test_a_name_is_the_text_of_its_cell(name: str) -> None:
    document = parse_csv(f"name,forward\n{name},4\n", "t.csv")
    assert document["layers"][0]["name"] == name


def test_a_row_numbering_is_ignored() -> None:
    for numbering in ("", "index", "layer"):
        document = parse_csv(f"{numbering},forward\n1,4\n2,5\n", "t.csv")
        assert document == {"layers": [{"forward": 4}, {"forward": 5}]}


def test_a_table_is_compared_with_its_partition_searched(tmp_path: Path) -> None:
    file = tmp_path / "layers.csv"
    file.write_text(TABLE)
    line = "compare --stages 2 --batches 2 --strategies 1f1b --workers 1 --time-limit 600 --config"
    out = done(line, file, "--partition", "search").out
    assert "partition of a strategy is a first try" in " ".join(out.split())
    assert "first try" not in done(line, file).out
