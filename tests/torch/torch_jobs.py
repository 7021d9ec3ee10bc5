"""What the tests let the ranks of a `World` do.

A module of its own: every rank imports it, and should import no more than it needs.
"""

from __future__ import annotations

import csv
import inspect
import io
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest import mock

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, schedules

from ppopt import Pipeline, evaluate
from ppopt.errors import InputError
from ppopt.profiles.estimate import StageMemory
from ppopt.schedule.schedule import Schedule
from ppopt.torch import execution
from ppopt.torch.job import Cut, Job, Modules, boundaries, build_stages
from ppopt.torch.pipeline_runtime import load, runtime
from ppopt.torch.profiler import Profiler, probe
from ppopt.torch.simulation import SleepingModel
from ppopt.torch.sleeping import announce_backwards
from ppopt.torch.world import World

RANKS = 4


def refusals(rank: int, schedule: Schedule, small: Schedule, split: Schedule) -> list[str]:
    """What the runtime says of stages that are wrong in one way each.

    `schedule` has a device per rank, and so has `split`, which splits backwards; `small` has two.
    """
    plain, between = torch.zeros(2, 2), torch.zeros(2, 2, requires_grad=True)

    def stage(index: int, of: int, tensor: Any, module: Any = None) -> Any:
        device = torch.device("cpu")
        module = torch.nn.Linear(2, 2) if module is None else module
        return PipelineStage(module, index, of, device, input_args=tensor, output_args=tensor)

    attempts: list[tuple[list[Any], Schedule]] = [
        ([], schedule),
        (["stage"], schedule),
        ([stage((rank + 1) % RANKS, RANKS, between)], schedule),
        ([stage(rank, 2 * RANKS, between)], schedule),
        ([stage(rank, RANKS, between)], small),
        ([stage(rank, RANKS, plain)], schedule),
    ]
    if rank == 1:  # the first use of torch.compile imports for seconds
        compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager")
        in_place = torch.nn.Sequential(torch.nn.Linear(2, 2))
        in_place[0].compile(backend="eager")
        attempts += [([stage(rank, RANKS, between, m)], split) for m in (compiled, in_place)]
    return [
        _refusal(lambda arguments=arguments: runtime(*arguments, print)) for arguments in attempts
    ]


class _Twice(torch.autograd.Function):
    """A linear layer that computes both gradients at once."""

    @staticmethod
    def forward(context: Any, tensor: Any, weight: Any) -> Any:
        context.save_for_backward(tensor, weight)
        return tensor @ weight

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        tensor, weight = context.saved_tensors
        return gradient @ weight.T, tensor.T @ gradient


class _Calls(torch.nn.Linear):
    """A module whose forward is given."""

    def __init__(self, call: Any) -> None:
        super().__init__(2, 2)
        self.call = call

    def forward(self, tensor: Any) -> Any:
        return self.call(self, tensor)


def first_forwards(rank: int, schedule: Schedule) -> list[str]:
    """What is said at the first forward of stage 1, whose module is wrong in one way each."""
    if rank != 1:
        return []
    plain, between = torch.zeros(2, 2), torch.zeros(2, 2, requires_grad=True)
    linear = torch.nn.functional.linear
    compiled = torch.compile(
        lambda layer, tensor: linear(tensor, layer.weight), backend="aot_eager"
    )
    attempts: list[tuple[Any, Any]] = [
        (compiled, between),
        (lambda layer, tensor: _Twice.apply(tensor, layer.weight), between),
        (lambda layer, tensor: (linear(tensor, layer.weight), layer.bias * 2), (plain, one_bias())),
        (lambda layer, tensor: (linear(tensor, layer.weight), layer.weight), between),
        (
            lambda layer, tensor: (linear(tensor, layer.weight), layer.bias * 2),
            (between, one_bias()),
        ),
    ]
    return [_first_forward(_Calls(call), metas, schedule) for call, metas in attempts]


def one_bias() -> Any:
    return torch.zeros(2, requires_grad=True)


def _first_forward(module: Any, metas: Any, schedule: Schedule) -> str:
    between = torch.zeros(2, 2, requires_grad=True)
    stage = PipelineStage(
        module, 1, RANKS, torch.device("cpu"), input_args=between, output_args=metas
    )
    stage.has_backward = True
    received = torch.ones(2, 2, requires_grad=True)
    stage._retrieve_recv_activations = lambda _: (received,)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            runtime([stage], schedule, torch.nn.functional.mse_loss)
            stage.forward_one_chunk(0, ())
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return (
        "; ".join(f"{warning.category.__name__}: {warning.message}" for warning in caught)
        or "taken"
    )


class WrappedWorld:
    """A world that runs every job within a wrapper, `wrapper(rank, job, *arguments)`."""

    def __init__(self, world: World, wrapper: Callable[..., Any]) -> None:
        self._world, self._wrapper = world, wrapper
        self.outcomes: list[Any] = []
        """What the wrapper returned on every rank for the last job."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def run(self, job: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a job on every rank, as `World.run`."""
        self.outcomes = self._world.run(
            self._wrapper, [(job, *arguments_of_rank) for arguments_of_rank in arguments]
        )
        is_counted = self._wrapper is counted
        return [outcome[0] for outcome in self.outcomes] if is_counted else self.outcomes


def run_sleeping(
    world: World | WrappedWorld,
    schedule: Schedule,
    *,
    steps: int = 1,
    seconds_per_unit: float = 0.0,
    text: str | None = None,
) -> execution.RunResult:
    """Run a schedule with stages that sleep."""
    model = SleepingModel(schedule, seconds_per_unit)
    (ran,) = execution.run(cast(World, world), [schedule], model, steps=steps, text=text)
    return ran


def run_text(world: World, text: str, hosts: Sequence[int], batches: int, **options: Any) -> float:
    """Run the text of an order without checks; return the largest difference from the reference.

    `options` are those of PyTorch's runtime.
    """
    wrapped = WrappedWorld(world, partial(with_options, options))
    return run_sleeping(wrapped, probe(batches, hosts), text=text).difference


def with_options(
    options: dict[str, Any], rank: int, job: Callable[..., Any], *arguments: Any
) -> Any:
    """Run a job whose runtime gets further options."""
    with mock.patch.object(execution, "load", partial(load, **options)):
        return job(rank, *arguments)


def turned(rank: int, job: Callable[..., Any], *arguments: Any) -> Any:
    """Run a job whose runtime is given the stages in descending order."""

    def descending(stages: Sequence[Any], *rest: Any) -> Any:
        return runtime(stages[::-1], *rest)

    with mock.patch.object(execution, "runtime", descending):
        return job(rank, *arguments)


def as_listed(rank: int, job: Callable[..., Any], *arguments: Any) -> Any:
    """Run a job that hands out the microbatches as they are listed, whatever the schedule says."""
    with mock.patch.object(Job, "in_order", lambda listed, _: listed):
        return job(rank, *arguments)


def two_steps(rank: int, schedule: Schedule) -> str:
    """What is said of a second step without zero_grad."""
    step = _sleeping_step(rank, schedule, 0.0)
    step()
    with mock.patch.object(Modules, "zero_grad"):
        return _refusal(step)


def _sleeping_step(rank: int, schedule: Schedule, seconds_per_unit: float) -> Callable[[], Any]:
    """A function that runs a step of stages that sleep."""
    pipeline = schedule.pipeline
    modules = Modules(SleepingModel(schedule, seconds_per_unit).load(), "cpu")
    stages_in_all = range(pipeline.num_stages)
    metas = boundaries(modules, pipeline.batches, stages_in_all).metas
    cut = Cut((1,) * pipeline.num_stages, pipeline.hosts[0])
    stages = build_stages(modules, cut, metas, rank)
    for stage in stages:
        announce_backwards(stage)
    return partial(execution.run_step, runtime(stages, schedule, modules.job.loss), stages, modules)


def _refusal(attempt: Any) -> str:
    try:
        attempt()
    except InputError as error:
        return str(error)
    return "taken"


def dump(rank: int, name: str, chunks: int, placement: str, form: str) -> str:
    """The order of one of PyTorch's schedule classes, as its text."""

    second = 2 * RANKS - 1 - rank if placement == "v" else rank + RANKS
    stages = [
        PipelineStage(torch.nn.Linear(2, 2), index, chunks * RANKS, torch.device("cpu"))
        for index in (rank, second)[:chunks]
    ]
    runtime_schedule = getattr(schedules, name)(
        stages[0] if form == "order" else stages, 8, loss_fn=torch.nn.functional.mse_loss
    )
    if form == "order":
        text = io.StringIO(newline="")
        csv.writer(text).writerows(
            row for _, row in sorted(runtime_schedule._get_pipeline_order().items())
        )
        return text.getvalue()
    if "format" not in inspect.signature(runtime_schedule._dump_csv).parameters:
        form = ""  # PyTorch 2.9 writes operations alone
    with TemporaryDirectory() as folder:
        runtime_schedule._dump_csv(f"{folder}/order.csv", *filter(None, [form]))
        return Path(f"{folder}/order.csv").read_bytes().decode()


def slept(rank: int, job: Callable[..., Any], *arguments: Any) -> Any:
    """Run a job whose sleeps take no time, but move the clock of this rank; one thread sleeps."""
    now = 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += round(seconds * 1e9)

    def clock() -> int:
        return now

    with mock.patch.multiple(time, sleep=sleep, perf_counter_ns=clock):
        return job(rank, *arguments)


def counted(rank: int, job: Callable[..., Any], *arguments: Any) -> Any:
    """Run a job whose sleeps take no time; return its result and the seconds asked for."""
    seconds: list[float] = []
    with mock.patch.object(time, "sleep", seconds.append):
        return job(rank, *arguments), seconds


def traced(rank: int, schedule: Schedule) -> str:
    """Two steps of 2 ms a unit under torch.profiler, its trace as text."""

    step = _sleeping_step(rank, schedule, 0.002)
    step()
    return _trace(step)


def traced_fsdp(rank: int) -> str:
    """The same of 1F1B on two ranks, with stages of two replicas that FSDP shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    own, group = mesh["pp"].get_local_rank(), mesh["pp"].get_group()
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
    fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    plain, between = torch.zeros(2, 64), torch.zeros(2, 64, requires_grad=True)
    inputs, outputs = (between, plain) if own else (plain, between)
    stage = PipelineStage(
        module, own, 2, torch.device("cpu"), input_args=inputs, output_args=outputs, group=group
    )
    schedule = evaluate(Pipeline(stages=2, batches=3), "1f1b")
    runner = runtime([stage], schedule, torch.nn.functional.mse_loss)
    batch = torch.ones(6, 64)

    def step() -> None:
        module.zero_grad()
        runner.step(*(() if own else (batch,)), target=batch if own else None)

    step()
    return _trace(step)


def _trace(step: Callable[[], object]) -> str:
    """Two steps under torch.profiler, their trace as text."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            step()
    with TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        return Path(f"{folder}/trace.json").read_text()


def metered(rank: int, schedule: Schedule) -> dict[int, StageMemory]:
    """The memory of this rank's stages, three layers each: 8 x 8 floats and a tanh."""
    (hosts,), microbatches = schedule.pipeline.hosts, schedule.pipeline.batches
    plain, between = torch.zeros(2, 8), torch.zeros(2, 8, requires_grad=True)
    stages = [
        PipelineStage(
            torch.nn.Sequential(
                *(m for _ in range(3) for m in (torch.nn.Linear(8, 8), torch.nn.Tanh()))
            ),
            index,
            len(hosts),
            torch.device("cpu"),
            input_args=between if index else plain,
            output_args=between if index + 1 < len(hosts) else plain,
        )
        for index in range(len(hosts))
        if hosts[index] == rank
    ]
    runner = runtime(stages, schedule, torch.nn.functional.mse_loss)
    batch = torch.zeros(2 * microbatches, 8)
    inputs = (batch,) if stages[0].is_first else ()
    last = {"target": batch, "losses": []} if stages[-1].is_last else {}
    with Profiler(stages) as profiler:
        for _ in range(2):
            for stage in stages:
                stage.submod.zero_grad()
            runner.step(*inputs, **last)
            profiler.next_step()
    return dict(profiler.gather().memory)


def divide(_: int, by: int) -> float:
    return 1 / by


def doze(_: int) -> None:
    time.sleep(60)
