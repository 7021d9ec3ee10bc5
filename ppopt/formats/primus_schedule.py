"""Schedules for Primus: the table of nodes of every rank, and the settings of its trainer.

The pipeline runtime of Primus' Megatron backend runs a list of nodes on every rank: F, B, W and BW,
the transfers SF, RF, SB and RB, O (end of an offload) and R (begin of a reload). An algorithm fills
the table (AMD-AGI/Primus at fd1eeab: primus/core/pipeline_parallel/scheduler/scheduler_node.py and
algorithms/base.py). Ours is `ppopt.formats.primus_schedule_patch`, a file that the user copies.

Both ends of a transfer are before the first operation that ends after the tensor is sent: so a
receive is posted before the operation that runs at that time. Rows that are sorted by the ends of
operations and the times of transfers cannot deadlock, even if both ends wait. Primus posts
neighbouring nodes together, those to higher ranks first (`_async_send_recv_op` of
communication_handler.py); a `time_step` separates those that it would reorder. A tensor between two
stages of one rank needs both nodes, too.

An overlapped pair is a `combined_group` of F and B. Its W is a node of its own, since Primus
stores the weight gradients of every such group (combined_fwd_bkwd_handler.py).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.formats import torch_comms, trainer_partition
from ppopt.formats.loader_order import microbatch_numbers
from ppopt.formats.torch_csv import check_planned
from ppopt.problem.kinds import RECORDS
from ppopt.problem.layer import ENDS
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.traits import BESIDE_COMPUTE, Trait, refuse_unhandled
from ppopt.schedule.actions import Action, ActionKind, Cell
from ppopt.schedule.operations import Operation
from ppopt.schedule.schedule import Schedule

PRIMUS = "primus"
"""The trainer in errors."""
V = "zbv-formatted"
"""The algorithm with which Primus places stages in a V."""
PATCH = "ppopt_schedule_patch.py"
"""Name of the file for Primus' folder of patches."""
_NODES = {
    ActionKind.SEND_F: "SF",
    ActionKind.RECV_F: "RF",
    ActionKind.SEND_B: "SB",
    ActionKind.RECV_B: "RB",
}
"""Action of a communication order -> type of node; operations have the names of their kinds."""
_POSTS = {
    OpKind.F: (ActionKind.SEND_F, ActionKind.RECV_F, 1),
    OpKind.B: (ActionKind.SEND_B, ActionKind.RECV_B, -1),
}
"""Kind of a result -> both ends of its transfer, and the step to the stage that needs it."""
Node = list[Any]
"""Type, microbatch, chunk; then the arguments, if any beyond the ends of a transfer."""


def primus_files(schedule: Schedule, path: Path) -> dict[Path, str]:
    """The settings of Primus' trainer, and in files of their own the table and its reader.

    Raises NotApplicableError if Primus cannot run the schedule, and InputError if its operations
    are not a valid schedule of their pipeline.
    """
    table = path.with_suffix(".table.json")
    source = files("ppopt.formats").joinpath("primus_schedule_patch.py")
    return {
        table: primus_table(schedule),
        path.with_name(PATCH): source.read_text(encoding="utf-8"),
        path: primus_settings(schedule, table),
    }


def primus_table(schedule: Schedule) -> str:
    """The table of nodes, as JSON: a line per rank. Raises errors as `primus_files` does."""
    check_planned(schedule, "primus")
    pipeline = schedule.pipeline
    about = {
        "pp_algorithm": _algorithm(schedule),
        "pp_size": pipeline.num_devices,
        "vpp_size": pipeline.num_stages // pipeline.num_devices,
        "micro_batches": pipeline.batches,
        "offload": pipeline.has_offload,
        "combined_forward_backward": bool(schedule.seconds.any()),
        "stages": [list(stages) for stages in pipeline.hosted[0]],
    }
    heads = [f'"{key}": {json.dumps(value)}' for key, value in about.items()]
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in _nodes(schedule))
    return "{\n" + ",\n".join([*heads, f'"ranks": [\n{rows}\n]']) + "\n}\n"


def check_runs(schedule: Schedule) -> None:
    """Raise NotApplicableError if Primus cannot run the order of a schedule, or its partition."""
    _algorithm(schedule)
    _check_pairs(schedule)
    _numbers(schedule)
    _partition(schedule.pipeline)


def left_out(schedule: Schedule) -> Iterator[str]:
    """What a table of nodes does not say of a schedule, and what it needs."""
    pipeline = schedule.pipeline
    if pipeline.has_gradient_work:
        yield "Primus places unshard, gradient sync and optimizer itself"
    if pipeline.has_offload:
        yield (
            "Primus moves the tensors of its `offload_ops` and the input of a stage, at these "
            "times; `offload_memory` must be their size"
        )
    split = bool((schedule.kind == OpKind.B).any())
    if split and _algorithm(schedule) == "1f1b-interleaved":
        yield (
            "Primus' turbo linear layers do not split backwards under 1f1b-interleaved "
            "(`_use_split_wgrad_op`): train with use_turbo_gemm and use_turbo_grouped_gemm false"
        )


def check_pipeline(pipeline: Pipeline) -> str:
    """The name of its placement; NotApplicableError if Primus has no such pipeline or offload."""
    refuse_unhandled(
        "primus: it",
        pipeline.traits,
        BESIDE_COMPUTE | {Trait.MICROBATCHES},
        "write .json instead",
    )
    if pipeline.num_devices == 1:
        raise NotApplicableError("primus: a pipeline has at least 2 ranks, and this one has 1")
    name = trainer_partition.named_placement(pipeline, PRIMUS)
    if name != "v" and pipeline.has_offload:
        raise NotApplicableError(
            "primus: it moves activations to the host in a V alone; solve with placement v, or "
            "with --offload none"
        )
    return name


def _algorithm(schedule: Schedule) -> str:
    """The algorithm of Primus with the placement of a schedule, whose table replaces its own.

    Raises NotApplicableError if Primus cannot run the schedule.
    """
    linear = "zero-bubble" if (schedule.kind == OpKind.B).any() else "1f1b"
    names = {"linear": linear, "interleaved": "1f1b-interleaved", "v": V}
    return names[check_pipeline(schedule.pipeline)]


# Nodes


def _nodes(schedule: Schedule) -> list[list[Node]]:
    """The nodes of every rank."""
    pipeline, numbers = schedule.pipeline, _numbers(schedule)
    _check_pairs(schedule)
    rows = _rows(schedule)
    _add_posts(schedule, rows)
    torch_comms.check(pipeline, [tuple(row.communication(rank)) for rank, row in enumerate(rows)])
    chunk = {stage: index for stages in pipeline.hosted[0] for index, stage in enumerate(stages)}
    return [list(_written(row, chunk, numbers)) for row in rows]


def _check_pairs(schedule: Schedule) -> None:
    seconds = schedule.seconds
    if (schedule.kind[seconds] != OpKind.B).any():
        raise NotApplicableError(
            "primus: an overlapped pair has a B, whose W runs later, and here a pair has a BW; "
            "solve with --backward split, or without overlap times"
        )


def _numbers(schedule: Schedule) -> Mapping[int, int]:
    """Primus' number of every microbatch: its position in the forward order of every stage.

    Raises NotApplicableError if stages have different orders: each reads its data in its order.
    """
    numbers = microbatch_numbers(schedule)
    for stage in range(schedule.pipeline.num_stages):
        forwards = (schedule.kind == OpKind.F) & (schedule.stage == stage)
        if schedule.microbatch[forwards].tolist() != list(numbers):
            raise NotApplicableError(
                f"primus: stage {stage} runs the forwards of microbatches in another order than "
                "the last stage, and every stage reads its data in order; solve this pipeline"
            )
    return numbers


class _Post(NamedTuple):
    """An end of a transfer. Every rank posts in ascending order."""

    time: int
    """When the tensor is sent, in ticks."""
    is_downward: bool
    """Whether it goes to a lower rank."""
    send: Action
    is_receive: bool
    action: Action
    """This end."""
    peer: int
    """Rank at the opposite end."""


@dataclass
class _Row:
    """The operations of a rank, and what comes before each of them."""

    cells: list[list[Operation]]
    """One operation, or an overlapped pair."""
    posts: dict[int, list[_Post]] = field(default_factory=lambda: defaultdict(list))
    """Before a cell, by its index."""
    moves: dict[int, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """Ends of offloads and begins of reloads before a cell."""
    cell_of: dict[tuple[OpKind, int, int], int] = field(default_factory=dict)
    """Cell of an operation: its kind (B for both kinds of backward), stage and microbatch."""
    ends: list[int] = field(default_factory=list)
    """End of every cell."""

    def __post_init__(self) -> None:
        self.ends = [cell[0].end for cell in self.cells]
        for index, cell in enumerate(self.cells):
            for operation in cell:
                kind = OpKind.B if operation.kind is OpKind.BW else OpKind(operation.kind)
                self.cell_of[kind, operation.stage, operation.microbatch] = index

    def communication(self, rank: int) -> Iterator[Cell]:
        """The row as a communication order, without transfers within the rank."""
        for index, cell in enumerate([*self.cells, []]):
            for post in sorted(self.posts.get(index, ())):
                if post.peer != rank:
                    yield (post.action,)
            if cell:
                yield tuple(
                    Action(ActionKind[operation.kind.name], operation.stage, operation.microbatch)
                    for operation in cell
                )


def _rows(schedule: Schedule) -> list[_Row]:
    cells: list[list[list[Operation]]] = [[] for _ in range(schedule.pipeline.num_devices)]
    for operation, is_second in zip(schedule.rows(), schedule.seconds.tolist(), strict=True):
        if is_second:
            cells[operation.device][-1].append(operation)
        else:
            cells[operation.device].append([operation])
    rows = [_Row(row) for row in cells]
    for move in schedule.operations.rows():
        if move.kind in (AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD):
            _place_move(rows[move.device], move)
    return rows


def _place_move(row: _Row, move: Operation) -> None:
    """An offload ends before the first operation that starts no sooner; a reload begins there."""
    out = move.kind is AuxiliaryKind.OFFLOAD
    starts = [cell[0].start for cell in row.cells]
    index = bisect_right(starts, (move.end if out else move.start) - 1)
    if out:
        index = max(index, row.cell_of[OpKind.F, move.stage, move.microbatch] + 1)
    else:
        index = min(index, row.cell_of[OpKind.B, move.stage, move.microbatch])
    row.moves[index].append(move)


def _add_posts(schedule: Schedule, rows: Sequence[_Row]) -> None:
    """Both ends of every transfer: at the time of its link, or when its tensor exists."""
    (hosts,) = schedule.pipeline.hosts
    times = {
        (carried, transfer.stage, transfer.microbatch): transfer.start
        for transfer in schedule.operations.rows()
        if (carried := RECORDS[transfer.kind].carries) is not None
    }
    for operation in schedule.rows():
        kind, stage, microbatch = operation.kind, operation.stage, operation.microbatch
        if kind is OpKind.W:
            continue
        carried = OpKind.F if kind is OpKind.F else OpKind.B
        send, receive, step = _POSTS[carried]
        if not 0 <= stage + step < len(hosts):
            continue
        source, target = hosts[stage], hosts[stage + step]
        time = times.get((carried, stage, microbatch), operation.end)
        order = (time, target < source, Action(send, stage, microbatch))
        maker = rows[source].cell_of[carried, stage, microbatch]
        before = max(maker + 1, bisect_right(rows[source].ends, time))
        rows[source].posts[before].append(_Post(*order, False, order[2], target))
        if source != target:
            needed = rows[target].cell_of[carried, stage + step, microbatch]
            before = min(needed, bisect_right(rows[target].ends, time))
        received = Action(receive, stage + step, microbatch)
        rows[target].posts[before].append(_Post(*order, True, received, source))


def _written(row: _Row, chunk: Mapping[int, int], numbers: Mapping[int, int]) -> Iterator[Node]:
    """The nodes of a rank."""
    offloaded = {(move.stage, move.microbatch) for moves in row.moves.values() for move in moves}

    def node(name: str, stage: int, microbatch: int | None, **args: Any) -> Node:
        assert microbatch is not None
        return [name, numbers[microbatch], chunk[stage], *([args] if args else [])]

    for index, cell in enumerate([*row.cells, []]):
        posts = sorted(row.posts.get(index, ()))
        for step, post in zip(_steps(posts), posts, strict=True):
            yield node(_NODES[post.action.kind], post.action.stage, post.action.microbatch, **step)
        for move in sorted(row.moves.get(index, ()), key=lambda move: move.kind.name):
            name = "O" if move.kind is AuxiliaryKind.OFFLOAD else "R"
            yield node(name, move.stage, move.microbatch)
        names = [
            f"({operation.kind.name}|{numbers[operation.microbatch]}|{chunk[operation.stage]})"
            for operation in cell
        ]
        pair = {"combined_node": True, "combined_group": names} if len(cell) > 1 else {}
        for operation in cell:
            kind, stage, microbatch = operation.kind, operation.stage, operation.microbatch
            is_moved = kind is OpKind.F and (stage, microbatch) in offloaded
            offload = {"should_offload": True} if is_moved else {}
            yield node(kind.name, stage, microbatch, **pair, **offload)


def _steps(posts: Sequence[_Post]) -> list[dict[str, int]]:
    """The step at which Primus posts each of some neighbouring nodes; {}: all together.

    A new step begins where a transfer from a lower rank follows a transfer to it.
    """
    steps, downward = [0] * len(posts), set[int]()
    for index, post in enumerate(posts):
        is_reordered = not post.is_downward and post.peer in downward
        steps[index] = steps[index - 1] + is_reordered if index else 0
        if is_reordered:
            downward.clear()
        if post.is_downward:
            downward.add(post.peer)
    return [{"time_step": step} if steps[-1] else {} for step in steps]


# Settings


def primus_settings(schedule: Schedule, table: Path) -> str:
    """The settings of Primus' trainer: sizes, partition, recompute and algorithm, as YAML."""
    pipeline = schedule.pipeline
    lines = [
        "# `overrides` of the module pre_trainer of Primus. Copy the file",
        f"# {PATCH} to primus/backends/megatron/patches/parallelism/, and set",
        f"# PPOPT_SCHEDULE to the path of {table.name} on every rank.",
        *map(_setting, trainer_partition.megatron_costs(pipeline)),
        *_partition(pipeline),
        "patch_primus_pipeline: true",
        f"pp_algorithm: {_algorithm(schedule)}",
        "communication_method: async_p2p",
    ]
    lines += ["offload: true"] * pipeline.has_offload
    lines += ["overlap_moe_expert_parallel_comm: true"] * bool(schedule.seconds.any())
    if pipeline.training is None:
        lines.append(f"# global_batch_size: {pipeline.batches} x micro_batch_size x data parallel")
    return "\n".join(lines) + "\n"


def _setting(argument: str) -> str:
    """An argument of Megatron-LM as a key of Primus, which has underscores for hyphens."""
    name, _, value = argument.removeprefix("--").partition(" ")
    return f"{name.replace('-', '_')}: {value or 'true'}"


def _partition(pipeline: Pipeline) -> list[str]:
    """The settings of the partition and of recompute."""
    if pipeline.model is None:
        return list(map(_setting, trainer_partition.equal_stages_arguments(pipeline)))
    stages = trainer_partition.roles_with_ends(pipeline, PRIMUS)
    arguments = trainer_partition.layout_arguments(stages, pipeline.num_devices)
    return [*map(_setting, arguments), *_recompute(pipeline.model)]


def _recompute(model: Model) -> list[str]:
    """The layers that recompute, by Primus' numbers: decoder layers first, then MTP layers."""
    trainer_partition.check_recompute(model, PRIMUS)
    layers = sorted(
        (layer for layer in model.layers if layer.role not in ENDS),
        key=lambda layer: layer.role == "mtp",
    )
    if any(layer.recompute not in (True, False) for layer in layers):
        raise NotApplicableError(
            f"{PRIMUS}: it recomputes whole layers by their numbers, not modules of them; take "
            "recompute none, full or a search without modules"
        )
    numbers = [number for number, layer in enumerate(layers) if layer.recompute]
    if not numbers:
        return []
    return [
        "recompute_granularity: full",
        "recompute_method: null",
        "recompute_num_layers: null",
        f'recompute_layer_ids: "{",".join(map(str, numbers))}"',
    ]
