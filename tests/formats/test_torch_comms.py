"""Communication orders of PyTorch: text written and read back, refusals, PyTorch's own lowering."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from ppopt import Options, Pipeline, Schedule, evaluate, verify
from ppopt.errors import InputError
from ppopt.formats import schedule_json, torch_comms, torch_csv
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.schedule import communication
from ppopt.verifier.posting import posting_faults
from tests.cli.cli_run import done, run
from tests.factories.streams import Built, built
from tests.factories.tables import besides_of
from tests.packages import needed
from tests.tiers import examples

SMALL = Pipeline(stages=2, batches=2, weight=1, p2p="0.5", link_mode="streams")
TEXT = (
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0I0,0W0,0I1,0W1,0REDUCE_GRAD,0RESHARD\n"
    "1RECV_F0,1RECV_F1,1UNSHARD,1F0,1I0,1SEND_B0,1F1,1I1,1SEND_B1,1W0,1W1,1REDUCE_GRAD,1RESHARD\n"
)
"""ZB-H1 of 2 x 2 (see test_torch_csv.py): both activations are sent before a gradient is there."""


def settings_of(pipeline: Pipeline) -> dict[str, Any]:
    """What `torch_comms.schedule` is told of a pipeline."""
    names = ("p2p", "backward_p2p", "device_speed", "mem_limit")
    costs = {
        name: getattr(pipeline, name) for name in (*names, *(cost.field for cost in STAGE_COSTS))
    }
    fields = {"stages": pipeline.num_stages, "placement": list(pipeline.hosts[0])}
    return fields | {name: value for name, value in costs.items() if value is not None}


def of_each_stage(schedule: Schedule) -> Schedule:
    """The schedule on the same pipeline, its costs given stage by stage."""
    pipeline = schedule.pipeline
    costs = {field: list(values) for field, values in pipeline.costs.items()}
    listed = {"stages": pipeline.num_stages, "placement": list(pipeline.hosts[0]), "chunks": None}
    return replace(schedule, pipeline=replace(pipeline, **listed, **costs))


def test_by_hand() -> None:
    assert torch_comms.communication_csv(evaluate(SMALL, "zb-h1")) == TEXT


def test_faults_after_the_first_are_counted() -> None:
    """Of a schedule whose first device ends early, or repeats one of its actions."""
    schedule = evaluate(SMALL, "zb-h1")
    first, second = communication.of_schedule(schedule)
    counts = set()
    changed = [first[:size] for size in range(len(first))] + [(*first, cell) for cell in first]
    for rows in ((actions, second) for actions in changed):
        faults = posting_faults(SMALL, rows)
        counts.add(len(faults))
        if faults:
            more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
            with pytest.raises(InputError) as raised:
                torch_comms.check(SMALL, rows)
            assert str(raised.value) == f"{faults[0]}{more}"
    assert 1 in counts and max(counts) > 1


def test_one_device_posts_nothing() -> None:
    schedule = evaluate(Pipeline(stages=1, batches=2, link_mode="streams"), "1f1b")
    text = torch_comms.communication_csv(schedule)
    assert text == "0UNSHARD,0F0,0B0,0F1,0B1,0REDUCE_GRAD,0RESHARD\n"
    order = torch_csv.parse_actions(text, "order.csv")
    assert torch_comms.time_communication_order(order, {}).makespan == schedule.makespan


def test_gathers_at_the_times_of_the_schedule() -> None:
    """With a stage per device, from 0 on, as PyTorch itself does."""
    for work in ({"unshard": 1, "gradient_sync": 1}, {"gradient_sync": 1}):
        schedule = evaluate(replace(SMALL, **work), "zb-h1")
        assert torch_comms.communication_csv(schedule) == TEXT


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_weights_are_gathered_ahead_as_pytorch_does(ahead: int) -> None:
    """Device 0 gathers the next `ahead` stages before the cells where PyTorch gathers them first.

    A gather takes no time here, so that each stands where it is issued.
    """
    torch_schedules = needed("torch.distributed.pipelining.schedules")
    pipeline = Pipeline(stages=2, batches=6, chunks=4, unshard_memory=1, p2p=1, link_mode="streams")
    schedule = evaluate(pipeline, "interleaved", options=Options(unshard_ahead=ahead))
    row, *_ = torch_comms.communication_csv(schedule).splitlines()
    ours = [cell for cell in row.split(",") if re.fullmatch(r"\d+(UNSHARD|[FBIW]\d*)", cell)]
    computed = [cell for cell in ours if "UNSHARD" not in cell]
    actions = [torch_schedules._Action.from_str(cell) for cell in computed]
    theirs: list[str] = []
    for action in torch_schedules._add_unshard_reshard(actions, ahead):
        text = str(action)
        if "RESHARD" not in text and not ("UNSHARD" in text and text in theirs):
            theirs.append(text)
    assert ours == theirs


def test_gathering_later_may_cost_time() -> None:
    """Of three stages, device 0 gathers the next one alone; all three cost nothing."""
    pipeline = Pipeline(stages=2, batches=4, chunks=3, forward=3, backward=6, unshard=2)
    spans = [
        evaluate(pipeline, "interleaved", options=Options(unshard_ahead=ahead)).makespan
        for ahead in (1, 3)
    ]
    assert spans[0] > spans[1] == evaluate(pipeline, "interleaved").makespan


def test_a_stage_without_backward_is_gathered_until_its_last_forward() -> None:
    """It sends every activation, and reduces nothing; PyTorch wants its empty backwards."""
    schedule = evaluate(replace(SMALL, frozen=[True, False], unshard=1, gradient_sync=1), "1f1b")
    first, second = torch_comms.communication_csv(schedule).splitlines()
    assert first == ("0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RESHARD,0RECV_B0,0B0,0RECV_B1,0B1")
    assert second == "1RECV_F0,1RECV_F1,1UNSHARD,1F0,1B0,1F1,1B1,1REDUCE_GRAD,1RESHARD"


def test_a_frozen_stage_with_a_backward_reduces_nothing() -> None:
    schedule = evaluate(replace(SMALL, frozen=[False, True], unshard=1, gradient_sync=1), "1f1b")
    _, second = torch_comms.communication_csv(schedule).splitlines()
    assert second.endswith("1F1,1B1,1SEND_B1,1RESHARD")


@pytest.mark.parametrize("strategy", ["1f1b", "interleaved", "zbv", "1f1b-overlap"])
@pytest.mark.parametrize("limit", [None, 9])
def test_every_stage_is_gathered_and_reduced_once(strategy: str, limit: int | None) -> None:
    work = {"unshard": 1, "unshard_memory": 1, "gradient_sync": 2, "optimizer": 1}
    pipeline = Pipeline(stages=4, batches=8, p2p=1, link_mode="streams", mem_limit=limit, **work)
    schedule = evaluate(pipeline, strategy)
    text = torch_comms.communication_csv(schedule)
    for row in text.splitlines():
        cells = row.split(",")
        for stage in {int(cell[: cell.index("U")]) for cell in cells if "UNSHARD" in cell}:
            first = next(at for at, cell in enumerate(cells) if f"{stage}F0" in cell)
            last = max(at for at, cell in enumerate(cells) if re.search(rf"\b{stage}[BW]\d", cell))
            assert cells.count(f"{stage}UNSHARD") == cells.count(f"{stage}REDUCE_GRAD") == 1
            assert cells.index(f"{stage}UNSHARD") < first
            reduced = cells.index(f"{stage}REDUCE_GRAD")
            assert reduced > last
            assert cells[reduced + 1] == f"{stage}RESHARD"
    assert text.count("UNSHARD") == schedule.pipeline.num_stages
    order = torch_csv.parse_actions(text, "order.csv")
    settings = settings_of(of_each_stage(schedule).pipeline)
    restored = torch_comms.time_communication_order(order, settings)
    assert verify(restored, enforce_limit=False) == []
    assert restored.metrics.makespan_ticks <= schedule.metrics.makespan_ticks
    assert len(besides_of(restored)) == len(besides_of(schedule))


@examples(12)
@given(built())
def test_read_back_it_has_the_times_of_the_schedule(built: Built) -> None:
    schedule = of_each_stage(built.schedule)
    text = torch_comms.communication_csv(schedule)
    order = torch_csv.parse_actions(text, "order.csv")
    restored = torch_comms.time_communication_order(order, settings_of(schedule.pipeline))
    assert verify(restored, enforce_limit=False) == []
    assert restored.metrics.makespan_ticks <= schedule.metrics.makespan_ticks
    rewritten = torch_comms.communication_csv(restored)
    assert torch_csv.parse_order(rewritten, "rewritten.csv") == torch_csv.parse_order(
        text, "order.csv"
    )


@examples(12)
@given(built())
def test_a_schedule_file_holds_transfers(built: Built) -> None:
    text = schedule_json.dumps(built.schedule)
    restored, claims = schedule_json.loads(text, "file")
    assert restored == built.schedule
    assert verify(restored, claims) == []
    assert schedule_json.dumps(restored) == text


def _torch_text(cell: communication.Cell) -> str:
    return torch_csv.written([[cell]], {n: n for n in range(100)}).removesuffix("\n")


@examples(12)
@given(built())
def test_the_lowering_is_that_of_pytorch(built: Built) -> None:
    """`_add_unshard_reshard`, `_add_reduce_grad` and `_add_send_recv` of the installed torch."""
    torch_schedules = needed("torch.distributed.pipelining.schedules")
    pipeline, orders = built.schedule.pipeline, built.schedule.orders
    (hosts,) = pipeline.hosts
    lowered = {}
    for rank, cells in enumerate(communication.computations(pipeline, orders)):
        actions: Any = [torch_schedules._Action.from_str(_torch_text(cell)) for cell in cells]
        gathered: Any = torch_schedules._add_unshard_reshard(actions)
        lowered[rank] = torch_schedules._add_reduce_grad(gathered, pipeline.batches)
    complete: Any = torch_schedules._add_send_recv(
        lowered,
        stage_to_rank=lambda stage: hosts[stage],
        num_stages=pipeline.num_stages,
    )
    ours = communication.torch_lowering(pipeline, orders)
    for rank, row in enumerate(ours):
        assert list(map(_torch_text, row)) == list(map(str, complete[rank]))


def changed(*pairs: tuple[str, str]) -> str:
    text = TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed((",0SEND_F1", "")), "posted-once: device 0: 0SEND_F1 is missing"),
        (changed(("0SEND_F1", "0SEND_F1,0SEND_F1")), "0SEND_F1 is posted 2 times"),
        (
            changed(("0F1,0SEND_F1", "0SEND_F1,0F1")),
            "send-behind: device 0: 0SEND_F1 stands before",
        ),
        (
            changed(("1RECV_F0,1RECV_F1", "1RECV_F1,1RECV_F0")),
            "matching-order: device 0: transfer 0 of its queue with device 1 is that of 0SEND_F0, "
            "and of 0SEND_F1 there; 1RECV_F1 would get the tensor of 0SEND_F0",
        ),
        (
            changed((",0RECV_B0,0RECV_B1,0I0", ",0I0,0RECV_B0,0RECV_B1")),
            "receive-before: device 0: 0RECV_B0 stands behind 0B0",
        ),
        (changed(("0UNSHARD", "0RECV_F0")), "unknown-post: device 0: 0RECV_F0 is no end"),
        (changed(("1UNSHARD", "0SEND_F0")), "0SEND_F0: its stage sits on device 0"),
        (
            changed(("0SEND_F1", "0SEND_F1x")),
            "order.csv: rank 0: cell 4: '0SEND_F1x' is no operation",
        ),
        ("0F0,0B0\n1F0,1B0\n", "order.csv: it posts no send and no receive"),
    ],
)
def test_broken_orders_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "order.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        torch_comms.time_communication_order(
            torch_comms.read_communication_order(path), {"p2p": "0.5"}
        )
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["SEND_F", 0, 0, 0', '["SEND_X", 0, 0, 0', "kind 'SEND_X' is unknown"),
        (
            "null, 1]",
            "null]",
            "is not [kind, stage, microbatch, device, start, end, route, slice, null, rec",
        ),
        ("null, 1]", 'null, "1"]', "link: '1' is not a whole number"),
        ("0, 0, null, null]", "0, 0, null, 1]", "link: F has none; write null"),
        ('"link_mode": "streams"', '"link_mode": "fast"', "link_mode: 'fast' is unknown"),
    ],
)
def test_broken_schedule_files_are_refused(old: str, new: str, message: str) -> None:
    text = schedule_json.dumps(evaluate(SMALL, "zb-h1"))
    assert old in text
    with pytest.raises(InputError) as caught:
        schedule_json.loads(text.replace(old, new, 1), "file")
    assert message in str(caught.value)


def test_commands(tmp_path: Path) -> None:
    """Evaluate over streams, verify, export with communication, import, the same times."""
    saved, order, imported_file = (str(tmp_path / name) for name in ("a.json", "a.csv", "b.json"))
    size = "--stages 2 --batches 2 --weight-times 1 --p2p-time 0.5"
    evaluated = done(f"eval zb-h1 {size} --link-mode streams -o {saved} --json").json
    assert evaluated["verified"]
    assert len(evaluated["schedule"]["ops"]) == 12 + 4
    done(f"verify {saved}")
    done(f"export {saved} --to torch-comms -o {order}")
    assert Path(order).read_text() == TEXT
    costs = "--weight-times 1 --p2p-time 0.5"
    imported = done(f"import {order} --from torch-comms {costs} -o {imported_file} --json").json
    assert imported["makespan"] == evaluated["makespan"]
    done(f"verify {imported_file}")
    refused = run(f"import {order} --from torch-comms --link-mode delay")
    assert (refused.code, refused.out) == (2, "")
    assert "link_mode: delay has no order of transfers" in refused.err
