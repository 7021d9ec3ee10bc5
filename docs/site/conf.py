"""The docs site, by Sphinx: `python -m sphinx -W -n -q -c docs/site . docs/_site`.

Open `docs/_site/docs/index.html`. Every page is the same file on the site and in the repository.
Two reference pages are generated from the program (`docs/site/reference_pages.py`).
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import reference_pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "ppopt"
author = "The ppopt authors"
version = release = metadata.version("ppopt-pipeline")
root_doc = "docs/index"
include_patterns = [
    *("docs/*.md", "docs/*/*.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("models/README.md", "benchmarks/README.md", "benchmarks/records/*.md"),
]
exclude_patterns = [".*", "docs/_site", "docs/jupyter_execute", "ppopt", "tests"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
default_role = "code"
nitpick_ignore_regex = [
    ("py:.*", r"(?!ppopt\.).*"),
    ("py:class", r"ppopt\.(problem\..*|derivation\..*|studies\.plan_result\.PlanBaseline)"),
    ("py:class", r"ppopt\.studies\.first_schedules\.FirstRow"),
    ("py:class", r"ppopt\.(studies\.headline\.Headline|verifier\.costs\.Costs)"),
    ("py:class", r"ppopt\.(schedule\.operations\.Operations|formats\.figures\.ScheduleFigures)"),
]
"""Types of other libraries, and those that are not public, have no page here."""

html_theme = "furo"
html_title = f"ppopt {version}"
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

os.environ["COLUMNS"] = "80"


def _level_captions(_: object, __: str, ___: str, context: dict[str, Any], ____: object) -> None:
    """Give captions of lists of pages, which are headings, the level that screen readers need."""
    for part in ("furo_navigation_tree", "body"):
        text = context.get(part) or ""
        context[part] = text.replace('role="heading">', 'role="heading" aria-level="2">')


def setup(app: Sphinx) -> None:
    """Fill in the pages that are written from the program."""
    app.connect("source-read", reference_pages.fill)
    app.connect("html-page-context", _level_captions, priority=900)
