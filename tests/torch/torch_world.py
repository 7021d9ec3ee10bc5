"""What the tests with PyTorch share. They do not skip: without PyTorch they fail, and say why."""

from __future__ import annotations

try:
    import torch as torch  # noqa: PLC0414  for the tests that use it
except ImportError as error:
    raise RuntimeError(
        "these tests run schedules in PyTorch, which is not installed: "
        "pip install -e '.[test]', or pip install torch==2.13.0"
    ) from error

VERSION: str = torch.__version__
