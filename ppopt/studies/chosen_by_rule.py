"""What a search is to choose, chosen by rules: where a search begins, and what stands for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ppopt.problem import placement
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE


def by_rule(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline where rules choose what is to be searched.

    Its layers are cut by `balanced`, its stages placed in turn; no layer recomputes, then all do.
    """
    counts = None if pipeline.model is None else pipeline.counts
    chosen = replace(pipeline, partition=counts, mem_limit=pipeline.limits)
    if pipeline.placement == placement.SEARCH:
        chosen = chosen.placed(pipeline.hosts[0])
    searched = pipeline.recompute == SEARCH_RECOMPUTE
    for recompute in ("none", "full") if searched else (pipeline.recompute,):
        yield replace(chosen, recompute=recompute)
