"""Links as streams between processes: transfers of two ranks run one at a time, in posted order.

Gloo delivers a tensor as soon as it is there. Here every rank notes when it posts a send or a
receive, in a file that all ranks on the machine map. A transfer starts when both ends are posted
and the one before it between the two ranks has ended, and takes its p2p time
(`ppopt.problem.link_mode`); an operation waits until the transfer of its input has ended. The
processes post at the times at which PyTorch's runtime gets there, and their tensors really travel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppopt.errors import VerificationError
from ppopt.problem.operation import OpKind
from ppopt.schedule.link_queues import MISSING, LinkQueues
from ppopt.schedule.schedule import Schedule
from ppopt.torch.synthetic import sleep_until

_POSTS = {
    "get_fwd_send_ops": (OpKind.F, 0),
    "get_fwd_recv_ops": (OpKind.F, -1),
    "get_bwd_send_ops": (OpKind.B, 0),
    "get_bwd_recv_ops": (OpKind.B, 1),
}
"""Method of a stage that makes a post -> kind of transfer, offset of the stage that sends it."""
_NEEDS = {"forward_one_chunk": (OpKind.F, -1), "backward_one_chunk": (OpKind.B, 1)}
"""Method of a stage that needs an input -> the same of the transfer that brings it."""


class StreamDelays(NamedTuple):
    """The links of a pipeline, and the file in which ranks note their posts."""

    path: Path
    links: LinkQueues
    nanoseconds: tuple[int, ...]
    """Time of every transfer, by its number."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the file: link, end of the link, place in its queue, (transfer + 1, time)."""
        return max(1, len(self.links.pairs)), 2, len(self.links.numbers), 2

    def of_rank(self, rank: int, stages: Sequence[Any]) -> RankLinks:
        """The links of a rank, in force for its stages."""
        return RankLinks(self, rank, stages)


def stream_delays(schedule: Schedule, seconds_per_unit: float, path: Path) -> StreamDelays:
    """Create the links of a schedule's pipeline."""
    links = LinkQueues(schedule.pipeline)
    unit = seconds_per_unit * 1e9 / schedule.pipeline.ticks.per_unit
    delays = StreamDelays(path, links, tuple(round(t * unit) for t in links.duration.tolist()))
    path.write_bytes(bytes(8 * int(np.prod(delays.shape))))
    return delays


class RankLinks:
    """One rank's ends of its links: what it has posted, and when transfers end."""

    def __init__(self, delays: StreamDelays, rank: int, stages: Sequence[Any]) -> None:
        self._links, self._nanoseconds = delays.links, delays.nanoseconds
        self._notes = np.memmap(delays.path, dtype=np.int64, mode="r+", shape=delays.shape)
        self._end = {
            link: pair.index(rank) for link, pair in enumerate(self._links.pairs) if rank in pair
        }
        self.begin_step()
        for stage in stages:
            self._wrap(stage)

    def begin_step(self) -> None:
        """Forget the last step; all ranks do so between the same two barriers."""
        self._posted = dict.fromkeys(self._end, 0)
        self._place: dict[int, int] = {}
        self._carried = dict.fromkeys(self._end, 0)
        self._free = dict.fromkeys(self._end, 0)

    def _wrap(self, stage: Any) -> None:
        for name, (kind, offset) in _POSTS.items():
            sender = stage.stage_index + offset
            setattr(stage, name, self._noting(getattr(stage, name), kind, sender))
        for name, (kind, offset) in _NEEDS.items():
            sender = stage.stage_index + offset
            setattr(stage, name, self._waiting(getattr(stage, name), kind, sender))

    def _number(self, kind: OpKind, sender: int, microbatch: int) -> int | None:
        """Number of a transfer; None if there is none."""
        if not 0 <= sender < self._links.pipeline.num_stages:
            return None
        number = self._links.number(kind, sender, microbatch)
        return None if self._links.link[number] == MISSING else number

    def _noting(self, method: Callable[..., Any], kind: OpKind, sender: int) -> Callable[..., Any]:
        def posting(microbatch: int) -> Any:
            number = self._number(kind, sender, microbatch)
            if number is not None:
                self._post(number)
            return method(microbatch)

        return posting

    def _post(self, number: int) -> None:
        link = int(self._links.link[number])
        place = self._posted[link]
        self._notes[link, self._end[link], place] = number + 1, time.perf_counter_ns()
        self._place[number] = place
        self._posted[link] = place + 1

    def _waiting(self, method: Callable[..., Any], kind: OpKind, sender: int) -> Callable[..., Any]:
        def delayed(microbatch: int, *args: Any, **options: Any) -> Any:
            number = self._number(kind, sender, microbatch)
            if number is not None:
                sleep_until(self._arrival(number))
            return method(microbatch, *args, **options)

        return delayed

    def _arrival(self, number: int) -> int:
        """End of a transfer whose tensor is here: so all posts up to it are noted, on both ends."""
        link = int(self._links.link[number])
        for place in range(self._carried[link], self._place[number] + 1):
            (one, mine), (other, theirs) = self._notes[link, :, place].tolist()
            if one != other:
                posts = (str(self._links.transfer(post - 1)) for post in (one, other))
                raise VerificationError(
                    f"ranks {self._links.pairs[link]}: their post number {place} is of two "
                    f"transfers: {' and '.join(posts)}"
                )
            begin = max(mine, theirs, self._free[link])
            self._free[link] = begin + self._nanoseconds[one - 1]
            self._carried[link] = place + 1
        return self._free[link]
