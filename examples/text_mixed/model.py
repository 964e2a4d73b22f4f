"""A small transformer over characters. Knows nothing of how it is trained."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention to what came before, then a dense layer; each added to what it was given."""

    def __init__(self, width: int, *, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        # Without bias: that of the keys would have no effect, and Adam would enlarge its rounding.
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width)
        self.dense_norm = nn.LayerNorm(width)
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many vectors as given, ``[n, length, width]``."""
        heads = self.attention_in(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.dropout(self.attention_out(mixed.transpose(1, 2).flatten(2)))
        result: torch.Tensor = x + self.dropout(self.dense(self.dense_norm(x)))
        return result


class Transformer(nn.Module):
    """Scores of the next token at every place of a window.

    Args:
        num_tokens: Different tokens.
        window: Most tokens at once.
        width: Of the vectors.
        num_blocks: Depth.
        num_heads: Of the attention.
        dropout: Share of values set to 0 in training.
    """

    def __init__(
        self,
        num_tokens: int,
        *,
        window: int,
        width: int = 96,
        num_blocks: int = 2,
        num_heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, width)
        self.places = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(width, num_heads=num_heads, dropout=dropout) for _ in range(num_blocks))
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores ``[n, length, num_tokens]`` for tokens ``[n, length]`` of any integers."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens.long()) + self.places(places))
        scores: torch.Tensor = self.scores(self.norm(self.blocks(x)))
        return scores
