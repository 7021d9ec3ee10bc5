"""Plans over the parallelism on engines, interrupted and continued, against enumeration."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Status, cancellation
from ppopt.derivation.config_json import architecture_of
from ppopt.derivation.gpus import gpu_named
from ppopt.solver import options as solve_options
from ppopt.solver.engines.engine import (
    ALONE,
    STOPPED,
    DirectEngine,
    Done,
    Ended,
    Link,
    TaskProtocol,
)
from ppopt.solver.engines.local import LocalEngine
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.solver.result import Progress
from ppopt.studies import parallel_plan
from ppopt.studies.parallel_plan import (
    CLOSING_SHARE,
    _own_engine,
    _ParallelSearch,
    plan_parallelism,
)
from ppopt.studies.parallel_result import ParallelPlan
from ppopt.studies.parallel_set_up import PlanArguments, SetUp, SetUpTask
from ppopt.studies.parallel_space import DIMENSIONS, Parallelism, ParallelSpace
from ppopt.studies.parallel_task import (
    CombinationDone,
    CombinationState,
    CombinationTask,
    FirstTask,
    StudyOptions,
)
from ppopt.studies.storage import Storage
from tests.studies.derived_models import models_of
from tests.tiers import slow

TINY = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 4096,
}
"""Three layers of four experts."""
ONE_ORDER = PlanArguments(
    placements=("linear",), chunks=(1,), strategies=("1f1b",), recompute=("none",)
)


@cache
def space() -> ParallelSpace:
    """Four GPUs, eight sequences; every dimension has two sizes."""
    lists = dict.fromkeys(DIMENSIONS, (1, 2))
    return ParallelSpace(architecture_of(TINY), gpu_named("h100"), 4, 8, **lists)


@cache
def enumerated() -> dict[Parallelism, Fraction]:
    """The shortest step of 1F1B over all partitions, of every combination."""
    steps = {}
    for combination, model in models_of(space())[0].items():
        devices, layers = model.training.devices, len(model.model)
        partitions = [
            tuple(after - before for before, after in pairwise((0, *cuts, layers)))
            for cuts in combinations(range(1, layers), devices - 1)
        ]
        pipelines = [replace(model.pipeline, partition=counts) for counts in partitions]
        steps[combination] = min(
            ppopt.evaluate(pipeline, "1f1b").makespan for pipeline in pipelines
        )
    return {combination: Fraction(str(step)) for combination, step in steps.items()}


def planned(**more: Any) -> ParallelPlan:
    return plan_parallelism(space(), ONE_ORDER, workers=1, time_limit=600, **more)


@cache
def uninterrupted() -> ParallelPlan:
    return planned()


def rows_of(plan: ParallelPlan) -> list[tuple[Any, ...]]:
    """Rows without seconds."""
    return [
        (row.parallelism, row.status(plan.value), row.value, row.lower_bound) for row in plan.rows
    ]


def check_against_enumeration(plan: ParallelPlan) -> None:
    """The best step is the least of all, and no bound is above what there is."""
    minimum = min(enumerated().values())
    assert plan.value is not None and plan.lower_bound is not None
    assert float(plan.value) == pytest.approx(float(minimum), rel=float(CLOSING_SHARE))
    assert plan.lower_bound <= plan.value
    for row in plan.rows:
        step = float(enumerated()[row.parallelism])
        assert row.lower_bound is not None
        assert float(row.lower_bound) <= step * (1 + 1e-9)
        assert row.value is None or float(row.value) >= step * (1 - 1e-9)


def test_best_and_bounds_are_those_of_enumeration() -> None:
    """Every dimension has two sizes; those that are incompatible are skipped."""
    plan = uninterrupted()
    check_against_enumeration(plan)
    assert len(plan.rows) + len(plan.skipped) == 2 ** len(DIMENSIONS)
    assert {row.parallelism for row in plan.rows} == enumerated().keys()
    for name in DIMENSIONS:
        assert {getattr(each, name) for each in enumerated()} == {1, 2}


class LateEngine(DirectEngine):
    """Engine of three slots that ends the last task first, and perhaps loses some."""

    slots = 3

    def __init__(self, lost: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__()
        self._lost = lost

    def wait(self, seconds: float) -> Ended:
        """Perform the last task; fail those that are lost."""
        if self._tasks and self._lost(self._tasks[-1][0]):
            return [(self._tasks.pop()[0], Done(failed="its process was killed by SIGKILL"))]
        self._tasks.rotate(1)
        return super().wait(seconds)


def test_an_engine_of_several_slots_has_the_same_best_and_sound_bounds() -> None:
    plan = planned(engine=LateEngine())
    check_against_enumeration(plan)
    assert plan.value == uninterrupted().value


def test_progress_has_the_best_value_of_running_searches() -> None:
    """Also before their turns end."""

    class Running(DirectEngine):
        """Engine on which a search has a step of 1/1000."""

        states: Any = {0: Progress(0.0, "", 1, 0, 1000)}  # noqa: RUF012

    states = list[Progress]()
    plan = planned(engine=Running(), progress=states.append)
    assert min(state.value for state in states if state.value is not None) == Fraction(1, 1000)
    assert plan.value == uninterrupted().value


def test_a_lost_search_keeps_its_bound() -> None:
    """The searches of the best combination are lost: its work over its devices is its bound."""
    best = uninterrupted().best
    assert best is not None
    index = [*models_of(space())[0]].index(best.parallelism)
    plan = planned(engine=LateEngine(lambda each: each == index))
    (row,) = (row for row in plan.rows if row.parallelism == best.parallelism)
    assert row.failed == "its process was killed by SIGKILL"
    assert row.value is None and row.lower_bound is not None
    assert plan.value is not None and plan.lower_bound is not None
    assert plan.lower_bound <= row.lower_bound
    if row.lower_bound < plan.value:
        assert plan.status is Status.FEASIBLE


def test_where_every_search_is_lost_one_runs_here() -> None:
    plan = planned(engine=LateEngine(lambda _: True))
    assert plan.value is not None and any(row.failed is None for row in plan.rows)


def test_searches_that_somebody_cancels_are_not_repeated() -> None:
    """As where the tasks of a Dask cluster are cancelled from outside."""

    class Cancelled(DirectEngine):
        """Engine whose tasks are all cancelled."""

        def wait(self, seconds: float) -> Ended:  # noqa: ARG002
            return [(self._tasks.popleft()[0], STOPPED)]

    plan = planned(engine=Cancelled())
    assert plan.value is not None and not plan.interrupted
    assert {row.failed for row in plan.rows} >= {"its search was cancelled"}


@pytest.fixture
def study(tmp_path: Path) -> StudyOptions:
    return StudyOptions(f"sqlite:///{tmp_path}/plans.db")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with a whole plan, of the name `mine`."""
    path = tmp_path_factory.mktemp("storage") / "plans.db"
    planned(study=StudyOptions(f"sqlite:///{path}", name="mine"))
    return path


@pytest.fixture
def stored(sound: Path, study: StudyOptions, tmp_path: Path) -> StudyOptions:
    """A study whose plan is in a copy of that storage."""
    shutil.copy(sound, tmp_path / "plans.db")
    return study._replace(name="mine")


@pytest.mark.parametrize("calls", [slow(0), slow(2), 5, slow(9)])
def test_interrupted_and_continued(calls: int, study: StudyOptions) -> None:
    """Ctrl-C keeps what there is; the continued plan has the rows of one without Ctrl-C."""
    reads: Iterator[int] = iter(range(calls))

    def press(_: Progress) -> None:
        if next(reads, None) is None:
            signal.raise_signal(signal.SIGINT)

    first = planned(study=study, progress=press)
    assert first.interrupted
    for row in first.rows:
        assert row.lower_bound is not None
        assert float(row.lower_bound) <= float(enumerated()[row.parallelism]) * (1 + 1e-9)
    second = planned(study=study)
    assert not second.interrupted
    assert rows_of(second) == rows_of(uninterrupted())
    assert second.storage is not None and not second.storage.damaged


def test_a_stored_plan_is_not_searched_again(stored: StudyOptions) -> None:
    class NoSearches(DirectEngine):
        """Engine that only sets up."""

        def submit(self, task_id: int, task: TaskProtocol) -> None:
            assert isinstance(task, SetUpTask)
            super().submit(task_id, task)

    repeated = planned(study=stored, engine=NoSearches())
    assert rows_of(repeated) == rows_of(uninterrupted())
    assert repeated.storage is not None
    assert repeated.storage.loaded == sum(row.plan is not None for row in uninterrupted().rows)
    best, fresh = repeated.best, uninterrupted().best
    assert best is not None and best.plan is not None and best.plan.schedule is not None
    assert fresh is not None and fresh.plan is not None
    assert ppopt.verify(best.plan.schedule) == []
    assert best.plan.schedule == fresh.plan.schedule
    assert best.breakdown == fresh.breakdown


def test_searches_of_the_storage_count_in_the_time_limit(stored: StudyOptions) -> None:
    """They took longer than the limit: nothing is searched, and open combinations are told."""
    with Storage(stored.storage) as storage:
        for trial in storage.trials(storage.studies()[0].name)[1:]:
            storage._link.execute("DELETE FROM results WHERE key = ?", (trial.key,))
    later = plan_parallelism(space(), ONE_ORDER, workers=1, time_limit=1e-3, study=stored)
    assert later.storage is not None and later.storage.loaded == 1
    assert sum(row.plan is not None for row in later.rows) == 1


def test_stored_seconds_count_per_combination_at_once() -> None:
    """An engine of more slots than combinations searches no more of them at once."""
    known, options = SetUp(space(), ONE_ORDER, DirectEngine()), checked_options(60, 1, 0)
    states = {each: CombinationState(Fraction(0), seconds=30.0) for each in known.combinations}
    stored: Any = SimpleNamespace(load=lambda: states)
    search = _ParallelSearch(known, options, WideEngine(), stored)
    assert options.end - search._end == pytest.approx(30)


def test_a_damaged_state_is_searched_again(stored: StudyOptions, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "plans.db") as database:
        database.execute("UPDATE results SET record = ?", (b"no JSON",))
    repeated = planned(study=stored)
    assert rows_of(repeated) == rows_of(uninterrupted())
    assert repeated.storage is not None and repeated.storage.loaded == 0
    assert all("is damaged" in reason for reason in repeated.storage.damaged)


def test_another_space_has_another_study(stored: StudyOptions) -> None:
    another = replace(space(), global_batch=16)
    with pytest.raises(InputError, match="study_name: mine is a study of another pipeline"):
        plan_parallelism(another, ONE_ORDER, workers=1, time_limit=600, study=stored)


@pytest.mark.parametrize("jobs", [1, slow(2)])
def test_processes_have_the_same_best(jobs: int, study: StudyOptions) -> None:
    engine = LocalEngine(jobs, retries=0)
    try:
        plan = planned(engine=engine, study=study)
    finally:
        engine.close()
    check_against_enumeration(plan)
    assert plan.value == uninterrupted().value
    assert rows_of(planned(study=study))[0] == rows_of(plan)[0]


@pytest.mark.parametrize(
    ("workers", "seconds", "slots"), [(1, 60, 1), (4, 5, 1), (4, 60, 4), (64, 60, 16)]
)
def test_processes_are_for_several_workers_and_seconds(
    workers: int, seconds: float, slots: int
) -> None:
    """Else combinations are searched in this process."""
    options = SolveOptions(time.monotonic(), seconds, workers, time_limit=seconds)
    assert _own_engine(options).slots == slots


class WideEngine(DirectEngine):
    """Engine with more slots than combinations, and its tasks."""

    slots = 99

    def __init__(self) -> None:
        super().__init__()
        self.every: list[TaskProtocol] = []

    def submit(self, task_id: int, task: TaskProtocol) -> None:
        self.every.append(task)
        super().submit(task_id, task)


@pytest.mark.parametrize("many", [False, True])
def test_processes_set_up_many_combinations_alone(
    many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are set up in this process before processes start. Each search has equal workers."""
    engine = WideEngine()
    monkeypatch.setattr(parallel_plan, "_own_engine", lambda _: engine)
    monkeypatch.setattr(parallel_plan, "MIN_PROCESS_SIZE", space().size + (not many))
    plan = plan_parallelism(space(), ONE_ORDER, workers=99, time_limit=600)
    assert any(isinstance(task, SetUpTask) for task in engine.every) is many
    searches = [task for task in engine.every if isinstance(task, CombinationTask)]
    assert {task.workers for task in searches} == {99 // len(plan.rows)}


def test_an_evaluation_that_fails_leaves_its_combination_open() -> None:
    """The search of the combination may succeed."""

    class Forgetful(DirectEngine):
        """Engine that loses every evaluation."""

        def wait(self, seconds: float) -> Ended:
            lost = isinstance(self._tasks[0][1], FirstTask)
            ended = super().wait(seconds)
            return [(ended[0][0], Done(failed="lost"))] if lost else ended

    plan = planned(engine=Forgetful())
    check_against_enumeration(plan)
    assert all(row.failed is None for row in plan.rows)


def test_turns_double_until_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by searches alone, and no combination is closed."""
    now, turns = [0.0], list[float]()
    search = CombinationTask.perform

    def perform(task: CombinationTask, link: Link = ALONE) -> CombinationDone:
        turns.append(task.seconds)
        done = search(task, link)
        now[0] += task.seconds
        assert done.state is not None
        state = done.state._replace(lower_bound=Fraction(0), exhausted=False)
        return replace(done, state=state)

    for module in (solve_options, cancellation, parallel_plan):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(CombinationTask, "perform", perform)
    monkeypatch.setattr(parallel_plan, "FIRST_TURN_SHARE", 0.3)
    plan_parallelism(space(), ONE_ORDER, workers=1, time_limit=100)
    assert turns == [30, 30, 40]


def test_the_next_turn_has_the_largest_expected_improvement_per_second() -> None:
    """A turn of 3.5 s without a gain divides the expected gain by four, and the next is longer."""
    engine = DirectEngine()
    known = SetUp(space(), ONE_ORDER, engine)
    search = parallel_plan._ParallelSearch(known, checked_options(100, 1), engine, None)

    def in_vain(index: int) -> None:
        row = search.rows[index]
        search._running.add(index)
        search._take([(index, CombinationDone(state=row.state._replace(seconds=3.5)))])

    def in_order() -> list[int]:
        return sorted(range(4), key=search._priority)

    for index, step in enumerate((None, 1300, 1010, 1000)):
        first: Any = () if step is None else (SimpleNamespace(step=Fraction(step)),)
        state = CombinationState(Fraction(900), first=first)
        search.rows[index] = replace(search.rows[index], state=state)
    assert in_order() == [3, 2, 1, 0]
    in_vain(3)
    assert in_order() == [2, 3, 1, 0]
    in_vain(2)
    assert in_order() == [3, 2, 1, 0]
