"""Packages that only some tests need. Tests without theirs are skipped, and the run counts them."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

TEST_ALL = "pip install -e '.[test-all]'"
OTHER_PACKAGES = {
    "torchtitan": "pip install spmd_types==0.2.3 tyro; pip install --no-deps torchtitan==0.3.0",
    "megatron": "pip install --no-deps megatron-core==0.16.1",
}
"""How to install what the extra `test-all` does not have."""


def needed(module: str) -> Any:
    """Import a module, or skip: in a test this test, at the top of a file all tests of the file.

    With PPOPT_NEEDS_ALL set, an absent package of the extra `test-all` is an error.
    """
    package = module.partition(".")[0]
    must_be_there = "PPOPT_NEEDS_ALL" in os.environ and package not in OTHER_PACKAGES
    if find_spec(package) is None and not must_be_there:
        reason = f"{package} is absent: {OTHER_PACKAGES.get(package, TEST_ALL)}"
        pytest.skip(reason, allow_module_level=True)
    return import_module(module)
