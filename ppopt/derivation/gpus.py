"""GPUs: rates, memory and fixed times, each value with its basis and source (`gpus.toml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args, get_type_hints

from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_toml, read_text
from ppopt.formats.fields import abbreviated, section, text, within
from ppopt.problem import exact
from ppopt.problem.settings import nearest
from ppopt.problem.units import SCALES, Unit

_WITH_UNIT = re.compile(r"\s*([-+.0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z][A-Za-z/]*)\s*")
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTES = {**SCALES[Unit.MEMORY], "TB": Fraction(10**12), "TiB": Fraction(2**40)}
_GIB = _BYTES["GiB"]


@dataclass(frozen=True)
class Measure:
    """The quantity of a value: the unit of its plain numbers, its range and its other units."""

    unit: str
    minimum: float
    maximum: float
    example: str
    units: Mapping[str, Fraction] = field(default_factory=dict, hash=False)
    """Unit -> its size in `unit`."""
    is_whole: bool = False

    def read(self, value: object, where: str) -> float:
        """Read a number, or text of one with its unit.

        Raises InputError, beginning with `where`, if it is neither, or out of range.
        """
        parts = _WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
        number, unit = (value, None) if parts is None else (parts[1], parts[2])
        if unit is not None and unit not in self.units:
            raise self._error(f"{abbreviated(value)}: unit {unit} is unknown", where)
        amount = exact.fraction(number, where) * (1 if unit is None else self.units[unit])
        if not self.minimum <= amount <= self.maximum:
            bounds = f"{self.minimum:g} .. {self.maximum:g} {self.unit}".strip()
            raise self._error(f"{abbreviated(value)} is not within {bounds}", where)
        if self.is_whole and amount.denominator != 1:
            raise self._error(f"{abbreviated(value)} is not a whole number", where)
        return exact.plain(amount)

    def _error(self, fault: str, where: str) -> InputError:
        return InputError(f"{where}: {fault}; write {self.example}")


@dataclass(frozen=True)
class MeasureByName:
    """A quantity that depends on a name: a table, name -> value."""

    each: Measure

    def read(self, value: object, where: str) -> Mapping[Any, float]:
        """Read a table; raises InputError, beginning with `where`, if it is none."""
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: {abbreviated(value)} is no table; write {{fa2 = 1.7}}")
        return {name: self.each.read(each, f"{where}: {name}") for name, each in value.items()}


class MeasureByRanks(MeasureByName):
    """A quantity that depends on the number of ranks: a table, ranks -> value."""

    def read(self, value: object, where: str) -> Mapping[Any, float]:
        """Read a table, or one value for any number of ranks.

        Raises InputError, beginning with `where`, if it is neither.
        """
        if not isinstance(value, Mapping):
            return {2: self.each.read(value, where)}
        if not value:
            raise InputError(f"{where}: the table is empty; write {{2 = 0.6, 8 = 0.7}}")
        table = super().read(value, where)
        return dict(sorted((_ranks(ranks, where), each) for ranks, each in table.items()))


def _ranks(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) >= 2):
        raise InputError(
            f"{where}: {abbreviated(text)} is no number of ranks; write {{2 = 0.6, 8 = 0.7}}"
        )
    return int(text)


_PER_SECOND = {f"{unit}/s": size for unit, size in _BYTES.items()}
_BITS_PER_SECOND = {f"{prefix}b/s": Fraction(size, 8) for prefix, size in _SI.items()}
_FLOP = {f"{prefix}FLOP": Fraction(size) for prefix, size in _SI.items()}
_FLOP_PER_SECOND = {f"{unit}/s": size for unit, size in _FLOP.items()}
_FLOPS = {f"{unit}S": size for unit, size in _FLOP.items()}
_SHARE = Measure("", 0.001, 1, "0.6")

FlopsPerSecond: TypeAlias = Annotated[
    float, Measure("FLOP/s", 1e12, 1e18, "989e12 or 989TFLOP/s", _FLOP_PER_SECOND | _FLOPS)
]
Flops: TypeAlias = Annotated[float, Measure("FLOP", 0, 1e15, "30e9 or 30GFLOP", _FLOP)]
Capacity: TypeAlias = Annotated[
    float,
    Measure("GiB", 1, 1e5, "80 or 80GiB", {unit: size / _GIB for unit, size in _BYTES.items()}),
]
Bandwidth: TypeAlias = Annotated[
    float, Measure("bytes/s", 1e8, 1e15, "50e9 or 50GB/s", _PER_SECOND | _BITS_PER_SECOND)
]
Seconds: TypeAlias = Annotated[float, Measure("s", 0, 1, "10e-6 or 10us", SCALES[Unit.TIME])]
Share: TypeAlias = Annotated[float, _SHARE]
ByRanks: TypeAlias = Annotated[Mapping[int, float], MeasureByRanks(_SHARE)]
Number: TypeAlias = Annotated[float, Measure("", 0, 1e6, "150")]
Layouts: TypeAlias = Annotated[int, Measure("layouts", 1, 2, "2", is_whole=True)]
ByName: TypeAlias = Annotated[Mapping[str, float], MeasureByName(Measure("", 0.01, 100, "1.7"))]
Count: TypeAlias = Annotated[int, Measure("GPUs", 1, 1e6, "8", is_whole=True)]


class Precision(StrEnum):
    """Number format of the products of matrices."""

    BF16 = "bf16"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


FUSED = "fused"
"""Attention with the kernels of today: of cuDNN under Transformer Engine, or PyTorch's own."""
UNFUSED = "unfused"
"""Attention that writes its scores to the memory of the GPU."""


class Basis(StrEnum):
    """The basis of a value of a GPU."""

    PUBLISHED = "published"
    """Its maker's data sheet."""
    MEASURED = "measured"
    """A measurement on this GPU."""
    ASSUMED = "assumed"
    """A measurement on another GPU, or a guess."""
    USER_FILE = "given"
    """The user's own file."""


class ValueSource(NamedTuple):
    """The origin of a value."""

    basis: Basis
    source: str


@dataclass(frozen=True)
class Gpu:
    """Rates and fixed times of a GPU, alone and in a group.

    A product of matrices of F FLOPs takes (F + matrix_overhead) / (peak x matrix_efficiency). A
    collective of n ranks waits collective_fixed + collective_step x (n - 1), and moves its bytes at
    the bus bandwidth of n ranks.
    """

    name: str
    origins: Mapping[str, ValueSource] = field(hash=False, repr=False)
    """Origin of every value that is not None, by the name of its field."""

    bf16: FlopsPerSecond
    """Dense peak, without sparsity, as all peaks."""
    memory: Capacity
    memory_speed: Bandwidth
    gpus_per_node: Count
    """GPUs that NVLink, or its counterpart, connects."""
    node_bandwidth: Bandwidth
    """Nominal bandwidth at which a GPU sends to the others of its node, one way."""
    network_bandwidth: Bandwidth
    """Nominal share of a GPU in the network adapters of its node, one way."""

    host_bandwidth: Bandwidth
    """Nominal bandwidth between a GPU and the memory of its host, one way."""
    host_efficiency: Share
    """Share of `host_bandwidth` that copies from and to pinned memory reach."""

    matrix_efficiency: Share
    """Share of the peak that large products of matrices reach."""
    matrix_overhead: Flops
    """FLOPs that the GPU could do during the start and end of a product."""
    grouped_efficiency: Share
    """Share of the peak that grouped products of experts reach."""
    attention_efficiency: Share
    """Share of the BF16 peak that the forward pass of attention reaches with many blocks."""
    attention_backward_efficiency: Share
    """The same of its backward pass."""
    attention_blocks: Number
    """Pairs of a head and a block of 128 queries at which attention reaches half of its share."""
    state_efficiency: Share
    """Share of the BF16 peak that linear attention with a state reaches, forward."""
    attention_kernels: ByName = field(hash=False)
    """Time of attention with a kernel, by its name, relative to that of the shares above."""
    memory_efficiency: Share
    """Share of `memory_speed` that memory-bound kernels reach."""
    kernel_time: Seconds
    """Minimum time of a kernel."""
    launch_time: Number
    """Time in which the CPU of its node launches a kernel, relative to that of an H100's node."""

    collective_fixed: Seconds
    collective_step: Seconds
    all_gather: ByRanks = field(hash=False)
    """Bus bandwidth of all-gather and reduce-scatter in a node, as a share of `node_bandwidth`."""
    all_reduce: ByRanks = field(hash=False)
    all_to_all: ByRanks = field(hash=False)
    network_efficiency: Share
    """Share of `network_bandwidth` that collectives reach."""
    network_p2p_efficiency: Share
    """Share of `network_bandwidth` that transfers between two GPUs reach."""
    network_latency: Seconds
    fp8_layouts: Layouts
    """Layouts of a matrix that its products in FP8 need: 1 if they multiply any layout."""

    fp8: FlopsPerSecond | None = None
    """None: the GPU has no FP8."""
    fp4: FlopsPerSecond | None = None

    def peak(self, precision: Precision) -> float:
        """Dense FLOP/s at a precision; raises InputError if the GPU does not have it."""
        peaks = {Precision.BF16: self.bf16, Precision.FP8: self.fp8, Precision.NVFP4: self.fp4}
        peak = peaks[precision]
        if peak is None:
            raise InputError(f"precision: {self.name} has no {precision}; leave it at bf16")
        return peak

    def with_attention(self, kernel: str) -> Gpu:
        """The GPU with the rates of a kernel of attention.

        Raises InputError if no time of the kernel is known.
        """
        times = {**dict.fromkeys((FUSED, UNFUSED), 1.0), **self.attention_kernels}
        if kernel not in times:
            raise InputError(
                f"attention: {abbreviated(kernel)} is unknown for {self.name}; known are "
                f"{', '.join(times)}"
            )
        return replace(
            self,
            attention_efficiency=self.attention_efficiency / times[kernel],
            attention_backward_efficiency=self.attention_backward_efficiency / times[kernel],
        )


class _Sourced(NamedTuple):
    """A value and its origin."""

    value: Any
    origin: ValueSource


Record: TypeAlias = Mapping[str, Any]
"""Values of a GPU from one source, as TOML has them."""
Records: TypeAlias = Mapping[str, Sequence[Record]]
"""The records of every GPU, or of every family, by name."""
FAMILY = "any"
"""Family of a GPU that is like no other."""
LARGEST_FILE = 2**20
"""Bytes of a user's own file."""
LONGEST_LINE = 300
"""Characters of a name or a source."""
PEAKS = ("bf16", "fp8", "fp4")
REQUIRED = ("bf16", "memory", "memory_speed")
"""Required values of a GPU that is like no other."""
EXAMPLE = 'like = "h100"'


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every GPU by name."""
    _, records = _catalog()
    return {name: _gpu(name, _values(each)) for name, each in records.items()}


def gpu_named(name: str | Path) -> Gpu:
    """A GPU by its name, in any case, or by a file of the user's own, which ends in .toml.

    Raises InputError if there is none, or if the file cannot be read, has unknown or missing keys,
    or values out of range.
    """
    if not str(name).lower().endswith(".toml"):
        return _known(str(name), "gpu")
    path = Path(name)
    document = parse_toml(read_text(path, LARGEST_FILE), label(path))
    return within(label(path), _own_gpu, document, path)


def _own_gpu(document: object, path: Path) -> Gpu:
    """A GPU from the user's own file: its values override those of the GPU that `like` names.

    Without `like` the file needs the values of `REQUIRED`; others are then those of the family.
    `name` (default: the name of the file) and `source` describe it.
    """
    record = section(document, (), ("name", "like", "source", *_measures()))
    if "like" in record:
        like = _known(within("like", text, record["like"]), "like").name
    else:
        like = FAMILY
        for key in REQUIRED:
            if key not in record:
                raise InputError(f"{key} is missing; give it, or a GPU that has it: {EXAMPLE}")
    name, source = (
        within(key, _line, record.get(key, default))
        for key, default in (("name", path.stem), ("source", f"given in {path.name}"))
    )
    return _gpu(
        name, _values([record | {"like": like, "basis": Basis.USER_FILE, "source": source}])
    )


def _line(value: object) -> str:
    """Check for text on one line."""
    line = text(value).strip()
    if not line.isprintable() or not 0 < len(line) <= LONGEST_LINE:
        raise InputError(f"{abbreviated(value)} is not one line of 1 to {LONGEST_LINE} characters")
    return line


def _known(name: str, key: str) -> Gpu:
    """A GPU of `gpus.toml` by its name, which the user gives under a key."""
    gpu = gpus().get(name.strip().lower())
    if gpu is None:
        fault = f"{abbreviated(name)} is unknown; did you mean {nearest(name, gpus())}?"
        raise InputError(
            f"{key}: {fault if name else 'name one;'} known are {', '.join(gpus())}, and your own "
            "file, my-gpu.toml"
        )
    return gpu


@cache
def _catalog() -> tuple[Records, Records]:
    """The records of `gpus.toml`: of families, and of GPUs."""
    file = files("ppopt.derivation") / "gpus.toml"
    catalog: Any = parse_toml(file.read_text(encoding="utf-8"), "gpus.toml")
    return catalog["family"], catalog["gpu"]


@cache
def _measures() -> Mapping[str, Measure | MeasureByName]:
    """Quantity of each value of a GPU, by the name of its field."""
    measures: dict[str, Measure | MeasureByName] = {}
    for name, hint in get_type_hints(Gpu, include_extras=True).items():
        annotated = next(
            (part for part in (hint, *get_args(hint)) if hasattr(part, "__metadata__")), None
        )
        if annotated is not None:
            (measures[name],) = annotated.__metadata__
    return measures


def _gpu(name: str, values: Mapping[str, _Sourced]) -> Gpu:
    origins = {key: value.origin for key, value in values.items()}
    return Gpu(name=name, origins=origins, **{key: value.value for key, value in values.items()})


def _values(records: Sequence[Record]) -> dict[str, _Sourced]:
    """The values of a GPU's records; a later record overrides values of an earlier one.

    A record with `bf16` states all peaks: FP8 of another GPU does not apply to it.
    """
    values: dict[str, _Sourced] = {}
    families, known = _catalog()
    for record in records:
        base = record.get("like")
        if base is not None:
            inherited = _values(known[base] if base in known else families[base])
            values |= {key: _inherited(value, base) for key, value in inherited.items()}
        if "bf16" in record:
            values = {key: value for key, value in values.items() if key not in PEAKS}
        for key, measure in _measures().items():
            if key in record:
                origin = ValueSource(Basis(record["basis"]), record["source"])
                values[key] = _Sourced(measure.read(record[key], key), origin)
    return values


def _inherited(value: _Sourced, base: str) -> _Sourced:
    """A value of another GPU, or of a family: it is assumed to hold for this one."""
    basis, source = value.origin
    if basis is Basis.ASSUMED:
        return value
    return _Sourced(value.value, ValueSource(Basis.ASSUMED, f"as {base}: {source}"))
