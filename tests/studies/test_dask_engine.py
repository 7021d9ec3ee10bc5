"""Sweeps on a Dask cluster over loopback: two worker processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ppopt
from ppopt.errors import InputError
from ppopt.solver.engines import dask
from ppopt.solver.engines.dask import DaskEngine
from ppopt.solver.engines.engine import Done, TaskProtocol
from ppopt.studies.parallel_task import CombinationState, FirstTask
from ppopt.studies.plan_space import PlanSpace
from ppopt.studies.solve_job import SolveJob
from ppopt.studies.storage import Storage
from ppopt.studies.task import SweepTask
from ppopt.versions import version
from tests.clock import wait_until
from tests.packages import needed
from tests.studies.test_parallel_tasks import check_against_enumeration, planned

if TYPE_CHECKING:
    from distributed import Client

distributed = needed("distributed")

pytestmark = pytest.mark.slow

PIPELINE = ppopt.Pipeline(stages=3, batches=4, forward=1, backward=2, weight=1)
SPACE = PlanSpace(model=ppopt.Model([{"forward": 1, "count": 2}]), devices=2, batches=(2,))
AXES = {"batches": [2, 4, 5], "strategy": ["searched", "1f1b", "v-min", "chimera"]}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of two worker processes of one thread each."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            resources={dask.RESOURCE: 1},
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def test_the_same_rows_as_on_this_machine(client: Client, tmp_path: Path) -> None:
    def rows(**options: Any) -> list[tuple[Any, ...]]:
        study = ppopt.sweep(PIPELINE, AXES, time_limit=600, **options)
        return [(row.overrides, row.status, row.value, row.failed) for row in study.rows]

    local = f"sqlite:///{tmp_path}/here.db"
    remote = f"sqlite:///{tmp_path}/there.db"
    wanted = rows(storage=local, jobs=1)
    assert rows(storage=remote, dask=client) == wanted
    assert rows(storage=remote, dask=client) == wanted
    with Storage(remote) as storage:
        assert storage.results() == 9


def test_a_worker_that_is_killed_loses_no_row(client: Client, tmp_path: Path) -> None:
    """Rows of the dead worker are done by others, and every row is stored once."""
    pids = client.run(os.getpid)
    ended: list[str] = []

    def kill(message: str) -> None:
        ended.append(message)
        if len(ended) == 3:
            os.kill(next(iter(pids.values())), signal.SIGKILL)

    axes = {"batches": range(2, 42), "strategy": ["1f1b"]}
    url = f"sqlite:///{tmp_path}/a.db"
    study = ppopt.sweep(PIPELINE, axes, storage=url, dask=client, progress=kill)
    assert [row.value for row in study.rows] == [3 * (row + 2) for row in range(2, 42)]
    assert len(ended) == 40
    with Storage(url) as storage:
        assert storage.results() == 40
        assert len(storage.trials(study.name)) == 40
    wait_until(lambda: set(client.run(os.getpid).values()) != set(pids.values()))


def test_a_task_whose_workers_die_has_failed(client: Client) -> None:
    engine = DaskEngine(client, retries=0)
    future = client.submit(os._exit, 1, key="dies", pure=False)
    engine._task_ids[future] = 7
    engine._ended.add(future)
    assert ended(engine) == [(7, Done(failed="its workers died, each time it was tried"))]


@pytest.mark.parametrize(
    "task",
    [
        SweepTask(SolveJob(PIPELINE, "gpipe")),
        FirstTask(SPACE, CombinationState(None)),
    ],
)
def test_a_worker_of_another_version_is_told(
    client: Client, monkeypatch: pytest.MonkeyPatch, task: TaskProtocol
) -> None:
    engine = DaskEngine(client, retries=0)
    monkeypatch.setattr(engine, "_version", "9.9.9")
    engine.submit(3, task)
    ((task_id, done),) = ended(engine)
    assert task_id == 3
    assert done.failed == f"its worker has ppopt {version()}, not 9.9.9 as here"


def test_combinations_of_a_plan(client: Client) -> None:
    """The best is that of enumeration, and no bound is above what there is."""
    engine = DaskEngine(client, retries=0)
    check_against_enumeration(planned(engine=engine))
    engine.close()


def test_what_is_stopped_comes_back_as_stopped(client: Client) -> None:
    engine = DaskEngine(client, retries=0)
    engine.submit(1, SweepTask(SolveJob(PIPELINE, "gpipe", seed=9)))
    engine.stop()
    ((task_id, done),) = ended(engine)
    assert task_id == 1
    assert done.failed is None
    assert engine.busy == 0
    engine.close()


def ended(engine: DaskEngine) -> list[tuple[int, Done]]:
    ends: list[tuple[int, Done]] = []
    wait_until(lambda: ends.extend(engine.wait(0.1)) or ends)
    return ends


def test_where_nobody_answers() -> None:
    with pytest.raises(InputError, match=r"there is no scheduler file nowhere\.json"):
        dask.connect(scheduler_file="nowhere.json")
    with pytest.raises(InputError, match=r"no scheduler answers at 127\.0\.0\.1:1: "):
        dask.connect("127.0.0.1:1", seconds=0.2)


def test_tasks_are_done_alike_wherever_they_are() -> None:
    task = SweepTask(SolveJob(PIPELINE, "1f1b"))
    first, second = task.perform(), task.perform()
    assert first.row and second.row
    assert replace(first.row, solve_seconds=0) == replace(second.row, solve_seconds=0)
