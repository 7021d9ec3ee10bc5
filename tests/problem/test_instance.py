"""The instance: resources, classes with modes, precedence, and what features add."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from ppopt.problem import features
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.class_graph import ClassGraph
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.instance import ABSENT, SPLIT_MODE, WHOLE_MODE, Instance
from ppopt.problem.kinds import RECORDS, ResourceKind
from ppopt.problem.operation import KINDS, AuxiliaryKind, OpKind, TransferKind
from ppopt.problem.operation_classes import Mode, OperationClass, Precedence
from ppopt.problem.pipeline import Pipeline
from tests.factories.instances import draw
from tests.factories.schedules import durations

TWO = Pipeline(stages=2, batches=2, forward=[1, 2], backward=5, weight=2, p2p=3, backward_p2p=4)
"""Two stages, B = 3."""


def edges(instance: Instance) -> set[tuple[str, str, int]]:
    """Precedence between the operations of microbatch 0, by name."""
    pipeline = instance.pipeline
    flow = zip(*(column.tolist() for column in instance.operation_flow), strict=True)
    named = {
        (str(pipeline.op(before)), str(pipeline.op(after)), lag) for before, after, lag in flow
    }
    return {edge for edge in named if edge[0].endswith("0")}


def test_data_flow_of_two_stages() -> None:
    assert edges(Instance(TWO, BackwardKind.SPLIT)) == {
        ("0F0", "1F0", 3),
        ("0F0", "0B0", 0),
        ("1F0", "1B0", 0),
        ("1B0", "0B0", 4),
        ("0B0", "0W0", 0),
        ("1B0", "1W0", 0),
    }


def test_a_backward_of_two_modes_is_split_or_whole() -> None:
    instance = Instance(TWO, BackwardKind.MIXED)
    backward, weight = (instance.classes[class_id] for class_id in instance.class_ids(1)[1:])
    assert [mode and (mode.kind, mode.duration) for mode in backward.modes] == [
        (OpKind.B, 3),
        (OpKind.BW, 5),
    ]
    assert [mode and (mode.kind, mode.duration) for mode in weight.modes] == [(OpKind.W, 2), None]
    class_id = instance.class_id(OpKind.W, 1)
    assert [str(TWO.op(code)) for code in instance.codes_in(class_id, SPLIT_MODE)] == ["1W0", "1W1"]
    assert set(instance.codes_in(class_id, WHOLE_MODE).tolist()) == {ABSENT}


@pytest.mark.parametrize("seed", range(10))
def test_chosen_modes_that_are_all_alike_are_the_uniform_instance(seed: int) -> None:
    pipeline = draw(Random(seed), devices=3, batches=4, ops=60).pipeline
    mixed = Instance(pipeline, BackwardKind.MIXED)
    shape = (pipeline.num_stages, pipeline.batches, pipeline.num_slices)
    for kind, split in ((BackwardKind.SPLIT, True), (BackwardKind.WHOLE, False)):
        chosen = mixed.chosen_flow(np.full(shape, split))
        alone = Instance.with_backwards(pipeline, np.full(shape, split)).operation_flow
        assert set(zip(*map(np.ndarray.tolist, chosen), strict=True)) == set(
            zip(*map(np.ndarray.tolist, alone), strict=True)
        )
        option = SPLIT_MODE if split else WHOLE_MODE
        amounts = [holding.amounts for holding in mixed.live_memory_in(option)]
        assert amounts == [holding.amounts for holding in Instance(pipeline, kind).live_memory_in()]


def test_transfers_of_streams_are_operations_of_links() -> None:
    """Both ways share one link; each transfer takes the time of its way."""
    streams = Pipeline(
        stages=2, batches=2, p2p=3, backward_p2p=4, link_mode="streams", placement=[0, 1]
    )
    instance = Instance(streams, BackwardKind.WHOLE, all_resources=True)
    assert [resource.kind for resource in instance.resources] == [
        *[ResourceKind.COMPUTE] * 2,
        ResourceKind.LINK,
    ]
    assert instance.resources[2].devices == (0, 1)
    carried = [instance.classes[class_id] for class_id in instance.hosted[2]]
    assert [(transfer.kind, transfer.stage, transfer.duration) for transfer in carried] == [
        (TransferKind.SEND_F, 0, 3),
        (TransferKind.SEND_B, 1, 4),
    ]
    assert not instance.flow.lag.any()
    delays = Instance(streams, BackwardKind.WHOLE)
    assert len(delays.resources) == 2
    assert set(delays.flow.lag.tolist()) == {0, 3, 4}


def test_links_that_are_delays_are_no_resources() -> None:
    with_all = Instance(TWO, BackwardKind.SPLIT, all_resources=True)
    without = Instance(TWO, BackwardKind.SPLIT)
    assert with_all.resources == without.resources
    assert with_all.classes == without.classes
    assert all(map(np.array_equal, with_all.flow, without.flow))


def test_one_operation_joins_those_of_all_microbatches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of one operation, such as the end of a step, waits for every microbatch."""
    build = features.draft_of

    def with_an_end(
        pipeline: Pipeline, backward: BackwardKind, *, all_resources: bool
    ) -> InstanceDraft:
        draft = build(pipeline, backward, all_resources=all_resources)
        last = len(draft.classes) - 1
        draft.classes.append(OperationClass(0, 0, 0, 0, (Mode(OpKind.BW, 1),), 1))
        draft.precedence.append(Precedence(last, last + 1, 7))
        return draft

    monkeypatch.setattr(features, "draft_of", with_an_end)
    instance = Instance(TWO, BackwardKind.SPLIT)
    end = int(instance.codes[-1][0])
    flow = instance.operation_flow
    into_end = flow.after == end
    assert [str(TWO.op(code)) for code in flow.before[into_end]] == ["1W0", "1W1"]
    assert flow.lag[into_end].tolist() == [7, 7]


@pytest.mark.parametrize("seed", range(5))
def test_durations_by_number_are_the_table_of_the_pipeline(seed: int) -> None:
    pipeline = draw(Random(seed), devices=3, batches=4, ops=60).pipeline
    assert Instance(pipeline, BackwardKind.MIXED).durations.tolist() == durations(pipeline)


@pytest.mark.parametrize("kind", BackwardKind)
@pytest.mark.parametrize("seed", range(5))
def test_amounts_by_number_are_those_of_the_classes(seed: int, kind: BackwardKind) -> None:
    pipeline = draw(Random(seed), devices=3, batches=4, ops=60).pipeline
    instance = Instance(pipeline, kind, all_resources=seed % 2 == 0)
    arrays = (instance.durations, instance.allocations, instance.frees)
    listed = [np.zeros(instance.num_codes, dtype=np.int64) for _ in arrays]
    for option in (SPLIT_MODE, WHOLE_MODE):
        for class_id, op_class in enumerate(instance.classes):
            rows = (query(class_id, option) for query in (instance.times, instance.allocated))
            for array, row in zip(listed, (*rows, instance.freed(class_id, option)), strict=True):
                mode = op_class.modes_by_option[option]
                assert len(row) == (0 if mode is None else op_class.size)
                codes = instance.codes_in(class_id, option)
                array[codes[codes != ABSENT]] = row
    assert all(map(np.array_equal, arrays, listed))


def test_a_pair_has_the_length_and_workspace_of_both() -> None:
    """B of no length holds its workspace in a pair alone."""
    pipeline = Pipeline(
        stages=1, batches=1, forward=2, backward_input=0, weight=1, workspace=5, activation=3
    )
    instance = Instance(pipeline, BackwardKind.SPLIT)
    f, b = (pipeline.code(kind, 0, 0) for kind in (OpKind.F, OpKind.B))
    assert instance.pair_time(f, b) == 2
    memory = (instance.allocations, instance.frees, instance.pair_workspaces)
    assert [array[f] for array in memory] == [8, 5, 0]
    assert [array[b] for array in memory] == [0, 0, 5]


# Graphs of classes: a removed class leaves the longest paths through it as lags.


def longest(instance: Instance, removed: set[int], before: int, after: int) -> int | None:
    """The longest path between two classes through removed ones, by trying all paths."""
    lags = []
    for following, lag in instance.successors[before]:
        if following == after:
            lags.append(lag)
        elif following in removed:
            rest = longest(instance, removed, following, after)
            if rest is not None:
                lags.append(lag + instance.classes[following].duration + rest)
    return max(lags, default=None)


def test_lags_are_the_longest_paths_through_removed_classes_in_any_order_of_removal() -> None:
    rng = Random(3)
    checked = 0
    for _ in range(60):
        case = draw(rng, devices=rng.randint(1, 3), batches=1, ops=12)
        instance = Instance.uniform(case.pipeline, fused=case.fused)
        numbers = range(len(instance.classes))
        removed = rng.sample(numbers, rng.randint(1, len(numbers) - 1))
        graph = ClassGraph(instance, numbers)
        for class_id in removed:
            graph.remove(class_id)
        left = [class_id for class_id in numbers if class_id not in removed]
        expected = {
            (before, after, lag)
            for before in left
            for after in left
            if (lag := longest(instance, set(removed), before, after)) is not None
        }
        assert set(graph) == expected
        checked += len(expected)
    assert checked > 100


def test_three_stages_without_the_middle_one() -> None:
    """Down: p2p 2, F 3, p2p 2. Up: p2p 2, B 4, p2p 2. F(0) to B(0) by the middle: 2+3+4+2."""
    pipeline = Pipeline(stages=3, batches=1, forward=3, backward=8, weight=4, p2p=2)
    instance = Instance.uniform(pipeline, fused=False)
    graph = ClassGraph(instance, range(9))
    for middle in (1, 4, 7):
        graph.remove(middle)
    assert [*graph] == [(0, 2, 7), (0, 3, 11), (2, 5, 0), (3, 6, 0), (5, 3, 8), (5, 8, 0)]


def test_classes_that_are_not_of_the_graph_are_left_out() -> None:
    instance = Instance.uniform(Pipeline(stages=2, batches=1), fused=True)
    graph = ClassGraph(instance, (0, 2))
    assert [*graph] == [(0, 2, 0)]
    assert graph.lag(2, 0) is None


# The registry of kinds is complete, and every class runs on a resource of its kind.


WORK = {"unshard": 1, "gradient_sync": 3, "optimizer": 1}
OFFLOAD = {"offload_memory": 0.5, "offload_time": 1}


def test_every_kind_has_a_record_at_its_code() -> None:
    kinds = [*OpKind, *TransferKind, *AuxiliaryKind]
    assert [record.kind for record in RECORDS] == kinds
    assert list(map(int, kinds)) == list(range(KINDS))
    assert len({record.letter for record in RECORDS}) == KINDS


@pytest.mark.parametrize(
    ("link_mode", "routes"), [("delay", 1), ("streams", 1), ("exclusive", 1), ("exclusive", 2)]
)
@pytest.mark.parametrize("placement", ["linear", [0, 1, 1, 0], [0, 1, 1, 2], [2, 0, 2, 1]])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"frozen": [True, True, False, False]},
        {"frozen": [False, True, False, False]},
        WORK,
        OFFLOAD,
        {**WORK, **OFFLOAD, "host_link": "shared"},
    ],
)
def test_resources_run_what_their_kind_says(
    link_mode: str, routes: int, placement: object, more: dict[str, object]
) -> None:
    fields = {"placement": placement, "routes": routes, "link_mode": link_mode, "p2p": 1}
    pipeline = Pipeline(stages=4, batches=4, **fields, **more)
    instance = Instance.of(pipeline, BackwardKind.SPLIT, all_resources=True)
    for resource, numbers in zip(instance.resources, instance.hosted, strict=True):
        assert numbers
        for class_id in numbers:
            op_class = instance.classes[class_id]
            assert op_class.kind is not None
            record, hosts = RECORDS[op_class.kind], pipeline.hosts[op_class.route]
            step = {None: 0, OpKind.F: 1, OpKind.B: -1}[record.carries]
            ends = (hosts[op_class.stage], hosts[op_class.stage + step])
            devices = resource.devices if step else resource.devices * 2
            assert resource.kind is record.resource
            assert devices == ends or (not resource.one_way and devices == ends[::-1])


def test_compute_alone_keeps_the_costs_of_stages_that_are_equal_shares() -> None:
    fields: dict[str, Any] = {"forward": 4, "activation": 4, "offload_memory": 2, "offload_time": 2}
    pipeline = Pipeline(stages=1, batches=1, chunks=2, **fields, mem_limit=9)
    alone = features.compute_alone(pipeline)
    assert alone.ticks.allocates == features.compute_alone(pipeline.placed((0, 0))).ticks.allocates
    assert alone.ticks.allocates[OpKind.F] == (2, 2)
