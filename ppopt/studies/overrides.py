"""Values of a sweep, written in Hydra's override grammar: `batches=8,16`, `chunks=range(1,5)`.

The part of the grammar (https://hydra.cc/docs/advanced/override_grammar/basic) that makes a grid:

    KEY=VALUE                        one value
    KEY=VALUE,VALUE,...              a value each
    KEY=choice(VALUE,VALUE,...)      the same
    KEY=range(STOP)                  0, 1, ... below STOP
    KEY=range(START,STOP[,STEP])     as Python's range; fractions as well

A value is a list `[VALUE,...]`, text in quotes ("...", '...'), or a word: `null`, `true`, `false`,
a number, or else text. Text with a comma, brackets or parentheses needs quotes. Numbers with a
fraction are read as decimals, not as floats.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated
from ppopt.problem import exact
from ppopt.problem.cost_table import ZERO

Value = None | bool | int | Decimal | str | list["Value"]
"""A value as in a config file."""
MAX_VALUES = 1_000_000
"""Maximum number of values of one key."""
CONTEXT_LENGTH = 60
"""Number of characters that an error shows before and after its position."""
MAX_DEPTH = 8
"""Maximum nesting of lists; settings have two levels."""
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_QUOTED = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')\s*""", re.DOTALL)
_WORD = re.compile(r"[^,\[\](){}\"'=]*")
_CALL = re.compile(r"\s*(choice|range)\s*\(\s*")
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?")
_CONSTANTS: dict[str, Value] = {"null": None, "true": True, "false": False}
_EXAMPLES = "write KEY=VALUE,VALUE or KEY=range(START,STOP,STEP)"


class Override(NamedTuple):
    """A key and its values, at least one."""

    key: str
    """Key as written."""
    values: tuple[Value, ...]


def parse(text: str) -> Override:
    """Read `KEY=VALUES`; raises InputError, which shows where the text is wrong."""
    key, equals, rest = text.partition("=")
    if not equals or not _KEY.fullmatch(key):
        raise InputError(f"{abbreviated(text)} is no sweep of a setting; {_EXAMPLES}")
    return Override(key, _Reader(key, rest).values())


class _Reader:
    """Reads the values of one key, from left to right."""

    def __init__(self, key: str, text: str) -> None:
        self._key, self._text, self._at = key, text, 0
        self._depth = 0
        """Number of open lists."""

    def values(self) -> tuple[Value, ...]:
        call = _CALL.match(self._text)
        if call is None:
            values = self._list("")
        else:
            self._at = call.end()
            values = self._list(")")
            if call[1] == "range":
                values = self._range(values)
        if self._at < len(self._text):
            raise self._wrong("something follows the values")
        if not values:
            raise self._wrong("there is no value")
        return tuple(values)

    def _list(self, end: str) -> list[Value]:
        """Read values separated by commas, up to and including the text `end`."""
        values = [self._value()]
        while self._text.startswith(",", self._at):
            self._at += 1
            values.append(self._value())
        if not self._text.startswith(end, self._at):
            raise self._wrong(f"{end} is missing")
        self._at += len(end)
        self._at += len(self._text[self._at :]) - len(self._text[self._at :].lstrip())
        return values

    def _value(self) -> Value:
        quoted = _QUOTED.match(self._text, self._at)
        if quoted is not None:
            self._at = quoted.end()
            mark = '"' if quoted[1] is not None else "'"
            return (quoted[1] or quoted[2] or "").replace(f"\\{mark}", mark)
        opened = re.compile(r"\s*\[\s*(\]\s*)?").match(self._text, self._at)
        if opened is not None:
            return self._nested(opened)
        word = _WORD.match(self._text, self._at)
        assert word is not None
        if not word[0].strip():
            raise self._wrong("a value is missing; put empty text in quotes")
        self._at = word.end()
        return self._of_word(word[0].strip())

    def _nested(self, opened: re.Match[str]) -> list[Value]:
        """Read the list within brackets, of which the opening one has been read."""
        if self._depth == MAX_DEPTH:
            raise InputError(
                f"{self._key}: lists are nested too deeply; at most {MAX_DEPTH} may be"
            )
        self._at = opened.end()
        self._depth += 1
        values = [] if opened[1] else self._list("]")
        self._depth -= 1
        return values

    def _of_word(self, word: str) -> Value:
        if word.lower() in _CONSTANTS:
            return _CONSTANTS[word.lower()]
        if _WHOLE.fullmatch(word):
            return exact.fraction(word.replace("_", ""), self._key).numerator
        if not _NUMBER.fullmatch(word):
            return word
        exact.fraction(word, self._key)
        return Decimal(word)

    def _range(self, ends: list[Value]) -> list[Value]:
        if not 1 <= len(ends) <= 3 or not all(_is_number(end) for end in ends):
            raise self._wrong("range takes one to three numbers")
        numbers = [exact.fraction(end, self._key) for end in ends]
        if len(numbers) == 1:
            numbers.insert(0, ZERO)
        start, stop, step = (*numbers, Fraction(1))[:3]
        if not step:
            raise self._wrong("the step is 0")
        count = max(0, ceil((stop - start) / step))
        if count > MAX_VALUES:
            raise self._wrong(f"too many values, at most {MAX_VALUES} are taken")
        values = [start + index * step for index in range(count)]
        if all(isinstance(end, int) for end in ends):
            return [int(value) for value in values]
        return [Decimal(value.numerator) / value.denominator for value in values]

    def _wrong(self, why: str) -> InputError:
        before, after = (
            self._text[: self._at][-CONTEXT_LENGTH:],
            self._text[self._at :][:CONTEXT_LENGTH],
        )
        return InputError(f"{self._key}={before} >>> {after}: {why}; {_EXAMPLES}, text in quotes")


def _is_number(value: Value) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)
