"""Which PyTorch is installed, and which are tested."""

from __future__ import annotations

from importlib import metadata

from ppopt.errors import InputError

TESTED = "torch 2.9.1, 2.10.0, 2.11.0, 2.12.1, 2.13.0 and 2.14.1"
"""The tested versions. The runtime is private to PyTorch and may change with every minor version;
what is used of it is looked for on first use (`ppopt.torch.pipeline_runtime`)."""


def require() -> str:
    """Return PyTorch's version; raise InputError if it is missing."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise InputError(
            f"torch: PyTorch is not installed; install ppopt-pipeline[torch] (tested: {TESTED})"
        ) from None
