"""The script of a page: JavaScript modules, joined into one script without imports."""

from __future__ import annotations

import re
from importlib.resources import files

MODULES = (
    *("dom", "data", "cells", "gantt", "memory", "layout", "words"),
    *("links", "picture", "address", "export", "slider", "preview", "controls"),
    *("names", "frontier", "study_rows", "study_charts", "study_table", "study", "app", "page"),
)
"""Names of the modules, each after the modules that it imports."""
STUDY = ("study_rows", "study_charts", "study_table", "study")
"""Those that the page of a study has, and no other one."""
APP = ("app",)
"""The one that the page of the app has, and no other one."""
_IMPORT = re.compile(r"^import .*?;\n", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(
    r"^ *(?:/\*\*(?:(?!\*/).)*\*/|//[^\n]*)\n|/\*\* @type [^\n]*?\*/ ?", re.DOTALL | re.MULTILINE
)
"""A comment on lines of its own, or a type: the page leaves them out."""


def module(name: str) -> str:
    """Text of one module."""
    return files("ppopt.report.script").joinpath(f"{name}.js").read_text(encoding="utf-8")


def script(*, study: bool = False, app: bool = False) -> str:
    """The modules in one scope, without imports and exports; no two define the same name."""
    left_out = {*(() if study else STUDY), *(() if app else APP)}
    names = (name for name in MODULES if name not in left_out)
    texts = (_IMPORT.sub("", _COMMENT.sub("", f"\n{module(name)}")) for name in names)
    texts = (text.replace("\nexport ", "\n") for text in texts)
    return f'"use strict";\n(() => {{\n{"".join(texts)}}})();\n'
