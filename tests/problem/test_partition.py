"""Partitions by rule: exact against enumeration; layouts read and written."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.errors import InputError
from ppopt.problem import layout
from ppopt.problem.layer import Layer
from ppopt.problem.partition import (
    balanced,
    balanced_late,
    counts_of,
    even,
    filled_from_outside,
    stages_of,
)
from ppopt.problem.pipeline import Model, Pipeline
from tests.factories.models import TINY, models
from tests.oracles.configurations import partitions


@given(models(max_layers=9), st.data())
@settings(deadline=None)
def test_balanced_is_the_best_of_all_partitions(model: Model, data: st.DataObject) -> None:
    """By enumeration: least largest F + BW, least squares, and more layers in front or behind."""
    stages = data.draw(st.integers(1, len(model)))
    speed = st.sampled_from([Fraction(1), Fraction(1, 2), Fraction("0.315"), Fraction(7)])
    equal = data.draw(st.booleans())
    speeds = tuple(Fraction(1) if equal else data.draw(speed) for _ in range(stages))

    def rank(counts: tuple[int, ...]) -> tuple[object, ...]:
        times = [
            sum(layer.forward + layer.backward for layer in layers) / speed
            for layers, speed in zip(model.stage_layers(counts), speeds, strict=True)
        ]
        return max(times), sum(time * time for time in times)

    ranks = {counts: rank(counts) for counts in partitions(len(model), stages)}
    equally_good = [counts for counts, own in ranks.items() if own == min(ranks.values())]
    best = max(equally_good)
    assert balanced(model, stages, speeds) == best
    assert balanced_late(model, stages, speeds) == max(equally_good, key=lambda each: each[::-1])
    if equal:
        assert balanced(model, stages) == best
        assert largest_work(model, best) == rank(best)[0]


def largest_work(model: Model, counts: tuple[int, ...]) -> Fraction:
    """Largest F + BW of a stage."""
    stages = model.stage_layers(counts)
    return max(sum((layer.work for layer in stage), Fraction(0)) for stage in stages)


def test_balanced_gives_slow_devices_less() -> None:
    """Twelve equal layers on devices of speeds 2 and 1: 8 and 4 take the same time."""
    pipe = Model((Layer(1, count=12),)).pipeline(devices=2, batches=2, device_speed=[2, 1])
    assert pipe.counts == (8, 4)


def test_balanced_of_equal_layers_puts_the_larger_stages_first() -> None:
    assert balanced(Model((Layer(1, count=32),)), 7) == (5, 5, 5, 5, 4, 4, 4)


def test_balanced_moves_layers_off_a_heavy_head() -> None:
    """16 layers of 6 and a head of 12, in all 108: 27 a device, but every sum is a multiple of 6,
    so that 30 is least; of least squares is 30, 30, 24, 24."""
    model = Model((Layer(2, count=16), Layer(4, role="head")))
    assert balanced(model, 4) == (5, 5, 4, 3)
    assert largest_work(model, (5, 5, 4, 3)) == 30


def test_even() -> None:
    """Embedding with the first stage, MTP and head with the last; 7 = 3 + 2 + 2 decoders."""
    roles = ["embedding", *["decoder"] * 7, "mtp", "head"]
    model = Model(tuple(Layer(1, role=role) for role in roles))
    assert even(model, 3) == (4, 2, 4)
    assert even(model, 1) == (10,)


def test_even_leaves_other_layers_with_the_decoder_before_them() -> None:
    """An encoder of 2, an embedding in the middle, a decoder of 2."""
    roles = ["decoder", "decoder", "embedding", "decoder", "decoder", "head"]
    assert even(Model(tuple(Layer(1, role=role) for role in roles)), 2) == (3, 3)


def stack(decoders: int, mtp: int = 0) -> Model:
    """Embedding, decoders, MTP modules and head."""
    roles = ["embedding", *["decoder"] * decoders, *["mtp"] * mtp, "head"]
    return Model(tuple(Layer(1, role=role) for role in roles))


LAYOUTS = {
    "Et*3|(tt|)*29,m|L": (stack(61, 1), (4, *[2] * 29, 1, 1)),
    "Et|(tt|)*30mL": (stack(61, 1), (2, *[2] * 30, 2)),
    "Et*4|(t*4|)*14tmL": (stack(61, 1), (5, *[4] * 14, 3)),
    "Et*4|(t*7|)*5t*8|tmL": (stack(48, 1), (5, *[7] * 5, 8, 3)),
    "Et*2|(tt|)*5t|tmL": (stack(14, 1), (3, *[2] * 5, 1, 3)),
    "Et*7|t*7mL": (stack(14, 1), (8, 9)),
    "Et*3|(tt|)*6tmL": (stack(16, 1), (4, *[2] * 6, 3)),
    "Et*3|(tt|)*6mL": (stack(15, 1), (4, *[2] * 6, 2)),
    "Et*3|(tt|)*6L": (stack(15), (4, *[2] * 6, 1)),
    "Et|(tt|)*6mL": (stack(13, 1), (2, *[2] * 6, 2)),
    "Ettt|(tt|)*29,m|L": (stack(61, 1), (4, *[2] * 29, 1, 1)),
    "E|t,t|((t|)*2)*2tL": (stack(7), (1, 2, 1, 1, 1, 1, 2)),
    "E||t*12|mL": (stack(12, 1), (1, 0, 12, 2)),
    "Et|(|)*3(tt|)*2|L": (stack(5), (2, 0, 0, 0, 2, 2, 0, 1)),
}
"""The first: docs/user-guide/features/pipeline_parallel_layout.md of NVIDIA/Megatron-LM (d98e8a6);
the fifth to the tenth: its tests/functional_tests/test_cases (model_config.yaml of mixtral/
deepseekv3_proxy_flex_* and moe/gpt3_*); the eleventh: `parse_str_to_list` of megatron/core/
transformer/pipeline_parallel_layer_layout.py. The rest are ours: brackets in brackets, and stages
without layers."""


@pytest.mark.parametrize("text", LAYOUTS)
def test_layouts_are_read_and_written_back_as_the_same_counts(text: str) -> None:
    model, counts = LAYOUTS[text]
    assert stages_of(text) == len(counts)
    assert counts_of(model, text, len(counts)) == counts
    assert layout.counts(layout.write(model, counts), model) == counts


@pytest.mark.parametrize("text", list(LAYOUTS)[1:4])
def test_layouts_are_written_as_people_write_them(text: str) -> None:
    model, counts = LAYOUTS[text]
    assert layout.write(model, counts) == text


@given(models(), st.data())
def test_every_partition_has_a_layout(model: Model, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(model)))
    counts = data.draw(st.sampled_from(list(partitions(len(model), stages))))
    assert layout.counts(layout.write(model, counts), model) == counts


@pytest.mark.parametrize(
    ("model", "decoders", "counts"),
    [
        (stack(61, 1), (16, 16, 16, 13), (17, 16, 16, 15)),
        (stack(7), (0, 4, 3), (1, 4, 4)),
        (stack(7, 1), (4, 3, 0), (5, 3, 2)),
        (stack(7), (4, 0, 3), (5, 0, 4)),
        (stack(7, 1), (7, 0, 0), (8, 0, 2)),
    ],
)
def test_counts_of_decoder_layers_alone_are_read_as_trainers_write_them(
    model: Model, decoders: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    """The first: the 61 decoder layers and the MTP module of DeepSeek-V3 on 4 stages.

    The embedding goes to the first stage, MTP and head to the last, as with `even`.
    """
    pipeline = model.pipeline(devices=len(counts), batches=2, partition=list(decoders))
    assert pipeline.counts == counts
    assert pipeline.partition == counts
    assert model.pipeline(devices=len(counts), batches=2, partition=counts) == pipeline


class TestOrderOfRanks:
    """A list with all stages of device 0 first, as Primus writes it."""

    BLOCKS = Model([{"forward": 1, "count": 32}])
    COUNTS = (3, 4, 4, 4, 5, 4, 4, 4)

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"chunks": 2}, (3, 4, 5, 4, 4, 4, 4, 4)),
            ({"placement": "interleaved"}, (3, 4, 5, 4, 4, 4, 4, 4)),
            ({}, (3, 4, 5, 4, 4, 4, 4, 4)),
            ({"placement": "v"}, (3, 4, 5, 4, 4, 4, 4, 4)),
            ({"placement": [0, 0, 1, 1, 2, 2, 3, 3]}, COUNTS),
            ({"placement": [3, 2, 1, 0, 3, 2, 1, 0]}, (4, 5, 4, 3, 4, 4, 4, 4)),
        ],
    )
    def test_it_is_put_in_the_order_of_the_stages(
        self, fields: dict[str, Any], expected: tuple[int, ...]
    ) -> None:
        fields = {"devices": 4, "batches": 8, "partition": list(self.COUNTS)} | fields
        assert self.BLOCKS.pipeline(**fields).counts == self.COUNTS
        assert self.BLOCKS.pipeline(**fields, partition_order="stages").counts == self.COUNTS
        by_rank = self.BLOCKS.pipeline(**fields, partition_order="ranks")
        assert by_rank.counts == expected
        assert replace(by_rank, batches=4).counts == expected

    def test_on_a_v_device_0_has_the_first_and_the_last_stage(self) -> None:
        model = Model([{"forward": 1, "count": 10}])
        fields = {"devices": 2, "batches": 2, "placement": "v", "partition_order": "ranks"}
        assert model.pipeline(partition=[1, 2, 3, 4], **fields).counts == (1, 3, 4, 2)

    def test_counts_of_decoder_layers(self) -> None:
        """The embedding goes to the first stage, and the head to the last."""
        roles = [{"role": "embedding"}, {"count": 10}, {"role": "head"}]
        model = Model([{"forward": 1} | layer for layer in roles])
        fields = {"devices": 2, "batches": 2, "chunks": 2, "partition_order": "ranks"}
        assert model.pipeline(partition=[1, 2, 3, 4], **fields).counts == (2, 3, 2, 5)

    def test_a_rule_has_no_order(self) -> None:
        fields = {"devices": 4, "batches": 8, "chunks": 2, "partition": "even"}
        assert self.BLOCKS.pipeline(**fields, partition_order="ranks") == self.BLOCKS.pipeline(
            **fields
        )

    @pytest.mark.parametrize(
        ("partition", "order", "message"),
        [
            ("tt*7|(t*4|)*5t*4|t", "ranks", "partition_order: a layout is in the order of the st"),
            ([16, 16], "ranks", "partition: has 2 stages, the placement 8"),
            ([4] * 8, "rank", "partition_order: 'rank' is unknown; use stages or ranks"),
        ],
    )
    def test_refused(self, partition: Any, order: str, message: str) -> None:
        fields = {"devices": 4, "batches": 8, "chunks": 2, "partition": partition}
        with pytest.raises(InputError, match=message):
            self.BLOCKS.pipeline(**fields, partition_order=order)

    def test_it_needs_layers(self) -> None:
        with pytest.raises(InputError, match="partition_order: needs a model in layers"):
            Pipeline(stages=2, batches=2, partition_order="ranks")


def test_counts_of_decoder_layers_give_the_partition_of_even() -> None:
    for decoders in range(3, 12):
        each, more = divmod(decoders, 3)
        counts = [each + (stage < more) for stage in range(3)]
        pipeline = stack(decoders, 2).pipeline(devices=3, batches=2, partition=counts)
        assert pipeline.counts == even(stack(decoders, 2), 3)


REFUSED = {
    "|EttttL": "stage 0 of 2 is empty",
    "Etttt|L|": "stage 2 of 3 is empty",
    "": "stage 0 of 1 is empty",
    "Ett|xttL": "at 'xttL': layers are E (embedding), t (decoder), m (mtp), L (head)",
    "Ett|(ttL": "at the end: a bracket is open",
    "Ett|tt)L": "at ')L': no bracket is open",
    "*2Ett|ttL": "at '*2Ett|ttL': a repeat follows a letter",
    "Ett|t*2*2L": "at '*2L': a repeat follows a letter",
    "Ett|t*L": "at '*L': layers are",
    "Ett|t*999999999L": "more than 4096 layers",
    "E((t*4000)*4000)*4000L": "more than 4096 layers",
    "t*99999L" * 99999: "more than 4096 layers",
    "Ett|tL": "the layout names 1 E, 3 t, 1 L; the model has 1 E, 4 t, 1 L",
    "Etttt|mL": "the layout names 1 E, 4 t, 1 m, 1 L; the model has 1 E, 4 t, 1 L",
    "tE|tttL": "the layout's order is tEt*3L; the model's Et*4L",
    "Ett\n|ttL": "at '\\n|ttL': layers are",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:30])
def test_refused_layouts(text: str) -> None:
    with pytest.raises(InputError) as error:
        layout.counts(text, TINY)
    assert REFUSED[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_roles_are_named_as_in_a_layout() -> None:
    assert layout.roles("E t*2 mL".replace(" ", "")) == (
        *("embedding", "decoder", "decoder", "mtp", "head"),
    )
    assert layout.write_roles([layout.roles("Et*6L")]) == "Et*6L"


@pytest.mark.parametrize(
    ("text", "why"),
    [("Et|L", "names no layers without stages"), ("", "names no layers"), ("Ex", "at 'x'")],
)
def test_refused_roles(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        layout.roles(text)
    assert str(error.value).startswith("roles: ")


def test_the_innermost_devices_of_a_v_compute_less() -> None:
    """F of devices 0 to 3: 9, 13, 12, 12 if balanced; 6 + 7, 6 + 6, 6 + 6 and 3 + 6 if filled."""
    model = Model((Layer(1, count=3), Layer(3, count=12), Layer(4), Layer(3)))
    assert balanced(model, 8) == (4, 2, 2, 2, 2, 2, 2, 1)
    assert filled_from_outside(model, 8) == (4, 2, 2, 1, 2, 2, 2, 2)


@given(models(max_layers=9), st.data())
@settings(deadline=None)
def test_a_partition_filled_from_outside_is_no_worse_than_balanced(
    model: Model, data: st.DataObject
) -> None:
    """Devices of a V host stages s and S - 1 - s; no device computes more than in `balanced`."""
    devices = data.draw(st.integers(1, len(model) // 2)) if len(model) > 1 else 0
    if not devices:
        return

    def loads(counts: tuple[int, ...]) -> list[Fraction]:
        stages = [
            sum((layer.forward + layer.backward for layer in layers), Fraction(0))
            for layers in model.stage_layers(counts)
        ]
        return [stages[d] + stages[-1 - d] for d in range(devices)]

    by_stage, own = balanced(model, 2 * devices), filled_from_outside(model, 2 * devices)
    assert sum(own) == len(model) and min(own) > 0 and len(own) == 2 * devices
    squares = [sum(load * load for load in loads(counts)) for counts in (own, by_stage)]
    assert squares[0] <= squares[1]


def test_balanced_late_of_equal_layers_puts_the_larger_stages_last() -> None:
    assert balanced_late(Model((Layer(1, count=32),)), 7) == (4, 4, 4, 5, 5, 5, 5)
