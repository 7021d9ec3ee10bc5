"""Values of a pipeline's fields as its user gives them: read exactly, counted and checked."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence, Sized
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem import exact
from ppopt.problem.settings import LIMIT_1F1B

LARGEST_GRID = 10**7
"""Largest product of stages and microbatches."""
Values = tuple[Fraction, ...]


@dataclass
class FieldReader:
    """Reads fields of numbers and lists, and remembers which of them were rounded.

    Every method raises InputError, naming the field, on what is not such a value.
    """

    rounded: tuple[str, ...]

    def note(self, fields: Iterable[str]) -> None:
        """Remember further fields that were rounded."""
        self.rounded = tuple(dict.fromkeys((*self.rounded, *fields)))

    def numbers(
        self, field: str, values: Sequence[object], *, signed: bool = False, down: bool = False
    ) -> Values:
        """Read numbers; `down`: too fine a number is rounded down, as a limit must not grow."""
        read = [exact.read(number, field, down=down) for number in values]
        for number in read:
            if number.value < 0 and not signed:
                raise InputError(f"{field}: {exact.plain(number.value)} is negative")
        if any(number.rounded for number in read):
            self.note([field])
        return tuple(number.value for number in read)

    def per_stage(self, field: str, value: object, stages: int, *, signed: bool = False) -> Values:
        """Read one value per stage (or share of a device), repeating a single number."""
        if not is_list(value):
            return self.numbers(field, [value], signed=signed) * stages
        numbers = self.numbers(field, as_list(value, field), signed=signed)
        if len(numbers) == 1:
            return numbers * stages
        check_count(field, numbers, stages, "stage", "one number, or ")
        return numbers

    def pair_times(self, field: str, value: object, stages: int, empty: Container[int] = ()) -> Any:
        """Read times of pairs: one per stage, or a matrix [stage of F][stage of the backward].

        They are above 0, except for pairs of stages that compute nothing (`empty`).
        """
        kind = "B" if field == "overlap_input" else "BW"
        if is_list(value) and any(map(is_list, as_list(value, field))):
            rows = [as_list(row, field) for row in as_list(value, field)]
            if len(rows) != stages or any(len(row) != stages for row in rows):
                raise InputError(
                    f"{field}: a matrix must be {stages} x {stages}, one row per stage of F, "
                    f"one column per stage of {kind}"
                )
            read: Any = tuple(self.numbers(field, row) for row in rows)
            labelled = [
                (f"F of stage {stage} and {kind} of stage {backward_stage}", time)
                for stage, row in enumerate(read)
                for backward_stage, time in enumerate(row)
                if stage not in empty or backward_stage not in empty
            ]
        else:
            read = self.per_stage(field, value, stages)
            labelled = [
                (f"stage {stage}", time) for stage, time in enumerate(read) if stage not in empty
            ]
        for label, time in labelled:
            if not time:
                raise InputError(
                    f"{field}: {label}: 0 is not above 0, or finer than 10^-6 of the unit, the "
                    "finest that is kept; give the time of both run as one"
                )
        return read

    def delays(self, field: str, value: Any, stages: int, devices: int) -> Any:
        """Read a number, a list with the delay after every stage but the last, or a matrix."""
        if not is_list(value):
            return self.numbers(field, [value])[0]
        if not any(map(is_list, value)):
            numbers = self.numbers(field, value)
            if len(numbers) != stages - 1:
                raise ConflictError(
                    f"{field}: has {len(numbers)} entries for {stages} stages; give one "
                    "number, one after every stage but the last, or a matrix"
                )
            return numbers
        rows = [as_list(row, field) for row in value]
        if len(rows) != devices or any(len(row) != devices for row in rows):
            raise InputError(
                f"{field}: a matrix must be {devices} x {devices}, one row and column per device"
            )
        matrix = tuple(self.numbers(field, row) for row in rows)
        for device in range(devices):
            if matrix[device][device]:
                raise InputError(f"{field}: device {device} to itself must be 0")
        return matrix

    def speeds(self, value: Any, hosts: Sequence[Sequence[int]], devices: int) -> Values:
        """Read the speed of every device; `hosts[route][stage]` is the device of a stage."""
        listed = value if is_list(value) else [value] * devices
        numbers = self.numbers("device_speed", listed)
        check_count("device_speed", numbers, devices, "device", "one number, or ")
        check_above_0("device_speed", numbers, "device")
        for row in hosts[1:]:
            for first_device, second_device in zip(hosts[0], row, strict=True):
                if numbers[first_device] != numbers[second_device]:
                    raise ConflictError(
                        f"device_speed: two routes run a stage on devices {first_device} and "
                        f"{second_device}; give these one speed"
                    )
        return numbers

    def limit(self, value: Any, devices: int) -> Any:
        """Read a memory limit: None, `1f1b`, a number for all devices, or one per device."""
        if value is None:
            return None
        if is_1f1b(value):
            return LIMIT_1F1B
        if not is_list(value):
            return self.numbers("mem_limit", [value], down=True)[0]
        numbers = self.numbers("mem_limit", as_list(value, "mem_limit"), down=True)
        check_count("mem_limit", numbers, devices, "device", "one number, or ")
        return numbers


def whole(value: object, what: str) -> int:
    """Read a whole number of 1 to LARGEST_GRID; raises InputError, naming `what`, on any other."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{what}: {value!r} is not a whole number")
    if value < 1:
        raise InputError(f"{what}: {value} is below 1")
    if value > LARGEST_GRID:
        raise InputError(f"{what}: {value} is above {LARGEST_GRID}")
    return value


def check_count(field: str, entries: Sized, count: int, of: str, also: str = "") -> None:
    """Raise InputError unless there are `count` entries; `also` names another valid form."""
    if len(entries) != count:
        plural = f"{of}es" if of.endswith("ch") else f"{of}s"
        raise InputError(
            f"{field}: has {len(entries)} entries for {count} {plural}; give {also}one per {of}"
        )


def check_above_0(field: str, numbers: Values, of: str) -> None:
    """Raise InputError if a number is 0; `of` names what has one number each."""
    for index, number in enumerate(numbers):
        if not number:
            raise InputError(
                f"{field}: {of} {index}: 0 is not above 0, or finer than 10^-6, the finest that is "
                "kept"
            )


def check_grid(stages: int, pieces: int) -> None:
    """Raise ConflictError if stages times microbatches (or their slices) are too many."""
    if stages * pieces > LARGEST_GRID:
        raise ConflictError(
            f"stages x microbatches is above {LARGEST_GRID}: {stages} x {pieces}; use fewer batches"
        )


def as_list(value: object, what: str) -> list[Any]:
    """Return a list that a user gave; raises InputError, naming `what`, on anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"{what}: {value!r} is not a list")
    return list(value)


def is_list(value: object) -> bool:
    """Whether a value is a list, not a number or text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def is_1f1b(limit: object) -> bool:
    """Whether a memory limit is given as the peak of 1F1B, by its name."""
    return isinstance(limit, str) and limit.strip().lower() == LIMIT_1F1B


def is_exact(value: Any) -> bool:
    """Whether a value is a cost that a pipeline has read: `replace` passes it on unchanged."""
    return value is None or (
        is_list(value)
        and all(type(entry) is Fraction or (entry and is_exact(entry)) for entry in value)
    )
