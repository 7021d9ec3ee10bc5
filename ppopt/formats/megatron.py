"""Order lists of Megatron-LM: for every rank, its model chunks in execution order.

Megatron-core's `convert_schedule_table_to_order` (megatron/core/pipeline_parallel/schedules.py)
makes such a list, and Transformer Engine's `make_graphed_callables` takes it as `_order`. The entry
`c` is a forward of the rank's chunk c, counted from 1, and `-c` is a backward. Microbatches are
implicit: the k-th forward and the k-th backward of a chunk belong to microbatch k.
"""

from __future__ import annotations

import json
from collections import Counter

from ppopt.errors import InputError
from ppopt.formats.torch_csv import check_planned, microbatch_numbers
from ppopt.problem.operation import OpKind
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ScheduledOperation


def megatron_lists(schedule: Schedule) -> str:
    """Write the lists of all ranks as JSON, one line per rank.

    Raises InputError for what the lists cannot express: a placement other than Megatron's (stage s
    on rank s mod ranks), split backwards, overlapped pairs, slices, two routes, and microbatches of
    a chunk out of order. Also raises it where the operations are not a valid schedule of their
    pipeline. The memory limit is ignored.
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
    check_planned(schedule, "megatron")
    numbers = microbatch_numbers(schedule)
    done: Counter[tuple[int, int]] = Counter()
    orders: list[list[int]] = [[] for _ in range(ranks)]
    for row in schedule.rows():
        chunk = _signed_chunk(row, ranks)
        if numbers[row.microbatch] != done[chunk, row.device]:
            raise InputError(
                f"megatron: {row.op} is out of order: a chunk's microbatches run in the order of "
                "the last stage's forwards there; write .csv or .json instead"
            )
        done[chunk, row.device] += 1
        orders[row.device].append(chunk)
    return "[\n" + ",\n".join(map(json.dumps, orders)) + "\n]\n"


def _signed_chunk(row: ScheduledOperation, ranks: int) -> int:
    chunk = row.stage // ranks + 1
    if row.kind is OpKind.F:
        return chunk
    if row.kind is OpKind.BW:
        return -chunk
    raise InputError(
        f"megatron: {row.op}: its lists know whole backwards only; solve with --backward whole"
    )
