"""Primus for tests: a checkout of AMD-AGI/Primus where PPOPT_PRIMUS names one, else a stand-in.

The stand-in has the interface that the exported file uses, and nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ppopt

CHECKOUT = os.environ.get("PPOPT_PRIMUS")
PATCH = Path(ppopt.__file__).parent / "formats" / "primus_schedule_patch.py"
SCHEDULER = "primus.core.pipeline_parallel.scheduler"
ALGORITHMS = (
    "1f1b",
    "1f1b-interleaved",
    "zero-bubble",
    "zero-bubble-heuristic",
    "zbv-formatted",
    "v-half",
    "v-min",
)
_TYPES = "F B W BW FB SF SB RF RB O R"


@contextmanager
def primus(checkout: str | None = CHECKOUT) -> Iterator[dict[str, type]]:
    """The algorithms of Primus by name; its modules can be imported."""
    before = dict(sys.modules)
    logs = ModuleType("primus.core.utils.module_utils")
    logs.log_rank_0 = print  # type: ignore[attr-defined]  # its own needs packages of the trainer
    try:
        if checkout is None:
            sys.modules |= _stand_in()
        else:
            sys.path.insert(0, checkout)
            sys.modules[logs.__name__] = logs
        yield import_module(f"{SCHEDULER}.schedule_table_factory").pp_algorithm_map
    finally:
        if checkout is not None:
            sys.path.remove(checkout)
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] == "primus":
                del sys.modules[name]


def schedule_table() -> Any:
    """The class in the file that users copy into Primus; call it within `primus`."""
    spec = importlib.util.spec_from_file_location("ppopt_schedule_patch", PATCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ScheduleTable


def checkout() -> str:
    """The path of a checkout of Primus; without one, the test is skipped."""
    if CHECKOUT is None:
        pytest.skip("primus is absent: PPOPT_PRIMUS names a checkout of AMD-AGI/Primus")
    return CHECKOUT


def _stand_in() -> dict[str, ModuleType]:
    @dataclass
    class SchedulerNode:
        func_type: Any
        mini_batch: int
        chunk: int
        args: dict[str, Any] | None = None

    class PipelineScheduleAlgo:
        def __init__(self, pp_size: int, vpp_size: int, micro_batches: int) -> None:
            self.pp_size, self.vpp_size, self.micro_batches = pp_size, vpp_size, micro_batches

    contents = {
        "scheduler_node": {
            "FuncType": Enum("FuncType", _TYPES),
            "SchedulerNode": SchedulerNode,
        },
        "algorithms.base": {"PipelineScheduleAlgo": PipelineScheduleAlgo},
        "schedule_table_factory": {"pp_algorithm_map": dict.fromkeys(ALGORITHMS, object)},
    }
    modules = {}
    for name, members in contents.items():
        path = f"{SCHEDULER}.{name}".split(".")
        for length in range(1, len(path) + 1):
            parent = ".".join(path[:length])
            modules.setdefault(parent, ModuleType(parent))
        vars(modules[f"{SCHEDULER}.{name}"]).update(members)
    return modules
