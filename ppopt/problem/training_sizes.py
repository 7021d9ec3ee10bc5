"""The sizes of a training: its ranks other than the pipeline's, and its sequences."""

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

    @property
    def gpus_per_device(self) -> int:
        """GPUs that a device of the pipeline stands for."""
        return self.tensor * self.context

    def in_file(self) -> dict[str, int]:
        """Sizes as a mapping in files, which `read_training` reads."""
        return {name: size for name, size in self._asdict().items() if size is not None}


def read_training(value: object, where: str = "") -> TrainingSizes:
    """Read a mapping of sizes, whole numbers above 0.

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
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= LARGEST:
            raise InputError(
                f"{where}{name}: {str(size)[:40]} is not a whole number from 1 to 2^31"
            )
        sizes[name] = size
    return TrainingSizes(**sizes)
