"""What an F and a backward save as one, and the minimum times of operations, alone or in a pair."""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.verifier.costs import Costs


def pairs_save(costs: Costs) -> bool:
    """Whether any pair takes less time than the sum of its two parts."""
    return bool((costs.savings > 0).any())


def shortens(costs: Costs) -> bool:
    """Whether an operation may take less time in a pair than alone."""
    return pairs_save(costs) and bool((shortest(costs) != costs.times).any())


def shortest(costs: Costs) -> Ints:
    """Minimum time of an operation, alone or in a pair, shape [kind, stage]."""
    backwards = [OpKind.B, OpKind.BW]
    times, of_backward = costs.times.copy(), costs.times[backwards]
    times[OpKind.F] += np.minimum(0, of_backward[:, None] - costs.savings).min(axis=(0, 2))
    of_pairs = costs.times[OpKind.F][:, None] - costs.savings
    times[backwards] += np.minimum(0, of_pairs).min(axis=1)
    return times
