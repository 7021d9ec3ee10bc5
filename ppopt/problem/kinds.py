"""The registry of kinds: one record per kind of operation.

Charts, files, traces, figures and causes of idle time loop over the records and name no kind.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ppopt.problem.operation import AuxiliaryKind, OpKind, TransferKind

Kind = OpKind | TransferKind | AuxiliaryKind
"""Kind of any operation."""


class ResourceKind(Enum):
    """What a resource is; each runs one operation at a time."""

    COMPUTE = "compute"
    """The processor of a device."""
    LINK = "link"
    """What carries transfers between two devices."""
    COLLECTIVE = "collective"
    """The queue of a device's collective operations."""
    HOST = "host"
    """The link between a device and its host, or one way of it."""


class Per(Enum):
    """The unit that has one operation of a kind."""

    MICROBATCH = "microbatch"
    """Every stage and microbatch."""
    STAGE = "stage"
    """Every stage, once in a step."""
    DEVICE = "device"
    """Every device, once in a step."""


class KindRecord(NamedTuple):
    """What a kind of operation is."""

    kind: Kind
    letter: str
    """Its name in charts of plain text."""
    label: str
    colour: str
    """Hue in charts; a transfer has the hue of the operation whose result it carries."""
    resource: ResourceKind
    """What runs it."""
    per: Per = Per.MICROBATCH
    way: int = 0
    """Of a move between a device and its host: 0 to the host, 1 from the host."""
    carries: OpKind | None = None
    """Of a transfer: the kind of operation whose result it carries."""
    precedes_compute: bool = False
    """Whether compute of its stage waits for it, from the first microbatch on."""

    @property
    def name(self) -> str:
        """Its name in files."""
        return self.kind.name


_R = ResourceKind
RECORDS: tuple[KindRecord, ...] = (
    KindRecord(OpKind.F, "F", "forward", "#0072B2", _R.COMPUTE),
    KindRecord(OpKind.B, "B", "input gradient", "#E69F00", _R.COMPUTE),
    KindRecord(OpKind.W, "W", "weight gradient", "#009E73", _R.COMPUTE),
    KindRecord(OpKind.BW, "BW", "full backward", "#D55E00", _R.COMPUTE),
    KindRecord(TransferKind.SEND_F, "SEND_F", "activation", "#0072B2", _R.LINK, carries=OpKind.F),
    KindRecord(TransferKind.SEND_B, "SEND_B", "gradient", "#E69F00", _R.LINK, carries=OpKind.B),
    KindRecord(
        AuxiliaryKind.UNSHARD,
        *("U", "gather of weights", "#56B4E9", _R.COLLECTIVE),
        per=Per.STAGE,
        precedes_compute=True,
    ),
    KindRecord(
        AuxiliaryKind.GRADIENT_SYNC,
        *("G", "reduction of gradients", "#CC79A7", _R.COLLECTIVE),
        per=Per.STAGE,
    ),
    KindRecord(
        AuxiliaryKind.OPTIMIZER, "O", "optimizer step", "#F0E442", _R.COMPUTE, per=Per.DEVICE
    ),
    KindRecord(AuxiliaryKind.OFFLOAD, "H", "activation to the host", "#882255", _R.HOST),
    KindRecord(AuxiliaryKind.RELOAD, "R", "activation from the host", "#999933", _R.HOST, way=1),
)
"""The record of every kind, at the index of its code."""
