"""What a layer may recompute and offload, with what each choice costs and saves.

The Pareto-minimal options of a layer are a small list: searches and bounds read it. On and off are
two options; a layer with modules has an option for every set of modules that no other option
dominates. Modules without relations add up, so that dominated sets of a group of related modules
are left out before groups are combined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain, combinations, product
from typing import NamedTuple

from ppopt.problem.decisions import Decisions
from ppopt.problem.distinct import distinct
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Chosen, Module, Modules, conflict, selected


class LayerOption(NamedTuple):
    """A choice of what a layer recomputes and offloads, in the user's units."""

    time: Fraction
    """Time added to B and BW."""
    moving: Fraction
    """Time of its move to the host, each way."""
    retained: Fraction
    """Activation that F retains."""
    resident: Fraction
    """Retained activation that stays on the device."""
    input_workspace: Fraction
    backward_workspace: Fraction
    recompute: Chosen
    offload: Chosen

    @property
    def costs(self) -> tuple[Fraction, ...]:
        """Its times and amounts of memory."""
        return (
            *(self.time, self.moving, self.retained, self.resident),
            *(self.input_workspace, self.backward_workspace),
        )

    def dominates(self, reference: LayerOption) -> bool:
        """Whether it needs no more time, and no more memory at any instant."""
        return all(own <= cost for own, cost in zip(self.costs, reference.costs, strict=True))

    def rate(self, following: LayerOption) -> Fraction:
        """Time per memory that another option saves, compared with this one."""
        added = following.time + following.moving - self.time - self.moving
        return added / (self.resident - following.resident)


def option_of(layer: Layer) -> LayerOption:
    """What a layer recomputes and offloads now."""
    costs = layer.in_force
    return LayerOption(
        costs["recompute_time"],
        costs["offload_time"],
        costs["kept"],
        costs["kept"] - costs["offload_memory"],
        costs["input_workspace"],
        costs["backward_workspace"],
        layer.recompute,
        layer.offload,
    )


@lru_cache(maxsize=4096)
def options_of(layer: Layer, decisions: Decisions) -> tuple[LayerOption, ...]:
    """Pareto-minimal options of a layer, the shortest first; what is not open is as it is.

    The first option does nothing that is open.
    """
    bare = layer.undecided(decisions)
    layers = [bare]
    if Decisions.RECOMPUTE in decisions and bare.saved > 0 and not bare.offload:
        layers.append(bare.having(recompute=True))
    if Decisions.OFFLOAD in decisions and bare.offload_time and not bare.recompute:
        layers.append(bare.having(offload=True))
    if True not in (bare.recompute, bare.offload):
        layers += [bare.having(**chosen) for chosen in _sets(bare, decisions)]
    return tuple(_pareto_minimal(map(option_of, layers)))


def _pareto_minimal(options: Iterable[LayerOption]) -> list[LayerOption]:
    front: list[LayerOption] = []
    for option in sorted(options, key=lambda own: (own.costs, _size(own))):
        if not any(known.dominates(option) for known in front):
            front.append(option)
    return front


def _size(option: LayerOption) -> int:
    """Number of modules of an option; a whole layer is one."""
    return sum(
        len(chosen) if isinstance(chosen, tuple) else chosen
        for chosen in (option.recompute, option.offload)
    )


def _sets(layer: Layer, decisions: Decisions) -> Iterator[dict[str, Chosen]]:
    """Sets of modules that no other set dominates, as fields of a layer."""
    sets_so_far = [option_of(layer)]
    for group in _groups(layer.modules, partial(conflict, layer.modules)):
        sets = list(_sets_of_group(layer, group, decisions))
        sets_so_far = _pareto_minimal(
            option_of(
                layer.having(
                    recompute=_union(option.recompute, names["recompute"]),
                    offload=_union(option.offload, names["offload"]),
                )
            )
            for option in sets_so_far
            for names in sets
        )
    for option in sets_so_far:
        yield {"recompute": option.recompute, "offload": option.offload}


def _union(chosen: Chosen, names: tuple[str, ...]) -> Chosen:
    return (*chosen, *names) if isinstance(chosen, tuple) else names or chosen


def _sets_of_group(
    layer: Layer, group: Sequence[Module], decisions: Decisions
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Sets of related modules that go together, and with those that the layer has anyway."""
    stated = {
        name
        for chosen in (layer.recompute, layer.offload)
        if isinstance(chosen, tuple)
        for name in chosen
    }
    choices = []
    for module in group:
        own = [""]
        if Decisions.RECOMPUTE in decisions and module.time is not None and module.memory > 0:
            own.append("recompute")
        moves = module.offload_time and module.offload_memory > 0
        if Decisions.OFFLOAD in decisions and moves:
            own.append("offload")
        choices.append(own[:1] if module.name in stated else own)
    before = [module for module in group if module.name in stated]
    for fields in product(*choices):
        added = [module for module, field in zip(group, fields, strict=True) if field]
        pairs = chain(combinations(added, 2), product(added, before))
        if any(conflict(layer.modules, *pair) for pair in pairs):
            continue
        yield {
            field: tuple(
                module.name for module, own in zip(group, fields, strict=True) if own == field
            )
            for field in ("recompute", "offload")
        }


def _groups(modules: Modules, related_to: Callable[[Module, Module], bool]) -> list[list[Module]]:
    """Modules that are related, inside each other or excluding each other, group by group."""
    groups: list[list[Module]] = []
    for module in modules:
        related = [group for group in groups if any(related_to(module, own) for own in group)]
        groups = [group for group in groups if group not in related]
        groups.append([*chain(*related), module])
    return groups


def shortest_by_memory(options: Iterable[LayerOption]) -> list[LayerOption]:
    """Options of which every longer one has less resident memory, the shortest first."""
    front: list[LayerOption] = []
    for option in sorted(options, key=lambda own: (own.time + own.moving, own.resident)):
        if not front or option.resident < front[-1].resident:
            front.append(option)
    return front


def convex_hull(options: Iterable[LayerOption]) -> list[LayerOption]:
    """Options on the lower convex hull of time against resident memory, the shortest first."""
    hull: list[LayerOption] = []
    for option in shortest_by_memory(options):
        while len(hull) > 1 and hull[-2].rate(hull[-1]) >= hull[-2].rate(option):
            hull.pop()
        hull.append(option)
    return hull


def sets_of_all(layers: Sequence[Layer], *, without_dominated: bool = True) -> list[LayerOption]:
    """Sets of modules that all layers recompute, the shortest first; the empty one is the first.

    Times and memory are sums over the layers, and workspaces their maxima. A set is left out if
    another one needs no more time and no more memory in any layer. Then modules that the set would
    leave to offload may be missed: with a search of offload, retain dominated sets.
    """
    counts = Counter(map(id, layers))
    each = distinct(layers)
    sets: list[_SetOfAll] = [_SetOfAll((), [option_of(layer) for layer in each])]
    for group in _groups(_recomputed_in(each), partial(_related, each)):
        names = [module.name for module in group]
        own = chain(*(combinations(names, size) for size in range(len(names) + 1)))
        sets = list(_extended(sets, list(own), each))
        if without_dominated:
            sets = _without_dominated(sets)
    totals = [_total(chosen, [counts[id(layer)] for layer in each]) for chosen in sets]
    return sorted(totals, key=lambda total: (total.costs, _size(total)))


class _SetOfAll(NamedTuple):
    """A set of modules, with the option of every distinct layer."""

    names: tuple[str, ...]
    options: list[LayerOption]


def _recomputed_in(layers: Iterable[Layer]) -> Modules:
    """The modules that recompute in some layers, one of every name."""
    modules = (module for layer in layers for module in layer.modules if module.time is not None)
    return tuple({module.name: module for module in modules}.values())


def _related(layers: Iterable[Layer], first: Module, second: Module) -> bool:
    """Whether two modules are related in some layer."""
    for layer in layers:
        own = {module.name: module for module in layer.modules}
        pair = own.get(first.name), own.get(second.name)
        if pair[0] and pair[1] and conflict(layer.modules, pair[0], pair[1]):
            return True
    return False


def _extended(
    sets: Iterable[_SetOfAll], groups: Sequence[tuple[str, ...]], layers: Sequence[Layer]
) -> Iterator[_SetOfAll]:
    """The sets, each with every group of modules whose layers can recompute all of them."""
    for chosen, group in product(sets, groups):
        names = (*chosen.names, *group)
        options = []
        for layer in layers:
            known = {module.name for module in layer.modules if module.time is not None}
            own = tuple(name for name in names if name in known)
            if own and not _can_recompute(layer, own):
                break
            options.append(option_of(layer.having(recompute=own or False)))
        if len(options) == len(layers):
            yield _SetOfAll(names, options)


def _can_recompute(layer: Layer, names: tuple[str, ...]) -> bool:
    """Whether a layer, with what it offloads, can recompute all of these modules."""
    if layer.offload is True:
        return False
    counted = selected(layer.modules, names)
    moving = selected(layer.modules, layer.offload or ())
    pairs = chain(combinations(counted, 2), product(counted, moving))
    return not any(
        first == second or conflict(layer.modules, first, second) for first, second in pairs
    )


def _without_dominated(sets: Iterable[_SetOfAll]) -> list[_SetOfAll]:
    front: list[_SetOfAll] = []
    for chosen in sorted(
        sets, key=lambda own: ([option.costs for option in own.options], len(own.names))
    ):
        if not any(
            all(map(LayerOption.dominates, known.options, chosen.options)) for known in front
        ):
            front.append(chosen)
    return front


def _total(chosen: _SetOfAll, counts: Sequence[int]) -> LayerOption:
    """The option of all layers together."""
    rows = [option.costs for option in chosen.options]
    sums = [
        sum((cost * n for cost, n in zip(column, counts, strict=True)), Fraction(0))
        for column in zip(*rows, strict=True)
    ]
    workspaces = [max(column) for column in zip(*rows, strict=True)][4:]
    return LayerOption._make((*sums[:4], *workspaces, chosen.names or False, False))
