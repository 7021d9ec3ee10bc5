"""Prose that is hard to read: long sentences, and words that make one read a sentence twice.

    python docs/scripts/prose.py

Prints every such place. Reads the paragraphs, lists and tables of the documents, and the docstrings
and messages of the package: errors, help, what is printed. Formulas of docstrings may take longer
sentences. Code counts as one word where it stands in a sentence, and not at all where it stands
alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
LONGEST = 30
"""Most words of a sentence."""
LONGEST_IN_CODE = 45
"""The same in a docstring or a message."""
FEWEST = 3
"""Words from which on a text of the code is a message."""
ODD = re.compile(
    r"\b(outdo\w*|betters|bettered|bettering|likewise|wherever|whoever|nowhere|told|anew|betterment"
    r"|whatever it|thereof|whereby|hitherto|amongst|whilst|utili[sz]e\w*)\b"
    r"|not proved that (?:it|less|more) (?:is|does) not",
    re.IGNORECASE,
)
"""Words and turns for which there is a plainer one."""
_END = re.compile(r"(?<=[.!?:;])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9`-])")
_WORD = re.compile(r"[^\W\d_][\w'-]*|CODE")


class Place(NamedTuple):
    """A sentence that is hard to read, and why."""

    document: str
    line: int
    reason: str
    sentence: str

    def __str__(self) -> str:
        """As compilers write it."""
        return f"{self.document}:{self.line}: {self.reason}: {self.sentence}"


def documents() -> list[Path]:
    """What users and contributors read: neither records nor the history of changes."""
    named = ("README.md", "CONTRIBUTING.md", "models/README.md")
    guides = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / name for name in named] + [
        path for path in guides if "_site" not in path.parts and path.name != "unequal.md"
    ]


def modules() -> list[Path]:
    """The modules of the package."""
    return sorted((ROOT / "ppopt").rglob("*.py"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a module, those of fields and constants included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, cleandoc(text)


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every message of a module; what an f-string fills in is code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) for part in _parts(node)}
    for node in ast.walk(tree):
        text = "" if id(node) in inside else _message(node)
        if len(_WORD.findall(text)) >= FEWEST and " " in text:
            yield node.lineno, text


def _parts(node: ast.AST) -> Iterable[ast.AST]:
    """What a node takes up: the parts of an f-string, and a docstring."""
    match node:
        case ast.JoinedStr():
            return node.values
        case ast.Expr(value=ast.Constant()):
            return (node.value,)
    return ()


def _message(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            words = (str(p.value) if isinstance(p, ast.Constant) else "`CODE`" for p in parts)
            return "".join(words)
    return ""


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Line and words of every sentence of a document."""
    text = re.sub(r"\A---\n.*?\n---\n", lambda head: "\n" * head[0].count("\n"), text, flags=re.S)
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type != "inline" or token.map is None:
            continue
        words = "".join(_plain(child.type, child.content) for child in token.children or ())
        for sentence in _END.split(words):
            yield token.map[0] + 1, " ".join(sentence.split())


def _plain(kind: str, content: str) -> str:
    if kind in ("softbreak", "hardbreak"):
        return " "
    return "CODE" if kind == "code_inline" else content if kind == "text" else ""


def hard(paths: Iterable[Path]) -> Iterator[Place]:
    """Every sentence that is too long, or has an odd word."""
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        is_code = path.suffix == ".py"
        texts = [(1, path.read_text(encoding="utf-8"))]
        if is_code:
            texts = [*docstrings(path), *messages(path)]
        for first, text in texts:
            for line, sentence in sentences(text):
                words = len(_WORD.findall(sentence))
                if words > (LONGEST_IN_CODE if is_code else LONGEST):
                    yield Place(name, first + line - 1, f"{words} words", sentence)
                for word in ODD.findall(sentence):
                    yield Place(name, first + line - 1, word or "double negation", sentence)


if __name__ == "__main__":
    for place in hard([*documents(), *modules()]):
        print(place)
