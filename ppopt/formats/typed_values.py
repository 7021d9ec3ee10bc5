"""Values that a user types into a flag or a form, converted to the values of a file.

`ppopt.formats.config.canonical` checks them further.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.documents import parse_json
from ppopt.formats.fields import abbreviated
from ppopt.problem import exact
from ppopt.problem.setting import Setting, Shape

_COUNTS = re.compile(r"[-+0-9, ]+", re.ASCII)
WHOLE = re.compile(r"[-+]?[0-9]{1,30}", re.ASCII)
"""The text of a whole number."""


def typed_value(setting: Setting, text: str) -> Any:
    """The value of a setting from typed text; raises InputError if it is none."""
    match setting.shape:
        case Shape.WHOLE if "," in text:
            raise InputError(
                f"{setting.name}: one number; `ppopt sweep ... {setting.name}={text}`, a word "
                "without dashes, tries several"
            )
        case Shape.WHOLE:
            return whole(setting.name, text)
        case Shape.PLACEMENT if "," in text or text.strip().isdigit():
            return [_device(stage, part.strip()) for stage, part in enumerate(text.split(","))]
        case Shape.PARTITION if text.lstrip().startswith("["):
            return parse_json(text.replace("'", '"'), setting.name)
        case Shape.PARTITION if _COUNTS.fullmatch(text):
            return [whole(setting.name, part.strip()) for part in text.split(",")]
        case Shape.STAGES | Shape.PAIRS | Shape.DEVICES | Shape.PER_DEVICE if "," in text:
            return [part.strip() for part in text.split(",")]
        case _:
            return text


def share(name: str, text: str) -> Fraction:
    """Read a share, `1%` or `0.01`; raises InputError on anything else, below 0 and above 100 %.

    A number from 1 to 100 needs its sign: 2 may be meant as 2 %.
    """
    number, percent, rest = text.strip().partition("%")
    value = exact.read(number, name).value / (100 if percent else 1)
    if not percent and 1 <= value <= 100:
        raise InputError(
            f"{name}: {number.strip()} is {exact.plain(100 * value)} %; write {number.strip()}% or "
            f"{exact.plain(value / 100)}"
        )
    if rest.strip() or not 0 <= value <= 1:
        raise InputError(
            f"{name}: {abbreviated(text)} is not a percentage from 0 to 100; write 1% or 0.01"
        )
    return value


def whole(name: str, text: str) -> int:
    """Read a whole number; raises InputError on anything else."""
    if not WHOLE.fullmatch(text):
        raise InputError(f"{name}: {abbreviated(text)} is not a whole number of up to 30 digits")
    return int(text)


def _device(stage: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise InputError(f"placement: stage {stage}: {text!r} is not a device number (0, 1, ...)")
    return int(text)
