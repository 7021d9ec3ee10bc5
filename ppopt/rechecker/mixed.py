"""Claims of mixed backwards, turned into claims of one kind.

A whole backward, BW, can be replaced by B and then W in its place where BW >= B + W, with or
without a partner F, and where they hold no more than BW: then every schedule has one that is as
good and splits all. In the place of a B, BW can run where BW <= B, if it holds no more, and its W
is left out: then every schedule has one that is as good and splits none.

Elsewhere, take a pipeline of split backwards with B' = min(B, BW), W' = min(W, BW - B) but no less
than 0, in which B' and W' allocate no more than B and W, and no more than BW. Its B' and W' fit,
one after the other, into the time of a BW, and each into the time of a B and a W. So it has a
schedule no worse than each of the pipeline claimed: if it has none below the bound, that one has
none. This says nothing of backwards that run as one with an F: with such pairs no time is left to
B' and W', and F is as long as the shortest pair, if that is shorter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from operator import add, mul, sub

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layer import Layer
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import BESIDE_COMPUTE, Trait
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import meet, pair_time

HANDLES = BESIDE_COMPUTE | {
    *(Trait.MIXED, Trait.PAIRS, Trait.SHORT_PAIRS),
    *(Trait.SLICES, Trait.ROUTES, Trait.FROZEN, Trait.SPAN, Trait.UNEQUAL_SLICES),
}
"""Traits of the claims that have such a claim of one kind."""
RELAXATION_SHARE = 0.5
"""Share of the time for the relaxation."""
RELAXED = "every backward split into a B and a W that are no longer than B, W and BW allow"


def of_one_kind(claim: Claim) -> Claim:
    """A claim of one kind of backward that implies a mixed one; any other claim as it is."""
    if not claim.mixed or not claim.has_only(HANDLES):
        return claim
    if _splitting_is_free(claim):
        return claim._replace(backward_kind=BackwardKind.SPLIT)
    if _joining_is_free(claim):
        return claim._replace(backward_kind=BackwardKind.WHOLE)
    return claim._replace(pipeline=_relaxed(claim), backward_kind=BackwardKind.SPLIT)


def of_least_work(claim: Claim) -> Claim:
    """A claim of one kind of backward whose devices work no longer, whatever their order.

    In a schedule of microbatches that differ, B' and W' may not take the places of backwards: those
    of W would come in another order. Their times are still in the work of a device.
    """
    if not claim.mixed or not claim.has_only(HANDLES | {Trait.MICROBATCHES}):
        return claim
    return claim._replace(pipeline=_relaxed(claim), backward_kind=BackwardKind.SPLIT)


def by_layers(claim: Claim) -> Claim:
    """A claim of all partitions, of split backwards, that implies a mixed one.

    Layer by layer as above: what fits into the time of every layer fits into that of a stage, and
    the least of sums is no less than the sum of the least. Of layers with phases it counts the
    time on compute: a pair, too, computes all that its parts compute. A whole backward of a stage
    may allocate less than its layers alone: nothing counts on what B' allocates (`Claim.either`).
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
        fields = {"backward_input": partial, "weight": weight, "backward": partial + weight}
        fields |= dict.fromkeys(("input_workspace", "weight_workspace"), zero)
        layers.append(replace(layer, **fields, memory_b=min(layer.memory_b, zero)))
    model = replace(claim.pipeline.model, layers=tuple(layers))
    pipeline = replace(claim.pipeline, model=model)
    return claim._replace(pipeline=pipeline, backward_kind=BackwardKind.SPLIT, either=True)


def computes(layer: Layer) -> bool:
    """Whether the F of a layer takes time on compute, where its phases on a link take none."""
    if layer.phases is None:
        return True
    return any(phase.on == "compute" and phase.time for phase in layer.phases.forward)


def _computed(claim: Claim) -> Claim:
    """The claim of layers whose phases on a link take no time, so that pairs save none."""
    layers = []
    for layer in claim.pipeline.model.layers:
        if layer.phases is None:
            layers.append(layer)
            continue
        forward, partial = (
            sum((phase.time for phase in part if phase.on == "compute"), Fraction(0))
            for part in (layer.phases.forward, layer.phases.backward)
        )
        weight = sum((phase.weight for phase in layer.phases.backward), Fraction(0))
        times = {"forward": forward, "backward_input": partial, "weight": weight}
        layers.append(replace(layer, phases=None, **times, backward=partial + weight))
    model = replace(claim.pipeline.model, layers=tuple(layers))
    return claim._replace(pipeline=replace(claim.pipeline, model=model))


def loses_nothing(claim: Claim) -> bool:
    """Whether a mixed claim and that of one kind are both right or both wrong."""
    return _splitting_is_free(claim) or _joining_is_free(claim)


def _splitting_is_free(claim: Claim) -> bool:
    pipeline, ticks = claim.pipeline, claim.pipeline.ticks
    _, partial, weight, full = ticks.durations
    return all(
        full[stage] >= partial[stage] + weight[stage] and _splitting_holds_no_more(claim, stage)
        for stage in range(pipeline.num_stages)
    ) and all(
        pair_time(pipeline, forward, OpKind.BW, stage)
        >= pair_time(pipeline, forward, OpKind.B, stage) + weight[stage]
        for stage in range(pipeline.num_stages)
        for forward in range(pipeline.num_stages)
        if meet(pipeline, forward, stage)
    )


def _splitting_holds_no_more(claim: Claim, stage: int) -> bool:
    """Whether B, and W after it, hold no more than BW; one of no length holds what it keeps."""
    takes = {kind: claim.takes(kind, stage) for kind in (OpKind.B, OpKind.W, OpKind.BW)}
    whole = takes[OpKind.BW] if claim.pipeline.ticks.durations[OpKind.BW][stage] else 0
    left = takes[OpKind.B] - claim.gives(OpKind.B, stage)
    return takes[OpKind.B] <= whole and left + takes[OpKind.W] <= whole


def _joining_is_free(claim: Claim) -> bool:
    _, partial, _, full = claim.pipeline.ticks.durations
    return all(
        whole <= some
        and claim.takes(OpKind.BW, stage) <= (claim.takes(OpKind.B, stage) if some else 0)
        for stage, (whole, some) in enumerate(zip(full, partial, strict=True))
    ) and all(
        pair_time(claim.pipeline, forward, OpKind.BW, stage)
        <= pair_time(claim.pipeline, forward, OpKind.B, stage)
        for stage in range(claim.pipeline.num_stages)
        for forward in range(claim.pipeline.num_stages)
        if meet(claim.pipeline, forward, stage)
    )


def _relaxed(claim: Claim) -> Pipeline:
    """The pipeline of split backwards that has a schedule no worse, in the same ticks.

    Stage by stage: its costs per slice, times the number of slices.
    """
    given, costs, zero = claim.pipeline, claim.pipeline.costs, Fraction(0)
    times = list(zip(costs.backward_input, costs.weight, costs.backward, strict=True))
    partial = [zero if claim.paired else min(b, bw) for b, _, bw in times]
    weight = [zero if claim.paired else max(min(w, bw - b), zero) for b, w, bw in times]
    most = list(map(add, costs.recompute_memory, costs.backward_workspace))
    missing = [
        min(activation - kept, limit)
        for activation, kept, limit in zip(costs.activation, costs.kept, most, strict=True)
    ]
    activation = list(map(add, costs.kept, missing))
    beside = list(map(sub, most, missing))
    speeds = (given.device_speed[host] for host in given.hosts[0])
    forward = map(given.ticks.time, claim.least[OpKind.F])
    relaxed: dict[str, Iterable[Fraction]] = {
        "forward": map(mul, forward, speeds),
        "recompute_time": [zero] * len(times) if claim.paired else costs.recompute_time,
        "backward_input": partial,
        "weight": weight,
        "backward": map(add, partial, weight),
        "activation": activation,
        "memory_b": (
            max(min(change, zero), -own)
            for change, own in zip(costs.memory_b, activation, strict=True)
        ),
        "input_workspace": map(min, costs.input_workspace, beside),
        "weight_workspace": map(min, costs.weight_workspace, beside),
        "recompute_memory": (),
        "overlap": (),
        "overlap_input": (),
    }
    rows = {field: tuple(row) for field, row in relaxed.items()}
    return given.with_stage_costs(rows, link_mode=LinkMode.DELAY)
