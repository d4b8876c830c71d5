"""The loss over the vocabulary, with its gradient made in the same pass.

Logits are by far the largest thing a small model computes. Here they exist for some tokens at a time and only once:
while they are there, the loss and both gradients are taken from them, so nothing is kept and nothing computed again
(the idea of Wijmans et al., "Cut Your Losses", arXiv 2411.09009, without its kernels).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["summed_divergence", "summed_entropy"]

_ROWS = {"cpu": 1 << 9}
"""Tokens whose logits exist at once: on a processor few enough for its caches, elsewhere ``_MOST_ROWS``."""

_MOST_ROWS = 1 << 14

Piece = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""From logits ``[n, vocabulary]``, which it may overwrite, and the tokens they belong to: summed loss and gradient."""


def summed_entropy(hidden: Tensor, matrix: Tensor, wanted: Tensor, learned: Tensor) -> Tensor:
    """Cross entropy, summed over the learned tokens, in nats.

    Args:
        hidden: ``[..., width]``.
        matrix: of the output, ``[vocabulary, width]``.
        wanted, learned: the ids that should come, and whether they count, ``[...]``.
    """
    ids, mask = wanted.flatten()[:, None], learned.flatten()[:, None].float()

    def piece(logits: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        law = torch.log_softmax(logits, dim=-1)
        loss = -(law.gather(1, ids[some]) * mask[some]).sum()
        gradient = law.exp_().mul_(mask[some])
        return loss, gradient.scatter_add_(1, ids[some], -mask[some])

    return _summed(hidden, matrix, piece)


def summed_divergence(hidden: Tensor, matrix: Tensor, taught: Tensor, its_matrix: Tensor, learned: Tensor) -> Tensor:
    """Kullback-Leibler divergence from a teacher's law, summed over the learned tokens, in nats.

    Args:
        hidden: ``[..., width]``.
        matrix: of the output, ``[vocabulary, width]``.
        taught, its_matrix: the same of the teacher, through which no gradient goes.
        learned: the tokens that count, ``[...]``.
    """
    teacher, mask = taught.flatten(0, -2), learned.flatten()[:, None].float()

    def piece(logits: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        law = torch.log_softmax(logits, dim=-1)
        its_law = torch.log_softmax(_logits(teacher[some], its_matrix), dim=-1)
        wanted = its_law.exp()
        loss = (its_law.sub_(law).mul_(wanted).sum(-1, keepdim=True) * mask[some]).sum()
        return loss, law.exp_().sub_(wanted).mul_(mask[some])

    return _summed(hidden, matrix, piece)


def _logits(hidden: Tensor, matrix: Tensor) -> Tensor:
    return functional.linear(hidden, matrix.to(hidden.dtype)).float()


def _summed(hidden: Tensor, matrix: Tensor, piece: Piece) -> Tensor:
    wants = torch.is_grad_enabled() and (hidden.requires_grad or matrix.requires_grad)
    total: Tensor = _Summed.apply(hidden.flatten(0, -2), matrix, piece, wants)
    return total


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: Tensor, piece: Piece, wants: bool) -> Tensor:
        n = _ROWS.get(hidden.device.type, _MOST_ROWS)
        narrow = matrix.to(hidden.dtype)
        total = hidden.new_zeros((), dtype=torch.float32)
        to_hidden = torch.empty_like(hidden) if wants else None
        to_matrix = torch.zeros_like(matrix, dtype=torch.float32) if wants else None
        for first in range(0, len(hidden), n):
            some = slice(first, first + n)
            loss, gradient = piece(_logits(hidden[some], narrow), some)
            total += loss
            if to_hidden is not None and to_matrix is not None:
                gradient = gradient.to(hidden.dtype)
                to_hidden[some] = gradient @ narrow
                to_matrix += gradient.T @ hidden[some]
        ctx.save_for_backward(to_hidden, to_matrix)
        return total

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_matrix = ctx.saved_tensors
        return to_hidden * by.to(to_hidden.dtype), to_matrix * by, None, None
