"""Muon for matrices, AdamW for embeddings and norms.

Muon (Jordan et al., 2024) takes the orthogonal matrix nearest to the momentum as the update, found by five
Newton-Schulz steps. It is scaled to the root mean square of AdamW's updates (Liu et al., "Muon is scalable for LLM
training", arXiv 2502.16982), so that both share a learning rate and a decay.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from edge_spec.training.modules import Trainable
from edge_spec.training.precision import works_in_16_bits

__all__ = ["Optimizer"]

_MOMENTUM = 0.95
_BETAS = (0.9, 0.95)
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Optimizer:
    """Updates a model's weights from their gradients."""

    def __init__(self, model: Trainable, weight_decay: float) -> None:
        self._weight_decay = weight_decay
        weights = model.named_weights()
        self._matrices = {name: w for name, w in weights.items() if w.ndim == 2 and name != "token_embd.weight"}
        others = [w for name, w in weights.items() if name not in self._matrices]
        decayed, plain = [w for w in others if w.ndim == 2], [w for w in others if w.ndim == 1]
        self._adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}], betas=_BETAS
        )
        self._momentum = {name: torch.zeros_like(w) for name, w in self._matrices.items()}
        self._all: list[nn.Parameter] = [*self._matrices.values(), *others]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update. Gradients are clipped to norm 1 before it and freed after it."""
        nn.utils.clip_grad_norm_(self._all, 1.0)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        # Matrices of one shape go through Newton-Schulz together: fewer and larger products.
        by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name, weight in self._matrices.items():
            if weight.grad is not None:
                by_shape[tuple(weight.shape)].append(name)
        for shape, names in by_shape.items():
            directions = []
            for name in names:
                gradient = self._matrices[name].grad
                assert gradient is not None
                momentum = self._momentum[name].lerp_(gradient, 1 - _MOMENTUM)
                directions.append(gradient.lerp(momentum, _MOMENTUM))
            scale = 0.2 * max(shape) ** 0.5 * learning_rate
            for name, update in zip(names, _orthogonal(torch.stack(directions)), strict=True):
                weight = self._matrices[name]
                weight.mul_(1 - learning_rate * self._weight_decay)
                weight.add_(update.to(weight.dtype), alpha=-scale)
        for weight in self._all:
            weight.grad = None

    def state(self) -> dict[str, Any]:
        """Return what ``restore`` takes back."""
        return {"adam": self._adam.state_dict(), "momentum": self._momentum}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from where ``state`` was taken."""
        self._adam.load_state_dict(state["adam"])
        for name, momentum in state["momentum"].items():
            self._momentum[name].copy_(momentum)


def _orthogonal(stack: Tensor) -> Tensor:
    """Roughly the orthogonal factor of each matrix of ``[n, outputs, inputs]``."""
    a, b, c = _COEFFICIENTS
    x = stack.bfloat16() if works_in_16_bits(stack.device.type) else stack
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.transpose(1, 2) if tall else x
