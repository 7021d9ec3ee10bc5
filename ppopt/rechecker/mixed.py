"""Reduces claims of mixed backwards to claims of one kind.

If BW >= B + W, with or without a partner F, and B and W need no more memory than BW, then B
followed by W can replace every BW: some optimal schedule splits all backwards. If BW <= B and BW
needs no more memory than B, then BW can replace every B, without the W: some optimal schedule
splits none.

Otherwise, relax to a pipeline of split backwards with B' = min(B, BW) and W' = max(0, min(W, BW -
B)), which allocate no more than B and W, and no more than BW. B' followed by W' fits into the time
of a BW; B' fits into the time of a B, and W' into that of a W. So for every schedule of the
original pipeline the relaxation has one that is no worse: if it has none below the bound, neither
has the original. This does not cover backwards that run as one with an F: if there are such pairs,
B' and W' are 0, and F is as long as its shortest pair, if that is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from operator import add, mul, sub
from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layer import Layer
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import FORMS, ArgumentClass, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import pairs_save, savings
from ppopt.rechecker.quantities import memory_of, shortest_durations

HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, FORMS)
"""Traits of the claims that have such a claim of one kind."""
OF_WORK = rechecked(ArgumentClass.EVERY_OPERATION, FORMS)
"""Traits of the claims that have one on the work of their devices."""
RELAXATION_SHARE = 0.5
"""Share of the time for the relaxation."""
RELAXED = "with every backward split into its shortest possible B and W"


def with_one_kind(claim: Claim) -> Claim:
    """A claim of one kind of backward that implies a mixed claim; any other claim unchanged."""
    if not claim.mixed or not claim.has_only(HANDLES):
        return claim
    if _splitting_is_free(claim):
        return claim._replace(backward_kind=BackwardKind.SPLIT)
    if _joining_is_free(claim):
        return claim._replace(backward_kind=BackwardKind.WHOLE)
    return claim._replace(pipeline=_relaxed(claim), backward_kind=BackwardKind.SPLIT)


def with_min_work(claim: Claim) -> Claim:
    """A claim of one kind of backward whose devices have no more work, in any order.

    If microbatches differ, B' and W' cannot replace backwards, since the order of the W would
    change. Their times still bound the work of a device.
    """
    if not claim.mixed or not claim.has_only(OF_WORK):
        return claim
    return claim._replace(pipeline=_relaxed(claim), backward_kind=BackwardKind.SPLIT)


def by_layers(claim: Claim) -> Claim:
    """A claim of all partitions, of split backwards, that implies a mixed claim.

    The relaxation applies layer by layer: what fits into the time of every layer fits into that of
    a stage, and a minimum of sums is at least the sum of the minima. For layers with phases it
    counts the time on compute, which a pair also needs. A whole backward of a stage may allocate
    less than the sum of its layers, so no bound uses what B' allocates (`Claim.either`).
    """
    if not claim.has_only(HANDLES):
        return claim
    claim = _computed(claim)
    if not claim.mixed:
        return claim
    zero, layers = Fraction(0), []
    for layer in claim.pipeline.model.layers:
        b, w, bw = layer.backward_input, layer.weight, layer.backward
        partial, weight = min(b, bw), max(min(w, bw - b), zero)
        fields: dict[str, Any] = {"backward_input": partial, "weight": weight}
        fields["backward"] = partial + weight
        fields |= dict.fromkeys(("input_workspace", "weight_workspace"), zero)
        if layer.recompute:
            fields["modules"] = tuple(replace(own, workspace=zero) for own in layer.modules)
        layers.append(replace(layer, **fields, memory_b=min(layer.memory_b, zero)))
    model = replace(claim.pipeline.model, layers=tuple(layers))
    pipeline = replace(claim.pipeline, model=model)
    return claim._replace(pipeline=pipeline, backward_kind=BackwardKind.SPLIT, either=True)


def computes(layer: Layer) -> bool:
    """Whether the F of a layer takes time on compute; phases on a link do not count."""
    if layer.phases is None:
        return True
    return any(phase.on == "compute" and phase.time for phase in layer.phases.forward)


def _computed(claim: Claim) -> Claim:
    """The claim without the phases on links, so that pairs save no time."""
    layers = []
    for layer in claim.pipeline.model.layers:
        if layer.phases is None:
            layers.append(layer)
            continue
        forward, partial = (
            sum((phase.time for phase in phases if phase.on == "compute"), Fraction(0))
            for phases in (layer.phases.forward, layer.phases.backward)
        )
        weight = sum((phase.weight for phase in layer.phases.backward), Fraction(0))
        times = {"forward": forward, "backward_input": partial, "weight": weight}
        layers.append(replace(layer, phases=None, **times, backward=partial + weight))
    model = replace(claim.pipeline.model, layers=tuple(layers))
    return claim._replace(pipeline=replace(claim.pipeline, model=model))


def loses_nothing(claim: Claim) -> bool:
    """Whether a mixed claim is equivalent to its claim of one kind."""
    return _splitting_is_free(claim) or _joining_is_free(claim)


def _splitting_is_free(claim: Claim) -> bool:
    pipeline, ticks = claim.pipeline, claim.pipeline.ticks
    _, partial, weight, full = ticks.durations
    return all(
        full[stage] >= partial[stage] + weight[stage]
        and _splitting_needs_no_more_memory(claim, stage)
        for stage in range(pipeline.num_stages)
    ) and bool((_longer_pairs(pipeline) >= np.array(weight)).all())


def _splitting_needs_no_more_memory(claim: Claim, stage: int) -> bool:
    """Whether B, and W after it, need no more memory than BW.

    What a BW of duration 0 allocates does not count.
    """
    (by_b, freed_by_b), (by_w, _), (by_bw, _) = (
        memory_of(claim, kind, stage) for kind in (OpKind.B, OpKind.W, OpKind.BW)
    )
    whole = by_bw if claim.pipeline.ticks.durations[OpKind.BW][stage] else 0
    return by_b <= whole and by_b - freed_by_b + by_w <= whole


def _joining_is_free(claim: Claim) -> bool:
    _, partial, _, full = claim.pipeline.ticks.durations
    return all(
        whole <= some
        and memory_of(claim, OpKind.BW, stage)[0]
        <= (memory_of(claim, OpKind.B, stage)[0] if some else 0)
        for stage, (whole, some) in enumerate(zip(full, partial, strict=True))
    ) and bool((_longer_pairs(claim.pipeline) <= 0).all())


def _longer_pairs(pipeline: Pipeline) -> Ints:
    """Time of F with BW minus that of F with B, shape [stage of F, stage of the backward]."""
    _, partial, _, full = map(np.array, pipeline.ticks.durations)
    with_b, with_bw = savings(pipeline)
    return np.asarray(full - partial - (with_bw - with_b))


def _relaxed(claim: Claim) -> Pipeline:
    """The relaxed pipeline of split backwards, in the same ticks.

    Its costs are per stage: those per slice times the number of slices.
    """
    pipeline, costs, zero = claim.pipeline, claim.pipeline.costs, Fraction(0)
    times = list(zip(costs.backward_input, costs.weight, costs.backward, strict=True))
    pairs = pairs_save(pipeline)
    partial = [zero if pairs else min(b, bw) for b, _, bw in times]
    weight = [zero if pairs else max(min(w, bw - b), zero) for b, w, bw in times]
    max_allocated = list(map(add, costs.recompute_memory, costs.backward_workspace))
    missing = [
        min(activation - stashed, limit)
        for activation, stashed, limit in zip(
            costs.activation, costs.kept, max_allocated, strict=True
        )
    ]
    activation = list(map(add, costs.kept, missing))
    workspace = list(map(sub, max_allocated, missing))
    speeds = (pipeline.device_speed[host] for host in pipeline.hosts[0])
    forward = map(pipeline.ticks.time, shortest_durations(claim)[OpKind.F])
    relaxed: dict[str, Iterable[Fraction]] = {
        "forward": map(mul, forward, speeds),
        "recompute_time": [zero] * len(times) if pairs else costs.recompute_time,
        "backward_input": partial,
        "weight": weight,
        "backward": map(add, partial, weight),
        "activation": activation,
        "memory_b": (
            max(min(change, zero), -own)
            for change, own in zip(costs.memory_b, activation, strict=True)
        ),
        "input_workspace": map(min, costs.input_workspace, workspace),
        "weight_workspace": map(min, costs.weight_workspace, workspace),
        "recompute_memory": (),
        "overlap": (),
        "overlap_input": (),
    }
    rows = {field: tuple(row) for field, row in relaxed.items()}
    return pipeline.with_stage_costs(rows, link_mode=LinkMode.DELAY)
