"""Random stages for devices that differ: what a search over placements chooses from."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.pipeline import Pipeline
from tests.oracles.configurations import placements

Hosts = tuple[int, ...]


class Cluster(NamedTuple):
    """Stages with times at speed 1, and devices with speeds, limits and links."""

    stages: dict[str, list[int]]
    """Costs per stage, by field of Pipeline."""
    batches: int
    speeds: tuple[Fraction, ...]
    p2p: list[list[int]]
    limits: list[int] | None
    fused: bool

    @property
    def backward_kind(self) -> BackwardKind:
        """As `ppopt.solve` takes it."""
        return BackwardKind.uniform(fused=self.fused)

    @property
    def devices(self) -> int:
        return len(self.speeds)

    def placements(self) -> list[Hosts]:
        """Every way to put the stages on the devices that uses every device."""
        return list(placements(self.devices, len(self.stages["forward"])))

    def pipeline(self, hosts: Hosts) -> Pipeline:
        """The stages on these devices."""
        return Pipeline(
            stages=len(hosts),
            placement=hosts,
            device_speed=self.speeds,
            **self._rest,
            **self.stages,
        )

    def spelled_out(self, hosts: Hosts) -> Pipeline:
        """The same on devices of speed 1, the times of every stage divided by its speed."""
        costs: dict[str, Any] = dict(self.stages)
        for field in ("forward", "backward_input", "weight", "backward"):
            times = zip(self.stages[field], hosts, strict=True)
            costs[field] = [time / self.speeds[host] for time, host in times]
        return Pipeline(stages=len(hosts), placement=hosts, **self._rest, **costs)

    @property
    def _rest(self) -> dict[str, Any]:
        return {"batches": self.batches, "p2p": self.p2p, "mem_limit": self.limits}


def clusters(seed: int, count: int, *, equal: bool = False) -> Iterator[Cluster]:
    """Yield clusters of 2 or 3 devices and 2 to 5 stages; `equal`: devices that are alike."""
    rng = Random(seed)
    for _ in range(count):
        devices = rng.choice((2, 2, 3))
        stages = rng.randint(devices, 5 if devices == 2 else 4)
        inputs, weights = ([rng.randint(0, 3) for _ in range(stages)] for _ in range(2))
        taken = [rng.randint(0, 2) for _ in range(stages)]
        link = rng.randint(0, 2)
        apart = [
            [0 if i == j else rng.randint(0, 3) for j in range(devices)] for i in range(devices)
        ]
        equal_links = [[0 if i == j else link for j in range(devices)] for i in range(devices)]
        total = sum(taken) * 3
        limits = [rng.randint(total // 4, total) for _ in range(devices)]
        choices = (Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 2))
        yield Cluster(
            stages={
                "forward": [rng.randint(1, 4) for _ in range(stages)],
                "backward_input": inputs,
                "weight": weights,
                "backward": [b + w for b, w in zip(inputs, weights, strict=True)],
                "activation": taken,
                "static": [rng.randint(0, 1) for _ in range(stages)],
            },
            batches=rng.randint(1, 3 if stages < 4 else 2),
            speeds=(Fraction(1),) * devices if equal else tuple(rng.choices(choices, k=devices)),
            p2p=equal_links if equal or rng.random() < 0.5 else apart,
            limits=None if rng.random() < 0.4 else [max(limits)] * devices if equal else limits,
            fused=rng.random() < 0.3,
        )
