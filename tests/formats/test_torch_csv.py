"""The text for PyTorch's pipeline runtime: letters, order, numbering, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from ppopt import Pipeline, evaluate
from ppopt.errors import InputError, NotApplicableError
from ppopt.formats.torch_comms import communication_csv
from ppopt.formats.torch_csv import order_csv
from ppopt.problem.operation import Op
from ppopt.schedule.orders import codes
from ppopt.schedule.schedule import Schedule
from tests.cli.cli_run import done, run
from tests.factories.schedules import BW, SAYABLE, B, F, W, schedules
from tests.factories.traits import novel_trait
from tests.tiers import examples
from tests.verifier.verify_fixtures import one_f_one_b, schedule_of

KINDS = {"F": F, "I": B, "W": W, "B": BW}
"""PyTorch's letters: I is the input's gradient alone, B the full backward."""
CELL = re.compile(r"(\d+)([FIWB])(\d+)", re.ASCII)
SIZE = "--stages 2 --batches 2"
FULL = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
"""1F1B of 2 x 2: the first device runs both forwards before the first backward comes back."""
SPLIT = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"
"""ZB-H1 of 2 x 2, unit times: device 0 runs F 0-2, B0 3-4, W0 4-5, B1 5-6, W1 6-7; device 1 runs
F0 1-2, B0 2-3, F1 3-4, B1 4-5 and, its W one behind, W0 and W1 5-7 (2401.10241, figure 2)."""


def read(text: str) -> list[list[Op]]:
    """Operations of every rank, in our kinds, a pair's in turn; other forms are refused."""
    assert text.endswith("\n")
    ranks = []
    for line in text.removesuffix("\n").split("\n"):
        parts = re.sub(r"\((\w+);(\w+)\)OVERLAP_F_B", r"\1,\2", line)
        matches = [CELL.fullmatch(cell) for cell in parts.split(",")]
        ranks.append([Op(KINDS[m[2]], int(m[1]), int(m[3])) for m in matches if m is not None])
        assert len(ranks[-1]) == len(matches)
    return ranks


def test_full_backwards_by_hand() -> None:
    assert order_csv(one_f_one_b()) == FULL


def test_split_backwards_by_hand() -> None:
    assert order_csv(evaluate(Pipeline(stages=2, batches=2, weight=1), "zb-h1")) == SPLIT


def test_both_backwards_in_one_order() -> None:
    drawn = schedule_of(
        Pipeline(stages=2, batches=1), "0: 0F0@0..1 0BW0@3..5", "1: 1F0@1..2 1B0@2..3 1W0@3..4"
    )
    assert order_csv(drawn) == "0F0,0B0\n1F0,1I0,1W0\n"


def test_a_row_is_a_device_whatever_its_stages() -> None:
    drawn = schedule_of(
        Pipeline(stages=3, batches=1, placement=[1, 0, 1]),
        "0: 1F0@1..2 1BW0@5..7",
        "1: 0F0@0..1 2F0@2..3 2BW0@3..5 0BW0@7..9",
    )
    assert order_csv(drawn) == "1F0,1B0\n0F0,2F0,2B0,0B0\n"


def test_microbatches_are_numbered_by_the_last_forwards() -> None:
    """Stage 0 forwards 0, 1 and stage 1 forwards 1, 0: microbatch 1 becomes 0 on both."""
    drawn = schedule_of(
        Pipeline(stages=2, batches=2),
        "0: 0F0@0..1 0F1@1..2 0BW1@5..7 0BW0@8..10",
        "1: 1F1@2..3 1BW1@3..5 1F0@5..6 1BW0@6..8",
    )
    assert order_csv(drawn) == "0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@examples(15)
@given(schedules(SAYABLE))
def test_the_same_order_with_other_numbers(schedule: Schedule) -> None:
    """The last stage's forwards count up, and one renaming leads cell by cell to the schedule."""
    ranks = read(order_csv(schedule))
    pipeline = schedule.pipeline
    last = pipeline.num_stages - 1
    forwards = [op.microbatch for ops in ranks for op in ops if op[:2] == (F, last)]
    assert forwards == list(range(pipeline.batches))
    own = [[pipeline.op(code) for code in codes(order)] for order in schedule.orders]
    cells = [op for ops in ranks for op in ops]
    rows = [op for ops in own for op in ops]
    renamed = {(cell.microbatch, row.microbatch) for cell, row in zip(cells, rows, strict=True)}
    assert len(renamed) == pipeline.batches
    old = dict(renamed)
    assert sorted(old.values()) == list(range(pipeline.batches))
    assert [[op._replace(microbatch=old[op.microbatch]) for op in ops] for ops in ranks] == own


def test_a_memory_limit_does_not_matter() -> None:
    schedule = one_f_one_b()
    limited = replace(schedule, pipeline=replace(schedule.pipeline, mem_limit=1))
    assert order_csv(limited) == FULL


def test_two_routes_are_refused() -> None:
    drawn = schedule_of(
        Pipeline(stages=2, batches=2, routes=2),
        "0: 0F0@0..1 1F1@1..2 1BW1@2..4 0BW0@4..6",
        "1: 0F1@0..1 1F0@1..2 1BW0@2..4 0BW1@4..6",
    )
    with pytest.raises(NotApplicableError, match="two routes put a stage on two devices"):
        order_csv(drawn)


def test_a_trait_that_no_code_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    novel_trait(monkeypatch)
    drawn = schedule_of(Pipeline(stages=1, batches=1), "0: 0F0@0..1 0BW0@1..3")
    for written in (order_csv, communication_csv):
        with pytest.raises(NotApplicableError, match="knows no novelty"):
            written(drawn)


def test_what_is_no_schedule_is_refused() -> None:
    drawn = schedule_of(Pipeline(stages=1, batches=1), "0: 0F0@0..1")
    with pytest.raises(InputError, match="not a schedule of its pipeline: missing: "):
        order_csv(drawn)


class TestCommandLine:
    @pytest.mark.parametrize("line", [f"eval 1f1b {SIZE}", f"solve {SIZE} --fused --mem-limit"])
    def test_output(self, line: str, tmp_path: Path) -> None:
        """At the limit of 1F1B, full backwards have no other order: device 1 holds one."""
        ran = done(f"{line} --quiet -o", tmp_path / "a.CSV", "-o", tmp_path / "a.json")
        assert (ran.out, ran.err) == ("", "")
        assert read((tmp_path / "a.CSV").read_bytes().decode()) == read(FULL)
        assert (tmp_path / "a.json").exists()

    def test_a_comparison_is_no_order(self, tmp_path: Path) -> None:
        ran = run(f"compare {SIZE} -o", tmp_path / "a.json", "-o", tmp_path / "a.csv")
        error = "error: -o: cannot write a comparison as one order; use .html or .json\n"
        assert (ran.code, ran.out, ran.err) == (2, "", error)
        assert list(tmp_path.iterdir()) == []

    def test_two_routes_write_nothing(self, tmp_path: Path) -> None:
        config = tmp_path / "a.yaml"
        config.write_text("stages: 2\nbatches: 2\nroutes: 2\n")
        line = f"solve --quiet --config {config} -o"
        ran = run(line, tmp_path / "a.json", "-o", tmp_path / "a.csv")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error: torch csv: two routes")
        assert list(tmp_path.iterdir()) == [config]
