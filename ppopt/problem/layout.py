"""Layouts: partitions in the notation of Megatron-LM, `Et*3|(tt|)*29,m|L`.

A layout names every layer by the letter of its role, in order: E embedding, t transformer layer, m
MTP, L head with loss. `|` separates stages, `x*n` is n times x, `(...)` groups, commas are ignored.
From docs/user-guide/features/pipeline_parallel_layout.md and `parse_str_to_list` in
megatron/core/transformer/pipeline_parallel_layer_layout.py of NVIDIA/Megatron-LM (d98e8a6). A stage
without layers passes its input on: `E||t|L`. Difference to Megatron-LM: brackets may be nested, or
have no `*n`.

Several `L` are the losses of the head and of every MTP module, the head's last, on any stages after
the last `m`: `E|(t|)*10m|m|m|LL|LL` (pull request 5318 of NVIDIA/Megatron-LM).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ppopt.errors import InputError
from ppopt.problem.cost_table import LAYER_COSTS, ZERO, Occurrence, OverLayers
from ppopt.problem.layer import ENDS, MAX_LAYERS, Layer
from ppopt.problem.layer_settings import LETTERS
from ppopt.problem.layers import ONLY_BETWEEN, Layers

_TOKEN = re.compile(r"\*([0-9]{1,9})|.", re.DOTALL)
_ROLES = {letter: role for role, letter in LETTERS.items()}
_LONGEST = 2 * MAX_LAYERS
"""Maximum number of characters of a layout, repeats written out."""


def stages(text: str) -> tuple[str, ...]:
    """Letters of the layers of every stage; raises InputError on what is no layout."""
    stage_letters = tuple(_read("partition", text).split("|"))
    for stage in (0, len(stage_letters) - 1):
        if not stage_letters[stage]:
            raise InputError(
                f"partition: layout: stage {stage} of {len(stage_letters)} is empty; {ONLY_BETWEEN}"
            )
    return stage_letters


def roles(text: str) -> tuple[str, ...]:
    """Roles of layers, written as a layout of one stage; raises InputError on anything else."""
    letters = _read("roles", text)
    if not letters or "|" in letters:
        raise InputError(f"roles: {text!r} names no layers without stages; write them as Et*6L")
    return tuple(_ROLES[letter] for letter in letters)


def with_losses(model: Layers, text: str) -> Layers:
    """The model with its head divided into the losses that a layout names; see `_loss`.

    The model itself if the layout or the model has no loss, the layout has a single loss, or the
    model has several heads already. Raises InputError unless the losses are those of the head and
    of every MTP module.
    """
    stage_letters = stages(text)
    roles = [layer.role for layer in model.layers]
    losses = sum(letters.count("L") for letters in stage_letters)
    if losses < 2 or roles.count("head") != 1 or roles[-1] != "head":
        return model
    modules = roles.count("mtp")
    if losses != modules + 1:
        raise InputError(
            f"partition: the layout names {losses} L; the model has {modules} MTP modules and a "
            f"head, so name 1 L, or {modules + 1}"
        )
    firsts = [not index for letters in stage_letters for index in range(letters.count("L"))]
    head, state = model.layers[-1], model.layers[-2].output / losses
    divided = [
        _loss(head, losses, state * (losses - 1 - index), is_first=is_first)
        for index, is_first in enumerate(firsts)
    ]
    return replace(model, layers=(*model.layers[:-1], *divided))


def _loss(head: Layer, losses: int, output: Any, *, is_first: bool) -> Layer:
    """A loss: an equal share of the head's costs per microbatch, with all of its workspace.

    The first loss of a stage has the output matrix, and with it the static memory and the costs
    once in a step. A loss passes on the hidden states of the losses after it.
    """
    costs: dict[str, Any] = {"output": output}
    for cost in LAYER_COSTS:
        if cost.over_layers is OverLayers.SUM:
            each = getattr(head, cost.field) / losses
            once = getattr(head, cost.field) if is_first else ZERO
            costs[cost.field] = each if cost.per is Occurrence.MICROBATCH else once
    if head.phases is not None:
        costs["phases"] = head.phases.each(lambda number, _: number / losses)
    return replace(head, **costs)


def counts(text: str, model: Layers) -> tuple[int, ...]:
    """Layers per stage; raises InputError if the layers are not those of the model.

    An embedding or a head that the model has no layer for is left out: trainers name them always.
    """
    stage_letters = _without_added_ends(stages(text), model)
    named = "".join(stage_letters)
    letters = "".join(LETTERS[layer.role] for layer in model.layers)
    if named != letters:
        raise InputError(
            f"partition: the layout names {_counted(named)}; the model has {_counted(letters)}"
            if Counter(named) != Counter(letters)
            else f"partition: the layout's order is {_runs(named)}; the model's {_runs(letters)}"
        )
    return tuple(map(len, stage_letters))


def _without_added_ends(stage_letters: tuple[str, ...], model: Layers) -> tuple[str, ...]:
    """The letters of stages without an embedding or a head that the model has no layer for."""
    roles = {layer.role for layer in model.layers}
    first, *rest = stage_letters
    embedding, head = (LETTERS[role] if role not in roles else "" for role in ENDS)
    *before, last = (first.removeprefix(embedding), *rest)
    return (*before, last.removesuffix(head))


def write(model: Layers, partition: Sequence[int]) -> str:
    """Layout of a partition of a model; `counts` reads the same counts from it."""
    stages = model.stage_layers(partition)
    return write_roles([[layer.role for layer in stage] for stage in stages])


def write_roles(stages: Iterable[Iterable[str]]) -> str:
    """Layout of the roles of every stage's layers: equal ones in a row are repeats."""
    *before, last = (_runs("".join(LETTERS[role] for role in stage)) for stage in stages)
    parts = (f"{name}|" if times == 1 else f"({name}|)*{times}" for name, times in _groups(before))
    return "".join(parts) + last


def _groups(names: Iterable[str]) -> list[tuple[str, int]]:
    return [(name, len(list(same))) for name, same in groupby(names)]


def _runs(letters: str) -> str:
    """Letters with runs of three and more as repeats: `Ettt` is `Et*3`."""
    return "".join(
        letter * times if times < 3 else f"{letter}*{times}" for letter, times in _groups(letters)
    )


def _counted(letters: str) -> str:
    numbers = Counter(letters)
    return ", ".join(
        f"{numbers[letter]} {letter}" for letter in LETTERS.values() if numbers[letter]
    )


def _read(what: str, text: str) -> str:
    """The letters of a layout, its repeats written out; an error begins with `what`."""
    try:
        return _unrolled(text.strip().replace(",", ""))
    except InputError as error:
        raise InputError(f"{what}: layout: {error}") from None


def _unrolled(text: str) -> str:
    """The layout with every repeat and bracket written out."""
    _check_length(len(text))
    open_groups: list[list[str]] = [[]]
    repeatable = False
    for token in _TOKEN.finditer(text):
        word, times = token[0], token[1]
        if times is not None:
            if not repeatable:
                raise _wrong(text, token.start(), "a repeat follows a letter, | or a bracket")
            _check_length(len(open_groups[-1][-1]) * int(times))
            open_groups[-1][-1] *= int(times)
            repeatable = False
        elif word == "(":
            open_groups.append([])
            repeatable = False
        elif word == ")":
            if len(open_groups) == 1:
                raise _wrong(text, token.start(), "no bracket is open")
            group = "".join(open_groups.pop())
            open_groups[-1].append(group)
            repeatable = True
        elif word == "|" or word in LETTERS.values():
            open_groups[-1].append(word)
            repeatable = True
        else:
            known = ", ".join(f"{letter} ({role})" for role, letter in LETTERS.items())
            raise _wrong(text, token.start(), f"layers are {known}")
    if len(open_groups) > 1:
        raise _wrong(text, len(text), "a bracket is open")
    written_out = "".join(open_groups[0])
    _check_length(len(written_out))
    return written_out


def _check_length(length: int) -> None:
    if length > _LONGEST:
        raise InputError(f"more than {MAX_LAYERS} layers")


def _wrong(text: str, position: int, why: str) -> InputError:
    excerpt = text[position : position + 20]
    at = f"{excerpt!r}" if excerpt else "the end"
    return InputError(f"at {at}: {why}")
