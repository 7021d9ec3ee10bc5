"""PyTorch runs our schedules: its own runtime, built from a schedule with its traps handled.

    import ppopt.torch

    mine = ppopt.torch.placement(schedule)[rank]        stages that this rank builds
    runtime = ppopt.torch.runtime(stages, schedule, loss_fn)
    runtime.step(batch)                                  as PyTorch's own schedules do

Needs PyTorch 2.13 (the extra `torch`): importing this package raises InputError, with one line
that says what to install, where there is none or another version. PyTorch itself loads on use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ppopt.torch.version import require

if TYPE_CHECKING:
    from ppopt.profiles.pipeline_file import write_pipeline
    from ppopt.torch.building import as_run, placement, runtime
    from ppopt.torch.probing import probe
    from ppopt.torch.profiler import Profiler

require()

_HOMES = {
    "Profiler": "torch.profiler",
    "as_run": "torch.building",
    "placement": "torch.building",
    "probe": "torch.probing",
    "runtime": "torch.building",
    "write_pipeline": "profiles.pipeline_file",
}

__all__ = ["Profiler", "as_run", "placement", "probe", "runtime", "write_pipeline"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ppopt.torch' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ppopt.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
