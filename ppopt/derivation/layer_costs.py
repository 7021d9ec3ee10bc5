"""Costs of layers under a training: times in ms and memory in MiB, per microbatch and device.

- Time: the sum over the layer's parts of their kernels and of their collectives, all exposed except
  those of a ring of context, which overlap with attention. B and W as two operations take longer
  than BW (`split` of the framework), and gather again what BW gathers once.
- Activations: 2 bytes (BF16) for each element that the backward reads, as the parts count them, and
  about 1 byte for the inputs of products in FP8. B frees none: W reads as many (inputs and output
  gradients).
- Static: parameters, gradients and optimizer states of the framework (Megatron-LM: 2, 4 and 12
  bytes a parameter, docs/user-guide/features/dist_optimizer.md), sharded by `zero`; weights of
  products in FP8 by its recipe (`FP8_RECIPES`). Norms and biases are left out. Frozen layers have
  only parameters.
- Output: 2 bytes / tensor for each element of the vectors of a layer's tokens.
- Workspace of B and BW: the gradients of the residual stream and of the feed-forward's inner
  vectors, which are live at the same time. Of the head, F too: logits in FP32. W needs none.
- Recompute (off unless `recompute` is on): F stashes the input of the layer (`kept` in files), and
  the backward repeats F with its collectives: full recompute in the terms of arXiv 2205.05198.
- Once in a step: `unshard` gathers parameters (ZeRO 1 to 3), `gradient_sync` reduces gradients over
  the ranks that have the same parameters, `optimizer` is the memory traffic of Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from ppopt.derivation.architecture import (
    Architecture,
    Decoder,
    Encoder,
    Run,
    parameters_of,
)
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.kernels import Kernel, KernelBound
from ppopt.derivation.layer_parts import LOGIT, LayerPart, Rank
from ppopt.derivation.training import ELEMENT, Frozen, Training
from ppopt.problem.layer_settings import DECODER

MIB = 2**20
SHORTEST = 0.001
"""ms; every time is a multiple of it."""
KINDS = ("forward", "input", "weight", "backward")
"""Fields of times of a part: F, B, W and BW."""
SHARDED_PARAMETERS = 3
"""Stage of ZeRO from which parameters are sharded."""
ADAM = 28
"""Bytes that Adam moves per parameter in FP32: it reads parameter, gradient and two moments, and
writes all but the gradient."""
NORM = 4
"""Bytes per parameter that the norm of the gradients reads."""


class Times(NamedTuple):
    """Milliseconds of F, B, W and BW."""

    forward: float = 0.0
    input: float = 0.0
    weight: float = 0.0
    backward: float = 0.0

    def __add__(self, addend: Times) -> Times:  # type: ignore[override]
        """Sums by kind."""
        return Times(*(first + second for first, second in zip(self, addend, strict=True)))


class StepCosts(NamedTuple):
    """What a layer costs once in a step: ms, and MiB of gathered parameters."""

    unshard: float = 0.0
    unshard_memory: int = 0
    gradient_sync: float = 0.0
    optimizer: float = 0.0


NO_STEP_COSTS = StepCosts()


@dataclass(frozen=True)
class DerivedLayer:
    """A layer of a model file: times in ms, memory in MiB."""

    name: str
    role: str
    count: int
    forward: float
    """F, in ms, rounded to `SHORTEST`; kernels and collectives, as all times."""
    input: float
    """B."""
    weight: float
    """W."""
    backward: float
    """BW."""
    communication: Times
    """The part of the times that is exposed communication."""
    activation: int
    static: int
    output: float = 0
    workspace: tuple[int, int] = (0, 0)
    """Of F, and of B and BW."""
    stashed: int = 0
    """Activation that F stashes with recompute."""
    step: StepCosts = NO_STEP_COSTS
    frozen: bool = False
    flops: float = 0
    """FLOPs of F and BW of a microbatch, of all ranks; not in the file, their sum is."""
    parts: tuple[LayerPart, ...] = ()


class Scale(NamedTuple):
    """Factors on times, set by calibration."""

    compute: float = 1.0
    communication: float = 1.0


AS_DERIVED = Scale()


@dataclass(frozen=True)
class Costing:
    """Turns parts of layers into costs."""

    rank: Rank
    scale: Scale = AS_DERIVED

    @classmethod
    def of(cls, training: Training, gpu: Gpu, scale: Scale = AS_DERIVED) -> Costing:
        """Costs of the tokens of a training on a GPU."""
        gpu = gpu.with_attention(training.attention)
        return cls(Rank(training, gpu, training.sequence, training.microbatch), scale)

    @property
    def training(self) -> Training:
        """The training of the rank."""
        return self.rank.training

    @property
    def gpu(self) -> Gpu:
        """The GPU of the rank."""
        return self.rank.gpu

    @property
    def node(self) -> int:
        """GPUs of a node."""
        return self.rank.node

    def layers(self, architecture: Architecture) -> list[DerivedLayer]:
        """Costs of an architecture's encoder, embedding, decoder layers, predictions and head."""
        hidden, vocabulary = architecture.hidden, architecture.vocabulary
        encoder = [] if architecture.encoder is None else self.encoder(architecture.encoder, hidden)
        runs = [self.run(run, hidden) for run in architecture.runs]
        has_predictions = self.training.mtp and architecture.predictions
        predictions = self.predictions(architecture) if has_predictions else []
        embedding = self.embedding(hidden, vocabulary)
        head = self.head(hidden, vocabulary, len(predictions), tied=architecture.tied)
        return [*encoder, embedding, *runs, *predictions, head]

    def run(self, run: Run, hidden: int, part: Frozen = Frozen.DECODER) -> DerivedLayer:
        """Equal layers of a part of the model."""
        frozen, rank = part in self.training.freeze, self.rank
        return self.layer(
            run.name,
            rank.decoder(run.decoder, hidden, frozen=frozen),
            run.count,
            hidden=hidden,
            gradients=_gradients(run.decoder, hidden),
            flops=self._flops(run.decoder, hidden, frozen) * rank.sequence * rank.sequences,
            frozen=frozen,
        )

    def predictions(self, architecture: Architecture) -> list[DerivedLayer]:
        """Modules that predict further tokens, without their logits and losses.

        Each passes on its own hidden vectors besides those that it received (`torch.cat` at the end
        of `MultiTokenPredictionBlock.forward` in
        megatron/core/transformer/multi_token_prediction.py of Megatron-LM, d98e8a6).
        """
        hidden, vocabulary = architecture.hidden, architecture.vocabulary
        decoder = architecture.prediction_layer
        frozen = Frozen.DECODER in self.training.freeze
        projection_flops = self.matrix_flops(frozen) * 2 * hidden * hidden
        each = self._flops(decoder, hidden, frozen) + projection_flops
        module = self.layer(
            "prediction",
            self.rank.prediction(decoder, hidden, vocabulary, frozen=frozen),
            role="mtp",
            hidden=hidden,
            gradients=_gradients(decoder, hidden),
            flops=each * self.training.all_tokens,
            frozen=frozen,
        )
        states = range(2, architecture.predictions + 2)
        return [replace(module, output=round(module.output * number, 3)) for number in states]

    def head(
        self, hidden: int, vocabulary: int, predictions: int = 0, *, tied: bool = False
    ) -> DerivedLayer:
        """The output matrix with its loss, for the next token and for those of `predictions`.

        Megatron-LM computes all logits and losses where the head is (`process_mtp_loss` in
        megatron/core/transformer/multi_token_prediction.py, d98e8a6).

        The matrix that is `tied` to the embedding is stored once on a single stage. The first and
        the last of several stages reduce its gradient together.
        """
        frozen = Frozen.HEAD in self.training.freeze or bool(self.training.lora)
        training, rank = self.training, self.rank
        shared = tied and training.devices == 1
        output = rank.head(hidden, vocabulary, frozen=frozen, shared=shared)
        further = rank.head(hidden, vocabulary, frozen=frozen, shared=True)
        flops = self.matrix_flops(frozen) * hidden * vocabulary * training.all_tokens
        costs = self.layer(
            "head",
            [*output, *further * predictions],
            role="head",
            hidden=hidden,
            logits=vocabulary,
            flops=flops * (1 + predictions),
            frozen=frozen,
        )
        if not tied or training.devices == 1 or frozen:
            return costs
        size = training.style.gradient * hidden * vocabulary / training.tensor
        ends = Group(2, training.tensor * training.ranks)
        reduce = Collective("tied", Pattern.ALL_REDUCE, size, ends).seconds(self.gpu, self.node)
        sync = costs.step.gradient_sync + _optional(self.scale.communication * reduce)
        return replace(costs, step=costs.step._replace(gradient_sync=round(sync, 3)))

    def matrix_flops(self, frozen: bool) -> int:
        """FLOPs per token and parameter of a matrix in F and BW: a frozen one has none for W."""
        return 4 if frozen or self.training.lora else 6

    def embedding(self, hidden: int, vocabulary: int) -> DerivedLayer:
        """The table of word vectors; its inputs are numbers, so it has no B."""
        training = self.training
        frozen = Frozen.EMBEDDING in training.freeze or bool(training.lora)
        part = self.rank.embedding(hidden, vocabulary, frozen=frozen)
        return self.layer("embedding", [part], role="embedding", hidden=hidden, frozen=frozen)

    def encoder(self, encoder: Encoder, hidden: int) -> list[DerivedLayer]:
        """Layers of an encoder of images, each image a sequence of its own, and its projections.

        Every layer passes on data that the embedding after it does not read, so that its output
        counts until the projections.
        """
        training = self.training
        images = training.microbatch * training.images
        costing = replace(self, rank=replace(self.rank, sequence=encoder.patches, sequences=images))
        frozen = Frozen.ENCODER in training.freeze
        patches = costing.layer(
            "patches",
            [costing.rank.projection([encoder.patch], frozen=frozen)],
            hidden=encoder.hidden,
            flops=self.matrix_flops(frozen) * encoder.patch.parameters * encoder.patches * images,
            frozen=frozen,
        )
        return [
            patches,
            *(costing.run(run, encoder.hidden, Frozen.ENCODER) for run in encoder.runs),
            costing.projections(encoder, hidden),
        ]

    def _flops(self, decoder: Decoder, hidden: int, frozen: bool) -> float:
        """FLOPs per token of F and BW that the model needs.

        Recomputed attention does not count (PaLM, arXiv 2204.02311, appendix B), nor do adapters.
        """
        passed = parameters_of(decoder.attention.matrices(hidden))
        passed += decoder.feed_forward.passed(hidden)
        attention = 3 * decoder.attention.scores(self.rank.sequence)
        return self.matrix_flops(frozen) * passed + attention

    def projections(self, encoder: Encoder, hidden: int) -> DerivedLayer:
        """The matrices behind an encoder, over the tokens of its images."""
        frozen = Frozen.ENCODER in self.training.freeze
        rank = replace(self.rank, sequence=encoder.tokens)
        parts = [rank.projection(each, frozen=frozen) for each in encoder.projections]
        parameters = sum(map(parameters_of, encoder.projections))
        return replace(self, rank=rank).layer(
            "projection",
            parts,
            hidden=hidden,
            flops=self.matrix_flops(frozen) * parameters * rank.sequence * rank.sequences,
            frozen=frozen,
        )

    def layer(
        self,
        name: str,
        parts: Sequence[LayerPart],
        count: int = 1,
        *,
        role: str = DECODER,
        hidden: int,
        gradients: float = 0,
        logits: int = 0,
        flops: float = 0,
        frozen: bool = False,
    ) -> DerivedLayer:
        """Costs of a layer with some parts.

        `gradients` are elements per token alive at once in the backward, `logits` those of the loss
        per token, in FP32.
        """
        each = self.rank.tokens / self.training.tensor
        loss = LOGIT * logits * each
        back = max(ELEMENT * gradients * each, loss)
        handed = ELEMENT * hidden * self.rank.local_tokens
        activation = _mib(sum(part.stashed for part in parts))
        communication = self.communication(parts)
        times = map(max, self.computing(parts) + communication, self.launching(parts))
        return DerivedLayer(
            *(name, role, count),
            **Times(*map(_rounded, times))._asdict(),
            communication=Times(*(round(time, 3) for time in communication)),
            activation=activation,
            static=_mib(sum(map(self._static_bytes, parts))),
            output=0 if role == "head" else round(handed / MIB, 3),
            workspace=(_mib(loss), _mib(back)),
            stashed=min(_mib(handed), activation),
            step=self.step(parts),
            frozen=frozen,
            flops=flops,
            parts=tuple(parts),
        )

    def transfers(self, sizes: Iterable[float]) -> str:
        """The line of a model file for transfers of these sizes, in MiB, to the next device.

        One time if all are equal; else latency, and bandwidth in MiB per ms.
        """
        *smaller, largest = sorted(set(sizes))
        time, latency = self.transfer(largest), _rounded(self.transfer(0))
        if not smaller:
            return f"p2p_time: {_rounded(time)}"
        bandwidth = largest / (time - self.transfer(0))
        return f"link: {{latency: {latency}, bandwidth: {bandwidth:.4g}}}  # MiB per ms"

    def transfer(self, size: float) -> float:
        """Milliseconds of a transfer of `size` MiB to the next device."""
        training, gpu = self.training, self.gpu
        inner = training.tensor * training.ranks
        if inner * training.devices <= self.node:
            moving = Collective("transfer", Pattern.RING_STEP, size * MIB, Group(2))
            seconds = moving.seconds(gpu, self.node)
        else:
            bandwidth = gpu.network_bandwidth * gpu.network_p2p_efficiency
            seconds = gpu.network_latency + size * MIB / bandwidth
        return 1000 * self.scale.communication * seconds

    def computing(self, parts: Iterable[LayerPart]) -> Times:
        """Time of kernels."""
        return sum(map(self._computing, parts), Times())

    def communication(self, parts: Iterable[LayerPart]) -> Times:
        """Exposed time of collectives."""
        collectives = (part.collectives for part in parts)
        times = (Times(*(1000 * self.exposed(kind) for kind in each)) for each in collectives)
        return sum(times, Times())

    def launching(self, parts: Iterable[LayerPart]) -> Times:
        """Time in which the CPU launches kernels and collectives: the GPU waits if it needs less.

        CUDA graphs launch all at once.
        """
        if self.training.cuda_graphs:
            return Times()
        each = 1000 * self.scale.compute * self.training.style.launch * self.gpu.launch_time
        return Times(*(each * number for number in sum(map(self._launches, parts), Times())))

    def _launches(self, part: LayerPart) -> Times:
        """Kernels and collectives of F, B, W and BW."""
        small = part.small_kernels
        exchanges = (sum(each.repeats for each in kind) for kind in part.collectives)
        kernels = (sum(kernel.launches for kernel in kind) for kind in self._kinds(part))
        return Times(*exchanges) + Times(*kernels) + Times(small, small, 0, small)

    def _kinds(self, part: LayerPart) -> tuple[tuple[Kernel, ...], ...]:
        """Kernels of F, B, W and BW."""
        weight = part.weight + self.accumulation(part)
        return part.forward, part.input, weight, part.input + weight

    def _computing(self, part: LayerPart) -> Times:
        factor = 1000 * self.scale.compute
        times = Times(*(factor * self.computed(kernels) for kernels in self._kinds(part)))
        split = self.split(part)
        return times._replace(input=split * times.input, weight=split * times.weight)

    def split(self, part: LayerPart) -> float:
        """Factor on the time of the kernels of B and of W as separate operations."""
        return self.training.style.split if part.input and part.weight else 1.0

    def computed(self, kernels: Iterable[Kernel]) -> float:
        """Seconds of kernels one after the other."""
        return sum(kernel.seconds(self.gpu, self.training.precision) for kernel in kernels)

    def accumulation(self, part: LayerPart) -> tuple[Kernel, ...]:
        """Addition of the gradients to those of earlier microbatches."""
        trained = part.adapters
        if part.trained:
            trained += part.parameters + part.routed + part.shared
        if not part.weight or not trained:
            return ()
        traffic = self.training.style.accumulated * trained
        return (Kernel("gradient accumulation", KernelBound.MEMORY, traffic=traffic),)

    def exposed(self, collectives: Iterable[Collective]) -> float:
        """Exposed seconds of collectives."""
        factors = self.scale._asdict()
        return sum(each.exposed(self.gpu, self.node, **factors) for each in collectives)

    def _static_bytes(self, part: LayerPart) -> float:
        """Bytes of a part's parameters, gradients and optimizer states on a rank."""
        data, experts = self.training.data_group, self.training.expert_data_group
        each = self.rank.storage(in_bf16=part.in_bf16).parameter
        adapter = self.rank.storage(in_bf16=True).parameter
        return (
            self._bytes(part.parameters, each, data, trained=part.trained)
            + self._bytes(part.routed, each, experts, trained=part.trained)
            + self._bytes(part.adapters, adapter, data, trained=True)
        )

    def _bytes(self, parameters: float, each: float, group: Group, *, trained: bool) -> float:
        """Bytes of parameters of `each` bytes, with gradients and states if they are trained."""
        style, zero, ranks = self.training.style, self.training.zero, group.ranks
        shards = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]
        sizes = (each, style.gradient, style.state)
        if not trained:
            return parameters * each / shards[0]
        return parameters * sum(size / shard for size, shard in zip(sizes, shards, strict=True))

    def step(self, parts: Sequence[LayerPart]) -> StepCosts:
        """Costs of a layer's trained parameters once in a step."""
        gradient, zero = self.training.style.gradient, self.training.zero
        trained = self._sharded(parts, frozen=False)
        shards_all = zero == SHARDED_PARAMETERS
        gathered = self._sharded(parts, frozen=shards_all, each=self._gathered)
        reduce = Pattern.REDUCE_SCATTER if zero else Pattern.ALL_REDUCE
        gradients = [(gradient * number, group) for number, group in trained]
        sync = self._exchanged("gradients", reduce, gradients)
        gather = self._exchanged("parameters", Pattern.ALL_GATHER, gathered) if zero else 0
        seconds = sum(self._optimizing(number, group) for number, group in trained)
        memory = sum(size for size, _ in gathered) if shards_all else 0
        return StepCosts(
            unshard=_optional(self.scale.communication * gather),
            unshard_memory=_mib(memory),
            gradient_sync=_optional(self.scale.communication * sync),
            optimizer=_optional(self.scale.compute * seconds),
        )

    def _sharded(
        self,
        parts: Sequence[LayerPart],
        *,
        frozen: bool,
        each: Callable[[bool], float] = lambda _: 1,
    ) -> list[tuple[float, Group]]:
        """Parameters on a rank, those that are not trained included or not, by their group.

        A parameter counts as `each` says of those that stay in BF16, and of others.
        """
        counted = [part for part in parts if frozen or part.trained]
        dense = sum(each(part.in_bf16) * part.parameters for part in counted)
        dense += each(True) * sum(part.adapters for part in parts)
        routed = sum(each(part.in_bf16) * part.routed for part in counted)
        return [(dense, self.training.data_group), (routed, self.training.expert_data_group)]

    def _gathered(self, in_bf16: bool) -> float:
        """Bytes of a parameter that data-parallel ranks gather."""
        return self.rank.storage(in_bf16=in_bf16).gathered

    def _exchanged(
        self, name: str, pattern: Pattern, sharded: Sequence[tuple[float, Group]]
    ) -> float:
        """Seconds of a collective of so many bytes in every group."""
        collectives = (Collective(name, pattern, size, group) for size, group in sharded if size)
        return sum(collective.seconds(self.gpu, self.node) for collective in collectives)

    def _optimizing(self, parameters: float, group: Group) -> float:
        """Seconds of Adam and of the norm of the gradients."""
        if not parameters:
            return 0.0
        shard = parameters / (group.ranks if self.training.zero else 1)
        traffic = (ADAM + NORM) * shard + self.training.style.gradient * parameters
        return self.computed([Kernel("optimizer", KernelBound.MEMORY, traffic=traffic)])


def _gradients(decoder: Decoder, hidden: int) -> float:
    """Elements per token of gradients that are live at the same time."""
    return hidden + decoder.feed_forward.stashed(hidden)


def _mib(size: float) -> int:
    return ceil(size / MIB)


def _rounded(milliseconds: float) -> float:
    """A time in ms, a multiple of `SHORTEST`; 0 if there is no work."""
    return max(SHORTEST, round(milliseconds, 3)) if milliseconds else 0.0


def _optional(time: float) -> float:
    """Seconds as ms; 0 if there is no work."""
    return _rounded(1000 * time)
