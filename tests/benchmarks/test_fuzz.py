"""The adversary: it finds planted faults, shrinks them, writes them as tests; and a short slice."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ppopt
from benchmarks.fuzz import campaign, command, known, pipelines
from benchmarks.fuzz.campaign import CATEGORIES, Tally
from benchmarks.fuzz.category import Case, Category, Finding, SkippedError
from ppopt import InputError, Pipeline, Verdict
from tests.oracles import exhaustive

SLICE = {
    "tiny": 20,
    "pairs": 10,
    "bounds": 10,
    "frontiers": 4,
    "strategies": 40,
    "valid": 20,
    "mutants": 120,
    "damaged": 30,
    "edited": 40,
    "hostile": 12,
    "traps": 3,
    "killed": 2,
    "disks": 1,
    "streams": 3,
}
"""Cases of each category that run here: some 20 s in all."""


@pytest.mark.parametrize("name", SLICE)
def test_a_short_slice_finds_nothing_new(name: str) -> None:
    """What is known is left out by `benchmarks.fuzz.known` and nowhere else."""
    tally = Tally()
    for number in range(SLICE[name]):
        campaign.attack(CATEGORIES[name], "slice", number, tally)
    new = {
        kind: tally.examples[kind]
        for kind in tally.kinds
        if known.reason(name, Finding(kind, "")) is None
    }
    assert new == {}
    assert tally.cases - tally.skipped > 0


@pytest.mark.parametrize("name", CATEGORIES)
def test_cases_are_literals_and_repeat(name: str) -> None:
    category = CATEGORIES[name]
    for number in range(20):
        case = category.draw(Random(number))
        assert eval(repr(case), {"__builtins__": {}}) == case
        assert category.draw(Random(number)) == case


def test_pipelines_have_every_dimension() -> None:
    rng = Random(1)
    drawn = [
        Pipeline(**pipelines.draw(rng, ops=24, fused=False, slices=(1, 2), overlap=number % 2 == 0))
        for number in range(400)
    ]
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
    ):
        assert 0.02 < sum(share) / len(drawn) < 0.98


def test_reduced_pipelines_have_the_same_optimum() -> None:
    rng = Random(2)
    for _ in range(40):
        fields = pipelines.draw(rng, ops=9, fused=True, instants=False)
        pipeline = Pipeline(**fields)
        same, tick = pipelines.reduced(pipeline)
        own = exhaustive.best(pipeline, fused=True, objective="makespan")
        found = exhaustive.best(same, fused=True, objective="makespan")
        assert own == (None if found is None else found * tick)


class TestFaults:
    """A product with a planted fault is found out."""

    def kinds(self, name: str, count: int = 30) -> set[str]:
        tally = Tally()
        for number in range(count):
            campaign.attack(CATEGORIES[name], "fault", number, tally)
        return set(tally.kinds)

    @pytest.fixture(autouse=True)
    def _no_shrinking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(campaign, "shrunk", lambda _category, case, _kind: case)

    def test_a_bound_that_is_too_high(self, monkeypatch: pytest.MonkeyPatch) -> None:
        solve = ppopt.solve

        def raised(*given: Any, **options: Any) -> ppopt.Result:
            found = solve(*given, **options)
            above = found.lower_bound and found.lower_bound + 1
            return replace(found, lower_bound=above)

        monkeypatch.setattr(ppopt, "solve", raised)
        assert "wrong-bound" in self.kinds("tiny")
        assert "true-bound-refuted" in self.kinds("bounds")

    def test_a_frontier_whose_bounds_are_too_high(self, monkeypatch: pytest.MonkeyPatch) -> None:
        frontier = ppopt.frontier

        def raised(*given: Any, **options: Any) -> ppopt.Frontier:
            found = frontier(*given, **options)
            return replace(found, bounds=tuple((at, bound + 1) for at, bound in found.bounds))

        monkeypatch.setattr(ppopt, "frontier", raised)
        assert self.kinds("frontiers", 5) == {"wrong-bound"}

    def test_a_frontier_that_ends_at_its_first_point(self, monkeypatch: pytest.MonkeyPatch) -> None:
        frontier = ppopt.frontier

        def cut(*given: Any, **options: Any) -> ppopt.Frontier:
            found = frontier(*given, **options)
            return replace(found, points=found.points[:1])

        monkeypatch.setattr(ppopt, "frontier", cut)
        assert "wrong-end" in self.kinds("frontiers", 10)

    def test_a_rechecker_that_believes_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        believed = ppopt.Recheck(Verdict.CONFIRMED, "why not", (), 0.0)
        monkeypatch.setattr(ppopt, "recheck", lambda *_, **__: believed)
        assert self.kinds("bounds") == {"inflated-bound-confirmed"}

    def test_a_verifier_that_sees_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchmarks.fuzz.schedules.verify", lambda *_: [])
        assert "memory-limit-missed" in self.kinds("mutants", 60)
        assert self.kinds("damaged") == {"verifier-differs"}
        assert self.kinds("edited") == {"edit-missed"}

    def test_a_crash_is_a_finding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def crash(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("no reason")

        monkeypatch.setattr(ppopt, "evaluate", crash)
        assert self.kinds("strategies", 3) == {"crash-ZeroDivisionError"}


class Large(Category):
    """Numbers above 10 are wrong."""

    name = "tiny"

    def draw(self, rng: Random) -> Case:
        """Draw a number."""
        return {"number": rng.randrange(1000)}

    def check(self, case: Case) -> Iterator[Finding]:
        """Refuse 7, find what is above 10."""
        if case["number"] == 7:
            raise SkippedError("seven")
        if case["number"] > 10:
            yield Finding("large", f"{case['number']} is above 10")

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield half of it and one less."""
        yield {"number": case["number"] // 2}
        yield {"number": case["number"] - 1}


def test_a_failing_case_is_shrunk_counted_and_written_as_a_test(tmp_path: Path) -> None:
    tally = Tally()
    for number in range(12):
        campaign.attack(Large(), "1", number, tally)
    assert tally.examples["large"][1] == {"number": 11}
    assert 0 < tally.kinds["large"] <= tally.cases == 12
    both = Tally()
    both.add(tally)
    both.add(tally)
    assert (both.cases, both.kinds["large"]) == (24, 2 * tally.kinds["large"])
    (path,) = campaign.write_tests({"tiny": tally}, tmp_path / "deep")
    assert path.name == "test_fuzz_tiny_large.py"
    made = runpy.run_path(str(path))
    assert made["CASE"] == {"number": 11}
    assert "test_tiny_large" in made
    text = "\n".join(campaign.listed({"tiny": tally}))
    assert f"- tiny, large, {tally.kinds['large']} times (NEW):" in text
    assert f"| tiny | 12 | {tally.skipped} |" in campaign.table({"tiny": tally})


def test_smaller_pipelines_are_pipelines_and_simpler_ones_come() -> None:
    rng = Random(3)
    for _ in range(20):
        case = {"pipeline": pipelines.draw(rng, ops=24, fused=False, slices=(1, 2), overlap=True)}
        found = [one["pipeline"] for one in pipelines.smaller(case)]
        assert found
        assert case["pipeline"] not in found
        for fields in found:
            try:
                Pipeline(**fields)
            except InputError as refused:
                pytest.fail(f"{fields}: {refused}")


def test_known_findings_go_by_category_and_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "OPEN", {("disks", "full-*"): "item 1"})
    assert known.reason("disks", Finding("full-crash", "")) == "item 1"
    assert known.reason("killed", Finding("full-crash", "")) is None
    assert known.reason("disks", Finding("loop-crash", "")) is None


def test_a_forked_command_behaves_as_one_of_its_own(tmp_path: Path) -> None:
    ran = command.forked(["solve", "--stages", "2", "--batches", "2", "--json"], tmp_path, 60)
    own = command.ran(["solve", "--stages", "2", "--batches", "2", "--json"], tmp_path)
    assert (ran.code, ran.err) == (own.code, own.err) == (0, "")
    assert ran.shown["value"] == own.shown["value"] == 7
    refused = command.forked(["solve", "--stages", "none"], tmp_path, 60)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: stages: 'none'")
