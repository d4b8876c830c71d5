"""Kernels: every variant gives the reference's bits, and the reference gives the product."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_calls import Refused, matmul_rows, shape_of, weights

import edge_spec.engines.onnx.kernels as kernels
from edge_spec.engines.onnx.kernels import library
from edge_spec.errors import BackendError, SettingsError, UnsupportedModel
from edge_spec.models.gguf.types import TYPES, TYPES_BY_NUMBER

needs_kernels = pytest.mark.skipif(kernels.available() is not None, reason=str(kernels.available()))
VARIANTS = kernels.features() if kernels.available() is None else ()
QUIET_NAN = 0x7FC00000
FLOATS = kernels.FLOATS


def sane_blocks(kind: str, n_out: int, n_in: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random codes under small finite scales, or random floats."""
    if kind in FLOATS:
        values = rng.standard_normal((n_out, n_in)).astype(np.float32) * np.float32(0.05)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)
    n_units = n_in // TYPES[kind].block
    blocks = rng.integers(0, 256, (n_out, n_units, TYPES[kind].block_bytes), dtype=np.uint8)
    scales = (rng.random((n_out, n_units, 2)) * 0.01).astype(np.float16).view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(115, 123, blocks.shape[:2], dtype=np.uint8)
    else:
        n = 4 if kind in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else 2
        start = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64}.get(kind, 0)
        blocks[..., start : start + n] = scales[..., :n]
    return blocks.reshape(n_out, -1)


def values_of(blocks: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[np.float32]:
    if kind in ("Q1_0", "Q2_0"):  # gguf knows no more than the size of their blocks
        units = blocks.reshape(len(blocks), -1, TYPES[kind].block_bytes)
        bits = np.unpackbits(units[..., 2:], axis=-1, bitorder="little").astype(np.float32)
        codes = 2 * bits if kind == "Q1_0" else bits[..., 0::2] + 2 * bits[..., 1::2]
        return (units[..., :2].view(np.float16).astype(np.float32) * (codes - 1)).reshape(len(blocks), -1)
    stored = blocks.view({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind]), np.float32)


def same_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    return a.shape == b.shape and bool((a.view(np.uint32) == b.view(np.uint32)).all())


def activations(n_rows: int, n_in: int, flavour: str, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    x = rng.standard_normal((n_rows, n_in)).astype(np.float32)
    if flavour == "zero":
        return np.zeros_like(x)
    if flavour == "sparse":
        return np.where(rng.random(x.shape) < 0.02, x, np.float32(0))
    if flavour == "denormal":
        return x * np.float32(1e-41)
    if flavour == "huge":
        return np.clip(x, -3, 3) * np.float32(1.1e38)
    if flavour == "spread":
        return (x * 10.0 ** rng.integers(-30, 30, x.shape)).astype(np.float32)
    if flavour == "bits":
        return rng.integers(0, 1 << 32, x.shape, dtype=np.uint32).view(np.float32)
    return x


FLAVOURS = ("plain", "zero", "sparse", "denormal", "huge", "spread", "bits")


@pytest.mark.long
@needs_kernels
@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(kernels.KINDS),
    n_out=st.integers(1, 70),
    n_units=st.integers(1, 20),
    n_rows=st.one_of(st.integers(1, 17), st.just(100)),
    flavour=st.sampled_from(FLAVOURS),
    any_scales=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_every_variant_gives_the_bits_of_the_reference(
    kind: str, n_out: int, n_units: int, n_rows: int, flavour: str, any_scales: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    block = TYPES[kind].block
    n_in = 29 * n_units if block == 1 else block * -(-32 * n_units // block)
    blocks = sane_blocks(kind, n_out, n_in, rng)
    if any_scales:  # NaN, infinite, denormal and negative ones among them
        blocks = rng.integers(0, 256, blocks.shape, dtype=np.uint8)
    packed = kernels.pack(blocks, kind)
    x = activations(n_rows, n_in, flavour, rng)
    expected = matmul_rows(packed, x, variant="reference")
    for variant in VARIANTS:
        assert same_bits(matmul_rows(packed, x, variant=variant), expected), variant
    assert (expected.view(np.uint32)[np.isnan(expected)] == QUIET_NAN).all()


@pytest.mark.long
@needs_kernels
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_XS", "TQ2_0", "Q1_0", *FLOATS])
def test_inputs_split_between_passes_give_the_bits_of_the_reference(variant: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    packed = kernels.pack(sane_blocks(kind, 40, 8192 + 256, rng), kind)
    x = activations(16, 8192 + 256, "plain", rng)
    for n_rows in (1, 2, 5, 16):
        expected = matmul_rows(packed, x[:n_rows], variant="reference")
        assert same_bits(matmul_rows(packed, x[:n_rows], variant=variant), expected)


@pytest.mark.long
@needs_kernels
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", kernels.KINDS)
def test_a_row_does_not_depend_on_the_other_rows_of_its_decode(kind: str, variant: str) -> None:
    rng = np.random.default_rng(4)
    n_in = 2311 if kind in FLOATS else 2304
    packed = kernels.pack(sane_blocks(kind, 37, n_in, rng), kind)
    x = activations(100, n_in, "plain", rng)
    together = matmul_rows(packed, x, variant=variant)
    for width in (1, 2, 3, 7, 8, 16, 17, 33):
        for start in (0, 41):
            alone = matmul_rows(packed, x[start : start + width], variant=variant)
            assert same_bits(alone, together[start : start + width])


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", *FLOATS])
def test_threads_that_share_the_groups_give_the_same_bits(kind: str) -> None:
    rng = np.random.default_rng(5)
    packed = kernels.pack(sane_blocks(kind, 100, 512, rng), kind)
    x = activations(5, 512, "plain", rng)
    parts = np.full((5, 100), np.float32(-1))
    for groups in (range(0, 3), range(3, 4), range(4, 7), range(7, 7)):
        matmul_rows(packed, x, groups=groups, out=parts)
    assert same_bits(parts, matmul_rows(packed, x))


@needs_kernels
@pytest.mark.parametrize("kind", kernels.KINDS)
def test_packing_changes_no_weight(kind: str) -> None:
    rng = np.random.default_rng(6)
    block = TYPES[kind].block
    for n_out in (1, 16, 50):
        blocks = sane_blocks(kind, n_out, 3 * block, rng)
        packed = kernels.pack(blocks, kind)
        assert packed.nbytes == kernels.packed_bytes(kind, n_out, 3 * block)
        assert shape_of(packed) == (n_out, 3 * block)
        assert same_bits(weights(packed), values_of(blocks, kind))
    assert same_bits(weights(packed, range(17, 40)), values_of(blocks, kind)[17:40])


@needs_kernels
def test_every_exponent_of_mxfp4_keeps_its_value() -> None:
    blocks = np.zeros((256, 17), np.uint8)
    blocks[:, 0] = np.arange(256)
    blocks[:, 1:] = np.arange(0, 256, 16) + np.arange(16)
    assert same_bits(weights(kernels.pack(blocks, "MXFP4")), values_of(blocks, "MXFP4"))


@needs_kernels
@pytest.mark.parametrize("kind", kernels.KINDS)
def test_packing_in_portions_is_packing(kind: str) -> None:
    blocks = sane_blocks(kind, 100, 512, np.random.default_rng(7))
    assert (kernels.pack(blocks, kind, portion=1) == kernels.pack(blocks, kind)).all()


@needs_kernels
@pytest.mark.parametrize("flavour", ["plain", "sparse", "zero"])
@pytest.mark.parametrize("kind", kernels.KINDS)
def test_the_product_is_off_by_no_more_than_the_rounding_of_activations_explains(kind: str, flavour: str) -> None:
    rng = np.random.default_rng(8)
    blocks = sane_blocks(kind, 33, 1024, rng)
    values = values_of(blocks, kind).astype(np.float64)
    x = activations(4, 1024, flavour, rng)
    y = matmul_rows(kernels.pack(blocks, kind), x).astype(np.float64)
    exact = x.astype(np.float64) @ values.T
    # Half a step of the activations' scale per value, and some rounding of the sum.
    half_step = np.abs(x.astype(np.float64)).reshape(4, -1, 32).max(-1, keepdims=True) / 254
    bound = np.broadcast_to(half_step, (4, 32, 32)).reshape(4, 1024) @ np.abs(values).T
    bound = bound * (0 if kind in FLOATS else 1.001) + 1e-5 * (np.abs(x.astype(np.float64)) @ np.abs(values).T)
    assert (np.abs(y - exact) <= bound).all()


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_K", "Q2_K", "IQ4_NL"])
def test_a_row_with_a_nan_or_an_infinity_is_nan_and_no_other_row_is(kind: str) -> None:
    rng = np.random.default_rng(9)
    packed = kernels.pack(sane_blocks(kind, 20, 256, rng), kind)
    x = activations(4, 256, "plain", rng)
    expected = matmul_rows(packed, x)
    for poison in (np.nan, np.inf, -np.inf):
        x[2, 200] = poison
        y = matmul_rows(packed, x)
        assert (y[2].view(np.uint32) == QUIET_NAN).all()
        assert same_bits(y[[0, 1, 3]], expected[[0, 1, 3]])


@needs_kernels
def test_zero_rows_are_zero_and_no_rows_are_no_rows() -> None:
    packed = kernels.pack(sane_blocks("Q5_1", 20, 64, np.random.default_rng(10)), "Q5_1")
    assert not matmul_rows(packed, np.zeros((3, 64), np.float32)).any()
    assert matmul_rows(packed, np.zeros((0, 64), np.float32)).shape == (0, 20)


@needs_kernels
@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, 39), value=st.integers(0, 255), cut=st.integers(0, 300))
def test_damaged_weights_are_refused_or_still_fit_their_memory(position: int, value: int, cut: int) -> None:
    packed = kernels.pack(sane_blocks("Q4_0", 20, 64, np.random.default_rng(11)), "Q4_0")
    packed[position] = value
    packed = packed[: packed.size - cut]
    try:
        n_in = shape_of(packed)[1] if packed.size >= 32 else 64
        matmul_rows(packed, np.ones((1, n_in % (1 << 20)), np.float32))
    except Refused as error:
        assert "packed weights" in str(error)
    else:
        kind = TYPES_BY_NUMBER[int(packed[12])].name
        assert packed.nbytes == kernels.packed_bytes(kind, *shape_of(packed))


def test_kinds_without_a_kernel_and_broken_rows_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="IQ3_S"):
        kernels.pack(np.zeros((16, 110), np.uint8), "IQ3_S")
    with pytest.raises(SettingsError, match="18"):
        kernels.pack(np.zeros((16, 19), np.uint8), "Q4_0")
    with pytest.raises(SettingsError, match="256"):
        kernels.packed_bytes("Q4_K", 16, 128)


def test_a_missing_or_foreign_library_is_a_reason_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(library, "_FILE", tmp_path / "rows.so")
    monkeypatch.setattr(library, "_load", library._load.__wrapped__)
    assert "not built" in str(kernels.available())
    (tmp_path / "not_built.txt").write_text("command 'cc' failed\n")
    assert "command 'cc' failed" in str(kernels.available())
    (tmp_path / "rows.so").write_bytes(b"no library")
    assert "cannot be loaded" in str(kernels.available())
    for use in (kernels.features, kernels.library_path):
        with pytest.raises(BackendError, match="not available because"):
            use()


@needs_kernels
@pytest.mark.parametrize("number", ["VERSION", "OPERATORS"])
def test_a_library_of_another_version_is_a_reason(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kernels.NUMBERS, number, kernels.NUMBERS[number] + 1)
    monkeypatch.setattr(library, "_load", library._load.__wrapped__)
    assert f"this edge-spec needs {kernels.NUMBERS['VERSION']}, {kernels.NUMBERS['OPERATORS']}" in str(
        kernels.available()
    )


def run_script(name: str) -> None:
    if shutil.which("sh") is None:
        pytest.skip("there is no shell")
    done = subprocess.run(
        ["sh", str(Path(__file__).parent / "kernels" / name)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", ["on_arm.sh", "sanitize.sh"])
def test_the_kernels_are_right_on_arm_and_under_sanitizers(script: str) -> None:
    run_script(script)


@pytest.mark.slow
@needs_kernels
def test_the_package_on_arm_writes_the_tokens_of_this_machine() -> None:
    run_script("package_on_arm.sh")


@pytest.mark.parametrize(
    ("without", "left_out"),
    [
        ("avx512-vnni", {"avx512-vnni", "avx512-vnni-256"}),
        ("avx512", {"avx512", "avx512-vnni", "avx512-vnni-256"}),
        ("avx512,avx-vnni", {"avx512", "avx512-vnni", "avx512-vnni-256", "avx-vnni"}),
        ("i8mm", {"neon-i8mm"}),
        ("dotprod", {"neon-dotprod", "neon-i8mm"}),
        ("avx2,neon", {*VARIANTS} - {"reference"}),
        ("avx5,vnni,AVX2,", set()),
    ],
)
def test_another_processor_is_this_one_without_some_instructions(
    without: str, left_out: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = kernels.features()
    monkeypatch.setenv("EDGE_SPEC_WITHOUT", without)
    assert kernels.features() == tuple(name for name in here if name not in left_out)
