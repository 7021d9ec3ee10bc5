"""`ppopt order`: orders of microbatches, a line of JSON per step."""

from __future__ import annotations

import json
import subprocess
from itertools import permutations
from pathlib import Path
from random import Random
from signal import SIGINT
from subprocess import PIPE, Popen

import pytest

from ppopt import InputError, NotApplicableError, Pipeline, evaluate
from ppopt.cli.application import EXIT_UNKNOWN
from ppopt.studies.microbatch_order import MicrobatchOrders
from tests.cli.cli_run import ENTRY, Ran, done, run, split_command

PIPELINE = Pipeline(stages=3, batches=1, forward=[2, 3, 1], backward=[5, 4, 6], p2p=1)


def makespan(strategy: str, times: list[float]) -> float:
    pipeline = Pipeline(
        stages=3, batches=len(times), forward=[2, 3, 1], backward=[5, 4, 6], p2p=1,
        microbatch_times=times,
    )  # fmt: skip
    return float(evaluate(pipeline, strategy).makespan)


@pytest.mark.parametrize("strategy", ["1f1b", "gpipe", "zb-h1", "interleaved"])
def test_orders_are_those_of_least_makespan(strategy: str) -> None:
    """Against every order, each evaluated as a pipeline of its own."""
    random = Random(strategy)
    orders = MicrobatchOrders(PIPELINE, strategy)
    for batches in (1, 3, 4):
        times = [random.choice((0.5, 1, 1.25, 2, 3)) for _ in range(batches)]
        try:
            every = {
                order: makespan(strategy, [times[index] for index in order])
                for order in permutations(range(batches))
            }
        except NotApplicableError:
            with pytest.raises(NotApplicableError):
                orders.order(times)
            continue
        best = orders.order(times)
        assert best.makespan == every[best.order] == min(every.values())
        assert best.listed_makespan == every[tuple(range(batches))]
        assert best.lower_bound is not None and best.lower_bound <= best.makespan
        assert best.gain == best.listed_makespan / best.makespan - 1


def test_lengths_of_documents() -> None:
    """Attention takes a quarter of the times of a document of 8 tokens."""
    orders = MicrobatchOrders(PIPELINE, reference_tokens=8, attention_share=0.25)
    by_lengths = orders.of_lengths([[4, 4], 16, [8]])
    by_factors = orders.order([0.75 + 0.25 / 2, 0.75 * 2 + 0.25 * 4, 1])
    assert by_lengths == by_factors


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (7, "lengths: give a list with one entry per microbatch"),
        ([], "lengths: the list is empty; give one entry per microbatch"),
        ([[]], "lengths: microbatch 0 has no document"),
        ([1, [2, 0]], "lengths: microbatch 1: 0 is no number of tokens from 1 to 10"),
        ([1, 10**13], "lengths: microbatch 1: 10000000000000 is no number of tokens"),
        ([True], "lengths: microbatch 0: True is no number of tokens"),
        ([1, "a"], "lengths: microbatch 1: a is no number of tokens"),
    ],
)
def test_wrong_lengths_are_refused(lengths: object, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        MicrobatchOrders(PIPELINE, reference_tokens=8).of_lengths(lengths)


@pytest.mark.parametrize("times", [[], [1, 0], [1, float("nan")], [[1, 2]]])
def test_wrong_factors_are_refused(times: list[float]) -> None:
    with pytest.raises(InputError, match="times: give"):
        MicrobatchOrders(PIPELINE).order(times)


def test_traits_that_the_timing_does_not_know_are_refused() -> None:
    with pytest.raises(NotApplicableError, match="order: search knows no routes above 1"):
        MicrobatchOrders(Pipeline(stages=4, batches=4, routes=2, placement="linear"))


OPTIONS = "--stages 2 --reference-tokens 8192 --attention-share 0.5"


@pytest.mark.parametrize("strategy", ["chimera", "dualpipe"])
def test_strategies_of_two_routes_are_refused(strategy: str) -> None:
    """Their routes own their microbatches."""
    with pytest.raises(NotApplicableError, match=f"routes above 1; use another .* than {strategy}"):
        MicrobatchOrders(Pipeline(stages=4, batches=1), strategy)


def test_many_microbatches_take_the_orders_that_are_asked_for() -> None:
    """Neighbours are drawn from places that are near: there are too many to list all of them."""
    orders = MicrobatchOrders(Pipeline(stages=2, batches=1), evaluations=130)
    best = orders.order([1 + index % 7 for index in range(1500)])
    assert sorted(best.order) == list(range(1500))
    assert best.makespan <= best.listed_makespan


def test_a_line_per_step(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text("[[4096, 4096], 8192, 32768]\n\n[8192]\n")
    lines = [json.loads(line) for line in done(f"order {OPTIONS}", file).out.splitlines()]
    assert [sorted(line["order"]) for line in lines] == [[0, 1, 2], [0]]
    assert lines[1] == {"order": [0], "makespan": 6, "given": 6, "lower_bound": 6}
    assert lines[0]["makespan"] < lines[0]["given"]


def test_standard_input_is_answered_line_by_line() -> None:
    command = [*ENTRY, "order", "-", *split_command(OPTIONS)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for batches in (1, 2, 1):
            print(json.dumps([8192] * batches), file=process.stdin, flush=True)
            line = json.loads(process.stdout.readline())
            assert line["order"] == list(range(batches))
        process.stdin.close()
        assert process.wait() == 0


def test_a_signal_ends_the_command_between_lines() -> None:
    command = [*ENTRY, "order", "-", *split_command(OPTIONS)]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        print("[8192]", file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline())["order"] == [0]
        process.send_signal(SIGINT)
        assert process.wait() == EXIT_UNKNOWN


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[1, -2]", "line 2: lengths: microbatch 1: -2 is no number of tokens from 1 to 10^12"),
        ("[1,", "line 2: not JSON: Expecting value"),
        ("[8192", "line 2: not JSON: Expecting ',' delimiter"),
        ("[]", "line 2: lengths: the list is empty; give one entry per microbatch, as [4096]"),
    ],
)
def test_a_defective_line_is_one_line_of_error(line: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text(f"[8192]\n{line}\n")
    assert run(f"order {OPTIONS}", file) == Ran(2, "", f"error: {file}: {text}\n")


def test_a_defective_line_of_standard_input_is_named_once() -> None:
    command = [*ENTRY, "order", "-", *split_command(OPTIONS)]
    ran = subprocess.run(
        command, input="[8192]\n[8192\n", capture_output=True, text=True, check=False
    )
    assert ran.stderr == "error: standard input: line 2: not JSON: Expecting ',' delimiter\n"


def test_packed_documents_have_no_slices() -> None:
    """As `ppopt eval` says of a file with `microbatch_tokens`."""
    orders = MicrobatchOrders(
        Pipeline(stages=2, batches=1, slices=2), reference_tokens=8192, attention_share="0.4"
    )
    with pytest.raises(InputError, match="no two microbatches have the same slices"):
        orders.of_lengths([[1024, 7168], 8192])


def test_a_bound_is_no_higher_than_the_makespan_by_rounding() -> None:
    pipeline = Pipeline(
        stages=4, batches=1, forward=[4, 3, 1, 1], backward_input=[3, 4, 2, 5],
        weight=[1, 5, 5, 4], backward=[3, 8, 6, 7],
    )  # fmt: skip
    best = MicrobatchOrders(pipeline).order([0.3333, 0.1])
    assert best.lower_bound is not None
    assert best.lower_bound <= best.makespan
