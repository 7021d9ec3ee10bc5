"""Hand strategies with chosen recompute and partition, beside every choice of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import ceil
from random import Random
from typing import Any

from ppopt.problem.partition import SEARCH
from ppopt.strategies import resolve
from tests.fuzz import configs, layers
from tests.fuzz.category import Case, Category, Finding
from tests.oracles.configurations import partitions

CHUNKS = {
    **dict.fromkeys(("1f1b", "gpipe", "zb-h1", "zb-1p"), 1),
    **dict.fromkeys(
        ("interleaved", "interleaved-zb", "looped-bfs", "1f1b-v", "zbv", "v-half", "v-min"), 2
    ),
}
"""Strategies that the adversary evaluates -> their stages per device."""
RECOMPUTE = ("none", "full", SEARCH)
MOST = 600
"""Most schedules that are made to compare one answer."""


class Hands(Category):
    """`eval` with recompute of none, of all and chosen, on one partition or on the best."""

    name = "hands"
    goal = 200
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw a strategy, a model with or without limits, and a partition."""
        strategy, devices = rng.choice(sorted(CHUNKS)), rng.choice((2, 2, 3))
        stages = CHUNKS[strategy] * devices
        batches = rng.choice((devices, 2 * devices))
        fields = configs.draw(rng, devices=devices, stages=stages, more_layers=2, batches=batches)
        counts = rng.choice(list(partitions(len(fields["model"]), stages)))
        if rng.random() < 0.5:
            fields["mem_limit"] = _room(fields, strategy, list(counts)) + rng.randint(0, 2)
        partition = rng.choice((SEARCH, SEARCH, "balanced", ",".join(map(str, counts))))
        return {"pipeline": fields, "strategy": strategy, "partition": partition}

    def check(self, case: Case) -> Iterator[Finding]:
        """Evaluate it with every word of recompute, and compare the three and every choice."""
        words = ["eval", case["strategy"], "--partition", case["partition"], "--time-limit", "10"]
        found = {
            recompute: configs.answer([*words, "--recompute", recompute], case["pipeline"])
            for recompute in RECOMPUTE
        }
        yield from _chosen(found, searched=case["partition"] == SEARCH)
        for recompute, one in found.items():
            yield from self._beside_all(case, recompute, one)

    def _beside_all(self, case: Case, recompute: str, found: Any) -> Iterator[Finding]:
        """Compare an answer with the strategy on all partitions it may have, and all choices."""
        every = list(islice(self._every(case, recompute, found["partition"]), MOST + 1))
        if len(every) > MOST:
            return
        made = [configs.schedule(case["pipeline"], case["strategy"], *one) for one in every]
        best = min(map(configs.value, configs.within(iter(made))), default=None)
        value, searched = configs.exact(found["value"]), found.get("partition_search")
        bound = configs.stated(searched["lower_bound"]) if searched else None
        if best is None:
            return
        if not found["fits_limit"]:
            if recompute == SEARCH and resolve(case["strategy"]).adaptive:
                return  # orders that depend on times: not every choice is tried
            yield Finding(f"over-limit-{recompute}", f"{value} over the limit, {best} within it")
        elif value < best:
            yield Finding(f"below-optimum-{recompute}", f"{value}, the least is {best}")
        if bound is not None and bound > best:
            yield Finding(f"wrong-bound-{recompute}", f"the bound is {bound}, {best} is possible")

    def _every(
        self, case: Case, recompute: str, own: list[int]
    ) -> Iterator[tuple[list[int], layers.Chosen]]:
        """Partitions, if these are searched, else its own; and which layers recompute."""
        fields, every = case["pipeline"], [own]
        stages = CHUNKS[case["strategy"]] * fields["stages"]
        if case["partition"] == SEARCH:
            every = [list(counts) for counts in partitions(len(fields["model"]), stages)]
        choices = configs.chosen(fields, recompute)
        for counts in every:
            for which in choices:
                yield counts, which

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with a simpler model."""
        for one in layers.smaller_cases(case):
            if case["partition"] in (SEARCH, "balanced"):
                yield one


def _room(fields: dict[str, Any], strategy: str, counts: list[int]) -> int:
    """The memory that a strategy needs on a partition with full recompute, rounded up."""
    (which,) = configs.chosen(fields, "full")
    made = configs.schedule(fields, strategy, counts, which)
    return 1 if made is None else ceil(max(made.peak_memory))


def _chosen(found: Mapping[str, Any], *, searched: bool) -> Iterator[Finding]:
    """Chosen recompute keeps the limits where none or full does.

    It is no slower than these where the partition is the same or searched: what is balanced depends
    on recompute.
    """
    chosen = found[SEARCH]
    for recompute in ("none", "full"):
        other = found[recompute]
        if not other["fits_limit"]:
            continue
        words = f"{chosen['value']} where {recompute} has {other['value']}"
        if not (searched or chosen["partition"] == other["partition"]):
            continue
        if not chosen["fits_limit"]:
            yield Finding(f"over-limit-that-{recompute}-keeps", f"{words} within the limit")
        elif chosen["value"] > other["value"]:
            yield Finding(f"slower-than-{recompute}", words)
