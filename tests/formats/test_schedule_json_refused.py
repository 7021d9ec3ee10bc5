"""Every way in which a schedule file can be wrong is told on one line that names the place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.formats.schedule_json import dumps, loads, read_schedule, schedule_to_object
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import verify
from tests.formats.schedule_text import OPTIONAL, TWO_BY_ONE, document, refuse, tiny


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """The sample with one value changed, or deleted where `value` is ..."""
    file = copy.deepcopy(document())
    *parents, last = path
    inner: Any = file
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return file


PIPELINE = "pipeline"
HINT = {"value": 33, "gain": None, "fits_limit": True, "peak_memory": [4, 3.5], "notes": ["x"]}
"""What the origin of a schedule found from another one says of that."""
BAD_VALUES = [
    (("schema",), 3, "schema: 3 is not 1 or 2, those that are read"),
    (("schema",), True, "schema: True is not 1 or 2"),
    (("schema",), "1", "schema: '1' is not 1 or 2"),
    (("ticks_per_unit",), 0, "ticks_per_unit: 0 is not within 1 .."),
    (("ticks_per_unit",), 1.5, "ticks_per_unit: 1.5 is not a whole number"),
    (("ticks_per_unit",), 2**53 + 1, "ticks_per_unit: 9007199254740993 is not within"),
    (("memory_ticks_per_unit",), None, "memory_ticks_per_unit: None is not a whole number"),
    (("pipelines",), {}, "unknown key 'pipelines'; did you mean pipeline?"),
    ((PIPELINE,), [], "pipeline: [] is not an object {...}"),
    ((PIPELINE, "stage"), 2, "pipeline: unknown key 'stage'; did you mean stages?"),
    ((PIPELINE, "stages"), 0, "pipeline: stages: 0 is not within 1 .. 10000000"),
    ((PIPELINE, "stages"), 10**8, "pipeline: stages: 100000000 is not within"),
    ((PIPELINE, "stages"), 3, "pipeline: forward_times: has 2 entries; 3 are needed"),
    ((PIPELINE, "batches"), True, "pipeline: batches: True is not a whole number"),
    ((PIPELINE, "batches"), 10**7, "pipeline: stages x microbatches is above 10000000"),
    ((PIPELINE, "devices"), 3, "pipeline: mem_limit: has 2 entries; 3 are needed"),
    ((PIPELINE, "devices"), 1, "pipeline: mem_limit: has 2 entries; 1 are needed"),
    ((PIPELINE, "routes"), 3, "pipeline: routes: 3 is not within 1 .. 2"),
    ((PIPELINE, "routes"), 2, "pipeline: batches: 1 is odd; two routes need an even number"),
    ((PIPELINE, "placement"), "v", "pipeline: placement: 'v' is not a list"),
    ((PIPELINE, "placement"), [0, 2], "pipeline: placement: entry 1: 2 is not within 0 .. 1"),
    ((PIPELINE, "placement"), [0, 0], "pipeline: placement: is not that of placement_name"),
    ((PIPELINE, "placement"), [1, 0], "pipeline: placement: is not that of placement_name"),
    ((PIPELINE, "placement"), [1, 1], "pipeline: placement: device 0 hosts no stage"),
    ((PIPELINE, "placement_name"), "w", "pipeline: placement_name: 'w' is unknown; use linear,"),
    ((PIPELINE, "placement_name"), [], "pipeline: placement_name: [] is unknown"),
    ((PIPELINE, "placement_name"), "v", "pipeline: placement: is not that of placement_name"),
    ((PIPELINE, "chunks"), 2, "pipeline: placement: is not that of placement_name and chunks"),
    ((PIPELINE, "chunks"), 3, "pipeline: chunks: 3 is not within 1 .. 2"),
    ((PIPELINE, "chunks"), False, "pipeline: chunks: False is not a whole number"),
    ((PIPELINE, "forward_times"), [0, 3], "pipeline: forward: stage 0: 0 is not above 0"),
    ((PIPELINE, "forward_times"), [-1, 3], "pipeline: forward_times: entry 0: -1 is not within"),
    (
        (PIPELINE, "activation"),
        [-1, 3],
        "entry 0: -1 is not within 0 .. 9007199254740992: it is neg",
    ),
    ((PIPELINE, "static"), [2**53 + 1, 0], "above 2^53 figures are not exact"),
    ((PIPELINE, "forward_times"), [2, 1.0], "pipeline: forward_times: entry 1: 1.0 is not a wh"),
    ((PIPELINE, "forward_times"), 2, "pipeline: forward_times: 2 is not a list"),
    ((PIPELINE, "forward_times"), [2], "pipeline: forward_times: has 1 entries; 2 are needed"),
    ((PIPELINE, "weight_times"), [10**40, 2], "pipeline: weight_times: entry 0: 1000000000"),
    ((PIPELINE, "p2p_time"), -1, "pipeline: p2p_time: -1 is not within 0"),
    ((PIPELINE, "p2p_time"), "1", "pipeline: p2p_time: '1' is not a whole number"),
    ((PIPELINE, "p2p_time"), [[0, 1]], "pipeline: p2p_time: has 1 rows; 2 are needed"),
    ((PIPELINE, "p2p_time"), [[0, 1], 1], "pipeline: p2p_time: row 1: 1 is not a list"),
    ((PIPELINE, "p2p_time"), [[0, 1], [1]], "pipeline: p2p_time: row 1: has 1 entries; 2 are"),
    ((PIPELINE, "p2p_time"), [[1, 1], [1, 0]], "pipeline: p2p: device 0 to itself must be 0"),
    ((PIPELINE, "memory_b"), [-5, 0], "pipeline: memory_b: stage 0: -1.25 frees more"),
    ((PIPELINE, "activation"), [2**53, 4], "pipeline: memory: too large or too finely divided"),
    ((PIPELINE, "static"), [8, None], "pipeline: static: entry 1: None is not a whole number"),
    ((PIPELINE, "mem_limit"), [12, -1], "pipeline: mem_limit: entry 1: -1 is not within 0"),
    ((PIPELINE, "mem_limit"), 12, "pipeline: mem_limit: 12 is not a list"),
    ((PIPELINE, "mem_limit"), [12, 16], "pipeline: mem_limit: is not what mem_limit_given '1f1b'"),
    ((PIPELINE, "mem_limit_given"), "2f2b", "pipeline: mem_limit_given: '2f2b' is unknown"),
    ((PIPELINE, "mem_limit_given"), [], "pipeline: mem_limit_given: [] is unknown"),
    ((PIPELINE, "name"), 5, "pipeline: name: 5 is not text"),
    ((PIPELINE, "rounded"), ["speed"], "pipeline: rounded: ['speed'] is not a list of fields"),
    ((PIPELINE, "rounded"), [[]], "pipeline: rounded: [[]] is not a list of fields"),
    ((PIPELINE, "rounded"), "p2p", "pipeline: rounded: 'p2p' is not a list of fields"),
    (("origin",), [], "origin: [] is not an object {...}"),
    (("origin", "strategy"), 5, "origin: strategy: 5 is not text"),
    (("origin", "objective"), "speed", "origin: objective: 'speed' is unknown; use makespan or"),
    (("origin", "lower_bound"), "12", "origin: lower_bound: '12' is not a finite number"),
    (("origin", "gap"), 10**400, "origin: gap: 1000000000"),
    (("origin", "hint"), 33, "origin: hint: 33 is not an object {...}"),
    (("origin", "hint"), {"value": 33}, "origin: hint: gain is missing"),
    (("origin", "hint"), HINT | {"value": "33"}, "origin: hint: value: '33' is not a finite"),
    (("origin", "hint"), HINT | {"gain": "0"}, "origin: hint: gain: '0' is not a finite number"),
    (("origin", "hint"), HINT | {"notes": "none"}, "origin: hint: notes: 'none' is not a list"),
    (("origin", "hint"), HINT | {"peak_memory": [None]}, "hint: peak_memory: entry 0: None is not"),
    (("origin", "hint"), HINT | {"fits_limit": 1}, "origin: hint: fits_limit: 1 is neither true"),
    (("origin", "seed"), 1.5, "origin: seed: 1.5 is not a whole number"),
    (
        ("origin", "backward_kind"),
        1,
        "origin: backward_kind: 1 is unknown; use mixed or split or whole",
    ),
    (("origin", "versions"), "1", "origin: versions: '1' is not an object {...}"),
    (("origin", "versions"), {"ortools": 9}, "origin: versions: ortools: 9 is not text"),
    (("origin", "versions"), {"a\nb": None}, "origin: versions: 'a\\nb': None is not text"),
    (("claims",), 33, "claims: 33 is not an object {...}"),
    (("claims", "makespan "), 33, "claims: unknown key 'makespan '; did you mean makespan?"),
    (("claims", "makespan"), 33.0, "claims: makespan: 33.0 is not a whole number"),
    (("claims", "makespan"), 2**63, "claims: makespan: 9223372036854775808 is not within"),
    (("claims", "device_span"), None, "claims: device_span: None is not a whole number"),
    (("claims", "busy"), 6, "claims: busy: 6 is not a list"),
    (("claims", "busy"), [6], "claims: busy: has 1 entries; 2 are needed"),
    (("claims", "peak_memory"), [1, "2"], "claims: peak_memory: entry 1: '2' is not a whole"),
    (("claims", "bubble_rate"), "0.5", "claims: bubble_rate: '0.5' is not a finite number"),
    (("claims", "bubble_overhead"), True, "claims: bubble_overhead: True is not a finite number"),
    (("claims", "bubble_overhead"), 10**400, "claims: bubble_overhead: 1000000"),
    (("ops",), {}, "ops: {} is not a list"),
    (("ops",), None, "ops: None is not a list"),
    (("ops", 3), "F", "ops[3]: 'F' is not [kind, stage, microbatch, device, start, end]"),
    (("ops", 3), ["F", 0, 0, 0, 0], "ops[3]: ['F', 0, 0, 0, 0] is not [kind, stage,"),
    (("ops", 0), ["F", 0, 0, 0, 0, 2, 1, 0, None], "ops[0]: route: 1 is not 0, that of microbatch"),
    (("ops", 0), ["F", 0, 0, 0, 0, 2, 0, 0, "a"], "ops[0]: pair: 'a' is not a whole number"),
    (("ops", 0), ["F", 0, 0, 0, 0, 2, 0, None, None], "ops[0]: slice: None is not a whole number"),
    ((PIPELINE, "slices"), 0, "slices: 0 is not within"),
    ((PIPELINE, "overlap_times"), [4], "overlap_times: has 1 entries; 2 are needed"),
    ((PIPELINE, "overlap_times"), [0, 9], "overlap: stage 0: 0 is not above 0"),
    ((PIPELINE, "overlap_times"), [[3, 9]], "overlap_times: has 1 rows; 2 are needed"),
    ((PIPELINE, "overlap_times"), [[3, 9], 4], "overlap_times: row 1: 4 is not a list"),
    ((PIPELINE, "overlap_times"), [[3, 9], [4]], "overlap_times: row 1: has 1 entries; 2 are"),
    (("ops", 1), ["UNSHARD", 0, 0, 0, 0, 1], "ops[1]: microbatch: UNSHARD has none; write null"),
    (("ops", 1), ["OPTIMIZER", 0, None, 0, 0, 1], "ops[1]: stage: OPTIMIZER has none; write null"),
    (("ops", 1), ["OFFLOAD", 0, None, 0, 0, 1], "ops[1]: microbatch: None is not a whole number"),
    (
        ("ops", 1),
        ["SEND_F", 0, 0, 0, 0, 1],
        "is not [kind, stage, microbatch, device, start, end, r",
    ),
    (
        ("ops", 1),
        ["SEND_F", 0, 0, 0, 0, 1, 0, 0, 3, 1],
        "ops[1]: pair: SEND_F has none",
    ),
    (("ops", 1), ["SEND_F", 0, 0, 0, 0, 1, 0, 0, None, None], "ops[1]: link: None is not a whole"),
    (("ops", 1), ["F", 0, 0, 0, 0, 1, 0, 0, None, 1], "ops[1]: link: F has none; write null"),
    (("ops", 3), ["F", 0, 0, 0, 0, 1, {}], "or this with route, slice, pair behind it"),
    (("ops", 1, 0), "I", "ops[1]: kind 'I' is unknown; use F, B, W, BW"),
    (("ops", 1, 0), "f", "ops[1]: kind 'f' is unknown"),
    (("ops", 1, 0), 3, "ops[1]: kind 3 is unknown"),
    (("ops", 1, 0), [], "ops[1]: kind [] is unknown"),
    (("ops", 4, 1), None, "ops[4]: stage: None is not a whole number of at most 2^62"),
    (("ops", 4, 2), True, "ops[4]: microbatch: True is not a whole number"),
    (("ops", 4, 3), "0", "ops[4]: device: '0' is not a whole number"),
    (("ops", 4, 4), 1.0, "ops[4]: start: 1.0 is not a whole number"),
    (("ops", 4, 5), 2**63, "ops[4]: end: 9223372036854775808 is not a whole number of at most"),
    (("ops", 4, 5), -(2**62) - 1, "ops[4]: end: -4611686018427387905 is not a whole number"),
    (("ops", 4, 5), 10**1000, "ops[4]: end: 1000000"),
]
REQUIRED = [
    *[(key,) for key in ("schema", "ticks_per_unit", "memory_ticks_per_unit", PIPELINE, "ops")],
    *[(PIPELINE, key) for key in schedule_to_object(tiny())[PIPELINE] if key not in OPTIONAL],
]


class TestRefused:
    @pytest.mark.parametrize(("path", "value", "expected"), BAD_VALUES)
    def test_values(self, path: tuple[Any, ...], value: object, expected: str) -> None:
        assert expected in refuse(changed(path, value))

    @pytest.mark.parametrize("path", REQUIRED)
    def test_missing(self, path: tuple[str, ...]) -> None:
        assert refuse(changed(path, ...)).endswith(f"{path[-1]} is missing")

    @pytest.mark.parametrize("whole", [[], None, 5, "x"])
    def test_no_object(self, whole: object) -> None:
        assert "is not an object {...}" in refuse(whole)

    def test_chunks_without_a_name(self) -> None:
        file = changed((PIPELINE, "placement_name"), None)
        file[PIPELINE]["chunks"] = 1
        assert refuse(file) == (
            "pipeline: chunks: does not go with a placement list; set it to null"
        )

    @pytest.mark.parametrize("speeds", [2, [[1, 1]], [[1, 1], [0, 1]], [[1, 1], [1]], [1, 2]])
    def test_speeds(self, speeds: object) -> None:
        file = document()
        file[PIPELINE]["device_speed"] = speeds
        assert refuse(file).startswith("pipeline: device_speed: ")

    def test_devices_that_host_nothing(self) -> None:
        file = changed((PIPELINE, "placement_name"), None)
        file[PIPELINE].update(devices=3, mem_limit=None, p2p_time=0)
        file["claims"] = {}
        assert refuse(file) == "pipeline: devices: is 3, but placement has 2"

    def test_cut_short_anywhere(self) -> None:
        for length in range(1, len(TWO_BY_ONE) - 2):
            with pytest.raises(InputError, match=r"^a.json: line \d+: not JSON: .*$"):
                loads(TWO_BY_ONE[:length], "a.json")

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ('"makespan": 15', '"makespan": NaN', "NaN is not a number that JSON knows"),
            ('"makespan": 15', '"makespan": 1e999', "a number or a character code is out of rang"),
            ('"makespan": 15', f'"makespan": {"9" * 5000}', "a number or a character code is out"),
            ('"p2p_time": 1,', '"p2p_time": 1, "p2p_time": 1,', "key 'p2p_time' is given twice"),
            ('"ops": [', '"ops": [' + "[" * 100_000, "nested too deeply"),
            ('"name": "tiny"', '"name": "\\ud800"', "half of a surrogate pair"),
        ],
    )
    def test_texts(self, old: str, new: str, expected: str) -> None:
        with pytest.raises(InputError) as caught:
            loads(TWO_BY_ONE.replace(old, new), "a.json")
        assert str(caught.value).startswith("a.json: ")
        assert expected in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [(b"", "the file is empty"), (b"\xff{}", "line 1: not UTF-8 text")],
    )
    def test_files(self, tmp_path: Path, content: bytes, expected: str) -> None:
        path = tmp_path / "a.json"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_schedule(path)
        assert str(caught.value).startswith(f"{path}: {expected}")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the innermost ones included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [
        position
        for key, entry in inner
        for position in (
            (*path, key),
            *(places(entry, (*path, key)) if isinstance(entry, dict | list) else ()),
        )
    ]


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.sampled_from(["F", "v", "default", "1f1b", "list", "number"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.sampled_from(places(schedule_to_object(tiny()))), junk)
@settings(deadline=None)
def test_any_change_is_read_or_refused(path: tuple[Any, ...], value: object) -> None:
    """Nothing but InputError comes of a reader; what is read can be verified and written."""
    outcome = read_or_refusal(json.dumps(changed(path, value)))
    if isinstance(outcome, str):
        assert outcome.startswith("x: ")
        assert "\n" not in outcome
    else:
        schedule, claims = outcome
        verify(schedule, claims)
        assert loads(dumps(schedule), "x")[0] == schedule


def read_or_refusal(text: str) -> tuple[Schedule, dict[str, Any]] | str:
    try:
        return loads(text, "x")
    except InputError as error:
        return str(error)
