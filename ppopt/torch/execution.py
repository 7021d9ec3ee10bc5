"""Run and profile a model, one process per device, and check its gradients.

The model is the user's own, or one of stages that sleep (`ppopt.torch.sleeping`). A command is a
few jobs of a `World` in a row: load the model, trace its modules, compute the gradients to compare
with, run. Each process keeps its `Modules` from one job to the next, so that it builds every module
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import distributed

from ppopt.errors import InputError, VerificationError
from ppopt.formats import torch_csv
from ppopt.formats.loader_order import loader_order, microbatch_numbers
from ppopt.problem.objective import Objective
from ppopt.problem.operation import ONCE, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import Profile, Record
from ppopt.profiles.pipeline_file import MeasuredLayer
from ppopt.schedule import communication, timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.torch.job import (
    Cut,
    Job,
    Modules,
    TensorMeta,
    Trace,
    as_tuple,
    boundaries,
    build_stages,
    counts_of,
    load_job,
    roles_of,
)
from ppopt.torch.pipeline_runtime import as_run, load, runtime
from ppopt.torch.profiler import Profiler, probe
from ppopt.torch.simulation import RankSimulation, Simulation, SleepingModel
from ppopt.torch.world import World

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed difference of a gradient from the reference, relative to the largest gradient of its
module. Results differ because microbatches are summed in another order, and compiled code rounds
differently."""
LOW_PRECISION = 3e-2
"""Allowed difference for types with fewer bits."""


_loaded: dict[str, Modules] = {}
"""In a process of a world: the modules of the running command, under `modules`."""


class UserModel(NamedTuple):
    """The user's model as a command runs it."""

    spec: str
    """`file.py:function`."""
    batches: int
    """Microbatches."""
    backend: str | None = None
    """Backend of torch.compile; None: eager."""

    def load(self) -> Job:
        """Call the user's function."""
        return load_job(self.spec, self.batches)

    def counts(self, pipeline: Pipeline, modules: int) -> tuple[int, ...]:
        """The number of layers of every stage."""
        return counts_of(pipeline, modules)

    def simulation(self, _: Schedule, __: Path) -> None:
        """Nothing is simulated."""


RunnableModel = UserModel | SleepingModel
"""A model that runs: it loads in every process."""


class RunResult(NamedTuple):
    """Result of running a schedule."""

    steps: tuple[float, ...]
    """Seconds of every measured step, from the first start to the last end of an operation."""
    gradients: int
    """Number of gradients that were compared with the reference."""
    difference: float
    """Largest difference of a gradient from the reference, relative to the largest gradient of its
    module."""
    records: tuple[Record, ...]
    """Operations of the measured steps, with the schedule's numbers of microbatches."""


def _silent(_: str) -> None:
    """Say nothing."""


def run(
    world: World,
    schedules: Sequence[Schedule],
    model: RunnableModel,
    *,
    steps: int = 1,
    check: bool = True,
    text: str | None = None,
    note: Callable[[str], None] = _silent,
) -> list[RunResult]:
    """Run schedules with a model: a warm-up step each, then `steps` measured ones.

    The measured steps of the schedules alternate, so that all see the same machine; all schedules
    share the weights. The microbatches of the job's batch are passed in the order of each schedule
    (`loader_order`). With `check`, gradients and losses of the last step are compared with those of
    one process that has the whole model. `text` replaces the order for PyTorch (`order_text`),
    unchecked. `note` is called with a text at the begin of every phase. Raises InputError if the
    model does not fit a schedule or fails, and VerificationError if a gradient or a loss differs.
    """
    modules = _load_everywhere(world, model)
    cuts = [
        Cut(_counts(schedule, model, modules), schedule.pipeline.hosts[0], model.backend)
        for schedule in schedules
    ]
    first = set().union(*(cut.modules_on(0) for cut in cuts))
    with TemporaryDirectory(prefix="ppopt-") as folder:
        path = Path(folder) / "reference.pt" if check else None
        metas = _traced(world, model, range(modules) if check else first, note).metas
        if path is not None:
            note("computing a step of the whole model in one process, to compare with")
            _first(world, partial(_write_reference, model.batches, path, first))
        turns = f" of {len(schedules)} schedules by turns" if len(schedules) > 1 else ""
        note(f"running {steps + 1} steps{turns}")
        simulations = [model.simulation(schedule, Path(folder)) for schedule in schedules]
        ranks: list[list[_Ran]] = world.run(
            _run, [(schedules, cuts, metas, steps, path, text, simulations)] * world.size
        )
    return [
        _result(schedule, [ran[index] for ran in ranks], steps)
        for index, schedule in enumerate(schedules)
    ]


def _counts(schedule: Schedule, model: RunnableModel, modules: int) -> tuple[int, ...]:
    """Modules per stage; raises InputError for what cannot run."""
    torch_csv.order_csv(schedule)  # raises InputError for what PyTorch cannot run
    if model.backend is not None and bool((schedule.kind == OpKind.B).any()):
        raise InputError(
            "compile: a compiled module cannot split its backward; solve with --backward whole"
        )
    return model.counts(schedule.pipeline, modules)


def _result(schedule: Schedule, ranks: Sequence[_Ran], steps: int) -> RunResult:
    """Combine the ranks' results; raises VerificationError if a gradient or a loss differs."""
    compared = [comparison for rank in ranks for comparison in rank.compared]
    if wrong := [comparison for comparison in compared if not comparison.excess <= 1]:
        worst = max(wrong, key=lambda comparison: comparison.excess)
        raise VerificationError(
            f"run: {worst.name} differs from that of one process by {worst.excess:.3g} times "
            "what rounding explains; a module that is random (dropout) or keeps state between "
            "microbatches gives other gradients in a pipeline"
        )
    original = {ONCE: ONCE} | {
        renumbered: microbatch for microbatch, renumbered in microbatch_numbers(schedule).items()
    }
    records = tuple(
        record._replace(microbatch=original[record.microbatch])
        for rank in ranks
        for record in rank.records
    )
    gradients = [comparison.relative for comparison in compared if comparison.relative is not None]
    largest = max(gradients, default=0.0)
    return RunResult(_step_lengths(records, steps), len(gradients), largest, records)


def _step_lengths(records: Sequence[Record], steps: int) -> tuple[float, ...]:
    """Seconds of every step, from the first start to the last end of an operation."""
    seconds = []
    for step in range(steps):
        ran = [record for record in records if record.step == step]
        first, last = min(r.start for r in ran), max(r.end for r in ran)
        seconds.append((last - first) / 1e9)
    return tuple(seconds)


def predicted_schedule(schedule: Schedule) -> Schedule:
    """Time a schedule's order with earliest starts and PyTorch's operation times (`as_run`).

    If links are resources, they become streams (`communication.as_streams`).
    """
    over_streams = communication.as_streams(schedule) if schedule.pipeline.has_links else schedule
    origin = Origin(strategy=schedule.origin.strategy or "schedule", status="feasible")
    ran = replace(over_streams, pipeline=as_run(over_streams.pipeline), origin=origin)
    return timing.retimed(ran, Objective.MAKESPAN)


def predicted_makespan(schedule: Schedule) -> Fraction:
    """Makespan of `predicted_schedule`, in the user's unit."""
    predicted = predicted_schedule(schedule)
    return predicted.pipeline.ticks.time(predicted.metrics.makespan_ticks)


def measure(
    world: World,
    model: RunnableModel,
    schedule: Schedule | None = None,
    *,
    steps: int = 5,
    roles: Sequence[str] | None = None,
    note: Callable[[str], None] = _silent,
) -> tuple[Profile, list[MeasuredLayer]]:
    """Profile the stages of a schedule, or without one every module as a stage of its own.

    Modules are spread over the devices of the world in order. For compiled stages only whole
    backwards are measured, since PyTorch cannot split them. `roles` has the role of every module;
    None: see `ppopt.torch.job.roles_of`. `note` is called with a text at the begin of every phase.
    """
    modules = _load_everywhere(world, model)
    if roles is not None and len(roles) != modules:
        raise InputError(f"roles: they name {len(roles)} layers, the job has {modules} modules")
    if schedule is None:
        if modules < world.size:
            raise InputError(
                f"stages-from: the job has {modules} modules for {world.size} devices; give each "
                "device one"
            )
        counts = (1,) * modules
        hosts = tuple(index * world.size // modules for index in range(modules))
    else:
        counts, hosts = model.counts(schedule.pipeline, modules), schedule.pipeline.hosts[0]
    cut = Cut(counts, hosts, model.backend)
    metas, names = _traced(world, model, cut.modules_on(0), note)
    order = probe(model.batches, hosts, split=model.backend is None)
    note(f"running {steps + 1} steps")
    profile: Profile = world.run(_profile, [(order, cut, metas, steps)] * world.size)[0]
    sizes = [sum(meta.nbytes for meta in after) for after in metas[1:]]
    module_roles = roles or roles_of(names, metas)
    return profile, [MeasuredLayer(*row) for row in zip(names, sizes, module_roles, strict=True)]


def _load_everywhere(world: World, model: RunnableModel) -> int:
    """Load the job in every process; return its number of modules."""
    return int(world.run(_load, [(model, world.device(rank)) for rank in range(world.size)])[0])


def _load(_: int, model: RunnableModel, device: str) -> int:
    _loaded["modules"] = Modules(model.load(), device)
    return len(_loaded["modules"])


def _first(world: World, job: Callable[[], Any]) -> Any:
    """Run a job on rank 0 alone."""
    return world.run(_only_first, [(job,)] * world.size)[0]


def _only_first(rank: int, job: Callable[[], Any]) -> Any:
    return None if rank else job()


def _traced(
    world: World, model: RunnableModel, keep: Collection[int], note: Callable[[str], None]
) -> Trace:
    """Run the forward of every module once, in one process; it keeps only the modules `keep`."""
    note(f"loaded the model; building its modules on {world.device(0)}, running each forward once")
    trace: Trace = _first(world, partial(_trace, model.batches, keep))
    return trace


def _trace(batches: int, keep: Collection[int]) -> Trace:
    return boundaries(_loaded["modules"], batches, keep)


def _write_reference(batches: int, path: Path, keep: Collection[int]) -> None:
    """Compute a step in this process, microbatch by microbatch, and write losses and gradients.

    Modules other than those to `keep` are freed.
    """
    modules = _loaded["modules"]
    losses = []
    for index in range(batches):
        microbatch = modules.job.microbatch(index, batches, modules.device)
        output: Any = microbatch.arguments
        for module in modules:
            output = module(*as_tuple(output), **microbatch.kwargs)
        loss = modules.job.loss(output, microbatch.target)
        if loss.requires_grad:
            (loss / batches).backward()
        losses.append(loss.item())
    gradients = {
        f"{index}.{name}": None if weight.grad is None else weight.grad.cpu()
        for index, module in enumerate(modules)
        for name, weight in module.named_parameters()
    }
    exact = all(weight.dtype == torch.float64 for weight in _weights(modules))
    allowed = TOLERANCES[torch.float64] if exact else LOW_PRECISION
    torch.save({"losses": losses, "gradients": gradients, "allowed": allowed}, path)
    modules.zero_grad()
    modules.keep(keep)


def _weights(modules: Modules) -> Iterator[Any]:
    for module in modules:
        yield from module.parameters()


class _Comparison(NamedTuple):
    """The difference of a gradient, or of a loss, from the reference."""

    name: str
    excess: float
    """Difference / allowed difference."""
    relative: float | None = None
    """Of a gradient: difference / largest gradient of its module."""


class _Ran(NamedTuple):
    """Measurements and comparisons of one rank."""

    records: list[Record]
    compared: list[_Comparison]


def _run(
    rank: int,
    schedules: Sequence[Schedule],
    cuts: Sequence[Cut],
    metas: Sequence[tuple[TensorMeta, ...]],
    steps: int,
    reference: Path | None,
    text: str | None,
    simulations: Sequence[Simulation | None],
) -> list[_Ran]:
    """Run the steps of the schedules alternately on this rank."""
    modules = _loaded.pop("modules")
    modules.keep(set().union(*(cut.modules_on(rank) for cut in cuts)))
    wanted = None if reference is None else torch.load(reference, map_location="cpu", mmap=True)
    with ExitStack() as entered:
        turns = []
        for schedule, cut, simulation in zip(schedules, cuts, simulations, strict=True):
            turn = _RankRun(schedule, cut, build_stages(modules, cut, metas, rank), modules, text)
            turn.profiler = entered.enter_context(Profiler(turn.stages, memory=False))
            if simulation is not None:
                turn.simulation = entered.enter_context(
                    RankSimulation(simulation, rank, turn.stages)
                )
            turns.append(turn)
        for step in range(-1, steps):
            for turn in turns:
                losses = turn.step(step)
                if step == steps - 1 and wanted is not None:  # the next one has other gradients
                    turn.compare(losses, wanted)
    return [turn.result() for turn in turns]


class _RankRun:
    """One schedule on this rank."""

    profiler: Profiler
    simulation: RankSimulation | None = None

    def __init__(
        self, schedule: Schedule, cut: Cut, stages: list[Any], modules: Modules, text: str | None
    ) -> None:
        self._cut, self._modules, self.stages = cut, modules, stages
        self._order = loader_order(schedule)
        self._job = modules.job.in_order(self._order)
        self._runtime = (
            runtime(stages, schedule, self._job.loss)
            if text is None
            else load(stages, text, schedule.pipeline.batches, self._job.loss)
        )
        self._compared: list[_Comparison] = []
        self._around: list[Record] = []

    def step(self, index: int) -> list[float]:
        """Run a step after a barrier of all ranks; return the losses (`run_step`)."""
        distributed.barrier()
        if self.simulation is not None:
            self.simulation.begin_step(index)
        self.profiler.begin_step()
        losses = run_step(self._runtime, self.stages, self._modules, self._job)
        if self.simulation is not None:
            self._around += self.simulation.end_step()
        self.profiler.next_step()
        return losses

    def compare(self, losses: Sequence[float], wanted: Mapping[str, Any]) -> None:
        """Compare gradients and losses of the last step with those of one process."""
        for stage in self.stages:
            indices = self._cut.modules(stage.stage_index)
            for index, module in zip(indices, _layers(stage.submod), strict=True):
                self._compared += _compared_module(index, module, wanted["gradients"])
        for microbatch, loss in zip(self._order, losses, strict=bool(losses)):
            reference = wanted["losses"][microbatch]
            off = abs(loss - reference) / max(abs(reference), 1e-30)
            self._compared.append(_Comparison("a loss", off / wanted["allowed"]))

    def result(self) -> _Ran:
        """The measurements and comparisons."""
        measured = [record for record in self._around if record.step >= 0]
        return _Ran([*self.profiler.records, *measured], self._compared)


def run_step(
    built: Any, stages: Sequence[Any], modules: Modules, job: Job | None = None
) -> list[float]:
    """Run one step of a job from zero gradients; return the losses on the last stage's rank.

    `job` is the modules' job by default, or the same with its microbatches in another order.
    """
    job, device = job or modules.job, modules.device
    modules.zero_grad()
    inputs = job.arguments if any(stage.is_first for stage in stages) else ()
    last = any(stage.is_last for stage in stages)
    losses: list[Any] = []
    built.step(
        *(tensor.to(device) for tensor in inputs),
        target=job.target.to(device) if last else None,
        losses=losses if last else None,
        **{name: tensor.to(device) for name, tensor in job.tensor_kwargs.items()},
    )
    return [value.item() for value in losses]


def _layers(module: Any) -> Any:
    """The modules of a stage, compiled or not."""
    return getattr(module, "_orig_mod", module).layers


def _compared_module(index: int, module: Any, wanted: dict[str, Any]) -> Iterator[_Comparison]:
    """Compare the gradients of a module, on its device."""
    weights = dict(module.named_parameters())
    expected = {name: wanted[f"{index}.{name}"] for name in weights}
    largest = (_largest(gradient) for gradient in expected.values() if gradient is not None)
    scale = max(largest, default=0.0) or 1.0
    for name, weight in weights.items():
        own, reference = weight.grad, expected[name]
        if own is None and reference is None:
            continue
        off = float("inf")
        if own is not None and reference is not None:
            off = _largest(own - reference.to(weight.device)) / scale
        allowed = TOLERANCES.get(weight.dtype, LOW_PRECISION)
        yield _Comparison(f"the gradient of {name} of module {index}", off / allowed, off)


def _largest(tensor: Any) -> float:
    """Largest absolute entry; NaN counts as infinite."""
    if not tensor.numel():
        return 0.0
    largest = float(tensor.abs().max().item())
    return float("inf") if isnan(largest) else largest


def _profile(
    rank: int, order: Schedule, cut: Cut, metas: Sequence[tuple[TensorMeta, ...]], steps: int
) -> Profile:
    modules = _loaded.pop("modules")
    modules.keep(cut.modules_on(rank))
    stages = build_stages(modules, cut, metas, rank)
    built = runtime(stages, order, modules.job.loss)
    with Profiler(stages) as profiler:
        for _ in range(1 + steps):
            distributed.barrier()
            run_step(built, stages, modules)
            profiler.next_step()
    return profiler.gather()
