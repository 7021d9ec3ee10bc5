"""What a layer may recompute and offload, with what each choice costs and saves.

The Pareto-minimal options of a layer are a small list: searches and bounds read it. On and off are
two options; a layer with modules has an option for every set of modules that no other option
dominates. Modules without relations add up, so that dominated sets of a group of related modules
are left out before groups are combined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations, product
from typing import NamedTuple

from ppopt.problem.layer import Layer
from ppopt.problem.modules import Chosen, Module, Modules, conflict


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
def options_of(layer: Layer, *, recompute: bool, offload: bool) -> tuple[LayerOption, ...]:
    """Pareto-minimal options of a layer, the shortest first; what is not searched is as it is.

    The first option does nothing that is searched.
    """
    fixed = {
        **({} if recompute else {"recompute": layer.recompute}),
        **({} if offload else {"offload": layer.offload}),
    }
    bare = layer.having(**{"recompute": False, "offload": False} | fixed)
    layers = [bare]
    if recompute and bare.saved > 0 and not bare.offload:
        layers.append(bare.having(recompute=True))
    if offload and bare.offload_time and not bare.recompute:
        layers.append(bare.having(offload=True))
    if True not in fixed.values():
        layers += [
            bare.having(**chosen) for chosen in _sets(bare, recompute=recompute, offload=offload)
        ]
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


def _sets(layer: Layer, *, recompute: bool, offload: bool) -> Iterator[dict[str, Chosen]]:
    """Sets of modules that no other set dominates, as fields of a layer."""
    partial = [option_of(layer)]
    for group in _groups(layer.modules):
        sets = list(_sets_of_group(layer, group, recompute=recompute, offload=offload))
        partial = _pareto_minimal(
            option_of(
                layer.having(
                    recompute=_union(option.recompute, names["recompute"]),
                    offload=_union(option.offload, names["offload"]),
                )
            )
            for option in partial
            for names in sets
        )
    for option in partial:
        yield {"recompute": option.recompute, "offload": option.offload}


def _union(chosen: Chosen, names: tuple[str, ...]) -> Chosen:
    return (*chosen, *names) if isinstance(chosen, tuple) else names or chosen


def _sets_of_group(
    layer: Layer, group: Sequence[Module], *, recompute: bool, offload: bool
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
        if recompute and module.time is not None and module.memory > 0:
            own.append("recompute")
        if offload and module.offload_time and module.offload_memory > 0:
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


def _groups(modules: Modules) -> list[list[Module]]:
    """Modules that are related, inside each other or excluding each other, group by group."""
    groups: list[list[Module]] = []
    for module in modules:
        related = [
            group for group in groups if any(conflict(modules, module, own) for own in group)
        ]
        groups = [group for group in groups if group not in related]
        groups.append([*chain(*related), module])
    return groups


def convex_hull(options: Iterable[LayerOption]) -> list[LayerOption]:
    """Options on the lower convex hull of time against resident memory, the shortest first."""
    hull: list[LayerOption] = []
    for option in sorted(options, key=lambda own: (own.time + own.moving, own.resident)):
        if hull and option.resident >= hull[-1].resident:
            continue
        while len(hull) > 1 and hull[-2].rate(hull[-1]) >= hull[-2].rate(option):
            hull.pop()
        hull.append(option)
    return hull


def sets_of_all(layers: Sequence[Layer], max_count: int) -> list[tuple[str, ...]]:
    """Sets of modules that all layers recompute, the shortest first, without dominated ones.

    Times and memory of a set add up over the layers. At most `max_count`: those on the convex hull
    if there are more.
    """
    totals: dict[str, Module] = {}
    for layer in layers:
        for module in layer.modules:
            if module.time is None:
                continue
            known = totals.get(module.name)
            totals[module.name] = module if known is None else known.plus(module)
    activation = sum((layer.activation for layer in layers), Fraction(0))
    every = Layer(forward=1, activation=activation, kept=activation, modules=tuple(totals.values()))
    options = options_of(every, recompute=True, offload=False)
    if len(options) > max_count:
        options = tuple(convex_hull(options)[:max_count])
    return [option.recompute for option in options if isinstance(option.recompute, tuple)]
