"""The command that orders the microbatches of training steps."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppopt import interrupts
from ppopt.cli.application import command
from ppopt.cli.options import argument, option
from ppopt.cli.settings import Settings, settings_but
from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import within
from ppopt.problem.setting import Heading

if TYPE_CHECKING:
    from ppopt.studies.microbatch_order import MicrobatchOrders

LARGEST_FILE = 2**28
DIGITS = 9
"""Significant digits of the figures in lines."""


@command(
    settings_but(
        *("mem_limit", "objective", "backward_kind", "fused", "time_limit", "workers", "seed"),
        *("output", "batches", "microbatch_times", "microbatch_memory", "order"),
    ),
    file=argument(
        "FILE",
        "One training step per line: a list of JSON with one entry per microbatch, its number of "
        "tokens or a list with the lengths of its documents. `-`: standard input.",
    ),
    strategy=option(
        "STRATEGY",
        "Strategy that the trainer runs; `ppopt strategies` lists them.",
        Heading.STRATEGIES,
        show_default=True,
    ),
    json=option("", "", hidden=True),
    quiet=option("", "", hidden=True),
)
def order(
    settings: Settings,
    file: str,
    strategy: str = "1f1b",
) -> int:
    """Order the microbatches of training steps.

    For every line it prints one line of JSON: `order` (the microbatch that runs k-th),
    `makespan`, `given` (the makespan in the order of the line) and `lower_bound` (in any order).
    The times of the stages are those of one document of --reference-tokens. Example: `ppopt order
    steps.jsonl --stages 8 --reference-tokens 8192 --attention-share 0.2`.
    """
    from ppopt.formats.config import pipeline_of
    from ppopt.studies.microbatch_order import MicrobatchOrders

    values = {**settings.values, "batches": 1}
    lengths = {key: values.pop(key, None) for key in ("attention_share", "reference_tokens")}
    orders = MicrobatchOrders(pipeline_of(values), strategy, **lengths)
    with interrupts.heard():
        if file == "-":
            for number, line in enumerate(sys.stdin, 1):
                print(_line(orders, line, f"standard input: line {number}"), end="", flush=True)
            return 0
        text, where = read_text(Path(file), LARGEST_FILE), label(Path(file))
        lines = enumerate(text.splitlines(), 1)
        printed = [_line(orders, line, f"{where}: line {number}") for number, line in lines]
    print("".join(printed), end="")
    return 0


def _line(orders: MicrobatchOrders, line: str, where: str) -> str:
    """The order of a step as a line of JSON; nothing for an empty line."""
    if not line.strip():
        return ""
    result = within(where, orders.of_lengths, _parsed(line, where))
    keys = {field.name: field.name for field in fields(result)} | {"listed_makespan": "given"}
    values = {key: _rounded(getattr(result, name)) for name, key in keys.items()}
    return json.dumps(values) + "\n"


def _parsed(line: str, where: str) -> object:
    """A line of JSON; raises InputError that names the line in the file once."""
    try:
        return parse_json(line.strip(), where)
    except InputError as error:
        raise InputError(str(error).replace(f"{where}: line 1: ", f"{where}: ", 1)) from None


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
