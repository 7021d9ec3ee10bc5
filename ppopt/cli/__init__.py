"""The command line: `ppopt`."""

from ppopt.cli.app import app, main

__all__ = ["app", "main"]
