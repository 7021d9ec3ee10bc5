"""The second opinion of the search: derived cases, and CP-SAT's model of the same pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ppopt.problem.pipeline import Pipeline
from tests.factories.instances import Case, instant_cases, tiny_cases
from tests.oracles import exhaustive
from tests.oracles.bounds import by_model
from tests.oracles.exhaustive import best
from tests.tiers import slow

AMPLE = 10**4


def makespan(pipeline: Pipeline, fused: bool = False, symmetry: bool = False) -> int | None:
    return best(pipeline, fused=fused, objective="makespan", symmetry=symmetry)


def span(pipeline: Pipeline, fused: bool = False) -> int | None:
    return best(pipeline, fused=fused, objective="device-span")


@pytest.mark.parametrize(
    ("fields", "fused", "expected"),
    [
        # One device: everything in a row. B alone may end in an instant.
        ({"stages": 1, "batches": 2, "forward": 2, "backward": 4}, True, (12, 12)),
        ({"stages": 1, "batches": 2, "backward_input": 0, "weight": 3}, False, (8, 8)),
        # One microbatch waits for every link: 1 + 5 + 1 + 2 + 7 + 2.
        ({"stages": 2, "batches": 1, "p2p": [[0, 5], [7, 0]]}, True, (18, 18)),
        # The same with the way back apart, and per boundary: 5 and 1 down, 0 and 4 up, 9 of work.
        ({"stages": 2, "batches": 1, "p2p": 5, "backward_p2p": 7}, True, (18, 18)),
        ({"stages": 3, "batches": 1, "p2p": [5, 1], "backward_p2p": [0, 4]}, True, (19, 19)),
        # No delay between two stages of one device.
        ({"stages": 3, "placement": (0, 1, 1), "batches": 1, "p2p": [5, 1]}, True, (19, 19)),
        # Fused: F of stage 0, all of the last device, BW of stage 0: 1 + 2 x 3 + 2. The span of
        # device 0 from F to the last BW is the same.
        ({"stages": 2, "batches": 2}, True, (9, 9)),
        # Split, two microbatches: the last device needs 6 from time 1. Device 0 has both F done
        # at 2 and the first B not before 3, so it too takes 7.
        ({"stages": 2, "batches": 2}, False, (7, 7)),
        # Three: device 0 runs F F F B W B W B W and device 1 F B F B F B W W W from time 1, both
        # without a gap (ZB-1P's figure): 9 each, 10 in all.
        ({"stages": 2, "batches": 3}, False, (10, 9)),
        # BW cheaper than B + W counts where it is used.
        ({"stages": 1, "batches": 1, "backward": 3, "backward_input": 2, "weight": 2},
         True, (4, 4)),
        ({"stages": 1, "batches": 1, "backward": 3, "backward_input": 2, "weight": 2},
         False, (5, 5)),
        # Half a unit is a tick: 1.5 + 3.
        ({"stages": 1, "batches": 1, "forward": 1.5}, True, (9, 9)),
        # V on two devices, one microbatch, four stages of 1/2 + 1: all in a row but the W.
        ({"stages": 2, "batches": 1, "placement": "v", "forward": 2, "backward": 4},
         True, (12, 12)),
        # Both routes at once (bidirectional): each device has 2 x 3 to do; a route alone takes 6.
        ({"stages": 2, "batches": 2, "routes": 2}, True, (6, 6)),
    ],
)  # fmt: skip
def test_derived_values(fields: dict[str, Any], fused: bool, expected: tuple[int, int]) -> None:
    pipeline = Pipeline(**fields)
    assert (makespan(pipeline, fused), span(pipeline, fused)) == expected


@pytest.mark.parametrize(
    ("fields", "fused", "expected"),
    [
        # One microbatch at a time, the next F at the instant the memory falls free: 2 x (1+1+2+2).
        ({"stages": 2, "batches": 2, "mem_limit": [1, 2]}, True, 12),
        # Room for both on device 0: as if unlimited.
        ({"stages": 2, "batches": 2, "mem_limit": [2, 1]}, True, 9),
        ({"stages": 2, "batches": 2, "mem_limit": [0.5, 2]}, True, None),
        # Static memory is part of the limit.
        ({"stages": 1, "batches": 1, "static": 2, "mem_limit": 3}, False, 3),
        ({"stages": 1, "batches": 1, "static": 2, "mem_limit": 2.5}, False, None),
        ({"stages": 1, "batches": 1, "static": 2, "activation": 0, "mem_limit": 1}, False, None),
        # B takes 1 more from its start; W gives back both.
        ({"stages": 1, "batches": 2, "memory_b": 1, "mem_limit": 2}, False, 6),
        ({"stages": 1, "batches": 2, "memory_b": 1, "mem_limit": 1.5}, False, None),
        # B gives all back at its end: on device 0 the second F starts at the end of the first
        # B, at 4, the second B not before 7, and W fills gaps: 1 + 1 + 1 + 1, again, and one W.
        ({"stages": 2, "batches": 2, "memory_b": -1, "mem_limit": [1, 2]}, False, 9),
        # With W the last to give back, device 0 starts over at 5: 5 + 5.
        ({"stages": 2, "batches": 2, "mem_limit": [1, 2]}, False, 10),
        # Workspace is held only while an operation runs: two activations, and 1 of one F, fit 3.
        ({"stages": 2, "batches": 2, "workspace": 1, "mem_limit": 3}, True, 9),
        ({"stages": 2, "batches": 2, "workspace": 1, "mem_limit": 2}, True, 12),
        ({"stages": 1, "batches": 1, "workspace": 1, "mem_limit": 1.5}, True, None),
        # One of F alone does not count for B; one of W alone does, on top of what B leaves.
        ({"stages": 1, "batches": 1, "forward_workspace": 1, "mem_limit": 1}, False, None),
        ({"stages": 1, "batches": 1, "weight_workspace": 2, "mem_limit": 3}, False, 3),
        ({"stages": 1, "batches": 1, "weight_workspace": 2, "mem_limit": 2}, False, None),
        # Recompute: F keeps a quarter, the backward takes the rest at its start and is 1 longer.
        # On device 0 both F fit; the backwards of the last device end at 1 + 1 + 3, and + 4.
        ({"stages": 2, "batches": 2, "kept": 0.25, "recompute_time": 1, "mem_limit": [1.25, 2]},
         True, 1 + 4 + 4 + 3),
        # 1.25 is also needed: the second F is held while the first backward takes 0.75.
        ({"stages": 2, "batches": 2, "kept": 0.25, "recompute_time": 1, "mem_limit": [1.2, 2]},
         True, 2 * (1 + 1 + 3 + 3)),
    ],
)  # fmt: skip
def test_derived_values_under_a_limit(
    fields: dict[str, Any], fused: bool, expected: int | None
) -> None:
    pipeline = Pipeline(**fields)
    assert makespan(pipeline, fused) == expected


INSTANT = {"backward_input": 0, "placement": (0, 1, 0), "stages": 3}
"""B takes no time anywhere: the B of stages 2, 1 and 0 may share an instant."""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # B would take 3 and W give back 4 at the same instant: the 3 are never held.
        ({"stages": 1, "batches": 2, "forward": 2, "backward_input": 0, "weight": 0,
          "memory_b": 3, "mem_limit": 1}, 4),
        # W takes time: the 3 are held.
        ({"stages": 1, "batches": 1, "backward_input": 0, "weight": 1, "memory_b": 3,
          "mem_limit": 3}, None),
        # Device 0 holds 3 + 0 after both F. B of stage 2 takes 4 while its W runs, so that 9
        # are enough for two microbatches only when B of stage 0 gives back 3 at that instant.
        # Device 1 then runs both F (3 to 5 to 7) first, though B of stage 2 is ready at 6; the
        # rest takes 5 more.
        ({**INSTANT, "batches": 2, "forward": [3, 2, 1], "weight": [0, 2, 1],
          "activation": [3, 0, 0], "memory_b": [0, 0, 4], "mem_limit": [9, 99]}, 12),
    ],
)  # fmt: skip
def test_operations_without_length_share_an_instant(
    fields: dict[str, Any], expected: int | None
) -> None:
    pipeline = Pipeline(**fields)
    assert makespan(pipeline) == expected


@pytest.mark.parametrize("count", [25, slow(120)])
def test_agrees_with_the_model_within_an_instant(count: int) -> None:
    """Other pipelines are those of `tests/solver/test_search.py`."""
    infeasible = 0
    for pipeline in instant_cases(13, count):
        expected = by_model(pipeline, fused=False)
        assert makespan(pipeline) == expected, pipeline
        infeasible += expected is None
    assert 0.1 < infeasible / count < 0.6


@pytest.mark.parametrize("objective", ["makespan", "device-span"])
@pytest.mark.parametrize(("routes", "count"), [(1, 25), (2, 4), slow(1, 150), slow(2, 20)])
def test_microbatches_in_order_lose_nothing(
    objective: exhaustive.Goal, routes: int, count: int
) -> None:
    """DESIGN section 3, "Microbatch order", by experiment."""
    cases = list(tiny_cases(16, count, ops=18, routes=routes))
    instant = instant_cases(17, min(count, 50))
    cases += [Case(replace(pipeline, batches=2), fused=False) for pipeline in instant]
    for case in cases:
        free, ordered = (
            best(case.pipeline, fused=case.fused, objective=objective, symmetry=symmetry)
            for symmetry in (False, True)
        )
        assert free == ordered, case


@pytest.mark.parametrize(("objective", "ops"), [("makespan", 9), ("device-span", 6)])
def test_shortcuts_lose_nothing(
    objective: exhaustive.Goal, ops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither bounds, nor dropping the nodes that others better, changes a value."""

    def search(case: Case) -> int | None:
        return best(case.pipeline, fused=case.fused, objective=objective)

    cases = [
        case
        for case in [*tiny_cases(18, 100, ops=ops), *tiny_cases(28, 30, ops=ops, routes=2)]
        if case.pipeline.num_stages * case.pipeline.batches * (2 if case.fused else 3) <= ops
    ]
    assert len(cases) > 30
    expected = [search(case) for case in cases]
    bound = exhaustive.Search._bound
    seen: set[tuple[int, ...]] = set()

    def only_complete(self: exhaustive.Search, node: exhaustive.Node) -> int:
        return 0 if any(node.left) else bound(self, node)

    def keep_all(self: exhaustive.Search, node: exhaustive.Node) -> tuple[int, ...]:
        figures = (node.clock, len(seen))
        seen.add(figures)
        self.fronts[self._key(node)].append(figures)
        return figures

    with monkeypatch.context() as patch:
        patch.setattr(exhaustive.Search, "_bound", only_complete)
        assert [search(case) for case in cases] == expected
    monkeypatch.setattr(exhaustive.Search, "_keep", keep_all)
    assert [search(case) for case in cases] == expected


def with_limit(pipeline: Pipeline, device: int, limit: int) -> Pipeline:
    """Limit one device, in ticks, and leave the others ample room."""
    limits: list[Any] = [AMPLE] * pipeline.num_devices
    limits[device] = pipeline.ticks.memory(limit)
    return replace(pipeline, mem_limit=limits)
