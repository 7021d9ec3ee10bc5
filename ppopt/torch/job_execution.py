"""Run and profile the user's own model, one process per device, and check its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import torch
from torch import distributed

from ppopt.errors import InputError, VerificationError
from ppopt.formats import torch_csv
from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import Profile, Record
from ppopt.profiles.pipeline_file import MeasuredLayer
from ppopt.schedule.schedule import Schedule
from ppopt.torch.execution import RunResult, renumbered, step_lengths
from ppopt.torch.job import (
    Cut,
    Job,
    TensorMeta,
    as_tuple,
    boundaries,
    build_stages,
    counts_of,
    load_job,
    roles_of,
)
from ppopt.torch.pipeline_runtime import runtime
from ppopt.torch.profiler import Profiler, probe
from ppopt.torch.world import World

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Allowed difference of a gradient from the reference, relative to the largest gradient of its
module. Results differ because microbatches are summed in another order, and compiled code rounds
in other places."""
LOW_PRECISION = 3e-2
"""The same where a type has fewer bits."""


class UserModel(NamedTuple):
    """The user's model as a command runs it."""

    spec: str
    """`file.py:function`."""
    batches: int
    """Microbatches."""
    backend: str | None = None
    """Of torch.compile; None: eager."""

    def load(self) -> Job:
        """Call the user's function."""
        return load_job(self.spec, self.batches)


class Trained(Protocol):
    """A model that `measure` takes: `UserModel`, or another that loads in every process."""

    @property
    def batches(self) -> int:
        """Microbatches."""

    @property
    def backend(self) -> str | None:
        """Of torch.compile; None: eager."""

    def load(self) -> Job:
        """Make the job."""


def run(
    world: World,
    schedules: Sequence[Schedule],
    model: UserModel,
    *,
    steps: int = 1,
    check: bool = True,
) -> list[RunResult]:
    """Run schedules with the user's model: a warm-up step each, then `steps` measured ones.

    The measured steps of the schedules take turns, so that all see the same machine. With `check`,
    gradients and losses are compared with those of one process, which holds the whole model. Raises
    InputError if the model does not fit a schedule or fails, and VerificationError if a
    gradient or a loss differs.
    """
    modules = len(model.load().modules)
    counts = [_counts(schedule, model, modules) for schedule in schedules]
    metas = _traced(world, model)[0]
    cuts = [
        Cut(count, schedule.pipeline.hosts[0], metas, model.backend)
        for count, schedule in zip(counts, schedules, strict=True)
    ]
    with TemporaryDirectory(prefix="ppopt-") as folder:
        path = Path(folder) / "reference.pt" if check else None
        if path is not None:
            _first(world, partial(_write_reference, model=model, path=path))
        arguments = [
            (schedules, model, cuts, steps, path, world.device(rank)) for rank in range(world.size)
        ]
        ranks: list[list[_Ran]] = world.run(_run, arguments)
    return [
        _result(schedule, [ran[index] for ran in ranks], steps)
        for index, schedule in enumerate(schedules)
    ]


def _counts(schedule: Schedule, model: UserModel, modules: int) -> tuple[int, ...]:
    """Modules per stage; raises InputError for what cannot run."""
    torch_csv.order_csv(schedule)  # raises InputError for what PyTorch cannot run
    if model.backend is not None and bool((schedule.kind == OpKind.B).any()):
        raise InputError(
            "compile: a compiled module cannot split its backward; solve with --backward whole"
        )
    return counts_of(schedule.pipeline, modules)


def _result(schedule: Schedule, ranks: Sequence[_Ran], steps: int) -> RunResult:
    """Put the ranks together; raises VerificationError if a gradient or a loss differs."""
    found = _together(ranks)
    if not found.difference <= 1:
        raise VerificationError(
            f"run: {found.worst} differs from that of one process by {found.difference:.3g} times "
            "what rounding explains; a module that is random (dropout) or keeps state between "
            "microbatches gives other gradients in a pipeline"
        )
    records = renumbered(schedule, [record for rank in ranks for record in rank.records])
    return RunResult(step_lengths(records, steps), found.gradients, found.relative, records)


def measure(
    world: World,
    model: Trained,
    schedule: Schedule | None = None,
    *,
    steps: int = 5,
    roles: Sequence[str] | None = None,
) -> tuple[Profile, list[MeasuredLayer]]:
    """Profile the stages of a schedule, or without one every module as a stage of its own.

    Modules are spread over the devices of the world in order. Of compiled stages only whole
    backwards are measured: PyTorch cannot split them. `roles` has the role of every module; None:
    see `ppopt.torch.job.roles_of`.
    """
    modules = len(model.load().modules)
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
        counts, hosts = counts_of(schedule.pipeline, modules), schedule.pipeline.hosts[0]
    metas, names = _traced(world, model)
    cut = Cut(counts, hosts, metas, model.backend)
    order = probe(model.batches, hosts, split=model.backend is None)
    arguments = [(order, model, cut, steps, world.device(rank)) for rank in range(world.size)]
    profile: Profile = world.run(_profile, arguments)[0]
    sizes = [sum(meta.nbytes for meta in after) for after in metas[1:]]
    found = roles or roles_of(names, metas)
    return profile, [MeasuredLayer(*row) for row in zip(names, sizes, found, strict=True)]


def _first(world: World, job: Callable[..., Any]) -> Any:
    """Run a job on rank 0 alone; raises the InputError that it returns."""
    found = world.run(_only_first, [(job, world.device(0))] * world.size)[0]
    if isinstance(found, InputError):
        raise found
    return found


def _only_first(rank: int, job: Callable[..., Any], device: str) -> Any:
    if rank:
        return None
    try:
        return job(device=device)
    except InputError as error:
        return error


def _traced(world: World, model: Trained) -> tuple[list[tuple[TensorMeta, ...]], list[str]]:
    found: tuple[list[tuple[TensorMeta, ...]], list[str]] = _first(
        world, partial(_trace, model=model)
    )
    return found


def _trace(device: str, model: Trained) -> tuple[list[tuple[TensorMeta, ...]], list[str]]:
    job = model.load()
    metas = boundaries(job, model.batches, device)
    return metas, [type(job.module(index)).__name__ for index in range(len(job.modules))]


def _write_reference(device: str, model: UserModel, path: Path) -> None:
    """Compute a step in this process, microbatch by microbatch, and write losses and gradients."""
    job = model.load()
    modules = [job.module(index).to(device) for index in range(len(job.modules))]
    losses = []
    for index in range(model.batches):
        part = job.microbatch(index, model.batches, device)
        output: Any = part.arguments
        for module in modules:
            output = module(*as_tuple(output), **part.kwargs)
        loss = job.loss(output, part.target)
        (loss / model.batches).backward()
        losses.append(loss.item())
    gradients = {
        f"{index}.{name}": None if weight.grad is None else weight.grad.cpu()
        for index, module in enumerate(modules)
        for name, weight in module.named_parameters()
    }
    torch.save({"losses": losses, "gradients": gradients}, path)


class _Ran(NamedTuple):
    """What one rank measured and compared."""

    records: list[Record]
    gradients: int
    """Gradients compared."""
    difference: float
    """Largest difference / allowed difference."""
    relative: float
    """Largest difference / largest gradient of its module."""
    worst: str
    """What differs most."""


def _together(ranks: Sequence[_Ran]) -> _Ran:
    worst = max(ranks, key=lambda rank: rank.difference)
    compared = sum(rank.gradients for rank in ranks)
    largest = max(rank.relative for rank in ranks)
    return _Ran([], compared, worst.difference, largest, worst.worst)


def _run(
    rank: int,
    schedules: Sequence[Schedule],
    model: UserModel,
    cuts: Sequence[Cut],
    steps: int,
    reference: Path | None,
    device: str,
) -> list[_Ran]:
    """Run the schedules by turns on this rank."""
    jobs = [model.load() for _ in schedules]  # each with weights of its own
    stages = [build_stages(job, cut, rank, device) for job, cut in zip(jobs, cuts, strict=True)]
    made = [
        runtime(mine, schedule, job.loss)
        for mine, schedule, job in zip(stages, schedules, jobs, strict=True)
    ]
    losses: list[list[float]] = [[]] * len(schedules)
    with ExitStack() as entered:
        profilers = [entered.enter_context(Profiler(mine, memory=False)) for mine in stages]
        for _ in range(1 + steps):
            for index, profiler in enumerate(profilers):
                distributed.barrier()
                profiler.begin_step()
                losses[index] = run_step(made[index], stages[index], jobs[index], device)
                profiler.next_step()
    ran = [_Ran(profiler.records, 0, 0.0, 0.0, "") for profiler in profilers]
    if reference is None:
        return ran
    wanted = torch.load(reference, map_location="cpu", mmap=True)
    return [_compared(*each, wanted) for each in zip(ran, stages, cuts, losses, strict=True)]


def run_step(made: Any, stages: Sequence[Any], job: Job, device: Any) -> list[float]:
    """Run one step from zero gradients; return the losses on the rank of the last stage."""

    def on_device(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    for stage in stages:
        stage.submod.zero_grad()
    inputs = job.arguments if any(stage.is_first for stage in stages) else ()
    last = any(stage.is_last for stage in stages)
    losses: list[Any] = []
    made.step(
        *map(on_device, inputs),
        target=on_device(job.target) if last else None,
        losses=losses if last else None,
        **{name: on_device(value) for name, value in job.kwargs.items()},
    )
    return [value.item() for value in losses]


def _compared(
    ran: _Ran,
    stages: Sequence[Any],
    cut: Cut,
    losses: Sequence[float],
    wanted: Mapping[str, Any],
) -> _Ran:
    found = [
        _compared_module(index, module, wanted["gradients"])
        for stage in stages
        for index, module in zip(cut.modules(stage.stage_index), _layers(stage.submod), strict=True)
    ]
    if losses:
        relative = max(
            abs(a - b) / max(abs(b), 1e-30) for a, b in zip(losses, wanted["losses"], strict=True)
        )
        found.append(ran._replace(difference=relative / LOW_PRECISION, worst="a loss"))
    return _together(found)._replace(records=ran.records)


def _layers(module: Any) -> Any:
    """The modules of a stage, compiled or not."""
    return getattr(module, "_orig_mod", module).layers


def _compared_module(index: int, module: Any, wanted: dict[str, Any]) -> _Ran:
    names = {name: f"{index}.{name}" for name, _ in module.named_parameters()}
    given = [gradient for name in names.values() if (gradient := wanted[name]) is not None]
    largest = map(_largest, given)
    scale = max(largest, default=0.0) or 1.0
    compared = []
    for name, weight in module.named_parameters():
        mine, theirs = weight.grad, wanted[names[name]]
        if mine is not None or theirs is not None:
            both = mine is not None and theirs is not None
            off = _largest(mine.cpu() - theirs) / scale if both else float("inf")
            allowed = TOLERANCES.get(weight.dtype, LOW_PRECISION)
            what = f"the gradient of {name} of module {index}"
            compared.append(_Ran([], 1, off / allowed, off, what))
    return _together(compared) if compared else _Ran([], 0, 0.0, 0.0, "")


def _largest(tensor: Any) -> float:
    """Largest absolute entry; NaN counts as infinite."""
    if not tensor.numel():
        return 0.0
    found = float(tensor.abs().max().item())
    return float("inf") if isnan(found) else found


def _profile(
    rank: int, order: Schedule, model: Trained, cut: Cut, steps: int, device: str
) -> Profile:
    job = model.load()
    stages = build_stages(job, cut, rank, device)
    made = runtime(stages, order, job.loss)
    with Profiler(stages) as profiler:
        for _ in range(1 + steps):
            distributed.barrier()
            run_step(made, stages, job, device)
            profiler.next_step()
    return profiler.gather()
