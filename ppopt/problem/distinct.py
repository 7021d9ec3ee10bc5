"""Work once per object: rows of thousands of equal layers repeat a few objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


def distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items without repetitions of the same object, in order of first appearance."""
    items = tuple(items)
    return tuple(dict(zip(map(id, items), items, strict=True)).values())


def map_distinct(function: Callable[[Item], Value], items: Iterable[Item]) -> tuple[Value, ...]:
    """Value of a function for every item; the function is called once per object."""
    items = tuple(items)
    values = {id(item): function(item) for item in distinct(items)}
    return tuple(map(values.__getitem__, map(id, items)))
