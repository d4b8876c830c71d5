"""The parts that models are trained from: matrices that round as their file does, norms, rotations."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_spec.training.quantize import fake_q4_0
from edge_spec.training.settings import Shape

__all__ = ["Matrix", "Norm", "Rotation", "Trainable", "rotate", "rotations"]

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the positions, each ``[n, 1, head / 2]``."""


class Matrix(nn.Module):
    """A weight matrix ``[outputs, inputs]``; rounded to 4 bits for each use once ``quantized`` is set."""

    def __init__(self, n_in: int, n_out: int, deviation: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * deviation)
        self.quantized = False

    @property
    def used(self) -> Tensor:
        """The weights that products are computed with."""
        return fake_q4_0(self.weight) if self.quantized else self.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.used.to(x.dtype))


class Norm(nn.Module):
    """RMSNorm, computed in 32 bits."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (scaled * self.weight).to(x.dtype)


class Trainable(nn.Module):
    """What ``Trainer`` trains.

    Attributes:
        shape: its sizes, which its file of weights names.
        quantized: whether it computes with rounded weights.
    """

    shape: Shape
    quantized = False

    @property
    @abstractmethod
    def layers(self) -> nn.ModuleList:
        """What is compiled on accelerators."""

    @abstractmethod
    def named_weights(self) -> dict[str, nn.Parameter]:
        """Return the weights by their names in a GGUF."""

    def quantize(self, on: bool) -> None:
        """Compute with weights rounded as in the Q4_0 file (embeddings in Q8_0), or with the full ones."""
        self.quantized = on
        for module in self.modules():
            if isinstance(module, Matrix):
                module.quantized = on


def rotations(shape: Shape) -> Rotation:
    """Of all positions, ``[n_ctx, 1, head / 2]``."""
    angles = torch.arange(shape.n_ctx).double()[:, None] / shape.rope_base ** (
        torch.arange(0, shape.head_dim, 2).double() / shape.head_dim
    )
    return angles.cos().float()[:, None], angles.sin().float()[:, None]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Apply rotary embeddings to ``x``, ``[rows, n, heads, head]``."""
    cosines, sines = rotation
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1).flatten(-2).to(x.dtype)
