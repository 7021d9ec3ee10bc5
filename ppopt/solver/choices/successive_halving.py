"""Successive halving: slices of time for several configurations, then for the better half of them.

The first schedule of a configuration says little about its best one (Jamieson, Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

from ppopt.solver.choices.configuration import Configuration, by_value


class SuccessiveHalving:
    """The configurations that are improved, and the slice of each. All rounds are equally long."""

    def __init__(
        self, contenders: Sequence[Configuration], seconds: float, min_slice: float
    ) -> None:
        """`seconds` for all rounds until one remains, the best contenders first.

        There are fewer contenders if the slices would be shorter than `min_slice`.
        """
        rounds = max(MIN_ROUNDS, (len(contenders) - 1).bit_length() + 1)
        count = max(1, int(seconds / (rounds * min_slice)))
        self.running = list(contenders[:count])
        """Contenders that are left, the best first."""
        self.slice = seconds / (rounds * max(1, len(self.running)))
        """Seconds for each of them in this round."""

    def halve(self) -> None:
        """Go on with the better half, in slices twice as long."""
        self.running = by_value(self.running)[: (len(self.running) + 1) // 2]
        self.slice *= 2


MIN_ROUNDS = 4
"""Minimum number of rounds: the last contender ends after a round without improvement."""
