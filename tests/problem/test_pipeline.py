from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.problem import hosting
from ppopt.problem.layer import Layer
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.studies.evaluate import evaluate


def test_defaults_are_those_of_the_design() -> None:
    pipe = Pipeline(stages=4, batches=8)
    assert pipe.costs.forward == (1,) * 4
    assert pipe.costs.backward == (2,) * 4
    assert pipe.costs.weight == (1,) * 4
    assert pipe.costs.backward_input == (1,) * 4
    assert pipe.costs.activation == (1,) * 4
    assert pipe.hosts == ((0, 1, 2, 3),)
    assert pipe.limits is None
    assert pipe.ticks.down == pipe.ticks.up == ((0,) * 3,)


@pytest.mark.parametrize(
    ("fields", "backward", "weight", "backward_input"),
    [
        ({}, 6, 3, 3),
        ({"backward": 4}, 4, 2, 2),
        ({"weight": 2}, 6, 2, 4),
        ({"backward_input": 5}, 8, 3, 5),
        ({"backward_input": 5, "weight": 2}, 7, 2, 5),
        ({"backward_input": 5, "backward": 6}, 6, 1, 5),
        ({"backward_input": 5, "weight": 2, "backward": 6}, 6, 2, 5),
        ({"backward": 4, "weight": 4}, 4, 4, 0),
    ],
)
def test_backward_times_follow_from_what_is_given(
    fields: dict[str, int], backward: int, weight: int, backward_input: int
) -> None:
    costs = Pipeline(stages=1, batches=1, forward=3, **fields).costs
    assert (costs.backward, costs.weight, costs.backward_input) == (
        (backward,),
        (weight,),
        (backward_input,),
    )


def test_chunks_cut_every_share_exactly() -> None:
    pipe = Pipeline(
        stages=2, batches=3, chunks=3, forward=[1, 2], memory_b=[-1, 0], static=[3, 0], p2p=1
    )
    assert pipe.hosts == ((0, 1, 0, 1, 0, 1),)
    assert pipe.costs.forward == (Fraction(1, 3), Fraction(2, 3)) * 3
    assert pipe.costs.memory_b == (Fraction(-1, 3), 0) * 3
    assert pipe.ticks.per_unit == 3
    assert pipe.ticks.durations[OpKind.F] == (1, 2) * 3
    assert pipe.ticks.down == pipe.ticks.up == ((3,) * 5,)
    assert pipe.ticks.static == (9, 0)


@pytest.mark.parametrize(
    ("fields", "hosts"),
    [
        ({"placement": "v"}, (0, 1, 2, 2, 1, 0)),
        ({"placement": "v", "chunks": 3}, (0, 1, 2, 2, 1, 0, 0, 1, 2)),
        ({"placement": "interleaved"}, (0, 1, 2, 0, 1, 2)),
        ({"chunks": 2}, (0, 1, 2, 0, 1, 2)),
        ({"placement": "linear"}, (0, 1, 2)),
        ({"placement": [1, 0, 0]}, (1, 0, 0)),
    ],
)
def test_placements(fields: dict[str, Any], hosts: tuple[int, ...]) -> None:
    assert Pipeline(stages=3, batches=1, **fields).hosts == (hosts,)


def test_explicit_placement_counts_stages() -> None:
    pipe = Pipeline(stages=8, batches=1, placement=[0, 1, 2, 3, 3, 2, 1, 0], forward=range(1, 9))
    assert pipe.num_devices == 4
    assert pipe.costs.forward == tuple(range(1, 9))
    assert pipe.hosted[0][1] == (1, 6)


def test_second_route_is_mirrored_and_counts_static_twice() -> None:
    pipe = Pipeline(stages=3, batches=4, routes=2, static=[1, 10, 100])
    assert pipe.hosts == ((0, 1, 2), (2, 1, 0))
    assert [pipe.route(microbatch) for microbatch in range(4)] == [0, 0, 1, 1]
    assert pipe.device(0, 3) == 2
    assert pipe.ticks.static == (101, 20, 101)


def test_bare_limit_is_the_largest_peak_of_1f1b() -> None:
    pipe = Pipeline(
        stages=3, batches=2, mem_limit="1f1b", activation=[1, 2, 5], static=[10, 10, 10]
    )
    assert pipe.limits == (15,) * 3  # device 2: 10 + min(2, 1) x 5; device 1: 10 + 2 x 2
    assert replace(pipe, batches=8, activation=[4, 2, 5]).limits == (22,) * 3
    assert replace(pipe, chunks=2, placement="v").limits == (15,) * 3


def test_limits_per_device() -> None:
    assert Pipeline(stages=2, batches=1, mem_limit=[1, "2.5"]).limits == (1, Fraction(5, 2))


def test_a_limit_that_is_too_fine_is_rounded_down() -> None:
    """Rounded up it would allow what the device does not hold."""
    for limit in ("2.0000019", ["2.0000019"] * 2):
        pipe = Pipeline(stages=2, batches=1, mem_limit=limit)
        assert pipe.limits == (Fraction("2.000001"),) * 2
        assert pipe.rounded == ("mem_limit",)


def test_an_operation_takes_its_time_by_the_speed_of_its_device() -> None:
    pipe = Pipeline(
        stages=3, placement=[1, 0, 1], batches=1, forward=[3, 1, 2], device_speed=[1, "0.6"]
    )
    ticks = pipe.ticks
    times = [tuple(map(ticks.time, row)) for row in ticks.durations]
    assert times[OpKind.F] == (5, 1, Fraction(10, 3))  # 3 / 0.6, 1 / 1, 2 / 0.6
    assert times[OpKind.BW] == (10, 2, Fraction(20, 3))  # twice F
    assert tuple(map(ticks.time, ticks.overlap)) == (15, 3, 10)
    assert pipe.costs.forward == (3, 1, 2)
    assert replace(pipe, device_speed=2).ticks.durations == replace(
        pipe, forward=[1.5, 0.5, 1], backward=[3, 1, 2], weight=[1.5, 0.5, 1], device_speed=1,
        backward_input=None,
    ).ticks.durations  # fmt: skip


def test_two_routes_need_one_speed_for_the_devices_of_a_stage() -> None:
    pipe = Pipeline(stages=3, batches=2, routes=2, device_speed=[2, 1, 2])
    assert pipe.ticks.time(pipe.ticks.durations[OpKind.F][0]) == Fraction(1, 2)
    with pytest.raises(InputError, match="device_speed: two routes run a stage on devices 0 and 2"):
        replace(pipe, device_speed=[1, 1, 2])


def test_codes_number_every_operation_once() -> None:
    pipe = Pipeline(stages=2, batches=3)
    codes = {
        pipe.code(kind, stage, microbatch)
        for kind in OpKind
        for stage in range(2)
        for microbatch in range(3)
    }
    assert codes == set(range(pipe.num_codes))
    assert all(pipe.code(*pipe.op(code)) == code for code in codes)


def test_rounded_input_is_said_and_stays_said() -> None:
    pipe = Pipeline(stages=1, batches=1, forward="0.33333333")
    assert pipe.rounded == ("forward",)
    assert replace(pipe, batches=2).rounded == ("forward",)
    assert Pipeline(stages=1, batches=1, forward="18.522").rounded == ()


def test_a_pipeline_is_frozen_and_compares_by_value() -> None:
    pipe = Pipeline(stages=2, batches=1, forward="0.5")
    assert pipe == Pipeline(stages=2, batches=1, forward=[0.5, "0.50"])
    with pytest.raises(FrozenInstanceError):
        pipe.batches = 2  # type: ignore[misc]


def test_the_times_of_backwards_are_free_of_each_other() -> None:
    """B above BW, and W above BW, as measured where splitting costs much; B may be 0."""
    pipe = Pipeline(stages=2, batches=2, backward_input=[3, 0], weight=[1, 5], backward=2)
    assert pipe.ticks.durations == ((1, 1), (3, 0), (1, 5), (2, 2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stages": 0}, "stages: 0 is below 1"),
        ({"stages": "4"}, "stages: '4' is not a whole number"),
        ({"batches": True}, "batches: True is not a whole number"),
        ({"batches": 10**9}, "batches: 1000000000 is above"),
        ({"stages": 10**4}, "stages: 10000 devices are above 1024"),
        ({"stages": 1000, "batches": 10**5}, "stages x microbatches is above"),
        ({"name": 3}, "name: 3 is not text"),
        ({"routes": True}, "routes: True is neither 1 nor 2"),
        ({"chunks": 0}, "chunks: 0 is below 1"),
        ({"chunks": 2, "placement": "linear"}, "chunks: 2 does not go with placement linear"),
        ({"chunks": 2, "placement": [0, 1]}, "chunks: does not go with a placement list"),
        ({"placement": "w"}, "placement: 'w' is unknown"),
        ({"placement": [0, 2]}, "placement: device 1 hosts no stage"),
        ({"placement": [0]}, "placement: has 1 entries for 2 stages"),
        ({"placement": [0, -1]}, "placement: stage 1: -1 is not a device number"),
        ({"placement": [0, 10**12]}, "placement: device 1 hosts no stage"),
        ({"placement": []}, "placement: the list is empty"),
        ({"forward": 0}, "forward: stage 0: 0 is not above 0"),
        ({"forward": [1, 2, 3]}, "forward: has 3 entries for 2 stages"),
        ({"forward": -1}, "forward: -1 is negative"),
        ({"forward": "x"}, "forward: 'x' is not a number"),
        ({"forward": [1, None]}, "forward: None is not a number"),
        ({"backward": 1, "weight": 2}, "weight: stage 0: 2 is above the full backward time 1"),
        ({"backward": 1, "backward_input": 2}, "backward_input: stage 0:"),
        ({"p2p": [[0, 1], [1, 0], [1, 1]]}, "p2p: a matrix must be 2 x 2"),
        ({"p2p": [[0, 1], [1, 3]]}, "p2p: device 1 to itself must be 0"),
        ({"p2p": [0, 1]}, "p2p: has 2 entries for 2 stages; give one number, one after every"),
        ({"p2p": [0, [1, 0]]}, "p2p: 0 is not a list"),
        ({"backward_p2p": [1, 2, 3]}, "backward_p2p: has 3 entries for 2 stages"),
        ({"backward_p2p": -1}, "backward_p2p: -1 is negative"),
        ({"p2p": -1}, "p2p: -1 is negative"),
        ({"memory_b": -2}, "memory_b: stage 0: -2 frees more than the activation 1"),
        ({"static": -1}, "static: -1 is negative"),
        ({"workspace": -1}, "workspace: -1 is negative"),
        ({"weight_workspace": [1, 2, 3]}, "weight_workspace: has 3 entries for 2 stages"),
        ({"recompute_time": -1}, "recompute_time: -1 is negative"),
        ({"kept": [1, 2]}, "kept: stage 1: 2 is more than the activation 1"),
        ({"mem_limit": [1, 2, 3]}, "mem_limit: has 3 entries for 2 devices"),
        ({"mem_limit": "much"}, "mem_limit: 'much' is not a number"),
        ({"device_speed": [1, 2, 3]}, "device_speed: has 3 entries for 2 devices"),
        ({"device_speed": [1, 0]}, "device_speed: device 1: 0 is not above 0"),
        ({"device_speed": -1}, "device_speed: -1 is negative"),
        ({"device_speed": 10**12, "batches": 10**4}, "times: too large"),
        ({"routes": 3}, "routes: 3 is neither 1 nor 2"),
        ({"routes": 2, "batches": 3}, "batches: 3 is odd"),
        ({"forward": 10**11, "batches": 10**6}, "times: too large"),
        ({"activation": 10**12, "batches": 10**6}, "memory: too large"),
    ],
)
def test_what_is_no_pipeline_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Pipeline(**({"stages": 2, "batches": 2} | fields))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "besides",
    [
        {"workspace": [1, 9, 2]},
        {"forward_workspace": 3, "backward_workspace": [0, 1, 7]},
        {"kept": [1, 0, 2]},
        {"kept": [1, 0, 2], "backward_workspace": 2, "forward_workspace": [9, 1, 1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("batches", [1, 2, 6])
def test_the_limit_of_1f1b_is_what_it_takes_while_operations_run(
    besides: dict[str, Any], batches: int
) -> None:
    pipe = Pipeline(stages=3, batches=batches, activation=[4, 3, 5], static=[1, 2, 3], **besides)
    peak = max(map(pipe.ticks.memory, evaluate(pipe, "1f1b").metrics.peak_memory_ticks))
    assert replace(pipe, mem_limit="1f1b").limits == (peak,) * 3


def test_static_memory_counts_on_both_routes_and_the_limit_of_1f1b_on_one() -> None:
    """Route 1 has stage s on device 2 - s. 1F1B, of one route, peaks on device 0: 4 + 3 x 2."""
    pipe = Pipeline(stages=3, batches=6, static=[4, 1, 2], activation=2, routes=2, mem_limit="1f1b")
    assert [*map(pipe.ticks.memory, pipe.ticks.static)] == [6, 2, 6]
    assert pipe.limits == (10, 10, 10)


def test_memory_of_workspace_and_recompute() -> None:
    """Workspace is taken and given by its operation; what F does not keep comes with B or BW."""
    pipe = Pipeline(
        stages=1, batches=2, activation=5, kept=1, memory_b=-2, workspace=3, weight_workspace=4,
        backward_workspace=6, recompute_time="0.5", overlap=2,
    )  # fmt: skip
    ticks = pipe.ticks
    assert ticks.durations == ((2,), (3,), (2,), (5,))
    assert ticks.overlap == (5,)
    assert ticks.pair_time(0, OpKind.BW, 0) == 5
    assert [row[0] for row in ticks.allocates] == [1 + 3, 4 + 3, 4, 4 + 6]
    assert [row[0] for row in ticks.frees] == [3, 2 + 3, 3 + 4, 5 + 6]
    assert ticks.amounts(OpKind.B)[0][1:3] == (7, 5)
    instant = replace(pipe, backward=1, weight=1, backward_input=0, recompute_time=0).ticks
    assert instant.amounts(OpKind.B)[0][1:3] == (2, 0)


def test_what_chunks_and_slices_cut_of_workspace_and_recompute() -> None:
    pipe = Pipeline(
        stages=2, batches=1, chunks=2, slices=2, activation=8, kept=4, recompute_time=4, workspace=4
    )
    costs = pipe.costs
    assert (costs.kept[0], costs.recompute_time[0]) == (1, 1)
    assert costs.workspace == costs.forward_workspace == costs.backward_workspace == (2,) * 4
    assert costs.weight_workspace == (0,) * 4
    assert pipe.limits is None
    retained, missing = 4, 1
    assert replace(pipe, mem_limit="1f1b").limits == (retained + missing + 2,) * 2


def test_slices_share_what_a_microbatch_takes() -> None:
    """Times and activation of a slice are 1/slices of a microbatch's, static memory is not cut."""
    pipe = Pipeline(
        stages=2, batches=3, slices=4, forward=2, backward=6, overlap=7, activation=8, static=5,
        chunks=2, mem_limit="1f1b",
    )  # fmt: skip
    costs = pipe.costs
    assert (costs.forward[0], costs.backward[0], costs.overlap[0]) == (
        Fraction(1, 4),
        Fraction(3, 4),
        Fraction(7, 8),
    )
    assert (costs.activation[0], costs.static[0]) == (1, Fraction(5, 2))
    assert pipe.limits == (5 + 2 * 8,) * 2
    codes = {pipe.code(*pipe.op(code)) for code in range(pipe.num_codes)}
    assert codes == set(range(4 * 4 * 3 * 4))


def test_what_follows_from_large_times_may_be_larger_than_what_is_given() -> None:
    """BW = 2 F; a pipeline made from another reads its values again."""
    pipeline = Pipeline(stages=2, batches=2, forward=6 * 10**11)
    assert replace(pipeline, batches=3).backward == (12 * 10**11,) * 2


class Compared(int):
    """A device that counts how often devices are compared."""

    comparisons = 0

    def __gt__(self, value: int) -> bool:
        Compared.comparisons += 1
        return int(self) > int(value)

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_hosts_of_many_stages_are_found_in_one_pass() -> None:
    """Not in time in proportion to the square of the stages or to stages times devices."""
    stages, devices = 3000, 100
    first = tuple(Compared(stage % devices) for stage in range(stages))
    _, mirrored = hosting.on_routes(first, 2)
    hosted = hosting.hosted_of(first, devices)
    assert Compared.comparisons <= 2 * stages
    assert mirrored[:2] == (devices - 1, devices - 2)
    assert hosted[1] == tuple(range(1, stages, devices))


def test_workspace_is_not_cut_by_chunks() -> None:
    """A stage of another placement has the workspace of the share that it is cut from."""
    pipeline = Pipeline(stages=2, batches=2, chunks=2, activation=2, workspace=4)
    costs = pipeline.placed((0, 1, 0, 1)).costs
    assert (costs.activation, costs.forward_workspace) == ((1,) * 4, (4,) * 4)


@pytest.mark.parametrize("choice", ["recompute", "offload"])
def test_stages_of_a_model_have_no_open_choice(choice: str) -> None:
    """Layers choose; the stages have the costs of the model as it is stated."""
    layer = Layer(1, activation=1, recompute_time=1, offload_time=1)
    pipeline = Model((layer,) * 2).pipeline(devices=2, batches=2, **{choice: "search"})
    stages = pipeline.without_model()
    assert getattr(stages, choice) is None
    assert stages.costs["forward"] == pipeline.costs["forward"]
