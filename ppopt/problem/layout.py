"""Layouts: partitions in the notation of Megatron-LM, `Et*3|(tt|)*29,m|L`.

A layout names every layer by the letter of its role, in order: E embedding, t transformer layer, m
MTP, L head with loss. `|` separates stages, `x*n` is n times x, `(...)` groups, commas are ignored.
From docs/user-guide/features/pipeline_parallel_layout.md and `parse_str_to_list` in
megatron/core/transformer/pipeline_parallel_layer_layout.py of NVIDIA/Megatron-LM (d98e8a6). A stage
without layers passes its input on: `E||t|L`. Difference to Megatron-LM: brackets may be nested, or
have no `*n`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from ppopt.errors import InputError
from ppopt.problem.layer import MAX_LAYERS
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


def counts(text: str, model: Layers) -> tuple[int, ...]:
    """Layers per stage; raises InputError if the layers are not those of the model."""
    stage_letters = stages(text)
    named = "".join(stage_letters)
    letters = "".join(LETTERS[layer.role] for layer in model.layers)
    if named != letters:
        raise InputError(
            f"partition: the layout names {_counted(named)}; the model has {_counted(letters)}"
            if Counter(named) != Counter(letters)
            else f"partition: the layout's order is {_runs(named)}; the model's {_runs(letters)}"
        )
    return tuple(map(len, stage_letters))


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
