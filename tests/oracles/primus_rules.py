"""The rules by which Primus runs a table of nodes, written a second time; no code is Primus'.

`simulated` follows primus/core/projection/performance_projection/simulator.py (fd1eeab): a rank
waits at a receive until the send ran, transfers take no time, and sends right behind a receive
that waits are posted, too. `posted_orders` follows `batch_p2p_communication_handler`: neighbouring
nodes are one batch, unless their time steps differ, and a batch posts to higher ranks first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

SENDS, RECEIVES = ("SF", "SB"), ("RF", "RB")
COMPUTED = ("F", "B", "W", "BW")
Duration = Callable[[int, int, str], float]
"""Of an operation by rank, chunk and kind."""


def _end(node: Any) -> tuple[Any, ...]:
    """What both ends of a transfer have alike."""
    name = node.func_type.name
    chunk = node.args["send_to_chunk"] if name in SENDS else node.chunk
    return node.args["from_pp_rank"], node.args["to_pp_rank"], name[1], node.mini_batch, chunk


class _Rank:
    """The clock of a rank, and its position in its row."""

    def __init__(self, rank: int, row: Sequence[Any]) -> None:
        self.rank, self.row = rank, row
        self.clock, self.done = 0.0, 0
        self.starts: list[float] = []
        self.inputs = {
            (node.func_type.name[1], node.mini_batch, node.chunk): _end(node)
            for node in row
            if node.func_type.name in RECEIVES
        }

    def advance(self, sent: dict[tuple[Any, ...], float], duration: Duration) -> None:
        """Run until a receive whose send has not run, and the sends right behind it."""
        for index, node in enumerate(self.row[self.done :], self.done):
            name = node.func_type.name
            if name in RECEIVES and _end(node) not in sent:
                behind = (node.func_type.name in SENDS for node in self.row[index + 1 :])
                length = next((n for n, sends in enumerate(behind) if not sends), 0)
                for send in self.row[index + 1 : index + 1 + length]:
                    sent.setdefault(_end(send), self.clock)
                return
            if name in SENDS:
                sent.setdefault(_end(node), self.clock)
            elif name in COMPUTED:
                self.compute(node, sent, duration)
            self.done = index + 1

    def compute(self, node: Any, sent: dict[tuple[Any, ...], float], duration: Duration) -> None:
        name = node.func_type.name
        source = self.inputs.get((name[:1], node.mini_batch, node.chunk))
        if name != "W" and source is not None:
            self.clock = max(self.clock, sent[source])
        self.starts.append(self.clock)
        self.clock += duration(self.rank, node.chunk, name)


def simulated(
    table: Sequence[Sequence[Any]], duration: Duration
) -> tuple[float, list[list[float]]]:
    """The makespan, and the starts of the operations of every rank; fails if ranks wait forever."""
    ranks = [_Rank(rank, row) for rank, row in enumerate(table)]
    sent: dict[tuple[Any, ...], float] = {}
    while any(rank.done < len(rank.row) for rank in ranks):
        before = [rank.done for rank in ranks], len(sent)
        for rank in ranks:
            rank.advance(sent, duration)
        assert before != ([rank.done for rank in ranks], len(sent)), "the ranks wait forever"
    return max(rank.clock for rank in ranks), [rank.starts for rank in ranks]


def batches(row: Sequence[Any]) -> Iterator[list[Any]]:
    """Nodes that are posted together, of transfers between ranks."""
    batch: list[Any] = []
    for node, following in pairwise([*row, None]):
        transfer = node.func_type.name in SENDS + RECEIVES
        if transfer and node.args["from_pp_rank"] != node.args["to_pp_rank"]:
            batch.append(node)
        goes_on = following is not None and following.func_type.name in SENDS + RECEIVES
        if transfer and goes_on and "time_step" in following.args:
            goes_on = following.args["time_step"] == node.args["time_step"]
        if batch and not goes_on:
            yield batch
            batch = []


def posted_orders(table: Sequence[Sequence[Any]]) -> dict[tuple[int, int], list[list[Any]]]:
    """The transfers between two ranks in the order in which each of the two posts them."""
    orders: dict[tuple[int, int], list[list[Any]]] = defaultdict(lambda: [[], []])
    for rank, row in enumerate(table):
        for batch in batches(row):
            upward_first = sorted(
                batch, key=lambda n: n.args["from_pp_rank"] > n.args["to_pp_rank"]
            )
            for node in upward_first:
                pair = sorted((node.args["from_pp_rank"], node.args["to_pp_rank"]))
                orders[pair[0], pair[1]][pair.index(rank)].append(_end(node))
    return dict(orders)


def blocks(table: Sequence[Sequence[Any]]) -> bool:
    """Whether ranks wait forever if both ends of a batch wait for all of its transfers."""
    rows = [list(_steps(row)) for row in table]
    done = [0] * len(rows)
    posted: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    while True:
        before = list(done), sum(map(len, posted.values()))
        for rank, row in enumerate(rows):
            while done[rank] < len(row):
                ends = row[done[rank]]
                for end in ends:
                    posted[end].add(rank)
                if any(len(posted[end]) < 2 for end in ends):
                    break
                done[rank] += 1
        if before == (done, sum(map(len, posted.values()))):
            return any(at < len(row) for at, row in zip(done, rows, strict=True))


def _steps(row: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
    """The transfers of every batch."""
    return ([_end(node) for node in batch] for batch in batches(row))
