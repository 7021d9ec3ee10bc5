"""The entries of a page: schedules compared with the best of them."""

from __future__ import annotations

from dataclasses import replace

from ppopt.problem.pipeline import Pipeline
from ppopt.report.entries import entries
from ppopt.report.sections import overview
from ppopt.schedule.origin import Origin
from ppopt.studies.evaluate import evaluate


def test_the_best_of_a_comparison_is_one_that_fits() -> None:
    """A shorter schedule over the limit comes last, in a part of its own of the table."""
    pipeline = Pipeline(stages=4, batches=8, mem_limit=4)
    over, within = evaluate(pipeline, "zb-2p"), evaluate(pipeline, "1f1b")
    assert over.metrics.makespan_ticks < within.metrics.makespan_ticks
    best, other = entries([over, within])
    assert (best.title, best.above) == ("1f1b", "")
    assert best.note.startswith("makespan 33 within memory 4 each; ")
    assert (other.title, other.above) == ("zb-2p", "")
    assert other.note.startswith("makespan 27 over the limit of memory 4 each; ")
    fitting, apart = overview([best, other]).split("over the memory limit")
    assert ("1f1b" in fitting, "zb-2p" in fitting, "zb-2p" in apart) == (True, False, True)


def test_schedules_shown_with_a_measured_step_are_called_predicted() -> None:
    made = evaluate(Pipeline(stages=2, batches=2), "1f1b")
    step = replace(made, origin=Origin(strategy="measured"))
    assert [entry.title for entry in entries([made, step], ordered=True)] == [
        "1f1b, predicted",
        "measured",
    ]
    assert [entry.title for entry in entries([made, made])] == ["1f1b", "1f1b"]


def test_the_table_tells_how_many_stages_lie_where() -> None:
    pipeline = Pipeline(stages=4, batches=8)
    names = ("1f1b", "zbv", "interleaved", "chimera", "seq-1f1b")
    table = overview(entries([evaluate(pipeline, name) for name in names]))
    for words in ("4, linear", "8, v", "8, interleaved", "4, linear, 2 routes"):
        assert f"<td>{words}</td>" in table
    assert "<td>4, linear, 2 slices</td>" in table
    listed = Pipeline(stages=2, batches=2, placement=(1, 0))
    assert "<td>2 on 1,0</td>" in overview(entries([evaluate(listed, "1f1b")] * 2))
