"""How long pairs take by their phases: against trying everything, CP-SAT, and a published trace."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest
from ortools.sat.python import cp_model

from ppopt import Layer, Model
from ppopt.errors import ConflictError
from ppopt.problem import phase_pairs
from ppopt.problem.phase_pairs import Chain, min_time, pair_times
from ppopt.problem.phases import Machine
from tests.oracles import two_machines
from tests.tiers import first

COMPUTE, LINK = Machine
MACHINES = {"c": COMPUTE, "l": LINK}


def chain(text: str, weights: tuple[int, ...] = ()) -> Chain:
    """A chain as `c4 l6`: 4 on compute, then 6 on a link."""
    phases = text.split()
    return Chain(
        tuple(MACHINES[phase[0]] for phase in phases),
        tuple(int(phase[1:]) for phase in phases),
        weights,
    )


def drawn(
    rng: Random, shortest: int, max_phases: int, longest: int, *, weights: bool = False
) -> Chain:
    count = rng.randint(shortest, max_phases)
    return Chain(
        tuple(rng.choice((COMPUTE, LINK)) for _ in range(count)),
        tuple(rng.randint(1, longest) for _ in range(count)),
        tuple(rng.choice((0, 0, 1, 2, 3)) for _ in range(count + 1)) if weights else (),
    )


def scaled(chain: Chain, factor: int) -> Chain:
    return Chain(
        chain.on,
        tuple(factor * time for time in chain.times),
        tuple(factor * weight for weight in chain.weights),
    )


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        (chain("c4 l3"), chain("l3 c4"), 8),  # each hides the link of the other
        (chain("c4 l6"), chain("l6 c4"), 12),  # one link
        (chain("c4"), chain("c4"), 8),  # one machine
        (chain("c4 l4"), chain("c4 l4"), 12),  # the second compute waits, and its link after it
        (chain("l6 c1"), chain("l1 c6"), 8),  # l1 first: c6 ends at 7, l6 at 7, c1 at 8
        (chain("c2"), chain("c1 l9", (0, 4, 0)), 10),  # W hides under the link
        (chain("c2"), chain("c1 l9", (0, 0, 4)), 14),  # W is ready too late to hide
        (chain("c2 l3"), chain("c1", (3, 0)), 6),  # all compute
        (chain("c2 l1 c2"), chain("l2 c1 l1", (0, 0, 2, 0)), 7),  # W in two pieces
    ],
)
def test_by_hand(forward: Chain, backward: Chain, expected: int) -> None:
    assert min_time(forward, backward) == expected
    assert two_machines.min_time(forward, backward) == expected


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("seed", first(2, range(20)))
def test_as_trying_every_tick_finds(seed: int, weights: bool) -> None:
    rng = Random(f"{seed}{weights}")
    for _ in range(15):
        forward = drawn(rng, 1, 4, 4)
        backward = drawn(rng, 0, 4, 4, weights=weights)
        assert min_time(forward, backward) == two_machines.min_time(forward, backward), (
            forward,
            backward,
        )


def test_parts_of_ticks_save_nothing() -> None:
    """Trying every half tick finds no less."""
    rng = Random(5)
    for _ in range(10):
        pair = drawn(rng, 1, 3, 3), drawn(rng, 1, 3, 3, weights=True)
        halves = two_machines.min_time(*(scaled(chain, 2) for chain in pair))
        assert halves == 2 * min_time(*pair)


def by_cp_sat(forward: Chain, backward: Chain, *, pieces: bool) -> int:
    """The same with W in one piece, or in pieces of a tick: a model of intervals."""
    model = cp_model.CpModel()
    weights = backward.weights or (0,) * (len(backward.on) + 1)
    horizon = sum(forward.times + backward.times + weights)
    end = model.new_int_var(0, horizon, "end")
    intervals: dict[Machine, list[cp_model.IntervalVar]] = {COMPUTE: [], LINK: []}

    def run(on: Machine, time: int, after: cp_model.LinearExprT) -> cp_model.LinearExprT:
        start = model.new_int_var(0, horizon, "start")
        model.add(start >= after)
        model.add(start + time <= end)
        intervals[on].append(model.new_fixed_size_interval_var(start, time, "run"))
        return start + time

    def fill(weight: int, after: cp_model.LinearExprT) -> None:
        for piece in [1] * weight if pieces else [weight] if weight else []:
            run(COMPUTE, piece, after)

    last: cp_model.LinearExprT = 0
    for on, time in zip(forward.on, forward.times, strict=True):
        last = run(on, time, last)
    last = 0
    fill(weights[0], last)
    for on, time, weight in zip(backward.on, backward.times, weights[1:], strict=True):
        last = run(on, time, last)
        fill(weight, last)
    for row in intervals.values():
        model.add_no_overlap(row)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return round(solver.objective_value)


@pytest.mark.parametrize("seed", first(2, range(10)))
def test_as_cp_sat_finds(seed: int) -> None:
    """Longer chains; W in one piece takes no less than W in pieces, and sometimes more."""
    rng = Random(seed)
    for _ in range(4):
        forward, backward = drawn(rng, 5, 12, 20), drawn(rng, 5, 12, 20)
        assert min_time(forward, backward) == by_cp_sat(forward, backward, pieces=False)
        forward, backward = drawn(rng, 3, 6, 5), drawn(rng, 3, 6, 5, weights=True)
        time = min_time(forward, backward)
        assert time == by_cp_sat(forward, backward, pieces=True)
        assert time <= by_cp_sat(forward, backward, pieces=False)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_every_pair(seed: int) -> None:
    """Both chains, all compute and all links fit; W after the rest is one way."""
    rng = Random(seed)
    forward, backward = drawn(rng, 1, 30, 50), drawn(rng, 1, 30, 50, weights=True)
    alone = backward._replace(weights=())
    with_b, with_bw = min_time(forward, alone), min_time(forward, backward)
    weight = sum(backward.weights)
    assert max(sum(forward.times), sum(backward.times)) <= with_b <= with_bw <= with_b + weight
    pairs = [*zip(forward.on, forward.times, strict=True)]
    pairs += zip(backward.on, backward.times, strict=True)
    for machine, more in ((COMPUTE, weight), (LINK, 0)):
        assert sum(time for on, time in pairs if on is machine) + more <= with_bw
    assert min_time(alone, forward) == with_b


# A measured pair of DualPipe on NVIDIA H800, in microseconds: train.json of
# github.com/deepseek-ai/profile-data at 449602428a1b023acb8a505d4f34fef536535db6, one forward and
# one backward chunk of 4 MoE layers. Time of the kernels of every step.
TRACE_F = (
    *(4306, 6059, 4250, 7325),
    *(4258, 5706, 4384, 8260),
    *(4433, 7077, 5175, 9521),
    *(4454, 7919, 4606, 9630),
)
"""Per layer: attention, dispatch, MLP, combine."""
TRACE_B = (
    *(4380, 5693, 7302, 9018),
    *(5224, 5408, 7909, 9368),
    *(6207, 5407, 7271, 9452),
    *(7266, 4716, 7465, 9525),
)
"""Per layer: combine, MLP, dispatch, attention."""
TRACE_W = ((5325, 2375), (5050, 2382), (5249, 2392), (4627, 2405))
"""Per layer of the backward: W of the MLP and of the attention."""


def traced() -> tuple[Chain, Chain]:
    weights = [0]
    for mlp, attention in TRACE_W:
        weights += [0, mlp, 0, attention]
    return Chain((COMPUTE, LINK) * 8, TRACE_F), Chain((LINK, COMPUTE) * 8, TRACE_B, tuple(weights))


def one_order(forward: Chain, backward: Chain) -> int:
    """Time in the order of the trace: of every layer, by machine, W in one piece after its B."""
    orders = {
        COMPUTE: ["F0", "B1", "W1", "F2", "B3", "W3"],
        LINK: ["B0", "F1", "B2", "F3"],
    }
    times = {"F": forward.times, "B": backward.times, "W": backward.weights[1:]}
    queues = {
        on: [(name[0], 4 * layer + int(name[1])) for layer in range(4) for name in names]
        for on, names in orders.items()
    }
    ends: dict[tuple[str, int], int] = {("F", -1): 0, ("B", -1): 0}
    clock = dict.fromkeys(queues, 0)
    while any(queues.values()):
        for on, queue in queues.items():
            if not queue:
                continue
            kind, index = queue[0]
            before = ("B", index) if kind == "W" else (kind, index - 1)
            if before in ends:
                clock[on] = ends[queue.pop(0)] = max(clock[on], ends[before]) + times[kind][index]
    return max(ends.values())


def test_the_trace_of_dualpipe() -> None:
    """Above all compute, 124.258 ms, and below the order of the trace, 126.256 ms."""
    forward, backward = traced()
    compute = sum(forward.times[::2]) + sum(backward.times[1::2]) + sum(backward.weights)
    assert (compute, one_order(forward, backward)) == (124258, 126256)
    time = min_time(forward, backward)
    assert compute < time < 126256
    # F computes 4306 while the backward sends for 4380: no compute is ready for 74 at the front
    assert time == compute + 4380 - 4306 == 124332
    assert time < by_cp_sat(forward, backward, pieces=False) == 125298


def test_the_trace_as_layers() -> None:
    """The four layers as a stage: F in their order, the backward in the reverse."""
    layers = []
    for index in range(4):
        f, b = TRACE_F[4 * index :][:4], TRACE_B[4 * (3 - index) :][:4]
        mlp, attention = TRACE_W[3 - index]
        layers.append(
            Layer(
                phases={
                    "F": [
                        {"on": on, "time": time}
                        for on, time in zip(("compute", "link") * 2, f, strict=True)
                    ],
                    "B": [
                        {"on": "link", "time": b[0]},
                        {"on": "compute", "time": b[1], "weight": mlp},
                        {"on": "link", "time": b[2]},
                        {"on": "compute", "time": b[3], "weight": attention},
                    ],
                }
            )
        )
    model = Model(tuple(layers))
    costs = model.pipeline(devices=1, batches=1).costs
    assert (costs.forward, costs.backward) == ((97363,), (141416,))
    times = pair_times([model.layers])
    assert times is not None
    assert times.with_bw == ((124332,),)
    forward, backward = traced()
    assert times.with_b == ((by_cp_sat(forward, backward._replace(weights=()), pieces=False),),)


def test_too_many_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_pairs, "MAX_CORNERS", 11)
    assert min_time(chain("c7 l7 c7"), chain("l7")) == 21
    with pytest.raises(ConflictError, match="phases: a pair of stages has 3 and 2 phases, too"):
        min_time(chain("c7 l7 c7"), chain("l7 c7"))


def test_many_phases_are_quick() -> None:
    """32 layers per stage: the corners that are reached are far fewer than all."""
    rng = Random(1)
    times = [rng.randint(1, 99) for _ in range(128)]
    forward = Chain((COMPUTE, LINK) * 64, tuple(times))
    backward = Chain((LINK, COMPUTE) * 64, tuple(times[::-1]), (0, *(0, 5) * 64))
    bound = max(sum(times[::2]) + sum(times[-1::-2]) + 5 * 64, sum(times))
    assert bound <= min_time(forward, backward) <= [*accumulate(times)][-1] * 2 + 5 * 64
