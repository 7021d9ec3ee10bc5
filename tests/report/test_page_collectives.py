"""Work around the microbatches on the page: in its data, and in a real browser."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import colours
from ppopt.report.html import page
from ppopt.schedule.metrics import memory_profile
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import evaluate
from tests.browser import View, rgb
from tests.factories.auxiliary import OPTIMIZER, SYNC, UNSHARD
from tests.report.drawn import data_of

WORK: dict[str, Any] = {"unshard": 2, "gradient_sync": 3, "optimizer": 1, "unshard_memory": 1}
QUEUES = "ppopt.frame.panels.filter((panel) => panel.kind === 'collectives')"


@cache
def gathered(strategy: str = "1f1b", devices: int = 4) -> Schedule:
    """F = 1, BW = 2, 8 microbatches: device 0 runs F0 at 2, BW7 from 33 to 35, its sync to 38."""
    return evaluate(Pipeline(stages=devices, batches=8, **WORK), strategy)


def raw(schedule: Schedule) -> dict[str, Any]:
    data: dict[str, Any] = data_of(page([schedule]))["schedules"][0]
    return data


def test_optimizers_are_operations_of_their_devices() -> None:
    ops = raw(gathered())["ops"]
    optimizer = [*OpKind, *AuxiliaryKind].index(AuxiliaryKind.OPTIMIZER)
    rows = [row for row, kind in enumerate(ops["kind"]) if kind == optimizer]
    assert [ops["device"][row] for row in rows] == [0, 1, 2, 3]
    assert [ops["start"][row] for row in rows] == [38, 36, 34, 32]
    assert {ops["microbatch"][row] for row in rows} == {-1}
    assert ops["device"] == sorted(ops["device"])


def test_rows_of_operations_stay_those_of_the_same_operation() -> None:
    """Optimizers stand between the rows of devices: what names a row names it behind them."""
    full, bare = raw(gathered()), raw(evaluate(Pipeline(stages=4, batches=8), "1f1b"))

    def named(of: dict[str, Any], row: int) -> tuple[int, int, int]:
        ops = of["ops"]
        return ops["kind"][row], ops["stage"][row], ops["microbatch"][row]

    assert [named(full, row) for row in full["critical"]] == [
        named(bare, row) for row in bare["critical"]
    ]
    for needs, bare_needs in zip(full["needs"], bare["needs"], strict=True):
        own_needs = {
            named(full, row): named(full, need) for row, need in enumerate(needs) if need != -1
        }
        theirs = {
            named(bare, row): named(bare, need) for row, need in enumerate(bare_needs) if need != -1
        }
        assert own_needs == theirs
    gaps = full["gaps"]
    for start, following in zip(gaps["start"], gaps["following"], strict=True):
        assert following == -1 or full["ops"]["start"][following] > start


def test_collectives_are_rows_of_their_own() -> None:
    (chart,) = raw(gathered())["charts"]
    assert chart["heading"] == "collectives of every device, by stage, one at a time"
    rows = chart["rows"]
    assert rows["device"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert rows["start"] == [0, 35, 0, 33, 0, 31, 0, 29]
    assert rows["kind"] == [4, 5] * 4
    alone = raw(evaluate(Pipeline(stages=2, batches=2, optimizer=1), "1f1b"))
    assert alone["charts"] == []


def test_transfers_stand_by_their_link() -> None:
    """The script searches the rows of a line; two devices have two one-way links."""
    schedule = evaluate(Pipeline(stages=4, batches=6, p2p=1, link_mode="exclusive"), "zb-h1")
    (chart,) = raw(schedule)["charts"]
    assert chart["labels"] == ["0→1", "1→0", "1→2", "2→1", "2→3", "3→2"]
    rows = chart["rows"]
    assert rows["device"] == [link for link in range(6) for _ in range(6)]
    for link in range(6):
        own = [
            start for start, line in zip(rows["start"], rows["device"], strict=True) if line == link
        ]
        assert own == sorted(own)
    directions = set(zip(rows["device"], rows["source"], rows["target"], strict=True))
    assert directions == {(0, 0, 1), (1, 1, 0), (2, 1, 2), (3, 2, 1), (4, 2, 3), (5, 3, 2)}


def test_a_plain_pipeline_has_none_of_it() -> None:
    text = page([evaluate(Pipeline(stages=2, batches=2), "1f1b")])
    data = data_of(text)
    assert [kind["name"] for kind in data["style"]["kinds"]] == [kind.name for kind in OpKind]
    assert data["schedules"][0]["charts"] == []
    assert "UNSHARD" not in text
    assert 'data-layer="collectives"' not in text


def test_legend_and_figures() -> None:
    text = page([gathered()])
    for kind in (UNSHARD, SYNC, OPTIMIZER):
        assert f'data-name="{kind.name}"' in text
    assert "waiting for weights or gradients" in text
    assert "<dt>exposed</dt>" in text
    unsharded = page([evaluate(Pipeline(stages=2, batches=2, unshard=1), "1f1b")])
    assert 'data-name="UNSHARD"' in unsharded
    assert 'data-name="OPTIMIZER"' not in unsharded


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["1f1b", "zbv", "chimera"])
def test_drawn_in_their_colours(view: View, strategy: str) -> None:
    schedule = gathered(strategy)
    view.open(page([schedule]))
    drawn = view.shapes()
    last = schedule.pipeline.num_stages // 4
    for kind in (UNSHARD, SYNC, OPTIMIZER):
        parts = range(1 if kind is AuxiliaryKind.OPTIMIZER else last * schedule.pipeline.routes)
        tones = {rgb(colours.shade(kind, part, len(parts))) for part in parts}
        count = int((schedule.operations.kind == kind).sum())
        assert sum(drawn[tone] for tone in tones) >= count > 0
    assert view.run(f"return {QUEUES}.length") == 1
    view.press("g")
    assert view.run(f"return {QUEUES}.length") == 0
    view.quiet()


@pytest.mark.slow
def test_schedules_that_replace_others_bring_their_kinds(view: View) -> None:
    """As in the app, where a setting adds work around the microbatches."""
    view.open(page([evaluate(Pipeline(stages=4, batches=8), "1f1b")]))
    text = page([gathered()])
    start = text.index('id="data">') + len('id="data">')
    data = text[start : text.index("</script>", start)]
    view.run(
        "ppopt.replace(JSON.parse(arguments[0])); ppopt.show({on: new Set(['collectives'])})", data
    )
    view.settle()
    assert view.run(f"return {QUEUES}.length") == 1
    assert view.point(0, 34, 1, "collectives").startswith("1GRADIENT_SYNC")
    view.quiet()


@pytest.mark.slow
def test_pointing_at_them(view: View) -> None:
    view.open(page([gathered()]), "#on=collectives,memory")
    assert view.point(0, 34, 1, "collectives").splitlines() == [
        "1GRADIENT_SYNC reduction of gradients",
        "stage 1 · device 1",
        "start 33 · end 36 · duration 3",
        "gives back memory 1",
    ]
    assert view.point(0, 1, 2, "collectives").splitlines()[-1] == "takes memory 1"
    beside = view.point(0, 39 * 1.15, 2, "collectives").splitlines()
    assert beside[:2] == ["collectives of device 2", "2 operations, one at a time"]
    assert beside[2].startswith("busy 5 (")
    assert view.point(0, 38.5, 0).splitlines()[:3] == [
        "0OPTIMIZER optimizer step",
        "device 0",
        "start 38 · end 39 · duration 1",
    ]
    assert "waiting for weights or gradients" in view.point(0, 36.5, 0)
    assert view.point(0, 10, 0, "memory").splitlines()[-1] == "gathered weights 1"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["1f1b", "zbv", "chimera", "interleaved"])
def test_memory_is_that_of_the_schedule(view: View, strategy: str) -> None:
    """Step by step, and at the peak."""
    schedule = gathered(strategy)
    view.open(page([schedule]))
    for device in range(4):
        run = f"const m = ppopt.schedules[0].memory({device}); return [m.time, m.total]"
        time, total = (np.array(column) for column in view.run(run))
        profile = memory_profile(schedule, device)
        at = np.searchsorted(time, profile.time, side="right") - 1
        assert total[at].tolist() == profile.level.tolist()
        assert total.max() == schedule.metrics.peak_memory_ticks[device]
    view.quiet()
