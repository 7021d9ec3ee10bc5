"""The order lists of Megatron-LM: for every rank, its model chunks in the order they run.

Megatron-core's `convert_schedule_table_to_order` (megatron/core/pipeline_parallel/schedules.py)
makes such a list, which Transformer Engine's `make_graphed_callables` takes as `_order`: `c`
stands for a forward of the rank's chunk c, counted from 1, and `-c` for a backward. Microbatches
are not named: the k-th forward and the k-th backward of a chunk are those of microbatch k.
"""

from __future__ import annotations

import json

from ppopt.errors import InputError
from ppopt.formats.torch_csv import microbatch_numbers
from ppopt.problem.operation import OpKind
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import Row
from ppopt.verifier import verify
from ppopt.verifier.measured import planned


def dumps(schedule: Schedule) -> str:
    """Write the lists of all ranks as JSON, one line per rank.

    Raises InputError for what the lists cannot say: another placement than Megatron's (stage s on
    rank s mod ranks), split backwards, microbatches of a chunk out of order, two routes; and where
    the operations are no schedule of their pipeline. The memory limit does not matter.
    """
    pipeline = schedule.pipeline
    ranks = pipeline.num_devices
    if pipeline.hosts != (tuple(stage % ranks for stage in range(pipeline.num_stages)),):
        raise InputError("megatron: the placement is neither linear nor interleaved; write .json")
    if pipeline.num_slices > 1:
        raise InputError("megatron: its lists know no slices of microbatches; write .json instead")
    if schedule.seconds.any():
        raise InputError(
            "megatron: its lists know no overlapped pairs; write .csv or .json instead"
        )
    planned(schedule, "megatron")
    found = verify(schedule, enforce_limit=False)
    if found:
        raise InputError(f"megatron: not a schedule of its pipeline: {found[0]}; mend it first")
    numbers = microbatch_numbers(schedule)
    done: dict[int, int] = {}
    orders: list[list[int]] = [[] for _ in range(ranks)]
    for row in schedule.rows():
        chunk = _signed_chunk(row, ranks)
        key = row.stage if chunk > 0 else -1 - row.stage
        if numbers[row.microbatch] != done.get(key, 0):
            raise InputError(
                f"megatron: {row.op} is out of order: a chunk's microbatches run in the order of "
                "the last stage's forwards there; write .csv or .json instead"
            )
        done[key] = done.get(key, 0) + 1
        orders[row.device].append(chunk)
    return "[\n" + ",\n".join(map(json.dumps, orders)) + "\n]\n"


def _signed_chunk(row: Row, ranks: int) -> int:
    chunk = row.stage // ranks + 1
    if row.kind is OpKind.F:
        return chunk
    if row.kind is OpKind.BW:
        return -chunk
    raise InputError(f"megatron: {row.op}: its lists know whole backwards only; solve with --fused")
