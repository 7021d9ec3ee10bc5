"""Several choices in one search: a configuration of any of them, under a prefix of its key.

The prefix selects the choice: the device of every stage, or one configuration of a plan. The lower
bound of the product is the minimum over its choices. Configurations are ordered by their bounds
across all choices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from ppopt.cancellation import equal_part, turns
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration
from ppopt.solver.choices.enumeration import (
    Complete,
    Enumeration,
    Key,
    Partial,
    Rest,
    Unlisted,
    min_rest,
)


class ProductChoice(Choice):
    """The configurations of several choices."""

    def __init__(self, inner: Mapping[Key, Choice]) -> None:
        """`inner`: the choice of every prefix; all prefixes have one length."""
        self.inner = dict(inner)
        self._width = len(min(self.inner, default=()))

    @abstractmethod
    def prefixes(self, pipeline: Pipeline) -> Iterable[Key]:
        """Prefixes of the choices that may have a pipeline, the best first."""

    def _of(self, key: Key) -> tuple[Key, Choice, Key]:
        """Prefix of a key, its choice, and the key within that choice."""
        prefix = key[: self._width]
        return prefix, self.inner[prefix], key[self._width :]

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of a configuration."""
        _, choice, own = self._of(key)
        return choice.pipeline(own)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of a pipeline, of the first choice that has it; None if none has."""
        for prefix in self.prefixes(pipeline):
            own = self.inner[prefix].key(pipeline)
            if own is not None:
                return (*prefix, *own)
        return None

    def min_bound(self, prefix: Key) -> int:
        """Lower bound of the configurations of a choice."""
        return self.inner[prefix].lower_bound

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds."""
        for key in keys:
            prefix, choice, own = self._of(key)
            for configuration in choice.configurations([own]):
                configuration.key = (*prefix, *configuration.key)
                yield configuration

    def bound(self, ceiling: int | None = None) -> None:
        """Bound the configurations of every choice."""
        for choice, turn in turns(list(self.inner.values()), equal_part):
            with turn:
                choice.bound(ceiling)

    @property
    def lower_bound(self) -> int:
        """Lower bound of all choices."""
        return min(map(self.min_bound, self.inner), default=0)

    def listed(self) -> Enumeration[Key]:
        """Configurations of all choices; complete if every choice lists all of its own."""
        each = {prefix: choice.listed() for prefix, choice in self.inner.items()}
        keys = [key for prefix, own in each.items() for key in _keys(prefix, own.members)]
        if all(isinstance(own, Complete) for own in each.values()):
            return Complete(keys)
        return Partial(keys)

    def first(self) -> Iterator[Key]:
        """First configuration of every choice, then the second ones, and so on."""
        rows = list(map(self.first_of, self.ordered()))
        while rows:
            for row in list(rows):
                key = next(row, None)
                if key is None:
                    rows.remove(row)
                else:
                    yield key

    def ordered(self) -> Iterable[Key]:
        """Prefixes in the order of their first configurations."""
        return self.inner

    def first_of(self, prefix: Key) -> Iterator[Key]:
        """Configurations of a choice to schedule first."""
        return _keys(prefix, self.inner[prefix].first())

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within a choice."""
        prefix, choice, own = self._of(key)
        yield from _keys(prefix, choice.moves(own))

    def rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """Unlisted configurations of the choice with the minimum bound."""
        rests = (
            (prefix, choice.rest(_Own(prefix, known), ceiling))
            for prefix, choice in self.inner.items()
        )
        return min_rest(rest.under(prefix) for prefix, rest in rests if isinstance(rest, Unlisted))


def _keys(prefix: Key, own: Iterable[Key]) -> Iterator[Key]:
    """Keys of the configurations of one choice."""
    return ((*prefix, *key) for key in own)


class _Own:
    """The known configurations of one choice, by their own keys."""

    def __init__(self, prefix: Key, known: Container[Key]) -> None:
        self._prefix, self._known = prefix, known

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and (*self._prefix, *key) in self._known
