"""Measurements of other tools: traces of torch.profiler, timers of Megatron-LM; `ppopt profile`."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from ppopt import Pipeline, Schedule, evaluate
from ppopt.errors import InputError
from ppopt.formats import schedule_json
from ppopt.formats.config import pipeline_of, read_config
from ppopt.formats.schedule_json import read_schedule
from ppopt.formats.torch_csv import LETTERS
from ppopt.problem.operation import ONCE, AuxiliaryKind, Op, OpKind
from ppopt.profiles.estimate import Record, divided, profile
from ppopt.profiles.measured_runs import measured
from ppopt.profiles.pipeline_file import notes
from ppopt.profiles.readers import megatron_timers, torch_profiler
from tests.cli.cli_run import done, json_of, run

SCHEDULE = evaluate(
    Pipeline(stages=2, batches=4, forward=[3, 5], backward=[8, 9], weight=[4, 3], p2p="0.25"),
    "zb-h1",
)
"""A unit is a millisecond here."""


def event(name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    shared = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": 7}
    return {**shared, "ts": start, "dur": length, **more}


def traces(schedule: Schedule) -> list[dict[str, Any]]:
    """What torch.profiler exports of a perfect run: an operation's range begins when the one
    before it ends, so that it holds the wait for its input; receives come first and are short."""
    per_unit = schedule.pipeline.ticks.per_unit
    contents = []
    for rank in range(schedule.pipeline.num_devices):
        events, free = [{"ph": "M", "name": "process_name", "args": {"name": "python"}}], 0.0
        for row in (row for row in schedule.rows() if row.device == rank):
            name = f"PP:{row.stage}{LETTERS[row.kind]}{row.microbatch}"
            end = 1000 * row.end / per_unit
            events.append(event(f"PP:{row.stage}RECV_F{row.microbatch}", free, 0.0))
            events.append(event(name, free, end - free))
            if row.kind is OpKind.F and row.stage + 1 < schedule.pipeline.num_stages:
                events.append(event(f"PP:{row.stage}SEND_F{row.microbatch}", end, 0.0))
            free = end
        events.append(event("ProfilerStep#0", 0.0, free))
        about = {"distributedInfo": {"rank": rank}, "baseTimeNanoseconds": 10**18}
        contents.append({**about, "traceEvents": events})
    return contents


def written(folder: Path, contents: list[dict[str, Any]]) -> list[Path]:
    paths = [folder / f"trace{index}.json" for index in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(json.dumps(content))
    return paths


class TestTraces:
    def test_waits_are_taken_off(self, tmp_path: Path) -> None:
        """A perfect run gives its pipeline back, whatever the order of the files."""
        paths = written(tmp_path, traces(SCHEDULE))
        profiled = profile(torch_profiler.read_traces(paths[::-1]).records)
        restored = Pipeline(stages=2, batches=4, **profiled.costs(10**6))
        assert restored.ticks == SCHEDULE.pipeline.ticks

    def test_a_folder_and_compressed_traces(self, tmp_path: Path) -> None:
        """Files of a folder are in the order of the numbers in their names."""
        schedule = evaluate(Pipeline(stages=11, batches=1), "gpipe")
        for rank, content in enumerate(traces(schedule)):
            del content["distributedInfo"]
            text = json.dumps(content)
            if rank % 2:
                (tmp_path / f"rank{rank}_trace.json").write_text(text)
            else:
                (tmp_path / f"rank{rank}_trace.json.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / "README.md").write_text("no trace")
        records = torch_profiler.read_traces([tmp_path]).records
        assert {(record.stage, record.device) for record in records} == {(n, n) for n in range(11)}

    def test_a_folder_without_traces(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("no trace")
        with pytest.raises(InputError, match=r"holds no file in \.json, \.json\.gz"):
            torch_profiler.read_traces([tmp_path])

    def test_a_cut_compressed_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json.gz"
        path.write_bytes(gzip.compress(json.dumps(traces(SCHEDULE)[0]).encode())[:-20])
        for content in (path.read_bytes(), b"{}"):
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"a\.json\.gz: not a whole gzip file"):
                torch_profiler.read_traces([path])

    def test_kernels_count_where_there_are_any(self) -> None:
        ran = [event("PP:0F0", 0, 5), event("PP:0B0", 5, 5)]
        kernels = [event(e["name"], e["ts"] + 2, 9, cat="gpu_user_annotation") for e in ran]
        trace = torch_profiler.parse_trace(json.dumps({"traceEvents": ran + kernels}), "t", 0)
        assert trace.records == [
            Record(OpKind.F, 0, 0, 0, 2000, 11000),
            Record(OpKind.BW, 0, 0, 0, 7000, 16000),
        ]

    def test_collectives_of_fsdp(self) -> None:
        """NCCL's kernels count where their launch is in the range, with the wait of the queue;
        gloo's operations where they begin in it. Others are not of the stage."""
        ran = [event("PP:0F0", 100, 5), event("PP:0B0", 200, 5)]
        ranges = [event("PP:0UNSHARD", 10, 20), event("PP:0REDUCE_GRAD", 300, 20)]
        empty = event("PP:1UNSHARD", 40, 20)
        launches, kernels = [], []
        for correlation, (launch, start, name) in enumerate(
            [
                (12, 50, "ncclDevKernel_AllGather_RING_LL"),
                (15, 70, "ncclDevKernel_AllGather_RING_LL"),
                (16, 10, "a copy"),
                (80, 95, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
            ]
        ):
            shared = {"args": {"correlation": correlation}}
            launches.append(event("cudaLaunchKernel", launch, 1, cat="cuda_runtime", **shared))
            kernels.append(event(name, start, 10, cat="kernel", **shared, tid=99))
        gloo = [event("gloo:all_reduce", 305, 40, tid=9), event("gloo:all_reduce", 400, 40, tid=9)]
        traced = [*ran, *ranges, empty, *launches, *kernels, *gloo]
        trace = torch_profiler.parse_trace(json.dumps({"traceEvents": traced}), "t", 0)
        ran_records, around = divided(trace.records)
        assert around == [
            Record(AuxiliaryKind.UNSHARD, 0, ONCE, 0, 50_000, 80_000),
            Record(AuxiliaryKind.GRADIENT_SYNC, 0, ONCE, 0, 305_000, 345_000),
        ]
        estimated = profile(trace.records)
        costs = estimated.costs(1000)
        assert (costs["unshard"], costs["gradient_sync"]) == ([30], [40])
        assert "Around the microbatches: medians." in notes(estimated)
        assert "Around the microbatches: medians." not in notes(profile(ran_records))

    @pytest.mark.parametrize("ranges", ["right", "short", "none"])
    def test_kernels_of_the_backwards_threads(self, ranges: str) -> None:
        """Autograd launches the kernels of a backward from a thread of its own. BW lasts the 4 ms
        from its first to its last kernel, not the 0.08 ms of a range that misses most of them.
        NCCL's kernels count for no operation."""
        ran = [event("PP:0F0", 0, 100), event("PP:0B0", 200, 100)]
        gpu = {"cat": "gpu_user_annotation", "tid": 99}
        drawn = [
            event("PP:0F0", 50, 2000, **gpu),
            event("PP:0B0", 2100, 4000 if ranges == "right" else 80, **gpu),
        ]
        launches, kernels = [], []
        for correlation, (launch, start, length, name) in enumerate(
            [
                (10, 50, 1000, "gemm"),
                (20, 1050, 1000, "gemm"),
                (30, 5000, 9000, "ncclDevKernel_SendRecv"),
                (150, 9000, 9000, "an optimizer's"),
                (210, 2100, 80, "gemm"),
                (220, 2200, 3900, "gemm"),
            ]
        ):
            shared = {"args": {"correlation": correlation}}
            thread = 8 if launch > 200 else 7
            launches.append(
                event("cudaLaunchKernel", launch, 5, cat="cuda_runtime", **shared, tid=thread)
            )
            kernels.append(event(name, start, length, cat="kernel", **shared, tid=99))
        traced = [*ran, *(drawn if ranges != "none" else []), *launches, *kernels]
        trace = torch_profiler.parse_trace(json.dumps({"traceEvents": traced}), "t", 0)
        assert [(r.start, r.end) for r in trace.records] == [
            (50_000, 2_050_000),
            (2_100_000, 6_100_000),
        ]

    def test_a_clock_that_counts_from_1970(self) -> None:
        """As in traces of deepseek-ai/profile-data: 1740461679479756 microseconds, in 2025."""
        ran = [event("PP:0F0", 1740461679479756, 100)]
        (record,) = torch_profiler.parse_trace(json.dumps({"traceEvents": ran}), "t", 0).records
        assert (record.start, record.end - record.start) == (1740461679479756000, 100_000)

    def test_kernels_without_launches(self) -> None:
        """A replayed CUDA graph: its kernels belong to no call within the operation."""
        ran = [event("PP:0F0", 0, 100), event("PP:0B0", 200, 100)]
        gpu = event("PP:0B0", 300, 900, cat="gpu_user_annotation")
        launch = event("cudaGraphLaunch", 150, 5, cat="cuda_runtime", args={"correlation": 1})
        with pytest.raises(
            InputError, match="PP:0B0 at 200: it has kernels, and none was launched"
        ):
            torch_profiler.parse_trace(json.dumps({"traceEvents": [*ran, gpu, launch]}), "t", 0)

    def test_an_operation_without_kernels(self) -> None:
        """The B of stage 0 does nothing, so that an accelerator has no range of it."""
        ran = [event(f"PP:0{letter}0", 10 * n, 1) for n, letter in enumerate("FIW")]
        kernels = [{**e, "dur": 9, "cat": "gpu_user_annotation"} for e in (ran[0], ran[2])]
        trace = torch_profiler.parse_trace(json.dumps({"traceEvents": ran + kernels}), "t", 0)
        lasting = {record.kind: record.end - record.start for record in trace.records}
        assert lasting == {OpKind.F: 9000, OpKind.B: 1000, OpKind.W: 9000}

    def test_a_rank_that_is_missing(self, tmp_path: Path) -> None:
        """The last one's too, which no gap among the stages tells of."""
        first, last = written(tmp_path, traces(SCHEDULE))
        with pytest.raises(InputError, match="stage 1 is missing, to which stage 0 sends"):
            profile(torch_profiler.read_traces([first]).records)
        with pytest.raises(InputError, match="stage 0 has no operation"):
            profile(torch_profiler.read_traces([last]).records)

    def test_steps_are_counted(self) -> None:
        ran = [event("PP:0F0", t, 1) for t in (0, 10, 20)]
        records_ = torch_profiler.parse_trace(json.dumps({"traceEvents": ran}), "t", 3).records
        assert [(record.step, record.device) for record in records_] == [(0, 3), (1, 3), (2, 3)]

    def test_an_operation_that_always_waits(self) -> None:
        """F of stage 1 began before its input was made every time: the shortest way from its
        input to its end counts, 4 and not 7."""
        ran = [
            Record(OpKind.F, 0, 0, 0, 0, 10),
            Record(OpKind.F, 0, 1, 0, 10, 20),
            Record(OpKind.F, 1, 0, 1, 0, 14),
            Record(OpKind.F, 1, 1, 1, 14, 27),
        ]
        fixed = torch_profiler.without_waits(ran)
        assert [(r.start, r.end) for r in fixed] == [(0, 10), (10, 20), (10, 14), (23, 27)]

    REFUSED: ClassVar[dict[str, tuple[Any, str]]] = {
        "no trace": ({"events": []}, "holds no traceEvents"),
        "a list": ([], "holds no traceEvents"),
        "events that are none": ({"traceEvents": {}}, "holds no traceEvents"),
        "nothing of ours": ({"traceEvents": [event("aten::mm", 0, 1)]}, "holds no operation of"),
        "PyTorch's Schedule1F1B": (
            {"traceEvents": [event("Forward 0", 0, 1)]},
            "Schedule1F1B and ScheduleGPipe do not; measure those with ppopt.torch.Profiler",
        ),
        "strange events": ({"traceEvents": [1, None, {"ph": "X", "name": 5}]}, "holds no oper"),
        "no time": ({"traceEvents": [event("PP:0F0", 0, 1, ts=None)]}, "PP:0F0: ts: None is not"),
        "a time in words": ({"traceEvents": [event("PP:0F0", 0, 1, dur="1")]}, "PP:0F0: dur: '1'"),
        "negative": ({"traceEvents": [event("PP:0F0", 0, -1)]}, "-1 is no time in microseconds"),
        "far away": ({"traceEvents": [event("PP:0F0", 1e300, 1)]}, "1e+300 is no time"),
        "rank": ({"traceEvents": [], "distributedInfo": {"rank": "0"}}, "rank: '0' is not"),
        "base": ({"traceEvents": [], "baseTimeNanoseconds": 0.5}, "baseTimeNanoseconds: 0.5 is"),
        "an event twice": (
            {"traceEvents": [event("PP:0F0", 7, 1), event("PP:0F0", 7, 1)]},
            "PP:0F0 at 7 occurs twice",
        ),
        "overlap": (
            {"traceEvents": [event("PP:(1F0;2B1)OVERLAP_F_B", 0, 1)]},
            "overlapped operations have no times of their own",
        ),
    }  # fmt: skip

    @pytest.mark.parametrize("name", REFUSED)
    def test_refused(self, name: str) -> None:
        content, message = self.REFUSED[name]
        with pytest.raises(InputError) as caught:
            torch_profiler.parse_trace(json.dumps(content), "t.json", 0)
        assert str(caught.value).startswith("t.json: ")
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        "text", ["", "{", "[1, NaN]", '{"traceEvents": [}', "\ud800"[:0] + "x"]
    )
    def test_no_json(self, text: str) -> None:
        with pytest.raises(InputError, match=r"^t\.json: "):
            torch_profiler.parse_trace(text, "t.json", 0)

    def test_a_rank_twice(self, tmp_path: Path) -> None:
        trace, _ = traces(SCHEDULE)
        with pytest.raises(InputError, match="rank 0 has been read already"):
            torch_profiler.read_traces(written(tmp_path, [trace, trace]))

    @pytest.mark.parametrize("seed", range(40))
    def test_damage_is_refused_or_harmless(self, seed: int, tmp_path: Path) -> None:
        """Values replaced at random: one line, or a profile."""
        random, (content, second) = Random(seed), traces(SCHEDULE)
        for _ in range(3):
            broken = random.choice(content["traceEvents"])
            broken[random.choice(["name", "ph", "ts", "dur"])] = random.choice(
                [None, "PP:0F9", -1, 1e99, [], {}, True, "X", 0]
            )
        try:
            profile(torch_profiler.read_traces(written(tmp_path, [content, second])).records)
        except InputError as error:
            message = str(error)
        else:
            message = ""
        assert message.isprintable()


LOG = """
 iteration       10/     100 | elapsed time per iteration (ms): 812.1 | loss scale: 1.0 |
times across ranks (ms):
  forward-backward:
     rank  0: 800.10
     rank  1: 800.20
  forward-compute:
     rank  0: 102.40
     rank  1: 110.00
  backward-compute:
     rank  0: 200.00
     rank  1: 210.40
 iteration       20/     100 | elapsed time per iteration (ms): 812.1 |
times across ranks (ms):
  forward-compute:
     rank  0: 102.40
     rank  1: 111.00
  backward-compute:
     rank  0: 200.00
     rank  1: 210.40
 iteration       30/     100 |
times across ranks (ms):
  forward-compute:
     rank  0: 990.00
     rank  1: 110.00
  backward-compute:
     rank  0: 202.00
     rank  1: 210.40
"""
"""As Megatron-LM's timers.py writes it (`_get_all_ranks_time_string`), the third report slow."""


MIN_MAX = """
 iteration       10/     100 | elapsed time per iteration (ms): 2410.0 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (2290.11, 2291.50)
    forward-compute ................................: (640.00, 672.00)
    backward-compute ...............................: (1280.00, 1408.00)
 iteration       20/     100 | elapsed time per iteration (ms): 2410.0 |
(min, max) time across ranks (ms):
    forward-compute ................................: (640.00, 674.00)
    backward-compute ...............................: (1280.00, 1408.00)
"""
"""As it writes the option `minmax`, the default (`_get_global_min_max_time_string`)."""
MAX = """
max time across ranks (ms):
    forward-compute ................................: 672.00
    backward-compute ...............................: 1408.00
"""
ONE_LINE = (
    " iteration       50/    1000 | elapsed time per iteration (ms): 661.3 |\n"
    "time (ms) | forward-compute: 92.25 | forward-recv: 65.68 | backward-compute: 239.82 | "
    "backward-params-all-reduce: 10.50 | optimizer: 42.31\n"
)
"""As `timers.log` of 2021 prints on the last rank (megatron/timers.py)."""


LOGGED = """\
INFO:megatron.core.timers:times across ranks (ms):
  forward-compute:
     rank  0: 16.73
     rank  1: 7.72
  backward-compute:
     rank  0: 5.92
     rank  1: 45.99
  forward-recv:
     rank  1: 11.46
INFO:megatron.core.timers:times across ranks (ms):
  forward-compute:
     rank  0: 8.07
     rank  1: 12.33
  backward-compute:
     rank  0: 5.68
     rank  1: 41.80
  forward-recv:
     rank  1: 15.98
"""
"""Of Megatron-LM at d98e8a64: its 1F1B on the CPU, two ranks and four microbatches; its timers are
logged, with a prefix."""


class TestTimers:
    def test_a_log_of_megatron(self) -> None:
        """Medians of two reports, for one of four microbatches: (16.73 + 8.07) / 8 and so on."""
        timers = megatron_timers.parse_log(LOGGED, "log", 2, 4)
        assert timers.forward == (Fraction("3.1"), Fraction("2.50625"))
        assert timers.backward == (Fraction("1.45"), Fraction("10.97375"))

    def test_medians(self) -> None:
        """Eight microbatches: 102.4 / 8 and 110 / 8 ms forward, 200 / 8 and 210.4 / 8 backward."""
        timers = megatron_timers.parse_log(LOG, "log", 2, 8)
        assert timers.forward == (Fraction("12.8"), Fraction("13.75"))
        assert timers.backward == (25, Fraction("26.3"))
        assert (timers.reports, timers.outliers) == (3, 1)

    @pytest.mark.parametrize(
        ("text", "forward", "backward", "message"),
        [
            (MIN_MAX, 673, 1408, "minimum is forward-compute 640, backward-compute 1280 ms a step"),
            (MAX, 672, 1408, "the maximum over ranks, and every stage has it."),
            (ONE_LINE, Fraction("92.25"), Fraction("239.82"), "the times of the last rank, and"),
        ],
    )
    def test_logs_without_times_of_ranks(
        self, text: str, forward: Fraction, backward: Fraction, message: str
    ) -> None:
        """Medians of the maximum, or of the last rank, for every stage; the log says no more."""
        timers = megatron_timers.parse_log(text, "log", 4, 8)
        assert timers.forward == (Fraction(forward) / 8,) * 4
        assert timers.backward == (Fraction(backward) / 8,) * 4
        assert timers.unknown is not None and message in timers.unknown
        assert megatron_timers.parse_log(text + LOG, "log", 2, 8).unknown is None

    def test_ranks_that_share_a_stage(self) -> None:
        """One device of two ranks: the slower one counts."""
        timers = megatron_timers.parse_log(LOG, "log", 1, 8)
        assert timers.forward == (Fraction("13.75"),)

    @pytest.mark.parametrize(
        ("text", "devices", "message"),
        [
            ("", 2, "holds no times of forward-compute and backward-compute"),
            (LOG.replace("backward-compute", "backward"), 2, "timer backward-compute is missing"),
            (LOG, 3, "timer forward-compute has 2 ranks, which 3 devices cannot share"),
            (LOG.replace("rank  1", "rank  7"), 2, "cannot share equally"),
            (LOG.replace("102.40", "0.00"), 2, "timer forward-compute of device 0 is 0"),
            ("times across ranks (ms):\n  forward-compute:\n     rank  0: nan\n", 1, "missing"),
            (MAX.replace("forward-compute", "forward"), 2, "timer forward-compute is missing"),
            (ONE_LINE.replace("backward-c", "c"), 2, "timer backward-compute is missing; log it"),
            (MAX.replace("672", "0"), 2, "timer forward-compute of device 0 is 0"),
        ],
    )
    def test_refused(self, text: str, devices: int, message: str) -> None:
        with pytest.raises(InputError) as caught:
            megatron_timers.parse_log(text, "log", devices, 8)
        assert str(caught.value).startswith("log: ")
        assert message in str(caught.value)


class TestCommand:
    def test_traces_to_a_pipeline(self, tmp_path: Path) -> None:
        paths = written(tmp_path, traces(SCHEDULE))
        out = tmp_path / "p.yaml"
        line = "profile --from torch-profiler --description 'two stages'"
        assert done(line, *paths, "-o", out) == (0, "", "")
        settings = read_config(out)
        assert settings["about"]["description"] == "two stages"
        assert settings["about"]["source"] == "torch-profiler"
        assert pipeline_of(settings).ticks.durations == SCHEDULE.pipeline.ticks.durations
        done("eval zb-h1 --quiet --config", out)

    def test_traces_to_a_measured_step(self, tmp_path: Path) -> None:
        paths = written(tmp_path, traces(SCHEDULE))
        done("profile --from torch-profiler", *paths, "-o", tmp_path / "m.json")
        measured_step, _ = read_schedule(tmp_path / "m.json")
        assert [row.op for row in measured_step.rows()] == [row.op for row in SCHEDULE.rows()]
        assert measured_step.pipeline.ticks.time(
            measured_step.metrics.makespan_ticks
        ) == SCHEDULE.pipeline.ticks.time(SCHEDULE.metrics.makespan_ticks)
        done("profile --from measured", tmp_path / "m.json", "-o", tmp_path / "q.yaml")
        restored = pipeline_of(read_config(tmp_path / "q.yaml"))
        assert restored.costs.forward == SCHEDULE.pipeline.costs.forward
        done("view", tmp_path / "m.json", "-o", tmp_path / "m.html")

    def test_a_measured_step_keeps_its_memory(self, tmp_path: Path) -> None:
        """What limits are judged by when it is solved again; `static` is there per stage."""
        memory = {"activation": [3, "1.5"], "memory_b": [0, "-0.25"], "static": [7, 8]}
        pipeline = Pipeline(stages=2, batches=3, **memory)
        schedule = evaluate(pipeline, "zb-h1")
        ran = [Record(*row[:4], 1000 * row.start, 1000 * row.end) for row in schedule.rows()]
        path = tmp_path / "m.json"
        path.write_text(schedule_json.dumps(measured(ran, pipeline, 1000)))
        done("profile --from measured", path, "-o", tmp_path / "p.yaml")
        restored = pipeline_of(read_config(tmp_path / "p.yaml")).costs
        for field in memory:
            assert getattr(restored, field) == getattr(pipeline.costs, field)

    def test_cut_traces_write_nothing(self, tmp_path: Path) -> None:
        """A trace that ends early; a rank left out; a measured step given twice."""
        contents = traces(SCHEDULE)
        contents[1]["traceEvents"] = [
            e for e in contents[1]["traceEvents"] if e["name"] not in ("PP:1W3", "PP:1I3")
        ]
        first, cut = written(tmp_path, contents)
        target = tmp_path / "m.json"
        done("profile --from torch-profiler", *written(tmp_path, traces(SCHEDULE)), "-o", target)
        out = tmp_path / "p.yaml"
        for source, message in (
            (("torch-profiler", first), "stage 1 is missing"),
            (("measured", target, target), f"m.json: the same step as {target}"),
        ):
            ran = run("profile -o", out, "--from", *source)
            assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
            assert message in ran.err
        cut.write_text(json.dumps(contents[1]))
        ran = run("profile --from torch-profiler -o", out, first, cut)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert "in step 0 stage 1 ran F of microbatch 3" in ran.err
        assert not out.exists()

    def test_times_of_the_backward_are_written_as_measured(self, tmp_path: Path) -> None:
        """F, BW, F, B, W of one stage; BW of 3 ms is below W of 5 ms, and is run as such."""
        names = (("0F0", 2), ("0B0", 3), ("0F1", 2), ("0I1", 0), ("0W1", 5))
        events = [event(f"PP:{name}", 10_000 * n, 1000 * ms) for n, (name, ms) in enumerate(names)]
        (path,) = written(tmp_path, [{"traceEvents": events}])
        out = tmp_path / "p.yaml"
        assert done("profile --from torch-profiler", path, "-o", out).err == ""
        costs = pipeline_of(read_config(out)).costs
        assert (costs.backward, costs.weight, costs.backward_input) == ((3,), (5,), (0,))

    def test_timers(self, tmp_path: Path) -> None:
        log, out = tmp_path / "log.txt", tmp_path / "p.yml"
        log.write_text(LOG)
        done("profile --from megatron-timers --stages 2 --batches 8", log, "-o", out)
        pipeline = pipeline_of(read_config(out))
        assert pipeline.costs.forward == (Fraction("12.8"), Fraction("13.75"))
        assert pipeline.costs.backward == (25, Fraction("26.3"))

    @pytest.mark.parametrize(("layers", "chunks"), [("8,8", 1), ("Et*4|(t*4|)*2t*4L", 2)])
    def test_timers_of_layers_can_be_planned(
        self, layers: str, chunks: int, tmp_path: Path
    ) -> None:
        """F of rank 0 takes 12.8 ms: 1.6 of each of its 8 layers; the head takes the rest."""
        log, out = tmp_path / "log.txt", tmp_path / "p.yaml"
        log.write_text(LOG)
        line = f"profile --from megatron-timers --stages 2 --batches 8 --layers '{layers}'"
        done(line, log, "-o", out)
        pipeline = pipeline_of(read_config(out))
        forward = [layer.forward for layer in pipeline.model.layers]
        assert forward[1:] == [Fraction("1.6")] * 16 + [Fraction("0.95")]
        assert (pipeline.num_devices, pipeline.num_chunks) == (2, chunks)
        line = f"plan --config {out} --stages 2 --batches 2 --chunks {chunks} --recompute none"
        assert json_of(f"{line} --time-limit 0.1 --workers 1")["chunks"] == chunks

    def test_a_missing_format_is_listed(self, tmp_path: Path) -> None:
        log = tmp_path / "log.txt"
        log.write_text("iteration 1: 2785.85 ms\n")
        for line in ("profile", "profile --from megatron-timers --stages 2 --batches 8"):
            ran = run(f"{line} {log} -o {tmp_path / 'p.yaml'}")
            assert ran.code == 2
            assert "deepspeed (a log of DeepSpeed with wall_clock_breakdown), measured (" in ran.err
            assert "timing-log" not in ran.err

    def test_what_timers_do_not_tell_is_in_the_file(self, tmp_path: Path) -> None:
        log, out = tmp_path / "log.txt", tmp_path / "p.yaml"
        log.write_text(MIN_MAX)
        ran = done("profile --from megatron-timers --stages 2 --batches 8", log, "-o", out)
        message = "times of single stages"
        assert message in ran.err
        assert f"# T{message[1:]}, and so their imbalance, are unmeasured: " in out.read_text()
        assert pipeline_of(read_config(out)).costs.backward == (176, 176)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "profile {log} --from megatron-timers -o {out}.yaml",
                "give --stages and --batches with",
            ),
            ("profile {log} --from torch-profiler --stages 2 --batches 2 -o {out}.yaml", "leave"),
            ("profile {log} --from torch-profiler -o {out}.csv", "end it in .yaml"),
            ("profile {log} --from torch-profiler -o {out}.yaml", "log.txt: line 2: not JSON"),
            ("profile {log} --from measured -o {out}.yaml", "log.txt: line 2: not JSON"),
            ("profile {plain} --from measured -o {out}.yaml", "a.json: the file holds no measured"),
            (
                "profile {log} --from megatron-timers --stages 2 --batches 8 -o {out}.json",
                "give one log, and a .yaml to write",
            ),
        ],
    )
    def test_refused(self, line: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "log.txt").write_text(LOG)
        done("eval 1f1b --stages 2 --batches 2 --quiet -o", tmp_path / "a.json")
        names = {"log": tmp_path / "log.txt", "plain": tmp_path / "a.json"}
        before = set(tmp_path.iterdir())
        ran = run(line.format(**names, out=tmp_path / "out"))
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert set(tmp_path.iterdir()) == before


def test_names_of_operations_are_pytorchs() -> None:
    """`PP:1I0` is a B of ours, and `PP:1B0` a BW."""
    ran = [event(f"PP:1{letter}0", 0, 1) for letter in "FIWB"]
    records_ = torch_profiler.parse_trace(json.dumps({"traceEvents": ran}), "t", 0).records
    kinds = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW)
    assert [record.op for record in records_] == [Op(kind, 1, 0) for kind in kinds]
