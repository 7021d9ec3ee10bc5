"""What values print, and what they show of themselves in a notebook."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

import ppopt

PIPELINE = ppopt.Pipeline(stages=2, batches=3)
MODEL = ppopt.Model([ppopt.Layer(forward=time) for time in (1, 2, 3)])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A value of every kind that has a view."""
    storage = f"sqlite:///{tmp_path_factory.mktemp('storage') / 'a.db'}"
    plan = ppopt.plan(MODEL, devices=2, batches=2, placement="linear", recompute="none", workers=1)
    return {
        "schedule": ppopt.evaluate(PIPELINE, "1f1b"),
        "result": ppopt.solve(PIPELINE, mem_limit="1f1b", workers=1),
        "infeasible": ppopt.solve(PIPELINE, mem_limit=0.5, workers=1),
        "comparison": ppopt.compare(PIPELINE, strategies=["1f1b", "zb-1p"], workers=1),
        "frontier": ppopt.frontier(PIPELINE, workers=1),
        "plan": plan,
        "study": ppopt.sweep(PIPELINE, {"batches": [2, 3]}, storage=storage, jobs=1),
    }


VIEWS = {
    "schedule": ("<svg", "1f1b"),
    "result": ("<svg", "optimal (proved)", "device 1 is the bottleneck"),
    "infeasible": ("infeasible (proved)", "the minimum feasible limit"),
    "comparison": ("<table", "zb-1p", "vs opt.", "linear: optimal (proved)"),
    "frontier": ("<table", "memory above 2 does not help placement linear (proved)"),
    "plan": ("<svg", "<table", "optimal (proved)"),
    "study": ("<table", "batches", "2 done"),
}


class Balanced(HTMLParser):
    """Reads HTML and keeps the tags that are open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", VIEWS)
def test_the_view_of_a_notebook(name: str, results: dict[str, Any]) -> None:
    html = results[name]._repr_html_()
    assert Balanced(html).open == []
    for text in VIEWS[name]:
        assert text in html


@pytest.mark.parametrize("name", VIEWS)
def test_it_prints_in_a_line(name: str, results: dict[str, Any]) -> None:
    text = repr(results[name])
    assert "\n" not in text
    assert len(text) <= 200


def test_parts_print_in_a_line(results: dict[str, Any]) -> None:
    """No screen of arrays or fractions."""
    parts = [
        *(PIPELINE, PIPELINE.costs, PIPELINE.ticks, MODEL, MODEL.layers[0], ppopt.SolveParams()),
        *(
            results["comparison"].rows[0],
            results["frontier"].points[0],
            results["frontier"].baselines[0],
        ),
        *(
            results["plan"].rows[0],
            ppopt.jitter(results["schedule"], 0.1),
            results["schedule"].metrics,
        ),
    ]
    for part in parts:
        assert "\n" not in repr(part)
        assert len(repr(part)) <= 300, repr(part)
    assert repr(PIPELINE) == "Pipeline(2 devices, 3 microbatches, linear)"
    assert repr(ppopt.SolveParams(without=frozenset({"window LNS"}))) == (
        "SolveParams(without=frozenset({'window LNS'}))"
    )


def test_a_study_tells_pipelines_apart() -> None:
    """They print alike, but the words that name a study have every field."""
    same = ppopt.Pipeline(stages=2, batches=3, forward=2)
    assert repr(same) == repr(PIPELINE)
    assert same.spelled_out() != PIPELINE.spelled_out()


def test_a_figure_is_json(results: dict[str, Any]) -> None:
    """What a notebook file keeps of a plotly figure."""
    figure = results["schedule"].plot()
    document = json.loads(figure.to_json())
    assert len(document["data"]) >= 3
