"""Strategies of pairs, two routes and slices against published formulas and figures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ppopt import Pipeline, evaluate, verify
from ppopt.errors import InputError, NotApplicableError
from ppopt.problem.operation import OpKind
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options
from tests.tiers import first, slow

F, B, W, BW = OpKind
TIMES = [(1, 1, 1, 3), (1, 1, 1, 2), (2, 3, 2, 6), (3, 3, 3, 9), (3, 4, 2, 7)]
"""F, B, W and O, the time of a pair."""
F_AS_B = [(1, 1, 1, 3), (1, 1, 1, 2), (4, 4, 2, 10), (2, 2, 1, 5), (2, 2, 2, 5)]
"""The same, of equal F and B: where DualPipe's formula is exact."""


def pipe(p: int, m: int, times: tuple[int, int, int, int] = TIMES[0], **more: Any) -> Pipeline:
    f, b, w, pair = times
    return Pipeline(
        stages=p, batches=m, forward=f, backward_input=b, weight=w, overlap=pair, **more
    )


def idle(schedule: Schedule) -> list[Fraction]:
    figures = schedule.metrics
    return [
        schedule.pipeline.ticks.time(figures.makespan_ticks - busy) for busy in figures.busy_ticks
    ]


def makespan(schedule: Schedule) -> Fraction:
    return schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)


def peaks(schedule: Schedule) -> list[Fraction]:
    return [schedule.pipeline.ticks.memory(peak) for peak in schedule.metrics.peak_memory_ticks]


class TestDualPipe:
    @pytest.mark.parametrize(
        ("p", "m", "pair", "total", "waits"),
        [
            (8, 20, 3, 66, [6] * 8),
            (8, 20, 2, 52, [1, 2, 3, 3, 3, 3, 2, 1]),
            (4, 8, 3, 26, [2] * 4),
        ],
    )
    def test_figures_of_the_original(
        self, p: int, m: int, pair: int, total: int, waits: list[int]
    ) -> None:
        """Runs of DeepSeek's own order, F = B = W = 1."""
        schedule = evaluate(pipe(p, m, (1, 1, 1, pair)), "dualpipe")
        assert (makespan(schedule), idle(schedule)) == (total, waits)

    @pytest.mark.parametrize("times", F_AS_B)
    @pytest.mark.parametrize("p", [2, 4, slow(6), slow(8)])
    @pytest.mark.parametrize("extra", [0, 2, slow(8)])
    def test_largest_idle_and_memory(
        self, p: int, extra: int, times: tuple[int, int, int, int]
    ) -> None:
        """(p/2 - 1)(O + BW - 3 W); p + 1 activations (arXiv 2412.19437, table 2)."""
        _, b, w, pair = times
        schedule = evaluate(pipe(p, 2 * p + extra, times), "dualpipe")
        assert max(idle(schedule)) == (p // 2 - 1) * (pair + b + w - 3 * w)
        assert max(peaks(schedule)) == p + 1

    def test_static_memory_is_there_twice(self) -> None:
        """Device d holds stages d and p - 1 - d."""
        schedule = evaluate(pipe(4, 8, static=[1, 2, 4, 8]), "dualpipe")
        alone = evaluate(pipe(4, 8), "dualpipe")
        both = [peak - single for peak, single in zip(peaks(schedule), peaks(alone), strict=True)]
        assert both == [9, 6, 6, 9]

    def test_order_by_hand(self) -> None:
        """p = 4, m = 8, device 0: step 1 with n = 2, steps 2 to 8 with n = 1; route 1 has 4..7."""
        schedule = evaluate(pipe(4, 8), "dualpipe")
        rows = [row for row in schedule.rows() if row.device == 0]
        text = [
            ("+" if row.pair != ALONE and row.kind is not F else "") + str(row.op) for row in rows
        ]
        assert text == [
            *("0F0", "0F1"),
            *("0F2", "3F4"),
            *("3B4", "3W4", "3F5"),
            *("0F3", "+3BW5", "3F6", "+0BW0"),
            *("3BW6", "3F7", "+0BW1"),
            *("3BW7", "0B2"),
            *("0W2", "0B3"),
            "0W3",
        ]

    @pytest.mark.parametrize(
        ("p", "m", "message"),
        [
            (3, 6, "stages: 3 devices are odd; strategy dualpipe"),
            (4, 6, "batches: 6 do not fill strategy dualpipe on 4 devices; give at least 8"),
            (4, 9, "batches: 9 is odd; two routes"),
        ],
    )
    def test_refused(self, p: int, m: int, message: str) -> None:
        with pytest.raises(NotApplicableError) as caught:
            evaluate(pipe(p, m), "dualpipe")
        assert str(caught.value).startswith(message)


class TestDualPipeV:
    @pytest.mark.parametrize("times", F_AS_B)
    @pytest.mark.parametrize("p", [1, 2, 3, slow(4), slow(5)])
    @pytest.mark.parametrize("extra", [0, 1, slow(5)])
    def test_half_of_a_dualpipe(self, p: int, extra: int, times: tuple[int, int, int, int]) -> None:
        """(2p/2 - 1)(O + BW - 3 W) with the times of a chunk; 2p + 1 chunks of memory."""
        _, b, w, pair = times
        schedule = evaluate(pipe(p, 2 * p + extra, times, activation=2), "dualpipe-v")
        assert max(idle(schedule)) == Fraction((p - 1) * (pair + b + w - 3 * w), 2)
        assert max(peaks(schedule)) == min(2 * p + 1, 2 * (2 * p + extra))

    def test_too_few_microbatches(self) -> None:
        with pytest.raises(NotApplicableError, match="batches: 7 do not fill strategy dualpipe-v"):
            evaluate(pipe(4, 7), "dualpipe-v")


class TestChimera:
    @pytest.mark.parametrize("p", [2, 4, 6, 8])
    def test_makespan(self, p: int) -> None:
        """Slots of one length: 2m + p - 2 of them (arXiv 2107.06925, section 3.1); with BW = 2 F
        the critical path has p F and 2p - 2 BW (section 3.4)."""
        for units in (1, 2, 3):
            even = Pipeline(stages=p, batches=p * units, backward=1, weight=0)
            assert makespan(evaluate(even, "chimera")) == 2 * p * units + p - 2
        assert makespan(evaluate(Pipeline(stages=p, batches=p), "chimera")) == p + 2 * (2 * p - 2)

    @pytest.mark.parametrize("p", [2, 4, 6, 8])
    @pytest.mark.parametrize("units", [1, 2, 5])
    def test_memory(self, p: int, units: int) -> None:
        """From p/2 + 1 activations at the ends to p in the middle (table 2)."""
        peaks_of_devices = peaks(evaluate(Pipeline(stages=p, batches=p * units), "chimera"))
        assert (min(peaks_of_devices), max(peaks_of_devices)) == (p // 2 + 1, p)
        assert peaks_of_devices == peaks_of_devices[::-1]

    @pytest.mark.parametrize("m", [2, 4, 6, 10, 14])
    def test_any_even_number_of_microbatches_runs(self, m: int) -> None:
        assert len(evaluate(Pipeline(stages=4, batches=m), "chimera")) == 2 * 4 * m

    def test_refused(self) -> None:
        with pytest.raises(NotApplicableError, match="stages: 3 devices are odd; strategy chimera"):
            evaluate(Pipeline(stages=3, batches=6), "chimera")
        with pytest.raises(NotApplicableError, match="placement: the list contradicts"):
            evaluate(Pipeline(stages=2, batches=4, placement=[1, 0]), "chimera")


class TestOverlapped1F1B:
    @pytest.mark.parametrize("times", TIMES)
    @pytest.mark.parametrize("p", [1, 2, 3, slow(5)])
    @pytest.mark.parametrize("extra", [0, 1, slow(6)])
    def test_makespan_and_memory(
        self, p: int, extra: int, times: tuple[int, int, int, int]
    ) -> None:
        """p(F + BW) + (m - 1) O: the last device waits for its first F alone."""
        f, b, w, pair = times
        m = 2 * p - 1 + extra
        schedule = evaluate(pipe(p, m, times), "1f1b-overlap")
        assert makespan(schedule) == p * (f + b + w) + (m - 1) * pair
        assert peaks(schedule) == [min(m, 2 * (p - i)) for i in range(p)]

    @pytest.mark.parametrize("times", TIMES)
    @pytest.mark.parametrize("v", [1, 2, 3])
    def test_interleaved_makespan(self, v: int, times: tuple[int, int, int, int]) -> None:
        """(p - 1 + w)(F + BW) + (m v - w) O for chunks, w = (v - 1) p + 1."""
        f, b, w, pair = times
        p, m = 3, 12
        schedule = evaluate(pipe(p, m, times, chunks=v), "interleaved-overlap")
        warm = (v - 1) * p + 1
        expected = (p - 1 + warm) * (f + b + w) + (m * v - warm) * pair
        assert makespan(schedule) == Fraction(expected, v)

    @pytest.mark.parametrize("group", first(5, range(3, 13)))
    def test_group_sizes_run_or_are_refused(self, group: int) -> None:
        for m in range(1, 10):
            pipeline = Pipeline(stages=3, batches=m, chunks=2)
            if m <= group or m % group == 0 or m % group >= 3:
                evaluate(pipeline, "interleaved-overlap", options=Options(group_size=group))
            else:
                with pytest.raises(NotApplicableError, match=f"group_size: {group} deadlocks"):
                    evaluate(pipeline, "interleaved-overlap", options=Options(group_size=group))


class TestSeq1F1B:
    @pytest.mark.parametrize("p", [1, 2, 3, 5])
    @pytest.mark.parametrize("k", [1, 2, 3])
    @pytest.mark.parametrize("m", [1, 2, 7])
    def test_makespan_and_memory(self, p: int, k: int, m: int) -> None:
        """(m k + p - 1)(F + BW) / k; min(m k, p - i + k - 1) slices on stage i."""
        schedule = evaluate(
            Pipeline(stages=p, batches=m, slices=k, forward=3, backward=5), "seq-1f1b"
        )
        assert makespan(schedule) == Fraction((m * k + p - 1) * 8, k)
        assert peaks(schedule) == [Fraction(min(m * k, p - i + k - 1), k) for i in range(p)]

    def test_one_slice_is_1f1b(self) -> None:
        schedule = evaluate(Pipeline(stages=3, batches=5, slices=1), "seq-1f1b")
        plain = evaluate(Pipeline(stages=3, batches=5), "1f1b")
        assert [row[:6] for row in schedule.rows()] == [row[:6] for row in plain.rows()]

    def test_order_by_hand(self) -> None:
        """Two stages, two microbatches, two slices: the last slice's backward comes first."""
        schedule = evaluate(Pipeline(stages=2, batches=2), "seq-1f1b")
        assert [str(row.op) for row in schedule.rows() if row.device == 1] == [
            *("1F0", "1F0s1", "1BW0s1", "1F1", "1BW0", "1F1s1", "1BW1s1", "1BW1"),
        ]

    def test_other_strategies_cut_nothing(self) -> None:
        with pytest.raises(NotApplicableError, match="slices: strategy 1f1b cuts no microbatch"):
            evaluate(Pipeline(stages=2, batches=2, slices=2), "1f1b")
        with pytest.raises(NotApplicableError, match="routes: 2 contradicts strategy 1f1b"):
            evaluate(Pipeline(stages=2, batches=2, routes=2), "1f1b")


class TestPairTimes:
    def test_default_is_the_sum(self) -> None:
        """Without a time of their own, F and BW as one take what they take one by one."""
        pipeline = Pipeline(stages=3, batches=7, forward=[2, 3, 4], backward=[5, 7, 6])
        schedule = evaluate(pipeline, "1f1b-overlap")
        for row in schedule.rows():
            if row.pair != ALONE:
                assert schedule.pipeline.ticks.time(row.end - row.start) == (7, 10, 10)[row.stage]

    def test_unequal_stages_save_the_smaller_saving(self) -> None:
        """Stages 0 and 3 save 1 and 2 of 3 + 6: F of either with BW of the other takes 8."""
        pipeline = Pipeline(stages=4, batches=8, forward=3, backward=6, overlap=[8, 9, 9, 7])
        schedule = evaluate(pipeline, "dualpipe")
        pairs = [row for row in schedule.rows() if row.device == 0 and row.pair != ALONE]
        assert {schedule.pipeline.ticks.time(row.end - row.start) for row in pairs} == {8}

    @pytest.mark.parametrize("kind", [B, BW])
    def test_a_pair_takes_no_less_than_the_longer(self, kind: OpKind) -> None:
        ticks = Pipeline(stages=1, batches=2, forward=3, backward=4, overlap=4).ticks
        per_unit = ticks.per_unit
        assert ticks.pair_time(0, kind, 0) == (4 if kind is BW else 3) * per_unit

    def test_a_measured_pair_may_be_shorter_than_its_parts(self) -> None:
        """F with B takes no less than the longer of both, unless F with BW does."""
        ticks = Pipeline(stages=1, batches=2, forward=3, backward=8, weight=6, overlap=4).ticks
        assert [ticks.pair_time(0, kind, 0) for kind in (B, BW)] == [3, 4]
        ticks = Pipeline(stages=1, batches=2, forward=3, backward=8, weight=6, overlap=2).ticks
        assert [ticks.pair_time(0, kind, 0) for kind in (B, BW)] == [2, 2]

    def test_two_stages_take_no_less_than_the_shortest_of_three(self) -> None:
        """The stages save 7 and 6. F = 1 with BW = 1 would take 2 - 6; both alone take 1, and the
        pairs stated 2 and 3. F = 8 with BW = 8 takes 16 - 6."""
        pipeline = Pipeline(stages=2, batches=2, forward=[1, 8], backward=[8, 1], overlap=[2, 3])
        times = [pipeline.ticks.pair_time(0, BW, 1), pipeline.ticks.pair_time(1, BW, 0)]
        assert list(map(pipeline.ticks.time, times)) == [1, 10]

    def test_a_matrix_says_the_time_of_every_pair(self) -> None:
        """F of a stage by row, BW by column; recompute of the BW comes on top."""
        pipeline = Pipeline(stages=2, batches=2, overlap=[[2, 5], [7, 3]], recompute_time=[0, 1])
        times = [
            pipeline.ticks.pair_time(first, BW, second) for first in (0, 1) for second in (0, 1)
        ]
        assert times == [2, 6, 7, 4]

    def test_chunks_and_slices_cut_a_matrix(self) -> None:
        pipeline = Pipeline(stages=2, batches=2, chunks=2, slices=2, overlap=[[4, 8], [12, 16]])
        times = tuple(map(tuple, pipeline.costs.overlap))
        assert times == ((1, 2, 1, 2), (3, 4, 3, 4)) * 2

    @pytest.mark.parametrize(
        ("overlap", "message"),
        [
            (0, "overlap: stage 0: 0 is not above 0"),
            ([2, 0], "overlap: stage 1: 0 is not above 0"),
            (-1, "overlap: -1 is negative"),
            ([[1, 2], [0, 1]], "overlap: F of stage 1 and BW of stage 0: 0 is not above 0"),
            ([[1, 2], [-1, 1]], "overlap: -1 is negative"),
            ([[1, 2]], "overlap: a matrix must be 2 x 2, one row per stage of F"),
            ([[1, 2], [3]], "overlap: a matrix must be 2 x 2, one row per stage of F"),
            ([[1, 2], 3], "overlap: 3 is not a list"),
            ([1, 2, 3], "overlap: has 3 entries for 2 stages"),
        ],
    )
    def test_other_times_are_refused(self, overlap: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            Pipeline(stages=2, batches=2, overlap=overlap)

    @pytest.mark.parametrize("times", [2, [[2, 1], [3, 2]]])
    @pytest.mark.parametrize(
        "strategy", ["dualpipe", "dualpipe-v", "1f1b-overlap", "interleaved-overlap"]
    )
    def test_strategies_with_pairs_shorter_than_their_parts(
        self, strategy: str, times: Any
    ) -> None:
        """Pairs take what is stated, where BW alone takes 4; the verifier agrees."""
        pipeline = Pipeline(stages=2, batches=6, backward=4, overlap=times)
        schedule = evaluate(pipeline, strategy)
        assert verify(schedule) == []
        pairs = [row for row in schedule.rows() if row.pair != ALONE and row.op.kind is BW]
        assert pairs
        ticks, longest = schedule.pipeline.ticks, Fraction(4, schedule.pipeline.num_chunks)
        assert all(ticks.time(row.end - row.start) < longest for row in pairs)
