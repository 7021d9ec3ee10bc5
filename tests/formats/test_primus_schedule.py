"""Export to Primus: tables by hand and by its rules, settings, refusals; Primus itself."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

import ppopt
from ppopt import Pipeline, Schedule, evaluate
from ppopt.errors import NotApplicableError
from ppopt.formats import torch_csv
from ppopt.formats.primus_schedule import primus_files, primus_settings, primus_table
from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import profile
from ppopt.profiles.readers.primus import MILLISECOND, read_run
from tests.formats import primus_checkout
from tests.oracles.primus_rules import COMPUTED, SENDS, blocks, posted_orders, simulated

SMALL = Pipeline(stages=2, batches=2, weight=1)
SHAPES = {
    "1f1b": {},
    "gpipe": {},
    "zb-h1": {},
    "zb-1p": {},
    "zb-2p": {},
    "interleaved": {"chunks": 2},
    "looped-bfs": {"chunks": 2},
    "1f1b-v": {"placement": "v", "chunks": 2},
    "zbv": {"placement": "v", "chunks": 2},
    "v-half": {"placement": "v", "chunks": 2},
    "v-min": {"placement": "v", "chunks": 2},
}
"""Strategy -> the settings of a placement that Primus has."""


def pipeline_of(strategy: str, devices: int, batches: int, **costs: Any) -> Pipeline:
    times = {"forward": 3, "backward": 6, "weight": 2}
    return Pipeline(stages=devices, batches=batches, **SHAPES[strategy], **times | costs)


@pytest.fixture
def stand_in() -> Iterator[None]:
    with primus_checkout.primus(None):
        yield


def nodes_of(schedule: Schedule, folder: Path) -> list[list[Any]]:
    """The nodes that Primus runs: our table, read by the class of our file."""
    path = folder / "primus.table.json"
    path.write_text(primus_table(schedule), encoding="utf-8")
    pipeline = schedule.pipeline
    sizes = (pipeline.num_devices, pipeline.num_stages // pipeline.num_devices, pipeline.batches)
    table: list[list[Any]] = primus_checkout.schedule_table()(
        *sizes, table=str(path)
    ).generate_schedule_table()
    return table


def test_by_hand() -> None:
    """The gradient of microbatch 0 is received before F of microbatch 1, which runs meanwhile."""
    table = json.loads(primus_table(evaluate(replace(SMALL, forward=2), "1f1b")))
    assert table["ranks"] == [
        nodes("F0 SF0 F1 SF1 RB0 BW0 RB1 BW1"),
        nodes("RF0 F0 RF1 BW0 SB0 F1 BW1 SB1"),
    ]
    assert table["pp_algorithm"] == "1f1b"


def nodes(text: str) -> list[list[Any]]:
    """Nodes of chunk 0, from their names with the microbatch."""
    return [[word[:-1], int(word[-1]), 0] for word in text.split()]


def test_a_tensor_between_stages_of_a_rank_has_both_nodes(tmp_path: Path, stand_in: None) -> None:
    pipeline = Pipeline(stages=2, batches=1, placement="v", chunks=2)
    _, last = nodes_of(evaluate(pipeline, "zbv"), tmp_path)
    local = [node for node in last if node.args and node.args["from_pp_rank"] == 1]
    local = [node for node in local if node.args["to_pp_rank"] == 1]
    assert [(node.func_type.name, node.chunk) for node in local] == [
        ("SF", 0),
        ("RF", 1),
        ("SB", 1),
        ("RB", 0),
    ]
    assert [node.args.get("send_to_chunk") for node in local] == [1, None, 0, None]
    assert [node.args.get("recv_from_chunk") for node in local] == [None, 0, None, 1]


SIMULATED = [
    (strategy, devices, batches)
    for strategy in SHAPES
    for devices, batches in ((2, 4), (3, 6), (4, 8))
]


@pytest.mark.parametrize(("strategy", "devices", "batches"), SIMULATED)
def test_its_rules_lead_to_our_times(
    strategy: str, devices: int, batches: int, tmp_path: Path, stand_in: None
) -> None:
    """Also with both ends of a batch blocking, and with equal orders at both ends."""
    schedule = evaluate(pipeline_of(strategy, devices, batches), strategy)
    table = nodes_of(schedule, tmp_path)
    makespan, starts = simulated(table, lambda *key: own_duration(schedule, *key))
    assert makespan == schedule.metrics.makespan_ticks
    for device, row in enumerate(starts):
        assert row == sorted(schedule.start[schedule.device == device].tolist())
    assert all(lower == higher for lower, higher in posted_orders(table).values())
    assert not blocks(table)


def own_duration(schedule: Schedule, rank: int, chunk: int, kind: str) -> float:
    stage = schedule.pipeline.hosted[0][rank][chunk]
    return schedule.pipeline.ticks.durations[OpKind[kind]][stage]


@pytest.mark.parametrize("p2p", [1, 4, 20])
@pytest.mark.parametrize("mode", ["delay", "streams", "exclusive"])
@pytest.mark.parametrize("strategy", ["1f1b", "zb-h1", "interleaved", "zbv", "v-min"])
def test_transfers_that_take_time_match_at_both_ends(
    strategy: str, mode: str, p2p: int, tmp_path: Path, stand_in: None
) -> None:
    pipeline = pipeline_of(strategy, 4, 8, p2p=p2p, link_mode=mode)
    table = nodes_of(evaluate(pipeline, strategy), tmp_path)
    assert all(lower == higher for lower, higher in posted_orders(table).values())
    assert not blocks(table)
    simulated(table, lambda *_: 1)


def test_a_step_separates_what_primus_would_reorder(tmp_path: Path, stand_in: None) -> None:
    """Rank 1 sends a gradient down before it receives an activation, between two operations."""
    pipeline = Pipeline(stages=2, batches=2, forward=[5, 1], backward=2, weight=1)
    table = nodes_of(evaluate(pipeline, "1f1b"), tmp_path)
    steps = [node.args.get("time_step") for node in table[1] if node.args]
    assert steps == [None, 0, 1, None]
    assert all(lower == higher for lower, higher in posted_orders(table).values())


def test_an_overlapped_pair_is_a_combined_group(tmp_path: Path, stand_in: None) -> None:
    text = (
        "0F0,0F1,(0F2;0I0)OVERLAP_F_B,0W0,0I1,0W1,0I2,0W2\n"
        "1F0,(1F1;1I0)OVERLAP_F_B,1W0,(1F2;1I1)OVERLAP_F_B,1W1,1I2,1W2\n"
    )
    schedule = torch_csv.schedule(torch_csv.parse_order(text, "x.csv"), {"weight": 1})
    assert schedule.seconds.any()
    for row in nodes_of(schedule, tmp_path):
        groups = [node for node in row if node.args and "combined_group" in node.args]
        for forward, backward in zip(groups[::2], groups[1::2], strict=True):
            names = [
                f"({node.func_type.name}|{node.mini_batch}|{node.chunk})"
                for node in (forward, backward)
            ]
            assert forward.args["combined_group"] == backward.args["combined_group"] == names
            assert row.index(backward) == row.index(forward) + 1
            assert [node.func_type.name for node in (forward, backward)] == ["F", "B"]
    assert "overlap_moe_expert_parallel_comm: true" in primus_settings(schedule, Path("x.json"))


def test_an_offload_ends_and_a_reload_begins_at_their_times(tmp_path: Path, stand_in: None) -> None:
    pipeline = Pipeline(
        stages=4,
        batches=4,
        placement=[0, 1, 1, 0],
        offload_time=[0.5, 0, 0, 0.5],
        offload_memory=[0.5, 0, 0, 0.5],
    )
    schedule = evaluate(pipeline, "zbv")
    first, last = nodes_of(schedule, tmp_path)
    names = [(node.func_type.name, node.mini_batch, node.chunk) for node in first]
    for microbatch in range(4):
        for chunk in (0, 1):
            forward = names.index(("F", microbatch, chunk))
            assert first[forward].args["should_offload"]
            ended, begun = (names.index((name, microbatch, chunk)) for name in "OR")
            assert forward < ended < begun < names.index(("B", microbatch, chunk))
    assert not {"O", "R"} & {node.func_type.name for node in last}


@pytest.mark.parametrize(
    ("pipeline", "strategy", "message"),
    [
        (Pipeline(stages=1, batches=2), "1f1b", "at least 2 ranks"),
        (Pipeline(stages=2, batches=4, routes=2), "dualpipe", "routes above 1"),
        (Pipeline(stages=2, batches=2, slices=2), "seq-1f1b", "slices above 1"),
        (Pipeline(stages=2, batches=2, frozen=[True, False]), "1f1b", "frozen stages"),
        (Pipeline(stages=2, batches=2, placement="v", chunks=4), "hanayo", "stage s sits on rank"),
        (Pipeline(stages=2, batches=2, offload_time=1, offload_memory=1), "1f1b", "in a V alone"),
        (
            Pipeline(stages=2, batches=6, placement="v", chunks=2, overlap_times=2.5),
            "dualpipe-v",
            "here a pair has a BW",
        ),
    ],
)
def test_what_primus_cannot_run_is_said(pipeline: Pipeline, strategy: str, message: str) -> None:
    with pytest.raises(NotApplicableError, match=f"^primus: .*{message}"):
        primus_table(evaluate(pipeline, strategy))


def test_forwards_in_two_orders_are_refused() -> None:
    """Every stage reads its data in the order of its forwards."""
    rows = "0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n"
    order = torch_csv.parse_order(rows.replace("1F1,1B1,1F0,1B0", "1F0,1B0,1F1,1B1"), "x.csv")
    schedule = torch_csv.schedule(order, {})
    swapped = torch_csv.schedule(
        replace(order, rows=(tuple(order.rows[0][i] for i in (1, 0, 2, 3)), order.rows[1])), {}
    )
    assert primus_table(schedule)
    with pytest.raises(NotApplicableError, match=r"stage 0 runs the forwards .* another order"):
        primus_table(swapped)


def test_the_settings_are_those_of_a_model_in_layers() -> None:
    layers = [
        ppopt.Layer(forward=1, role="embedding", activation=1),
        *(ppopt.Layer(forward=2, activation=2, recompute=number in (1, 3)) for number in range(6)),
        ppopt.Layer(forward=2, activation=2, role="mtp", recompute=True),
        ppopt.Layer(forward=1, role="head", activation=1),
    ]
    pipeline = ppopt.Model(layers).pipeline(
        devices=2, batches=4, placement="v", chunks=2, partition=[3, 2, 2, 2]
    )
    settings = yaml.safe_load(primus_settings(evaluate(pipeline, "zbv"), Path("best.table.json")))
    assert settings == {
        "num_layers": 6,
        "mtp_num_layers": 1,
        "pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": "Ett|(tt|)*2mL",
        "recompute_granularity": "full",
        "recompute_method": None,
        "recompute_num_layers": None,
        "recompute_layer_ids": "1,3,6",
        "patch_primus_pipeline": True,
        "pp_algorithm": "zbv-formatted",
        "communication_method": "async_p2p",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pp_size": 3}, "pp_size is 2 there, and 3 here"),
        ({"micro_batches": 5}, "micro_batches is 2 there, and 5 here"),
        ({"algorithm": "zero-bubble"}, "pp_algorithm is 1f1b there, and zero-bubble here"),
        ({"offload": True}, "offload is False there, and True here"),
    ],
)
def test_a_table_of_another_run_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path, stand_in: None
) -> None:
    path = tmp_path / "table.json"
    path.write_text(primus_table(evaluate(SMALL, "1f1b")), encoding="utf-8")
    arguments = {"pp_size": 2, "vpp_size": 1, "micro_batches": 2, "table": str(path), **change}
    with pytest.raises(ValueError, match=message):
        primus_checkout.schedule_table()(**arguments)


def test_the_file_replaces_every_algorithm_if_the_variable_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    path.write_text(primus_table(evaluate(SMALL, "1f1b")), encoding="utf-8")
    with primus_checkout.primus(None) as algorithms:
        primus_checkout.schedule_table()
        assert set(algorithms.values()) == {object}
        monkeypatch.setenv("PPOPT_SCHEDULE", str(path))
        primus_checkout.schedule_table()
        algorithm: Any = algorithms["1f1b"](2, 1, 2)
        assert len(algorithm.generate_schedule_table()) == 2
        assert algorithm.last_pp_stage_rank() == 1
        with pytest.raises(ValueError, match="pp_algorithm is 1f1b there, and v-half here"):
            algorithms["v-half"](2, 1, 2, memory_config="half")
    assert "primus" not in sys.modules


def test_the_files_of_an_export(tmp_path: Path) -> None:
    texts = primus_files(evaluate(SMALL, "1f1b"), tmp_path / "primus.yaml")
    assert [path.name for path in texts] == [
        "primus.table.json",
        "ppopt_schedule_patch.py",
        "primus.yaml",
    ]


# Primus itself


ALGORITHMS = {
    "1f1b": ("linear", 1),
    "zero-bubble": ("linear", 1),
    "zero-bubble-heuristic": ("linear", 1),
    "1f1b-interleaved": ("interleaved", 2),
    "zbv-formatted": ("v", 2),
    "v-half": ("v", 2),
    "v-min": ("v", 2),
}


def primus_simulation(table: Any, schedule: Schedule, dump: Path | None = None) -> float:
    """The makespan by Primus' own simulator, in ticks; `dump`: the folder for its files."""
    simulator = import_module("primus.core.projection.performance_projection.simulator")
    names = {"fwd": OpKind.F, "bwd": OpKind.B, "wgrad": OpKind.W}
    durations = schedule.pipeline.ticks.durations
    times = [
        [{name: durations[kind][stage] for name, kind in names.items()} for stage in stages]
        for stages in schedule.pipeline.hosted[0]
    ]
    runner = simulator.SchedulerSimulationRunner(
        {"chunk_time_ms": times, "output_dir": str(dump and dump.parent)}
    )
    shape = {"pp_size": len(times), "vpp_size": len(times[0])}
    with redirect_stdout(StringIO()):
        rows = runner.simulate_scheduler_table(table, shape)
    if dump is not None:
        shape["micro_batches"] = schedule.pipeline.batches
        runner.dump_simulation_result(rows, {**shape, "name": dump.name})
    return max(row["total"] for row in rows)


@pytest.mark.parametrize(("strategy", "devices", "batches"), SIMULATED)
def test_its_simulator_has_our_makespan(
    strategy: str, devices: int, batches: int, tmp_path: Path
) -> None:
    with primus_checkout.primus(primus_checkout.checkout()):
        schedule = evaluate(pipeline_of(strategy, devices, batches), strategy)
        table = nodes_of(schedule, tmp_path)
        dump = tmp_path / "dump"
        assert primus_simulation(table, schedule, dump) == schedule.metrics.makespan_ticks
    records = read_run(dump).records
    assert profile(records).hosts == schedule.pipeline.hosts[0]
    assert {(*record[:4], record.start / MILLISECOND) for record in records} == {
        (row.kind, row.stage, row.microbatch, row.device, row.start) for row in schedule.rows()
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("ranks", "batches"), [(2, 4), (4, 8), (4, 12)])
def test_its_algorithms_written_by_us_are_the_same_tables(
    algorithm: str, ranks: int, batches: int, tmp_path: Path
) -> None:
    """Node by node in our form; as a schedule of ours, every operation and every transfer."""
    placement, chunks = ALGORITHMS[algorithm]
    with primus_checkout.primus(primus_checkout.checkout()) as algorithms:
        memory = {"v-half": {"memory_config": "half"}, "v-min": {"memory_config": "min"}}
        own = algorithms[algorithm](ranks, chunks, batches, **memory.get(algorithm, {}))
        table = own.generate_schedule_table()
        batches = own.micro_batches
        read = primus_checkout.schedule_table()
        pipeline = Pipeline(
            stages=ranks, batches=batches, placement=placement, chunks=chunks, backward=3, weight=1
        )
        path = tmp_path / "own.json"
        path.write_text(json.dumps(our_form(table, pipeline, batches)), encoding="utf-8")
        reread = read(ranks, chunks, batches, table=str(path))
        assert reread.generate_schedule_table() == table
        same_directions(own, reread, ranks, chunks)
        schedule = schedule_of(table, pipeline)
        exported = nodes_of(schedule, tmp_path)
        for ours, theirs in zip(exported, table, strict=True):
            assert computed(ours) == computed(theirs)
            assert transfers(ours) == transfers(theirs)
        before, after = (primus_simulation(each, schedule) for each in (table, exported))
        assert after <= before


def our_form(table: Any, pipeline: Pipeline, batches: int) -> dict[str, Any]:
    ends = ("from_pp_rank", "to_pp_rank", "send_to_chunk", "recv_from_chunk")
    rows = []
    for row in table:
        nodes = []
        for node in row:
            rest = {key: value for key, value in (node.args or {}).items() if key not in ends}
            nodes.append([node.func_type.name, node.mini_batch, node.chunk, rest])
        rows.append(nodes)
    return {
        "pp_size": pipeline.num_devices,
        "vpp_size": pipeline.num_chunks,
        "micro_batches": batches,
        "stages": pipeline.hosted[0],
        "ranks": rows,
    }


def same_directions(own: Any, reread: Any, ranks: int, chunks: int) -> None:
    func_types = import_module(f"{primus_checkout.SCHEDULER}.scheduler_node").FuncType
    backward = func_types.BW if "1F1B" in type(own).__name__ else func_types.B
    for rank in range(ranks):
        for chunk in range(chunks):
            for func_type in (func_types.F, backward):
                theirs, ours = (
                    algorithm.direction_map(rank, chunk, func_type) for algorithm in (own, reread)
                )
                for way, at in (("prev", "recv_from_chunk"), ("next", "send_to_chunk")):
                    assert ours[way] == theirs[way]
                    assert ours[way][0] is None or ours[at] == theirs[at]


def schedule_of(table: Any, pipeline: Pipeline) -> Schedule:
    letters = {"F": "F", "B": "I", "W": "W", "BW": "B"}
    text = ""
    for rank, row in enumerate(table):
        cells = [
            f"{pipeline.hosted[0][rank][node.chunk]}{letters[name]}{node.mini_batch}"
            for node in row
            if (name := node.func_type.name) in letters
        ]
        text += ",".join(cells) + "\n"
    settings = {"stages": pipeline.num_devices, "backward": 3, "weight": 1}
    settings |= {"placement": pipeline.placement, "chunks": pipeline.num_chunks}
    if pipeline.num_chunks == 1:
        del settings["chunks"]
    return torch_csv.schedule(torch_csv.parse_order(text, "table"), settings)


def computed(row: Any) -> list[tuple[str, int, int]]:
    return [
        (node.func_type.name, node.mini_batch, node.chunk)
        for node in row
        if node.func_type.name in COMPUTED
    ]


def transfers(row: Any) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            node.func_type.name,
            node.mini_batch,
            node.chunk,
            node.args["from_pp_rank"],
            node.args["to_pp_rank"],
            node.args["send_to_chunk" if node.func_type.name in SENDS else "recv_from_chunk"],
        )
        for node in row
        if node.func_type.name not in COMPUTED
    )
