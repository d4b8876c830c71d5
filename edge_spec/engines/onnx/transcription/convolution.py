"""Short convolutions in a graph: layers of LFM2, which mix a few neighbors channel by channel, between two gates.

See ``edge_spec/engines/onnx/kernels/src/convolution.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from edge_spec.engines.onnx.kernels import CONVOLVE_ROWS, DOMAIN, NUMBERS
from edge_spec.engines.onnx.transcription.architecture import llama_only
from edge_spec.engines.onnx.transcription.recurrent import (
    RUN,
    Parts,
    Shape,
    State,
    add_convolution_weights,
    whole_number,
)
from edge_spec.models.gguf.header import GGUFArray, GGUFHeader
from edge_spec.models.model_file import ModelFile

__all__ = ["ShortConvolution"]

_CHANNELS = NUMBERS["CHANNELS"]
"""Channels that are convolved together."""


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """See ``RecurrentLayer``.

    Attributes:
        n_taps: over how many tokens it reaches.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("shortconv.l_cache",)

    n_embd: int
    n_taps: int

    @classmethod
    def read(cls, file: ModelFile, header: GGUFHeader, *, epsilon: float) -> Self:
        if file.n_embd % _CHANNELS:
            raise llama_only(file, f"has convolutions of {file.n_embd} channels, not a multiple of {_CHANNELS}")
        told = header.metadata.get(f"{file.architecture}.attention.head_count_kv")
        if not isinstance(told, GGUFArray) or tuple(told.decode()) != file.n_head_kv:
            raise llama_only(file, "has other recurrent layers than it says")
        return cls(n_embd=file.n_embd, n_taps=whole_number(file, header, "shortconv.l_cache", 64))

    def shapes(self) -> dict[str, Shape]:
        return {
            "attn_norm.weight": (self.n_embd,),
            "shortconv.in_proj.weight": (self.n_embd, 3 * self.n_embd),
            "shortconv.conv.weight": (self.n_taps, self.n_embd),
            "shortconv.out_proj.weight": (self.n_embd, self.n_embd),
        }

    def states(self) -> list[State]:
        return [State(shape=(self.n_taps - 1, self.n_embd), keeps=True)]

    def add(self, parts: Parts, layer: int, number: int, x: str) -> str:
        blk = f"blk.{layer}.shortconv."
        (mixed,) = parts.products(x, [f"{blk}in_proj"], f"{blk}in")
        weights = add_convolution_weights(parts, f"{blk}conv.weight")
        parts.graph.node(CONVOLVE_ROWS, [mixed, weights, RUN], [f"{blk}convolved"], DOMAIN, number=number)
        (out,) = parts.products(f"{blk}convolved", [f"{blk}out_proj"], f"{blk}out")
        return out
