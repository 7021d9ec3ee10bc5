"""The sizes of a training: its ranks other than the pipeline's, and its sequences.

Costs that are derived also assume how the trainer runs: its arguments, and what no argument says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.problem.settings import nearest

LARGEST = 2**31


class TrainingSizes(NamedTuple):
    """Sizes in Megatron-LM's terms. The costs of a pipeline belong to these sizes."""

    tensor: int = 1
    """Ranks that share every matrix, with sequence parallelism."""
    context: int = 1
    """Ranks that share every sequence."""
    data: int = 1
    """Copies of the pipeline, with optimizer states sharded over data x context ranks."""
    expert: int = 1
    """Ranks, of the data x context ones, over which experts are spread."""
    microbatch: int = 1
    """Sequences of a microbatch."""
    sequence: int | None = None
    """Tokens of a sequence; None: unknown."""
    arguments: tuple[str, ...] | None = None
    """Further arguments of Megatron-LM that the costs assume; None: unknown."""
    assumes: tuple[str, ...] | None = None
    """What the costs assume and no argument says."""

    @property
    def gpus_per_device(self) -> int:
        """GPUs that a device of the pipeline stands for."""
        return self.tensor * self.context

    def in_file(self) -> dict[str, int | list[str]]:
        """Sizes as a mapping in files, which `read_training` reads."""
        return {
            name: list(value) if name in TEXTS else value
            for name, value in self._asdict().items()
            if value is not None
        }


TEXTS = ("arguments", "assumes")
"""Fields that are lists of lines of text; the others are sizes."""


def read_training(value: object, where: str = "") -> TrainingSizes:
    """Read a mapping of sizes, whole numbers above 0, and of lists of text.

    Raises InputError, its message after `where`, on anything else.
    """
    if isinstance(value, TrainingSizes):
        value = value.in_file()
    if not isinstance(value, Mapping):
        raise InputError(
            f"{where}{str(value)[:40]!r} is no mapping of sizes; write {{tensor: 2, data: 4}}"
        )
    sizes: dict[str, Any] = {}
    for name, size in value.items():
        if name not in TrainingSizes._fields:
            near = nearest(str(name), TrainingSizes._fields)
            raise InputError(f"{where}unknown key {str(name)[:40]!r}; did you mean {near}?")
        if size is None:
            continue
        sizes[name] = _lines(size, where + name) if name in TEXTS else _size(size, where + name)
    return TrainingSizes(**sizes)


def _size(size: object, where: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
        raise InputError(f"{where}: {str(size)[:40]} is not a whole number from 1 to 2^31")
    return size


def _lines(lines: object, where: str) -> tuple[str, ...]:
    texts = tuple(lines) if isinstance(lines, list | tuple) else (None,)
    if not all(isinstance(line, str) and line.isprintable() for line in texts):
        raise InputError(f'{where}: {str(lines)[:40]!r} is no list of lines; write ["--bf16"]')
    return texts
