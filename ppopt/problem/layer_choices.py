"""Recompute and offload of the layers of a model: as stated, by rule, or searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import floor
from typing import TYPE_CHECKING, Any, TypeVar

from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.decisions import SEARCH, SEARCH_SET, Decisions
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.layers import Layers
from ppopt.problem.modules import Chosen

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline

RULES: Mapping[str, tuple[str, ...]] = {
    "recompute": ("none", "full", "selective"),
    "offload": ("none", "all"),
}
"""Field of a pipeline -> its values that are a rule for all layers."""
L = TypeVar("L", bound=Layers)


def read(field: str, choice: Any, model: L) -> tuple[str | None, L]:
    """The open choice, if any, and the model with the layers that a rule selects.

    Raises InputError if the field has no such choice, or if layers are to offload and none can.
    """
    if choice is None:
        return None, model
    if isinstance(choice, tuple):
        if field == "recompute" and all(isinstance(number, int) for number in choice):
            return None, _of_numbers(choice, model)
        return None, model.with_modules(field, choice)
    recompute = field == "recompute"
    searches = (SEARCH, SEARCH_SET) if recompute else (SEARCH,)
    if choice not in (*RULES[field], *searches) and not _is_set(choice, model):
        raise InputError(f"{field}: {choice!r} is unknown; use {', '.join(RULES[field])} or search")
    moves = (
        layer.offload_time or any(own.offload_time for own in layer.modules)
        for layer in model.distinct
    )
    if not (recompute or choice == "none" or any(moves)):
        raise InputError("offload: no layer gives its offload_time; give it in the layers")
    if choice in searches:
        return choice, model
    return None, model.with_recompute(choice) if recompute else model.with_offload(choice)


def with_offload_fraction(model: L, counts: Sequence[int], value: object) -> L:
    """The model in which a fraction of the modules that offload do so, stage by stage.

    Of the n modules of a stage, in the order of F, the last floor(n x (1 - fraction)) do not. So
    does Megatron-LM (megatron/core/pipeline_parallel/fine_grained_activation_offload.py, 008df8a),
    which also retains some modules for prefetching. Raises InputError if the value is no number
    between 0 and 1.
    """
    fraction = exact.read(value, "offload_fraction").value
    if not 0 <= fraction <= 1:
        raise InputError(f"offload_fraction: {value} is not between 0 and 1")
    offloaded: dict[int, Chosen] = {}
    for low, high in pairwise(accumulate(counts, initial=0)):
        layers = [(index, model.layers[index].offload) for index in range(low, high)]
        pairs = [(index, name) for index, own in layers if isinstance(own, tuple) for name in own]
        num_offloaded = len(pairs) - floor(len(pairs) * (1 - fraction))
        own_modules: dict[int, tuple[str, ...]] = {}
        for index, name in pairs[:num_offloaded]:
            own_modules[index] = (*own_modules.get(index, ()), name)
        offloaded |= {index: own for index, own in layers if isinstance(own, bool)}
        offloaded |= own_modules
    return model.with_choice(
        {index: layer.recompute for index, layer in enumerate(model.layers)}, offloaded
    )


def _of_numbers(numbers: tuple[int, ...], model: L) -> L:
    """The layers that recompute by Primus' numbers: decoder layers first, then MTP layers.

    Raises InputError if a number is out of range.
    """
    order = [
        index
        for role in (DECODER, "mtp")
        for index, layer in enumerate(model.layers)
        if layer.role == role
    ]
    wrong = [number for number in numbers if not 0 <= number < len(order)]
    if wrong:
        raise InputError(f"recompute: there is no layer {wrong[0]}; the last is {len(order) - 1}")
    chosen: dict[int, Chosen] = {order[number]: True for number in numbers}
    return model.with_choice(chosen, {n: layer.offload for n, layer in enumerate(model.layers)})


def _is_set(choice: Any, model: Layers) -> bool:
    """Whether a choice is a set of modules of the layers, joined by `+`."""
    known = {module.name for layer in model.distinct for module in layer.modules}
    return isinstance(choice, str) and known.issuperset(choice.split("+"))


def by_rules(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Pipelines whose searched recompute and offload follow a rule; what is stated stays.

    First no layer does what is searched, then all recompute that may, then all offload that may.
    All have the partition and the limits of the pipeline.
    """
    searched = pipeline.open_decisions & Decisions.OF_LAYERS
    if not searched:
        yield pipeline
        return
    none, decided = pipeline.model.undecided(searched), dict.fromkeys(searched.names)
    every = {"recompute": none.with_recompute("full"), "offload": none.with_offload("all")}
    for model in (none, *map(every.__getitem__, decided)):
        yield pipeline.with_partition(pipeline.counts, model, **decided)


def with_modules(field: str, choice: Any, modules: Any) -> Any:
    """The choice for a field, if modules are stated instead: their names.

    Raises InputError if both are stated.
    """
    if modules is None:
        return choice
    names = modules.split(",") if isinstance(modules, str) else modules
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{field}_modules: {modules!r} is no list of names of modules")
    if choice is not None and (field == "offload" or choice != "selective"):
        raise InputError(f"{field}_modules: {field} says {choice}; keep one of both")
    return tuple(name.strip() for name in names)
