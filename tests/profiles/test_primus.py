"""Runs that Primus recorded: places of events, clocks of ranks, the prediction and the steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppopt import InputError, Pipeline, Schedule, evaluate
from ppopt.formats.schedule_json import read_schedule
from ppopt.formats.torch_csv import parse_order, schedule
from ppopt.problem.operation import OpKind
from ppopt.profiles.clocks import aligned
from ppopt.profiles.estimate import Record, profile
from ppopt.profiles.measured_runs import measured, measured_steps, median_step, predicted
from ppopt.profiles.readers.primus import MILLISECOND, read_run
from tests.cli.cli_run import done, run
from tests.formats import primus_checkout

MODES = {OpKind.F: "fwd", OpKind.B: "bwd", OpKind.BW: "bwd", OpKind.W: "wgrad"}
PIPELINE = Pipeline(stages=2, batches=4, forward=[3, 5], backward=[8, 9], p2p="0.25")
SCHEDULE = evaluate(PIPELINE, "1f1b")
INTERLEAVED = evaluate(Pipeline(stages=2, batches=4, forward=[4, 6], chunks=2), "interleaved")
SPLIT = evaluate(PIPELINE, "zb-h1")
IN_V = evaluate(replace(PIPELINE, forward=[4, 6], backward=8, placement="v", chunks=2), "zbv")
MIXED = schedule(
    parse_order(
        "0F0,0F1,0I0,0F2,0W0,0B1,0F3,0B2,0I3,0W3\n1F0,1B0,1F1,1B1,1F2,1I2,1F3,1W2,1B3\n", "mixed"
    ),
    {"forward": [3, 5], "backward": [8, 9], "p2p": "0.25"},
)


def dumped(schedule: Schedule, *, numbered: bool) -> list[dict[str, Any]]:
    """What dump_pp_data writes of a perfect step, per rank; a unit is a millisecond.

    The clock of a rank starts with its first operation, 0.5 ms late.
    """
    pipeline = schedule.pipeline
    ranks = []
    for rank in range(pipeline.num_devices):
        rows = sorted((r for r in schedule.rows() if r.device == rank), key=lambda r: r.start)
        events: dict[str, Any] = {"total": 1.0, "memory": 3.5 - rank}
        for mode in ("fwd", "bwd", "wgrad"):
            of_mode = [row for row in rows if MODES[row.kind] == mode]
            for what in ("start", "end"):
                times = [getattr(row, what) - rows[0].start for row in of_mode]
                events[f"{mode}_{what}"] = [t / pipeline.ticks.per_unit + 0.5 for t in times]
            if numbered:
                events[f"{mode}_minibatch"] = [row.microbatch for row in of_mode]
                stages = pipeline.hosted[0][rank]
                events[f"{mode}_chunk"] = [stages.index(row.stage) for row in of_mode]
        ranks.append(events)
    return ranks


def written(folder: Path, schedule: Schedule, steps: int = 1, *, numbered: bool = False) -> Path:
    pipeline = schedule.pipeline
    config = {"pp_size": pipeline.num_devices, "vp_size": pipeline.num_chunks, "num_mbs": 4}
    (folder / "config.json").write_text(json.dumps(config))
    for rank, events in enumerate(dumped(schedule, numbered=numbered)):
        text = json.dumps({str(1 + step): events for step in range(steps)})
        (folder / f"pp_rank_{rank}.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("schedule", "numbered"),
    [
        (SCHEDULE, False),
        (SCHEDULE, True),
        (INTERLEAVED, False),
        (INTERLEAVED, True),
        (SPLIT, True),
        (MIXED, True),
        (IN_V, True),
    ],
    ids=["1f1b", "1f1b numbered", "interleaved", "interleaved numbered", "split", "mixed", "v"],
)
def test_a_perfect_step_is_read_back(schedule: Schedule, numbered: bool, tmp_path: Path) -> None:
    """Every operation in its place; both ways of a transfer take equally long: clocks are right."""
    run = read_run(written(tmp_path, schedule, numbered=numbered))
    per_ms = schedule.pipeline.ticks.per_unit
    begin = min(record.start for record in run.records)
    read = {(record.op, record.start - begin, record.end - begin) for record in run.records}
    rows = schedule.rows()
    assert read == {
        (row.op, *(round(time * 10**6 / per_ms) for time in (row.start, row.end))) for row in rows
    }
    assert run.uncertainty == pytest.approx(10**6 * float(schedule.pipeline.links[0][0][0]))
    assert run.reserved == (3.5, 2.5) and run.left_out is None


def test_the_first_of_several_iterations_is_left_out(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, SCHEDULE, steps=3))
    assert {record.step for record in run.records} == {2, 3} and run.left_out == 1


def test_a_simulation_has_one_clock(tmp_path: Path) -> None:
    """Its config.json has other names; starts of ranks that differ are no offsets of clocks."""
    folder = written(tmp_path, SCHEDULE)
    config = {"pp_size": 2, "vpp_size": 1, "micro_batches": 4}
    (folder / "config.json").write_text(json.dumps(config))
    run = read_run(folder)
    first = {
        record.device: record.start for record in run.records if record.op[:3:2] == (OpKind.F, 0)
    }
    assert first == {0: 500_000, 1: 500_000} and run.uncertainty == 0
    assert run.comments() == ["Times of Primus' simulator, in which transfers take no time."]


def test_clocks_are_in_the_middle_of_what_transfers_allow() -> None:
    """F ends at 4 and begins at 1 of the other clock: 3 or more. B ends there at 9 and begins at
    18: 9 or less. In the middle is 6, and it may be off by 3."""
    records = [
        Record(OpKind.F, 0, 0, 0, 0, 4),
        Record(OpKind.F, 1, 0, 1, 1, 5),
        Record(OpKind.BW, 1, 0, 1, 5, 9),
        Record(OpKind.BW, 0, 0, 0, 18, 22),
    ]
    aligned_records = aligned(records)
    assert [record.start for record in aligned_records.records] == [0, 7, 11, 18]
    assert aligned_records.uncertainty == 3


def test_the_same_order_at_median_times_is_the_schedule_that_ran(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, SCHEDULE))
    where = Pipeline(stages=2, batches=4, placement=profile(run.records).hosts)
    step = median_step(measured_steps(run.records, where, 10**6))
    assert predicted(step).metrics.makespan_ticks == step.metrics.makespan_ticks


class TestCommand:
    def test_a_pipeline_file(self, tmp_path: Path) -> None:
        """The makespan of 1F1B: that of the pipeline that ran."""
        folder, out = written(tmp_path, SCHEDULE, steps=4), tmp_path / "out.yaml"
        done("profile --from primus -o", out, folder)
        text = out.read_text()
        assert "Clocks of ranks are aligned" in text and "3.5 2.5" in text
        output = done("eval 1f1b --json --config", out).json
        assert output["makespan"] == float(
            SCHEDULE.pipeline.ticks.time(SCHEDULE.metrics.makespan_ticks)
        )

    def test_a_measured_step_and_a_page(self, tmp_path: Path) -> None:
        folder, out = written(tmp_path, SCHEDULE, steps=4), tmp_path / "out.json"
        stderr = done("profile --from primus -o", out, folder).err
        assert "Clocks of ranks are aligned" in stderr
        assert len(read_schedule(out)[0]) == len(SCHEDULE)
        page = tmp_path / "out.html"
        stderr = done("profile --from primus -o", page, folder).err
        assert "measured, median of 3 steps" in stderr and "(the same throughput)" in stderr
        text = page.read_text()
        assert all(name in text for name in ("same order", "fastest step", "slowest step"))


def changed(path: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    """Change what a file of the folder holds."""

    def apply(folder: Path) -> None:
        document = json.loads((folder / path).read_text())
        change(document)
        (folder / path).write_text(json.dumps(document))

    return apply


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json: cannot be read"),
    "no rank": (lambda folder: (folder / "pp_rank_1.json").unlink(), "pp_rank_1.json: cannot be"),
    "no size": (changed("config.json", lambda d: d.pop("pp_size")), "config.json: pp_size: None"),
    "more microbatches": (
        changed("config.json", lambda d: d.update(num_mbs=5)),
        "pp_rank_0.json: iteration 1: fwd_start, fwd_end: 4 and 4, not 5",
    ),
    "no list": (changed("pp_rank_0.json", lambda d: d["1"].pop("bwd_end")), "bwd_end: None"),
    "no time": (
        changed("pp_rank_0.json", lambda d: d["1"]["fwd_end"].__setitem__(0, "soon")),
        "iteration 1: fwd_end: 'soon' is not a finite number",
    ),
    "other iterations": (
        changed("pp_rank_1.json", lambda d: d.update({"2": d["1"]})),
        "pp_rank_1.json: other iterations",
    ),
    "no iteration": (changed("pp_rank_0.json", lambda d: d.update(x={})), "'x' is no iteration"),
    "microbatch": (
        changed("pp_rank_0.json", lambda d: d["1"].update(fwd_minibatch=[0, 1, 2, 4])),
        "fwd_minibatch: 4 is not within 0 .. 3",
    ),
    "combined": (
        changed("pp_rank_0.json", lambda d: d["1"].update(bwd_start=d["1"]["fwd_start"])),
        "overlap; combined passes are not read",
    ),
}


@pytest.mark.parametrize(("breaks", "message"), BROKEN.values(), ids=BROKEN)
def test_defects_are_one_line(
    breaks: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    folder = written(tmp_path, SCHEDULE)
    breaks(folder)
    with pytest.raises(InputError, match=message.replace("(", r"\(")) as raised:
        read_run(folder)
    assert "\n" not in str(raised.value)


def test_interleaved_events_without_numbers_need_whole_groups(tmp_path: Path) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=4, chunks=2), "interleaved")
    folder = written(tmp_path, schedule)
    changed("config.json", lambda d: d.update(num_mbs=3))(folder)
    for rank in range(2):
        changed(
            f"pp_rank_{rank}.json",
            lambda d: [
                d["1"].update({key: times[:6]})
                for key, times in d["1"].items()
                if isinstance(times, list) and times
            ],
        )(folder)
    with pytest.raises(InputError, match="3 microbatches are no multiple of 2 ranks"):
        read_run(folder)


def test_one_folder_is_read(tmp_path: Path) -> None:
    ran = run("profile a b --from primus -o", tmp_path / "x.yaml")
    assert (ran.code, ran.out) == (2, "") and "one folder" in ran.err


@pytest.mark.parametrize(("example", "chunks", "length"), [("pp8", 1, 3245), ("pp8_vpp2", 2, 2874)])
def test_the_example_runs_of_primus(example: str, chunks: int, length: int, tmp_path: Path) -> None:
    """8 ranks, 64 layers, 16 microbatches, 20 iterations of which 19 count; lengths in ms.

    In a checkout of AMD-AGI/Primus (MIT): tools/visualization/pp_vis/pp_data_example.
    """
    examples = Path(primus_checkout.checkout()) / "tools/visualization/pp_vis/pp_data_example"
    read = read_run(examples / "gpu8_layer64_gbs16" / example)
    profiled = profile(read.records)
    assert (len(profiled.hosts), profiled.batches, profiled.steps) == (8 * chunks, 16, 19)
    pipeline = Pipeline(stages=len(profiled.hosts), batches=16, placement=profiled.hosts)
    step = measured(read.records, pipeline, MILLISECOND)
    assert round(step.makespan) == length
