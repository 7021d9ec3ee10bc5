"""Run the schedules of ppopt in Primus, by the pipeline runtime of its Megatron backend.

Copy this file to primus/backends/megatron/patches/parallelism/ of AMD-AGI/Primus (fd1eeab). Primus
imports every module there whose name ends in `_patch`. On every rank, the environment variable
PPOPT_SCHEDULE is the path of the table that `ppopt export --to primus` writes. Without the
variable, this file changes nothing.
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from primus.core.pipeline_parallel.scheduler.algorithms.base import PipelineScheduleAlgo
from primus.core.pipeline_parallel.scheduler.schedule_table_factory import pp_algorithm_map
from primus.core.pipeline_parallel.scheduler.scheduler_node import FuncType, SchedulerNode

VARIABLE = "PPOPT_SCHEDULE"
_SEND, _RECEIVE = (FuncType.SF, FuncType.SB), (FuncType.RF, FuncType.RB)


class ScheduleTable(PipelineScheduleAlgo):
    """The nodes of every rank, read from a table of ppopt.

    Raises ValueError if the table is of another pipeline, or needs other settings of Primus.
    """

    def __init__(
        self,
        pp_size: int,
        vpp_size: int,
        micro_batches: int,
        table: str | None = None,
        algorithm: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(pp_size, vpp_size, micro_batches)
        path = table or os.environ[VARIABLE]
        self.table = json.loads(Path(path).read_text(encoding="utf-8"))
        stated: dict[str, Any] = {
            "pp_size": pp_size,
            "vpp_size": vpp_size,
            "micro_batches": micro_batches,
        }
        if algorithm is not None:
            stated["pp_algorithm"] = algorithm
        stated |= {key: value for key, value in settings.items() if key in self.table}
        for key, value in stated.items():
            if self.table[key] != value:
                raise ValueError(f"{path}: {key} is {self.table[key]} there, and {value} here")
        self.places = {
            stage: (rank, chunk)
            for rank, stages in enumerate(self.table["stages"])
            for chunk, stage in enumerate(stages)
        }

    def last_pp_stage_rank(self) -> int:
        """The rank that computes the loss."""
        return self.places[max(self.places)][0]

    def direction_map(self, rank: int, chunk: int, func_type: FuncType) -> dict[str, Any]:
        """The ranks and chunks that an operation receives from and sends to."""
        forward = func_type in (FuncType.F, FuncType.SF, FuncType.RF)
        stage, step = self.table["stages"][rank][chunk], 1 if forward else -1
        (before, from_chunk), (after, to_chunk) = (
            self.places.get(neighbour, (None, None)) for neighbour in (stage - step, stage + step)
        )
        return {
            "prev": (before, FuncType.RF if forward else FuncType.RB),
            "next": (after, FuncType.SF if forward else FuncType.SB),
            "recv_from_chunk": from_chunk,
            "send_to_chunk": to_chunk,
        }

    def generate_schedule_table(self) -> list[list[SchedulerNode]]:
        """The nodes of every rank, in order."""
        rows = enumerate(self.table["ranks"])
        return [[self._node(rank, *fields) for fields in row] for rank, row in rows]

    def _node(
        self, rank: int, name: str, microbatch: int, chunk: int, args: dict[str, Any] | None = None
    ) -> SchedulerNode:
        func_type = FuncType[name]
        ways = self.direction_map(rank, chunk, func_type)
        ends: dict[str, Any] = {}
        if func_type in _SEND:
            ends = {"from_pp_rank": rank, "to_pp_rank": ways["next"][0]}
            ends["send_to_chunk"] = ways["send_to_chunk"]
        elif func_type in _RECEIVE:
            ends = {"from_pp_rank": ways["prev"][0], "to_pp_rank": rank}
            ends["recv_from_chunk"] = ways["recv_from_chunk"]
        return SchedulerNode(func_type, microbatch, chunk, {**ends, **(args or {})} or None)


if VARIABLE in os.environ:
    for name in pp_algorithm_map:
        pp_algorithm_map[name] = partial(ScheduleTable, algorithm=name)
