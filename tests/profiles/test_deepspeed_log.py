"""Logs of DeepSpeed's pipeline engine: one rank or all, steps per report, defects."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats.config import pipeline_of, read_config
from ppopt.profiles.readers.deepspeed import parse_log
from tests.cli.cli_run import done


def report(rank: int, forward: float, backward: float, head: str = "rank=") -> str:
    """As `timers.log` of the pipeline engine prints (deepspeed/utils/timer.py)."""
    rank_text = f"rank={rank} " if head == "rank=" else f"[Rank {rank}] " if head else ""
    prefix = "[2026-01-05 02:58:14,298] [INFO] [logging.py:68:log_dist] [Rank 0] " if head else ""
    return (
        f"{prefix}{rank_text}time (ms) | batch_input: 20.95 | forward_microstep: {forward:.2f} | "
        f"backward_microstep: {backward + 1:.2f} | backward_inner_microstep: {backward:.2f} | "
        "backward_allreduce_microstep: 1.00 | step_microstep: 12.50\n"
        f"{prefix}{rank_text}time (ms) | forward: {forward:.2f} | backward: {backward + 1:.2f}\n"
        f"{prefix}{rank_text}time (ms) | pipe_send_output: 4.17 | pipe_recv_grad: 172.56\n"
    )


def steps(number: int) -> str:
    return f"steps: {number} loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601\n"


@pytest.mark.parametrize("head", ["rank=", "[Rank", ""])
def test_the_times_of_one_rank_are_those_of_every_stage(head: str) -> None:
    """Two reports of 20 steps with 4 microbatches each: the median of 3.2 and 4.8 s is 50 ms."""
    text = steps(20) + report(0, 3200, 8000, head) + steps(40) + report(0, 4800, 8000, head)
    times = parse_log(text, "log", 3, 4)
    assert times.forward == (50,) * 3
    assert times.backward == (100,) * 3
    assert times.reports == 2
    assert times.unknown == "the log has the times of rank 0, and every stage has them."
    assert times.comments == ("A report covers 20 steps, as the numbers of steps in the log say.",)


def test_the_slowest_rank_of_a_device_counts() -> None:
    text = steps(10) + "".join(report(rank, 400 + 100 * rank, 800) for rank in range(4)) + steps(20)
    times = parse_log(text, "log", 2, 10)
    assert times.forward == (5, 7)
    assert times.unknown is None


def test_without_numbers_of_steps_ten_are_assumed() -> None:
    times = parse_log(report(0, 1000, 2000), "log", 1, 10)
    assert times.forward == (10,)
    assert "10 are assumed" in times.comments[0]
    numbered = parse_log(
        "[Rank 0] step=10, skipped=0\nstep=15\n" + report(0, 500, 500), "log", 1, 1
    )
    assert numbered.forward == (Fraction(100),)


REAL = """\
steps: 20 loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601
[INFO] [logging.py:68:log_dist] [Rank 0] rank=0 time (ms) | pipe_send_output: 41.71 | pipe_recv_grad: 1725.64
[INFO] [logging.py:68:log_dist] [Rank 0] step=30, skipped=0, lr=[0.001], mom=[[0.9, 0.999]]
[INFO] [logging.py:68:log_dist] [Rank 0] rank=0 time (ms) | batch_input: 209.59 | forward_microstep: 2785.85 | backward_microstep: 5153.22 | backward_inner_microstep: 5153.13 | backward_allreduce_microstep: 0.00 | step_microstep: 12.50
"""  # noqa: E501
"""Lines of github.com/deepspeedai/DeepSpeed/issues/2264, DeepSpeed at ebed51df: DeepSpeedExamples'
AlexNet on four A40. Ten steps a report; its dates are left out."""


def test_a_public_log() -> None:
    """Eight microbatches a step: 2785.85 / 80 ms."""
    times = parse_log(REAL, "log", 4, 8)
    assert times.forward == (Fraction("34.823125"),) * 4
    assert times.backward == (Fraction("64.414125"),) * 4
    assert times.comments == ("A report covers 10 steps, as the numbers of steps in the log say.",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "holds no times of forward_microstep and .*; formats that are read: deepspeed"),
        (report(0, 0, 5), "timer forward_microstep of device 0 is 0"),
        ("time (ms) | forward_microstep: 3.00\n", "timer backward_inner_microstep is missing"),
        (report(0, 1, 1) + report(1, 1, 1), "has 2 ranks, which 3 devices cannot share equally"),
    ],
)
def test_defects_are_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^log: .*{message}"):
        parse_log(text, "log", 3, 4)


def test_a_log_becomes_a_pipeline_file(tmp_path: Path) -> None:
    """The format is that of the content; with layers the file is a model."""
    log, out = tmp_path / "run.log", tmp_path / "p.yaml"
    log.write_text(steps(10) + report(0, 400, 800) + steps(20))
    line = "profile --stages 2 --batches 4"
    assert "rank 0, and every stage has them" in done(line, log, "-o", out).err
    assert pipeline_of(read_config(out)).costs.forward == (10, 10)
    assert 'source: "DeepSpeed\'s log"' in out.read_text()
    done(f"{line} --layers 4,4", log, "-o", out)
    assert len(pipeline_of(read_config(out)).model) == 10
