"""Bounds over all placements: every way to put the stages on the devices that uses all devices.

Placements that differ by a permutation of the devices that keeps their speeds, limits and delays
have the same schedules, and one of them is checked. Nothing here is shared with the search over
placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

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
    devices = range(pipeline.num_devices)
    if pipeline.num_devices > MAX_PERMUTED:
        return
    speeds = pipeline.device_speed
    matrices = [
        delays for delays in (pipeline.p2p, pipeline.backward_p2p) if delays and _is_matrix(delays)
    ]
    limits = pipeline.limits or (None,) * len(devices)
    for new in permutations(devices):
        if all(
            speeds[new[source]] == speeds[source]
            and limits[new[source]] == limits[source]
            and all(
                matrix[new[source]][new[target]] == matrix[source][target]
                for matrix in matrices
                for target in devices
            )
            for source in devices
        ):
            yield new


def _is_matrix(delays: object) -> bool:
    """Whether delays depend on the devices, and not on the boundary alone."""
    return isinstance(delays, tuple) and all(isinstance(row, tuple) for row in delays)


def claim_of_placement(claim: Claim, hosts: Hosts) -> Claim:
    """The claim of one placement, and of every choice that the pipeline leaves open."""
    return claim.for_pipeline(claim.pipeline.having(mem_limit=claim.pipeline.limits).placed(hosts))
