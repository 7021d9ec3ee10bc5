"""The profiler on stages that stand in for PyTorch's, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.packages import needed

torch = needed("torch")

from ppopt.problem.operation import OpKind
from ppopt.profiles.estimate import StageMemory
from ppopt.torch import pipeline_runtime, profiler
from ppopt.torch.profiler import Profiler

VOCABULARY, SAMPLES, WIDTH = 64, 3, 8
HEAD, LOSS, BACKWARD, CHECK = 11, 7, 30, 2
"""Nanoseconds of the forward without its loss, of the loss, of BW, and of what follows a loss."""


class Clock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 0

    def anchor(self) -> None:
        """As clocks of the profiler."""

    def mark(self) -> int:
        return self.now

    def nanoseconds(self, mark: int) -> int:
        return mark


class Runtime:
    """Runs all forwards of its stages and their losses, then all backwards."""

    def __init__(self, stages: list[Any], n_microbatches: int, loss_fn: Any, **_: Any) -> None:
        self.stages, self.microbatches, self.loss_fn = stages, n_microbatches, loss_fn

    def _load_csv(self, path: str, format: str) -> None:  # noqa: A002  as PyTorch has it
        """Another order would do."""

    def step(self, infer: Callable[[], None] = lambda: None) -> list[Any]:
        infer()
        (stage,) = self.stages
        outputs = []  # PyTorch keeps them until the step ends
        losses = []
        for microbatch in range(self.microbatches):
            outputs.append(stage.forward_one_chunk(microbatch, ()))
            losses.append(self.loss_fn(outputs[microbatch], stage.target))
        for microbatch in range(self.microbatches):
            stage.bwd_cache[microbatch] = ()
            stage.backward_one_chunk(microbatch, loss=losses[microbatch], full_backward=True)
        return losses


def stage(clock: Clock, module: Any, received: list[Any]) -> Any:
    """The last stage, of a microbatch of `SAMPLES` rows; `received` is in its `args_recv_info`."""
    inputs = torch.zeros(SAMPLES, WIDTH, requires_grad=True)

    def forward(microbatch: int, *_: Any, **__: Any) -> Any:
        clock.now += HEAD
        return module(inputs)

    def backward(microbatch: int, *, loss: Any, full_backward: bool) -> None:
        clock.now += BACKWARD
        loss.backward()

    return SimpleNamespace(
        stage_index=0, group_rank=0, chunks=2, device="cpu", submod=module,
        is_first=True, is_last=True, target=torch.zeros(SAMPLES, dtype=torch.int64),
        fwd_cache={}, bwd_cache={}, grad_recv_info={},
        args_recv_info=dict.fromkeys(range(2), received),
        forward_one_chunk=forward, backward_one_chunk=backward,
        backward_weight_one_chunk=lambda *_, **__: None,
    )  # fmt: skip


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime in place of PyTorch's, as that of the newest version is used."""
    monkeypatch.setattr(pipeline_runtime, "_RUNTIME", Runtime)
    monkeypatch.setattr(pipeline_runtime, "DYNAMIC_METADATA", True)
    monkeypatch.setattr(pipeline_runtime, "REDUCES", True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every profiler, and a runtime in place of PyTorch's."""
    still = Clock()
    monkeypatch.setattr(profiler, "_clock", lambda _: still)
    stand_in(monkeypatch)
    return still


def head_and_loss(clock: Clock) -> tuple[Any, Any]:
    """A head without activation of its own, and cross entropy, which keeps log probabilities."""

    def loss(output: Any, target: Any) -> Any:
        clock.now += LOSS
        return torch.nn.functional.cross_entropy(output, target)

    return torch.nn.Linear(WIDTH, VOCABULARY), loss


def measured(clock: Clock, module: Any, loss: Any, received: list[Any], steps: int = 2) -> Any:
    """The records and the memory of a run of two microbatches."""
    last = stage(clock, module, received)
    runtime = pipeline_runtime.load([last], "", 2, loss)
    with Profiler([last]) as profiler:
        for _ in range(1 + steps):
            module.zero_grad()
            runtime.step()
            clock.now += CHECK
            profiler.next_step()
    return profiler


def test_the_loss_is_part_of_the_last_forward(clock: Clock) -> None:
    recorded = measured(clock, *head_and_loss(clock), [])
    lengths = {
        kind: {record.end - record.start for record in recorded.records if record.kind is kind}
        for kind in (OpKind.F, OpKind.BW)
    }
    assert lengths == {OpKind.F: {HEAD + LOSS}, OpKind.BW: {BACKWARD}}
    assert len(recorded.records) == 2 * 2 * 2


def test_the_loss_of_inferred_metadata_is_of_no_forward(clock: Clock) -> None:
    """PyTorch calls the loss before the first forward to learn what its gradient looks like."""
    module, loss = head_and_loss(clock)
    last = stage(clock, module, [])
    runtime = pipeline_runtime.load([last], "", 2, loss)
    with Profiler([last]) as profiler:
        for _ in range(2):
            outputs = module(torch.zeros(SAMPLES, WIDTH))
            runtime.step(lambda outputs=outputs: runtime.loss_fn(outputs, last.target))
            profiler.next_step()
    forwards = [record for record in profiler.records if record.kind is OpKind.F]
    assert [record.end - record.start for record in forwards] == [HEAD + LOSS] * 2


def test_memory_of_the_loss_is_activation_of_the_last_stage(clock: Clock) -> None:
    """Cross entropy keeps a log probability per word and the sum of weights, a float; the loss, a
    float, and the output of the stage stay until the step ends."""
    recorded = measured(clock, *head_and_loss(clock), [])
    activation, output = SAMPLES * VOCABULARY * 4 + 4, SAMPLES * VOCABULARY * 4
    weights = 2 * 4 * (WIDTH * VOCABULARY + VOCABULARY)
    assert recorded.memory == {0: StageMemory(activation, weights, output + 4, None, activation)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_memory_of_a_compiled_loss_is_the_same(clock: Clock) -> None:
    """The graph of its backward says what it keeps: at least a log probability per word."""
    module, loss = head_and_loss(clock)
    compiled = torch.compile(torch.nn.functional.cross_entropy, backend="aot_eager", fullgraph=True)
    recorded = measured(clock, module, compiled, []).memory[0]
    plain = measured(clock, module, loss, []).memory[0]
    assert plain.loss <= recorded.loss <= plain.loss + SAMPLES * VOCABULARY * 4
    assert recorded.activation - recorded.loss == plain.activation - plain.loss


class Placeholder:
    """What PyTorch before 2.12 has for an input of the model: no `buffer`."""


@pytest.mark.parametrize("received", [Placeholder(), SimpleNamespace(buffer=None)])
def test_inputs_of_the_model_have_no_buffer(clock: Clock, received: Any) -> None:
    plain = measured(clock, *head_and_loss(clock), []).memory
    assert measured(clock, *head_and_loss(clock), [received]).memory == plain


@pytest.mark.slow
def test_inputs_of_a_compiled_model_have_no_buffer(clock: Clock) -> None:
    module, loss = head_and_loss(clock)
    compiled = torch.compile(module, backend="aot_eager")
    recorded = measured(clock, compiled, loss, [Placeholder()]).memory[0]
    assert recorded.loss == measured(clock, module, loss, []).memory[0].loss


def test_a_receive_buffer_counts_for_every_microbatch(clock: Clock) -> None:
    """64 bytes for both microbatches together, which share it here."""
    buffer = SimpleNamespace(buffer=torch.zeros(16))
    plain = measured(clock, *head_and_loss(clock), []).memory[0]
    recorded = measured(clock, *head_and_loss(clock), [buffer]).memory[0]
    assert recorded == plain._replace(per_microbatch=plain.per_microbatch + 32)


def test_events_on_the_stream_end_after_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator the loss is queued behind the forward: its event comes after both."""
    queued = Clock()

    class Event:
        def __init__(self, _: Any, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = queued.now

        def elapsed_time(self, later: Event) -> float:
            return (later.at - self.at) / 1e6

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(profiler, "_clock", lambda _: profiler.StreamClock("cuda"))
    stand_in(monkeypatch)
    recorded = measured(queued, *head_and_loss(queued), [])
    forwards = [record for record in recorded.records if record.kind is OpKind.F]
    assert {record.end - record.start for record in forwards} == {HEAD + LOSS}
