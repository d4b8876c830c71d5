"""What a head says of itself and of the model that it reads, in whichever file it is.

llama.cpp's keys and names are used for all files of EAGLE-3 heads (``src/models/eagle3.cpp``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge_spec.models.gguf.header import GGUFArray, TensorInfo, Value

__all__ = [
    *("D2T", "EAGLE3", "HALF_APART", "NORM_BEFORE_FC", "NORM_BEFORE_RESIDUAL", "NORM_OUTPUT", "OFFSETS"),
    *("HeadFacts", "head_facts", "listed_layers"),
]

EAGLE3 = "eagle3"

D2T = "d2t"
"""The tensor that says which of the target's tokens each of the head's is."""

NORM_BEFORE_FC, NORM_BEFORE_RESIDUAL, NORM_OUTPUT = "norm_before_fc", "norm_before_residual", "norm_output"
HALF_APART, OFFSETS = "half_apart", "offsets"
"""Keys that stand for what only files of other kinds can be."""

_TARGET_LAYERS, _TARGET_WIDTH = "target_layers", "target_hidden_size"
_MOST_LAYERS = 64


@dataclass(frozen=True, kw_only=True)
class HeadFacts:
    """A head: EAGLE-3, or a layer for further tokens (MTP, see ``mtp.py``).

    Attributes:
        layers: numbers of the target's layers whose input it reads, the number of all for what goes out of the last
            one; None where a file need not say, and means the layers that the method's authors read.
        width: of the target's hidden states.
        n_rows: tokens that it may draft.
        norm_before_fc: what it reads is normalized, all layers together.
        norm_before_residual: its layer adds to the normalized feature, not to the feature.
        norm_output: its next feature is the normalized output.
        half_apart: rotary embeddings turn numbers half a head apart, else neighbors.
        offsets: ``D2T`` holds what is to be added to each number, else the target's ids themselves.
        is_mtp: it is a layer like the target's own, and reads the normalized row after the last one of these.
    """

    layers: tuple[int, ...] | None
    width: int
    n_rows: int
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    half_apart: bool = False
    offsets: bool = False
    is_mtp: bool = False

    def layers_of(self, n_layers: int) -> tuple[int, ...]:
        """Return the layers that it reads of a target with so many; empty if it names others, or none."""
        layers = (2, n_layers // 2, n_layers - 3) if self.layers is None else self.layers
        return layers if all(0 < layer <= n_layers for layer in layers) else ()


def head_facts(
    metadata: Mapping[str, Value], tensors: Sequence[TensorInfo], n_vocab: int, *, layers: tuple[int, ...] | None
) -> HeadFacts:
    """Return the facts of an EAGLE-3 head.

    Args:
        n_vocab: tokens of its target, or of its own list of them.
        layers: see ``HeadFacts``.
    """

    def flag(name: str) -> bool:
        return metadata.get(f"{EAGLE3}.{name}") is True

    rows = {tensor.name: tensor.shape[-1] for tensor in tensors if tensor.name in (D2T, "output.weight")}
    width = metadata.get(f"{EAGLE3}.{_TARGET_WIDTH}", metadata.get(f"{EAGLE3}.embedding_length", 0))
    return HeadFacts(
        layers=layers,
        width=width if type(width) is int else 0,
        n_rows=rows.get(D2T, rows.get("output.weight", n_vocab)),
        norm_before_fc=flag(NORM_BEFORE_FC),
        norm_before_residual=flag(NORM_BEFORE_RESIDUAL),
        norm_output=flag(NORM_OUTPUT),
        half_apart=flag(HALF_APART),
        offsets=flag(OFFSETS),
    )


def listed_layers(metadata: Mapping[str, Value]) -> tuple[int, ...]:
    """Return the layers that a GGUF lists; empty if it lists none."""
    listed = metadata.get(f"{EAGLE3}.{_TARGET_LAYERS}")
    if not isinstance(listed, GGUFArray) or not 0 < listed.length <= _MOST_LAYERS:
        return ()
    # Numbers that are none are no layers of any target.
    return tuple(number if type(number) is int else -1 for number in listed.decode())
