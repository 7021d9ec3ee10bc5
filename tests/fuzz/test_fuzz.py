"""The adversary: it finds planted faults, shrinks them, writes them as tests; and a short slice."""

from __future__ import annotations

import gc
import runpy
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Verdict
from ppopt.formats import megatron_schedule, pipeline_json, schedule_json
from ppopt.problem import partition
from tests.clock import HANGS, SteppingClock
from tests.fuzz import (
    campaign,
    interrupted,
    layers,
    pipelines,
)
from tests.fuzz.campaign import CATEGORIES, Tally
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.fuzz.draws import Draws
from tests.fuzz.searches import Tiny
from tests.oracles import exhaustive

pytestmark = pytest.mark.slow

SLICE = {
    "tiny": 10,
    "mixed": 5,
    "placements": 3,
    "layers": 8,
    "recompute": 4,
    "pairs": 5,
    "bounds": 5,
    "strategies": 20,
    "streams": 4,
    "compositions": 5,
    "group-sizes": 10,
    "interrupted": 1,
    "phases": 5,
    "files": 5,
    "offload": 5,
    "features": 10,
}
"""Cases of each category that run here: some 10 s in all."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case hangs when it would on any machine."""
    monkeypatch.setattr(campaign, "HANGS", int(HANGS))


@pytest.mark.parametrize("name", SLICE)
def test_a_short_slice_finds_nothing(name: str) -> None:
    tally = Tally()
    for index in range(SLICE[name]):
        campaign.attack(CATEGORIES[name], "slice", index, tally)
    assert tally.examples == {}
    assert tally.cases - tally.skipped > 0


@pytest.mark.parametrize(("name", "count"), [("layers", 80), ("recompute", 160), ("offload", 60)])
def test_300_models_with_modules_have_the_optimum_of_every_choice(name: str, count: int) -> None:
    """Partitions, limits, and what layers and modules recompute and offload, all enumerated."""
    category, rng, judged = CATEGORIES[name], Random(name), 0
    while judged < count:
        case = category.draw(rng)
        if any(layer.get("modules") for layer in case["pipeline"]["model"]):
            with suppress(SkippedError):
                assert list(category.check(case)) == []
                judged += 1


@pytest.mark.parametrize("name", CATEGORIES)
def test_cases_are_literals_and_repeat(name: str) -> None:
    category = CATEGORIES[name]
    for seed in range(8):
        case = category.draw(Random(seed))
        assert eval(repr(case), {"__builtins__": {}}) == case
        assert category.draw(Random(seed)) == case


def test_pipelines_have_every_dimension() -> None:
    rng = Random(1)
    drawn = [
        Pipeline(**pipelines.draw(rng, ops=24, fused=False, slices=(1, 2), overlap=seed % 2 == 0))
        for seed in range(200)
    ]
    several = [pipe for pipe in drawn if pipe.num_stages > 1]
    assert {pipe.placement for pipe in drawn} > {None, "linear", "v", "interleaved"}
    for share in (
        [pipe.routes == 2 for pipe in drawn],
        [pipe.num_slices == 2 for pipe in drawn],
        [pipe.overlap is not None for pipe in drawn],
        [isinstance(pipe.p2p, tuple) for pipe in drawn],
        [0 in pipe.backward_input for pipe in drawn],
        [min(pipe.memory_b) < 0 for pipe in drawn],
        [max(pipe.memory_b) > 0 for pipe in drawn],
        [max(pipe.static) > 0 for pipe in drawn],
        [pipe.mem_limit is None for pipe in drawn],
        [pipe.mem_limit == "1f1b" for pipe in drawn],
        [max(pipe.forward) > 10**6 for pipe in drawn],
        [max(pipe.forward) < 1 for pipe in drawn],
        [isinstance(pipe.p2p, tuple) and not isinstance(pipe.p2p[0], tuple) for pipe in several],
        [pipe.backward_p2p is not None for pipe in drawn],
        [len(set(pipe.device_speed)) > 1 for pipe in drawn],
        [pipe.recompute_time is not None for pipe in drawn],
        [pipe.kept is not None for pipe in drawn],
        [pipe.workspace is not None for pipe in drawn],
        [pipe.weight_workspace is not None for pipe in drawn],
    ):
        assert 0.02 < sum(share) / len(drawn) < 0.98


def test_models_in_layers_have_every_dimension() -> None:
    rng = Random(4)
    fields = [layers.draw(rng, ops=18, partitions=(*layers.FIXED, "search")) for _ in range(150)]
    drawn = [Pipeline(**entry) for entry in fields]
    models = [entry["model"] for entry in fields]
    for share in (
        *(
            [entry["partition"] == name for entry in fields]
            for name in ("even", "balanced", "search")
        ),
        [isinstance(entry["partition"], list) for entry in fields],
        ["|" in entry["partition"] for entry in fields],
        [entry["recompute"] is None for entry in fields],
        [pipe.num_stages > pipe.num_devices for pipe in drawn],
        [any(pipe.recomputed) for pipe in drawn],
        [pipe.mem_limit is None for pipe in drawn],
        [any("workspace" in layer for layer in model) for model in models],
        ["link" in entry for entry in fields],
        ["backward" in entry.get("link", {}) for entry in fields],
        [pipe.first_backward == "weight" for pipe in drawn],
        *(
            [any(layer["role"] == role for layer in model) for model in models]
            for role in ("embedding", "mtp", "head")
        ),
    ):
        assert 0.02 < sum(share) / len(drawn) < 0.98


def test_features_are_drawn_together_with_phases() -> None:
    drawn = [CATEGORIES["features"].draw(Random(seed))["pipeline"] for seed in range(400)]
    with_phases = [
        fields for fields in drawn if any("phases" in layer for layer in fields.get("model", ()))
    ]
    assert 0.02 < len(with_phases) / len(drawn) < 0.98
    layers_of = [layer for fields in with_phases for layer in fields["model"]]
    for name in ("offload", "frozen", "unshard", "optimizer"):
        assert any(layer.get(name) for layer in layers_of)
    for name in ("microbatch_times", "microbatch_memory", "link_mode"):
        assert any(name in fields for fields in with_phases)


def test_layers_spelled_out_have_the_costs_by_hand() -> None:
    """Defaults: BW = 2 F, W = BW / 2. The second layer recomputes: 3 more, 1 kept of 4."""
    model: list[dict[str, Any]] = [
        {"role": "decoder", "forward": 2, "activation": 1, "memory_b": 1, "static": 2},
        {"role": "decoder", "forward": 1, "activation": 4, "memory_b": 0, "static": 1,
         "backward": 5, "weight": 1, "workspace": 2, "recompute": {"time": 3, "activation": 1}},
    ]  # fmt: skip
    fields = {"stages": 1, "placement": None, "batches": 1, "model": model, "recompute": None}
    (pipeline,) = layers.spelled_out(fields, [(2,)], [layers.recomputed(fields)])
    assert (pipeline.forward, pipeline.backward, pipeline.weight) == ((3,), (9,), (3,))
    assert (pipeline.backward_input, pipeline.activation, pipeline.memory_b) == ((6,), (5,), (1,))
    assert (pipeline.static, pipeline.recompute_time, pipeline.kept) == ((3,), (3,), (2,))
    assert (pipeline.forward_workspace, pipeline.weight_workspace) == ((2,), (0,))


def test_reduced_pipelines_have_the_same_optimum() -> None:
    rng = Random(2)
    for _ in range(20):
        fields = pipelines.draw(rng, ops=9, fused=True, instants=False)
        pipeline = Pipeline(**fields)
        same, tick = pipelines.reduced(pipeline)
        own = exhaustive.best(pipeline, fused=True, objective="makespan")
        optimum = exhaustive.best(same, fused=True, objective="makespan")
        assert own == (None if optimum is None else optimum * tick)


BELIEVED = ppopt.Recheck(Verdict.CONFIRMED, "why not", (), 0.0)
CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bound": (
        "solve",
        lambda result: replace(
            result, bound_ticks=result.value and result.bound_ticks + result.pipeline.grid.time
        ),
    ),
    "value": (
        "solve",
        lambda result: replace(
            result, value_ticks=result.value and result.value_ticks + result.pipeline.grid.time
        ),
    ),
    "belief": ("recheck", lambda _: BELIEVED),
    "points": ("frontier", lambda result: replace(result, points=())),
    "claim": (
        "best_choice",
        lambda result: replace(result, bound_ticks=result.value_ticks + result.per_unit),
    ),
}
"""A function of the product, and what is planted into what it returns."""


class TestFaults:
    """A product with a planted fault is found out."""

    def finds(self, name: str, kinds: set[str], count: int = 30) -> bool:
        """Whether a category finds all of some kinds of faults within so many cases."""
        tally = Tally()
        for index in range(count):
            campaign.attack(CATEGORIES[name], "fault", index, tally)
            if kinds <= set(tally.kinds):
                return True
        return False

    @pytest.fixture(autouse=True)
    def _no_shrinking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(campaign, "shrunk", lambda _category, _record, _kind: {})

    @pytest.mark.parametrize(
        ("name", "change", "kinds", "count"),
        [
            ("tiny", "bound", {"wrong-bound"}, 30),
            ("bounds", "bound", {"true-bound-refuted"}, 30),
            ("bounds", "belief", {"inflated-bound-confirmed"}, 30),
            ("features", "belief", {"inflated-bound-confirmed", "infeasible-confirmed"}, 10),
            *(
                (name, "value", {"wrong-optimum", "wrong-value"}, 8)
                for name in ("mixed", "placements", "layers", "recompute", "compositions")
            ),
            ("offload", "value", {"wrong-optimum", "wrong-value"}, 8),
            ("interrupted", "points", {"crash-AssertionError"}, 1),
            ("interrupted", "claim", {"wrong-bound"}, 1),
        ],
    )
    def test_a_result_that_is_wrong(
        self, name: str, change: str, kinds: set[str], count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        function, changed = CHANGES[change]
        right = getattr(ppopt, function)
        monkeypatch.setattr(ppopt, function, lambda *args, **more: changed(right(*args, **more)))
        if name == "interrupted":
            monkeypatch.setattr(interrupted, "STUDIES", {"one": interrupted.STUDIES[function]})
        assert self.finds(name, kinds, count)

    def test_a_partition_that_is_not_balanced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def lopsided(_: Any, stages: int, __: Any) -> tuple[int, ...]:
            return (len(_) - stages + 1, *(1,) * (stages - 1))

        monkeypatch.setitem(partition.RULES, "balanced", lopsided)
        monkeypatch.setitem(partition.RULES, "even", lopsided)
        assert self.finds("layers", {"not-balanced", "not-even"}, 60)

    def test_an_export_for_megatron_without_its_group_size(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(megatron_schedule, "group_size_of", lambda *_: None)
        assert self.finds("group-sizes", {"megatron-stops", "megatron-order"}, 40)

    def test_ticks_of_a_file_that_are_rounded_down(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = pipeline_json.pipeline_from_object

        def without_its_ticks(value: object, *_: int, has_model: bool) -> Pipeline:
            return read(value, 1, 1, has_model=has_model)

        def rounded_down(pipeline: Pipeline, units: tuple[int, int]) -> list[int]:
            pairs = zip(pipeline.grid, units, strict=True)
            return [max(1, needed // stated) for needed, stated in pairs]

        monkeypatch.setattr(pipeline_json, "pipeline_from_object", without_its_ticks)
        monkeypatch.setattr(schedule_json, "_scales", rounded_down)
        assert self.finds("files", {"file-read-otherwise"}, 100)

    def test_a_crash_is_a_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def crash(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("no reason")

        monkeypatch.setattr(ppopt, "evaluate", crash)
        assert self.finds("strategies", {"crash-ZeroDivisionError"}, 3)


class Large(Category):
    """Numbers above 10 are wrong."""

    name = "tiny"
    goal = 1

    def draw(self, rng: Random) -> Case:
        """Draw a number."""
        return {"number": rng.randrange(1000)}

    def check(self, case: Case) -> Iterator[Finding]:
        """Refuse 7, find what is above 10."""
        if case["number"] == 7:
            raise SkippedError("seven")
        if case["number"] > 10:
            yield Finding("large", f"{case['number']} is above 10")


class Endless(Large):
    """A check that does not end, in the product or in an oracle."""

    def check(self, case: Case) -> Iterator[Finding]:
        """Search for an hour, or ask the oracle for spans at fine ticks."""
        if case["oracle"]:
            exhaustive.best(
                Pipeline(stages=3, batches=4, p2p=200), fused=False, objective="device-span"
            )
        else:
            time.sleep(3600)
        yield from ()


def test_an_oracle_that_does_not_end_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "HANGS", 1)
    [finding] = campaign.findings(Endless(), {"oracle": False})
    assert finding.kind == "crash-HangError"
    with pytest.raises(SkippedError, match="the oracle was not done in time"):
        campaign.findings(Endless(), {"oracle": True})


def test_an_alarm_during_garbage_collection_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def collecting(_: str, __: dict[str, int]) -> None:
        time.sleep(0.7)

    class Collecting(Large):
        def check(self, case: Case) -> Iterator[Finding]:
            gc.collect()
            time.sleep(10)
            yield from super().check(case)

    monkeypatch.setattr(campaign, "HANGS", 1)
    gc.callbacks.append(collecting)
    try:
        [finding] = campaign.findings(Collecting(), {"number": 1})
    finally:
        gc.callbacks.remove(collecting)
    assert finding.kind == "crash-HangError"


def test_a_failing_case_is_shrunk_counted_and_written_as_a_test(tmp_path: Path) -> None:
    tally = Tally()
    for index in range(12):
        campaign.attack(Large(), "1", index, tally)
    assert tally.examples["large"][1] == {"number": 11}
    assert 0 < tally.kinds["large"] <= tally.cases == 12
    both = Tally()
    both.add(tally)
    both.add(tally)
    assert (both.cases, both.kinds["large"]) == (24, 2 * tally.kinds["large"])
    (path,) = campaign.write_tests({"tiny": tally}, tmp_path / "deep")
    assert path.name == "test_fuzz_tiny_large.py"
    module = runpy.run_path(str(path))
    assert module["CASE"] == {"number": 11}
    assert "test_tiny_large" in module
    text = "\n".join(campaign.listed({"tiny": tally}))
    assert f"- tiny, large, {tally.kinds['large']} times:" in text
    assert f"| tiny | 12 | {tally.skipped} |" in campaign.table({"tiny": tally})


def test_a_campaign_keeps_the_ratio_of_the_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes in 90 readings of the clock, three for every case."""
    monkeypatch.setattr(campaign, "monotonic", SteppingClock(1 / 90))
    done = campaign.campaign(["strategies", "phases"], "ratio", 1.0)
    goals = [CATEGORIES[name].goal for name in done]
    shares = [tally.cases / goal for tally, goal in zip(done.values(), goals, strict=True)]
    assert abs(shares[0] - shares[1]) <= 1 / min(goals)
    assert sum(tally.cases for tally in done.values()) >= 25


class Limited(Tiny):
    """Pipelines with a memory limit are wrong."""

    def check(self, case: Case) -> Iterator[Finding]:
        """Find the limit; the case is one that could be drawn."""
        if Pipeline(**case["pipeline"]).mem_limit is not None:
            yield Finding("limited", "there is a limit")


def test_the_smallest_case_has_what_is_wrong_and_little_else() -> None:
    for seed in range(4):
        draws = Draws(str(seed))
        drawn = Limited().draw(draws)
        if drawn["pipeline"].get("mem_limit") is None:
            continue
        smallest = campaign.shrunk(Limited(), draws.record, "limited")["pipeline"]
        pipeline = Pipeline(**smallest)
        assert pipeline.mem_limit is not None and pipeline.num_devices == 1
        assert smallest.keys().isdisjoint({"frozen", "device_speed", "routes", "backward_p2p"})
        assert Limited().draw(Draws("", draws.record)) == drawn
