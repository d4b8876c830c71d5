"""Which precision a training computes in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["autocast", "works_in_16_bits"]


def autocast(device: str) -> AbstractContextManager[Any]:
    """16-bit arithmetic where the device has it: on accelerators, and on processors that multiply bfloat16."""
    return torch.autocast(device, torch.bfloat16) if works_in_16_bits(device) else nullcontext()


def works_in_16_bits(device: str) -> bool:
    """Whether the device multiplies bfloat16 faster than 32-bit floats."""
    if device != "cpu":
        return True
    can = torch.cpu.get_capabilities()
    return any(can.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))
