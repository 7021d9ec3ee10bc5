"""Prose and names that are hard to read: long sentences, odd words, names that say nothing.

    python docs/scripts/prose.py [FOLDER...]

Prints every such place. Reads the paragraphs, lists and tables of the documents, and the docstrings
and messages of the package: errors, help, what is printed. Formulas of docstrings may take longer
sentences. Code counts as one word where it stands in a sentence, and not at all where it stands
alone. Names and docstrings are also compared with the vocabulary: `docs/reference/glossary.md` has
the terms to use instead. If folders are named, only their vocabulary is read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
BUILT = {"_site", "jupyter_execute"}
"""Folders that a build of the site leaves in `docs`."""
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
NAMES = re.compile(
    r"_*(again|found|given|gives|hands?|held|kept|least|made|mine|most|moved|one|others?|owed|room"
    r"|said|shown|takes|told|words)_*|(?!test_).*_words",
    re.IGNORECASE,
)
"""Whole names that do not say what a value is; `describe_...` is clearer than `..._words`."""
HOUSE_TERMS = re.compile(
    r"\bhands?[ -](?:strateg|schedule|order)\w*|\bg(?:[ai]ves?|iven|iving) back\b"
    r"|\b(?:beside|mine|owed)\b|\btakes? memory\b|\bmemory (?:taken|given|held|owed)\b",
    re.IGNORECASE,
)
"""Everyday words for which the glossary has a term: baseline, free, allocate, live memory."""
_MAYBE_HOUSE_TERMS = re.compile(r"hand|back|beside|mine|owed|memory", re.IGNORECASE)
"""Every house term has one of these: a text without them need not be split into sentences."""
CHECKED: tuple[str, ...] = ("ppopt", "docs", "benchmarks", "tests", "README.md", "CONTRIBUTING.md")
"""Files and folders that must keep to the vocabulary; the tests look at them."""
PUBLIC = {"kept": "ppopt/problem/cost_table.py"}
"""Names of fields of files that keep their names, and the module that defines them."""
_END = re.compile(r"(?<=[.!?:;])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9`-])")
_WORD = re.compile(r"[^\W\d_][\w'-]*|CODE")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


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
        path for path in guides if not BUILT & {*path.parts} and path.name != "unequal.md"
    ]


def modules() -> list[Path]:
    """The modules of the package."""
    return sorted((ROOT / "ppopt").rglob("*.py"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a module, those of fields and constants included."""
    for node in _nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Expr):
            match node.value:
                case ast.Constant(value=str(text)):
                    yield node.lineno, cleandoc(text)


@lru_cache(maxsize=1)
def _nodes(code: str) -> list[ast.AST]:
    """All nodes of a module."""
    return list(ast.walk(ast.parse(code)))


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every message of a module; what an f-string fills in is code."""
    nodes = _nodes(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in nodes for part in _parts(node)}
    for node in nodes:
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
            texts = (str(p.value) if isinstance(p, ast.Constant) else "`CODE`" for p in parts)
            return "".join(texts)
    return ""


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Line and words of every sentence of a document."""
    text = re.sub(r"\A---\n.*?\n---\n", lambda head: "\n" * head[0].count("\n"), text, flags=re.S)
    for token in _MARKDOWN.parse(text):
        if token.type != "inline" or token.map is None:
            continue
        text = "".join(_plain(child.type, child.content) for child in token.children or ())
        for sentence in _END.split(text):
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
                length = len(_WORD.findall(sentence))
                if length > (LONGEST_IN_CODE if is_code else LONGEST):
                    yield Place(name, first + line - 1, f"{length} words", sentence)
                for word in ODD.findall(sentence):
                    yield Place(name, first + line - 1, word or "double negation", sentence)


def vocabulary(paths: Iterable[Path]) -> Iterator[Place]:
    """Every name and every text that does not keep to the vocabulary."""
    for path in paths:
        document = path.relative_to(ROOT).as_posix()
        texts = [(1, path.read_text(encoding="utf-8"))]
        if path.suffix == ".py":
            texts = list(docstrings(path))
            for line, name in names(path):
                if PUBLIC.get(name) == document:
                    continue
                yield Place(document, line, name, "a name that does not say what the value is")
        for first, text in texts:
            if not _MAYBE_HOUSE_TERMS.search(text):
                continue
            for line, sentence in sentences(text):
                for match in HOUSE_TERMS.finditer(sentence):
                    yield Place(document, first + line - 1, match[0], sentence)


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every definition of a module whose name is outside the vocabulary."""
    nodes = _nodes(path.read_text(encoding="utf-8"))
    operands = {
        id(argument)
        for method in nodes
        if isinstance(method, ast.FunctionDef) and method.name.startswith("__")
        for argument in method.args.args
        if argument.arg == "other"
    }
    for node in nodes:
        if not isinstance(node, _DEFINING):
            continue
        name = "" if id(node) in operands else _definition(node)
        if NAMES.fullmatch(name):
            yield getattr(node, "lineno", 1), name


_DEFINING = (
    *(ast.Name, ast.Attribute, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.MatchAs, ast.MatchStar, ast.alias, ast.ExceptHandler),
)
"""Nodes that may define a name."""


def _definition(node: ast.AST) -> str:
    """The name that a node defines."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.Attribute(attr=name, ctx=ast.Store())
            | ast.arg(arg=name)
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.alias(asname=str(name))
            | ast.ExceptHandler(name=str(name))
        ):
            return name
    return ""


def files(folders: Iterable[str]) -> list[Path]:
    """The modules and documents of folders, or files by themselves."""
    roots = [ROOT / folder for folder in folders]
    pages = [page for page in documents() if any(page.is_relative_to(root) for root in roots)]
    code = {path for root in roots for path in root.rglob("*.py") if not BUILT & {*path.parts}}
    return sorted(code.union(pages, (root for root in roots if root.suffix == ".py")))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        places = list(vocabulary(files(sys.argv[1:])))
        print(*places, sep="\n")
        print(*Counter(place.reason.lower() for place in places).most_common(), sep="\n")
    else:
        for place in hard([*documents(), *modules()]):
            print(place)
