"""Schedules exported to Megatron-LM: it runs the order that was promised, or it is refused."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ppopt
from ppopt.errors import NotApplicableError
from ppopt.formats.megatron_schedule import group_size_of, runs_order, stated_group_size
from ppopt.formats.trainer_partition import megatron_arguments
from ppopt.problem.layer import Layer
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Model
from ppopt.schedule.origin import Origin
from ppopt.strategies import Options
from tests.packages import needed

ARGUMENT = "--microbatch-group-size-per-virtual-pipeline-stage"
LAYERS = Model((Layer(1, role="embedding"), Layer(1, count=18), Layer(1, role="head")))
GRID = [
    (devices, chunks, batches, group)
    for devices, chunks in ((1, 2), (2, 2), (2, 3), (3, 2), (4, 2), (4, 3))
    for batches in (2, 4, 6, 7, 9)
    for group in (None, 2, 4, 6, 9)
]
"""Devices, chunks, microbatches, `--group-size`: 150 combinations."""
Order = list[tuple[str, int, int]]
"""Kind, chunk and microbatch of the operations of a rank."""


def interleaved(devices: int, chunks: int, batches: int, group: int | None) -> ppopt.Schedule:
    pipeline = LAYERS.pipeline(devices=devices, batches=batches, chunks=chunks)
    return ppopt.evaluate(pipeline, "interleaved", options=Options(group_size=group))


def arguments(schedule: ppopt.Schedule) -> dict[str, str]:
    """What is exported, by name."""
    arguments = shlex.split(megatron_arguments(schedule.pipeline, stated_group_size(schedule)))
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def order(schedule: ppopt.Schedule, device: int) -> Order:
    """The operations of a device in order."""
    rows = [row for row in schedule.rows() if row.device == device]
    devices = schedule.pipeline.num_devices
    return [
        ("F" if row.kind is OpKind.F else "BW", row.stage // devices, row.microbatch)
        for row in rows
    ]


@pytest.fixture
def megatron_order(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Order]:
    """Runs a rank through the schedule of megatron-core itself, without compute or transfers."""
    schedules = needed("megatron.core.pipeline_parallel.schedules")
    zeros = schedules.torch.zeros
    monkeypatch.setattr(
        schedules.torch, "zeros", lambda *size, **more: zeros(*size, dtype=more["dtype"])
    )

    def run(devices: int, chunks: int, batches: int, group: int, rank: int) -> Order:
        ran: Order = []
        backwards = [0] * chunks

        def forward_step(*_: Any, current_microbatch: int, vp_stage: int, **__: Any) -> Any:
            ran.append(("F", vp_stage, current_microbatch))
            return vp_stage, schedules.torch.zeros([], dtype=schedules.torch.int)

        def backward_step(_: Any, output_tensor: int, *__: Any) -> None:
            """Its output is the chunk; microbatches of a chunk leave in the order they came."""
            ran.append(("BW", output_tensor, backwards[output_tensor]))
            backwards[output_tensor] += 1

        monkeypatch.setattr(schedules, "forward_step", forward_step)
        monkeypatch.setattr(schedules, "backward_step", backward_step)
        config = SimpleNamespace(
            microbatch_group_size_per_vp_stage=group,
            virtual_pipeline_model_parallel_size=chunks,
            hidden_size=1,
            batch_p2p_comm=True,
            **dict.fromkeys(
                ("finalize_model_grads_func", "timers", "no_sync_func", "grad_sync_func")
            ),
            **dict.fromkeys(
                ("param_sync_func", "num_microbatches_with_partial_activation_checkpoints")
            ),
            **dict.fromkeys(
                (
                    *("overlap_p2p_comm", "overlap_p2p_comm_warmup_flush", "sequence_parallel"),
                    *("overlap_moe_expert_parallel_comm", "deallocate_pipeline_outputs"),
                    *("fine_grained_activation_offloading",),
                ),
                False,
            ),
        )
        monkeypatch.setattr(schedules, "get_model_config", lambda _: config)
        monkeypatch.setattr(schedules, "get_model_type", lambda _: None)
        ranks = SimpleNamespace(size=lambda: devices, rank=lambda: rank)
        alone = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=None,
            data_iterator=[None] * chunks,
            model=[schedules.torch.nn.Identity() for _ in range(chunks)],
            num_microbatches=batches,
            seq_length=1,
            micro_batch_size=1,
            p2p_communicator=Silent(ranks, config, chunks),
            pg_collection=SimpleNamespace(
                **dict.fromkeys(("tp", "cp", "embd", "pos_embd", "pp", "dp_cp"), alone)
            ),
        )
        return ran

    return run


class Silent:
    """A communicator of megatron-core that sends nothing."""

    def __init__(self, pp_group: Any, config: Any, chunks: int) -> None:
        self.pp_group, self.config = pp_group, config
        self.virtual_pipeline_model_parallel_size = chunks

    def recv_forward(self, *_: Any, **__: Any) -> None: ...

    def recv_backward(self, *_: Any, **__: Any) -> None: ...

    def send_forward_recv_forward(self, *_: Any, **__: Any) -> None: ...

    def send_backward_recv_backward(self, *_: Any, **__: Any) -> None: ...

    def send_forward_backward_recv_forward_backward(self, *_: Any, **__: Any) -> tuple[None, None]:
        return None, None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("devices", "chunks"), sorted({cell[:2] for cell in GRID}))
def test_megatron_runs_the_order_that_is_exported_or_both_refuse(
    devices: int, chunks: int, megatron_order: Callable[..., Order]
) -> None:
    """Megatron-LM checks one rank with several stages in its arguments, the rest in the schedule.

    A strategy that would deadlock here is one that Megatron-LM refuses.
    """
    counts = {"exported": 0, "refused": 0}
    for _, _, batches, group in (cell for cell in GRID if cell[:2] == (devices, chunks)):
        try:
            schedule = interleaved(devices, chunks, batches, group)
            exported = int(arguments(schedule)[ARGUMENT])
        except NotApplicableError:
            counts["refused"] += 1
            if devices > 1:
                with pytest.raises((ValueError, RuntimeError)):
                    megatron_order(devices, chunks, batches, group or devices, 0)
            continue
        counts["exported"] += 1
        assert group in (None, exported)
        assert runs_order(schedule)
        for rank in range(devices):
            own = megatron_order(devices, chunks, batches, exported, rank)
            assert own == order(schedule, rank)
    assert counts["refused"] and bool(counts["exported"]) == (devices > 1)


@pytest.mark.parametrize(
    ("devices", "chunks", "batches", "group", "message"),
    [
        (1, 2, 4, None, "it interleaves on 2 ranks or more, and 1 rank has 2 stages"),
        (4, 2, 3, None, "needs as many microbatches as ranks, and there are 3 for 4; solve with "
         "--batches 4 or more"),
        (4, 2, 6, 8, "4 .. 6, and it is 8; solve with --group-size 6"),
        (4, 2, 6, 3, "4 .. 6, and it is 3; solve with --group-size 6"),
        (4, 2, 9, 4, "9 modulo 4 is 1 with 4 ranks; solve with --group-size 5"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_rule_and_what_would_work(
    devices: int, chunks: int, batches: int, group: int | None, message: str
) -> None:
    pipeline = LAYERS.pipeline(
        devices=devices, batches=batches, chunks=chunks, placement="interleaved"
    )
    with pytest.raises(NotApplicableError, match=message) as error:
        megatron_arguments(pipeline, group)
    assert "\n" not in str(error.value)


def test_one_stage_per_rank_has_no_group_size() -> None:
    for devices, batches in ((1, 3), (4, 2), (4, 6)):
        pipeline = LAYERS.pipeline(devices=devices, batches=batches)
        assert group_size_of(pipeline) is None
        assert ARGUMENT not in megatron_arguments(pipeline)
        assert runs_order(ppopt.evaluate(pipeline, "1f1b"))


def test_an_order_counts_and_not_the_name_that_a_file_states() -> None:
    """A file may name a strategy and have another order; a search may find that of Megatron-LM."""
    of_groups = interleaved(2, 2, 8, 4)
    assert not runs_order(replace(of_groups, origin=Origin(strategy="interleaved")))
    assert runs_order(replace(interleaved(2, 2, 8, None), origin=Origin(strategy="searched")))
    linear = LAYERS.pipeline(devices=2, batches=4)
    assert not runs_order(ppopt.evaluate(linear, "gpipe"))
    assert not runs_order(replace(ppopt.evaluate(linear, "gpipe"), origin=Origin(strategy="1f1b")))
