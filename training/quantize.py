"""Q4_0 and Q8_0 as ggml rounds to them, for training and for files.

Both uses give the same values: a model that was trained with ``fake_q4_0`` is the model in the file. A block is 32
adjacent weights of a row. Q4_0: the scale is the weight of largest magnitude (the first of equals, with its sign)
divided by -8, stored in 16 bits; codes are 0 to 15. Q8_0: the scale is the largest magnitude divided by 127; codes are
-127 to 127. As in ``quantize_row_q4_0_ref`` and ``quantize_row_q8_0_ref``, codes are computed with the scale before it
is rounded to 16 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["fake_q4_0", "fake_q8_0", "q4_0", "q8_0"]

BLOCK = 32


def q4_0(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes 0 to 15, ``[blocks, 32]``, and scales in 16 bits, ``[blocks, 1]``."""
    blocks = weight.detach().float().reshape(-1, BLOCK)
    scales = blocks.gather(1, _first_largest(blocks.abs())) / -8
    inverse = torch.where(scales == 0, torch.zeros_like(scales), 1 / scales)
    # Product and sum are rounded one after the other, as in ggml; a fused multiply-add would change some ties.
    codes = (blocks * inverse + 8.5).trunc().clamp(0, 15)
    return codes, scales.half()


def q8_0(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes -127 to 127, ``[blocks, 32]``, and scales in 16 bits, ``[blocks, 1]``."""
    blocks = weight.detach().float().reshape(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    inverse = torch.where(scales == 0, torch.zeros_like(scales), 1 / scales)
    x = blocks * inverse
    # Ties are rounded away from zero, as C's roundf does.
    return x.sign() * (x.abs() + 0.5).floor(), scales.half()


def fake_q4_0(weight: Tensor) -> Tensor:
    """Return the values that a Q4_0 file holds for these weights; gradients pass as if nothing had been rounded."""
    codes, scales = q4_0(weight)
    return _straight_through(weight, codes - 8, scales)


def fake_q8_0(weight: Tensor) -> Tensor:
    """Return the values that a Q8_0 file holds for these weights; gradients pass as if nothing had been rounded."""
    return _straight_through(weight, *q8_0(weight))


def _first_largest(magnitudes: Tensor) -> Tensor:
    """Column of the largest value of each row, ``[rows, 1]``: the first of equals, where ``argmax`` may return any."""
    largest = magnitudes == magnitudes.amax(1, keepdim=True)
    columns = torch.arange(BLOCK, device=magnitudes.device).expand_as(magnitudes)
    return columns.masked_fill(~largest, BLOCK).amin(1, keepdim=True)


def _straight_through(weight: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    values = (codes * scales.float()).view_as(weight).to(weight.dtype)
    # The difference is exactly zero: it changes no bit of the values and only carries the gradient.
    return values + (weight - weight.detach())
