"""Options of commands: how parameters of functions are shown, and those that commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import Parameter
from itertools import chain
from typing import Annotated, Any, Protocol

import typer

from ppopt.problem.setting import Heading

Function = Callable[..., int]
"""A command: its parameters are its options, its value is the exit code."""


def option(placeholder: str, meaning: str, heading: Heading | None = None, **more: Any) -> Any:
    """An option with a value, named as its parameter; `more` are arguments of `typer.Option`."""
    names = more.pop("names", ())
    return typer.Option(
        *names, metavar=placeholder or None, help=meaning, rich_help_panel=heading, **more
    )


def flag(meaning: str, heading: Heading | None = None) -> Any:
    """An option without a value."""
    return option("", meaning, heading)


def argument(placeholder: str, meaning: str, **more: Any) -> Any:
    """A word without a name."""
    return typer.Argument(metavar=placeholder, help=meaning, **more)


def output(meaning: str, placeholder: str = "FILE") -> Any:
    """The option with the file to write."""
    return option(placeholder, meaning, names=("-o", "--output"))


def names(text: str | None) -> tuple[str, ...] | None:
    """The words of a list, in small letters; None: it is not given."""
    if text is None:
        return None
    return tuple(word.strip().lower() for word in text.split(",") if word.strip())


def one_of(choices: Iterable[str | int]) -> Callable[[str], list[str]]:
    """Complete the beginning of a word, in a shell, to one of some words."""

    def complete(incomplete: str) -> list[str]:
        return [str(word) for word in choices if str(word).startswith(incomplete.lower())]

    return complete


def _model_names(incomplete: str) -> list[str]:
    from ppopt.formats.models import models  # noqa: PLC0415  commands load on use

    return one_of(models())(incomplete)


DETAILS_WITHOUT_PROOF = flag(
    "Also print exact figures and a table of idle time by cause.", Heading.OUTPUT
)
"""The option of commands that search no schedule."""
SHARED = {
    "config": option(
        "FILE",
        "Read a pipeline or a model from a YAML, JSON, TOML or CSV file; flags override it.",
        Heading.PIPELINE,
    ),
    "model": option(
        "NAME",
        "Read a bundled pipeline or model; see `ppopt models`.",
        Heading.PIPELINE,
        autocompletion=_model_names,
    ),
    "json": flag("Print one JSON object and nothing else.", Heading.OUTPUT),
    "quiet": flag(
        "Print neither progress nor results; --json still prints its object.", Heading.OUTPUT
    ),
    "jitter": option(
        "SHARE",
        "Also run each order under random times of this relative standard deviation, e.g. 0.1.",
        Heading.STRATEGIES,
    ),
    "details": flag(
        "Also print exact figures, the proof of a search, and a table of idle time by cause.",
        Heading.OUTPUT,
    ),
    "within": option(
        "SHARE",
        "Also report the minimum memory for a step within this slowdown, e.g. 1%.",
        Heading.SEARCH,
    ),
    "stages_from": option(
        "FILE:FUNCTION",
        "Your own model: a function that returns a ppopt.torch.Job (docs/pytorch.md).",
    ),
    "compile": option(
        "BACKEND", "With --stages-from: compile every stage with this backend, such as inductor."
    ),
    "device": option(
        "NAME", "With --stages-from: cpu (with gloo), or cuda (with NCCL, a GPU per process)."
    ),
}
"""Options of several commands, by the names of their parameters."""


class OptionGroup(Protocol):
    """Options that a command receives as one value, in its parameter `name`."""

    @property
    def name(self) -> str:
        """Name of the parameter."""

    def parameters(self, own: Collection[str]) -> Iterable[Parameter]:
        """The options; `own` are the names of the command's other parameters."""

    def value(self, **values: Any) -> Any:
        """What the command receives, from the values of the options by their names."""


def optional(name: str, kind: Any, default: Any = None) -> Parameter:
    """A parameter of a command that need not be given."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def with_options(
    command: Function, options: Mapping[str, Any], groups: Sequence[OptionGroup] = ()
) -> Function:
    """The command as typer takes it: every parameter with its option, or that of `SHARED`.

    A group replaces the parameter of its name. Raises TypeError if an option is of no parameter.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    for group in groups:
        del own[group.name]
    of_groups = [(group, list(group.parameters(own.keys()))) for group in groups]
    parameters = [*own.values(), *chain.from_iterable(items for _, items in of_groups)]
    if unknown := options.keys() - {item.name for item in parameters}:
        raise TypeError(f"{command.__name__}: options of no parameter: {sorted(unknown)}")
    known = {**SHARED, **options}
    keywords = [_with_option(item, known.get(item.name)) for item in parameters]

    def run(**values: Any) -> int:
        for group, items in of_groups:
            values[group.name] = group.value(**{item.name: values.pop(item.name) for item in items})
        return command(**values)

    run.__dict__["__signature__"] = inspect.Signature(keywords)
    run.__annotations__ = {item.name: item.annotation for item in keywords}
    return run


def _with_option(item: Parameter, its_option: Any) -> Parameter:
    """A parameter as a keyword, annotated with its option; None: it needs none."""
    item = item.replace(kind=Parameter.KEYWORD_ONLY)
    if its_option is None:
        return item
    if item.annotation is bool:
        its_option.param_decls = (f"--{item.name.replace('_', '-')}",)  # and no `--no-...`
    return item.replace(annotation=Annotated[item.annotation, its_option])
