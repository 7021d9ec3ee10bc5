"""The native schedule file: what is written comes back, and nothing else is let in."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppopt.formats.schedule_json import (
    dumps,
    loads,
    read_schedule,
    schedule_from_object,
    schedule_to_object,
)
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule, verify
from tests.factories import schedules
from tests.formats.schedule_text import OPTIONAL, TWO_BY_ONE, document, refuse, tiny
from tests.tiers import examples


def one_after_another(pipeline: Pipeline, origin: Origin | None = None) -> Schedule:
    """A complete schedule in which no two operations run at once."""
    ticks = pipeline.ticks
    longest = max((time for row in (*ticks.down, *ticks.up) for time in row), default=0)
    rows, now = [], 0
    for microbatch in range(pipeline.batches):
        for kinds in ([OpKind.F], [OpKind.B, OpKind.W]):
            order = range(pipeline.num_stages)
            for stage in order if kinds == [OpKind.F] else reversed(order):
                device = pipeline.device(stage, microbatch)
                for kind in kinds:
                    end = now + ticks.durations[kind][stage]
                    rows.append((kind, stage, microbatch, device, now, end))
                    now = end
                now += longest
    return Schedule.from_rows(pipeline, rows, origin)


class TestWriting:
    def test_text(self) -> None:
        assert dumps(tiny()) == TWO_BY_ONE

    def test_object_is_the_text(self) -> None:
        assert json.loads(TWO_BY_ONE) == document()

    def test_order_of_rows_does_not_matter(self) -> None:
        schedule = tiny()
        rows = list(schedule.rows())[::-1]
        assert dumps(Schedule.from_rows(schedule.pipeline, rows, schedule.origin)) == TWO_BY_ONE

    def test_name_is_ascii_in_the_file(self) -> None:
        schedule = one_after_another(Pipeline(stages=1, batches=1, name='Modell "ä"\n\u2028'))
        assert dumps(schedule).isascii()
        assert loads(dumps(schedule), "x")[0] == schedule

    def test_an_incomplete_schedule_claims_nothing(self) -> None:
        pipeline = Pipeline(stages=2, batches=1)
        for rows in ([], [(0, 0, 0, 0, 0, 1)], [(0, 0, 0, 0, 0, 1), (0, 7, 0, 1, 1, 2)]):
            schedule = Schedule.from_rows(pipeline, rows)
            assert schedule_to_object(schedule)["claims"] == {}
            assert loads(dumps(schedule), "x") == (schedule, {})

    def test_claims_survive_the_verifier(self) -> None:
        schedule = one_after_another(Pipeline(stages=3, batches=2, p2p="0.7", memory_b=-1))
        loaded, claims = loads(dumps(schedule), "x")
        assert set(claims) == {
            "makespan",
            "device_span",
            "busy",
            "peak_memory",
            "bubble_overhead",
            "objective",
            "bubble_rate",
        }
        assert verify(loaded, claims) == []


fractions = st.fractions(min_value=Fraction(1, 4), max_value=9, max_denominator=6)
speeds = st.sampled_from([Fraction(1, 4), Fraction(2, 3), 1, Fraction(6, 5), Fraction(5, 2)])
"""Few numerators: a tick divides every time by every speed, and 2^53 ticks are refused."""
hundredths = st.integers(1, 900).map(lambda value: Fraction(value, 100))


def per_entry(count: int, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.lists(values, min_size=count, max_size=count)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    where = draw(
        st.sampled_from([None, "linear", "interleaved", "v"])
        | st.permutations([0, 0, 1, 2]).map(tuple)
    )
    listed = isinstance(where, tuple)
    stages = 4 if listed else draw(st.integers(1, 4))
    devices = 3 if listed else stages
    chunked = not listed and where != "linear"
    link = st.integers(0, 20).map(lambda value: Fraction(value, 10))
    matrix = st.lists(st.lists(link, min_size=devices, max_size=devices), min_size=devices)
    p2p: Any = draw(link if devices > 1 else st.just(0))
    if draw(st.booleans()):
        rows = draw(matrix.map(lambda rows: rows[:devices]))
        p2p = [[0 if i == j else rows[i][j] for j in range(devices)] for i in range(devices)]
    return Pipeline(
        stages=stages,
        batches=2 * draw(st.integers(1, 3)),
        chunks=draw(st.none() | st.integers(1, 3)) if chunked else None,
        placement=where,
        forward=draw(per_entry(stages, fractions)),
        backward=draw(st.none() | per_entry(stages, hundredths.map(lambda value: value + 9))),
        weight=draw(st.none() | per_entry(stages, st.just(Fraction("0.1234567")))),
        p2p=p2p,
        activation=draw(per_entry(stages, fractions)),
        memory_b=draw(per_entry(stages, st.fractions(Fraction(-1, 4), 2, max_denominator=4))),
        static=draw(per_entry(stages, fractions)),
        workspace=draw(st.none() | per_entry(stages, fractions)),
        weight_workspace=draw(st.none() | per_entry(stages, fractions)),
        recompute_time=draw(st.none() | per_entry(stages, fractions)),
        kept=draw(st.none() | st.just(0)),
        mem_limit=draw(
            st.none() | st.just("1f1b") | fractions
            | st.lists(fractions, min_size=devices, max_size=devices)
        ),
        **draw(_routes_and_speeds(devices)),
        name=draw(st.text(max_size=5)),
    )  # fmt: skip


@st.composite
def _routes_and_speeds(draw: st.DrawFn, devices: int) -> dict[str, Any]:
    """Two routes need devices of one speed, in pairs."""
    if draw(st.booleans()):
        return {"routes": 2, "device_speed": draw(speeds)}
    return {"device_speed": draw(per_entry(devices, speeds))}


class TestRoundTrip:
    @given(schedules.schedules(schedules.pipelines(min_devices=2)))
    @examples(12)
    def test_pairs_slices_and_routes(self, schedule: Schedule) -> None:
        """Where there are any, every row has route, slice and pair; else none has."""
        loaded, claims = loads(dumps(schedule), "x")
        assert loaded == schedule
        assert verify(loaded, claims) == []
        pipeline = schedule.pipeline
        more = pipeline.routes > 1 or pipeline.num_slices > 1 or (schedule.pair >= 0).any()
        rows = schedule_to_object(schedule)["ops"]
        assert {len(row) for row in rows} == {9 if more else 6}
        if more:
            for row in rows:
                assert row[3] == pipeline.hosts[row[6]][row[1]]
                partners = [partner for partner in rows if partner[8] == row[8] is not None]
                assert len(partners) in (0, 2)

    @given(pipelines(), st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3)))
    @examples(15)
    def test_schedules(self, pipeline: Pipeline, extra: dict[str, Any]) -> None:
        origin = Origin(strategy="hand", value=Fraction(3, 2), unknown_members={"note": extra})
        schedule = one_after_another(pipeline, origin)
        loaded, claims = loads(dumps(schedule), "x")
        assert loaded == schedule
        assert loaded.pipeline.ticks == pipeline.ticks
        assert loaded.origin == origin
        assert claims == schedule_to_object(schedule)["claims"]
        assert dumps(loaded) == dumps(schedule)

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                *[st.integers(-1, 4)] * 3,
                *[st.integers(-(2**62), 2**62) | st.integers(0, 99)] * 2,
            ),
            max_size=8,
        )
    )
    @example([(OpKind.BW, 3, 4, 0, 0, 1), *((OpKind.F, 0, 0, device, 0, 1) for device in range(4))])
    @examples(25)
    def test_rows_that_are_no_schedule(self, rows: list[tuple[int, ...]]) -> None:
        """The reader vouches for the form alone; what is wrong with it, the verifier says."""
        schedule = Schedule.from_rows(Pipeline(stages=4, batches=2), rows)
        object_ = schedule_to_object(schedule) | {"claims": {}}
        assert schedule_from_object(object_)[0] == schedule

    def test_rounded_input_is_remembered(self) -> None:
        pipeline = Pipeline(stages=1, batches=1, forward="0.1234567", static="1e-7")
        assert pipeline.rounded == ("forward", "static")
        loaded, _ = loads(dumps(one_after_another(pipeline)), "x")
        assert loaded.pipeline == pipeline

    @given(schedules.schedules(schedules.by_boundary()))
    @examples(10)
    def test_delays_per_boundary(self, schedule: Schedule) -> None:
        loaded, claims = loads(dumps(schedule), "x")
        assert loaded == schedule
        assert verify(loaded, claims) == []

    def test_p2p_of_one_device(self) -> None:
        schedule = one_after_another(Pipeline(stages=1, batches=2, p2p=0.3))
        loaded, _ = loads(dumps(schedule), "x")
        assert loaded == schedule

    @pytest.mark.parametrize("placement", [None, "v", "interleaved", (0, 1, 1)])
    def test_a_matrix_of_pair_times(self, placement: Any) -> None:
        """As it was given: cut by chunks and slices under a named placement."""
        size = 3 if isinstance(placement, tuple) else 2
        matrix = [
            [Fraction(1 + row + 3 * column, 3) for column in range(size)] for row in range(size)
        ]
        pipeline = Pipeline(
            stages=size, batches=2, placement=placement, slices=2, overlap=matrix, recompute_time=1
        )
        loaded, _ = loads(dumps(one_after_another(pipeline)), "x")
        assert loaded.pipeline == pipeline
        assert loaded.pipeline.overlap == tuple(map(tuple, matrix))

    def test_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(TWO_BY_ONE, encoding="utf-8")
        schedule, claims = read_schedule(path)
        assert schedule == tiny()
        assert claims["makespan"] == 15
        assert verify(schedule, claims) == []

    def test_many_operations(self) -> None:
        schedule = one_after_another(Pipeline(stages=8, batches=400))
        assert loads(dumps(schedule), "x")[0] == schedule


class TestForeignFiles:
    def test_what_may_be_left_out(self) -> None:
        file = document()
        del file["origin"], file["claims"]
        for key in OPTIONAL:
            del file["pipeline"][key]
        schedule, claims = schedule_from_object(file)
        assert claims == {}
        assert schedule.origin == Origin()
        assert schedule.pipeline.ticks == tiny().pipeline.ticks
        assert schedule.pipeline.placement == (0, 1)
        assert schedule.pipeline.limits == (3, 3)

    def test_finer_ticks_than_needed(self) -> None:
        file = document()
        finer = {"ticks_per_unit": 3, "memory_ticks_per_unit": 5}
        for key, factor in finer.items():
            file[key] *= factor
        pipeline = file["pipeline"]
        for key in ("forward_times", "backward_times", "weight_times", "input_times"):
            pipeline[key] = [3 * value for value in pipeline[key]]
        pipeline["p2p_time"] *= 3
        for key in ("activation", "memory_b", "static", "mem_limit"):
            pipeline[key] = [5 * value for value in pipeline[key]]
        claims = file["claims"]
        for key, factor in (("busy", 3), ("peak_memory", 5)):
            claims[key] = [factor * value for value in claims[key]]
        claims["makespan"] *= 3
        claims["device_span"] *= 3
        file["ops"] = [[*op[:4], 3 * op[4], 3 * op[5]] for op in file["ops"]]
        (schedule, claims), (coarse, _) = map(schedule_from_object, (file, document()))
        time, memory = coarse.pipeline.grid
        assert schedule.pipeline.grid == (3 * time, 5 * memory)
        assert (schedule.makespan, schedule.peak_memory) == (coarse.makespan, coarse.peak_memory)
        assert verify(schedule, claims) == []
        claims["makespan"] += 2
        assert [violation.rule for violation in verify(schedule, claims)] == [Rule.CLAIM]

    def test_starts_finer_than_the_ticks_of_the_costs(self) -> None:
        """Everything takes 1 and begins half a unit later than it must: half units are kept."""
        pipeline = Pipeline(stages=2, batches=1, forward=1, backward=2, weight=1)
        file = schedule_to_object(one_after_another(pipeline))
        assert file["ticks_per_unit"] == 1
        fine = copy.deepcopy(file) | {"ticks_per_unit": 2}
        for key in ("forward_times", "backward_times", "weight_times", "input_times"):
            fine["pipeline"][key] = [2 * value for value in file["pipeline"][key]]
        fine["ops"] = [[*op[:4], 2 * op[4] + 1, 2 * op[5] + 1] for op in file["ops"]]
        fine["claims"] = {"makespan": 2 * file["claims"]["makespan"] + 1}
        schedule, claims = schedule_from_object(fine)
        assert schedule.pipeline.ticks.per_unit == 2
        assert verify(schedule, claims) == []
        assert schedule_to_object(schedule)["ops"] == fine["ops"]
        assert schedule_from_object(schedule_to_object(schedule))[0] == schedule
        fine["ops"][2][5] += 1
        assert Rule.DURATION in {
            violation.rule for violation in verify(schedule_from_object(fine)[0])
        }

    def test_uneven_chunks_need_the_list(self) -> None:
        schedule = one_after_another(Pipeline(stages=2, batches=1, placement="v"))
        file = schedule_to_object(schedule)
        file["pipeline"]["forward_times"][3] += 1
        file["claims"] = {}
        assert refuse(file) == (
            "pipeline: forward_times: differs between the chunks of a device; "
            "set placement_name and chunks to null"
        )
        file["pipeline"]["placement_name"] = None
        pipeline = schedule_from_object(file)[0].pipeline
        assert pipeline.placement == (0, 1, 1, 0)

    @pytest.mark.parametrize(
        ("op", "rule"),
        [
            (["F", 9, 0, 0, 0, 2], Rule.UNKNOWN),
            (["F", 0, -1, 0, 0, 2], Rule.UNKNOWN),
            (["F", 0, 0, 2**62, 0, 2], Rule.UNKNOWN),
            (["F", 0, 0, 0, -2, 0], Rule.START),
            (["F", 0, 0, 0, 0, 2**62], Rule.START),
            (["F", 1, 0, 0, 0, 2], Rule.DUPLICATE),
        ],
    )
    def test_what_is_no_schedule_is_left_to_the_verifier(self, op: list[Any], rule: Rule) -> None:
        file = document()
        file["ops"][0] = op
        schedule, claims = schedule_from_object(file)
        assert rule in {violation.rule for violation in verify(schedule, claims)}
