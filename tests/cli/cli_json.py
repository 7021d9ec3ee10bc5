"""Keys and types of what commands print with --json."""

from __future__ import annotations

from types import NoneType
from typing import Any

import pytest

INT = (int,)
NUMBER = (int, float)
TEXT = (str,)
LIST = (list,)
OBJECT = (dict,)
FLAG = (bool,)
LIST_OR_NULL = (list, type(None))
TEXT_OR_NULL = (str, type(None))

KNOWN_TEXT = (str, NoneType)
KNOWN_NUMBER = (int, float, NoneType)
THROUGHPUT = {
    "time_unit": KNOWN_TEXT,
    "memory_unit": KNOWN_TEXT,
    "tokens_per_second": KNOWN_NUMBER,
    "tokens_per_second_per_device": KNOWN_NUMBER,
    "mfu": KNOWN_NUMBER,
}
"""Null where the pipeline does not say enough."""
COMMON = {
    "schema": INT,
    "status": TEXT,
    "objective": TEXT,
    "value": NUMBER,
    "makespan": NUMBER,
    "device_span": NUMBER,
    "bubble_rate": NUMBER,
    "bubble_overhead": NUMBER,
    "peak_memory": LIST,
    "mem_limit": LIST,
    "exposed": KNOWN_NUMBER,
    "idle": OBJECT,
    "imbalance": OBJECT,
    "seed": INT,
    "workers": INT,
    "versions": OBJECT,
    "solve_seconds": NUMBER,
    "schedule": OBJECT,
    "verified": FLAG,
} | THROUGHPUT
"""Keys of `--json` and the types of their values, by section 4 of the design."""
PLACED = {
    "partition": LIST_OR_NULL,
    "layout": TEXT_OR_NULL,
    "placement": TEXT,
    "chunks": INT,
    "recompute": LIST_OR_NULL,
    "recomputed_layers": LIST_OR_NULL,
    "offload": LIST_OR_NULL,
    "offloaded_layers": LIST_OR_NULL,
    "link_mode": TEXT,
}
BOUND = {"lower_bound": NUMBER, "gap": NUMBER, "proof": TEXT, "baseline": (dict, NoneType)}
ROUTES = {"routes": INT}
SOLVED = COMMON | PLACED | ROUTES | BOUND | {"backward_kind": TEXT}
OF_SOLVE = SOLVED | {"elsewhere": (dict, NoneType)}
EVALUATED = COMMON | PLACED | ROUTES | {"strategy": TEXT, "fits_limit": FLAG, "options": OBJECT}
RATED = {
    "fits_limit": FLAG,
    "ratio_to_best": NUMBER,
    "ratio_to_optimum": KNOWN_NUMBER,
    "optimum_proved": FLAG,
    "communication": INT,
}
VERIFIED = {
    key: COMMON[key]
    for key in (
        *("schema", "verified", "makespan", "device_span"),
        *("bubble_rate", "bubble_overhead", "peak_memory", "mem_limit", "exposed"),
        *THROUGHPUT,
    )
} | {"violations": LIST, "measured": FLAG, "fits_limit": FLAG, **PLACED}
UNSOLVED = (
    *("value", "lower_bound", "gap", "makespan", "device_span"),
    *("bubble_rate", "bubble_overhead", "peak_memory", "idle", "imbalance", "schedule"),
)
"""Keys that are null where no schedule was found."""


def assert_types(output: dict[str, Any], table: dict[str, tuple[type, ...]]) -> None:
    assert {
        key: type(value) for key, value in output.items() if type(value) not in table[key]
    } == {}
    assert output.keys() == table.keys()


HEADLINE = dict.fromkeys(("given", "runs_today", "optimum"), OBJECT)
"""Rows that `compare` and `plan` open with."""
_HEADLINE_ROW = (
    {key: COMMON[key] for key in ("status", "objective", "value", "makespan", "device_span")}
    | {key: COMMON[key] for key in ("bubble_rate", "peak_memory", "time_unit", "memory_unit")}
    | {key: COMMON[key] for key in ("tokens_per_second", "mfu")}
    | {key: PLACED[key] for key in ("partition", "layout", "placement", "chunks", "recompute")}
    | {
        "strategy": KNOWN_TEXT,
        "lower_bound": KNOWN_NUMBER,
        "gap": KNOWN_NUMBER,
        "fits_limit": FLAG,
        "offload": LIST_OR_NULL,
        "batches": INT,
        "value_per_microbatch": NUMBER,
        "gain": KNOWN_NUMBER,
        "changes": LIST,
    }
)


def assert_headline(output: dict[str, Any]) -> None:
    """The rows of a headline have their keys, and gains agree with the times."""
    for key in HEADLINE:
        row = output[key]
        assert_types(row, _HEADLINE_ROW | ({"runtime": TEXT} if key == "runs_today" else {}))
        if key == "given":
            assert (row["gain"], row["changes"]) == (None, [])
        else:
            times = output["given"]["value_per_microbatch"], row["value_per_microbatch"]
            assert row["gain"] == pytest.approx(times[0] / times[1] - 1)


PARALLELISM = {
    "tokens_per_second_per_gpu": KNOWN_NUMBER,
    "bound_tokens_per_second_per_gpu": KNOWN_NUMBER,
    "architecture": TEXT,
    "gpu": TEXT,
    "gpus": INT,
    "global_batch": INT,
    "rows": LIST,
    "skipped": LIST,
    "skipped_by_reason": LIST,
    "not_searched": LIST,
    "storage": (dict, NoneType),
}
"""Keys of `parallelism` of `plan --from config.json`."""
PARALLEL_ROW = {
    **dict.fromkeys(
        ("tensor", "microbatch", "data", "context", "expert", "devices", "batches"), INT
    ),
    **dict.fromkeys(
        ("compute", "communication", "bubble", "gradient_sync", "optimizer"), KNOWN_NUMBER
    ),
    **dict.fromkeys(("failed", "overlap", "strategy"), KNOWN_TEXT),
    "status": TEXT,
    "searches": INT,
    "value": KNOWN_NUMBER,
    "lower_bound": KNOWN_NUMBER,
    "tokens_per_second_per_gpu": KNOWN_NUMBER,
    "bound_tokens_per_second_per_gpu": KNOWN_NUMBER,
    "configuration": KNOWN_TEXT,
    "peak_memory": KNOWN_NUMBER,
    "seconds": NUMBER,
}
