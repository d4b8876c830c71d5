"""A head on a target's hidden states, as llama.cpp's architecture ``eagle3`` computes it (EAGLE-3, arXiv 2503.01840).

The head reads a token and the *feature* of the token before: hidden states of three layers of the target, fused by one
matrix, or, where the target has not computed these yet, the head's own output there. One layer, whose residual runs on
the feature; its output is the feature of the next token and, normed and multiplied by the target's own output rows, the
logits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_spec.training.modules import Matrix, Norm, Rotation, Trainable, rotate, rotations
from edge_spec.training.settings import HeadShape

__all__ = ["Head"]

_MATRICES = ("fc", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Head(Trainable):
    """One layer on hidden states.

    Args:
        embedding, output: the target's rows of the tokens that the head knows, and one of zeros for all others, both
            ``[n_vocab, width]``. They are not trained and not saved.
    """

    def __init__(self, shape: HeadShape, embedding: Tensor, output: Tensor) -> None:
        super().__init__()
        width, kv_width, inward = shape.n_embd, shape.n_head_kv * shape.head_dim, 0.02
        self.shape: HeadShape = shape
        self.fc = Matrix(3 * width, width, 0.0)
        self.attn_norm = Norm(width, shape.norm_epsilon)
        self.attn_norm_2 = Norm(width, shape.norm_epsilon)
        self.attn_q = Matrix(2 * width, width, inward)
        self.attn_k = Matrix(2 * width, kv_width, inward)
        self.attn_v = Matrix(2 * width, kv_width, inward)
        self.attn_output = Matrix(width, width, inward)
        self.ffn_norm = Norm(width, shape.norm_epsilon)
        self.ffn_gate = Matrix(width, shape.n_ff, inward)
        self.ffn_up = Matrix(width, shape.n_ff, inward)
        self.ffn_down = Matrix(shape.n_ff, width, inward)
        self.output_norm = Norm(width, shape.norm_epsilon)
        with torch.no_grad():
            nn.init.eye_(self.fc.weight[:, 2 * width :])
        cosines, sines = rotations(shape)
        for name, rows in (("embedding", embedding), ("output", output), ("cosines", cosines), ("sines", sines)):
            self.register_buffer(name, rows, persistent=False)

    @property
    def layers(self) -> nn.ModuleList:
        # Its parts are called with shared weights; on an accelerator its products are most of the time as they are.
        return nn.ModuleList()

    def named_weights(self) -> dict[str, nn.Parameter]:
        whole = ("fc.weight", "output_norm.weight")
        return {name if name in whole else f"blk.0.{name}": weight for name, weight in self.named_parameters()}

    def ahead(
        self, tokens: Tensor, hidden: Tensor, texts: Tensor, steps: int, wanted: Tensor | None = None
    ) -> list[Tensor]:
        """Return what each token is followed by, drafted one to ``steps`` tokens behind what the target has read.

        Most of the work is done only where something is wanted: of other tokens, those of prompts, others just read
        keys and values.

        Args:
            tokens: ids of the head, ``[rows, n]``.
            hidden: the target's rows of the token before each of them, ``[rows, n, 3 * width]``; zeros where none is.
            texts: number of the text that each token belongs to, ``[rows, n]``; texts do not see each other.
            wanted: the tokens after which something is to be drafted, ``[rows, n]``; all if None.

        Returns:
            For each number of steps the inputs of the output rows, ``[rows, n, width]``; zeros where not wanted.
        """
        kind, n = hidden.dtype, tokens.shape[1]
        weights = self._weights(kind)
        wanted = torch.ones_like(tokens, dtype=torch.bool) if wanted is None else wanted
        chosen = _chosen(wanted, steps)
        places = torch.arange(n, device=tokens.device)
        angles = (self.cosines[:n], self.sines[:n])
        # Per row: with the heads in front, as queries and keys have them.
        own_angles = (self.cosines[chosen], self.sines[chosen])
        own_texts = texts.gather(1, chosen)
        embedded = self._embedded(tokens, kind)
        feature = functional.linear(hidden, weights["fc"])
        both = self._both(embedded, feature)
        keys, values = [self._heads("attn_k", both, weights, angles)], [self._heads("attn_v", both, weights)]
        embedded, feature, both = (_at(chosen, each) for each in (embedded, feature, both))
        follows = ((own_texts[:, 1:] == own_texts[:, :-1]) & (chosen[:, 1:] == chosen[:, :-1] + 1))[..., None]
        seen_from = chosen[:, :, None]
        distance, together = seen_from - places, own_texts[:, :, None] == texts[:, None, :]
        own_distance, own_together = seen_from - chosen[:, None, :], own_texts[:, :, None] == own_texts[:, None, :]
        found = []
        for step in range(steps):
            if step:
                feature = functional.pad(feature[:, :-1] * follows, (0, 0, 1, 0))
                both = self._both(embedded, feature)
                keys.append(self._heads("attn_k", both, weights, own_angles))
                values.append(self._heads("attn_v", both, weights))
            # Of what is in reach, the last tokens were drafted, too: each was read in a step of its own.
            seen = [(distance >= step) & together]
            seen += ((own_distance == step - later) & own_together for later in range(1, step + 1))
            q = self._heads("attn_q", both, weights, own_angles)
            mask = torch.cat(seen, dim=-1)[:, None]
            feature = self._layer(feature, q, torch.cat(keys, dim=2), torch.cat(values, dim=2), mask, weights)
            normed = self.output_norm(feature)
            rows = normed.new_zeros(*tokens.shape, normed.shape[-1])
            found.append(rows.scatter(1, _index(chosen, normed), normed) * wanted[..., None])
        return found

    @torch.no_grad()
    def chain(self, tokens: Tensor, hidden: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features of a text and a chain of drafted tokens, token by token, in 32-bit floats.

        Args:
            tokens: ids of the head, ``[n]``.
            hidden: the target's rows of these tokens, ``[n, 3 * width]``; that of the last one is not read.
            drafted: ids of the head, ``[m]``; each is read with the head's own output of the token before.

        Returns:
            Logits ``[n + m, n_vocab]`` and features ``[n + m, width]``.
        """
        kind, weights = torch.float32, self._weights(torch.float32)
        fused = functional.linear(hidden[:-1].float(), weights["fc"])
        ids = torch.cat((tokens, drafted))
        embedded = self._embedded(ids, kind)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        features: list[Tensor] = []
        for place in range(len(ids)):
            feature = torch.zeros(self.shape.n_embd)
            if place:
                feature = fused[place - 1] if place < len(tokens) else features[-1]
            rotation = (self.cosines[place : place + 1], self.sines[place : place + 1])
            own = feature[None, None]
            both = self._both(embedded[None, place : place + 1], own)
            q = self._heads("attn_q", both, weights, rotation)
            keys.append(self._heads("attn_k", both, weights, rotation))
            values.append(self._heads("attn_v", both, weights))
            output = self._layer(own, q, torch.cat(keys, dim=2), torch.cat(values, dim=2), None, weights)
            features.append(output[0, 0])
        found = torch.stack(features)
        return functional.linear(self.output_norm(found), self.output), found

    def _weights(self, kind: torch.dtype) -> dict[str, Tensor]:
        """Rounded once, however often they are used."""
        return {name: getattr(self, name).used.to(kind) for name in _MATRICES}

    def _embedded(self, tokens: Tensor, kind: torch.dtype) -> Tensor:
        normed: Tensor = self.attn_norm(functional.embedding(tokens, self.embedding)).to(kind)
        return normed

    def _both(self, embedded: Tensor, feature: Tensor) -> Tensor:
        """Return what attention is projected from."""
        return torch.cat((embedded, self.attn_norm_2(feature)), dim=-1)

    def _heads(self, name: str, both: Tensor, weights: Mapping[str, Tensor], angles: Rotation | None = None) -> Tensor:
        """Queries, or keys or values repeated for them, ``[rows, heads, n, head]``; turned by ``angles`` if given."""
        x = functional.linear(both, weights[name]).unflatten(-1, (-1, self.shape.head_dim))
        x = (x if angles is None else rotate(x, angles)).transpose(1, 2)
        return x if name == "attn_q" else x.repeat_interleave(self.shape.n_head // self.shape.n_head_kv, dim=1)

    def _layer(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, weights: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the layer's output, from its input and what attention reads."""
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + functional.linear(attended, weights["attn_output"])
        y = self.ffn_norm(x)
        gated = functional.silu(functional.linear(y, weights["ffn_gate"])) * functional.linear(y, weights["ffn_up"])
        return x + functional.linear(gated, weights["ffn_down"])


def _chosen(wanted: Tensor, steps: int) -> Tensor:
    """Places of each row, ascending, ``[rows, m]``: the wanted ones, and those that their later steps begin from.

    Rows that have fewer of them than others are filled with places of theirs that nobody asks for.
    """
    needed = wanted.clone()
    for step in range(1, steps):
        needed[:, :-step] |= wanted[:, step:]
    most = int(needed.sum(1).max().clamp(min=1))
    first = torch.argsort(needed, dim=1, descending=True, stable=True)[:, :most]
    return first.sort(dim=1).values


def _index(chosen: Tensor, x: Tensor) -> Tensor:
    return chosen[..., None].expand(-1, -1, x.shape[-1])


def _at(chosen: Tensor, x: Tensor) -> Tensor:
    """Return the rows at some places, ``[rows, m, width]``."""
    return x.gather(1, _index(chosen, x))
