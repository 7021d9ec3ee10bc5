"""The user's own model: a function of a Python file that returns its modules, a batch and a loss.

    # my_job.py
    import ppopt.torch

    def build(microbatches):
        return ppopt.torch.Job(modules=[...], inputs=..., target=..., loss=...)

Named `my_job.py:build` on the command line. Every process calls the function once, and builds each
of its modules once, on its device. Nothing else of the model leaves a process.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from ppopt.errors import InputError
from ppopt.formats.fields import within
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.pipeline import Pipeline
from ppopt.torch.pipeline_runtime import first_announced

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MODULE = "ppopt_job"
"""Name under which the user's file is imported."""


@dataclass(frozen=True)
class Job:
    """A model in modules, one training batch, and a loss.

    The output of a module is the input of the next: a tensor, or a tuple of tensors as arguments. A
    module may run on the microbatches in any order, so it must keep no state between them, and it
    must be deterministic (no dropout) for gradients to be comparable.
    """

    modules: Sequence[nn.Module | Callable[[], nn.Module]]
    """In forward order: modules, or functions that build them. Each function is called with its own
    random seed, and its tensors are on the device of the process unless it names another."""
    inputs: Any
    """Tensor or tuple of tensors for the first module: all microbatches along dimension 0."""
    target: Any
    """Tensor for the loss: all microbatches along dimension 0."""
    loss: Callable[..., Any]
    """Called with the last module's output and the target of one microbatch; returns a scalar.
    The gradients of a step are the mean over the microbatches."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of every module, such as masks: tensors are split along dimension 0, other
    values are passed to every microbatch."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The inputs as a tuple."""
        return self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)

    @property
    def tensor_kwargs(self) -> dict[str, Any]:
        """The keyword arguments that are split along dimension 0."""
        return {name: value for name, value in self.kwargs.items() if _is_tensor(value)}

    @property
    def constants(self) -> dict[str, Any]:
        """The other keyword arguments. PyTorch before 2.13 cannot split a backward with them."""
        return {name: value for name, value in self.kwargs.items() if not _is_tensor(value)}

    def module(self, index: int, device: Any = "cpu") -> nn.Module:
        """Build a module on a device, with its index as random seed."""
        source = self.modules[index]
        if isinstance(source, nn.Module):
            return source.to(device)
        torch.manual_seed(index)
        with torch.device(device):
            module = source()
        if not isinstance(module, nn.Module):
            raise InputError(
                f"module {index}: its function returns {type(module).__name__}, "
                "not a torch.nn.Module"
            )
        return module.to(device)

    def microbatch(self, index: int, of: int, device: Any) -> Microbatch:
        """Microbatch `index` of `of`, on a device."""

        def slice_of(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.tensor_split(of)[index].to(device)

        kwargs = {name: slice_of(value) for name, value in self.kwargs.items()}
        return Microbatch(tuple(map(slice_of, self.arguments)), slice_of(self.target), kwargs)

    def in_order(self, order: Sequence[int]) -> Job:
        """The job whose batch has its microbatches in another order."""
        if list(order) == list(range(len(order))):
            return self

        def arranged(value: Any) -> Any:
            parts = value.tensor_split(len(order))
            return torch.cat([parts[index] for index in order])

        kwargs = {name: arranged(value) for name, value in self.tensor_kwargs.items()}
        inputs = tuple(map(arranged, self.arguments))
        target = arranged(self.target)
        return replace(self, inputs=inputs, target=target, kwargs={**self.kwargs, **kwargs})


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class Microbatch(NamedTuple):
    """The parts of a batch that belong to one microbatch."""

    arguments: tuple[Any, ...]
    target: Any
    kwargs: dict[str, Any]


class StageModule(nn.Module):
    """Modules in a row; the output of each is the input of the next.

    `constants` are keyword arguments of every module that are not tensors.
    """

    def __init__(self, modules: Sequence[nn.Module], constants: Mapping[str, Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(modules)
        self.constants = dict(constants)

    def forward(self, *tensors: Any, **kwargs: Any) -> Any:
        """Run all modules; each gets the keyword arguments."""
        output: Any = tensors
        for module in self.layers:
            output = module(*as_tuple(output), **kwargs, **self.constants)
        return output


class Modules:
    """The modules of a job in one process: each is built once, on the device of the process.

    All runs of the process share them and their weights.
    """

    def __init__(self, job: Job, device: Any) -> None:
        self._sources: list[Any] = list(job.modules)
        self.job = replace(job, modules=self._sources)
        self.device = device
        self._built: dict[int, nn.Module] = {}
        self._stages: dict[tuple[range, str | None], Any] = {}

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[nn.Module]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> nn.Module:
        if index not in self._built:
            self._built[index] = self.job.module(index, self.device)
        return self._built[index]

    def stage(self, indices: range, backend: str | None) -> Any:
        """The modules of a stage as one, compiled by a backend of torch.compile unless None."""
        if (indices, backend) not in self._stages:
            constants = self.job.constants
            module: Any = StageModule([self[index] for index in indices], constants)
            self._stages[indices, backend] = (
                module if backend is None else torch.compile(module, backend=backend)
            )
        return self._stages[indices, backend]

    def keep(self, indices: Collection[int]) -> None:
        """Free the modules with other indices; they cannot be built again."""
        for index in set(range(len(self))) - set(indices):
            self._built.pop(index, None)
            self._sources[index] = None

    def zero_grad(self) -> None:
        """Drop the gradients of all modules."""
        for module in self._built.values():
            module.zero_grad()


def as_tuple(output: Any) -> tuple[Any, ...]:
    """The output of a module, as arguments of the next."""
    return tuple(output) if isinstance(output, tuple | list) else (output,)


def load_job(spec: str, microbatches: int) -> Job:
    """Import `file.py:function`, call the function and check the job that it returns.

    Raises InputError, beginning with `spec`, if there is no such function or its job cannot run in
    `microbatches` equal parts.
    """
    with redirect_stdout(sys.stderr):  # stdout is for the command's result
        return within(f"stages-from: {spec}", _built, spec, microbatches)


def _built(spec: str, microbatches: int) -> Job:
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise InputError("name the file and the function, my_job.py:build")
    build = _function(Path(path), name)
    torch.manual_seed(0)
    try:
        job = build(microbatches)
    except Exception as error:
        raise _raised(f"{name}({microbatches})", path, error) from None
    _check(job, microbatches)
    return job


def _function(path: Path, name: str) -> Callable[[int], Job]:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    module_spec = importlib.util.spec_from_file_location(_MODULE, path)
    if module_spec is None or module_spec.loader is None:
        raise InputError(f"{path} is no Python file; end it in .py")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[_MODULE] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise _raised("importing it", str(path), error) from None
    build = getattr(module, name, None)
    if not callable(build):
        raise InputError(f"{path} has no function {name}")
    return build  # type: ignore[no-any-return]


def _raised(what: str, path: str, error: Exception) -> InputError:
    """InputError for an error of the user's code, with the last line of that file in the trace."""
    if isinstance(error, InputError):
        return error
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).name == Path(path).name
    ]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return InputError(f"{what} raised {described(error)}{where}")


def described(error: Exception) -> str:
    """Type and message of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _check(job: object, microbatches: int) -> None:
    """Raise InputError unless this is a job whose batch splits into so many microbatches."""
    if not isinstance(job, Job):
        raise InputError(f"returns {type(job).__name__}, not a ppopt.torch.Job")
    if isinstance(job.modules, nn.Module) and not isinstance(job.modules, Sequence | nn.ModuleList):
        raise InputError("modules is one module; give a list of them")
    if not len(job.modules):
        raise InputError("modules is empty; give one at least")
    for index, module in enumerate(job.modules):
        if not callable(module):
            raise InputError(
                f"modules[{index}] is {type(module).__name__}, neither a "
                "torch.nn.Module nor a function that makes one"
            )
    required = {f"inputs[{n}]": value for n, value in enumerate(job.arguments)}
    required["target"] = job.target
    for name, tensor in required.items():
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{name} is {type(tensor).__name__}, no tensor")
    for name, tensor in [*required.items(), *job.tensor_kwargs.items()]:
        if not tensor.ndim or len(tensor) % microbatches or not len(tensor):
            size = tuple(tensor.shape)
            raise InputError(
                f"{name} has the shape {size}; its first dimension must be a "
                f"multiple of the {microbatches} microbatches"
            )


class TensorMeta(NamedTuple):
    """Metadata of a tensor that one stage passes to the next."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * int(self.dtype.itemsize)

    def tensor(self, announced: bool = False) -> Any:
        """An empty tensor on the meta device; if `announced`, floats require a gradient."""
        tensor = torch.empty(self.shape, dtype=self.dtype, device="meta")
        needed = announced and self.dtype.is_floating_point
        return tensor.requires_grad_(self.requires_grad or needed)


class Trace(NamedTuple):
    """Result of one forward of every module."""

    metas: list[tuple[TensorMeta, ...]]
    """Inputs of every module and the output of the last, for one microbatch."""
    names: list[str]
    """The class of every module."""


def boundaries(modules: Modules, microbatches: int, keep: Collection[int] = ()) -> Trace:
    """Run the forward of every module and the loss once, on one microbatch.

    Frees each module after its forward, except those to `keep`. Raises InputError if a module or
    the loss fails, if a module returns anything but tensors, or if no gradient passes through
    behind the frozen modules in front.
    """
    first = modules.job.microbatch(0, microbatches, modules.device)
    tensors = first.arguments
    trace, trained = Trace([_metas(tensors)], []), False
    for index in range(len(modules)):
        name = type(modules[index]).__name__
        what = f"module {index} ({name})"
        try:
            output = modules[index](*tensors, **first.kwargs)
        except Exception as error:
            raise InputError(f"{what}: its forward raised {described(error)}") from None
        tensors = as_tuple(output)
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise InputError(f"{what}: returns {type(tensor).__name__}; return tensors")
        trace.names.append(name)
        trace.metas.append(_metas(tensors))
        trained |= any(weight.requires_grad for weight in modules[index].parameters())
        if trained and not any(meta.requires_grad for meta in trace.metas[-1]):
            raise InputError(f"{what}: no tensor that it returns requires a gradient")
        tensors = tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors)
        modules.keep({*keep, *range(index + 1, len(modules))})
    _check_loss(modules.job, tensors, first.target, trained=trained)
    return trace


def roles_of(names: Sequence[str], metas: Sequence[tuple[TensorMeta, ...]]) -> list[str]:
    """The role of every module of a language model; `names` are their classes.

    The first is an embedding if its input is integers. The last is a head if its class differs from
    that of the previous module, and its output has another shape than its input. All others count
    as decoder layers, also MTP layers.
    """
    roles = [DECODER] * len(names)
    input_meta, output_meta = metas[-2][0], metas[-1][0]
    if len(names) > 1 and names[-1] != names[-2] and input_meta.shape != output_meta.shape:
        roles[-1] = "head"
    if metas[0][0].dtype in _INTEGERS:
        roles[0] = "embedding"
    return roles


def _metas(tensors: Sequence[Any]) -> tuple[TensorMeta, ...]:
    return tuple(
        TensorMeta(tuple(tensor.shape), tensor.dtype, bool(tensor.requires_grad))
        for tensor in tensors
    )


def _check_loss(job: Job, tensors: tuple[Any, ...], target: Any, *, trained: bool) -> None:
    try:
        value = job.loss(tensors[0] if len(tensors) == 1 else tensors, target)
    except Exception as error:
        raise InputError(f"loss: it raised {described(error)}") from None
    if not isinstance(value, torch.Tensor) or value.ndim or value.requires_grad < trained:
        raise InputError("loss: it returns no scalar tensor that requires a gradient")


def counts_of(pipeline: Pipeline, modules: int) -> tuple[int, ...]:
    """Number of modules per stage: its layers, or one if the pipeline has no layers.

    Raises InputError if their sum is not the number of the job's modules.
    """
    in_layers = pipeline.model is not None
    counts = pipeline.counts if in_layers else (1,) * pipeline.num_stages
    if sum(counts) != modules:
        what = "layers" if in_layers else "stages"
        raise InputError(
            f"stages-from: the job has {modules} modules, the schedule {sum(counts)} {what}; each "
            "module is one of them"
        )
    return tuple(counts)


class Cut(NamedTuple):
    """The division of a job into the stages of a pipeline."""

    counts: tuple[int, ...]
    """Number of modules of every stage."""
    hosts: tuple[int, ...]
    """Device of every stage."""
    backend: str | None = None
    """Backend of torch.compile, for the module of every stage; None: eager."""

    def modules(self, stage: int) -> range:
        """Indices of the modules of a stage."""
        begin = sum(self.counts[:stage])
        return range(begin, begin + self.counts[stage])

    def modules_on(self, rank: int) -> set[int]:
        """Indices of the modules of a rank."""
        return {index for stage in self.stages_on(rank) for index in self.modules(stage)}

    def stages_on(self, rank: int) -> list[int]:
        """Stages of a rank, in ascending order."""
        return [stage for stage, host in enumerate(self.hosts) if host == rank]


def build_stages(
    modules: Modules, cut: Cut, metas: Sequence[tuple[TensorMeta, ...]], rank: int
) -> list[PipelineStage]:
    """Build the stages of a rank, in ascending order; `metas` are those of the `Trace`."""
    boundary = [metas[cut.modules(stage).start] for stage in range(len(cut.hosts))] + [metas[-1]]
    needs = [n for n, after in enumerate(boundary[1:]) if _needs_gradient(after)]
    trained = needs[0] if needs else len(cut.hosts)
    announced = first_announced(cut.hosts, trained)

    def tensors(boundary_index: int, first: int) -> tuple[Any, ...]:
        """Tensors over a stage boundary; from `first` on, those of frozen stages are announced."""
        frozen = 0 < boundary_index < len(cut.hosts) and not _needs_gradient(
            boundary[boundary_index]
        )
        return tuple(
            meta.tensor(frozen and first <= boundary_index) for meta in boundary[boundary_index]
        )

    return [
        PipelineStage(
            modules.stage(cut.modules(stage), cut.backend),
            stage,
            len(cut.hosts),
            torch.device(modules.device),
            input_args=tensors(stage, trained),
            output_args=tensors(stage + 1, announced + 1),
        )
        for stage in cut.stages_on(rank)
    ]


def _needs_gradient(metas: Sequence[TensorMeta]) -> bool:
    return any(meta.requires_grad for meta in metas)
