"""Communication orders of PyTorch's pipeline runtime: `compute_comms` text, written and read.

`_PipelineScheduleRuntime._load_csv(path, format="compute_comms")` of PyTorch 2.13 runs exactly
what it reads: one row per rank, one cell per action, operations as in `ppopt.formats.torch_csv`,
and between them

    3SEND_F1, 4RECV_F1    stage 3 sends stage 4 the activation of microbatch 1: both ends
    4SEND_B1, 3RECV_B1    stage 4 sends stage 3 the gradient
    3UNSHARD, 3RESHARD    gather and release the weights of a stage (FSDP); PyTorch skips others
    3REDUCE_GRAD          scale and reduce the gradients of a stage

PyTorch checks almost nothing of such a file: an order that does not match between two ranks hangs,
or gives wrong gradients. So the writer and the reader check it with `ppopt.verifier.posting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ppopt.errors import InputError
from ppopt.formats import torch_csv
from ppopt.formats.documents import label
from ppopt.formats.loader_order import microbatch_numbers
from ppopt.formats.torch_csv import Order
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import communication
from ppopt.schedule.actions import POSTS, ActionRow
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule
from ppopt.verifier.posting import posting_faults


def communication_csv(schedule: Schedule) -> str:
    """Write the communication order of a schedule's own times (`schedule.communication`).

    Microbatches are numbered as `torch_csv.order_csv` does. Raises errors as that does.
    """
    torch_csv.check_pipeline(schedule.pipeline)
    torch_csv.check_planned(schedule, "torch comms")
    rows = communication.of_schedule(schedule)
    check(schedule.pipeline, rows)
    extended = communication.with_empty_backwards(schedule.pipeline, rows, received=True)
    return torch_csv.written(extended, microbatch_numbers(schedule))


def check(pipeline: Pipeline, rows: Sequence[ActionRow]) -> None:
    """Raise InputError unless rows follow every rule of a communication order."""
    faults = posting_faults(pipeline, rows)
    if faults:
        suffix = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{suffix}")


def read_communication_order(path: Path) -> Order:
    """Read a file, and the order of microbatches next to it, as `torch_csv.read_actions` does.

    Raises InputError if it posts nothing. Whether its posts are right depends on the pipeline:
    `time_communication_order` checks them.
    """
    order = torch_csv.read_actions(path)
    posts = any(action.kind in POSTS for row in order.rows for cell in row for action in cell)
    if len(order.rows) > 1 and not posts:
        raise InputError(
            f"{label(path)}: it posts no send and no receive; it is an order of operations alone: "
            "use --from torch-csv"
        )
    return order


def time_communication_order(
    order: Order,
    settings: Mapping[str, object],
    objective: Objective = Objective.MAKESPAN,
) -> Schedule:
    """Time a communication order on the pipeline of `settings` (as `torch_csv.schedule`).

    Its links are streams. Raises InputError if it breaks a rule of `ppopt.verifier.posting`.
    """
    fields = {"link_mode": LinkMode.STREAMS, **settings}
    pipeline = torch_csv.pipeline_of_order(order, fields)
    if not pipeline.streams:
        raise InputError("link_mode: delay has no order of transfers; leave it out")
    rows = communication.without_empty_backwards(pipeline, order.rows)
    check(pipeline, rows)
    origin = Origin(strategy="torch-comms", objective=objective, status="feasible")
    return communication.schedule_of(pipeline, rows, objective, origin)
