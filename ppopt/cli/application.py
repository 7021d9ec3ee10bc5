"""The typer application: how commands are parsed, and how errors are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from ppopt.cli import streams
from ppopt.errors import InputError, RunError, VerificationError
from ppopt.problem.settings import LIMIT_1F1B, NAMED
from ppopt.solver import interrupts

EXIT_BUG = 1
EXIT_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_UNKNOWN = streams.EXIT_UNKNOWN
EXIT_VIOLATIONS = 5
EXIT_CHANGED = 6
EXIT_INCOMPLETE = 7
"""What was asked for is done, and printed, but a part is missing: an output, or rows of a sweep."""

# The base of every usage error; typer itself exports only its leaves.
_UsageError: type[Any] = typer.BadParameter.__mro__[2]


JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", help="Only the exit code.")]
ScheduleFile = Annotated[Path, typer.Argument(metavar="FILE", help="A schedule file (.json).")]


class Group(TyperGroup):
    """All commands: a wrong input is one line on stderr and exit code 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *_: Any,
        **extra: Any,
    ) -> NoReturn:
        """Run and exit; every error that is not a bug becomes one line and an exit code here.

        Ctrl-C ends a command at once, until it begins a search (`interrupts.only_record`). What
        comes after that, printing included, is not cut short.
        """
        words = sys.argv[1:] if args is None else args
        with interrupts.recorded(inner=True):
            try:
                with interrupts.heard():
                    code = self._run(words, prog_name or "ppopt", extra)
                print(end="", flush=True)
            except InputError as error:
                fail(str(error))
            except (RunError, VerificationError) as error:
                fail(str(error), EXIT_BUG)
            except _UsageError as error:
                fail(error.format_message())
            except KeyboardInterrupt:
                streams.interrupted(words)
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


class Command(TyperCommand):
    """A command whose `--mem-limit` may stand bare, at the end or before another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill in the value of a bare `--mem-limit` before parsing; refuse words left over.

        An option may have any name of its setting (`--p2p` for `--p2p-time`). Unlike in click, an
        option is never the value of another.
        """
        options = {name: one for one in self.params for name in one.opts if name.startswith("-")}
        words = [_by_flag(word, options) for word in args]
        filled = []
        for word, following in pairwise([*words, "-"]):
            bare = word == "--mem-limit" and following.startswith("-")
            valued = word in options and not getattr(options[word], "is_flag", False)
            if valued and not bare and following in options:
                raise InputError(f"{word}: needs a value, and {following} follows")
            filled.append(f"--mem-limit={LIMIT_1F1B}" if bare else word)
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, filled)
        if left:
            file = "--config" in options and Path(left[0]).is_file()
            way = f"--config {left[0]} reads a pipeline; " if file else ""
            raise InputError(f"{left[0]}: not expected here; {way}see ppopt {ctx.info_name} --help")
        return left


def _by_flag(word: str, options: Collection[str]) -> str:
    """Replace another name of a setting by its flag; `word` may hold `=` and a value."""
    name, equals, value = word.partition("=")
    setting = NAMED.get(name.removeprefix("--").replace("-", "_"))
    if setting is None or not name.startswith("--") or name in options:
        return word
    return f"{setting.flag}{equals}{value}" if setting.flag in options else word


def fail(message: str, code: int = EXIT_INPUT) -> NoReturn:
    """Exit with a line on stderr and an exit code."""
    if code == EXIT_INPUT:
        message = " ".join(message.split())
    streams.note(f"error: {message}")
    sys.exit(code)


app = typer.Typer(
    cls=Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Schedules of pipeline-parallel training: hand strategies evaluated, optima proved.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # noqa: PLC0415  only for --version

        print(f"ppopt {metadata.version('ppopt-pipeline')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Register a function as the command of its name (a final underscore dropped)."""
    app.command(function.__name__.rstrip("_"), cls=Command)(function)
    return function
