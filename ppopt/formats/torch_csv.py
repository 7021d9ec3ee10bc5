"""The text of an order that PyTorch's pipeline runtime loads.

`_PipelineScheduleRuntime._load_csv` of torch.distributed.pipelining (PyTorch 2.13) reads it: one
row per rank (device), one cell per operation, `<stage><letter><microbatch>`. There is no header,
no time and no empty cell. Its letters are not ours: its `I` is our B, its `B` our BW. An
overlapped pair is one cell, `(0F7;7B3)OVERLAP_F_B`: PyTorch runs its parts one after the other
and sends the results of both at its end, unless the user registers a function that overlaps them.
"""

from __future__ import annotations

from ppopt.errors import InputError
from ppopt.problem.operation import OpKind
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import verify
from ppopt.verifier.measured import planned

LETTERS = {OpKind.F: "F", OpKind.B: "I", OpKind.W: "W", OpKind.BW: "B"}
"""PyTorch's letter of every kind of operation."""


def dumps(schedule: Schedule) -> str:
    """Write the order of every device, times left out.

    Microbatches are numbered by the forward order of the last stage: PyTorch looks losses up by
    their place in it, and any other order gives wrong gradients without a word. Raises InputError
    where two routes put a stage on two devices or microbatches are cut into slices, which the
    format cannot say, and where the operations are no schedule of their pipeline; the memory limit
    does not matter.
    """
    if schedule.pipeline.routes == 2:
        raise InputError("torch csv: two routes put a stage on two devices; write .json instead")
    if schedule.pipeline.num_slices > 1:
        raise InputError("torch csv: it knows no slices of microbatches; write .json instead")
    planned(schedule, "torch csv")
    found = verify(schedule, enforce_limit=False)
    if found:
        raise InputError(f"torch csv: not a schedule of its pipeline: {found[0]}; mend it first")
    numbers = microbatch_numbers(schedule)
    ranks: list[list[str]] = [[] for _ in range(schedule.pipeline.num_devices)]
    for row, second in zip(schedule.rows(), schedule.seconds.tolist(), strict=True):
        cell = f"{row.stage}{LETTERS[row.kind]}{numbers[row.microbatch]}"
        if second:
            both = sorted((ranks[row.device].pop(), cell), key=lambda part: "F" not in part)
            cell = f"({both[0]};{both[1]})OVERLAP_F_B"
        ranks[row.device].append(cell)
    return "".join(",".join(cells) + "\n" for cells in ranks)


def microbatch_numbers(schedule: Schedule) -> dict[int, int]:
    """PyTorch's number of every microbatch: its place among the forwards of the last stage."""
    last = schedule.pipeline.num_stages - 1
    forwards = (schedule.kind == OpKind.F) & (schedule.stage == last)
    order = schedule.microbatch[forwards].tolist()
    return {microbatch: number for number, microbatch in enumerate(order)}
