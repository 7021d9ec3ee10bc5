"""The order of the microbatches of a step that a data loader must deliver for an export.

For PyTorch's and Megatron-LM's runtimes, microbatch j is the j-th of the batch. So an export
numbers microbatches as they run, and a second file maps j to the microbatch of the user's list:
`best.order.json`, next to `best.csv`, has `{"order": [3, 0, 2, 1]}`.
"""

from __future__ import annotations

import json
from pathlib import Path

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import within
from ppopt.formats.json_forms import listed, read_object, whole
from ppopt.problem.operation import OpKind
from ppopt.problem.traits import Trait
from ppopt.schedule.schedule import Schedule

LARGEST_FILE = 2**24
LISTED = 64
"""Maximum number of microbatches that a message lists."""


def microbatch_numbers(schedule: Schedule) -> dict[int, int]:
    """Map each microbatch to PyTorch's number: its index among the last stage's forwards."""
    last = schedule.pipeline.num_stages - 1
    forwards = (schedule.kind == OpKind.F) & (schedule.stage == last)
    order = schedule.microbatch[forwards].tolist()
    return {microbatch: number for number, microbatch in enumerate(order)}


def loader_order(schedule: Schedule) -> tuple[int, ...]:
    """Microbatch of the user's list that an exported schedule numbers j, by j.

    The identity if the microbatches are equal, since any order of them is right.
    """
    pipeline = schedule.pipeline
    before = pipeline.order if isinstance(pipeline.order, tuple) else range(pipeline.batches)
    if Trait.MICROBATCHES not in pipeline.traits:
        return tuple(before)
    return tuple(before[microbatch] for microbatch in microbatch_numbers(schedule))


def path_beside(path: Path) -> Path:
    """The path of the order of microbatches for an exported file."""
    return path.with_suffix(".order.json")


def file_beside(path: Path, schedule: Schedule) -> dict[Path, str]:
    """The path and text of the order of microbatches for an export.

    Empty if microbatches run as listed, unless the order of an earlier export exists.
    """
    order, beside = loader_order(schedule), path_beside(path)
    if order == tuple(range(len(order))) and not beside.exists():
        return {}
    return {beside: json.dumps({"order": order}) + "\n"}


def describe_loader_order(schedule: Schedule) -> str:
    """The required data order of an exported schedule; empty if microbatches run as listed."""
    order = loader_order(schedule)
    if order == tuple(range(len(order))):
        return ""
    listed = ", ".join(map(str, order[:LISTED])) + (", .." if len(order) > LISTED else "")
    return f"the data loader must hand out the microbatches of a step in the order {listed}"


def read_beside(path: Path, batches: int) -> tuple[int, ...] | None:
    """Read the order of microbatches of a file; None if there is none.

    Raises InputError, naming the file, if it is no such order.
    """
    beside = path_beside(path)
    if not beside.exists():
        return None
    where = label(beside)
    return within(where, _order, parse_json(read_text(beside, LARGEST_FILE), where), batches)


def _order(document: object, batches: int) -> tuple[int, ...]:
    forms = {"order": listed(whole(0, batches - 1), batches)}
    order: tuple[int, ...] = read_object(document, forms, ["order"])["order"]
    if len(set(order)) < batches:
        raise InputError(f"order: lists a microbatch twice; list all {batches}, each once")
    return order
