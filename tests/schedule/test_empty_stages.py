"""Stages without layers: they compute nothing and pass data on, with p2p on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Layer, Model, Pipeline, Rule, Status
from ppopt.errors import NotApplicableError
from ppopt.formats import schedule_json
from ppopt.problem.operation import OpKind
from ppopt.strategies import registry
from tests.cli.cli_run import done
from tests.factories.tables import changed
from tests.oracles.exhaustive import best, best_mixed
from tests.tiers import first

Op = tuple[str, int, int]
"""Kind, stage, microbatch."""
ROLES = [Layer(2, role="embedding", output=3), Layer(3, count=4, output=2), Layer(1, role="head")]
NAMED = Model(tuple(ROLES))
"""Layers that hand on 3, then 2."""
PHASES = {
    "F": [{"on": "compute", "time": 4}, {"on": "link", "time": 6}],
    "B": [{"on": "link", "time": 6}, {"on": "compute", "time": 5, "weight": 4}],
}


def drawn_counts(rng: Random, stages: int) -> list[int]:
    """Layers per stage, of which some between the first and the last have none."""
    inner = [rng.randint(0, 2) for _ in range(stages - 2)]
    inner[rng.randrange(len(inner))] = 0
    return [rng.randint(1, 2), *inner, rng.randint(1, 2)]


def drawn_model(rng: Random, num_layers: int) -> Model:
    """Layers with whole times and memory, some of them frozen."""
    layers = []
    for _ in range(num_layers):
        activation, backward = rng.randint(0, 3), rng.randint(0, 4)
        layers.append(
            Layer(
                forward=rng.randint(1, 3),
                backward=backward,
                weight=rng.randint(0, backward),
                activation=activation,
                memory_b=rng.randint(-activation, 1),
                static=rng.randint(0, 2),
                output=rng.randint(1, 2),
                frozen=rng.random() < 0.15,
            )
        )
    return Model(tuple(layers))


def orders_1f1b(devices: int, batches: int) -> list[list[Op]]:
    """1F1B, one stage per device, written again (arXiv 2104.04473, section 2.2.1)."""
    orders = []
    for stage in range(devices):
        warm_up = min(batches, devices - 1 - stage)
        order: list[Op] = [("F", stage, j) for j in range(warm_up)]
        for j in range(batches - warm_up):
            order += [("F", stage, warm_up + j), ("BW", stage, j)]
        orders.append(order + [("BW", stage, j) for j in range(batches - warm_up, batches)])
    return orders


def ends_of(
    orders: Sequence[Sequence[Op]], times: dict[str, Sequence[int]], p2p: int
) -> dict[Op, int]:
    """End of every operation, started as early as its device and its data allow."""
    ends: dict[Op, int] = {}
    left = [list(order) for order in orders]
    free, last = [0] * len(orders), len(orders) - 1
    while any(left):
        for device, order in enumerate(left):
            while order:
                kind, stage, j = order[0]
                if kind == "F":
                    needed = [(("F", stage - 1, j), p2p)] if stage else []
                else:
                    needed = [(("F", stage, j), 0)]
                    needed += [(("BW", stage + 1, j), p2p)] if stage < last else []
                if any(op not in ends for op, _ in needed):
                    break
                start = max([free[device], *(ends[op] + lag for op, lag in needed)])
                free[device] = ends[order.pop(0)] = start + times[kind][stage]
    return ends


@pytest.mark.parametrize("seed", first(10, range(40)))
def test_1f1b_takes_what_a_plain_simulation_of_it_takes(seed: int) -> None:
    """Stage times are sums over no layers, so 0; an empty stage waits for p2p on both sides."""
    rng = Random(seed)
    devices, batches, p2p = rng.randint(3, 5), rng.randint(1, 6), rng.randint(0, 3)
    counts = drawn_counts(rng, devices)
    layers = [(rng.randint(1, 4), rng.randint(1, 6), rng.randint(0, 3)) for _ in range(sum(counts))]
    model = Model(
        [{"forward": f, "backward": bw, "weight": 0, "activation": a} for f, bw, a in layers]
    )
    pipeline = model.pipeline(devices=devices, batches=batches, partition=counts, p2p=p2p)
    schedule = ppopt.evaluate(pipeline, "1f1b")
    starts = list(accumulate(counts, initial=0))
    f, bw, retained = (
        [
            sum(layer[cost] for layer in layers[low : low + n])
            for low, n in zip(starts, counts, strict=False)
        ]
        for cost in range(3)
    )
    ends = ends_of(orders_1f1b(devices, batches), {"F": f, "BW": bw}, p2p)
    simulated = {(row.kind.name, row.stage, row.microbatch): row.end for row in schedule.rows()}
    assert simulated == ends
    peaks = [retained[stage] * min(batches, devices - stage) for stage in range(devices)]
    assert list(schedule.metrics.peak_memory_ticks) == peaks
    assert schedule.metrics.makespan_ticks == max(ends.values())
    assert ppopt.verify(schedule) == []


def test_an_empty_stage_hands_on_what_it_gets() -> None:
    """E||tttt|L with 2 + 3 of p2p time by size, and back: 2 + 5 + 5 + 12 + 4 + 1, and twice."""
    pipeline = NAMED.pipeline(
        devices=4, batches=1, partition="E||t*4|L", link={"latency": 2, "bandwidth": 1}
    )
    assert pipeline.counts == (1, 0, 4, 1)
    assert pipeline.links[0] == ((5, 5, 4),)
    forward = 2 + 5 + 0 + 5 + 12 + 4 + 1
    backward = 2 * (1 + 12 + 2) + 4 + 5 + 5
    schedule = ppopt.evaluate(pipeline, "1f1b")
    assert pipeline.ticks.time(schedule.metrics.makespan_ticks) == forward + backward
    assert [pipeline.costs.forward[1], pipeline.costs.backward[1], pipeline.costs.static[1]] == [
        0
    ] * 3


@pytest.mark.parametrize("name", registry())
def test_every_strategy_runs_with_empty_stages(name: str) -> None:
    """Written and read back equal: at one instant operations of no length are in order of files."""
    rng = Random(name)
    ran = 0
    for devices, chunks, batches in ((4, 1, 8), (2, 2, 4), (4, 2, 8), (2, 4, 4)):
        counts = drawn_counts(rng, devices * chunks)
        model = drawn_model(rng, sum(counts))
        pipeline = model.pipeline(
            devices=devices, batches=batches, partition=counts, p2p=rng.randint(0, 2)
        )
        try:
            schedule = ppopt.evaluate(pipeline, name)
        except NotApplicableError:
            continue
        ran += 1
        assert schedule.pipeline.counts == tuple(counts)
        assert ppopt.verify(schedule) == []
        assert schedule_json.loads(schedule_json.dumps(schedule), "it")[0] == schedule
    assert ran


@pytest.mark.parametrize("seed", first(8, range(24)))
def test_searches_find_what_an_exhaustive_search_finds(seed: int) -> None:
    rng = Random(seed)
    devices, chunks = rng.choice(((3, 1), (2, 2), (4, 1)))
    counts = drawn_counts(rng, devices * chunks)
    link: dict[str, Any] = {"link": {"latency": 1, "bandwidth": 1}}
    pipeline = drawn_model(rng, sum(counts)).pipeline(
        devices=devices, batches=rng.randint(1, 2), partition=counts, chunks=chunks,
        mem_limit=rng.choice((None, 6, 9)), **rng.choice((link, {"p2p": rng.randint(0, 2)})),
    )  # fmt: skip
    kind = rng.choice(("split", "whole", "mixed"))
    result = ppopt.solve(pipeline, backward_kind=kind, workers=1)
    if kind == "mixed":
        exact = best_mixed(pipeline, objective="makespan")
    else:
        exact = best(pipeline, fused=kind == "whole", objective="makespan")
    assert result.value == (None if exact is None else pipeline.ticks.time(exact))
    assert result.status is (Status.INFEASIBLE if exact is None else Status.OPTIMAL)
    if result.schedule is not None:
        assert ppopt.verify(result.schedule) == []
        assert ppopt.recheck(result.schedule, workers=1).verdict == "confirmed"


def shifted(schedule: ppopt.Schedule, stage: int, ticks: int) -> ppopt.Schedule:
    """The schedule with F of microbatch 0 of a stage moved."""
    selected = (schedule.stage == stage) & (schedule.kind == OpKind.F) & (schedule.microbatch == 0)
    shift = ticks * selected
    return changed(schedule, start=schedule.start + shift, end=schedule.end + shift)


@pytest.mark.parametrize("stage", [1, 2])
def test_the_verifier_wants_p2p_on_both_sides_of_an_empty_stage(stage: int) -> None:
    model = Model([{"forward": 1, "count": 3}])
    pipeline = model.pipeline(devices=3, batches=2, partition=[1, 0, 2], p2p=2)
    schedule = ppopt.evaluate(pipeline, "1f1b")
    early = shifted(schedule, stage, -1)
    assert {violation.rule for violation in ppopt.verify(early)} == {Rule.FORWARD}


def test_the_verifier_knows_the_length_of_an_empty_stage() -> None:
    model = Model([{"forward": 1, "count": 3}])
    schedule = ppopt.evaluate(model.pipeline(devices=3, batches=1, partition=[1, 0, 2]), "1f1b")
    longer = changed(schedule, end=schedule.end + ((schedule.stage == 1) & (schedule.kind == 0)))
    assert Rule.DURATION in {violation.rule for violation in ppopt.verify(longer)}


@pytest.mark.parametrize(
    ("frozen", "counts", "stages"),
    [
        ((1, 1, 0), [1, 0, 1, 1], (True, True, True, False)),
        ((1, 0, 0), [1, 0, 1, 1], (True, True, False, False)),
        ((0, 1, 0), [1, 1, 0, 1], (False, True, False, False)),
        ((0, 0, 0), [1, 0, 1, 1], (False,) * 4),
    ],
)
def test_an_empty_stage_is_frozen_where_all_before_it_is(
    frozen: tuple[int, ...], counts: list[int], stages: tuple[bool, ...]
) -> None:
    """No gradient passes it there, and elsewhere one does."""
    model = Model(tuple(Layer(1, activation=1, frozen=bool(does)) for does in frozen))
    pipeline = model.pipeline(devices=4, batches=2, partition=counts, p2p=1)
    assert pipeline.frozen_stages == stages
    first = stages.index(False)
    assert pipeline.links[1] == (tuple(Fraction(stage >= first) for stage in range(3)),)
    schedule = ppopt.evaluate(pipeline, "1f1b")
    assert ppopt.verify(schedule) == []
    assert schedule_json.loads(schedule_json.dumps(schedule), "it")[0] == schedule


def test_pairs_gradient_work_and_recompute_go_with_empty_stages() -> None:
    """Pairs of two empty stages take no time; a device of none has an optimizer of no length."""
    phases = Model(tuple(Layer(phases=PHASES, activation=2) for _ in range(4)))
    overlapped = ppopt.evaluate(
        phases.pipeline(devices=3, batches=3, partition=[2, 0, 2]), "1f1b-overlap"
    )
    step = {"unshard": 1, "unshard_memory": 1, "gradient_sync": 2, "optimizer": 1, "static": 1}
    work = Model(tuple(Layer(2, activation=3, offload={"time": 1}, **step) for _ in range(4)))
    around = ppopt.evaluate(
        work.pipeline(devices=3, batches=3, partition=[2, 0, 2], optimizer_barrier=True), "1f1b"
    )
    layers = Model(tuple(Layer(2, activation=3, recompute={"time": 1}) for _ in range(2)))
    recomputing = ppopt.solve(
        layers.pipeline(devices=3, batches=2, partition=[1, 0, 1], recompute="search", mem_limit=5),
        workers=1,
    ).schedule
    assert recomputing is not None and any(recomputing.pipeline.recomputed)
    for schedule in (overlapped, around, recomputing):
        assert ppopt.verify(schedule) == []
        assert schedule_json.loads(schedule_json.dumps(schedule), "it")[0] == schedule


def test_searches_of_partitions_make_no_empty_stage() -> None:
    """Here an empty stage would be faster: a p2p of 9 is paid after the head alone."""
    model = Model([{"forward": 1, "count": 3}, {"forward": 9, "output": 9}])
    pipeline = model.pipeline(devices=2, batches=2, partition="search", chunks=2)
    result = ppopt.solve(pipeline, workers=1)
    assert result.schedule is not None
    assert min(result.schedule.pipeline.counts) == 1
    with pytest.raises(ppopt.InputError, match="4 layers for 5 stages"):
        model.pipeline(devices=5, batches=2)


def test_a_stage_by_hand_computes_something() -> None:
    """Zeros are no stage unless all of F, B, W and BW are given as 0."""
    with pytest.raises(ppopt.InputError, match="forward: stage 1: 0 is not above 0"):
        Pipeline(stages=2, batches=2, forward=[1, 0])
    fields = {"forward": [1, 0], "backward": [2, 0], "weight": [1, 0]}
    with pytest.raises(ppopt.InputError, match="forward: stage 1: 0 is not above 0"):
        Pipeline(stages=2, batches=2, **fields)


def test_files_pages_and_exports_have_empty_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.yaml").write_text(
        "stages: 4\nbatches: 4\np2p_time: 1\nlayers:\n"
        "  - {role: embedding, forward: 1, activation: 1}\n"
        "  - {count: 6, forward: 2, activation: 3}\n"
        "  - {role: head, forward: 2, activation: 2}\n"
    )
    evaluated = done("eval 1f1b --config model.yaml --partition E||t*6|L -o made.json -o made.html")
    assert "1 0 6 1 layers, E||t*6|L" in evaluated.out
    assert "verified" in done("verify made.json").out
    for to, name in (
        ("megatron-arguments", "made.txt"),
        ("torch-csv", "order.csv"),
        ("torch-comms", "comms.csv"),
        ("perfetto", "trace.json"),
    ):
        done(f"export made.json --to {to} -o {name}")
    assert '--pipeline-model-parallel-layout "E||t*6|L"' in Path("made.txt").read_text()
    compared = done("compare --config model.yaml --partition 1,0,6,1 --time-limit 5 --workers 1")
    assert "1f1b" in compared.out
