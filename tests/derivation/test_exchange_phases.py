"""Phases of layers of experts, by hand and from kernels."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from ppopt import ConflictError, DerivedModel, derive_model, evaluate
from ppopt.derivation.exchange_phases import ExchangeTimes, exchange_phases
from ppopt.derivation.explanation import explain
from ppopt.errors import NotApplicableError
from ppopt.formats.megatron_schedule import runs_order, strategy_of
from ppopt.formats.trainer_partition import megatron_arguments
from ppopt.problem.phases import Machine, Phase, Phases
from ppopt.verifier import verify
from tests.factories.configs import CONFIGS

COMPUTE, LINK = Machine.COMPUTE, Machine.LINK
FORWARD = ExchangeTimes(total=10, experts=3, exchange=4, launching=0)
BACKWARD = ExchangeTimes(12, 4, 4, 0)


def derived(*overlap: str, **more: Any) -> DerivedModel:
    training: dict[str, Any] = {"devices": 1, "data": 16, "expert": 16, "cuda_graphs": True}
    config = CONFIGS["Qwen/Qwen3-30B-A3B"]
    return derive_model(config, gpu="h100", overlap=overlap, **(training | more))


def test_phases_by_hand() -> None:
    """Two exchanges of 2, of which 0.5 each is compute before the next exchange."""
    forward = [(COMPUTE, 3.5), (LINK, 1.5), (COMPUTE, 3.5), (LINK, 1.5)]
    backward = [(LINK, 1.5), (COMPUTE, 4.5), (LINK, 1.5), (COMPUTE, 4.5)]
    chains = (tuple(Phase(*phase, 0) for phase in chain) for chain in (forward, backward))
    assert exchange_phases(FORWARD, BACKWARD) == Phases(*chains)


def test_delayed_weight_gradients_follow_the_compute_that_they_belong_to() -> None:
    phases = exchange_phases(FORWARD, BACKWARD._replace(weight=5, weight_of_experts=2))
    assert [phase.weight for phase in phases.backward] == [0, 2, 0, 3]
    assert phases.times()["backward"] == 12 + 5


@pytest.mark.parametrize(("launching", "link"), [(7, 3), (8, 2), (10, 0), (11, 0)])
def test_the_processor_launches_the_kernels_of_both_microbatches(
    launching: float, link: float
) -> None:
    """It is busy for `launching` in F and again in BW: no overlap shortens that."""
    phases = exchange_phases(FORWARD._replace(launching=launching), BACKWARD)
    on_link = [phase.time for phase in phases.forward if phase.on is LINK]
    assert sum(on_link) == link
    assert sum(phase.time for phase in phases.forward) == 10


def test_phases_are_the_exchanges_that_an_explanation_lists() -> None:
    """Three quarters of every exchange are on the link; F and BW alone are as without overlap."""
    alone, beside = derived(), derived("dispatch")
    exchanged = {
        kind: sum(item.milliseconds for item in explain(alone) if (item.name, item.kind) == key)
        for kind, key in (("forward", ("tokens", "F")), ("backward", ("tokens", "BW")))
    }
    phases = beside.layers[1].phases
    assert phases is not None and alone.layers[1].phases is None
    for kind, exchange in exchanged.items():
        chain = getattr(phases, kind)
        on_link = sum(phase.time for phase in chain if phase.on is LINK)
        assert exchange > 1 and on_link == pytest.approx(0.75 * exchange, abs=2e-3)
        total = getattr(alone.layers[1], kind)
        assert sum(phase.time for phase in chain) == pytest.approx(total, abs=1e-9)
    assert [layer.phases for layer in (beside.layers[0], beside.layers[-1])] == [None, None]


def test_without_exchanges_there_are_no_phases() -> None:
    assert all(layer.phases is None for layer in derived("dispatch", expert=1).layers)


def steps(model: DerivedModel, *strategies: str) -> list[Fraction]:
    pipeline = replace(model.pipeline, mem_limit=None)
    schedules = [evaluate(pipeline, strategy) for strategy in strategies]
    assert all(verify(schedule) == [] for schedule in schedules)
    return [schedule.makespan for schedule in schedules]


def test_combined_1f1b_is_as_much_faster_as_was_measured() -> None:
    """Qwen3-30B-A3B on 16 H100, HybridEP and CUDA graphs: 24.714 s, with overlap 20.992 s.

    NVIDIA-NeMo/Megatron-Bridge, pull request 5094; 64 microbatches.
    """
    more: dict[str, Any] = {"dispatcher": "flex", "batches": 64, "gradient_bytes": 2}
    (alone,) = steps(derived(**more), "1f1b")
    plain, combined = steps(derived("dispatch", **more), "1f1b", "1f1b-overlap")
    assert plain == alone == pytest.approx(24714, rel=0.05)
    assert combined == pytest.approx(20992, rel=0.08)


def test_combined_1f1b_holds_one_more_microbatch() -> None:
    """And the workspace of its F, besides that of BW."""
    model = derived("dispatch", batches=4)
    activation = sum(layer.count * layer.activation for layer in model.layers)
    workspace = max(layer.workspace[0] for layer in model.layers)
    plain, combined = (
        max(evaluate(model.pipeline, strategy).peak_memory) for strategy in ("1f1b", "1f1b-overlap")
    )
    assert combined - plain == activation + workspace


def test_weight_gradients_are_delayed_with_exchanges_alone() -> None:
    with pytest.raises(ConflictError, match="give --overlap dispatch,wgrad"):
        derived("wgrad")


def test_megatron_refuses_what_it_does_not_overlap() -> None:
    """Several ranks with one stage each, and full recompute."""
    config = CONFIGS["Qwen/Qwen3-30B-A3B"] | {"num_hidden_layers": 6}
    model = derive_model(
        config, gpu="h100", devices=2, data=16, expert=16, batches=4, overlap=("dispatch",)
    )
    with pytest.raises(NotApplicableError, match="only with several stages per rank"):
        strategy_of(model.pipeline)
    interleaved = replace(model.pipeline, chunks=2, mem_limit=None)
    combined, plain = (evaluate(interleaved, f"interleaved{name}") for name in ("-overlap", ""))
    assert runs_order(combined) and not runs_order(plain)
    full = replace(interleaved, recompute="full", placement="interleaved")
    with pytest.raises(NotApplicableError, match="neither whole layers nor moe recompute"):
        megatron_arguments(full)
