"""The command that serves the app."""

from __future__ import annotations

import socket

from ppopt import interrupts
from ppopt.cli.application import command
from ppopt.cli.options import flag, option
from ppopt.cli.streams import note
from ppopt.errors import InputError

PORTS = range(1, 2**16)


@command(
    host=option("ADDRESS", "Address to listen at."),
    port=option("", "Port to listen at."),
    allow_host=option(
        "NAME", "Also accept requests for this host name, e.g. of a proxy; may be repeated."
    ),
    searches=option("N", "Maximum number of searches at once."),
    time_limit=option(
        "SECONDS", "Time limit of a search in seconds (default: 60).", show_default=False
    ),
    quiet=flag("Do not print the address."),
)
def app(
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: list[str] | None = None,
    searches: int = 2,
    time_limit: float = 60.0,
    quiet: bool = False,
) -> int:
    """Serve an interactive page.

    Every edit redraws the schedules. Only this machine can open it, unless --host names another
    address. Needs the extra `app`: pip install 'ppopt-pipeline[app]'. Example: `ppopt app`, then
    open http://127.0.0.1:8000.
    """
    try:
        from ppopt.app import server  # noqa: PLC0415  commands load on use
    except ModuleNotFoundError as error:
        raise InputError(
            f"app: {error.name} is absent: pip install 'ppopt-pipeline[app]'"
        ) from None
    from ppopt.app.limits import Limits  # noqa: PLC0415

    if port not in PORTS:
        raise InputError(f"port: {port} is not between 1 and {PORTS[-1]}")
    if searches < 1:
        raise InputError(f"searches: {searches} is below 1")
    if not 0 < time_limit < float("inf"):
        raise InputError(f"time_limit: {time_limit} is not above 0 seconds, or not finite")
    _check_free(host, port)
    limits = Limits(search_seconds=time_limit, searches=searches)
    hosts = {*server.LOOPBACK, host, *(allow_host or ())}
    if not quiet:
        note(f"http://{host}:{port} (Ctrl-C ends it)")
    with interrupts.recorded():
        server.serve(host, port, limits, hosts)
    return 0


def _check_free(host: str, port: int) -> None:
    """Raise InputError if no server can listen at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"port: cannot listen at {host}:{port} ({reason}); give another --port or --host"
            ) from None
