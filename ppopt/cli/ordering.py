"""The command that orders the microbatches of training steps."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ppopt.cli.application import EXIT_UNKNOWN, command
from ppopt.cli.settings import Settings, with_settings_but
from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json
from ppopt.formats.fields import within
from ppopt.problem.settings import Heading
from ppopt.solver import interrupts

if TYPE_CHECKING:
    from ppopt.studies.microbatch_order import MicrobatchOrders

DIGITS = 9
"""Significant digits of the figures in lines."""


@command
@with_settings_but(
    *("mem_limit", "objective", "backward_kind", "time_limit", "workers", "seed", "output"),
    *("microbatch_times", "microbatch_memory", "order", "json", "quiet"),
    batches="ignored: every line has its own number of microbatches",
)
def order(
    settings: Settings,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="One training step per line: a list of JSON with one entry per microbatch, its "
            "number of tokens or a list with the lengths of its documents. `-`: standard input.",
        ),
    ],
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="STRATEGY",
            help="Hand strategy that the trainer runs; `ppopt strategies` lists them.",
            show_default=True,
            rich_help_panel=Heading.STRATEGIES,
        ),
    ] = "1f1b",
) -> int:
    """Order the microbatches of training steps.

    For every line of FILE it prints one line of JSON: `order` (the microbatch that runs k-th),
    `makespan`, `given` (the makespan in the order of the line) and `lower_bound` (in any order).
    The times of the stages are those of one document of --reference-tokens. Example: `ppopt order
    steps.jsonl --stages 8 --reference-tokens 8192 --attention-share 0.2`.
    """
    from ppopt.formats.config import pipeline_of
    from ppopt.studies.microbatch_order import MicrobatchOrders

    values = {**settings.values, "batches": 1}
    lengths = {key: values.pop(key, None) for key in ("attention_share", "reference_tokens")}
    orders = MicrobatchOrders(pipeline_of(values), strategy, **lengths)
    interrupts.only_record()
    with nullcontext(sys.stdin) if file == "-" else _opened(Path(file)) as lines:
        for number, line in enumerate(lines, 1):
            if interrupts.pressed():
                return EXIT_UNKNOWN
            if line.strip():
                print(_line(orders, line, f"{file}: line {number}"), flush=True)
    return 0


def _opened(path: Path) -> TextIO:
    """Open a file of lines; raises InputError if it cannot be read."""
    try:
        return path.open(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise InputError(f"{label(path)}: cannot be read: {reason}") from None


def _line(orders: MicrobatchOrders, line: str, where: str) -> str:
    """The order of a step as a line of JSON."""
    found = within(where, orders.of_lengths, parse_json(line, where))
    return json.dumps({key: _rounded(value) for key, value in asdict(found).items()})


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
