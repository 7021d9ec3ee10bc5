"""Ranks with the same parameters: shards and copies, bytes of gradients, and what overlaps."""

from __future__ import annotations

from typing import Any

import pytest

from ppopt import InputError, derive_model
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.data_parallel import DataParallel
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.layer_part import LayerPart
from ppopt.derivation.layer_parts import Rank
from tests.factories.configs import CONFIGS, LLAMA_8B

MIB = 2**20
WEIGHTS = 4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336
"""Of the matrices of a layer of Llama 3.1 8B."""


def derived(**fields: Any) -> DerivedModel:
    return derive_model(LLAMA_8B, gpu="h100", devices=1, batches=8, cuda_graphs=True, **fields)


def reductions(model: DerivedModel) -> tuple[Collective, ...]:
    shared = model.costing.data_parallel
    return shared.reductions(model.layers[1].parts)


def test_ranks_shard_within_groups_and_reduce_over_their_copies() -> None:
    """64 ranks in groups of 8: reduce-scatter in a node, all-reduce of an eighth over nodes."""
    model = derived(data=64, shard=8, zero=1)
    assert reductions(model) == (
        Collective("gradients", Pattern.REDUCE_SCATTER, 4 * WEIGHTS, Group(8)),
        Collective("copies of gradients", Pattern.ALL_REDUCE, 4 * WEIGHTS / 8, Group(8, 8)),
    )
    (gather,) = model.costing.data_parallel.gathers(model.layers[1].parts)
    assert (gather.size, gather.group) == (2 * WEIGHTS, Group(8))
    assert model.layers[1].static == pytest.approx((6 + 12 / 8) * WEIGHTS / MIB, abs=1)


def test_one_group_of_all_ranks_is_the_default() -> None:
    assert derived(data=64, shard=64).layers == derived(data=64).layers
    assert derived(data=64, shard=1, zero=1).layers[1].static == derived(data=1).layers[1].static


def test_experts_have_as_many_copies_of_a_shard() -> None:
    """128 ranks over 16 experts each: 8 have the same experts, in two groups."""
    config = CONFIGS["Qwen/Qwen3-30B-A3B"]
    model = derive_model(
        config, gpu="h100", devices=1, batches=8, data=128, expert=16, shard=64, zero=3
    )
    groups = [
        (each.pattern, each.group)
        for each in model.costing.data_parallel.reductions(model.layers[1].parts)
    ]
    assert groups == [
        (Pattern.REDUCE_SCATTER, Group(64)),
        (Pattern.REDUCE_SCATTER, Group(4, 16)),
        (Pattern.ALL_REDUCE, Group(2, 64)),
        (Pattern.ALL_REDUCE, Group(2, 64)),
    ]


def test_gradients_of_two_bytes() -> None:
    """Memory, reduction and accumulation: two bytes in place of four."""
    four, two = derived(data=8), derived(data=8, gradient_bytes=2)
    assert four.layers[1].static - two.layers[1].static == pytest.approx(2 * WEIGHTS / MIB, abs=1)
    assert [each.size for each in reductions(two)] == [2 * WEIGHTS]
    assert two.costing.accumulation(two.layers[1].parts[1])[0].traffic == pytest.approx(
        four.costing.accumulation(four.layers[1].parts[1])[0].traffic / 2
    )
    assert "2 + 2 + 12 bytes a parameter" in two.text
    assert "--grad-reduce-in-bf16" in two.text and "--grad-reduce-in-bf16" not in four.text


def test_a_reduction_is_exposed_where_it_takes_longer_than_its_backward_and_in_one_bucket() -> None:
    """On one node the reduction of a layer is hidden but for a bucket of 40 million of 8 billion
    parameters; over the network of 64 GPUs what takes longer than BW is exposed, too."""
    for data, tokens in ((8, 8192), (64, 512)):
        alone = derived(data=data, sequence=tokens).layers[1]
        both = derived(data=data, sequence=tokens, overlap=("grads", "params")).layers[1]
        share = max(40e6, 1e6 * data) / 8_030_261_248
        for name, time in (("gradient_sync", alone.backward), ("unshard", alone.forward)):
            whole, exposed = getattr(alone.step, name), getattr(both.step, name)
            assert exposed == pytest.approx(max(share * whole, whole - time), abs=2e-3)
        assert both.forward == alone.forward
    assert both.step.gradient_sync > 0.5 * alone.step.gradient_sync


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": 8, "shard": 3}, "shard: 3 does not divide data x context = 8; give a divisor"),
        ({"data": 8, "shard": 0}, "shard: 0 is not within"),
        ({"gradient_bytes": 3}, "gradient_bytes: 3 is none of 2, 4"),
        ({"overlap": ("gradients",)}, "overlap: 'gradients' is unknown; known are tp, dispatch,"),
    ],
)
def test_options_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        derived(**fields)


def test_without_sharding_copies_are_all_ranks() -> None:
    """ZeRO 0 reduces gradients over all, whatever the groups are."""
    model = derived(data=16, zero=0, shard=8)
    assert [each.group for each in reductions(model)] == [Group(16)]
    assert isinstance(model.costing.rank, Rank)
    assert DataParallel(model.costing.rank).gathers([LayerPart("", parameters=8)]) == ()
