"""Sweeps: every row is done once, kept, verified when it is read, and none takes others down."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt.errors import InputError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver import child_process
from ppopt.solver import search as searching
from ppopt.solver import solve as solve_module
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.proof_scope import bound_scope
from ppopt.solver.choices import search_tasks
from ppopt.solver.engines.local import LocalEngine
from ppopt.studies import outcome
from ppopt.studies import solve_job as jobs
from ppopt.studies import sweep as sweeps
from ppopt.studies.records import StoredResult
from ppopt.studies.solve_job import SolveJob, instance_of, job_of
from ppopt.studies.storage import Storage
from ppopt.studies.sweep_grid import Base, Grid, base_of, grid_of
from ppopt.studies.task import SweepTask
from ppopt.verifier import verify
from tests.clock import SHORT, wait_until, work_clock
from tests.factories.sweeps import InThisProcess, done, values

PIPELINE = ppopt.Pipeline(stages=3, batches=4, forward=1, backward=2, weight=1)
HARD = ppopt.Pipeline(
    stages=8, batches=32, forward=10419, backward=17922, weight=7715, p2p=408, mem_limit=6
)
"""A pipeline that ends far from proof after any time."""
LAYERS = ppopt.Model([ppopt.Layer(forward=time, activation=1) for time in (3, 1, 4, 1, 5, 9, 2, 6)])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


def grid(axes: dict[str, list[Any]], **settings: Any) -> Grid:
    return grid_of(base_of(PIPELINE, settings), axes)


class TestGrid:
    def test_rows_are_in_order_the_last_setting_fastest(self) -> None:
        asked = grid({"batches": [2, 4], "mem-limit": [None, 3], "strategy": ["1f1b", "gpipe"]})
        rows = [tuple(row.overrides.values()) for row in asked.rows()]
        assert [*asked.rows()[0].overrides] == ["batches", "mem_limit", "strategy"]
        assert rows == [
            (batches, limit, strategy)
            for batches in (2, 4)
            for limit in (None, 3)
            for strategy in ("1f1b", "gpipe")
        ]

    def test_keys_are_names_of_flags(self) -> None:
        """`--backward` is the kind of backwards; `backward_times` are the times of BW."""
        asked = grid({"backward": ["split"], "backward-times": [3], "num_batches": [2]})
        (row,) = asked.rows()
        assert row.overrides == {"backward": "split", "backward_times": 3, "batches": 2}
        assert row.settings == {"backward_kind": "split", "backward": 3, "batches": 2}

    @pytest.mark.parametrize("shards", [1, 2, 3, 7])
    def test_shards_are_a_partition(self, shards: int) -> None:
        whole = grid({"batches": list(range(1, 6))})
        parts = [replace(whole, shard=(shard, shards)) for shard in range(1, shards + 1)]
        together = [row.overrides["batches"] for part in parts for row in part.rows()]
        assert sorted(together) == [1, 2, 3, 4, 5]
        assert {part.study_name for part in parts} == {whole.study_name}

    def test_the_name_of_a_study_is_of_its_content(self) -> None:
        study = grid({"batches": [2, 4]})
        assert study.study_name == grid({"batches": [2, 4]}, time_limit=5, workers=2).study_name
        different = (grid({"batches": [2, 5]}), grid({"batches": [2, 4]}, seed=1))
        assert len({study.study_name, *(asked.study_name for asked in different)}) == 3

    @pytest.mark.parametrize(
        ("axes", "message"),
        [
            ({"batchs": [1]}, "unknown key 'batchs'; did you mean batches"),
            ({"output": ["x.csv"]}, "unknown key 'output'"),
            ({"layers": [1]}, "unknown key 'layers'"),
            ({"batches": []}, "there is no value"),
            ({"batches": ["x"]}, "batches: 'x' is not a whole number"),
            ({"strategy": ["1f1bb"]}, "strategy: '1f1bb' is unknown; did you mean 1f1b"),
            ({"batches": [1], "num-batches": [2]}, "the same setting"),
            ({"batches": range(1, 2000), "seed": range(1000)}, "at most 1000000 are taken"),
        ],
    )
    def test_what_is_wrong(self, axes: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as raised:
            grid(axes)
        assert message in str(raised.value)


class TestKey:
    """A key is of the content: what a result depends on, and no more."""

    def test_the_version_of_the_search_is_content(self, monkeypatch: pytest.MonkeyPatch) -> None:
        key = SolveJob(PIPELINE).key
        monkeypatch.setattr(jobs, "SEARCH_VERSION", jobs.SEARCH_VERSION + 1)
        assert SolveJob(PIPELINE).key != key

    def test_names_units_and_effort_are_no_content(self) -> None:
        job = SolveJob(PIPELINE)
        same = (
            SolveJob(replace(PIPELINE, name="x", time_unit="ms", tokens_per_microbatch=9)),
            SolveJob(PIPELINE, time_limit=1, workers=3),
            SolveJob(ppopt.Pipeline(stages=3, batches=4, forward=[1, 1, 1], placement="linear")),
        )
        assert {job.key, *(job.key for job in same)} == {job.key}

    def test_all_else_is(self) -> None:
        jobs = (
            SolveJob(PIPELINE),
            SolveJob(PIPELINE, seed=1),
            SolveJob(PIPELINE, objective=ppopt.Objective.DEVICE_SPAN),
            job_of(PIPELINE, {"backward_kind": "split"}),
            SolveJob(PIPELINE, strategy="1f1b"),
            SolveJob(PIPELINE, strategy="gpipe"),
            SolveJob(PIPELINE, strategy="interleaved"),
            SolveJob(PIPELINE, "interleaved", options=ppopt.Options(group_size=3)),
            *(
                SolveJob(replace(PIPELINE, **{field: value}))
                for field, value in {
                    "batches": 5,
                    "forward": 2,
                    "p2p": 1,
                    "activation": 2,
                    "mem_limit": 3,
                    "static": 1,
                    "slices": 2,
                    "chunks": 2,
                    "device_speed": 2,
                    "placement": "search",
                    "workspace": 1,
                    "weight": (1, 1, 1.5),
                }.items()
            ),
        )
        assert len({job.key for job in jobs}) == len(jobs)

    def test_a_link_is_content_where_the_partition_is_searched(self) -> None:
        """Both links take 1.5 after layer 1, where the default partition is cut."""
        model = ppopt.Model([ppopt.Layer(forward=3, output=size) for size in (4, 1, 4, 1)])
        first, second = (
            model.pipeline(devices=2, batches=2, partition="search", link=link)
            for link in (
                {"latency": 1, "bandwidth": 2},
                {"latency": "0.5", "bandwidth": 1},
            )
        )
        assert first.p2p == second.p2p
        assert SolveJob(first).key != SolveJob(second).key

    def test_searches_over_layers_depend_on_the_layers(self) -> None:
        even = LAYERS.pipeline(devices=2, batches=4, partition="even")
        searched = replace(even, partition="search")
        reversed_layers = replace(searched, model=ppopt.Model([*LAYERS.layers[::-1]]))
        chosen = replace(even, recompute="search")
        assert (
            len({SolveJob(pipeline).key for pipeline in (even, searched, reversed_layers, chosen)})
            == 4
        )

    def test_strategies_are_not_held_to_limits(self) -> None:
        limited = replace(PIPELINE, mem_limit=2)
        assert SolveJob(limited, "1f1b").key == SolveJob(PIPELINE, "1f1b").key
        assert SolveJob(limited).key != SolveJob(PIPELINE).key


LIMITED = replace(PIPELINE, mem_limit=2)
JOBS = {
    "search": SolveJob(PIPELINE, time_limit=600),
    "limit": SolveJob(replace(LIMITED, name="mine", time_unit="ms"), time_limit=600),
    "infeasible": SolveJob(replace(PIPELINE, mem_limit="0.5")),
    "chunks": SolveJob(replace(PIPELINE, chunks=2, mem_limit="1f1b"), time_limit=600),
    "speeds": SolveJob(replace(PIPELINE, device_speed=(1, 2, 3), p2p="0.25"), time_limit=600),
    "strategy": SolveJob(LIMITED, "gpipe"),
    "strategy with chunks": SolveJob(LIMITED, "interleaved"),
    "layers": SolveJob(LAYERS.pipeline(devices=2, batches=3, mem_limit="1f1b"), time_limit=600),
    "partition": SolveJob(
        LAYERS.pipeline(devices=2, batches=2, partition="search"), time_limit=600
    ),
    "partition of a strategy": SolveJob(
        LAYERS.pipeline(devices=2, batches=2, partition="search"), "1f1b"
    ),
    "placement": SolveJob(
        ppopt.Pipeline(stages=2, chunks=2, batches=2, placement="search"), time_limit=600
    ),
    "recompute": SolveJob(
        LAYERS.pipeline(devices=2, batches=2, recompute="search", mem_limit=12), time_limit=600
    ),
}


TIGHT = replace(ppopt.read_pipeline("llama-3.1-8b-128k"), mem_limit="40GiB")
CHOSEN = {
    "partition": SolveJob(replace(TIGHT, partition="search"), time_limit=0.5),
    "placement": SolveJob(replace(HARD, chunks=2, placement="search"), time_limit=0.5),
    "recompute": SolveJob(replace(TIGHT, recompute="search"), time_limit=0.5),
    "both": SolveJob(replace(TIGHT, partition="search", recompute="search"), time_limit=0.5),
}
"""Searches that end far from proof, each over what it is named after."""


class TestStored:
    @pytest.mark.parametrize("name", JOBS)
    def test_what_is_read_is_what_was_found(self, name: str) -> None:
        job = JOBS[name]
        result = outcome.run_job(job)
        restored = outcome.read(outcome.stored(job, result), job)
        assert (restored.status, restored.value) == (result.status, result.value)
        assert (restored.lower_bound, restored.proof) == (result.lower_bound, result.proof)
        assert restored.schedule == result.schedule
        assert outcome.is_closed(restored) == outcome.is_closed(result)
        if job.searched:
            schedule = outcome.with_origin(restored)
            assert (schedule.status, schedule.claim) == (result.status, result.claim)
        elif restored.schedule is not None:
            assert outcome.row(job, restored).fits_limit == restored.schedule.fits_limits

    def test_a_strategy_of_another_limit_is_judged_by_the_limit_asked_for(self) -> None:
        free, limited = SolveJob(PIPELINE, "gpipe"), SolveJob(LIMITED, "gpipe")
        stored = outcome.stored(free, outcome.run_job(free))
        assert outcome.row(free, outcome.read(stored, free)).fits_limit
        row = outcome.row(limited, outcome.read(stored, limited))
        assert row.mem_limit == [2, 2, 2]
        assert not row.fits_limit

    def tampered(self, change: Callable[[str], str], **fields: Any) -> str:
        """Why a stored result is refused after a change of its text or its columns."""
        job = SolveJob(PIPELINE, time_limit=600)
        stored = outcome.stored(job, outcome.run_job(job))
        text = zlib.decompress(stored.record).decode()
        changed = change(text)
        assert changed != text or fields
        stored = stored._replace(record=zlib.compress(changed.encode()), **fields)
        with pytest.raises(InputError) as raised:
            outcome.read(stored, job)
        (damaged,) = (SweepTask(job, stored).perform().damaged,)
        assert damaged is not None
        return str(raised.value)

    def test_a_schedule_that_breaks_a_rule(self) -> None:
        message = self.tampered(lambda text: text.replace('["F",1,0,1,1,2]', '["F",1,0,1,0,1]'))
        assert "a stored result is damaged (forward-order: " in message

    def test_a_claim_that_is_wrong(self) -> None:
        assert "makespan" in self.tampered(lambda text: text.replace('makespan":', 'makespan":1'))

    def test_a_schedule_of_another_pipeline(self) -> None:
        message = self.tampered(lambda text: text.replace('"static":[0,0,0]', '"static":[0,0,1]'))
        assert "another pipeline" in message

    def test_a_status_that_the_bound_denies(self) -> None:
        assert "bound" in self.tampered(lambda text: text.replace('bound":"14"', 'bound":"13"'))
        assert "above" in self.tampered(lambda text: text.replace('bound":"14"', 'bound":"15"'))
        assert "infeasible" in self.tampered(str, status="infeasible")

    def test_bytes_that_are_damaged(self) -> None:
        job = SolveJob(PIPELINE, "1f1b")
        stored = outcome.stored(job, outcome.run_job(job))
        record = bytearray(stored.record)
        record[len(record) // 2] ^= 1
        with pytest.raises(InputError, match="a stored result is damaged"):
            outcome.read(stored._replace(record=bytes(record)), job)


class TestOnceAndNoMore:
    def test_a_second_run_searches_nothing(self, url: str) -> None:
        """Optima: of 2 batches device 0 waits 5 for its first B and has 4 of B and W left, of 4
        batches device 2 waits 2 and has 12 of work. 1F1B takes (batches + devices - 1) x 3."""
        asked = grid({"batches": [2, 4], "strategy": ["searched", "1f1b"]}, time_limit=600)
        first, searched = done(asked, url)
        assert (first.done, first.cached, first.failed, len(searched)) == (4, 0, 0, 4)
        repeated, searched = done(asked, url)
        assert (repeated.done, repeated.cached, repeated.failed, len(searched)) == (4, 4, 0, 0)
        assert values(repeated) == values(first) == [9, 12, 14, 18]
        assert [row.figures for row in repeated.rows] == [row.figures for row in first.rows]

    def test_a_sweep_takes_what_another_has_done(self, url: str) -> None:
        done(grid({"batches": [2, 3]}, time_limit=600), url)
        study, searched = done(grid({"num_batches": [3, 4], "seed": [0]}, time_limit=600), url)
        assert [job.pipeline.batches for job in searched] == [4]
        assert [row.cached for row in study.rows] == [True, False]

    def test_equal_rows_are_done_once(self, url: str) -> None:
        study, searched = done(grid({"mem_limit": [None, 1, 2], "strategy": ["gpipe"]}), url)
        assert len(searched) == 1
        assert [row.figures and row.figures.fits_limit for row in study.rows] == [
            True,
            False,
            False,
        ]

    def test_what_is_damaged_is_done_again(self, url: str) -> None:
        asked = grid({"batches": [2, 4]}, time_limit=600)
        done(asked, url)
        with Storage(url) as storage:
            key = asked.base.job({"batches": 2}).key
            stored = storage.result(key)
            storage.put(stored._replace(record=stored.record[:-9]))
        study, searched = done(asked, url)
        assert [job.pipeline.batches for job in searched] == [2]
        assert len(study.damaged) == 1
        assert values(study) == [9, 14]

    def test_schedules_are_read_and_verified(self, url: str) -> None:
        study, _ = done(grid({"batches": [2, 4]}, time_limit=600), url)
        schedule = study.schedule(study.rows[1])
        assert verify(schedule) == []
        assert schedule.metrics.makespan_ticks == 14
        assert schedule.pipeline == replace(PIPELINE, batches=4)


class TestMoreTime:
    """A longer time limit goes on from what a shorter one left open."""

    @pytest.fixture(autouse=True)
    def _clock(self) -> Iterator[None]:
        with work_clock(SHORT):
            yield

    def test_from_its_schedule_and_its_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        job = SolveJob(HARD, time_limit=0.3)
        short = outcome.run_job(job)
        assert not outcome.is_closed(short)
        assert outcome.covers(short, job)
        more = replace(job, time_limit=0.6)
        assert not outcome.covers(short, more)
        assert not outcome.covers(short, replace(job, workers=2))
        starts: list[Any] = []

        def search_from(start: Any, *_: Any, **__: Any) -> Any:
            starts.append(start)
            return short

        monkeypatch.setattr(solve_module, "search_from", search_from)
        result = outcome.run_job(more, outcome.read(outcome.stored(job, short), job))
        (start,) = starts
        assert start.schedules == (short.schedule,)
        assert start.bound.value == short.lower_bound * HARD.ticks.per_unit
        assert result.value == short.value

    def test_never_worse_and_the_scope_of_a_proof_is_said_once(self) -> None:
        job = SolveJob(HARD, time_limit=0.3)
        short = outcome.run_job(job)
        longer = outcome.run_job(replace(job, time_limit=0.5), short)
        assert longer.value <= short.value
        assert longer.lower_bound >= short.lower_bound
        assert longer.proof.count("backwards") <= 1
        assert longer.provenance.time_limit == 0.5

    def test_a_bound_on_device_spans_has_no_scope_in_the_next_search(self) -> None:
        """A bound of two devices holds for starts on the grid."""
        problem = Problem(HARD, ppopt.Objective.DEVICE_SPAN, BackwardKind.WHOLE)
        result = ppopt.solve(
            HARD, objective="device-span", backward_kind="whole", time_limit=0.3, workers=1
        )
        certificate = Certificate(Argument.DEVICES, (0, 1))
        scope = bound_scope(problem, Bound(0, "", certificate))
        assert "--backward whole" in scope and "for start times on the time grid" in scope
        earlier = replace(result, certificate=certificate, proof=f"an argument{scope}")
        bound = solve_module.earlier_bound(problem, earlier)
        assert bound is not None and (bound.proof, bound.certificate) == (
            "an argument",
            certificate,
        )
        assert HARD.ticks.time(bound.value) == result.lower_bound

    @pytest.mark.parametrize("searched", CHOSEN)
    def test_what_is_chosen_with_the_schedule_begins_with_what_was_found(
        self, searched: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a longer search only the configuration found before is searched: it is the first, it
        begins with the schedule, and the bound over all is not lost."""
        job = CHOSEN[searched]
        short = outcome.run_job(job)
        assert not outcome.is_closed(short)
        assert short.schedule is not None
        begun: list[Any] = []

        def search_from(start: Any, problem: Any, options: Any) -> Any:
            begun.append((start, problem))
            if len(begun) > 1:
                raise TimeoutError
            return searching.search_from(start, problem, options)

        monkeypatch.setattr(search_tasks, "search_from", search_from)
        known = outcome.read(outcome.stored(job, short), job)
        longer = outcome.run_job(replace(job, time_limit=1), known)
        start, problem = begun[0]
        (schedule,) = start.schedules
        assert schedule.kind.tolist() == short.schedule.kind.tolist()
        assert schedule.start.tolist() == short.schedule.start.tolist()
        assert problem.pipeline.hosts == short.schedule.pipeline.hosts
        assert problem.pipeline.costs == short.schedule.pipeline.costs
        assert longer.value <= short.value
        assert longer.lower_bound >= short.lower_bound

    def test_a_bound_that_is_reached_ends_the_search(self) -> None:
        """The least value of LAYERS on two devices is proved; with that bound, and the schedule of
        another partition, the search goes on until it is reached."""
        job = JOBS["partition"]
        best = outcome.run_job(job)
        assert best.status is ppopt.Status.OPTIMAL
        even = replace(job.pipeline, partition="even")
        result = outcome.run_job(SolveJob(even, time_limit=600))
        known = replace(
            best,
            status=ppopt.Status.FEASIBLE,
            schedule=result.schedule,
            value_ticks=result.value_ticks,
        )
        repeated = outcome.run_job(job, known)
        assert (repeated.status, repeated.value) == (ppopt.Status.OPTIMAL, best.value)
        assert repeated.proof == best.proof

    def test_rows_of_one_content_follow_each_other(self, url: str) -> None:
        asked = grid_of(base_of(HARD, {}), {"time_limit": [0.5, 1]})
        study, searched = done(asked, url)
        assert [job.time_limit for job in searched] == [0.5, 1]
        first, second = study.rows
        assert second.value <= first.value
        _, searched = done(asked, url)
        assert searched == []


class TestFailure:
    def test_what_does_not_apply_has_failed_and_others_stand(self, url: str) -> None:
        asked = grid({"chunks": [1, 2], "strategy": ["1f1b", "interleaved"], "batches": [3]})
        study, _ = done(asked, url)
        assert [row.failed is None for row in study.rows] == [True, True, False, True]
        assert str(study.rows[2].failed).startswith("chunks: 2 contradicts strategy 1f1b")
        assert (study.done, study.failed, study.open) == (3, 1, 0)
        with Storage(url) as storage:
            (listed,) = storage.studies()
            assert (listed.complete, listed.failed) == (3, 1)

    def test_infeasible_is_a_result(self, url: str) -> None:
        study, _ = done(grid({"mem_limit": ["0.1", 3]}, time_limit=600), url)
        assert [row.status for row in study.rows] == ["infeasible", "optimal"]
        repeated, searched = done(grid({"mem_limit": ["0.1", 3]}, time_limit=600), url)
        assert (repeated.failed, repeated.cached, searched) == (0, 2, [])

    def test_a_storage_that_is_full_ends_the_sweep_and_keeps_its_rows(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = grid({"batches": [2, 3, 4]}, time_limit=600)
        finish, calls = Storage.finish, []

        def full(self: Storage, *args: Any) -> None:
            calls.append(args)
            if len(calls) == 2:
                self._link.execute("PRAGMA max_page_count = 1")
                args = (args[0], args[1], args[2]._replace(record=os.urandom(10**6)))
            finish(self, *args)

        monkeypatch.setattr(Storage, "finish", full)
        study, searched = done(asked, url)
        assert str(study.not_stored).endswith("what is stored is not done again")
        assert "the disk is full" in str(study.not_stored)
        assert (study.done, study.open, len(searched)) == (2, 1, 2)
        monkeypatch.undo()
        study, searched = done(asked, url)
        assert [job.pipeline.batches for job in searched] == [3, 4]
        assert study.done == 3

    def test_ctrl_c_keeps_what_is_done(self, url: str) -> None:
        engine = InThisProcess()
        asked = grid({"batches": [2, 3, 4, 5]}, time_limit=600)

        def hinder() -> None:
            if len(engine.searched) == 2:
                os.kill(os.getpid(), signal.SIGINT)

        engine.hindered = hinder
        study = sweeps.run(asked, engine, storage=url)
        assert study.interrupted
        assert (study.done, study.open) == (2, 2)
        study, searched = done(asked, url)
        assert [job.pipeline.batches for job in searched] == [4, 5]
        assert not study.interrupted


def test_frame_and_repr(url: str) -> None:
    study, _ = done(grid({"batches": [2, 4], "strategy": ["1f1b", "gpipe"]}), url)
    frame = study.to_frame()
    assert list(frame["value"]) == values(study)
    assert list(frame["batches"]) == [2, 2, 4, 4]
    assert repr(study) == (
        f"Study({study.name!r}: 4 rows, 4 done (0 cached), 0 failed; {study.storage})"
    )


def test_bases() -> None:
    model = base_of(LAYERS, {"stages": 2, "batches": 3})
    job = model.job({"partition": "even"})
    assert job.pipeline == LAYERS.pipeline(devices=2, batches=3, partition="even")
    assert Base({"stages": 2, "batches": 3, "mem_limit": 1}).job({"mem_limit": None}).pipeline == (
        ppopt.Pipeline(stages=2, batches=3)
    )
    with pytest.raises(InputError, match="stages: missing"):
        base_of(LAYERS, {"batches": 3}).job({})


def test_the_same_instance_has_the_same_content() -> None:
    first = ppopt.Pipeline(stages=2, batches=3, forward="0.5", mem_limit="1f1b", name="a")
    second = ppopt.Pipeline(stages=2, batches=3, forward=[0.5, 0.5], mem_limit=[2, 2])
    assert instance_of(first) == instance_of(second)


class TestProcesses:
    """The engine of this machine, with processes of its own."""

    @pytest.fixture
    def engine(self) -> Iterator[LocalEngine]:
        engine = LocalEngine(jobs=2, retries=0)
        yield engine
        engine.close()

    def test_the_same_rows_as_in_one_process(self, url: str, tmp_path: Path) -> None:
        axes = {"batches": [2, 4, 5], "strategy": ["searched", "1f1b", "v-min", "chimera"]}
        study = ppopt.sweep(PIPELINE, axes, storage=url, jobs=2, time_limit=600)
        in_one, _ = done(grid(axes, time_limit=600), f"sqlite:///{tmp_path}/b.db")
        assert values(study) == values(in_one)
        assert [row.failed for row in study.rows] == [row.failed for row in in_one.rows]
        assert study.failed == 3
        with Storage(url) as storage:
            assert storage.results() == 9

    def test_there_must_be_one(self, url: str) -> None:
        with pytest.raises(InputError, match="jobs: 0 is below 1"):
            ppopt.sweep(PIPELINE, {"batches": [2]}, storage=url, jobs=0)

    def test_a_process_that_is_killed_takes_one_row_with_it(
        self, engine: LocalEngine, url: str
    ) -> None:
        asked = grid_of(base_of(HARD, {"time_limit": 60}), {"batches": [24], "seed": [0]})
        second = grid({"batches": [2, 3]}, time_limit=600)
        done(second, url)
        killer = threading.Thread(target=kill_at_work, args=(engine,))
        killer.start()
        study = sweeps.run(asked, engine, storage=url)
        killer.join()
        assert study.rows[0].failed == "its process was killed by SIGKILL"
        study, searched = done(second, url)
        assert (study.cached, searched) == (2, [])

    def test_a_crash_in_native_code_takes_one_row_with_it(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SIGSEGV in the row of three microbatches, every time; the other rows are done."""
        (tmp_path / "sitecustomize.py").write_text(CRASHING)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        asked = grid({"batches": [2, 3, 4], "strategy": ["1f1b"]})
        engine = LocalEngine(jobs=1, retries=1)
        study = sweeps.run(asked, engine, storage=url)
        engine.close()
        assert [row.failed for row in study.rows] == [
            None, "its process died of SIGSEGV, 2 times", None,
        ]  # fmt: skip
        repeated, searched = done(asked, url)
        assert (repeated.cached, repeated.failed, len(searched)) == (2, 0, 1)

    def test_it_is_tried_again_as_often_as_told(self, url: str) -> None:
        engine = LocalEngine(jobs=1, retries=1)
        asked = grid({"batches": [24]}, time_limit=600)
        killer = threading.Thread(target=kill_at_work, args=(engine,))
        killer.start()
        study = sweeps.run(asked, engine, storage=url)
        killer.join()
        engine.close()
        assert (study.done, study.failed) == (1, 0)

    def test_a_row_without_memory_fails(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process takes 120 MB of addresses at once, and this row some 70 MB more."""

        start = child_process.start

        def bounded(*arguments: Any) -> Any:
            link, process = start(*arguments)
            resource.prlimit(process.pid, resource.RLIMIT_AS, (150_000_000, 150_000_000))
            return link, process

        monkeypatch.setattr(child_process, "start", bounded)
        engine = LocalEngine(jobs=1, retries=0)
        asked = grid({"batches": [4, 30_000], "strategy": ["gpipe"]})
        study = sweeps.run(asked, engine, storage=url)
        engine.close()
        assert [row.failed for row in study.rows] == [None, "its process ran out of memory"]

    @pytest.mark.slow
    def test_ctrl_c_ends_searches_with_what_they_have(self, engine: LocalEngine, url: str) -> None:
        asked = grid_of(base_of(HARD, {"time_limit": 600}), {"seed": [0, 1, 2, 3, 4]})
        presser = threading.Thread(target=press_at_work, args=(engine,))
        presser.start()
        study = sweeps.run(asked, engine, storage=url)
        presser.join()
        assert study.interrupted
        assert study.failed == 0
        ended = [row for row in study.rows if row.status is not None]
        assert {row.status for row in ended} <= {"feasible"}
        with Storage(url) as storage:
            stored = [storage.result(asked.base.job({"seed": seed}).key) for seed in range(5)]
        assert [result.status for result in stored if result] == ["feasible"] * len(ended)
        assert all(
            result.time_limit is not None and result.time_limit < 600 for result in stored if result
        )


CRASHING = """
import os, signal
from ppopt.studies import evaluate
whole = evaluate.evaluate


def crashing(pipeline, *rest, **named):
    if pipeline.batches == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return whole(pipeline, *rest, **named)


evaluate.evaluate = crashing
"""
"""Imported by every Python that starts with it in its path: a crash in place of one evaluation."""


def at_work(engine: LocalEngine) -> list[int]:
    """Processes of an engine that have a task, once there are any and had time to begin it."""
    processes: list[int] = []
    wait_until(
        lambda: (
            processes.extend(worker.process.pid for worker in list(engine.workers) if worker.tasks)
            or processes
        )
    )
    time.sleep(0.5)
    return processes


def kill_at_work(engine: LocalEngine) -> None:
    for pid in at_work(engine)[:1]:
        os.kill(pid, signal.SIGKILL)


def press_at_work(engine: LocalEngine) -> None:
    at_work(engine)
    time.sleep(4)
    os.kill(os.getpid(), signal.SIGINT)


def test_two_sweeps_may_write_one_storage(url: str) -> None:
    """Both write rows in turn; the file holds all of them, once."""
    engine = InThisProcess()
    asked = grid({"batches": [2, 3]}, time_limit=600)
    second = grid({"batches": [3, 4]}, time_limit=600)
    inner: list[ppopt.Study] = []

    def meanwhile() -> None:
        engine.hindered = lambda: None
        inner.append(done(second, url)[0])

    engine.hindered = meanwhile
    study = sweeps.run(asked, engine, storage=url)
    assert (inner[0].cached, study.cached) == (0, 1)
    with sqlite3.connect(url.removeprefix("sqlite:///")) as link:
        assert link.execute("SELECT count(*) FROM results").fetchone() == (3,)
    link.close()


def test_stored_results_are_plain() -> None:
    """What is stored is text and numbers: other programs can read it."""
    job = SolveJob(PIPELINE, "1f1b")
    stored = outcome.stored(job, outcome.run_job(job))
    assert isinstance(stored, StoredResult)
    assert {type(value) for value in stored} <= {str, bytes, bool, float, int, outcome.Status}


def test_rows_whose_order_of_microbatches_was_searched_are_read_back(tmp_path: Path) -> None:
    pipeline = ppopt.Pipeline(stages=2, batches=3, microbatch_times=[1, 2, 1], order="search")
    storage = f"sqlite:///{tmp_path}/a.db"
    axes = {"strategy": ["1f1b", "searched"]}
    first, second = (ppopt.sweep(pipeline, axes, storage=storage) for _ in range(2))
    assert (first.cached, second.cached) == (0, 2)
    assert [row.figures for row in first.rows] == [row.figures for row in second.rows]
