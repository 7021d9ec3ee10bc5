"""Which PyTorch the schedules run on."""

from __future__ import annotations

from importlib import metadata

from ppopt.errors import InputError

SUPPORTED = "2.13"
"""The runtime is private to PyTorch and may change with every minor version: this one is tested."""


def require() -> str:
    """Return PyTorch's version; raises InputError where there is none, or another minor version."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise InputError(
            f"torch: PyTorch is not installed; install ppopt-pipeline[torch], or torch {SUPPORTED}"
        ) from None
    if not f"{found}.".startswith(f"{SUPPORTED}."):
        raise InputError(
            f"torch: version {found} is installed; schedules run through a private class of "
            f"PyTorch that is tested with {SUPPORTED}: install torch {SUPPORTED}"
        )
    return found
