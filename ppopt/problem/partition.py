"""Partitions: how many consecutive layers of a model each stage holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

from ppopt.errors import InputError
from ppopt.problem import exact, layout
from ppopt.problem.model import DECODER, LETTERS, Model

Counts = tuple[int, ...]
"""Layers of every stage, in stage order."""
BALANCED = "balanced"
_WORD = re.compile(rf"(?![{''.join(LETTERS.values())}]+$)[A-Za-z0-9_-]+")
"""Text that is the name of a rule, if anything: a layout has other signs, or its letters alone."""


def even(model: Model, stages: int) -> Counts:
    """Counts of decoder layers that differ by at most one, the larger ones first.

    What comes before the first decoder layer (the embedding) goes to the first stage, and every
    other layer to the stage of the decoder layer before it: MTP and head to the last. Raises
    InputError where there are fewer decoder layers than stages.
    """
    starts = [index for index, layer in enumerate(model.layers) if layer.role == DECODER]
    if len(starts) < stages:
        raise InputError(
            f"partition: even: {_of(len(starts), 'decoder layer')} for {stages} stages; every "
            "stage needs one; use balanced, or fewer devices or chunks"
        )
    each, more = divmod(len(starts), stages)
    decoders = (each + (stage < more) for stage in range(stages - 1))
    cuts = [0, *(starts[index] for index in accumulate(decoders)), len(model)]
    return tuple(end - start for start, end in pairwise(cuts))


def balanced(model: Model, stages: int) -> Counts:
    """Counts whose largest F + BW of a stage is least.

    Of several such partitions: the one of least sum of squares of F + BW over the stages; of these,
    the one whose first stage has the most layers, then the second, and so on. Exact, by bisection
    on the largest F + BW (whether a partition keeps within it, filling one stage after the other
    tells: Iqbal, "Approximate algorithms for partitioning problems", 1991) and a dynamic program
    over the first layer of a stage for the sum of squares. Raises InputError where there are fewer
    layers than stages.
    """
    _check_stages(model, stages)
    per_unit = exact.common_denominator(layer.work for layer in model.layers)
    work = [int(layer.work * per_unit) for layer in model.layers]
    return _flattest(work, stages, _least_largest(work, stages))


def bottleneck(model: Model, counts: Sequence[int]) -> Fraction:
    """Largest F + BW of a stage, in the user's unit."""
    costs = model.stage_costs(counts)
    return max(f + bw for f, bw in zip(costs.forward, costs.backward, strict=True))


def _least_largest(work: Sequence[int], stages: int) -> int:
    """Least bound within which `stages` runs of consecutive layers keep their work."""
    least, most = max(work), sum(work)
    while least < most:
        middle = (least + most) // 2
        if _runs_within(work, middle) <= stages:
            most = middle
        else:
            least = middle + 1
    return least


def _runs_within(work: Sequence[int], bound: int) -> int:
    """Fewest runs of consecutive layers whose work is at most `bound` each."""
    runs, filled = 1, 0
    for one in work:
        if filled + one > bound:
            runs, filled = runs + 1, 0
        filled += one
    return runs


def _flattest(work: Sequence[int], stages: int, bound: int) -> Counts:
    """Counts of least sum of squares within `bound`, the larger ones first where equal."""
    size = len(work)
    sums = list(accumulate(work, initial=0))
    none = stages * bound * bound + 1
    least = [none] * size + [0]
    choices: list[list[int]] = []
    for left in range(stages):
        longer, chosen = [none] * (size + 1), [0] * (size + 1)
        for start in range(size - left):
            for end in range(start + 1, size + 1):
                filled = sums[end] - sums[start]
                if filled > bound:
                    break
                total = filled * filled + least[end]
                if total <= longer[start]:
                    longer[start], chosen[start] = total, end
        least = longer
        choices.append(chosen)
    counts, start = [], 0
    for chosen in reversed(choices):
        counts.append(chosen[start] - start)
        start = chosen[start]
    return tuple(counts)


SEARCH = "search"
"""The partition is chosen with the schedule; until then the pipeline is that of `balanced`."""
RULES: dict[str, Callable[[Model, int], Counts]] = {
    "even": even,
    BALANCED: balanced,
    SEARCH: balanced,
}
"""Rule by name -> counts of a model for a number of stages."""


def refuse_search(partition: str | Counts | None, where: str) -> None:
    """Raise InputError where the partition is to be searched, which `where` does not do."""
    if partition == SEARCH:
        raise InputError(f"partition: {where} does not search it; give counts, even or balanced")


def normal(partition: Any) -> str | Counts:
    """Check a partition by itself: the name of a rule, counts as a tuple, or a layout's text.

    None is `balanced`. Raises InputError on anything else.
    """
    if partition is None:
        return BALANCED
    if isinstance(partition, str) and partition.strip().startswith("type:"):
        raise InputError(
            f"partition: {partition!r} is a rule of DeepSpeed's; give what it makes of your model "
            "as a list of layers per stage"
        )
    if isinstance(partition, str) and not _WORD.fullmatch(partition.strip()):
        return partition.strip()
    if isinstance(partition, str) and partition.strip().lower() in RULES:
        return partition.strip().lower()
    if isinstance(partition, str) or not isinstance(partition, Sequence) or not partition:
        raise InputError(
            f"partition: {partition!r} is unknown; use {', '.join(RULES)}, a list of layers per "
            "stage, or a layout such as Et*3|(tt|)*2tL"
        )
    return tuple(partition)


def stages_of(partition: str | Counts) -> int | None:
    """Number of stages that counts or a layout make; None for a rule, which makes any."""
    if isinstance(partition, tuple):
        return len(partition)
    return None if partition in RULES else len(layout.stages(partition))


def counts_of(model: Model, partition: str | Counts, stages: int) -> Counts:
    """Layers per stage of a partition that `normal` has checked.

    Raises InputError where it does not fit the model or the number of stages.
    """
    _check_stages(model, stages)
    if isinstance(partition, str) and partition in RULES:
        return RULES[partition](model, stages)
    counts = partition if isinstance(partition, tuple) else layout.counts(partition, model)
    if len(counts) != stages:
        raise InputError(
            f"partition: has {_of(len(counts), 'stage')}, the placement {stages}; give one count "
            "per stage, devices x chunks"
        )
    return model.checked(counts)


def _check_stages(model: Model, stages: int) -> None:
    if len(model) < stages:
        raise InputError(
            f"partition: {_of(len(model), 'layer')} for {stages} stages; every stage needs one; "
            "use fewer devices or chunks"
        )


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
