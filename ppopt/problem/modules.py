"""Modules of a layer: the parts of it that recompute or offload on their own.

Trainers recompute a list of modules (`--recompute-modules` of Megatron-LM), and
offload one (`--offload-modules`). A set of modules adds up their times and their memory. A module
inside another one of the set adds nothing: its container is computed as a whole, and what it
allocates is freed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from typing import Any

from ppopt.errors import InputError

MAX_MODULES = 32
"""Maximum number of modules of a layer."""
ZERO = Fraction(0)
TIMES = ("time", "offload_time")
MEMORY = ("memory", "offload_memory", "workspace")
_TEXTS = ("name", "inside", "excludes")
KEYS = (*_TEXTS, *TIMES, *MEMORY)
Chosen = bool | tuple[str, ...]
"""What a layer recomputes, or offloads: nothing, all of it (True), or modules by their names."""


@dataclass(frozen=True)
class Module:
    """A part of a layer that recomputes or offloads on its own."""

    name: str
    time: Any = None
    """Time to compute it again; None: it does not recompute."""
    memory: Any = ZERO
    """Activation that F does not retain if it recomputes."""
    workspace: Any = ZERO
    """Memory that B and BW need only while it is computed again."""
    offload_time: Any = None
    """Time to move `offload_memory`, each way; None: it does not offload."""
    offload_memory: Any = None
    """Activation that moves to the host if it offloads; None: `memory`."""
    inside: str = ""
    """Name of a module that contains it; empty: none does."""
    excludes: tuple[str, ...] = ()
    """Names of modules that do not recompute or offload if it does."""

    @property
    def in_file(self) -> dict[str, Any]:
        """The form of files: what `read` reads."""
        usual = replace(Module(self.name), offload_memory=self.memory)
        return {
            key: list(value) if key == "excludes" else value
            for key in KEYS
            if (value := getattr(self, key)) != getattr(usual, key) or key == "name"
        }

    def each(self, change: Callable[[Any, str], Any], keys: Iterable[str]) -> Module:
        """Change its numbers of these keys; `change` gets a number and its key."""
        numbers = {key: getattr(self, key) for key in keys}
        return replace(
            self, **{key: change(value, key) for key, value in numbers.items() if value is not None}
        )


Modules = tuple[Module, ...]


def read(value: object) -> Modules:
    """Read a list of modules, or of mappings of their keys; numbers stay as they are.

    Raises InputError if a key or a name is unknown, or a name is there twice.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MAX_MODULES:
        raise InputError(f"{value!r} is not a list of up to {MAX_MODULES} modules")
    modules = tuple(entry if isinstance(entry, Module) else _module(entry) for entry in value)
    names = [module.name for module in modules]
    for module in modules:
        if names.count(module.name) > 1:
            raise InputError(f"{module.name} is there twice")
        for key in ("inside", "excludes"):
            named = getattr(module, key)
            for name in (named,) if isinstance(named, str) else named:
                if name and (name not in names or name == module.name):
                    raise InputError(f"{module.name}: {key}: {name} is no other module")
        if module.name in _containers(modules, module):
            raise InputError(f"{module.name}: inside: it is inside itself")
    return modules


def _module(entry: object) -> Module:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise InputError(f"{entry!r} is no module; write {{name: core_attn, time: 1, memory: 2}}")
    unknown = [str(key) for key in entry if key not in KEYS]
    if unknown:
        raise InputError(f"{entry['name']}: {unknown[0]} is unknown; use {', '.join(KEYS)}")
    excludes = entry.get("excludes") or ()
    fields = {key: value for key, value in entry.items() if value is not None}
    if isinstance(excludes, str):
        excludes = (excludes,)
    return Module(**fields | {"excludes": tuple(map(str, excludes))})


def in_units(modules: Modules, change: Callable[[Any, str], Fraction]) -> Modules:
    """The modules with their numbers read, and `offload_memory` stated.

    Raises InputError if a module neither recomputes nor offloads.
    """
    complete = []
    for module in modules:
        own = module
        if own.offload_memory is None:
            own = replace(own, offload_memory=own.memory)
        own = own.each(change, (*TIMES, *MEMORY))
        if own.time is None and not own.offload_time:
            raise InputError(
                f"modules: {own.name}: no time; give `time` to recompute it, or `offload_time`"
            )
        complete.append(own)
    return tuple(complete)


def numbers_of(modules: Modules, keys: Sequence[str]) -> list[Any]:
    """The numbers of these keys, module by module."""
    return [
        number for module in modules for key in keys if (number := getattr(module, key)) is not None
    ]


def with_numbers(modules: Modules, keys: Sequence[str], numbers: Iterable[Any]) -> Modules:
    """The modules with other numbers of these keys, in the order of `numbers_of`."""
    remaining = iter(numbers)
    return tuple(module.each(lambda *_: next(remaining), keys) for module in modules)


def chosen_names(value: object) -> Chosen:
    """Read what a layer recomputes or offloads: true, false, or names of modules.

    Raises InputError on anything else.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{value!r} is neither true, false nor a mapping, nor a list of modules")
    if not all(isinstance(name, str) for name in value):
        raise InputError(f"{value!r} is no list of names of modules")
    return tuple(dict.fromkeys(value)) or False


def selected(modules: Modules, names: Iterable[str]) -> Modules:
    """The modules of a set that count: those that are not inside another one of the set.

    Raises InputError if a name is unknown.
    """
    known = {module.name: module for module in modules}
    for name in names:
        if name not in known:
            raise InputError(f"{name} is no module of the layer; use {', '.join(known) or 'none'}")
    own = set(names)
    return tuple(
        module
        for module in modules
        if module.name in own and not own.intersection(_containers(modules, module))
    )


def in_order(modules: Modules, chosen: Chosen) -> Chosen:
    """The names in the order of the modules; raises InputError if one is unknown."""
    if isinstance(chosen, bool):
        return chosen
    selected(modules, chosen)
    return tuple(module.name for module in modules if module.name in chosen)


def check_sets(modules: Modules, recompute: Chosen, offload: Chosen) -> None:
    """Raise InputError if modules of these sets exclude each other, or if one has no time."""
    sets = {"recompute": recompute, "offload": offload}
    own: dict[str, Modules] = {}
    for field, chosen in sets.items():
        own[field] = () if isinstance(chosen, bool) else selected(modules, chosen)
        for module in own[field]:
            if (module.time if field == "recompute" else module.offload_time) is None:
                key = "time" if field == "recompute" else "offload_time"
                raise InputError(f"{field}: module {module.name} has no {key}; give it")
    for first, second in product(own["recompute"], own["offload"]):
        if first == second or conflict(modules, first, second):
            raise InputError(
                f"offload: module {second.name} does not go with recompute of {first.name}; a "
                "module does one of both"
            )
    for counted in own.values():
        for first, second in combinations(counted, 2):
            if conflict(modules, first, second):
                raise InputError(f"modules: {first.name} excludes {second.name}; keep one")


def conflict(modules: Modules, first: Module, second: Module) -> bool:
    """Whether a module contains the other one, or excludes it."""
    contains = first.name in _containers(modules, second)
    contains |= second.name in _containers(modules, first)
    return contains or first.name in second.excludes or second.name in first.excludes


def _containers(modules: Modules, module: Module) -> list[str]:
    """Names of the modules that contain a module, the smallest first."""
    inside = {own.name: own.inside for own in modules}
    names: list[str] = []
    name = module.inside
    while name and name not in names:
        names.append(name)
        name = inside[name]
    return names
