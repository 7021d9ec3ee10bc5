"""Precedence between the classes of an instance as a graph from which classes can be removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ppopt.problem.instance import Instance


class ClassGraph:
    """Some classes of an instance and the lags between them, in ticks.

    Removing a class keeps all delays: what waits for it then waits for its predecessors, later by
    its duration and both lags (vertex elimination). So the lag between two classes is the longest
    path from the end of the first to the start of the second on which every other class has been
    removed. The order of removal has no effect on the lags left at the end; from the last stage to
    the first no class has more than a few neighbours, and all removals take time linear in the
    number of classes.
    """

    def __init__(self, instance: Instance, numbers: Iterable[int]) -> None:
        """`numbers` are the classes of the graph; others and their precedence are left out."""
        members = set(numbers)
        self._duration = {number: instance.classes[number].duration for number in members}
        self._after = {
            number: {after: lag for after, lag in instance.successors[number] if after in members}
            for number in members
        }
        self._before = {
            number: {
                before: lag for before, lag in instance.predecessors[number] if before in members
            }
            for number in members
        }

    def remove(self, number: int) -> None:
        """Remove a class; the longest paths through it stay as lags."""
        duration = self._duration.pop(number)
        before, after = self._before.pop(number), self._after.pop(number)
        for first, lag in before.items():
            del self._after[first][number]
            for then, further in after.items():
                longest = max(self.lag(first, then) or 0, lag + duration + further)
                self._after[first][then] = self._before[then][first] = longest
        for then in after:
            del self._before[then][number]

    def lag(self, before: int, after: int) -> int | None:
        """Least delay from the end of a class to the start of another; None: no constraint."""
        return self._after[before].get(after)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """All constraints, sorted: (class, class that waits for it, lag)."""
        for before in sorted(self._after):
            for after, lag in sorted(self._after[before].items()):
                yield before, after, lag
