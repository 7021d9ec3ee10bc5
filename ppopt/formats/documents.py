"""Text files and their syntax: every defect of a file becomes a one-line error."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated


def label(path: Path) -> str:
    """Write a path for a message: on one line, whatever its name."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def by_value(name: str) -> list[tuple[str, int]]:
    """Sort key for names by the values of the numbers in them: rank 2 before rank 10."""
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", name)]


def read_text(path: Path, limit: int, encoding: str = "utf-8-sig") -> str:
    """Read a UTF-8 file of at most `limit` bytes that is not blank.

    A file whose name ends in `.gz` is decompressed; `limit` applies to its content. A byte order
    mark is dropped, or kept under encoding `utf-8`. Raises InputError if the file cannot be read.
    """
    where = label(path)
    try:
        data = _content(path, limit + 1)
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise InputError(f"{where}: not a file name") from None
    if len(data) > limit:
        raise InputError(f"{where}: larger than {limit // 2**20} MiB, the most that is read")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line}: not UTF-8 text; save the file as UTF-8") from None
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    return text


def _content(path: Path, max_bytes: int) -> bytes:
    """The first bytes of a file, decompressed."""
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            return file.read(max_bytes)
    import gzip  # noqa: PLC0415  rarely needed
    import zlib  # noqa: PLC0415

    try:
        with gzip.open(path, "rb") as compressed:
            return compressed.read(max_bytes)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{label(path)}: not a whole gzip file; copy it again") from None


def parse_json(text: str, where: str, parse_float: Callable[[str], object] = Decimal) -> object:
    """Parse JSON strictly: a key once, no NaN; fractions by `parse_float`.

    Raises InputError, beginning with `where`, on anything else.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members:
                raise InputError(f"{where}: key {abbreviated(key)} is given twice; keep one")
            members[key] = value
        return members

    def no_constant(name: str) -> NoReturn:
        raise InputError(f"{where}: {name} is not a number that JSON knows")

    def parse() -> object:
        return json.loads(
            text, parse_float=parse_float, parse_constant=no_constant, object_pairs_hook=once
        )

    return guarded(parse, text, where)


def finite_float(digits: str) -> float:
    """Parse a fraction of JSON as a float; raises OverflowError if it is beyond the largest."""
    value = float(digits)
    if not isfinite(value):
        raise OverflowError(digits)
    return value


def parse_toml(text: str, where: str) -> object:
    """Parse TOML, fractions as Decimal; raises InputError, beginning with `where`."""
    return guarded(lambda: tomllib.loads(text, parse_float=Decimal), text, where)


def guarded(parse: Callable[[], object], text: str, where: str) -> object:
    """Run a parser of `text`; every error that hostile text can cause becomes InputError."""
    try:
        document = parse()
        if "\\u" in text.lower():
            json.dumps(document, ensure_ascii=False, default=str).encode()
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: line {error.lineno}: not JSON: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: not TOML: {' '.join(str(error).split())}") from None
    except UnicodeEncodeError:
        raise InputError(f"{where}: a text holds half of a surrogate pair (\\ud800...)") from None
    except RecursionError:
        raise InputError(f"{where}: lists or mappings are nested too deeply") from None
    except (ValueError, ArithmeticError):
        raise InputError(f"{where}: a number or a character code is out of range") from None
    return document


def members(document: object) -> Iterator[tuple[str, Any]]:
    """Keys of a parsed document with their values, at any depth."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            yield str(key), value
            yield from members(value)
    elif isinstance(document, list):
        for entry in document:
            yield from members(entry)
