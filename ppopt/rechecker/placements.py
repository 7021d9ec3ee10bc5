"""Bounds over all placements: every way to put the stages on the devices that uses all devices.

Placements that differ by a permutation of the devices that keeps their speeds, limits and delays
have the same schedules, and one of them is checked. Nothing here is shared with the search over
placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np

from ppopt.problem.traits import FORMS, ArgumentClass, Trait, rechecked
from ppopt.rechecker.claim import Claim

HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, FORMS) - {
    *(Trait.ROUTES, Trait.UNEQUAL_SLICES),
}
"""Traits of the placements that are enumerated."""
MAX_PLACEMENTS = 200_000
"""Maximum number of placements that are enumerated."""
MAX_PERMUTED = 7
"""Maximum number of devices whose permutations are used; with more, every placement is checked."""
Hosts = tuple[int, ...]


def within_reach(claim: Claim) -> bool:
    """Whether there are few enough placements to enumerate them."""
    pipeline = claim.pipeline
    return bool(pipeline.num_devices**pipeline.num_stages <= MAX_PLACEMENTS)


def every(claim: Claim) -> Iterator[Hosts]:
    """Device of every stage, of every placement but for permutations of devices."""
    size = claim.pipeline.num_devices
    renamings = list(_renamings(claim))
    for hosts in product(range(size), repeat=claim.pipeline.num_stages):
        if len(set(hosts)) == size and all(
            hosts <= tuple(renaming[host] for host in hosts) for renaming in renamings
        ):
            yield hosts


def _renamings(claim: Claim) -> Iterator[Hosts]:
    """The permutations of devices under which the devices look the same."""
    pipeline = claim.pipeline
    if pipeline.num_devices > MAX_PERMUTED:
        return
    rows = [pipeline.device_speed, pipeline.limits or (None,) * pipeline.num_devices]
    tables = [np.array(row, dtype=object) for row in rows]
    delays = (np.array(stated, dtype=object) for stated in (pipeline.p2p, pipeline.backward_p2p))
    tables += (matrix for matrix in delays if matrix.ndim == 2)
    for new in permutations(range(pipeline.num_devices)):
        if all((table[np.ix_(*[new] * table.ndim)] == table).all() for table in tables):
            yield new


def claim_of_placement(claim: Claim, hosts: Hosts) -> Claim:
    """The claim of one placement, and of every choice that the pipeline leaves open."""
    return claim.for_pipeline(claim.pipeline.having(mem_limit=claim.pipeline.limits).placed(hosts))
