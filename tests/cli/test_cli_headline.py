"""The first rows of `ppopt compare` and `ppopt plan`, and what `--given` names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.cli_json import assert_headline
from tests.cli.cli_run import done, json_of, run

COMPARE = "compare --stages 2 --batches 4 --forward-times 2,3 --strategies 1f1b,zb-h1 --workers 1"
MODEL = """
stages: 2
batches: 2
name: three
layers:
  - {name: block, count: 3, forward: 1, activation: 4}
"""
PLAN = "plan --placement linear --chunks 1 --workers 1 --time-limit 5 --config"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    return path


def first_rows(out: str) -> tuple[str, list[str]]:
    """The title, and the lines of the rows of the first table."""
    title, rest = out.split("\n", 1)
    _, rows = re.split(r"\n─+\n", rest.split("\n\n")[0])
    return title, [line for line in rows.split("\n") if line[0] != " "]


def test_a_comparison_opens_with_three_rows() -> None:
    """By hand: device 1 works for 4 x 9, and 1F1B also waits for an F and a BW of device 0, 2 + 4.

    The optimum has W of device 1 last: only the F is left.
    """
    title, rows = first_rows(done(COMPARE).out)
    assert title == "2 devices, 4 microbatches"
    assert rows[0].startswith("current    1f1b, linear ")
    assert rows[1].startswith("on PyTorch searched, linear ") and "10.5 % more" in rows[1]
    assert rows[2].startswith("optimum    searched, linear ") and "10.5 % more" in rows[2]
    assert rows[3] == "on PyTorch: order"
    output = json_of(COMPARE)
    assert_headline(output)
    assert [output[key]["strategy"] for key in ("given", "optimum")] == ["1f1b", "searched"]
    assert output["given"]["value"] == 42 and output["optimum"]["value"] == 38
    assert output["runs_today"]["changes"] == ["order"] and output["optimum"]["changes"] == []
    assert output["runs_today"]["runtime"] == "PyTorch"


def test_given_names_a_strategy() -> None:
    output = json_of(f"{COMPARE} --given gpipe")
    assert output["given"]["strategy"] == "gpipe"
    _, rows = first_rows(done(f"{COMPARE} --given gpipe").out)
    assert rows[0].startswith("current    gpipe, linear ")


def test_given_names_a_schedule_file(tmp_path: Path, config: Path) -> None:
    """Of the very plan that was printed: nothing changes and nothing is gained."""
    best = tmp_path / "best.json"
    planned = json_of(f"{PLAN} {config} -o {best}")
    output = json_of(f"{PLAN} {config} --given {best}")
    assert_headline(output)
    assert output["given"]["value"] == planned["value"] == output["optimum"]["value"]
    assert output["given"]["partition"] == planned["partition"]
    assert output["given"]["strategy"] is None
    assert output["optimum"]["gain"] == 0


def test_given_names_an_order_of_pytorch(tmp_path: Path) -> None:
    order = tmp_path / "order.csv"
    line = "--stages 2 --batches 4 --forward-times 2,3"
    done(f"eval gpipe {line} -o {order}")
    output = json_of(f"compare {line} --strategies 1f1b --given {order}")
    assert output["given"]["value"] == json_of(f"eval gpipe {line}")["value"]


def test_a_plan_opens_with_the_strategy_and_its_partition(config: Path) -> None:
    out = done(f"{PLAN} {config} --given '1f1b partition=1,2'").out
    title, rows = first_rows(out)
    assert title == "three: 2 devices, 2 microbatches"
    assert rows[0].startswith("current    1f1b, linear ")
    assert "current: partition 1 2" in rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("other.json", "microbatches 4, not 2; give a schedule of the same model"),
        ("missing.json", "cannot be read"),
        ("1f2b", "it is no schedule file (.json, .csv): strategy: '1f2b' is unknown"),
        ("1f1b partition=4", "partition: has 1 stage, the placement 2"),
        ("1f1b groups=4", "'groups=4' does not follow a strategy"),
    ],
)
def test_what_is_neither_is_an_error_of_one_line(
    text: str, message: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    done("eval 1f1b --stages 2 --batches 4 -o other.json")
    for line in (f"{PLAN} {config}", f"compare --config {config}"):
        result = run(f"{line} --given '{text}' -o out.json")
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("error: --given: ") and message in result.err
        assert result.err.count("\n") == 1
        assert not Path("out.json").exists()


def test_a_page_opens_with_the_rows(tmp_path: Path, config: Path) -> None:
    """They come before the table of all schedules."""
    for line, table in ((COMPARE, ">vs best<"), (f"{PLAN} {config}", 'class="plan"')):
        page = tmp_path / "page.html"
        done(f"{line} -o {page}")
        text = page.read_text(encoding="utf-8")
        rows = text.index('<section class="headline">')
        assert rows < text.index("on PyTorch", rows) < text.index("optimum", rows)
        assert text.index("optimum", rows) < text.index(table, rows)


def test_a_plan_over_the_parallelism_takes_a_strategy(tmp_path: Path) -> None:
    schedule = tmp_path / "a.json"
    done(f"eval 1f1b --stages 2 --batches 2 -o {schedule}")
    sizes = "--gpu h100 --gpus 2 --global-batch 4"
    result = run(f"plan --from config.json {sizes} --given {schedule}")
    assert result.code == 2
    assert "a schedule has one parallelism" in result.err
