"""Random numbers that are recorded: a case drawn from simpler numbers is a simpler case."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.fuzz.category import SkippedError

Record = list[int]
"""The numbers that a case was drawn from, as whole numbers of some bits."""
BLOCKS = (32, 8, 4, 2, 1)
"""How many numbers are left out at a time."""
MAX_DRAWS = 10_000
"""Numbers after which a record draws no case."""


class Draws(Random):
    """Random numbers of a seed, or those of a record, behind whose end all are 0."""

    def __init__(self, seed: str, repeated: Record | None = None) -> None:
        """Begin a record, of drawn numbers or of those of another one."""
        self.record: Record = []
        self._repeated = repeated
        super().__init__(seed)

    def getrandbits(self, k: int, /) -> int:
        """Draw k bits, or take them from the record."""
        index = len(self.record)
        if self._repeated is None:
            bits = super().getrandbits(k)
        elif index == MAX_DRAWS:
            raise SkippedError("no case is drawn from this record")
        else:
            bits = self._repeated[index] % 2**k if index < len(self._repeated) else 0
        self.record.append(bits)
        return bits

    def random(self) -> float:
        """Draw a number below 1; 0 in a record leaves out what has a chance to be there."""
        return 1 - (self.getrandbits(53) + 1) / 2**53


def simpler(record: Record) -> Iterator[Record]:
    """Yield records with numbers left out, and with smaller numbers."""
    for size in BLOCKS:
        for start in range(0, len(record), size):
            yield record[:start] + record[start + size :]
    for index, bits in enumerate(record):
        for smaller in dict.fromkeys((0, bits // 2, bits - 1)) if bits else ():
            yield [*record[:index], smaller, *record[index + 1 :]]
