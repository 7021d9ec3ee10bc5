"""The built docs site in a real browser: nothing that keeps a reader out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser import View, serious

SITE = Path(__file__).parents[2] / "docs" / "_site" / "docs"
PAGES = ("index.html", "command-line.html", "gallery.html")
"""Cards, console blocks and tables, pictures."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(name: str, view: View) -> None:
    """Skipped where the site was not built; `.ci/run` builds it, and there it must be."""
    if not SITE.is_dir() and not os.environ.get("PPOPT_NEEDS_SITE"):
        pytest.skip("docs/_site is not built")
    assert (SITE / name).is_file()
    view.text = ""
    view.driver.get((SITE / name).as_uri())
    assert serious(view) == []
