"""The decisions about a pipeline that are open: they are made with its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto

SEARCH = "search"
"""Value of a field whose decision is open. Until it is made, the partition is `balanced`, stage i
is on device i mod D, layers recompute and offload as stated, and microbatches run as listed."""
SEARCH_SET = "search-set"
"""Value of `recompute` for one set of modules in all layers."""


class Decisions(Flag):
    """Decisions that are open: any combination of these."""

    PARTITION = auto()
    PLACEMENT = auto()
    RECOMPUTE = auto()
    OFFLOAD = auto()
    RECOMPUTE_SET = auto()
    """The modules that all layers recompute, as one set."""
    ORDER = auto()
    """The order of microbatches that differ."""
    NONE = 0
    OF_LAYERS = RECOMPUTE | OFFLOAD
    """What each layer recomputes and offloads, by itself."""
    OF_MODEL = OF_LAYERS | RECOMPUTE_SET
    OF_STRATEGY = PARTITION | OF_LAYERS
    """Those that are searched for a strategy."""

    @classmethod
    def open_in(cls, fields: Mapping[str, object]) -> Decisions:
        """Decisions that fields of a pipeline leave open; the order if it is `search`."""
        opened = cls.RECOMPUTE_SET if fields.get("recompute") == SEARCH_SET else cls.NONE
        for decision in cls:
            value = fields.get(*decision.names)
            if isinstance(value, str) and value == SEARCH:
                opened |= decision
        return opened

    @property
    def configurations(self) -> str:
        """What the decisions choose from: `partitions and sets of modules`."""
        return " and ".join(_CONFIGURATIONS[each] for each in self)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the decisions."""
        return tuple(str(each.name).lower() for each in self)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a pipeline, and of layers, that state the decisions."""
        return tuple(name.removesuffix("_set") for name in self.names)


_CONFIGURATIONS = {
    Decisions.PARTITION: "partitions",
    Decisions.PLACEMENT: "placements",
    Decisions.RECOMPUTE: "choices of recompute",
    Decisions.OFFLOAD: "choices of offload",
    Decisions.RECOMPUTE_SET: "sets of modules",
    Decisions.ORDER: "orders of the microbatches",
}
