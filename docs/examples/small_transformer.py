"""A small transformer for `--stages-from`: embedding, blocks, head (docs/pytorch.md)."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import ppopt.torch

VOCABULARY, WIDTH, HEADS, SEQUENCE, BLOCKS = 512, 128, 4, 64, 6


class Embedding(nn.Module):
    """Words and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(SEQUENCE, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed tokens, shape [samples, tokens]."""
        return self.embedding(tokens) + self.positions


class Block(nn.Module):
    """Causal attention and a feed-forward network, each on a normed residual."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Run the block, shape [samples, tokens, WIDTH]."""
        parts = self.heads(self.before(tensor)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tensor = tensor + self.out(seen.transpose(1, 2).flatten(2))
        return tensor + self.down(nn.functional.gelu(self.up(self.between(tensor))))


class Head(nn.Module):
    """The scores of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Score all tokens at every position."""
        return self.scores(self.norm(tensor))


def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next tokens."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def build(microbatches: int) -> ppopt.torch.Job:
    """The whole model, and four sequences per microbatch."""
    tokens = torch.randint(VOCABULARY, (4 * microbatches, SEQUENCE + 1))
    return ppopt.torch.Job(
        modules=[Embedding, *(partial(Block) for _ in range(BLOCKS)), Head],
        inputs=tokens[:, :-1].contiguous(),
        target=tokens[:, 1:].contiguous(),
        loss=loss,
    )
