"""Run and profile schedules in PyTorch's own pipeline runtime.

    import ppopt.torch

    indices = ppopt.torch.placement(schedule)[rank]      stages that this rank builds
    runtime = ppopt.torch.runtime(stages, schedule, loss_fn)
    runtime.step(batch)                                  as with PyTorch's own schedules

The microbatches of the batch are in the order `ppopt.torch.loader_order(schedule)`.

Needs PyTorch (the extra `torch`; `TESTED` says which). Without it, importing this package raises
InputError, which says what to install. PyTorch itself is imported on first use.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING

from ppopt.errors import InputError

if TYPE_CHECKING:
    from ppopt.formats.loader_order import loader_order
    from ppopt.profiles.pipeline_file import write_pipeline
    from ppopt.torch.job import Job
    from ppopt.torch.pipeline_runtime import as_run, placement, runtime
    from ppopt.torch.profiler import Profiler, probe

_HOMES = {
    "Job": "torch.job",
    "Profiler": "torch.profiler",
    "loader_order": "formats.loader_order",
    "as_run": "torch.pipeline_runtime",
    "placement": "torch.pipeline_runtime",
    "probe": "torch.profiler",
    "runtime": "torch.pipeline_runtime",
    "write_pipeline": "profiles.pipeline_file",
}

__all__ = [
    "TESTED",
    "Job",
    "Profiler",
    "as_run",
    "loader_order",
    "placement",
    "probe",
    "require",
    "runtime",
    "write_pipeline",
]

TESTED = "torch 2.9.1, 2.10.0, 2.11.0, 2.12.1, 2.13.0 and 2.14.1"
"""The tested versions. The runtime is private to PyTorch and may change with every minor version;
`ppopt.torch.pipeline_runtime` checks on first use that the parts it needs exist."""


def require() -> str:
    """Return PyTorch's version; raise InputError if it is missing."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise InputError(
            f"torch: PyTorch is not installed; install ppopt-pipeline[torch] (tested: {TESTED})"
        ) from None


require()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ppopt.torch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ppopt.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
