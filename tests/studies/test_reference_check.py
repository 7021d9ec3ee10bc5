"""Reference schedules: made again, compared, pinned; `ppopt check`, `ppopt.testing`, the plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppopt
from ppopt import Pipeline, Schedule, evaluate, solve
from ppopt.errors import InputError
from ppopt.formats.schedule_json import schedule_from_object, schedule_to_object
from ppopt.problem.operation import AuxiliaryKind
from ppopt.strategies import Options
from ppopt.studies.reference_check import check_reference, differences
from ppopt.testing import assert_not_worse_than, assert_schedule_equal
from ppopt.testing.plugin import References
from tests.cli.cli_run import done, json_of, run
from tests.factories.tables import changed
from tests.verifier.verify_fixtures import one_f_one_b

UNIT = "--stages 4 --batches 8"


def solved(**options: Any) -> Schedule:
    """The README's schedule: makespan 27 = 24 of work and 3 of waiting on device 3."""
    result = solve(Pipeline(stages=4, batches=8, mem_limit="1f1b"), **{"workers": 1, **options})
    assert result.schedule is not None
    return result.schedule


@pytest.mark.parametrize("strategy", ["1f1b", "zb-1p", "interleaved"])
def test_strategies_are_pinned(strategy: str, ppopt_reference: References) -> None:
    """Their figures are tested elsewhere; here, that no operation moves unseen."""
    schedule = evaluate(Pipeline(stages=4, batches=8, p2p="0.25"), strategy)
    ppopt_reference(f"{strategy}-4x8", schedule)


def test_the_search_is_not_worse(ppopt_reference: References) -> None:
    """The optimum is 27; which optimal order is found may change with the solver."""
    ppopt_reference("solved-4x8", solved(), times=False)
    assert ppopt_reference.load("solved-4x8").metrics.makespan_ticks == 27


class TestCheck:
    def test_what_is_made_again_is_unchanged(self) -> None:
        for schedule in (
            solved(),
            evaluate(Pipeline(stages=3, batches=5), "zb-h1", "device-span"),
            evaluate(Pipeline(stages=2, batches=5), "interleaved", options=Options(group_size=3)),
            one_f_one_b(),
        ):
            assert check_reference(schedule).differences == ()

    def test_an_order_made_worse_by_hand(self) -> None:
        """Swapping the microbatches of two forwards on device 0 of a pinned 1F1B."""
        schedule = evaluate(Pipeline(stages=2, batches=3), "1f1b")
        turned = changed(schedule, microbatch=schedule.microbatch[[1, 0, *range(2, len(schedule))]])
        differences = check_reference(turned).differences
        assert [str(entry) for entry in differences] == [
            "order: was 0F1 as number 0 on device 0, is 0F0"
        ]

    def test_a_stale_bound(self) -> None:
        schedule = solved()
        stale = replace(
            schedule, origin=replace(schedule.origin, lower_bound=Fraction(26), status="feasible")
        )
        differences = [str(entry) for entry in check_reference(stale).differences]
        assert differences == ["status: was feasible, is optimal", "lower bound: was 26, is 27"]
        assert check_reference(stale).notes == (
            "the search ended by its time limit: another machine may find more or less",
        )

    def test_other_versions_are_noted(self) -> None:
        schedule = solved()
        older = {**schedule.origin.versions, "ortools": "9.0"}
        checked = check_reference(
            replace(schedule, origin=replace(schedule.origin, versions=older))
        )
        assert checked.differences == ()
        (note,) = checked.notes
        assert note.startswith("ortools was 9.0, is ")

    def test_several_workers_may_find_another_order(self) -> None:
        checked = check_reference(solved(workers=2))
        assert (checked.differences, checked.order_compared) == ((), False)
        assert checked.notes[0].startswith("order not compared: the search had several workers")
        schedule = solved()
        turned = np.where(schedule.microbatch < 2, 1 - schedule.microbatch, schedule.microbatch)
        turned_schedule = replace(
            changed(schedule, microbatch=turned), origin=replace(schedule.origin, workers=2)
        )
        checked = check_reference(turned_schedule)
        assert checked.differences == ()
        assert "order: was 0F1 as number 0 on device 0, is 0F0" in map(
            str, checked.ignored_differences
        )

    def test_a_chosen_order_of_microbatches_is_kept(self) -> None:
        """Another order of operations on a device may have the same value."""
        pipeline = Pipeline(stages=2, batches=3, microbatch_times=(1, 4, 2), order="search")
        schedule = solve(pipeline, workers=1).schedule
        checked = check_reference(schedule)
        assert (checked.differences, checked.order_compared) == ((), False)
        assert checked.notes[0].startswith("order not compared: the search chose the order of the")

    def test_times(self) -> None:
        schedule = evaluate(Pipeline(stages=1, batches=1), "gpipe")
        delay = np.array([0, 1])
        later = changed(schedule, start=schedule.start + delay, end=schedule.end + delay)
        (value, times) = differences(schedule, later)
        assert str(value) == "value: was 3, is 4"
        assert str(times) == (
            "times: was 0BW0 on device 0 from 1 to 3, is 0BW0 on device 0 from 2 to 4"
        )

    def test_times_of_work_around_the_microbatches(self) -> None:
        schedule = evaluate(Pipeline(stages=1, batches=1, gradient_sync=1, optimizer=2), "gpipe")
        later = schedule.operations.kind == AuxiliaryKind.OPTIMIZER
        delayed = schedule.with_starts(schedule.operations.start + later)
        (value, times) = differences(schedule, delayed)
        assert str(value) == "value: was 6, is 7"
        assert str(times) == "times: was 0OPTIMIZER on device 0 from 4 to 6, is " + (
            "0OPTIMIZER on device 0 from 5 to 7"
        )
        assert check_reference(schedule).differences == ()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"group_siz": 3}, "unknown key 'group_siz'; did you mean group_size?"),
            ({"group_size": "3"}, "origin: options: group_size: '3' is not a whole number"),
            ([3], "origin: options: [3] is not an object"),
        ],
    )
    def test_hostile_options(self, options: object, message: str) -> None:
        schedule = evaluate(Pipeline(stages=2, batches=4), "interleaved")
        file = schedule_to_object(schedule)
        file["origin"]["options"] = options
        with pytest.raises(InputError) as caught:
            check_reference(schedule_from_object(file)[0])
        assert message in str(caught.value)


class TestCommand:
    def test_unchanged(self, tmp_path: Path) -> None:
        path = tmp_path / "ref.json"
        done(f"solve {UNIT} --mem-limit --workers 1 --quiet -o", path)
        assert done("check", path) == (0, f"{path}: unchanged\n", "")
        first = path.read_bytes()
        done(f"solve {UNIT} --mem-limit --workers 1 --quiet -o", path)
        assert path.read_bytes() == first

    def test_changed(self, tmp_path: Path) -> None:
        """A reference that says 1f1b and holds GPipe's times."""
        path = tmp_path / "ref.json"
        done(f"eval gpipe {UNIT} --quiet -o", path)
        file = json.loads(path.read_text())
        file["origin"]["strategy"] = "1f1b"
        path.write_text(json.dumps(file))
        ran = run("check", path)
        assert (ran.code, ran.err) == (6, "")
        assert ran.out.splitlines() == [
            f"{path}: peak memory: was 8 8 8 8, is 4 3 2 1",
            f"{path}: order: was 0F4 as number 4 on device 0, is 0BW0",
        ]
        checked = run("check --json", path)
        assert checked.code == 6
        assert checked.json["unchanged"] is False
        assert checked.json["differences"][0] == {
            "what": "peak memory", "before": "8 8 8 8", "after": "4 3 2 1",
        }  # fmt: skip
        assert run("check --quiet", path) == (6, "", "")

    def test_json(self, tmp_path: Path) -> None:
        done(f"eval 1f1b {UNIT} --quiet -o", tmp_path / "a.json")
        assert json_of("check", tmp_path / "a.json") == {
            "schema": 1, "unchanged": True, "differences": [], "order_compared": True,
            "not_compared": [], "notes": [],
        }  # fmt: skip

    def test_several(self, tmp_path: Path) -> None:
        """One line or row for each; one that changed decides the exit code; a bad one ends all."""
        same, changed, broken = (tmp_path / f"{name}.json" for name in ("same", "new", "broken"))
        done(f"eval 1f1b {UNIT} --quiet -o", same)
        done(f"eval gpipe {UNIT} --quiet -o", changed)
        changed.write_text(changed.read_text().replace('"gpipe"', '"1f1b"'))
        ran = run("check", same, changed)
        assert ran.code == 6
        assert ran.out.splitlines() == [
            f"{same}: unchanged",
            f"{changed}: peak memory: was 8 8 8 8, is 4 3 2 1",
            f"{changed}: order: was 0F4 as number 4 on device 0, is 0BW0",
        ]
        rows = run("check --json", same, changed).json["rows"]
        assert [(row["file"], row["unchanged"]) for row in rows] == [
            (str(same), True),
            (str(changed), False),
        ]
        assert done("check", same, same).out == f"{same}: unchanged\n" * 2
        broken.write_text("{}")
        ran = run("check", same, broken)
        assert (ran.code, ran.out) == (2, "")
        assert str(broken) in ran.err

    def test_an_order_that_is_not_compared_is_not_called_unchanged(self, tmp_path: Path) -> None:
        """A search of one worker found it; the file says two, and another order of equal value."""
        path = tmp_path / "ref.json"
        done(f"solve {UNIT} --mem-limit --workers 1 --quiet -o", path)
        file = json.loads(path.read_text())
        file["origin"]["workers"] = 2
        for op in file["ops"]:
            op[2] = {0: 1, 1: 0}.get(op[2], op[2])
        path.write_text(json.dumps(file))
        lines = done("check", path).out.splitlines()
        assert lines[0] == f"{path}: status, value and lower bound unchanged"
        assert lines[1].startswith("note: order not compared: the search had several workers")
        assert any(line.startswith("note: not compared: order: was 0F1 as") for line in lines)
        output = json_of("check", path)
        assert (output["unchanged"], output["order_compared"]) == (True, False)
        assert "order" in [entry["what"] for entry in output["not_compared"]]

    def test_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text("{}")
        ran = run("check", tmp_path / "a.json")
        assert (ran.code, ran.out) == (2, "")


class TestAssertions:
    def test_equal(self) -> None:
        assert_schedule_equal(one_f_one_b(), one_f_one_b())
        named = evaluate(Pipeline(stages=2, batches=2), "1f1b")
        with pytest.raises(AssertionError, match=r"differ: times: was .* from 0 to 1"):
            assert_schedule_equal(changed(named, start=named.start + 1), named)

    FAILS: tuple[tuple[Callable[[], Schedule], str], ...] = (
        (lambda: evaluate(Pipeline(stages=2, batches=3), "1f1b"), "differ in batches: 2 is exp"),
        (
            lambda: evaluate(Pipeline(stages=2, batches=2, forward=2), "1f1b"),
            "differ in forward_times of stage 0 (and 1 more): 1 is expected, not 2; backward_times",
        ),
        (lambda: evaluate(Pipeline(stages=2, batches=2, p2p=1), "1f1b"), "differ in p2p"),
        (lambda: evaluate(Pipeline(stages=3, batches=2), "1f1b"), "differ in hosts"),
        (lambda: changed(one_f_one_b(), start=one_f_one_b().start - 1), "not a schedule of its"),
        (
            lambda: evaluate(Pipeline(stages=2, batches=2, mem_limit=1), "gpipe"),
            "memory-limit: ",
        ),
    )

    @pytest.mark.parametrize("case", FAILS, ids=lambda case: case[1])
    def test_not_worse_fails(self, case: tuple[Callable[[], Schedule], str]) -> None:
        make, message = case
        with pytest.raises(AssertionError) as caught:
            assert_not_worse_than(make(), one_f_one_b())
        assert message in str(caught.value)

    def test_not_worse(self) -> None:
        """2 x 4: GPipe takes 4 + 1 + 2 x (4 + 1) = 15 as 1F1B does; one at a time 4 x 6 = 24."""
        pipeline = Pipeline(stages=2, batches=4)
        reference = evaluate(pipeline, "1f1b")
        assert reference.metrics.makespan_ticks == 15
        assert_not_worse_than(evaluate(pipeline, "gpipe"), reference)
        serial = solve(replace(pipeline, mem_limit=1), backward_kind="whole").schedule
        assert serial.metrics.makespan_ticks == 24
        with pytest.raises(AssertionError, match="makespan is 24, worse than 15 of the reference"):
            assert_not_worse_than(serial, reference)
        assert_not_worse_than(serial, reference, tolerance=0.6)


class TestPlugin:
    def test_update_writes_and_compares_nothing(self, tmp_path: Path) -> None:
        folder = tmp_path / "references"
        schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
        References(folder, update=True)("a", schedule)
        References(folder, update=False)("a", schedule)
        second = evaluate(Pipeline(stages=2, batches=2), "gpipe")
        with pytest.raises(AssertionError, match="the schedules differ: order: "):
            References(folder, update=False)("a", second)
        References(folder, update=True)("a", second)
        References(folder, update=False)("a", second)

    def test_names_with_folders(self, tmp_path: Path) -> None:
        schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
        References(tmp_path / "references", update=True)("v/small/a", schedule)
        assert (tmp_path / "references/v/small/a.json").exists()
        References(tmp_path / "references", update=False)("v/small/a", schedule)
        for name in ("../a", str(tmp_path / "a")):
            with pytest.raises(pytest.fail.Exception, match="name a reference within it"):
                References(tmp_path / "references", update=True)(name, schedule)

    def test_what_is_no_schedule_is_not_written(self, tmp_path: Path) -> None:
        schedule = evaluate(Pipeline(stages=2, batches=2, mem_limit=1), "gpipe")
        broken = changed(schedule, start=schedule.start - 1)
        with pytest.raises(pytest.fail.Exception, match="not written, not a schedule of its pip"):
            References(tmp_path, update=True)("a", broken)
        with pytest.raises(pytest.fail.Exception, match=r"not written, .* memory-limit"):
            References(tmp_path, update=True)("a", schedule, times=False)
        assert list(tmp_path.iterdir()) == []
        References(tmp_path, update=True)("a", schedule)

    @pytest.mark.parametrize("text", ["", "{}", "[1", '{"schema": 1, "ops": 3}'])
    def test_a_malformed_reference_is_one_line(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(
            pytest.fail.Exception, match=r"a\.json: .* `pytest --ppopt-update`"
        ) as at:
            References(tmp_path, update=False).load("a")
        assert not at.value.pytrace
        assert at.value.__suppress_context__, "or pytest tells the error twice"
        assert "\n" not in str(at.value)

    def test_a_missing_reference_fails(self, tmp_path: Path) -> None:
        with pytest.raises(pytest.fail.Exception, match="no such reference; `pytest --ppopt-upd"):
            References(tmp_path, update=False).load("a")

    def test_a_broken_reference_fails(self, tmp_path: Path) -> None:
        schedule = evaluate(Pipeline(stages=2, batches=2), "1f1b")
        changed(schedule, start=schedule.start - 1).to_json(tmp_path / "a.json")
        with pytest.raises(pytest.fail.Exception, match="`ppopt verify` lists all violations"):
            References(tmp_path, update=False).load("a")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ("mem_limit=5", "the pipelines differ in mem_limit: 4 is expected, not 5"),
            ("mem_limit=None", "the pipelines differ in mem_limit: 4 is expected, not None"),
            (
                "mem_limit=4, static=1",
                "the pipelines differ in static of stage 0 (and 1 more): 0 is expected, not 1",
            ),
            ("mem_limit=4, p2p=1", "the pipelines differ in p2p: 0 is expected, not 1"),
        ],
    )
    def test_a_changed_pipeline_is_one_line(
        self, fields: str, message: str, pytester: pytest.Pytester
    ) -> None:
        """Nothing follows that line, such as the values that pytest adds to an `assert`."""
        References(pytester.path / "references", update=True)(
            "mine", evaluate(Pipeline(stages=2, batches=2, mem_limit=4), "1f1b")
        )
        pytester.makepyfile(
            "import ppopt\n"
            "def test_mine(ppopt_reference):\n"
            f"    pipeline = ppopt.Pipeline(stages=2, batches=2, {fields})\n"
            "    ppopt_reference('mine', ppopt.evaluate(pipeline, '1f1b'))\n"
        )
        ran = pytester.runpytest_inprocess("-p", "ppopt.testing.plugin")
        ran.assert_outcomes(failed=1)
        raised = [line for line in ran.outlines if line.startswith("E ")]
        assert raised == [f"E       AssertionError: {message}"]

    def test_in_a_project(self, pytester: pytest.Pytester) -> None:
        """As a user has it: no reference yet, written on purpose, then compared."""
        pytester.makepyfile(
            "import ppopt\n"
            "def test_mine(ppopt_reference):\n"
            "    made = ppopt.evaluate(ppopt.Pipeline(stages=2, batches=2), '1f1b')\n"
            "    ppopt_reference('mine', made)\n"
        )
        plugin = ("-p", "ppopt.testing.plugin")
        pytester.runpytest_inprocess(*plugin).assert_outcomes(failed=1)
        pytester.runpytest_inprocess(*plugin, "--ppopt-update").assert_outcomes(passed=1)
        assert (pytester.path / "references" / "mine.json").exists()
        pytester.runpytest_inprocess(*plugin).assert_outcomes(passed=1)


def test_a_claim_over_all_partitions_is_not_said_to_be_proved_again() -> None:
    """Its proof cannot be the same: the search keeps the partition of the file."""
    layers = [ppopt.Layer(forward=1)] * 5 + [ppopt.Layer(forward=3)]
    pipeline = ppopt.Model(layers=layers).pipeline(devices=3, batches=4, partition="search")
    result = ppopt.solve(pipeline, workers=1)
    assert result.schedule is not None and result.status is ppopt.Status.OPTIMAL
    checked = check_reference(result.schedule)
    assert checked.differences == ()
    assert [entry.what for entry in checked.ignored_differences] == ["proof"]
    assert any("over all partitions; that is not proved again" in note for note in checked.notes)
