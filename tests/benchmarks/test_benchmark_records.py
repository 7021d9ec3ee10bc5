"""Records of the benchmarks: written, resumed, summed up, and refused where sides contradict."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prove, race, suite, targets
from benchmarks.attempt import Attempt, Record, read
from benchmarks.outcome import Limits
from benchmarks.suite import Instance
from ppopt import Pipeline, evaluate

pytestmark = pytest.mark.slow


def made(**given: Any) -> Attempt:
    """A proved attempt of 40 units of 10 ticks, but for what is given."""
    fields: dict[str, Any] = {
        "side": "ppopt",
        "instance": "zb-1.5b-m24 2p",
        "group": "linear p=16",
        "objective": "makespan",
        "devices": 16,
        "batches": 24,
        "operations": 1152,
        "busiest": 24 * (18522 + 18086 + 9337),
        "per_unit": 10,
        "seconds_limit": 60.0,
        "workers": 2,
        "seed": 0,
        "status": "optimal",
        "value": 400,
        "bound": 400,
        "seconds": 0.5,
        "cpu_seconds": 1.0,
        "peak_mib": 100.0,
        "variables": 5,
        "constraints": 7,
        "trace": [],
    }
    return Attempt(**{**fields, **given})


def test_a_record_resumes_and_forgets_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "record.jsonl"
    Record(path, ("numpy",)).add(made(trace=[(0.1, None, 3), (0.5, 400, 400)]))
    with path.open("a") as file:
        file.write('{"side": "pp')
    again = Record(path, ("numpy",))
    assert again.done == {("ppopt", "zb-1.5b-m24 2p", 60.0, 2, 0)}
    again.add(made(instance="other", seed=1))
    heads, attempts = read(path)
    assert [one.instance for one in attempts] == ["zb-1.5b-m24 2p", "other"]
    assert len(heads) == 2 and heads[0]["versions"].keys() == {"ppopt-pipeline", "numpy"}
    assert attempts[0].trace == [[0.1, None, 3], [0.5, 400, 400]]


@pytest.mark.parametrize(
    ("count", "changed", "met"),
    [
        (50, {}, True),
        # One of 50 open is 98 %, two are 96 %; its gap is 4 of 400 ticks, or 5.
        (49, {"status": "feasible", "bound": 396}, True),
        (49, {"status": "feasible", "bound": 395}, False),
        (24, {"status": "feasible", "bound": 399}, False),
        (49, {"status": "unknown", "value": None, "bound": 1}, False),
        (0, {"seconds": 1.0}, False),
        (0, {"peak_mib": 4097.0}, False),
    ],
)
def test_a_group_meets_its_target_or_not(count: int, changed: dict[str, Any], met: bool) -> None:
    target = next(target for target in targets.TARGETS if target.group == "linear p=16")
    assert target.met([made()] * count + [made(**changed)]) is met


def test_the_summary_names_what_is_worse_than_by_hand(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl", ())
    record.add(made(status="feasible", value=410, hand="zb-2p", hand_value=405))
    record.add(made(instance="fine", hand="zb-1p", hand_value=400))
    text = "\n".join(targets.report(tmp_path / "record.jsonl"))
    assert "by hand that keeps the limit: 1 of 2" in text
    assert "| zb-1.5b-m24 2p | feasible | 41 | 40 | 2.44% | zb-2p 40.5 | 0.5 |" in text


def test_rates_are_set_beside_the_published_ones(tmp_path: Path) -> None:
    """24 x (18522 + 18086 + 9337) ticks of work in a span of 1152.5 units are a rate of 0.0432."""
    record = Record(tmp_path / "record.jsonl", ())
    span = {"objective": "device-span", "per_unit": 1000, "status": "feasible", "bound": 1}
    record.add(made(value=1152500, **span))
    record.add(made(value=1153000, **span, seed=1))
    text = "\n".join(targets.report(tmp_path / "record.jsonl"))
    assert "| zb-1.5b-m24 2p | 0.0432 | 0.0433 | yes |" in text
    assert "| zb-1.5b-m24 2p | 0.0436 | 0.0433 | **no** |" in text


@pytest.mark.parametrize(
    "other",
    [{"value": 410, "bound": 410}, {"status": "feasible", "value": 420, "bound": 401}],
    ids=["another optimum", "a bound above a schedule"],
)
def test_sides_that_contradict_each_other_make_no_report(other: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="contradict"):
        race.by_instance([made(), made(side="cp-sat", **other)])


def test_ratios_are_over_what_both_prove_and_the_baseline_is_slow_on(tmp_path: Path) -> None:
    """Wall ratios 8 and 32: mean 16. The instance below a second and the open one do not count;
    beyond its limit, 60 / 0.5."""
    path = tmp_path / "race.jsonl"
    record = Record(path, ())
    times = {"a": 4.0, "b": 16.0, "c": 0.4}
    for name, seconds in times.items():
        record.add(made(instance=name))
        record.add(made(instance=name, side="cp-sat", seconds=seconds, cpu_seconds=seconds))
    record.add(made(instance="d", trace=[(0.5, 400, 400)]))
    open_ = {"status": "feasible", "bound": 300, "seconds": 60.0, "trace": [(1.0, 400, 300)]}
    record.add(made(instance="d", side="cp-sat", **open_))
    text = "\n".join(race.report(path))
    assert "| ppopt | 4 of 4 |" in text
    assert "| cp-sat | 3 of 4 | 16 (2 instances) | 8.0 | 32 | 8 | > 120 (1 instances) | 1 |" in text
    assert "| d | 0.50 | gap 25.0% |" in text


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Attempts as they are asked for; none is run."""
    calls: list[tuple[str, str]] = []

    def attempt(side: str, instance: Instance, limits: Limits, *, trace: bool = True) -> Attempt:
        calls.append((side, instance.name))
        return made(side=side, instance=instance.name)

    monkeypatch.setattr(race, "attempt", attempt)
    monkeypatch.setattr(prove, "attempt", attempt)
    return calls


def test_sides_take_turns_and_what_is_done_is_not_run_again(
    tmp_path: Path, asked: list[tuple[str, str]]
) -> None:
    record = Record(tmp_path / "record.jsonl", ())
    instances = list(islice(suite.race(), 3))
    record.add(made(side="cp-sat", instance=instances[0].name))
    list(race.run(instances, Limits(60.0, 2, 0), record))
    assert [side for side, _ in asked] == ["ppopt", "cp-sat", "ppopt", "ppopt", "cp-sat"]


def test_proofs_stand_beside_the_best_by_hand(asked: list[tuple[str, str]]) -> None:
    instance = Instance("small", "linear", Pipeline(stages=2, batches=4, mem_limit=2))
    (one,) = prove.run(iter([instance]), Limits(60.0, 2, 0))
    assert asked == [("ppopt", instance.name)]
    by_hand = evaluate(instance.pipeline, one.hand)
    assert by_hand.metrics.makespan_ticks == one.hand_value
    assert max(by_hand.metrics.peak_memory_ticks) <= 2
    assert prove.line(one).startswith(f"{instance.name}: optimal 40 bound 40 gap 0.00% in 0.50 s")
