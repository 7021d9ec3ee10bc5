"""Loads of experts: the factor of a rank, and its effect on costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppopt import InputError, derive_model
from ppopt.derivation.expert_loads import ExpertLoads, read_loads
from tests.factories.configs import CONFIGS

QWEN = CONFIGS["Qwen/Qwen3-30B-A3B"]
LOADS = ExpertLoads(
    ((4.0, 4.0, 8.0, 0.0), (1.0, 3.0, 2.0, 2.0), (0.0, 0.0, 0.0, 0.0)), "loads.json"
)


@pytest.mark.parametrize(
    ("ranks", "factor"),
    [(1, 1), (2, (1 + 1) / 2), (4, (4 * 8 / 16 + 4 * 3 / 8) / 2)],
)
def test_the_factor_is_the_largest_load_of_a_rank_beside_the_mean(
    ranks: int, factor: float
) -> None:
    """Consecutive experts share a rank; rows without tokens do not count."""
    assert LOADS.imbalance(ranks) == factor


def test_a_file_has_one_list_or_several(tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    file.write_text("[1, 2, 3.5]", encoding="utf-8")
    assert read_loads(file).rows == ((1, 2, 3.5),)
    file.write_text("[[1, 2], [3, 4]]", encoding="utf-8")
    assert read_loads(file).rows == ((1, 2), (3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is no list of tokens of each expert"),
        ("[]", "is no list"),
        ("[[]]", "is no list"),
        ("[[1, 2], [1]]", "is no list"),
        ("[[1, 2], 3]", "is no list"),
        ('["a"]', "'a' is not a finite number"),
        ("[-1, 2]", "numbers from 0 on"),
        ("[0, 0]", "not all are 0"),
    ],
)
def test_a_file_of_something_else_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "loads.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as raised:
        read_loads(file)
    assert str(raised.value).startswith(str(file))


def test_an_imbalance_multiplies_experts_and_their_exchange() -> None:
    """Time and memory of attention stay; those of experts and of the exchange grow with it."""
    even, uneven = (
        derive_model(QWEN, gpu="h100", data=8, expert=8, expert_imbalance=factor, cuda_graphs=True)
        for factor in (1.0, 1.5)
    )
    for model, tokens in ((even, 4096), (uneven, 4096 * 1.5)):
        parts = {part.name: part for part in model.layers[1].parts}
        (exchange,) = parts["router"].collectives.forward
        assert exchange.size == 2 * 8 * 2048 * tokens
        flops = sum(kernel.flops for kernel in parts["experts"].forward)
        assert flops == 2 * 8 * tokens * 3 * 2048 * 768
    assert even.layers[1].parts[1] == uneven.layers[1].parts[1]
    copies = 8 * 4096 * (2048 + 2 * 768 + 768) * 2 / 2**20
    grown = uneven.layers[1].activation - even.layers[1].activation
    assert grown == pytest.approx(0.5 * copies, abs=1)
    assert "1.5 times the mean of tokens" in uneven.text
    assert "spread evenly" in even.text


def test_loads_are_those_of_the_model() -> None:
    skewed = ExpertLoads((tuple([2.0] * 16 + [1.0] * 112),), "skewed.json")
    model = derive_model(QWEN, gpu="h100", data=8, expert=8, expert_imbalance=skewed)
    assert model.training.imbalance == pytest.approx(2 * 128 / 144)
    assert "times the mean of tokens (skewed.json)" in model.text
    with pytest.raises(InputError, match="has loads of 4 experts, and the model has 128"):
        derive_model(QWEN, gpu="h100", data=8, expert=4, expert_imbalance=LOADS)
    with pytest.raises(InputError, match=r"0\.9 is not within 1"):
        derive_model(QWEN, gpu="h100", expert_imbalance=0.9)
