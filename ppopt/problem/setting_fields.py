"""Dataclasses whose fields are settings: they accept every name of a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from ppopt.problem.setting import Setting
from ppopt.problem.settings import NAMED, nearest, same_setting

T = TypeVar("T")


def accepts_every_name(cls: type[T], known: Mapping[str, Setting] = NAMED) -> type[T]:
    """Let a dataclass of settings accept any of their names (`p2p_time` for `p2p`).

    Raises InputError if one setting is given under two names, TypeError for an unknown name.
    """
    make: Callable[..., None] = cls.__init__
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]

    @wraps(make)
    def init(self: T, *args: Any, **values: Any) -> None:
        named: dict[str, str] = {}
        for name in values:
            field = known[name].field if name in known else name
            if field not in fields:
                hint = nearest(name, (key for key in known if known[key].field in fields))
                raise TypeError(f"{cls.__name__} takes no {name!r}; did you mean {hint}?")
            if field in named:
                raise same_setting(named[field], name)
            named[field] = name
        make(self, *args, **{field: values[name] for field, name in named.items()})

    cls.__init__ = init  # type: ignore[method-assign, assignment]
    return cls
