"""Gated delta nets in a graph: layers of Qwen3.5, whose heads each have a matrix that every token corrects.

See ``edge_spec/engines/onnx/kernels/src/delta.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from edge_spec.engines.onnx.kernels import DELTA_ROWS, DOMAIN, NUMBERS
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

__all__ = ["DeltaNet"]

_COLUMNS = NUMBERS["COLUMNS"]
"""Columns of a state that lie side by side."""

_MOST = NUMBERS["MAX_STATE_SIZE"]
"""Numbers of a head that the operator has room for."""


@dataclass(frozen=True, kw_only=True)
class DeltaNet:
    """See ``RecurrentLayer``.

    Attributes:
        n_taps: over how many tokens the convolution before it reaches.
        n_head, n_head_k: heads of values, and of queries and keys.
        size: width of a head.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = (
        *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count"),
        *("full_attention_interval", "attention.recurrent_layers"),
    )

    n_embd: int
    n_taps: int
    n_head: int
    n_head_k: int
    size: int
    epsilon: float

    @classmethod
    def read(cls, file: ModelFile, header: GGUFHeader, *, epsilon: float) -> Self:
        n_head, n_head_k, size, n_inner, n_taps = (
            whole_number(file, header, f"ssm.{key}", most)
            for key, most in (
                *(("time_step_rank", 1 << 16), ("group_count", 1 << 16), ("state_size", 1 << 16)),
                *(("inner_size", 1 << 31), ("conv_kernel", 64)),
            )
        )
        if n_head * size != n_inner or n_head % n_head_k or size % _COLUMNS or size > _MOST:
            raise llama_only(file, f"has {n_head} on {n_head_k} delta heads of {size} numbers, {n_inner} in all")
        if _recurrent_layers(file, header) != [n == 0 for n in file.n_head_kv]:
            raise llama_only(file, "has other recurrent layers than it says")
        return cls(
            n_embd=file.n_embd,
            n_taps=n_taps,
            n_head=n_head,
            n_head_k=n_head_k,
            size=size,
            epsilon=epsilon,
        )

    @property
    def n_channels(self) -> int:
        """Channels that are convolved."""
        return (2 * self.n_head_k + self.n_head) * self.size

    def shapes(self) -> dict[str, Shape]:
        n_out = self.n_head * self.size
        return {
            "attn_norm.weight": (self.n_embd,),
            "attn_qkv.weight": (self.n_embd, self.n_channels),
            "attn_gate.weight": (self.n_embd, n_out),
            "ssm_conv1d.weight": (self.n_taps, self.n_channels),
            "ssm_dt.bias": (self.n_head,),
            "ssm_a": (self.n_head,),
            "ssm_alpha.weight": (self.n_embd, self.n_head),
            "ssm_beta.weight": (self.n_embd, self.n_head),
            "ssm_norm.weight": (self.size,),
            "ssm_out.weight": (n_out, self.n_embd),
        }

    def states(self) -> list[State]:
        heads = (self.n_head, self.size // _COLUMNS, self.size, _COLUMNS)
        return [
            State(shape=(self.n_taps - 1, self.n_channels), keeps=True),
            State(shape=(0, 2 * self.n_head), keeps=True),
            State(shape=heads, keeps=False),
        ]

    def add(self, parts: Parts, layer: int, number: int, x: str) -> str:
        blk, graph = f"blk.{layer}.", parts.graph
        (mixed,), (z,), scores = (
            parts.products(x, [blk + name for name in names], f"{blk}{names[0]}.y")
            for names in (("attn_qkv",), ("attn_gate",), ("ssm_alpha", "ssm_beta"))
        )
        if len(scores) > 1:
            graph.node("Concat", scores, [f"{blk}scores"], axis=-1)
            scores = [f"{blk}scores"]
        graph.node(
            DELTA_ROWS,
            [
                *(mixed, z, *scores),
                add_convolution_weights(parts, f"{blk}ssm_conv1d.weight"),
                *(parts.vector(blk + name) for name in ("ssm_dt.bias", "ssm_a", "ssm_norm.weight")),
                RUN,
            ],
            [f"{blk}delta"],
            DOMAIN,
            number=number,
            n_head_k=self.n_head_k,
            epsilon=self.epsilon,
        )
        (out,) = parts.products(f"{blk}delta", [f"{blk}ssm_out"], f"{blk}delta_out")
        return out


def _recurrent_layers(file: ModelFile, header: GGUFHeader) -> list[bool]:
    """Return for each layer whether the metadata call it recurrent; layers for further tokens count as recurrent."""
    n_further = whole_number(file, header, "nextn_predict_layers", file.n_layers - 1, least=0, default=0)
    told = header.metadata.get(f"{file.architecture}.attention.recurrent_layers")
    if isinstance(told, GGUFArray) and told.length == file.n_layers:
        flags = [bool(flag) for flag in told.decode()]
    else:
        every = whole_number(file, header, "full_attention_interval", 1 << 31, default=4)
        flags = [layer % every != every - 1 for layer in range(file.n_layers)]
    return [flag or layer >= file.n_layers - n_further for layer, flag in enumerate(flags)]
