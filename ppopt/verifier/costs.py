"""Times and memory of the operations of every stage: those of a microbatch whose factors are 1."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import KINDS, NUM_KINDS, AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.modules import amounts
from ppopt.verifier.times import compute_times, scaled, whole
from ppopt.verifier.whole_backward import allocated_by_whole_backward, runs_whole_in_weight

MOVES = (AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD)


class Costs(NamedTuple):
    """Costs of stages in ticks; kinds that run on links or devices have none."""

    exists: Bools
    """Whether a stage runs operations of a kind of compute, shape [kind, stage]."""
    times: Ints
    """Time of an operation that runs alone, shape [kind, stage]."""
    memory: Ints
    """Memory that it allocates at its start, and frees at its end, shape [2, kind, stage]."""
    savings: Ints
    """Time of an F and a backward alone minus their time as one, shape [B or BW, stage of F, stage
    of the backward]; 0 if no device runs both."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> Costs:
        """The costs of a pipeline."""
        costs, times = pipeline.costs, np.zeros((KINDS, pipeline.num_stages), dtype=np.int64)
        times[:NUM_KINDS], savings = compute_times(pipeline)
        stated = {AuxiliaryKind.UNSHARD: costs.unshard}
        stated |= {AuxiliaryKind.GRADIENT_SYNC: costs.gradient_sync}
        stated |= dict.fromkeys(MOVES, tuple(amounts(pipeline).offload_time))
        for kind, row in stated.items():
            if any(row):
                times[kind] = [whole(time * pipeline.ticks.per_unit) for time in row]
        memory = allocated_and_freed(pipeline, Fraction(1))
        return cls(existing_kinds(pipeline), times, memory, savings)

    def multiplied(self, pipeline: Pipeline, time: Fraction, memory: Fraction) -> Costs:
        """Those of a microbatch of a pipeline, whose costs they are, with other factors."""
        times = self.times.copy()
        times[:NUM_KINDS] = scaled(times[:NUM_KINDS], time)
        times[[*MOVES]] = scaled(times[[*MOVES]], memory)
        own = self.memory_at(pipeline, memory)
        return Costs(self.exists, times, own, scaled(self.savings, time))

    def memory_at(self, pipeline: Pipeline, factor: Fraction) -> Ints:
        """Memory of a microbatch of a pipeline, whose costs they are, with another factor."""
        return self.memory if factor == 1 else allocated_and_freed(pipeline, factor)


def frozen_stages(pipeline: Pipeline) -> list[bool]:
    """Per stage, whether it trains nothing; for an empty stage, whether no earlier layer trains."""
    if pipeline.model is None:
        return list(pipeline.frozen or (False,) * pipeline.num_stages)
    layers, frozen, none_before = iter(pipeline.model.layers), [], True
    for count in pipeline.counts:
        own = [layer.frozen for layer in islice(layers, count)]
        frozen.append(all(own) if own else none_before)
        none_before &= all(own)
    return frozen


def existing_kinds(pipeline: Pipeline) -> Bools:
    """Whether a stage runs operations of a kind of compute, shape [kind, stage].

    A frozen stage has no gradients of weights, so no W. If all stages before it are frozen, too, no
    gradient goes there, so it has no backward.
    """
    frozen = np.array(frozen_stages(pipeline))
    table = np.ones((NUM_KINDS, len(frozen)), dtype=np.bool_)
    table[OpKind.W] = ~frozen
    table[[OpKind.B, OpKind.BW]] = ~np.logical_and.accumulate(frozen)
    return table


def allocated_and_freed(pipeline: Pipeline, factor: Fraction) -> Ints:
    """Memory allocated at the start and freed at the end, in ticks, shape [2, kind, stage].

    `factor` multiplies the activation of the microbatch, the part that F keeps, the offloaded part
    and the change by B, but no workspace.

    F allocates what it keeps of the activation; B allocates the rest. B also allocates its change
    of memory if positive, and frees it if negative. W frees the rest, so that F, B and W together
    leave nothing. BW frees what F keeps, and at its end also what it allocates itself
    (`ppopt.verifier.whole_backward`). An operation allocates its workspace at its start and frees
    it at its end. In `Ticks`, offloaded memory is workspace of F; here F keeps it, OFFLOAD frees it
    and RELOAD allocates it. UNSHARD allocates the gathered weights of its stage, and GRADIENT_SYNC
    frees them.
    """
    ticks, costs = pipeline.ticks, pipeline.ticks.costs
    own = amounts(pipeline)
    stated = (own.retained, own.offload_memory, own.input_workspace)
    in_ticks = ([whole(memory * ticks.memory_per_unit) for memory in row] for row in stated)
    rows = (costs.activation, costs.memory_b, *in_ticks)
    activation, change, stashed, offloaded, of_input = (
        np.array(row, dtype=np.int64) for row in rows
    )
    workspace = np.array(ticks.workspace, dtype=np.int64)
    workspace[OpKind.F] -= np.array(costs.offload_memory, dtype=np.int64)
    workspace[OpKind.B] = of_input
    activation, stashed, change, offloaded = (
        scaled(row, factor) for row in (activation, stashed, change, offloaded)
    )
    workspace[OpKind.BW] = allocated_by_whole_backward(pipeline, factor)
    if runs_whole_in_weight(pipeline):
        workspace[OpKind.W, 0] = workspace[OpKind.BW, 0]
    allocates, frees = both = np.zeros((2, KINDS, pipeline.num_stages), dtype=np.int64)
    allocates[:NUM_KINDS] = frees[:NUM_KINDS] = workspace
    allocates[OpKind.F] += stashed
    allocates[OpKind.B] += activation - stashed + np.maximum(change, 0)
    frees[OpKind.B] += np.maximum(-change, 0)
    frees[OpKind.W] += activation + change
    frees[OpKind.BW] += stashed
    if any(gathered := pipeline.costs.unshard_memory):
        in_use = [whole(memory * ticks.memory_per_unit) for memory in gathered]
        allocates[AuxiliaryKind.UNSHARD] = frees[AuxiliaryKind.GRADIENT_SYNC] = in_use
    allocates[AuxiliaryKind.RELOAD] = frees[AuxiliaryKind.OFFLOAD] = offloaded
    return both
