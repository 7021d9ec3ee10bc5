"""Run and profile schedules in PyTorch's own pipeline runtime.

    import ppopt.torch

    mine = ppopt.torch.placement(schedule)[rank]        stages that this rank builds
    runtime = ppopt.torch.runtime(stages, schedule, loss_fn)
    runtime.step(batch)                                  as with PyTorch's own schedules

Needs PyTorch 2.13 (the extra `torch`). Without it, importing this package raises InputError, which
says what to install. PyTorch itself is imported on first use.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING

from ppopt.errors import InputError

if TYPE_CHECKING:
    from ppopt.profiles.pipeline_file import write_pipeline
    from ppopt.torch.pipeline_runtime import as_run, placement, runtime
    from ppopt.torch.profiler import Profiler, probe

SUPPORTED = "2.13"
"""The tested version. The runtime is private to PyTorch and may change with every minor version."""

_HOMES = {
    "Profiler": "torch.profiler",
    "as_run": "torch.pipeline_runtime",
    "placement": "torch.pipeline_runtime",
    "probe": "torch.profiler",
    "runtime": "torch.pipeline_runtime",
    "write_pipeline": "profiles.pipeline_file",
}

__all__ = ["Profiler", "as_run", "placement", "probe", "runtime", "write_pipeline"]


def require() -> str:
    """Return PyTorch's version; raise InputError if it is missing or of another minor version."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise InputError(
            f"torch: PyTorch is not installed; install ppopt-pipeline[torch], or torch {SUPPORTED}"
        ) from None
    if not f"{found}.".startswith(f"{SUPPORTED}."):
        raise InputError(
            f"torch: version {found} is installed; schedules run through a private class of "
            f"PyTorch that is tested with {SUPPORTED}: install torch {SUPPORTED}"
        )
    return found


require()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ppopt.torch' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ppopt.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
