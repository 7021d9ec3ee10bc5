"""Reduces claims of mixed backwards to claims of one kind.

If BW >= B + W, with or without a partner F, and B and W need no more memory than BW, then B
followed by W can replace every BW: some optimal schedule splits all backwards. If BW <= B and BW
needs no more memory than B, then BW can replace every B, without the W: some optimal schedule
splits none.

Otherwise, relax to costs of split backwards with B' = min(B, BW) and W' = max(0, min(W, BW - B)).
B' followed by W' fits into the time of a BW; B' fits into the time of a B, and W' into that of a W.
During B' and after it no more memory is live than during B and after it, and than during BW; the
same holds during W'. So for every schedule of the original costs the relaxed ones have one that is
no worse: if they have none below the bound, neither has the original. This does not cover backwards
that run as one with an F: if there are such pairs, B' and W' are 0, and F is as long as its
shortest pair, if that is shorter.
"""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.traits import FORMS, ArgumentClass, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.pair_times import pairs_save, shortest
from ppopt.verifier.costs import Costs

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
    return _relaxed(claim)


def with_min_work(claim: Claim) -> Claim:
    """A claim of one kind of backward whose devices have no more work, in any order.

    If microbatches differ, B' and W' cannot replace backwards, since the order of the W would
    change. Their times still bound the work of a device.
    """
    return _relaxed(claim) if claim.mixed and claim.has_only(OF_WORK) else claim


def _splitting_is_free(claim: Claim) -> bool:
    """Whether B, and W after it, need no more time and memory than BW.

    If BW takes no time, nor do B and W: what they allocate is compared, but does not count.
    """
    _, partial, weight, full = claim.costs.times[[*OpKind]]
    allocated, freed = map(np.array, claim.memory)
    pending = allocated[OpKind.B] - freed[OpKind.B] + allocated[OpKind.W]
    peak = np.maximum(allocated[OpKind.B], pending)
    fits = (full >= partial + weight) & (peak <= allocated[OpKind.BW])
    return bool(fits.all() and (_longer_pairs(claim.costs) >= weight).all())


def _joining_is_free(claim: Claim) -> bool:
    """Whether BW needs no more time and memory than B."""
    _, partial, _, full = claim.costs.times[[*OpKind]]
    allocated = np.array(claim.memory[0])
    fits = (full <= partial) & (allocated[OpKind.BW] <= allocated[OpKind.B])
    return bool(fits.all() and (_longer_pairs(claim.costs) <= 0).all())


def _longer_pairs(costs: Costs) -> Ints:
    """Time of F with BW minus that of F with B, shape [stage of F, stage of the backward]."""
    with_b, with_bw = costs.savings
    return np.asarray(costs.times[OpKind.BW] - costs.times[OpKind.B] - (with_bw - with_b))


def _relaxed(claim: Claim) -> Claim:
    """The claim of split backwards with the relaxed costs; links are delays."""
    costs, times, memory = claim.costs, shortest(claim.costs), claim.costs.memory.copy()
    _, partial, weight, full = costs.times[[*OpKind]]
    alone = not pairs_save(costs)
    times[OpKind.B] = np.minimum(partial, full) * alone
    times[OpKind.W] = np.maximum(0, np.minimum(weight, full - partial)) * alone
    allocated, freed = costs.memory
    stashed = allocated[OpKind.F] - freed[OpKind.F]
    after = stashed + allocated[OpKind.B] - freed[OpKind.B]
    whole = stashed + allocated[OpKind.BW]
    during = np.minimum(stashed + allocated[OpKind.B], whole)
    pending = np.minimum(after, during)
    last = np.minimum(after + allocated[OpKind.W], whole)
    memory[:, OpKind.B] = during - stashed, during - pending
    memory[:, OpKind.W] = last - pending, last
    return claim._replace(
        pipeline=claim.pipeline.having(overlap=None, overlap_input=None, link_mode=LinkMode.DELAY),
        backward_kind=BackwardKind.SPLIT,
        relaxed=costs._replace(times=times, memory=memory, savings=0 * costs.savings),
    )
