"""The typer application: how commands are parsed, and how errors are shown."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from ppopt import interrupts
from ppopt.cli import streams
from ppopt.cli.options import Function, OptionGroup, with_options
from ppopt.errors import ALSO, InputError, NotApplicableError, RunError, VerificationError
from ppopt.problem.layer_settings import LAYER_SETTINGS
from ppopt.problem.setting import Heading, Setting
from ppopt.problem.settings import LIMIT_1F1B, NAMED, SETTINGS, nearest
from ppopt.versions import DISTRIBUTION, version_of

EXIT_BUG = 1
EXIT_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_UNKNOWN = streams.EXIT_UNKNOWN
EXIT_VIOLATIONS = 5
EXIT_CHANGED = 6
EXIT_INCOMPLETE = 7
"""What was asked for is done, and printed, but a part is missing: an output, or rows of a sweep."""
EXIT_REJECTED = 8
"""`rate` found a partition outside its tolerance."""
BARE = {"--mem-limit": LIMIT_1F1B, "--gpu": ""}
"""Options that may stand without a value, and the value that they then have."""
LONGEST = 1000
"""Characters of an error that is shown whole: five faults with the words that are wrong."""

COMMANDS = {
    "Describe a pipeline": ("init", "profile", "models", "strategies", "schema"),
    "Find a schedule": ("solve", "eval", "compare", "frontier", "plan", "rate", "order", "app"),
    "Sweeps": ("sweep", "studies"),
    "Schedule files": ("view", "verify", "check", "export", "import", "run"),
}
"""Heading -> its commands, in the order of work; every command is in one group."""

# The base of every usage error; typer itself exports only its leaves.
_UsageError: type[Any] = typer.BadParameter.__mro__[2]


_FLAGS = {setting.flag: setting for setting in SETTINGS} | {"-o": NAMED["output"]}
_FIELDS = {setting.field: setting for setting in SETTINGS if "_" in setting.field}
_LAYER_FIELDS = {setting.field: setting for setting in LAYER_SETTINGS}
_OF_LAYER = re.compile(r"(?<![\w./-])layer \d")
"""In a fault of a layer, whose keys have names of their own: its B is `input`."""
_FIELD = re.compile(rf"(?<![\w./-])({'|'.join(_FIELDS)})(?![\w./-])")
"""Such a name in Python, standing alone: no part of the name of a file."""
_EXAMPLE = re.compile(r"Example: `(ppopt [^`]*)`")


class _BuiltOnUse(Mapping[str, Any]):
    """The registered commands by name, each built when it is asked for: that takes a while."""

    def __init__(self) -> None:
        self.functions: dict[str, tuple[Function, Mapping[str, Any], Sequence[OptionGroup]]] = {}
        """Commands with their options, and with groups of options."""
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            alone = typer.Typer(rich_markup_mode=None, add_completion=False)
            build = alone.command(name, cls=Command, help=self._help(name))
            build(with_options(*self.functions[name]))
            self._built[name] = typer.main.get_command(alone)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        order = [name for names in COMMANDS.values() for name in names]
        return iter(sorted(self.functions, key=order.index))

    def __len__(self) -> int:
        return len(self.functions)

    def _help(self, name: str) -> str | None:
        return inspect.getdoc(self.functions[name][0])

    def short_help(self, name: str, width: int) -> str:
        """The first sentence on a command, cut to a width; the command is not built for it."""
        return Command(name, help=self._help(name)).get_short_help_str(width)


_COMMANDS = _BuiltOnUse()


class Group(TyperGroup):
    """All commands: a wrong input is one line on stderr and exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _COMMANDS

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *_: Any,
        **extra: Any,
    ) -> NoReturn:
        """Run and exit; every error that is not a bug becomes one line and an exit code here.

        Ctrl-C ends a command at once, until it begins a search (`interrupts.recorded`). What
        comes after that, printing included, is not cut short. `obj` is the instant from which time
        limits count, else now: every command finds it in its context.
        """
        extra.setdefault("obj", time.monotonic())
        arguments = sys.argv[1:] if args is None else args
        self._main_shell_completion(dict(extra), prog_name or "ppopt")
        with interrupts.recorded():
            try:
                with interrupts.heard():
                    code = self._run(arguments, prog_name or "ppopt", extra)
                print(end="", flush=True)
            except (InputError, NotApplicableError) as error:
                fail(_as_typed(str(error), arguments))
            except (RunError, VerificationError) as error:
                fail(str(error), EXIT_BUG)
            except _UsageError as error:
                fail(_usage_error(error))
            except KeyboardInterrupt:
                streams.interrupted(arguments)
            except BrokenPipeError:
                streams.drop(sys.stdout.fileno())
                sys.exit(0)
            except OSError as error:
                if error.filename is None:
                    streams.drop(sys.stdout.fileno())
                fail(f"{error.filename or 'standard output'}: {error.strerror}")
            sys.exit(code)

    def _run(self, args: Sequence[str], prog_name: str, extra: dict[str, Any]) -> int:
        try:
            with self.make_context(prog_name, list(args), **extra) as context:
                return self.invoke(context) or 0
        except typer.Exit as end:
            return end.exit_code

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands in groups, each with its first sentence."""
        width = formatter.width - 6 - max(map(len, _COMMANDS))
        sections = {
            heading: [(name, _COMMANDS.short_help(name, width)) for name in names]
            for heading, names in COMMANDS.items()
        }
        _write_sections(formatter, sections)


class Command(TyperCommand):
    """A command with options that may stand bare, at the end or before another option."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options in groups; the help option stands in the last one."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        sections |= {heading.value: [] for heading in Heading}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panel = getattr(parameter, "rich_help_panel", None) or kind
                is_help = parameter.name == "help" and any(sections[each.value] for each in Heading)
                name = record[0] if kind == "Options" else record[0].split(" <")[0]  # no type
                sections[Heading.OUTPUT if is_help else panel].append((name, record[1]))
        _write_sections(formatter, sections)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill in the values of bare options (`BARE`) before parsing; refuse words left over.

        An option may have any name of its setting (`--p2p` for `--p2p-time`). Unlike in click, an
        option is never the value of another.
        """
        options = {
            name: parameter
            for parameter in self.params
            for name in parameter.opts
            if name.startswith("-")
        }
        arguments = [_by_flag(word, options) for word in args]
        filled = []
        for word, following in pairwise([*arguments, "-"]):
            bare = word in BARE and following.startswith("-")
            valued = word in options and not getattr(options[word], "is_flag", False)
            if valued and not bare and following in options and not ctx.resilient_parsing:
                raise InputError(f"{word}: needs a value, and {following} follows")
            filled.append(f"{word}={BARE[word]}" if bare else word)
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, filled)
        if left and not ctx.resilient_parsing:
            file = "--config" in options and Path(left[0]).is_file()
            way = f"--config {left[0]} reads a pipeline; " if file else ""
            raise InputError(f"{left[0]}: not expected here; {way}see ppopt {ctx.info_name} --help")
        return left


def _write_sections(formatter: Any, sections: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write every group that has rows, under its heading.

    Typer has such groups (`rich_help_panel`) only with rich, which takes long to load.
    """
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)


def _by_flag(word: str, options: Collection[str]) -> str:
    """Replace another name of a setting by its flag; `word` may hold `=` and a value."""
    name, equals, value = word.partition("=")
    setting = NAMED.get(name.removeprefix("--").replace("-", "_"))
    if setting is None or not name.startswith("--") or name in options:
        return word
    return f"{setting.flag}{equals}{value}" if setting.flag in options else word


def _as_typed(message: str, arguments: Sequence[str]) -> str:
    """Name what was typed: where a fault begins with a setting, its flag, or else its key in files.

    Errors of the library begin with the setting's name in Python. The config file stands before the
    first key of files.
    """
    flags = dict[Setting | str | None, str]()
    for option in (word.partition("=")[0] for word in arguments if word.startswith("-")):
        name = option.lstrip("-").replace("-", "_")
        flags[_FLAGS.get(option) or NAMED.get(name, name)] = option
    file, parts = _config_of(arguments), []
    if message.startswith(file):
        file = ""
    for fault in message.split(ALSO):
        name, colon, rest = fault.partition(":")
        setting = NAMED.get(name, name)
        typed = flags.get(setting)
        fields = _LAYER_FIELDS if _OF_LAYER.search(fault) else _FIELDS
        rest = _FIELD.sub(partial(_named, fields=fields, typed=typed is not None), rest)
        if typed is None and isinstance(setting, Setting):
            typed, file = f"{file}{setting.name}", ""
        parts.append(f"{typed or name}{colon}{rest}")
    return ALSO.join(parts)


def _named(match: re.Match[str], *, fields: Mapping[str, Setting], typed: bool) -> str:
    """The flag or the key of files in place of a name in Python, where `fields` has it."""
    setting = fields.get(match[0])
    if setting is None:
        return match[0]
    return setting.flag if typed else setting.name


def _config_of(arguments: Sequence[str]) -> str:
    """The config file among the words of a command, as the beginning of an error; or nothing."""
    from ppopt.formats.documents import label  # noqa: PLC0415  loads on use

    options = [word.partition("=") for word in arguments]
    for (option, equals, value), following in zip(options, [*arguments[1:], ""], strict=True):
        if option == "--config":
            return f"{label(Path(value if equals else following))}: "
    return ""


def _usage_error(error: Any) -> str:
    """A usage error in one line: the nearest option, and an example of the command."""
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    context, option = error.ctx, getattr(error, "option_name", None)
    if option is not None and context is not None and getattr(error, "possibilities", None):
        known = [name for parameter in context.command.params for name in parameter.opts]
        message = f"No such option: {option}; did you mean {nearest(option, known)}?"
    example = None if context is None else _EXAMPLE.search(context.command.help or "")
    if example and isinstance(error, typer.BadParameter):
        message = f"{message}; for example `{' '.join(example[1].split())}`"
    return str(message)


def fail(message: str, code: int = EXIT_INPUT) -> NoReturn:
    """Exit with a line on stderr and an exit code."""
    streams.note(f"error: {_one_line(message) if code == EXIT_INPUT else message}")
    sys.exit(code)


def _one_line(message: str) -> str:
    """A message of printable characters on one line; the middle of a long one is left out."""
    text = " ".join(message.split())
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


app = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find the fastest schedule of a pipeline-parallel training step, prove it optimal, and "
    "compare it with baselines: published strategies such as 1F1B or zero bubble. Start with "
    "`ppopt solve --stages 4 --batches 8 --mem-limit`, or with `ppopt init model.yaml`.\n\n"
    "F: forward; B: input gradient; W: weight gradient; BW: B and W in one operation. All terms: "
    "docs/reference/glossary.md.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ppopt {version_of(DISTRIBUTION)}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option(
            "-V", "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def command(*groups: OptionGroup, **options: Any) -> Callable[[Function], Function]:
    """Register a function as the command of its name (a final underscore dropped).

    `options` are those of its parameters, by name; a group has the options of one parameter.
    """

    def register(function: Function) -> Function:
        _COMMANDS.functions[function.__name__.rstrip("_")] = function, options, groups
        return function

    return register
