"""The loss over the vocabulary, with its gradient computed in the same pass.

Logits are by far the largest tensor of a small model. Here they exist for a chunk of tokens at a time and are computed
once: loss and both gradients are derived from each chunk before it is dropped, so nothing is stored and nothing is
recomputed (the idea of Wijmans et al., "Cut Your Losses", arXiv 2411.09009, without its kernels).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["summed_divergence", "summed_entropy", "summed_sparse_divergence", "summed_whole_divergence"]

_ROWS = {"cpu": 1 << 9}
"""Tokens whose logits exist at once: on a CPU few enough for its caches, elsewhere ``_MAX_ROWS``."""

_MAX_ROWS = 1 << 14

Chunk = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""Takes logits ``[n, n_vocab]``, which it may overwrite, and which tokens they are of; returns loss and gradient."""


def summed_entropy(hidden: Tensor, matrix: Tensor, targets: Tensor, learned: Tensor) -> Tensor:
    """Cross entropy, summed over the learned tokens, in nats.

    Args:
        hidden: ``[..., width]``.
        matrix: of the output, ``[n_vocab, width]``.
        targets, learned: the right ids, and whether they count, ``[...]``.
    """
    ids, mask = targets.flatten()[:, None], learned.flatten()[:, None].float()

    def chunk(logits: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, dim=-1)
        loss = -(log_p.gather(1, ids[some]) * mask[some]).sum()
        gradient = log_p.exp_().mul_(mask[some])
        return loss, gradient.scatter_add_(1, ids[some], -mask[some])

    return _summed(hidden, matrix, chunk)


def summed_divergence(
    hidden: Tensor, matrix: Tensor, teacher_hidden: Tensor, teacher_matrix: Tensor, learned: Tensor
) -> Tensor:
    """Kullback-Leibler divergence from a teacher's distributions, summed over the learned tokens, in nats.

    Args:
        hidden: ``[..., width]``.
        matrix: of the output, ``[n_vocab, width]``.
        teacher_hidden, teacher_matrix: the same of the teacher, which gets no gradient.
        learned: the tokens that count, ``[...]``.
    """
    teacher, mask = teacher_hidden.flatten(0, -2), learned.flatten()[:, None].float()

    def chunk(logits: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, dim=-1)
        log_t = torch.log_softmax(_logits(teacher[some], teacher_matrix), dim=-1)
        t = log_t.exp()
        loss = (log_t.sub_(log_p).mul_(t).sum(-1, keepdim=True) * mask[some]).sum()
        return loss, log_p.exp_().sub_(t).mul_(mask[some])

    return _summed(hidden, matrix, chunk)


def summed_sparse_divergence(hidden: Tensor, matrix: Tensor, columns: Tensor, chances: Tensor) -> Tensor:
    """Kullback-Leibler divergence from distributions over few columns, summed over all tokens, in nats.

    Args:
        hidden: ``[n, width]``.
        matrix: of the output, ``[n_vocab, width]``.
        columns, chances: those of each distribution that are not 0, ``[n, k]``; columns may occur repeatedly.
    """

    def chunk(logits: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        log_p, of_chunk = torch.log_softmax(logits, dim=-1), chances[some]
        loss = (of_chunk * (torch.log(of_chunk.clamp(min=1e-30)) - log_p.gather(1, columns[some]))).sum()
        return loss, log_p.exp_().scatter_add_(1, columns[some], -of_chunk)

    return _summed(hidden, matrix, chunk)


def summed_whole_divergence(hidden: Tensor, matrix: Tensor, chances: Tensor) -> Tensor:
    """Kullback-Leibler divergence from whole distributions, summed over all tokens, in nats.

    Args:
        hidden: ``[n, width]``.
        matrix: of the output, ``[n_vocab, width]``.
        chances: ``[n, n_vocab]``.
    """

    def chunk(logits: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        log_p, of_chunk = torch.log_softmax(logits, dim=-1), chances[some]
        loss = (of_chunk * (torch.log(of_chunk.clamp(min=1e-30)) - log_p)).sum()
        return loss, log_p.exp_().sub_(of_chunk)

    return _summed(hidden, matrix, chunk)


def _logits(hidden: Tensor, matrix: Tensor) -> Tensor:
    return functional.linear(hidden, matrix.to(hidden.dtype)).float()


def _summed(hidden: Tensor, matrix: Tensor, chunk: Chunk) -> Tensor:
    wanted = [torch.is_grad_enabled() and each.requires_grad for each in (hidden, matrix)]
    total: Tensor = _Summed.apply(hidden.flatten(0, -2), matrix, chunk, *wanted)
    return total


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, matrix: Tensor, chunk: Chunk, of_hidden: bool, of_matrix: bool) -> Tensor:
        n = _ROWS.get(hidden.device.type, _MAX_ROWS)
        narrow = matrix.to(hidden.dtype)
        total = hidden.new_zeros((), dtype=torch.float32)
        to_hidden = torch.empty_like(hidden) if of_hidden else None
        to_matrix = torch.zeros_like(matrix, dtype=torch.float32) if of_matrix else None
        for first in range(0, len(hidden), n):
            some = slice(first, first + n)
            loss, gradient = chunk(_logits(hidden[some], narrow), some)
            total += loss
            gradient = gradient.to(hidden.dtype)
            if to_hidden is not None:
                to_hidden[some] = gradient @ narrow
            if to_matrix is not None:
                to_matrix += gradient.T @ hidden[some]
        ctx.save_for_backward(to_hidden, to_matrix)
        return total

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_matrix = ctx.saved_tensors
        return (
            to_hidden * by.to(to_hidden.dtype) if to_hidden is not None else None,
            to_matrix * by if to_matrix is not None else None,
            None,
            None,
            None,
        )
