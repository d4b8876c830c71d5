"""Which precision a training computes in."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["autocast", "device_of", "works_in_16_bits"]


def device_of(name: str, threads: int | None) -> str:
    """PyTorch's name of the device to train on, prepared to give the same weights every time.

    Args:
        name: ``auto`` for an accelerator if there is one, else the processor.
        threads: of PyTorch; its own choice if None.
    """
    # Read when the library of matrix products starts; without it these may differ from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    # Sums in the same order every time; operations that cannot promise it warn.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    return name


def autocast(device: str) -> AbstractContextManager[Any]:
    """16-bit arithmetic where the device has it: on accelerators, and on processors that multiply bfloat16."""
    return torch.autocast(device, torch.bfloat16) if works_in_16_bits(device) else nullcontext()


def works_in_16_bits(device: str) -> bool:
    """Return whether the device multiplies bfloat16 faster than 32-bit floats."""
    if device != "cpu":
        return True
    can = torch.cpu.get_capabilities()
    return any(can.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))
