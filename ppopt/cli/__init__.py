"""The command line: `ppopt`.

This module and the package above it load nothing but `signal` and `time`, which Python has loaded,
so that Ctrl-C during the start of a command falls into Python's own start or into `main`.
"""

import signal
import time

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than all that is done here

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["main"]


def main(arguments: "Sequence[str] | None" = None) -> "NoReturn":
    """Entry point of `ppopt`: the process does nothing else.

    The system holds signals back until the program records them, so that none meets an import.
    Time limits count from here.
    """
    began = time.monotonic()
    blocked = None
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        ours = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    from ppopt.cli import program  # noqa: PLC0415

    program.run_process(arguments, blocked, began)
