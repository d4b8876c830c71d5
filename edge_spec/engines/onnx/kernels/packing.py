"""From GGUF's blocks to the layout that the kernels read (``src/layout.h``), without rounding anything.

GGUF keeps the blocks of one output together. The kernels work on 16 outputs at once, so here the same numbers are
in groups of 16 outputs, in the order in which they are needed. Only Python packs, and only C reads what is packed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edge_spec.engines.onnx.kernels.shared import FLOATS, NUMBERS, PACKED_KINDS, PackedKind
from edge_spec.errors import SettingsError, UnsupportedModel
from edge_spec.models.gguf.types import TYPES, TensorType

Bytes = npt.NDArray[np.uint8]

VERSION, GROUP, HEADER_BYTES = NUMBERS["VERSION"], NUMBERS["GROUP"], NUMBERS["HEADER_BYTES"]
_MAGIC = b"EDGEROWS"
_HEADER = struct.Struct("<8sIIQQQ24x")


# Decoders take [outputs, units, bytes] and give
#     head       [outputs, units, 1 or 2, 2]   d and the minimum's factor, as bytes
#     subscales  [outputs, units, 8, 1 or 2] or None
#     codes      [outputs, units, weights]
_Parts = tuple[Bytes, Bytes | None, Bytes]


def _f16(blocks: Bytes, *starts: int) -> Bytes:
    return np.stack([blocks[..., start : start + 2] for start in starts], axis=-2)


def _nibbles(codes: Bytes) -> Bytes:
    """Return the low 4 bits of all bytes, then the high 4 bits."""
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


def _iq4_nl(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0), None, _nibbles(blocks[..., 2:])


def _iq4_xs(blocks: Bytes) -> _Parts:
    low = np.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], axis=-1).reshape(*blocks.shape[:-1], 8)
    bits = np.ascontiguousarray(blocks[..., 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = low | (bits & 3).astype(np.uint8) << np.uint8(4)
    codes = _nibbles(blocks[..., 8:].reshape(*blocks.shape[:-1], 8, 16)).reshape(*blocks.shape[:-1], 256)
    return _f16(blocks, 0), (scales - np.uint8(32))[..., None], codes


def _mxfp4(blocks: Bytes) -> _Parts:
    # 2 ** (exponent - 128); the lowest two are denormal.
    exponents = blocks[..., :1].astype(np.uint32)
    scales = np.where(exponents < 2, np.uint32(1 << 21) << np.minimum(exponents, 2), (exponents - 1) << 23)
    return (scales >> 16).astype("<u2").view(np.uint8)[..., None, :], None, _nibbles(blocks[..., 1:])


def _two_bits(codes: Bytes) -> Bytes:
    """64 bytes: each 32 hold 4 times 32 weights, two bits of each."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    quarters = codes.reshape(*codes.shape[:-1], 2, 1, 32) >> shifts & np.uint8(3)
    return quarters.reshape(*codes.shape[:-1], 256)


def _q2_k(blocks: Bytes) -> _Parts:
    scales = blocks[..., :16].reshape(*blocks.shape[:-1], 8, 2)
    return _f16(blocks, 80, 82), scales, _two_bits(blocks[..., 16:80])


def _q3_k(blocks: Bytes) -> _Parts:
    third = blocks[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    codes = _two_bits(blocks[..., 32:96]) | (third << np.uint8(2)).reshape(*blocks.shape[:-1], 256)
    low, high = _nibbles(blocks[..., 96:104]), blocks[..., 104:108]
    top = high[..., None, :] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & np.uint8(3)
    scales = (low | (top << np.uint8(4)).reshape(*blocks.shape[:-1], 16)) - np.uint8(32)
    return _f16(blocks, 108), scales.reshape(*blocks.shape[:-1], 8, 2), codes


def _trits(packed: Bytes, n: int) -> Bytes:
    """Bytes that are fractions of 256, each the first ``n`` digits of it to the base of three: [..., n, bytes]."""
    shifted = packed[..., None, :] * 3 ** np.arange(n, dtype=np.uint8)[:, None]
    return (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8)


def _tq1_0(blocks: Bytes) -> _Parts:
    parts = (_trits(blocks[..., :32], 5), _trits(blocks[..., 32:48], 5), _trits(blocks[..., 48:52], 4))
    return _f16(blocks, 52), None, np.concatenate([part.reshape(*blocks.shape[:-1], -1) for part in parts], axis=-1)


def _tq2_0(blocks: Bytes) -> _Parts:
    return _f16(blocks, 64), None, _two_bits(blocks[..., :64])


def _q1_0(blocks: Bytes) -> _Parts:
    return _f16(blocks, 0), None, np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little")


def _q2_0(blocks: Bytes) -> _Parts:
    codes = blocks[..., 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return _f16(blocks, 0), None, codes.reshape(*blocks.shape[:-1], 64)


_DECODERS: dict[str, Callable[[Bytes], _Parts]] = {
    function.__name__[1:].upper(): function
    for function in (
        *(_q4_0, _q4_1, _q5_0, _q5_1, _q8_0, _q2_k, _q3_k, _q4_k, _q5_k, _q6_k),
        *(_iq4_nl, _iq4_xs, _mxfp4, _tq1_0, _tq2_0, _q1_0, _q2_0),
    )
}
"""They take the blocks of a type apart; floats only change places."""

_STORED_AS = {"TQ1_0": "TQ2_0"}
"""Types that are packed like another one: what digits to the base of three save in memory, taking them apart costs."""

KINDS = (*FLOATS, *_DECODERS)
"""The names of the types that can be packed, as GGUF names them."""


def packed_bytes(kind: str, n_out: int, n_in: int) -> int:
    """Return bytes of the packed weights of a matrix, header included.

    Raises:
        UnsupportedModel: no kernel for this kind.
        SettingsError: a shape that cannot be packed.
    """
    source, packed = _kind(kind)
    if n_out < 1 or n_in < 1 or n_in % source.block:
        hint = f"a block has {source.block} inputs"
        raise SettingsError(f"{kind} weights cannot be {n_out} x {n_in}", hint=hint)
    return HEADER_BYTES + -(-n_out // GROUP) * (n_in // source.block) * packed.unit_bytes


def pack(blocks: Bytes, kind: str, *, portion: int = 1 << 22) -> Bytes:
    """Return a matrix in GGUF's blocks, packed for the kernels; every weight keeps its value.

    Args:
        blocks: uint8 ``[n_out, bytes per row]``, as ``gguf.GGUFReader`` gives a tensor's data. May be mapped
            from disk: it is read once, in portions.
        kind: one of ``KINDS``.
        portion: about so many weights are packed at a time, which take a byte each meanwhile.

    Returns:
        uint8 ``[packed_bytes(kind, n_out, n_in)]``.

    Raises:
        UnsupportedModel: no kernel for this kind.
        SettingsError: rows that are not a whole number of blocks.
    """
    source, stored = _kind(kind)
    if blocks.ndim != 2 or blocks.dtype != np.uint8 or blocks.shape[1] % source.block_bytes:
        raise SettingsError(
            f"{kind} blocks are {blocks.dtype} {list(blocks.shape)}",
            hint=f"they should be uint8 [n_out, n * {source.block_bytes}]",
        )
    n_out, n_units = blocks.shape[0], blocks.shape[1] // source.block_bytes
    n_in = n_units * source.block
    packed = np.empty(packed_bytes(kind, n_out, n_in), np.uint8)
    packed[:HEADER_BYTES] = np.frombuffer(
        _HEADER.pack(_MAGIC, VERSION, TYPES[_STORED_AS.get(kind, kind)].number, n_out, n_in, packed.nbytes), np.uint8
    )
    groups = packed[HEADER_BYTES:].reshape(-1, n_units, stored.unit_bytes)
    step = max(1, portion // (GROUP * n_in))
    for start in range(0, len(groups), step):
        some = blocks[start * GROUP : (start + step) * GROUP].reshape(-1, n_units, source.block_bytes)
        missing = -len(some) % GROUP
        if missing:  # zero bytes are zero scales
            some = np.concatenate([some, np.zeros((missing, n_units, source.block_bytes), np.uint8)])
        _pack_portion(some, kind, groups[start : start + step])
    return packed


def _kind(name: str) -> tuple[TensorType, PackedKind]:
    if name not in KINDS:
        hint = f"there are kernels for {', '.join(KINDS)}"
        raise UnsupportedModel(f"there is no kernel for {name} weights", hint=hint)
    return TYPES[name], PACKED_KINDS[_STORED_AS.get(name, name)]


def _pack_portion(portion: Bytes, kind: str, groups: Bytes) -> None:
    """portion: [outputs, units, GGUF's bytes]; groups: [groups, units, our bytes], written."""
    stored = _kind(kind)[1]
    n_groups, n_units = groups.shape[:2]
    if stored.is_float:
        groups[:] = portion.reshape(n_groups, GROUP, n_units, -1).swapaxes(1, 2).reshape(groups.shape)
        return
    head, subscales, codes = _DECODERS[kind](portion)

    def grouped(parts: Bytes) -> Bytes:
        """[outputs, units, blocks, parts, bytes] -> [groups, units, blocks, parts, 16 outputs, bytes]"""
        return parts.reshape(n_groups, GROUP, *parts.shape[1:]).transpose(0, 2, 3, 4, 1, 5)

    heads = grouped(head[:, :, None]).reshape(n_groups, n_units, -1)
    groups[:, :, : stored.head_bytes] = heads
    blocks = groups[:, :, stored.head_bytes :].reshape(n_groups, n_units, stored.n_blocks, -1)
    assert np.shares_memory(blocks, groups)
    if subscales is not None:
        blocks[..., : stored.subscale_bytes] = grouped(subscales[..., None]).reshape(*blocks.shape[:3], -1)
    quads = grouped(codes.reshape(*codes.shape[:2], -1, 8, 4)).reshape(*blocks.shape[:3], 8, 64)
    blocks[..., stored.subscale_bytes :] = _join(quads, stored.bits).reshape(*blocks.shape[:3], -1)


def _join(quads: Bytes, bits: int) -> Bytes:
    """[..., 8 quads, 64 lanes] of codes -> [..., bits, 64] as stored."""
    low = 1 << bits.bit_length() - 1
    parts = [_merge(quads, low)] + ([_merge(quads >> np.uint8(low), bits - low)] if bits > low else [])
    return np.concatenate(parts, axis=-2)


def _merge(quads: Bytes, bits: int) -> Bytes:
    """[..., 8 quads, 64 lanes] -> [..., bits, 64]: so many bits of each, several quads in a byte."""
    some = (quads & np.uint8((1 << bits) - 1)).reshape(*quads.shape[:-2], bits, 8 // bits, 64)
    merged: Bytes = np.bitwise_or.reduce(some << np.arange(0, 8, bits, dtype=np.uint8)[:, None], axis=-2)
    return merged
