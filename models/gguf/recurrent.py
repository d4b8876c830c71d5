"""Recurrent layers of a GGUF: layers that keep a state instead of keys and values, or besides them.

llama.cpp knows them by their architecture and metadata of many names. Their tensors tell as much: every one of them has
a convolution over the last tokens, or mixes them with those before (RWKV).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod

from edge_spec.models.gguf.header import TensorInfo

__all__ = ["recurrence_of"]

_KEYS = re.compile(r"blk\.(\d+)\.attn_k\.weight")
_FURTHER = re.compile(r"blk\.(\d+)\.nextn\.")
_CONVOLUTIONS = re.compile(r"blk\.(\d+)\.(ssm_conv1d(?:_[qkv])?|shortconv\.conv)\.weight")
_MIXING = re.compile(r"blk\.(\d+)\.time_mix_key\.weight")
_SHIFTED = 2
"""Tokens of which an RWKV layer remembers the input, at most."""

_NUMBER_BYTES = 4


def recurrence_of(
    tensors: Iterable[TensorInfo], n_embd: int, number: Callable[[str, int], int]
) -> tuple[int, frozenset[int]]:
    """Return the recurrent layers that the header describes.

    The sizes are those of ``llama_hparams::n_embd_r`` and ``n_embd_s`` in llama.cpp.

    Args:
        number: a number of the metadata by its key and a default.

    Returns:
        What their states take together, in bytes; and the layers that keep no keys and values: most of these, and those
        for further tokens (MTP), which llama.cpp does not load.
    """
    n_numbers = 0
    without: set[int] = set()
    beside_attention: set[int] = set()
    with_keys: set[int] = set()
    for tensor in tensors:
        if (found := _CONVOLUTIONS.fullmatch(tensor.name)) is not None:
            (beside_attention if found[2] == "ssm_conv1d" else without).add(int(found[1]))
            width, channels = tensor.shape[0], prod(tensor.shape[1:])
            n_numbers += (width - 1) * channels
            if found[2] == "ssm_conv1d":
                n_numbers += number("ssm.state_size", 0) * number("ssm.inner_size", 0)
            elif found[2] == "ssm_conv1d_q":
                n_numbers += number("kda.head_dim", 0) * channels
        elif (found := _MIXING.fullmatch(tensor.name)) is not None:
            without.add(int(found[1]))
            n_numbers += (_SHIFTED + number("wkv.head_size", 0)) * n_embd
        elif (found := _KEYS.fullmatch(tensor.name)) is not None:
            with_keys.add(int(found[1]))
        elif (found := _FURTHER.match(tensor.name)) is not None:
            without.add(int(found[1]))
    without |= beside_attention - with_keys
    return _NUMBER_BYTES * n_numbers, frozenset(without)
