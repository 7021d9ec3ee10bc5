"""Link modes: how a link between two devices carries its transfers.

`delay`: a transfer is a delay and nothing else. It starts at the end of the operation whose result
it carries, and a link carries any number at once.

`streams`: the transfers of two devices run one at a time, as NCCL runs what PyTorch posts:

- Every pair of devices has one queue for both directions. (torch 2.13, ProcessGroupNCCL.cpp,
  `pointToPoint`: a single send or receive uses the communicator and the stream of the key
  `low:high`. The runtime posts each by itself: `_batch_p2p` in pipelining/schedules.py.)
- Every device posts its sends and receives at fixed places of its order. A post stands behind the
  computation that the device was given before it: it takes effect when all of that has ended.
  (`syncStream` makes the pair's stream wait for the stream of the computation.)
- A send stands behind the operation whose result it carries. An operation stands behind the receive
  of its input, and starts when that has ended (`_wait_batch_p2p`).
- A transfer runs once both ends are posted and the one before it in the queue has ended, and takes
  the p2p time. Both devices post the transfers of a pair in one order; otherwise they wait for each
  other forever.

So a transfer starts at the latest of: the end of the computation before its send, the end of the
computation before its receive, and the end of the transfer before it in its queue. For a given
order of every queue it is best to post as early as that order lets: sends behind the operation that
they carry, receives behind nothing but the posts before them. Both then follow from the order of
the queue, and start to end of a transfer is a job on a machine: its link.

With `init_process_group(device_id=...)` NCCL has one queue per device and not per pair; that is not
modelled. Data between stages of one device needs no transfer and is not modelled either.

`exclusive`: a link goes one way, from one device to another. It carries one transfer at a time, and
each takes the p2p time. A transfer starts as soon as what it carries has ended and its link is
free: nothing is posted, and no computation of the receiver holds it up. The order in which a link
carries its transfers is part of the schedule. A baseline serves a link first come, first served; of
results that exist at the same instant, that of the smaller microbatch goes first.

`blocking`: a transfer occupies the compute of both devices until it ends, as a collective permute
does in MaxText's circular pipeline: neither computes or transfers anything else. A strategy runs a
transfer as soon as its data exists and both devices are idle, first come, first served; a device
with a waiting transfer starts no operation. (So both ends wait for a transfer.) Of results that
exist at the same instant, that of the smaller microbatch goes first.

Links that carry one transfer at a time only delay more: their schedules, without the transfers,
keep every rule of `delay`. So a lower bound of the delay model holds for them.
"""

from __future__ import annotations

from ppopt.errors import ConflictError
from ppopt.problem.named_enum import NamedEnum


class LinkMode(NamedEnum):
    """The way in which a link carries its transfers."""

    meaning: str
    """For the reference of settings."""
    label: str
    """A few words for tables and pages; empty for the default."""

    def __new__(cls, value: str, meaning: str = "", label: str = "") -> LinkMode:
        """Make a mode whose text is `value`."""
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.label = value, meaning, label
        return member

    DELAY = "delay", "a transfer delays its receiver and nothing else", ""
    STREAMS = (
        "streams",
        "transfers between two devices, both ways together, run one at a time, in posted order, as "
        "PyTorch's runtime and NCCL do",
        "streams: transfers of two devices run one at a time",
    )
    EXCLUSIVE = (
        "exclusive",
        "each way between two devices carries one transfer at a time, in an order that is part of "
        "the schedule",
        "exclusive: transfers of one way run one at a time",
    )

    BLOCKING = (
        "blocking",
        "a transfer occupies the compute of both devices until it ends, as in MaxText's pipelines",
        "blocking: a transfer occupies both devices",
    )

    @property
    def has_links(self) -> bool:
        """Whether links are resources, which carry one transfer at a time; else they are delays."""
        return self is not LinkMode.DELAY

    def check(self, routes: int, slices: int) -> None:
        """Raise ConflictError if the mode does not support the routes or slices."""
        if self is LinkMode.STREAMS and (routes == 2 or slices > 1):
            what = "two routes" if routes == 2 else "slices"
            raise ConflictError(
                f"link_mode: streams are PyTorch's, which has no {what}; use link_mode delay"
            )


class HostLink(NamedEnum):
    """The moves that run at the same time between a device and its host."""

    DUPLEX = "duplex"
    """One move each way."""
    SHARED = "shared"
    """One move."""
