"""The registry of kinds is complete, and resources are those of the instance."""

from __future__ import annotations

import pytest

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import RECORDS
from ppopt.problem.operation import KINDS, AuxiliaryKind, OpKind, TransferKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import resources_of

WORK = {"unshard": 1, "gradient_sync": 3, "optimizer": 1}
OFFLOAD = {"offload_memory": 0.5, "offload_time": 1}


def test_every_kind_has_a_record_at_its_code() -> None:
    kinds = [*OpKind, *TransferKind, *AuxiliaryKind]
    assert [record.kind for record in RECORDS] == kinds
    assert list(map(int, kinds)) == list(range(KINDS))
    assert len({record.letter for record in RECORDS}) == KINDS


@pytest.mark.parametrize(
    ("link_mode", "routes"), [("delay", 1), ("streams", 1), ("exclusive", 1), ("exclusive", 2)]
)
@pytest.mark.parametrize("placement", ["linear", [0, 1, 1, 0], [0, 1, 1, 2], [2, 0, 2, 1]])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"frozen": [True, True, False, False]},
        {"frozen": [False, True, False, False]},
        WORK,
        OFFLOAD,
        {**WORK, **OFFLOAD, "host_link": "shared"},
    ],
)
def test_resources_are_those_of_the_instance(
    link_mode: str, routes: int, placement: object, more: dict[str, object]
) -> None:
    fields = {"placement": placement, "routes": routes, "link_mode": link_mode, "p2p": 1}
    pipeline = Pipeline(stages=4, batches=4, **fields, **more)
    instance = Instance.of(pipeline, BackwardKind.SPLIT, all_resources=True)
    assert resources_of(pipeline) == instance.resources
