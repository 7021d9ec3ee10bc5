"""Precedence between the classes of an instance as a graph from which classes can be removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ppopt.problem.instance import Instance


class ClassGraph:
    """Some classes of an instance and the lags between them, in ticks.

    Removing a class keeps all delays: a class that waits for it then waits for its predecessors,
    with a lag that is longer by its duration and both lags (vertex elimination). So the lag between
    two classes is the longest path from the end of the first to the start of the second on which
    every other class has been removed. The order of removal has no effect on the final lags. If
    classes are removed from the last stage to the first, none has more than a few neighbours, and
    all removals take time linear in the number of classes.
    """

    def __init__(self, instance: Instance, class_ids: Iterable[int]) -> None:
        """`class_ids` are the classes of the graph; all other classes are left out."""
        members = set(class_ids)
        self._duration = {class_id: instance.classes[class_id].duration for class_id in members}
        self._after = {
            class_id: {
                after: lag for after, lag in instance.successors[class_id] if after in members
            }
            for class_id in members
        }
        self._before = {
            class_id: {
                before: lag for before, lag in instance.predecessors[class_id] if before in members
            }
            for class_id in members
        }

    def remove(self, class_id: int) -> None:
        """Remove a class; the longest paths through it stay as lags."""
        duration = self._duration.pop(class_id)
        before, after = self._before.pop(class_id), self._after.pop(class_id)
        for first, lag in before.items():
            del self._after[first][class_id]
            for then, lag_after in after.items():
                longest = max(self.lag(first, then) or 0, lag + duration + lag_after)
                self._after[first][then] = self._before[then][first] = longest
        for then in after:
            del self._before[then][class_id]

    def lag(self, before: int, after: int) -> int | None:
        """Minimum delay from the end of a class to the start of another; None: no constraint."""
        return self._after[before].get(after)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """All constraints, sorted: (class, class that waits for it, lag)."""
        for before in sorted(self._after):
            for after, lag in sorted(self._after[before].items()):
                yield before, after, lag
