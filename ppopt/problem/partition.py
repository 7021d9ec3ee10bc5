"""Partitions: how many consecutive layers of a model each stage holds."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import add
from typing import Any, NamedTuple

from ppopt.errors import ConflictError, InputError
from ppopt.problem import exact, layer_names, layout
from ppopt.problem.decisions import SEARCH
from ppopt.problem.layer_settings import DECODER, LETTERS
from ppopt.problem.layers import Layers

Counts = tuple[int, ...]
"""Layers of every stage, in stage order."""
Speeds = tuple[Fraction, ...]
"""Speed of the device of every stage, in stage order."""
BALANCED = "balanced"
_WORD = re.compile(rf"(?![{''.join(LETTERS.values())}]+$)[A-Za-z0-9_-]+")
"""Text that can only be the name of a rule: a layout has other signs, or its letters alone."""


def in_stage_order(partition: str | Counts, hosted: Sequence[Sequence[int]]) -> str | Counts:
    """Turn a list by rank into the order of the stages; `hosted` has the stages of every device.

    A rule has no order. A list of another length stays as it is: `counts_of` refuses it. Raises
    InputError for a layout, which is always in the order of the stages.
    """
    stages = list(chain.from_iterable(hosted))
    if partition in RULES or (isinstance(partition, tuple) and len(partition) != len(stages)):
        return partition
    if isinstance(partition, str):
        raise InputError("partition_order: a layout is in the order of the stages; give stages")
    return tuple(count for _, count in sorted(zip(stages, partition, strict=True)))


def even(model: Layers, stages: int, speeds: Speeds | None = None) -> Counts:  # noqa: ARG001
    """Counts of decoder layers that differ by at most one, the larger ones first.

    Layers before the first decoder layer (the embedding) go to the first stage, and every other
    layer to the stage of the decoder layer before it: MTP and head to the last. Speeds make no
    difference. Raises ConflictError if there are fewer decoder layers than stages.
    """
    num_decoders = model.num_decoders
    if num_decoders < stages:
        raise ConflictError(
            f"partition: even: {_of(num_decoders, 'decoder layer')} for {stages} stages; every "
            "stage needs one; use balanced, or fewer devices or chunks"
        )
    each, remainder = divmod(num_decoders, stages)
    return _with_non_decoder_layers(model, [each + (stage < remainder) for stage in range(stages)])


def of_all_layers(model: Layers, partition: str | Counts) -> str | Counts:
    """A partition that `normal` has checked, with counts of all layers.

    Counts that add up to the decoder layers alone are counts of these, as trainers write them. The
    other layers go to the stages to which `even` assigns them.
    """
    if isinstance(partition, str) or not all(type(count) is int for count in partition):
        return partition
    decoders = model.num_decoders
    if sum(partition) != decoders or decoders in (0, len(model)) or min(partition) < 0:
        return partition
    return _with_non_decoder_layers(model, partition)


def _with_non_decoder_layers(model: Layers, decoders: Sequence[int]) -> Counts:
    """Counts of all layers, from counts of decoder layers: see `even`.

    The layers after the last decoder layer go to the last stage, even if it has no decoder layer.
    """
    indices = _decoders(model)
    starts = [*indices, indices[-1] + 1]
    cuts = [0, *(starts[index] for index in accumulate(decoders[:-1])), len(model)]
    return tuple(end - start for start, end in pairwise(cuts))


def _decoders(model: Layers) -> list[int]:
    """Indices of the decoder layers."""
    return [index for index, layer in enumerate(model.layers) if layer.role == DECODER]


def balanced(model: Layers, stages: int, speeds: Speeds | None = None) -> Counts:
    """Counts that minimize the largest F + BW of a stage, on devices of these speeds (default 1).

    Ties are broken by the smallest sum of squares of F + BW over the stages, then by the most
    layers on the first stage, then on the second, and so on. Exact: bisection on the largest F +
    BW, and a dynamic program over the first layer of a stage. Raises ConflictError if there are
    fewer layers than stages.
    """
    return _flattest(*_work_and_slowness(model, stages, speeds))


def balanced_late(model: Layers, stages: int, speeds: Speeds | None = None) -> Counts:
    """Counts as `balanced`, with ties broken by the most layers on the last stages.

    Early stages have the most microbatches in flight, so fewer layers there take less memory.
    Raises ConflictError if there are fewer layers than stages.
    """
    work, slow = _work_and_slowness(model, stages, speeds)
    mirrored = tuple(work[-1] - done for done in reversed(work))
    return _flattest(mirrored, slow[::-1])[::-1]


def filled_from_outside(model: Layers, stages: int) -> Counts:
    """Counts for a V placement that fill the devices from the ends of the pipeline inwards.

    The first stages are those of `balanced`; the last ones take as many layers as the largest sum
    of a device allows. What remains is balanced over the innermost devices, so that these compute
    less. Of all numbers of filled devices, the one with the minimum sum of squares. Raises
    ConflictError if there are fewer layers than stages.
    """
    work, _ = _work_and_slowness(model, stages, None)
    counts, devices = balanced(model, stages), stages // 2
    ends = (0, *accumulate(counts))

    def load(low: int, high: int) -> int:
        return work[high] - work[low]

    def loads(own: Counts) -> list[int]:
        cuts = (0, *accumulate(own))
        each = [load(*pair) for pair in pairwise(cuts)]
        return list(map(add, each[:devices], reversed(each[devices:])))

    largest, high = max(loads(counts)), len(model)
    last: Counts = ()
    candidates = [counts]
    for device in range(devices - 1):
        low, inner = ends[device + 1], stages - 2 * device - 2
        count = 1
        while (
            high - low - count > inner
            and load(ends[device], low) + load(high - count - 1, high) <= largest
        ):
            count += 1
        high, last = high - count, (count, *last)
        if high - low < inner:
            break
        rest = _flattest(
            tuple(work[high] - done for done in work[low : high + 1][::-1]), (1,) * inner
        )
        candidates.append((*counts[: device + 1], *rest[::-1], *last))
    return min(reversed(candidates), key=lambda own: sum(each**2 for each in loads(own)))


def _work_and_slowness(
    model: Layers, stages: int, speeds: Speeds | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Work of the first 0, 1, ... layers, and how slow each stage is, as integers."""
    if len(model) < stages:
        raise ConflictError(
            f"partition: {_of(len(model), 'layer')} for {stages} stages; every stage needs one; "
            "use fewer devices or chunks"
        )
    per_unit = exact.common_denominator(model.each(lambda layer: layer.work))
    slow = [1 / speed for speed in speeds or (Fraction(1),) * stages]
    per_slow = exact.common_denominator(slow)
    work = model.each(lambda layer: int(layer.work * per_unit))
    sums = tuple(accumulate(work, initial=0))
    return sums, tuple(int(factor * per_slow) for factor in slow)


@lru_cache(maxsize=64)
def _flattest(sums: tuple[int, ...], slow: tuple[int, ...]) -> Counts:
    """Counts of minimum largest time, then of minimum sum of squares, the larger ones first.

    `sums` is the work of the first 0, 1, ... layers; stage s takes its work times `slow[s]`.
    """
    low, high = 0, sums[-1] * max(slow)
    while low < high:
        middle = (low + high) // 2
        if _fits(sums, slow, middle):
            high = middle
        else:
            low = middle + 1
    return _min_squares(sums, slow, high)


def _fits(sums: Sequence[int], slow: Sequence[int], bound: int) -> bool:
    """Whether some partition keeps every stage within `bound`."""
    if len(set(slow)) == 1:
        return _fewest_stages(sums, bound // slow[0]) <= len(slow)
    ends = {factor: _ends(sums, bound // factor) for factor in set(slow)}
    starts = [0]
    for factor in slow:
        starts = _reached(starts, ends[factor])
    return bool(starts) and starts[-1] == len(sums) - 1


def _reached(starts: Sequence[int], latest: Sequence[int]) -> list[int]:
    """All ends of a stage that begins at one of some starts; both ascend."""
    reached: list[int] = []
    for start in starts:
        first = max(start, reached[-1] if reached else 0) + 1
        reached += range(first, latest[start] + 1)
    return reached


def _ends(sums: Sequence[int], max_work: int) -> list[int]:
    """The latest end of a stage that begins at each layer, with its work within `max_work`."""
    return [bisect_right(sums, done + max_work) - 1 for done in sums]


def _fewest_stages(sums: Sequence[int], max_work: int) -> int:
    """Fewest stages of work within `max_work` each; more than there are layers if impossible."""
    ends = _ends(sums, max_work)
    stages, start = 0, 0
    while start < len(sums) - 1:
        if ends[start] == start:
            return len(sums)
        stages, start = stages + 1, ends[start]
    return stages


def _min_squares(sums: Sequence[int], slow: Sequence[int], bound: int) -> Counts:
    """Counts of minimum sum of squares within `bound`, the larger ones first if equal.

    A dynamic program from the last stage to the first. Squares of sums satisfy the quadrangle
    inequality, so the best end of a stage does not decrease with its start: it is computed for the
    middle start first, and then within its ends for the starts on either side (F. F. Yao, "Speed-up
    in dynamic programming", 1982). Only starts that the first stages reach are considered.
    """
    size = len(sums) - 1
    ends = [_ends(sums, bound // factor) for factor in slow]
    latest = list(accumulate(ends, lambda start, own: own[start], initial=0))
    earliest = [size]
    for own in reversed(ends):
        earliest.insert(0, bisect_left(own, earliest[0]))
    rest = {size: 0}
    choices: list[dict[int, int]] = []
    for stage in reversed(range(len(slow))):
        low = max(earliest[stage], stage)
        high = min(latest[stage], size - len(slow) + stage)
        squares = _Squares(sums, slow[stage], ends[stage], rest)
        chosen = squares.best_ends(low, high)
        rest = {start: squares.total(start, end) for start, end in chosen.items()}
        choices.append(chosen)
    counts, start = [], 0
    for chosen in reversed(choices):
        counts.append(chosen[start] - start)
        start = chosen[start]
    return tuple(counts)


class _Squares(NamedTuple):
    """Sums of squares from one stage on, by where the stage starts and ends."""

    sums: Sequence[int]
    factor: int
    latest: Sequence[int]
    """The latest end of a stage that begins at each layer."""
    rest: Mapping[int, int]
    """Minimum sum of squares of the stages after an end, if they can begin there."""

    def total(self, start: int, end: int) -> int:
        """Sum of squares of a stage and the best stages after it."""
        return (self.factor * (self.sums[end] - self.sums[start])) ** 2 + self.rest[end]

    def best_ends(self, low: int, high: int) -> dict[int, int]:
        """The last of the best ends for every start from `low` to `high` that has any."""
        first, last = min(self.rest), max(self.rest)
        best: dict[int, int] = {}
        waiting = [(low, high, first, last)]
        while waiting:
            low, high, first, last = waiting.pop()
            if low > high:
                continue
            start = (low + high) // 2
            ends = range(min(last, self.latest[start]), max(first, start + 1) - 1, -1)
            totals = [(self.total(start, end), -end) for end in ends if end in self.rest]
            if totals:
                best[start] = end = -min(totals)[1]
                waiting += [(low, start - 1, first, end), (start + 1, high, end, last)]
            else:
                waiting += [(low, start - 1, first, last), (start + 1, high, first, last)]
        return best


RULES: dict[str, Callable[[Layers, int, Speeds | None], Counts]] = {
    "even": even,
    BALANCED: balanced,
    SEARCH: balanced,
}
"""Rule by name -> counts of a model for a number of stages and the speeds of their devices."""


def all_by_rule(model: Layers, stages: int, speeds: Speeds | None = None) -> list[Counts]:
    """The partitions of all rules; without `even` if a stage would have no decoder layer.

    Raises ConflictError if there are fewer layers than stages.
    """
    every_rule = len(_decoders(model)) >= stages
    return [*([even(model, stages)] if every_rule else []), balanced(model, stages, speeds)]


_OF_STAGES = {
    "recompute": "; stages take recompute_time and kept",
    "recompute_unit": "; stages take recompute_memory",
    "offload": "; stages take offload_time and offload_memory",
}
"""Setting that only layers have -> what stages have instead."""


def refuse_without_layers(stated: Mapping[str, object]) -> None:
    """Raise InputError if stages without layers have a setting that only layers have."""
    for field, value in stated.items():
        if value is not None:
            raise InputError(
                f"{field}: needs a model in layers; give `layers:` in a file, or ppopt.Model"
                f"{_OF_STAGES.get(field, '')}"
            )


def normal(partition: Any) -> str | Counts:
    """Check a partition on its own: the name of a rule, counts as a tuple, or the text of a layout.

    None is `balanced`. Raises InputError on anything else.
    """
    if partition is None:
        return BALANCED
    if isinstance(partition, str) and partition.strip().startswith("type:"):
        raise InputError(
            f"partition: {partition!r} is a rule of DeepSpeed's; give what it makes of your model "
            "as a list of layers per stage"
        )
    if isinstance(partition, str) and (hybrid := layer_names.layout_of_hybrid(partition.strip())):
        return hybrid
    if isinstance(partition, str) and not _WORD.fullmatch(partition.strip()):
        return partition.strip()
    if isinstance(partition, str) and partition.strip().lower() in RULES:
        return partition.strip().lower()
    if isinstance(partition, str) or not isinstance(partition, Sequence) or not partition:
        raise InputError(
            f"partition: {partition!r} is unknown; use {', '.join(RULES)}, a list of layers per "
            "stage, or a layout such as Et*3|(tt|)*2tL"
        )
    if any(isinstance(entry, Sequence) and not isinstance(entry, str) for entry in partition):
        return layer_names.layout_of_names(partition)
    return tuple(partition)


def stages_of(partition: str | Counts) -> int | None:
    """Number of stages of counts or a layout; None for a rule, which can make any number."""
    if isinstance(partition, tuple):
        return len(partition)
    return None if partition in RULES else len(layout.stages(partition))


def counts_of(
    model: Layers, partition: str | Counts, stages: int, speeds: Speeds | None = None
) -> Counts:
    """Layers per stage of a partition that `normal` has checked.

    `speeds` are those of the stages' devices (default 1). Raises ConflictError if the partition
    does not fit the number of stages, and InputError if it does not fit the model.
    """
    if isinstance(partition, str) and partition in RULES:
        return RULES[partition](model, stages, speeds)
    counts = partition if isinstance(partition, tuple) else layout.counts(partition, model)
    if len(counts) != stages:
        raise ConflictError(
            f"partition: has {_of(len(counts), 'stage')}, the placement {stages}; give one count "
            "per stage, devices x chunks, or `balanced` or `search` in place of counts"
        )
    return model.checked(counts)


def _of(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
