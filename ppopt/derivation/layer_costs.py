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
- Modules: what recomputes on its own, in Megatron-LM's names, repeats its kernels and collectives
  of F, and frees what F then does not stash (`ModuleCosts`).
- Once in a step: `unshard` gathers parameters (ZeRO 1 to 3), `gradient_sync` reduces gradients over
  the ranks that have the same parameters, `optimizer` is the memory traffic of Adam.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import floor, inf
from typing import Any, NamedTuple

from ppopt.derivation.architecture import Architecture, Decoder, Encoder, Run
from ppopt.derivation.attention import pairs_of_source, parameters_of
from ppopt.derivation.collectives import Collective, Group, Pattern
from ppopt.derivation.data_parallel import DataParallel
from ppopt.derivation.derived_layer import (
    DerivedLayer,
    DerivedModule,
    LayerTimes,
    StepCosts,
    Times,
)
from ppopt.derivation.exchange_phases import ExchangeTimes, exchange_phases
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.kernels import Kernel, KernelBound
from ppopt.derivation.layer_part import LayerPart, ModuleCosts, PerKind
from ppopt.derivation.layer_parts import TOKENS, Rank
from ppopt.derivation.rounding import MIB, mib, rounded, rounded_seconds
from ppopt.derivation.training import ELEMENT, Frozen, Overlap, Training
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.phases import Phases

EMBEDDING = "embedding"
OPERATIONS = (1, 1, 1, 2)
"""Operations of F, B, W and BW, which is B and W."""
CHECKPOINT = 0.3e-3
"""Seconds of the CPU for a checkpoint of a module, which stores and restores states of random
numbers: the mean of five runs of Moonlight on 8 H100 that wait for the CPU (card.yaml of
skills/nemo-mbridge-perf-activation-recompute in NVIDIA-NeMo/Megatron-Bridge, 067f987)."""
KINDS = ("forward", "input", "weight", "backward")
"""Fields of times of a part: F, B, W and BW."""


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
    rank_parameters: float = inf
    """Parameters of a device, of which a bucket of gradients is a part."""

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
        training, routed = self.training, architecture.expert_parameters
        dense = (architecture.parameters - routed) / training.tensor
        each = (dense + routed / training.expert / training.of_expert) / training.devices
        return replace(self, rank_parameters=each)._layers(architecture)

    def _layers(self, architecture: Architecture) -> list[DerivedLayer]:
        hidden, vocabulary = architecture.hidden, architecture.vocabulary
        encoder = [] if architecture.encoder is None else self.encoder(architecture.encoder, hidden)
        has_source = architecture.source is not None
        if has_source:
            encoder = self._source(architecture)
        runs = [costing.run(run, hidden) for run, costing in self._by_precision(architecture.runs)]
        has_predictions = self.training.mtp and architecture.predictions
        predictions = self.predictions(architecture) if has_predictions else []
        embedding = self.embedding(hidden, vocabulary, reads_source=has_source)
        if has_source:
            embedding, *runs = (self._with_source(layer, hidden) for layer in (embedding, *runs))
        head = self.head(hidden, vocabulary, len(predictions), tied=architecture.tied)
        layers = [*encoder, embedding, *runs, *predictions, head]
        if not self.training.reshards:
            return layers
        neighbors = zip([*layers[1:], head], [layers[0], *layers], strict=False)
        return [
            self._with_weights(layer, *beside)
            for layer, beside in zip(layers, neighbors, strict=True)
        ]

    def _by_precision(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Costing]]:
        """Layers with the costs of their precision: some at the ends may stay in BF16."""
        training, layers = self.training, sum(run.count for run in runs)
        rest = layers - training.bf16_start - training.bf16_end
        in_bf16 = replace(self, rank=replace(self.rank, training=training.in_bf16))
        sections = ((training.bf16_start, in_bf16), (rest, self), (training.bf16_end, in_bf16))
        ends = list(accumulate(run.count for run in runs))
        first = 0
        for size, costing in sections:
            for run, end in zip(runs, ends, strict=True):
                count = min(first + size, end) - max(first, end - run.count)
                if count > 0:
                    yield replace(run, count=count), costing
            first += size

    def _with_weights(
        self, layer: DerivedLayer, after: DerivedLayer, before: DerivedLayer
    ) -> DerivedLayer:
        """A layer whose weights are gathered, and those of the next one to run, while it runs."""

        def gathered(of_layer: DerivedLayer) -> float:
            return sum(each.size for each in self.data_parallel.gathers(of_layer.parts))

        in_run = layer.count > 1
        gradients = sum(each.size for each in self.data_parallel.reductions(layer.parts))
        forward = gathered(layer) + gathered(layer if in_run else after)
        backward = gathered(layer) + gathered(layer if in_run else before) + gradients
        first, back = layer.workspace
        return replace(layer, workspace=(first + mib(forward), back + mib(backward)))

    def run(self, run: Run, hidden: int, part: Frozen = Frozen.DECODER) -> DerivedLayer:
        """Equal layers of a part of the model."""
        costing = self._frozen(part)
        rank = costing.rank
        return costing.layer(
            run.name,
            rank.decoder(run.decoder, hidden),
            run.count,
            hidden=hidden,
            gradients=_gradients(run.decoder, hidden),
            flops=costing._flops(run.decoder, hidden) * rank.sequence * rank.sequences,
        )

    def _frozen(self, part: Frozen, *, adapted: bool = True) -> Costing:
        """The costs of a part of the model, which may be frozen.

        A part that is not `adapted` is, if adapters alone are trained.
        """
        frozen = part in self.training.freeze or (bool(self.training.lora) and not adapted)
        return replace(self, rank=replace(self.rank, frozen=frozen))

    def predictions(self, architecture: Architecture) -> list[DerivedLayer]:
        """Modules that predict further tokens, without their logits and losses.

        Each passes on its own hidden vectors besides those that it received (`torch.cat` at the end
        of `MultiTokenPredictionBlock.forward` in
        megatron/core/transformer/multi_token_prediction.py of Megatron-LM, d98e8a6).
        """
        hidden, vocabulary = architecture.hidden, architecture.vocabulary
        decoder = architecture.prediction_layer
        costing = self._frozen(Frozen.DECODER)
        projection_flops = costing.matrix_flops * 2 * hidden * hidden
        each = costing._flops(decoder, hidden) + projection_flops
        module = costing.layer(
            "prediction",
            costing.rank.prediction(decoder, hidden, vocabulary),
            role="mtp",
            hidden=hidden,
            gradients=_gradients(decoder, hidden),
            flops=each * self.training.all_tokens,
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
        costing = self._frozen(Frozen.HEAD, adapted=False)
        training, rank = self.training, costing.rank
        shared = tied and training.devices == 1
        output = rank.head(hidden, vocabulary, shared=shared)
        further = rank.head(hidden, vocabulary, shared=True)
        flops = costing.matrix_flops * hidden * vocabulary * training.all_tokens
        costs = costing.layer(
            "head",
            [*output, *further * predictions],
            role="head",
            hidden=hidden,
            logits=vocabulary,
            flops=flops * (1 + predictions),
        )
        return self._tied(costs, hidden, vocabulary) if tied else costs

    def _tied(self, costs: DerivedLayer, hidden: int, vocabulary: int) -> DerivedLayer:
        """A layer with a copy of the table of word vectors, whose gradients two stages reduce."""
        training = self.training
        if training.devices == 1 or costs.frozen:
            return costs
        size = training.style.gradient * hidden * vocabulary / training.tensor
        ends = Group(2, training.tensor * training.ranks)
        reduce = Collective("tied", Pattern.ALL_REDUCE, size, ends).seconds(self.gpu, self.node)
        sync = costs.step.gradient_sync + rounded_seconds(self.scale.communication * reduce)
        return replace(costs, step=costs.step._replace(gradient_sync=round(sync, 3)))

    @property
    def matrix_flops(self) -> int:
        """FLOPs per token and parameter of a matrix in F and BW: a frozen one has none for W."""
        return 4 if self.rank.fixed else 6

    def embedding(
        self, hidden: int, vocabulary: int, *, reads_source: bool = False
    ) -> DerivedLayer:
        """The table of word vectors; its inputs are numbers, so it has no B.

        That of a decoder with cross attention is behind the encoder, whose table it shares, and
        begins with the norm of its output.
        """
        training = self.training
        costing = self._frozen(Frozen.EMBEDDING, adapted=False)
        shared = reads_source and training.devices == 1
        parts = [costing.rank.embedding(hidden, vocabulary, shared=shared)]
        if reads_source:
            parts.insert(0, costing.rank.source.norm(hidden))
        name = "decoder embedding" if reads_source else "embedding"
        costs = costing.layer(name, parts, role=EMBEDDING, hidden=hidden)
        return self._tied(costs, hidden, vocabulary) if reads_source else costs

    def _source(self, architecture: Architecture) -> list[DerivedLayer]:
        """Embedding and layers of the encoder that cross attention reads."""
        hidden, costing = architecture.hidden, replace(self, rank=self.rank.source)
        embedding = costing.embedding(hidden, architecture.vocabulary)
        runs = architecture.source_runs
        return [embedding, *(costing.run(run, hidden, Frozen.ENCODER) for run in runs)]

    def _with_source(self, layer: DerivedLayer, hidden: int) -> DerivedLayer:
        """A layer of a decoder that passes on the encoder's output, too.

        Megatron-LM sends both tensors between stages of the decoder (megatron/core/
        pipeline_parallel/schedules.py, 7608f27: shapes of tensors). Gradients of both are live in
        a backward. A layer that recomputes keeps both.
        """
        size = self.rank.source.hidden_bytes(hidden)
        first, back = layer.workspace
        return replace(
            layer,
            output=round(layer.output + size / MIB, 3),
            stashed=min(layer.stashed + mib(size), layer.activation),
            workspace=(first, back + mib(size)),
        )

    def encoder(self, encoder: Encoder, hidden: int) -> list[DerivedLayer]:
        """Layers of an encoder of images, each image a sequence of its own, and its projections.

        Every layer passes on data that the embedding after it does not read, so that its output
        counts until the projections.
        """
        training = self.training
        images = training.microbatch * training.images
        costing = replace(self, rank=replace(self.rank, sequence=encoder.patches, sequences=images))
        still = costing._frozen(Frozen.ENCODER)
        patches = still.layer(
            "patches",
            [still.rank.projection([encoder.patch])],
            hidden=encoder.hidden,
            flops=still.matrix_flops * encoder.patch.parameters * encoder.patches * images,
        )
        return [
            patches,
            *(costing.run(run, encoder.hidden, Frozen.ENCODER) for run in encoder.runs),
            costing.projections(encoder, hidden),
        ]

    def _flops(self, decoder: Decoder, hidden: int) -> float:
        """FLOPs per token of F and BW that the model needs.

        Recomputed attention does not count (PaLM, arXiv 2204.02311, appendix B), nor do adapters.
        """
        rank = self.rank
        attention = 3 * sum(each.scores(rank.context_of(each)) for each in decoder.attentions)
        pairs = sum(map(pairs_of_source, decoder.attentions))
        beyond = hidden * pairs * (rank.source.sequence / rank.sequence - 1)
        return self.matrix_flops * (decoder.passed(hidden) + beyond) + attention

    def projections(self, encoder: Encoder, hidden: int) -> DerivedLayer:
        """The matrices behind an encoder, over the tokens of its images."""
        costing = replace(self, rank=replace(self.rank, sequence=encoder.tokens))
        costing = costing._frozen(Frozen.ENCODER)
        rank = costing.rank
        parts = [rank.projection(each) for each in encoder.projections]
        parameters = sum(map(parameters_of, encoder.projections))
        return costing.layer(
            "projection",
            parts,
            hidden=hidden,
            flops=costing.matrix_flops * parameters * rank.sequence * rank.sequences,
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
    ) -> DerivedLayer:
        """Costs of a layer with some parts.

        `gradients` are elements per token alive at once in the backward, `logits` those of the loss
        per token.
        """
        each = self.rank.tokens / self.training.tensor
        loss = self.training.loss_costs.workspace * logits * each
        back = max(ELEMENT * gradients * each, loss)
        handed = ELEMENT * hidden * self.rank.local_tokens
        activation = mib(sum(part.stashed for part in parts))
        times = self.times(parts, role)
        total = Times(*map(rounded, times.total))
        communication = times.communication + times.streaming
        repeated = max(0.0, times.with_recompute - total.backward)
        return DerivedLayer(
            *(name, role, count),
            **total._asdict(),
            communication=Times(*(round(time, 3) for time in communication)),
            recompute=rounded(repeated) if self.training.reshards else total.forward,
            activation=activation,
            static=mib(sum(map(self.data_parallel.static, parts))),
            output=0 if role == "head" else round(handed / MIB, 3),
            workspace=(mib(loss), mib(back)),
            stashed=min(mib(handed), activation),
            offload=self._moving(activation) if role in (DECODER, "mtp") else 0,
            step=self.step(parts, total),
            frozen=self.rank.frozen,
            flops=flops,
            parts=tuple(parts),
            modules=self.modules(parts, is_waiting=times.waiting.backward > 0),
            phases=self.phases(parts, total),
        )

    def phases(self, parts: Sequence[LayerPart], total: Times) -> Phases | None:
        """Phases of a layer that takes `total`, if its exchanges of tokens may overlap.

        W follows later if that is delayed; else the backward of a layer is whole.
        """
        exchange = self._exposed(part.collectives.named(TOKENS) for part in parts)
        if Overlap.DISPATCH not in self.training.overlap or not exchange.forward:
            return None
        between = [part for part in parts if part.between_exchanges]
        experts = self.computing(between) + self.communication(between)
        forward, partial, later, whole = map(
            ExchangeTimes, total, experts, exchange, self.launching(parts)
        )
        if Overlap.WEIGHT in self.training.overlap:
            whole = partial._replace(weight=later.total, weight_of_experts=later.experts)
        return exchange_phases(forward, whole)

    def modules(self, parts: Sequence[LayerPart], *, is_waiting: bool) -> tuple[DerivedModule, ...]:
        """Modules of a layer; those of one name as one.

        Launches count if the kernels of the backward wait for the CPU.
        """
        by_name: dict[str, list[ModuleCosts]] = {}
        for module in (each for part in parts for each in part.modules):
            by_name.setdefault(module.name, []).append(module)
        modules = []
        for name, same in by_name.items():
            memory = floor(sum(each.freed for each in same) / MIB)
            kernels = [kernel for each in same for kernel in each.forward]
            exchanged = [collective for each in same for collective in each.collectives]
            seconds = self.scale.compute * self.computed(kernels) + self.exposed(exchanged)
            if is_waiting:
                number = sum(kernel.launches for kernel in kernels)
                launching = number * self.training.style.launch * self.gpu.launch_time
                launching += CHECKPOINT * sum(each.number for each in same)
                seconds = max(seconds, self.scale.compute * launching)
            time = rounded(1000 * seconds) if kernels or exchanged else None
            offloaded = floor(sum(each.offloaded for each in same) / MIB)
            modules.append(
                DerivedModule(
                    name, time, memory, same[0].inside, self._moving(offloaded), offloaded
                )
            )
        return tuple(modules)

    def _moving(self, size: int) -> float:
        """Milliseconds of a move to the host, or back."""
        return rounded(1000 * size * MIB / (self.gpu.host_bandwidth * self.gpu.host_efficiency))

    def transfers(self, sizes: Iterable[float]) -> dict[str, Any]:
        """The setting of a model file for transfers of these sizes, in MiB, to the next device.

        One time if all are equal; else latency, and bandwidth in MiB per ms.
        """
        *smaller, largest = sorted(set(sizes))
        time, latency = self.transfer(largest), self.transfer(0)
        if not smaller:
            return {"p2p_time": rounded(time)}
        bandwidth = float(f"{largest / (time - latency):.4g}")
        return {"link": {"latency": rounded(latency), "bandwidth": bandwidth}}

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
        return self._exposed(part.collectives for part in parts)

    def _exposed(self, collectives: Iterable[PerKind]) -> Times:
        times = (Times(*(1000 * self.exposed(kind) for kind in each)) for each in collectives)
        return sum(times, Times())

    def attention(self, architecture: Architecture) -> float:
        """Ms of F and BW of attention itself, in the layers of words."""
        runs = [(run.decoder, run.count) for run in architecture.runs]
        if self.training.mtp:
            runs.append((architecture.prediction_layer, architecture.predictions))
        parts = [
            (self.rank.attention_itself(each), count)
            for decoder, count in runs
            for each in decoder.attentions
        ]
        times = ((self.computing([part]) + self.communication([part]), n) for part, n in parts)
        return sum(count * (time.forward + time.backward) for time, count in times)

    @cached_property
    def data_parallel(self) -> DataParallel:
        """What ranks with the same parameters store and exchange."""
        return DataParallel(self.rank)

    def times(self, parts: Sequence[LayerPart], role: str) -> LayerTimes:
        """Times of the parts of a layer, and what they wait for.

        The gather of the first layer overlaps with nothing.
        """
        computing, communication = self.computing(parts), self.communication(parts)
        running = computing + communication
        besides = 1000 * self.scale.compute * self.training.style.besides
        waiting = Times(*map(_excess, self.launching(parts), running))
        waiting += Times(*(besides * number for number in OPERATIONS))
        busy = running + waiting
        collectives = self.data_parallel.streamed(parts)
        exchange = Times(*(1000 * self.exposed(kind) for kind in collectives))
        streaming = Times(*map(_excess, exchange, busy))
        if role == EMBEDDING:
            streaming = streaming._replace(forward=exchange.forward)
        repeated = max(busy.forward + busy.backward, exchange.backward)
        return LayerTimes(computing, communication, waiting, streaming, repeated)

    def launching(self, parts: Iterable[LayerPart]) -> Times:
        """Time in which the CPU launches kernels: the GPU waits if it needs less.

        CUDA graphs launch all at once. Launches of collectives are not counted.
        """
        if self.training.cuda_graphs:
            return Times()
        each = 1000 * self.scale.compute * self.training.style.launch * self.gpu.launch_time
        return Times(*(each * number for number in sum(map(self._launches, parts), Times())))

    def _launches(self, part: LayerPart) -> Times:
        """Kernels of F, B, W and BW."""
        forward, back, weight = (
            sum(kernel.launches for kernel in kernels) for kernels in self._kinds(part)
        )
        small = part.small_kernels
        return Times(forward + small, back + small, weight, back + weight + small)

    def _kinds(self, part: LayerPart) -> tuple[tuple[Kernel, ...], ...]:
        """Kernels of F, B and W."""
        return part.forward, part.input, part.weight + self.accumulation(part)

    def _computing(self, part: LayerPart) -> Times:
        factor, split = 1000 * self.scale.compute, self.split(part)
        forward, back, weight = (factor * self.computed(each) for each in self._kinds(part))
        return Times(forward, split * back, split * weight, back + weight)

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

    def step(self, parts: Sequence[LayerPart], times: Times) -> StepCosts:
        """Costs of a layer's trained parameters once in a step.

        Weights that are resharded are gathered, and their gradients reduced, in F and backwards.
        """
        shared, once = self.data_parallel, not self.training.reshards
        gathers = self._bucketed(shared.gathers(parts), Overlap.PARAMETERS, times.forward)
        reductions = self._bucketed(shared.reductions(parts), Overlap.GRADIENTS, times.backward)
        kept_bytes = (
            sum(each.size for each in gathers) if once and self.training.shards_weights else 0
        )
        return StepCosts(
            unshard=rounded_seconds(self.exposed(gathers)) if once else 0,
            unshard_memory=mib(kept_bytes),
            gradient_sync=rounded_seconds(self.exposed(reductions)) if once else 0,
            optimizer=rounded_seconds(self.scale.compute * self.computed(shared.optimizer(parts))),
        )

    def _bucketed(
        self, collectives: Sequence[Collective], overlap: Overlap, time: float
    ) -> list[Collective]:
        """Collectives that overlap with the compute of their layer, in ms, but for one bucket."""
        if overlap not in self.training.overlap:
            return list(collectives)
        bucket = min(1.0, self.training.bucket / self.rank_parameters)
        whole = sum(each.seconds(self.gpu, self.node) for each in collectives)
        compute = time / 1000 / self.scale.compute
        return [
            each._replace(
                hidden=compute * each.seconds(self.gpu, self.node) / whole, visible=bucket
            )
            for each in collectives
        ]


def _excess(time: float, parallel: float) -> float:
    """Time beyond that of work in parallel."""
    return max(0.0, time - parallel)


def _gradients(decoder: Decoder, hidden: int) -> float:
    """Elements per token of gradients that are live at the same time."""
    return hidden + max((each.stashed(hidden) for each in decoder.feed_forwards), default=0)
