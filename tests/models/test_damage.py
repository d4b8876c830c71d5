"""Laws of damaged weights: a file has them just where some weight is no number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from edge_spec.models import TensorInfo
from edge_spec.models.gguf.damage import without_numbers
from edge_spec.models.gguf.types import TYPES

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.long
@pytest.mark.parametrize("name", [*KINDS, "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"])
def test_what_is_no_number_is_found_and_nothing_else(name: str, tmp_path: Path) -> None:
    kind, random, found = TYPES[name], np.random.default_rng(len(name)), []
    for number in range(400):
        raw = random.integers(0, 256, (3, kind.block_bytes), np.uint8)
        path = tmp_path / str(number)
        path.write_bytes(b"before" + raw.tobytes() + b"\xff" * 8)
        tensor = TensorInfo(name="weights", shape=(kind.block * 3,), type=kind, path=path, offset=6)
        with np.errstate(all="ignore"):
            # Of the last two gguf knows no more than the size: their numbers are multiples of the scale.
            one_scale = name in ("Q1_0", "Q2_0")
            weights = raw[:, :2].view(np.float16) if one_scale else dequantize(raw, GGMLQuantizationType[name])
        found.append(without_numbers([tensor]))
        assert (found[-1] is None) == bool(np.isfinite(weights).all())
    assert set(found) == {None, "weights"}
