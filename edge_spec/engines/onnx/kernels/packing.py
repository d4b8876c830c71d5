"""From GGUF's blocks to the layout that the kernels read (``src/layout.h``), without rounding anything.

GGUF keeps the blocks of one output together. The kernels work on 16 outputs at once, so here the same numbers are
in groups of 16 outputs, in the order in which they are needed. Only Python packs, and only C reads what is packed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge_spec.errors import SettingsError, UnsupportedModel
from edge_spec.models.gguf.types import TYPES, TensorType

Bytes = npt.NDArray[np.uint8]

VERSION = 1
GROUP = 16
BLOCK = 32
HEADER_BYTES = 64
_MAGIC = b"EDGEROWS"
_HEADER = struct.Struct("<8sIIQQQ24x")
# Rows of GGUF blocks are packed in portions of about this many weights, which take a byte each meanwhile.
_PORTION = 1 << 22


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How a type of GGUF is packed.

    Attributes:
        source: the type in GGUF.
        bits: of a code.
        head_bytes: per unit of 16 outputs x one block of the source.
        subscale_bytes: per 16 outputs x 32 weights.
    """

    source: TensorType
    bits: int
    head_bytes: int
    subscale_bytes: int = 0


_KINDS = {
    "Q4_0": _Kind(source=TYPES["Q4_0"], bits=4, head_bytes=32),
    "Q4_1": _Kind(source=TYPES["Q4_1"], bits=4, head_bytes=64),
    "Q5_0": _Kind(source=TYPES["Q5_0"], bits=5, head_bytes=32),
    "Q5_1": _Kind(source=TYPES["Q5_1"], bits=5, head_bytes=64),
    "Q8_0": _Kind(source=TYPES["Q8_0"], bits=8, head_bytes=32),
    "Q4_K": _Kind(source=TYPES["Q4_K"], bits=4, head_bytes=64, subscale_bytes=32),
    "Q5_K": _Kind(source=TYPES["Q5_K"], bits=5, head_bytes=64, subscale_bytes=32),
    "Q6_K": _Kind(source=TYPES["Q6_K"], bits=6, head_bytes=32, subscale_bytes=32),
}
KINDS = tuple(_KINDS)
"""The names of the types that can be packed, as GGUF names them."""


def _unit_bytes(kind: _Kind) -> int:
    return kind.head_bytes + kind.source.block // BLOCK * (kind.subscale_bytes + 64 * kind.bits)


def packed_bytes(kind: str, n_out: int, n_in: int) -> int:
    """Bytes of the packed weights of a matrix, header included.

    Raises:
        UnsupportedModel: no kernel for this kind.
        SettingsError: a shape that cannot be packed.
    """
    known = _kind(kind)
    if n_out < 1 or n_in < 1 or n_in % known.source.block:
        hint = f"a block has {known.source.block} inputs"
        raise SettingsError(f"{kind} weights cannot be {n_out} x {n_in}", hint=hint)
    return HEADER_BYTES + -(-n_out // GROUP) * (n_in // known.source.block) * _unit_bytes(known)


def pack(blocks: Bytes, kind: str) -> Bytes:
    """A matrix in GGUF's blocks, packed for the kernels; every weight keeps its value.

    Args:
        blocks: uint8 ``[n_out, bytes per row]``, as ``gguf.GGUFReader`` gives a tensor's data. May be mapped
            from disk: it is read once, in portions.
        kind: one of ``KINDS``.

    Returns:
        uint8 ``[packed_bytes(kind, n_out, n_in)]``.

    Raises:
        UnsupportedModel: no kernel for this kind.
        SettingsError: rows that are not a whole number of blocks.
    """
    known = _kind(kind)
    if blocks.ndim != 2 or blocks.dtype != np.uint8 or blocks.shape[1] % known.source.block_bytes:
        raise SettingsError(
            f"{kind} blocks are {blocks.dtype} {list(blocks.shape)}",
            hint=f"they should be uint8 [n_out, n * {known.source.block_bytes}]",
        )
    n_out, n_units = blocks.shape[0], blocks.shape[1] // known.source.block_bytes
    n_in = n_units * known.source.block
    packed = np.empty(packed_bytes(kind, n_out, n_in), np.uint8)
    packed[:HEADER_BYTES] = np.frombuffer(
        _HEADER.pack(_MAGIC, VERSION, known.source.number, n_out, n_in, packed.nbytes), np.uint8
    )
    groups = packed[HEADER_BYTES:].reshape(-1, n_units, _unit_bytes(known))
    step = max(1, _PORTION // (GROUP * n_in))
    for start in range(0, len(groups), step):
        portion = blocks[start * GROUP : (start + step) * GROUP].reshape(-1, n_units, known.source.block_bytes)
        missing = -len(portion) % GROUP
        if missing:  # zero bytes are zero scales
            portion = np.concatenate([portion, np.zeros((missing, n_units, known.source.block_bytes), np.uint8)])
        _pack_portion(portion, kind, groups[start : start + step])
    return packed


def _kind(name: str) -> _Kind:
    if name not in _KINDS:
        hint = f"there are kernels for {', '.join(KINDS)}"
        raise UnsupportedModel(f"there is no kernel for {name} weights", hint=hint)
    return _KINDS[name]


def _pack_portion(portion: Bytes, kind: str, groups: Bytes) -> None:
    """portion: [outputs, units, GGUF's bytes]; groups: [groups, units, our bytes], written."""
    known = _KINDS[kind]
    head, subscales, codes = _DECODERS[kind](portion)
    n_groups, n_units = groups.shape[:2]

    def grouped(parts: Bytes) -> Bytes:
        """[outputs, units, blocks, parts, bytes] -> [groups, units, blocks, parts, 16 outputs, bytes]"""
        return parts.reshape(n_groups, GROUP, *parts.shape[1:]).transpose(0, 2, 3, 4, 1, 5)

    heads = grouped(head[:, :, None]).reshape(n_groups, n_units, -1)
    groups[:, :, : known.head_bytes] = heads
    blocks = groups[:, :, known.head_bytes :].reshape(n_groups, n_units, known.source.block // BLOCK, -1)
    assert np.shares_memory(blocks, groups)
    if subscales is not None:
        blocks[..., : known.subscale_bytes] = grouped(subscales[..., None]).reshape(*blocks.shape[:3], -1)
    quads = grouped(codes.reshape(*codes.shape[:2], -1, 8, 4)).reshape(*blocks.shape[:3], 8, 64)
    blocks[..., known.subscale_bytes :] = _join(quads, known.bits).reshape(*blocks.shape[:3], -1)


def _join(quads: Bytes, bits: int) -> Bytes:
    """[..., 8 quads, 64 lanes] of codes -> [..., bits, 64] as stored."""
    if bits == 8:
        return quads
    planes = [(quads[..., 0::2, :] & 15) | (quads[..., 1::2, :] << 4)]
    if bits == 5:
        shifts = np.arange(8, dtype=np.uint8)[:, None]
        planes.append(np.bitwise_or.reduce((quads >> 4) << shifts, axis=-2)[..., None, :])
    if bits == 6:
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        high = (quads >> 4).reshape(*quads.shape[:-2], 2, 4, 64)
        planes.append(np.bitwise_or.reduce(high << shifts, axis=-2))
    return np.concatenate(planes, axis=-2)


# Decoders take [outputs, units, bytes] and give
#     head       [outputs, units, 1 or 2, 2]   d and the minimum's factor, f16 as bytes
#     subscales  [outputs, units, 8, 2] or None
#     codes      [outputs, units, weights]
_Parts = tuple[Bytes, Bytes | None, Bytes]


def _f16(blocks: Bytes, *starts: int) -> Bytes:
    return np.stack([blocks[..., start : start + 2] for start in starts], axis=-2)


def _nibbles(codes: Bytes) -> Bytes:
    """The low 4 bits of all bytes, then the high 4 bits."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    bits = np.unpackbits(np.ascontiguousarray(blocks[..., start : start + 4]), axis=-1, bitorder="little")
    return bits << np.uint8(4)


def _q4_0(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0), None, _nibbles(blocks[..., 2:])


def _q4_1(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0, 2), None, _nibbles(blocks[..., 4:])


def _q5_0(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0), None, _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)


def _q5_1(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0, 2), None, _nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4)


def _q8_0(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0), None, blocks[..., 2:] ^ np.uint8(128)


def _k_subscales(packed: Bytes) -> Bytes:
    """12 bytes with eight 6-bit scales and eight 6-bit minima -> [..., 8, 2]."""
    low, middle, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=-1)
    return np.stack([scales, minima], axis=-1)


def _k_codes(codes: Bytes) -> Bytes:
    """128 bytes: each 32 hold 32 weights in their low 4 bits and the next 32 in their high 4 bits."""
    return _nibbles(codes.reshape(*codes.shape[:-1], 4, 32)).reshape(*codes.shape[:-1], 256)


def _q4_k(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0, 2), _k_subscales(blocks[..., 4:16]), _k_codes(blocks[..., 16:])


def _q5_k(blocks: Bytes) -> _Parts:
    fifth = blocks[..., 16:48, None].swapaxes(-1, -2) >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    codes = _k_codes(blocks[..., 48:]) | (fifth << np.uint8(4)).reshape(*blocks.shape[:-1], 256)
    return _f16(blocks, 0, 2), _k_subscales(blocks[..., 4:16]), codes


def _q6_k(blocks: Bytes) -> _Parts:
    shape = blocks.shape[:-1]
    low = _nibbles(blocks[..., :128].reshape(*shape, 2, 64))  # of each half: 64 low, 64 high
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> shifts & np.uint8(3)
    codes = low | (high << np.uint8(4)).reshape(*shape, 2, 128)
    return _f16(blocks, 208), blocks[..., 192:208].reshape(*shape, 8, 2), codes.reshape(*shape, 256)


_DECODERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
