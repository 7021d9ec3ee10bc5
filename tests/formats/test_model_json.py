"""The model in layers in schedule files: read and written back equal, defects refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppopt
from ppopt.errors import InputError
from ppopt.formats import schedule_json
from ppopt.problem.layer import Layer
from ppopt.problem.pipeline import Model
from tests.factories.models import TINY, models


@given(models(), st.data())
@settings(deadline=None)
def test_pipelines_are_restored_equal(model: Model, data: st.DataObject) -> None:
    devices = data.draw(st.integers(1, max(1, len(model) // 2)))
    placement = data.draw(st.sampled_from([None, "linear", "interleaved", "v"]))
    if devices * (2 if placement in ("interleaved", "v") else 1) > len(model):
        placement = None
    limit = data.draw(st.sampled_from([None, "1f1b", 999])) if model.has_activation else None
    delay = "0.3" if devices > 1 else 0
    factors = data.draw(st.sampled_from([None, (1, 2), ("0.5", "1.3")]))
    memory = None if any(layer.frozen for layer in model.layers) else factors
    pipe = model.pipeline(
        devices=devices, batches=2, placement=placement, p2p=delay, mem_limit=limit,
        microbatch_memory=memory,
    )  # fmt: skip
    strategy = {"interleaved": "looped-bfs", "v": "1f1b-v"}.get(str(placement), "gpipe")
    schedule = ppopt.evaluate(pipe, strategy)
    restored, _ = schedule_json.loads(schedule_json.dumps(schedule), "x")
    assert restored.pipeline == schedule.pipeline
    assert restored == schedule


def test_the_limit_of_1f1b_depends_on_the_layers() -> None:
    """BW allocates 5 - 1 for the first layer or 2 for the second one; with three times the memory
    5 - 3 or 6, which does not follow from the costs of the stage."""
    layers = [
        Layer(forward=1, activation=2, workspace=5),
        Layer(forward=1, activation=3, recompute={"activation": 1}),
    ]
    pipe = Model(layers).pipeline(devices=1, batches=2, mem_limit="1f1b", microbatch_memory=(1, 3))
    assert pipe.limits == (3 * (2 + 1) + 6,)
    schedule = ppopt.evaluate(pipe, "1f1b")
    restored, _ = schedule_json.loads(schedule_json.dumps(schedule), "x")
    assert restored.pipeline == schedule.pipeline and restored.pipeline.mem_limit == "1f1b"


def test_what_was_rounded_is_kept() -> None:
    model = Model((Layer(forward="1.00000051", count=2), Layer(forward=1)))
    pipe = model.pipeline(devices=2, batches=2)
    assert pipe.rounded == ("forward",)
    schedule = ppopt.evaluate(pipe, "gpipe")
    restored, _ = schedule_json.loads(schedule_json.dumps(schedule), "x")
    assert restored.pipeline == schedule.pipeline


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """A schedule of a tiny model on two devices as an object of JSON."""
    return schedule_json.schedule_to_object(
        ppopt.evaluate(TINY.pipeline(devices=2, batches=2), "gpipe")
    )


def test_a_rule_that_cuts_otherwise_now_is_read_as_its_counts(document: dict[str, Any]) -> None:
    """Another version may break ties of `balanced` in another way."""
    changed = copy.deepcopy(document)
    changed["origin"]["model"]["partition"] = "even"
    read, _ = schedule_json.schedule_from_object(changed)
    assert read.pipeline.partition == read.pipeline.counts == (4, 2)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no object": ({"": 3}, "3 is not an object"),
    "unknown key": ({"layer": 3}, "unknown key 'layer'; did you mean layers"),
    "no ticks": ({"ticks_per_unit": 0}, "ticks_per_unit: 0 is not within"),
    "no list": ({"layers": 3}, "layers: 3 is not a list"),
    "no layers": ({"layers": []}, "the list is empty"),
    "no layer": ({"layers": [3]}, "layer 0: 3 is not an object"),
    "huge count": ({"layers.0.count": 10**9}, "count: 1000000000 is not within"),
    "fraction": ({"layers.0.forward": 1.5}, "forward: 1.5 is not a whole number"),
    "role": ({"layers.0.role": []}, "role: [] is unknown"),
    "name": ({"layers.0.name": 3}, "name: 3 is not text"),
    "name of the model": ({"name": 3}, "name: 3 is not text"),
    "rounded": ({"layers.0.rounded": ["name"]}, "is not a list of costs"),
    "rounded what": ({"layers.0.rounded": [[]]}, "is not a list of costs"),
    "counts": ({"counts": [3, 3]}, "do not make the stages"),
    "number of counts": ({"counts": [6]}, "has 1 entries; 2 are needed"),
    "sum of counts": ({"counts": [4, 3], "partition": None}, "add up to 7"),
    "rule": ({"partition": 3}, "partition: 3 is not text"),
    "costs": ({"layers.0.forward": 2}, "do not make the stages"),
    "placement": ({"placement": "zigzag"}, "'zigzag' is unknown"),
    "no placement": ({"placement": {}}, "{} is unknown"),
    "chunks": ({"chunks": 0}, "chunks: 0 is not within"),
    "more chunks": ({"placement": "v", "chunks": 2}, "has 2 stages, the placement 4"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_models_are_refused(document: dict[str, Any], case: str) -> None:
    changes, message = BROKEN[case]
    broken = copy.deepcopy(document)
    for path, value in changes.items():
        *way, last = ["origin", "model", *path.split(".")] if path else ["origin", "model"]
        parent: Any = broken
        for key in way:
            parent = parent[int(key) if key.isdigit() else key]
        parent[last] = value
    with pytest.raises(InputError) as error:
        schedule_json.schedule_from_object(broken)
    assert str(error.value).startswith("origin: model: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
