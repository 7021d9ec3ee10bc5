"""Costs of layers under a training: times in ms and memory in MiB, per microbatch and device.

- Time: work / (peak x efficiency). Products of matrices run at the peak of the training's
  precision, attention at that of BF16. Norms, activation functions, the loss, collective
  communication and the exchange of tokens between experts are left out; every expert gets equally
  many tokens.
- The embedding has no matrix product: F reads and writes each token's vector once at the speed of
  the GPU's memory, W as much; B = 0, for nothing is before it.
- Activations: 2 bytes (BF16) for each element kept.
- Static: 6 + 12 / r bytes a parameter of a matrix: BF16 parameters, FP32 gradients, optimizer state
  sharded over r ranks (docs/user-guide/features/dist_optimizer.md of Megatron-LM). Norms and biases
  are left out. Of e ranks of experts each holds an e-th, and r is smaller by e.
- Output, what a layer hands on: 2 bytes / tensor for each element of its tokens' vectors.
- Workspace of B and BW: the gradients that are alive at once. Of the head, F too: logits. W needs
  none.
- Recompute (off unless `recompute` says so): F keeps what is handed to the layer, 2 bytes an
  element (`kept`), and the backward repeats F: full recompute, as arXiv 2205.05198 calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ppopt.derivation.architecture import Architecture
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.layer_work import (
    ELEMENT,
    LayerWork,
    decoder_work,
    head_work,
    prediction_work,
)
from ppopt.derivation.training import Training
from ppopt.problem.layers import DECODER

EFFICIENCY = 0.4
"""Share of the peak: Llama 3 reports 0.38 to 0.43 for its training (arXiv 2407.21783, Table 4)."""
MIB = 2**20
SHORTEST = 0.001
"""ms; a time is a whole number of these."""


@dataclass(frozen=True)
class LayerCosts:
    """A layer as it stands in a model file: times in ms, memory in MiB."""

    name: str
    role: str
    count: int
    forward: float
    backward: float
    weight: float
    activation: int
    static: int
    output: float = 0
    workspace: tuple[int, int] = (0, 0)
    """Of F, and of B and BW."""
    kept: int = 0
    """What F keeps with recompute."""
    flops: float = 0
    """FLOPs of F and BW of a microbatch, of all ranks; not in the file, their sum is."""


@dataclass(frozen=True)
class Costing:
    """Turns the work of layers into costs."""

    training: Training
    gpu: Gpu
    efficiency: float = EFFICIENCY
    """Share of the peak that products of matrices and attention reach, above 0."""

    def layers(self, architecture: Architecture) -> list[LayerCosts]:
        """Costs of an architecture's embedding, decoder layers, prediction modules and head."""
        hidden, words = architecture.hidden, architecture.vocabulary
        context = self.training.sequence
        runs = [
            self.layer(run.name, decoder_work(run.decoder, hidden, context), run.count)
            for run in architecture.runs
        ]
        if architecture.predictions:
            work = prediction_work(architecture.last, hidden, words, context)
            runs.append(self.layer("prediction", work, architecture.predictions, role="mtp"))
        return [self.embedding(hidden, words), *runs, self.head(hidden, words)]

    def layer(
        self,
        name: str,
        work: LayerWork,
        count: int = 1,
        *,
        role: str = DECODER,
        tokens: int | None = None,
    ) -> LayerCosts:
        """Costs of a layer; `tokens` of a microbatch if they are not those of the training."""
        training = self.training
        many = (training.tokens if tokens is None else tokens) / training.tensor
        slower = training_peak_share(self.gpu, training)
        matrices, scores = 2 * work.passed * many * slower, work.scores * many
        return LayerCosts(
            *(name, role, count),
            forward=self._ms(matrices + scores),
            backward=self._ms(2 * matrices + 2.5 * scores),
            weight=self._ms(matrices),
            activation=_mib(ELEMENT * work.kept * many),
            static=self._static(work),
            output=0 if role == "head" else _handed_on(work, many),
            workspace=(_mib(work.loss * many), _mib(max(work.gradients, work.loss) * many)),
            kept=_mib(ELEMENT * work.given * many),
            flops=work.flops * (tokens or training.all_tokens),
        )

    def embedding(self, hidden: int, vocabulary: int) -> LayerCosts:
        """The table of word vectors; its input are numbers."""
        training = self.training
        tokens = training.tokens / training.tensor
        moved = 2 * ELEMENT * hidden * training.tokens / training.tensor
        time = _rounded(1000 * moved / self.gpu.memory_speed)
        held = _held(hidden * vocabulary // training.tensor, training.ranks)
        output = _handed_on(LayerWork(0, 0, 0, given=hidden), tokens)
        return LayerCosts("embedding", "embedding", 1, time, time, time, 0, _mib(held), output)

    def head(self, hidden: int, vocabulary: int) -> LayerCosts:
        """The output matrix with its loss."""
        return self.layer("head", head_work(hidden, vocabulary), role="head")

    def _static(self, work: LayerWork) -> int:
        training = self.training
        everywhere = (work.parameters - work.routed) // training.tensor
        size = _held(everywhere, training.ranks)
        if work.routed:
            mine = work.routed // (training.expert * training.tensor)
            size += _held(mine, training.ranks // training.expert)
        return _mib(size)

    def _ms(self, work: float) -> float:
        return _rounded(1000 * work / (self.gpu.bf16 * self.efficiency))


def training_peak_share(gpu: Gpu, training: Training) -> float:
    """Peak of BF16 over the peak of the training's precision; InputError if there is none."""
    return gpu.bf16 / gpu.peak(training.precision)


def _handed_on(work: LayerWork, tokens: float) -> float:
    """Size of what a layer hands on, in MiB."""
    return round(ELEMENT * work.handed_on * tokens / MIB, 3)


def _mib(size: float) -> int:
    return ceil(size / MIB)


def _rounded(milliseconds: float) -> float:
    return max(SHORTEST, round(milliseconds, 3))


def _held(parameters: int, ranks: int) -> float:
    """Bytes of parameters, gradients and optimizer state."""
    return parameters * (6 + 12 / ranks)
