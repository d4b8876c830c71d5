"""The llama architecture in PyTorch, as llama.cpp computes it.

Rotary embeddings rotate adjacent pairs of a head (2i, 2i + 1), as llama.cpp does for this architecture: weights go into
the file as they are, without the permutation that checkpoints with split halves need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_spec.training.modules import Matrix, Norm, Rotation, Trainable, rotate, rotations
from edge_spec.training.quantize import fake_q4_0, fake_q8_0
from edge_spec.training.settings import Shape

__all__ = ["Cache", "Llama"]


@dataclass
class Cache:
    """Keys and values, per layer ``[rows, KV heads, n_ctx, head]``, of which the first ``n_past`` are used."""

    keys: list[Tensor]
    values: list[Tensor]
    n_past: int = 0


class Block(nn.Module):
    """Attention and feed-forward of one layer."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        width, kv_width = shape.n_embd, shape.n_head_kv * shape.head_dim
        inward, outward = 0.02, 0.02 / (2 * shape.n_layers) ** 0.5
        self.n_head, self.n_head_kv, self.head_dim = shape.n_head, shape.n_head_kv, shape.head_dim
        self.attn_norm = Norm(width, shape.norm_epsilon)
        self.attn_q = Matrix(width, width, inward)
        self.attn_k = Matrix(width, kv_width, inward)
        self.attn_v = Matrix(width, kv_width, inward)
        self.attn_output = Matrix(width, width, outward)
        self.ffn_norm = Norm(width, shape.norm_epsilon)
        self.ffn_gate = Matrix(width, shape.n_ff, inward)
        self.ffn_up = Matrix(width, shape.n_ff, inward)
        self.ffn_down = Matrix(shape.n_ff, width, outward)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: Rotation, past: tuple[Tensor, Tensor, int] | None = None) -> Tensor:
        x = x + self.dropout(self.attn_output(self._attend(self.attn_norm(x), rotation, past)))
        y = self.ffn_norm(x)
        return x + self.dropout(self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y)))

    def _attend(self, x: Tensor, rotation: Rotation, past: tuple[Tensor, Tensor, int] | None) -> Tensor:
        rows, n, _ = x.shape
        q = rotate(self.attn_q(x).view(rows, n, self.n_head, self.head_dim), rotation).transpose(1, 2)
        k = rotate(self.attn_k(x).view(rows, n, self.n_head_kv, self.head_dim), rotation).transpose(1, 2)
        v = self.attn_v(x).view(rows, n, self.n_head_kv, self.head_dim).transpose(1, 2)
        if past is not None:
            keys, values, n_past = past
            keys[:, :, n_past : n_past + n] = k
            values[:, :, n_past : n_past + n] = v
            k, v = keys[:, :, : n_past + n], values[:, :, : n_past + n]
        if n > 1:
            # Repeated here: not every fused kernel takes grouped heads, and the plain one would need far more memory.
            group = self.n_head // self.n_head_kv
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        # Several tokens only ever follow an empty cache, and a single token attends to everything.
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=n > 1, enable_gqa=n == 1)
        return y.transpose(1, 2).reshape(rows, n, -1)


class Llama(Trainable):
    """A decoder with tied embeddings.

    Args:
        dropout: see ``Training``; applied only in training mode.
    """

    def __init__(self, shape: Shape, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.n_vocab, shape.n_embd) * 0.02)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.n_layers))
        self.output_norm = Norm(shape.n_embd, shape.norm_epsilon)
        cosines, sines = rotations(shape)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    @property
    def layers(self) -> nn.ModuleList:
        return self.blocks

    def named_weights(self) -> dict[str, nn.Parameter]:
        names = {"embedding": "token_embd.weight", "output_norm.weight": "output_norm.weight"}
        return {
            names.get(name) or name.replace("blocks.", "blk."): parameter for name, parameter in self.named_parameters()
        }

    @torch.no_grad()
    def round_weights(self) -> None:
        """Replace the weights by those of the Q4_0 file: a model that is not trained any more is rounded once."""
        self.quantize(False)
        self.embedding.copy_(fake_q8_0(self.embedding))
        for module in self.modules():
            if isinstance(module, Matrix):
                module.weight.copy_(fake_q4_0(module.weight))

    def hidden(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor]:
        """Return the input of the output matrix, ``[rows, n, width]``, and that matrix, ``[n_vocab, width]``.

        Args:
            tokens: ids, ``[rows, n]``; only one per row if the cache is not empty.
        """
        matrix = fake_q8_0(self.embedding) if self.quantized else self.embedding
        n_past = cache.n_past if cache is not None else 0
        rotation = (self.cosines[n_past : n_past + tokens.shape[1]], self.sines[n_past : n_past + tokens.shape[1]])
        x = functional.embedding(tokens, matrix)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for number, block in enumerate(self.blocks):
            x = block(x, rotation, (cache.keys[number], cache.values[number], n_past) if cache is not None else None)
        if cache is not None:
            cache.n_past += tokens.shape[1]
        return self.output_norm(x), matrix

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Logits, ``[rows, n, n_vocab]``."""
        x, matrix = self.hidden(tokens, cache)
        return functional.linear(x, matrix.to(x.dtype))

    def cache(self, rows: int, n_ctx: int, dtype: torch.dtype) -> Cache:
        """Return an empty cache."""
        shape = (rows, self.shape.n_head_kv, n_ctx, self.shape.head_dim)

        def empty() -> list[Tensor]:
            return [torch.zeros(shape, dtype=dtype, device=self.embedding.device) for _ in self.blocks]

        return Cache(empty(), empty())
