"""From a trace or a log to the three rows: what ran, the best for its runtime, the best found."""

from __future__ import annotations

from pathlib import Path

import pytest

import ppopt
from ppopt import Pipeline, evaluate
from ppopt.formats.config import pipeline_of, read_config
from ppopt.studies.headline import RUNTIME_NAMES, runs_on
from tests.cli.cli_run import done, run
from tests.profiles.test_primus import SCHEDULE, written

LOG = """times across ranks (ms):
  forward-compute:
     rank  0: 60.00
     rank  1: 80.00
  backward-compute:
     rank  0: 120.00
     rank  1: 160.00
"""


def rows_of(text: str) -> list[str]:
    """The first rows of a headline."""
    return [
        line for line in text.splitlines() if line.startswith(("current", "on ", "best", "opt"))
    ]


def test_a_trace_leads_to_three_rows_and_a_page(tmp_path: Path) -> None:
    """1F1B ran in Primus, which runs the best order, too: split backwards."""
    folder, out = written(tmp_path, SCHEDULE, steps=2), tmp_path / "out.yaml"
    ran = done("profile --plan --time-limit 20", folder, "-o", out)
    current, runnable, best, *_ = rows_of(ran.out)
    assert current.startswith("current    same order")
    assert runnable.startswith("on Primus")
    assert best.startswith(("best found", "optimum"))
    assert "% more" in runnable
    assert pipeline_of(read_config(out)).batches == 4
    assert "same order" in out.with_suffix(".html").read_text()


def test_a_log_leads_to_three_rows(tmp_path: Path) -> None:
    """With layers the partition is searched: 1F1B with a better one is what Megatron-LM runs."""
    log, page = tmp_path / "run.log", tmp_path / "page.html"
    log.write_text(LOG)
    line = "profile --stages 2 --batches 4 --plan --time-limit 20 --layers 4,6"
    current, runnable, *_ = rows_of(done(line, log, "-o", page).out)
    assert current.split()[:2] == ["current", "1f1b,"]
    assert runnable.startswith("on Megatron-LM")
    assert "% more" in runnable
    assert page.exists()
    assert not page.with_suffix(".yaml").exists()


def test_no_page_in_json(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(LOG)
    ran = run("profile --stages 2 --batches 4 --plan", log, "-o", tmp_path / "x.json")
    assert ran.code == 2
    assert "with --plan, end it in .yaml (pipeline and page) or .html (page)" in ran.err


@pytest.mark.parametrize(
    ("strategy", "fields", "runtimes"),
    [
        ("1f1b", {}, {"torch", "megatron", "primus"}),
        ("zb-1p", {}, {"torch", "primus"}),
        ("zbv", {"placement": "v", "chunks": 2}, {"torch", "primus"}),
        ("hanayo", {"placement": "v", "chunks": 4}, {"torch"}),
        ("dualpipe", {"routes": 2}, set()),
    ],
)
def test_which_trainer_runs_a_schedule(
    strategy: str, fields: dict[str, object], runtimes: set[str]
) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=4, **fields), strategy)
    assert {runtime for runtime in RUNTIME_NAMES if runs_on(runtime, schedule)} == runtimes


def test_a_plan_for_primus_leaves_its_placements_out() -> None:
    model = ppopt.Model([ppopt.Layer(forward=1) for _ in range(8)])
    plan = ppopt.plan(
        model,
        devices=2,
        batches=2,
        placement="linear,v",
        chunks=(1, 4),
        runtime="primus",
        time_limit=1,
        workers=1,
    )
    placements = {(row.configuration.placement, row.configuration.chunks) for row in plan.rows}
    assert placements == {("linear", 1)}
    assert plan.headline.runtime == "Primus"
