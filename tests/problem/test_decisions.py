"""The record of open decisions, and certificates that cover them in files."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import or_

import numpy as np
import pytest

from ppopt import Argument, Certificate, Decisions, InputError, Pipeline
from ppopt.formats.origin_json import certificate_from_object, json_form
from ppopt.problem.decisions import SEARCH, SEARCH_SET

LAYER = {
    "forward": 1, "backward": 2, "activation": 2, "recompute_time": 1, "count": 4,
    "modules": [{"name": "norm", "time": 1, "memory": 1, "offload_time": 1}],
}  # fmt: skip
ALL = [
    reduce(or_, own, Decisions.NONE)
    for size in range(len(Decisions) + 1)
    for own in combinations(Decisions, size)
]


def open_pipeline(**fields: object) -> Pipeline:
    return Pipeline(
        stages=2, batches=2, model=[LAYER], mem_limit="1f1b", partition=SEARCH, placement=SEARCH,
        offload=SEARCH, order=SEARCH, microbatch_times=(1, 2), microbatch_memory=1, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("value", [SEARCH, SEARCH_SET])
def test_a_pipeline_without_decisions_is_as_before_they_are_made(value: str) -> None:
    """Partition, devices, layers, order and limits are the same; what is not named stays open."""
    pipeline = open_pipeline(recompute=value)
    opened = pipeline.open_decisions
    assert len(opened) == 5
    for decisions in ALL:
        own = pipeline.without(decisions)
        assert own.open_decisions == opened & ~decisions
        assert (own.counts, own.hosts, own.limits) == (
            pipeline.counts,
            pipeline.hosts,
            pipeline.limits,
        )
        assert (own.model, own.factors) == (pipeline.model, pipeline.factors)


def test_an_array_is_no_order() -> None:
    with pytest.raises(InputError, match="order: "):
        Pipeline(stages=2, batches=2, order=np.array([1, 0]), microbatch_times=(1, 2))


def test_decisions_that_are_open_are_refused() -> None:
    with pytest.raises(InputError, match="recompute: evaluate does not search it"):
        open_pipeline(recompute=SEARCH_SET).refuse_open(Decisions.RECOMPUTE_SET, "evaluate")
    open_pipeline(recompute="none").refuse_open(Decisions.RECOMPUTE_SET, "evaluate")


@pytest.mark.parametrize("decisions", ALL, ids=lambda own: "-".join(own.names))
def test_a_certificate_of_decisions_is_read_back(decisions: Decisions) -> None:
    certificate = Certificate(Argument.SEARCH, (), decisions)
    assert certificate_from_object(json_form(certificate)) == certificate
    assert len(decisions.configurations.split(" and ")) == max(1, len(decisions))


def test_older_files_name_no_decisions_besides_the_placement() -> None:
    older = certificate_from_object({"argument": "combinations", "devices": []})
    assert older.decisions == Decisions.PLACEMENT | Decisions.OF_STRATEGY
    with pytest.raises(InputError, match="argument: 'partitions-unknown' is unknown; use work, "):
        certificate_from_object({"argument": "partitions-unknown", "devices": []})
