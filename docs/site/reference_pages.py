"""Reference pages, written from the program when the site is built: they cannot go stale.

Where the source of a page holds `<!-- commands -->` or `<!-- python -->`, the build puts in its
place every command with its options, or every public name with its docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import groupby

import typer

import ppopt
from ppopt.cli.program import application
from ppopt.problem.cost_table import LAYER_COSTS, STAGE_COSTS

GROUPS = {
    "Describe a pipeline": ("Pipeline", "Model", "Layer", "read_model", "read_pipeline", "models"),
    "Search": ("solve", "Result", "Status", "Objective", "SolveParams", "Progress", "stop"),
    "Strategies": ("evaluate", "strategies", "Options", "baseline", "Baseline"),
    "Schedules": ("Schedule", "Metrics", "Op", "OpKind", "read_schedule"),
    "Check": ("verify", "Violation", "Rule", "explain", "recheck", "Recheck", "Verdict", "Claim"),
    "Compare and choose": (
        *("compare", "Comparison", "ComparisonRow", "jitter", "Jitter"),
        *("MicrobatchOrders", "MicrobatchOrder"),
        *("frontier", "Frontier", "FrontierPoint", "FrontierBaseline"),
        *("plan", "Plan", "PlanRow", "RowStatus", "PlanSpace", "PlanConfiguration"),
        *("LeastMemory", "MoreMemory", "WithinShare"),
        *("sweep", "Study", "SweepRow", "best_choice", "StrategyChoice"),
    ),
    "Errors": (
        *("PpoptError", "InputError", "ConflictError", "DeadlockError", "NotApplicableError"),
        *("RunError", "VerificationError"),
    ),
}
"""Public names by what one does with them; those named in no group end the page."""


def fill(_: object, __: str, source: list[str]) -> None:
    """Replace the marks in the source of a page."""
    for mark, write in (("commands", commands), ("python", python)):
        if f"<!-- {mark} -->" in source[0]:
            source[0] = source[0].replace(f"<!-- {mark} -->", "\n".join(write()))


def commands() -> Iterator[str]:
    """Every command with its arguments and options, in the order and the groups of `--help`."""
    group = typer.main.get_command(application())
    for name in group.list_commands(None):
        command = group.commands[name]
        context = command.make_context(f"ppopt {name}", [], resilient_parsing=True)
        usage = " ".join([context.info_name, *command.collect_usage_pieces(context)])
        yield f"## {name}\n\n{_escaped(command.help)}\n\n```text\n{usage}\n```\n"
        for panel, options in groupby(command.params, key=lambda option: option.rich_help_panel):
            records = [record for option in options if (record := option.get_help_record(context))]
            if panel and records:
                yield f"### {panel} of `{name}`\n"
            for usage, meaning in records:
                yield f"`{usage}`\n: {_escaped(meaning)}\n"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it stands, but for code between backticks."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<>\[\]|#])", r"\\\1", part) for part in parts
    )


def python() -> Iterator[str]:
    """Every public name, by group, for autodoc."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = tuple(name for name in ppopt.__all__ if name not in {*grouped, "__version__"})
    for title, names in {**GROUPS, "Further": rest}.items():
        yield f"## {title}\n"
        for name in names:
            yield f"```{{eval-rst}}\n{_autodoc(name, getattr(ppopt, name))}\n```\n"


def _autodoc(name: str, value: object) -> str:
    if inspect.ismodule(value) and callable(value):
        return f".. py:function:: ppopt.{name}()\n\n   {inspect.getdoc(type(value).__call__)}"
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:"
    if inspect.isclass(value):
        fields_of_base = "\n   :inherited-members: object" if name == "Pipeline" else ""
        return f".. autoclass:: ppopt.{name}\n   :members:{fields_of_base}\n{_costs(name)}"
    return f".. autofunction:: ppopt.{name}"


def _costs(name: str) -> str:
    """The costs that are fields of a class, without those that its own source describes."""
    costs = {
        "Pipeline": [(cost.field, cost.meaning, cost.default) for cost in STAGE_COSTS],
        "Layer": [(cost.field, cost.layer_meaning, cost.layer_default) for cost in LAYER_COSTS],
    }
    return "".join(
        f"\n   .. py:attribute:: {field}\n\n      {meaning} (default: {default.value_or_rule})\n"
        for field, meaning, default in costs.get(name, ())
        if field not in getattr(ppopt, name).__annotations__
    )
