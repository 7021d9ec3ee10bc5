"""Which configurations are improved, and for how long: successive halving.

The first schedule of a configuration says little about its best one. So several contenders have a
slice of time each, then the better half of them has longer slices, and so on (Jamieson, Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import ceil, inf

from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations, by_value
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.parameters import ConfigurationParams

MIN_ROUNDS = 4
"""Minimum number of rounds: the last contender has a quarter of the time or more."""


class SuccessiveHalving:
    """The contenders that are left, and the slice of each.

    Rounds are equally long until one is left, which has the remaining time.
    """

    def __init__(
        self,
        contenders: Sequence[Configuration],
        seconds: float,
        *,
        at_once: int = 1,
        min_slice: float,
    ) -> None:
        """`seconds` for all rounds until one remains, the best contenders first.

        `at_once` of them are improved at a time. There are fewer contenders if the slices would be
        shorter than `min_slice`.
        """
        self._round = seconds / max(MIN_ROUNDS, (len(contenders) - 1).bit_length() + 1)
        """Seconds of a round."""
        self._at_once, self._min_slice = at_once, min_slice
        count = at_once * max(1, int(self._round / min_slice))
        self.running = list(contenders[:count])
        """Contenders that are left, the best first."""
        self._before = {each.key: each.value for each in self.running}
        """Their values at the start of this round."""

    @property
    def slice(self) -> float:
        """Seconds for each of the contenders in this round; the last one has all that are left."""
        if self.is_last:
            return inf
        each = self._round / max(1, ceil(len(self.running) / self._at_once))
        return max(each, self._min_slice)

    @property
    def patience(self) -> float:
        """Seconds without improvement after which the last contender ends."""
        return self._round if self.is_last else inf

    @property
    def is_last(self) -> bool:
        """Whether one contender is left."""
        return len(self.running) == 1

    def halve(self) -> None:
        """Go on with the better half of those that this round improved, or with the best one."""
        ranked = by_value(self.running)
        improved = [each for each in ranked if each.value != self._before[each.key]]
        self.running = improved[: (len(ranked) + 1) // 2] or ranked[:1]
        self._before = {each.key: each.value for each in self.running}


class Contenders:
    """Chooses the contenders of one race after the other."""

    def __init__(self, searched: SearchedConfigurations, params: ConfigurationParams) -> None:
        self._searched, self._params = searched, params
        self._improved: set[Key] = set()
        """Configurations that were contenders."""
        self._stalled_at: int | None = None
        """Best value when its configuration was the last contender, and improved in vain."""

    def among(self, configurations: Iterable[Configuration]) -> list[Configuration]:
        """The best configuration, and new ones near it by the mean of value and bound.

        Their best values lie between these, so the one with the minimum mean comes first. Then
        comes the best one, until it was improved in vain. Equal values and bounds are mostly those
        of one pipeline in several groups.
        """
        rated = sorted(filter(self._is_useful, by_value(configurations)), key=_sum)
        distinct: dict[tuple[int | None, int], Configuration] = {}
        for configuration in (*rated[:1], *filter(self._is_best, rated), *rated):
            distinct.setdefault((configuration.value, configuration.bound), configuration)
        limit = (1 + self._params.contender_margin) * min(map(_sum, rated), default=0)
        near = (
            each
            for each in distinct.values()
            if (not self.stalled if self._is_best(each) else _sum(each) <= limit)
        )
        return list(islice(near, self._params.contenders))

    def note(self, improved: Sequence[Configuration], *, ended: bool) -> None:
        """Record that these were improved; `ended`: the last of a race, in vain."""
        self._improved.update(configuration.key for configuration in improved)
        if ended and any(map(self._is_best, improved)):
            self._stalled_at = self._searched.value

    @property
    def stalled(self) -> bool:
        """Whether the best configuration was improved in vain, and nothing is better since."""
        return self._searched.value is not None and self._searched.value == self._stalled_at

    def _is_best(self, configuration: Configuration) -> bool:
        return configuration is self._searched.best

    def _is_useful(self, configuration: Configuration) -> bool:
        if configuration.evaluator is not None:
            return False
        return self._is_best(configuration) or configuration.key not in self._improved


def _sum(configuration: Configuration) -> int:
    """Sum of value and bound."""
    assert configuration.value is not None
    return configuration.value + configuration.bound
