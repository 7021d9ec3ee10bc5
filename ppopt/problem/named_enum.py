"""Settings whose value is one of a few names."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NoReturn

from ppopt.errors import InputError

_WORD_STARTS = re.compile(r"(?<!^)(?=[A-Z])")


class NamedEnum(StrEnum):
    """A setting whose values are names; its class has the name of the setting.

    `LinkMode("streams")` reads a name; it raises InputError for an unknown one.
    """

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        name = _WORD_STARTS.sub("_", cls.__name__).lower()
        raise InputError(f"{name}: {value!r} is unknown; use {' or '.join(cls)}")
