"""Conditions that leave combinations out of a grid: `chunks < 2 or batches % stages == 0`.

A condition consists of names of settings, numbers, text in quotes, `and`, `or`, `not`, `in`,
comparisons, arithmetic, parentheses and lists. Python parses it, and this module computes its
value. No other syntax is accepted, so that a condition cannot run code.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from ppopt.errors import InputError

LONGEST = 1000
"""Most characters of a condition."""
SHOWN = 100
"""Characters of a condition that an error shows."""
DEEPEST = 100
"""Deepest nesting of operators: each level takes three of the thousand calls that Python nests."""
Settings = Mapping[str, Any]
"""Values of settings by their names."""
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_KNOWN = "use names of settings, numbers, quoted text, and, or, not, in, comparisons, arithmetic"


class Condition:
    """A condition on the settings of a row; raises InputError if it cannot be read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.shown = repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
        """Condition as errors show it."""
        if len(text) > LONGEST:
            raise InputError(f"where: longer than {LONGEST} characters")
        try:
            with warnings.catch_warnings(action="ignore"):
                self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(f"where: {self.shown} cannot be read; {_KNOWN}") from None
        for node in ast.walk(self._tree):
            self._check(node)
        if _depth(self._tree) > DEEPEST:
            raise InputError(f"where: {self.shown}: nested too deeply; make it simpler")
        self.names = frozenset(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)
        )
        """Names of settings in the condition, as they are written."""

    def _check(self, node: ast.AST) -> None:
        """Raise InputError if a node is of no accepted kind."""
        constant = not isinstance(node, ast.Constant) or isinstance(
            node.value, int | float | str | None
        )
        if type(node) not in (*_RULES, *_PARTS) or not constant:
            what = type(node).__name__.lower()
            raise InputError(f"where: {self.shown}: {what} is not known here; {_KNOWN}")

    def holds(self, settings: Settings) -> bool:
        """Evaluate for named settings; raises InputError if the condition is undefined for them."""
        try:
            return bool(_value(self._tree, settings))
        except KeyError as error:
            name = error.args[0]
            raise InputError(
                f"where: {self.shown}: {name:.40} is no setting of this sweep; put text in quotes"
            ) from None
        except (TypeError, ArithmeticError, ValueError):
            values = ", ".join(f"{name}={settings[name]!s:.40}" for name in sorted(self.names))
            raise InputError(f"where: {self.shown} cannot be computed for {values}") from None


def _depth(tree: ast.AST) -> int:
    """Depth of the tree, counted level by level."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
    return depth


def _value(node: ast.AST, settings: Settings) -> Any:
    return _RULES[type(node)](node, settings)


def _constant(node: Any, _: Settings) -> Any:
    return Decimal(repr(node.value)) if isinstance(node.value, float) else node.value


def _name(node: Any, settings: Settings) -> Any:
    return settings[node.id]


def _list(node: Any, settings: Settings) -> list[Any]:
    return [_value(part, settings) for part in node.elts]


def _and_or(node: Any, settings: Settings) -> bool:
    every = all if isinstance(node.op, ast.And) else any
    return every(_value(part, settings) for part in node.values)


def _unary(node: Any, settings: Settings) -> Any:
    value = _value(node.operand, settings)
    return not value if isinstance(node.op, ast.Not) else -value


def _arithmetic(node: Any, settings: Settings) -> Any:
    """Arithmetic on numbers only: text times a number could exhaust the memory."""
    left, right = _value(node.left, settings), _value(node.right, settings)
    if not all(isinstance(side, int | Decimal) for side in (left, right)):
        raise TypeError
    if isinstance(node.op, ast.Div):
        left = Decimal(left)
    return _ARITHMETIC[type(node.op)](left, right)


def _comparison(node: Any, settings: Settings) -> bool:
    values = [_value(part, settings) for part in (node.left, *node.comparators)]
    pairs = zip(values, node.ops, values[1:], strict=False)
    return all(_COMPARISONS[type(op)](one, other) for one, op, other in pairs)


_RULES: Mapping[type[ast.AST], Callable[[Any, Settings], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.List: _list,
    ast.Tuple: _list,
    ast.BoolOp: _and_or,
    ast.UnaryOp: _unary,
    ast.BinOp: _arithmetic,
    ast.Compare: _comparison,
}
_PARTS = (ast.And, ast.Or, ast.Not, ast.USub, ast.Load, *_ARITHMETIC, *_COMPARISONS)
