"""The part of YAML that settings need: exact numbers, no aliases, no tags, a key once.

Aliases are refused because some lines of them expand to gigabytes, and no setting is long enough
to need them. Plain scalars are read as the core schema of YAML 1.2 reads them, so
that `1e-3` is a number, and `1:30`, `yes` and dates are text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from ppopt.errors import InputError
from ppopt.formats.documents import guarded
from ppopt.formats.fields import abbreviated

MAX_KEYS = 1000
"""Maximum number of keys of a mapping: far more than there are settings. PyYAML is slow for more.
"""
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_PLAIN = {
    _NULL: r"~|null|Null|NULL|",
    _BOOL: r"true|True|TRUE|false|False|FALSE",
    _INT: r"[-+]?(0|[1-9][0-9]*)",
    _FLOAT: r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?",
}


class _Checks(Composer, SafeConstructor, Resolver):
    """Composer and constructor of this part of YAML, from the events of any parser."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # filled below, once

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined]  # of the parser
        if isinstance(event, yaml.AliasEvent):
            raise _error("aliases (*name) are not accepted; write the value out", event)
        if event.tag is not None:
            raise _error("tags (!name) are not accepted; write plain values", event)
        if isinstance(parent, yaml.MappingNode) and len(parent.value) >= MAX_KEYS:
            raise _error(f"more than {MAX_KEYS} keys; there are not so many settings", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _error(f"key {abbreviated(key)} is not a word", key_node)
            if key in keys:
                raise _error(f"key {abbreviated(key)} is given twice; keep one", key_node)
            keys.add(key)
        return super().construct_mapping(node, deep)


def _error(problem: str, event: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Loader(_Checks, yaml.SafeLoader):
    """Loader in Python, whose errors are shown."""


def _fast_loader() -> Any:
    """Loader with the parser of libyaml, about five times as fast; `_Loader` without libyaml."""
    if not yaml.__with_libyaml__:
        return _Loader

    class FastLoader(_Checks, yaml.cyaml.CParser):  # type: ignore[name-defined, misc]
        def __init__(self, text: str) -> None:
            for base in (Composer, SafeConstructor, Resolver):
                base.__init__(self)
            yaml.cyaml.CParser.__init__(self, text)  # type: ignore[attr-defined]

    return FastLoader


for _tag, _pattern in _PLAIN.items():
    _Checks.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z", re.ASCII), None)
_Checks.add_constructor(_INT, lambda _loader, node: int(node.value))
_Checks.add_constructor(_FLOAT, lambda _loader, node: Decimal(node.value))
_FAST_LOADER = _fast_loader()


def parse_yaml(text: str, where: str) -> object:
    """Parse one YAML document, fractions as Decimal.

    Raises InputError, beginning with `where`, on malformed text, aliases, tags, repeated keys.
    """
    try:
        with suppress(yaml.YAMLError):
            return guarded(lambda: yaml.load(text, Loader=_FAST_LOADER), text, where)
        return guarded(lambda: yaml.load(text, Loader=_Loader), text, where)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{where}: {line}{_one_line(error.problem or error.context)}") from None
    except yaml.reader.ReaderError as error:
        row = text.count("\n", 0, error.position) + 1
        raise InputError(f"{where}: line {row}: not YAML: {_one_line(error.reason)}") from None


def _one_line(problem: object) -> str:
    return " ".join(str(problem).split())
