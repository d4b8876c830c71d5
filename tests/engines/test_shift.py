"""Laws of taking tokens out of the middle of a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import EXPERT_FAMILIES, FAMILIES
from gguf_files import write_gguf
from lone_text import lone_text

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

MADE: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama3": {"rope_factors": True},
    "yarn": {
        "extra": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
    },
    "qwen3": {"architecture": "qwen3", "head_norms": True},
    "gemma3": {
        "architecture": "gemma3",
        "head_norms": True,
        "post_norms": True,
        "tied": True,
        "extra": {"attention.sliding_window": 500, "attention.sliding_window_pattern": 2, "rope.freq_base": 1e6},
    },
    "granite without positions": FAMILIES["granite without positions"],
    "smollm3": {**FAMILIES["smollm3"], "n_layers": 1},
    "qwen3moe": EXPERT_FAMILIES["qwen3moe, 2 of 8"],
    "gpt-oss": EXPERT_FAMILIES["gpt-oss, 4 of 32"],
    "phi3": {"architecture": "phi3", "fused": True, "long_factors": 24, "extra": {"rope.dimension_count": 48}},
}

CANNOT = {
    ("gpt-oss", "llama/f16"),
    ("gpt-oss", "llama/q8_0"),
    ("gemma3", "llama/f16"),
    ("gemma3", "llama/q8_0"),
    ("yarn", "llama/f16"),
    ("yarn", "llama/q8_0"),
    ("phi3", "llama/q8_0"),
    ("granite without positions", "llama/f16"),
    ("granite without positions", "llama/q8_0"),
    ("smollm3", "llama/f16"),
    ("smollm3", "llama/q8_0"),
}
"""What llama.cpp would get wrong, or would end the process at."""

TOLERANCE = {"onnx/f32": 0.004}
ROUNDED = 0.05
"""Keys of fewer bits are rounded again when they are turned; a wrong turn is off by far more."""

ENGINES = [
    "llama/f16",
    "llama/q8_0",
    *(
        pytest.param(f"onnx/{kind}", marks=pytest.mark.skipif(available() is not None, reason="kernels were not built"))
        for kind in ("f32", "f16")
    ),
]


def opened(engine: str, path: Path) -> tuple[TextPath, Any]:
    """A model and what frees what it stands on."""
    name, kind = engine.split("/")
    if name == "llama":
        weights = LlamaWeights(path)
        settings = LlamaSettings(n_ctx=300, n_threads=1, kv_k=kind, kv_v="f16", trees=True)
        return lone_text(open_llama(weights, settings, file="x", cache_dir=None)[0]), weights.close
    settings = ModelSettings(n_ctx=300, n_threads=1, kv_k=kind, kv_v=kind)
    return lone_text(
        open_onnx(transcribe(inspect(path), path.parent), settings, file="x", cache_dir=None)[0]
    ), lambda: None


def rows_after(model: TextPath, tokens: list[int]) -> Logits:
    rows = model.decode(Tree.sequence(tokens)).copy()
    model.rollback(model.n_past)
    return rows


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("made", MADE)
def test_in_a_model_of_one_layer_a_shift_is_as_if_the_tokens_had_never_been(
    made: str, engine: str, tmp_path: Path
) -> None:
    """Keys and values of one layer depend on token and place alone, so a shift may only round."""
    path = write_gguf(tmp_path / "model.gguf", **{"n_layers": 1, **MADE[made]})
    model, free = opened(engine, path)
    text = np.random.default_rng(1).integers(300, 384, 170).tolist()
    try:
        assert model.capabilities.can_shift == ((made, engine) not in CANNOT)
        if not model.capabilities.can_shift:
            return
        model.prefill(text[:10] + text[100:160])
        wanted = rows_after(model, text[160:164])
        model.rollback(0)
        model.prefill(text[:160])
        model.shift(10, 100)
        assert model.n_past == 70
        found = rows_after(model, text[160:164])
        assert np.abs(found - wanted).max() < TOLERANCE.get(engine, ROUNDED) * np.abs(wanted).max()
        # Single tokens and drafts fill a shifted cache alike, and so does a saved one.
        for token in text[160:164]:
            row = model.decode(Tree.sequence([token]))[0].copy()
            model.keep([0])
            assert np.array_equal(row, found[text[160:164].index(token)]) or model.capabilities.identity == "rounding"
        state = model.save()
        after = rows_after(model, text[164:167])
        model.restore(state)
        assert np.array_equal(rows_after(model, text[164:167]), after)
    finally:
        model.close()
        free()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shift_outside_of_the_text_is_refused(engine: str, tmp_path: Path) -> None:
    model, free = opened(engine, write_gguf(tmp_path / "model.gguf", n_layers=1))
    model.prefill([300, 301, 302, 303])
    for first, last in ((-1, 2), (3, 2), (2, 5)):
        with pytest.raises(ValueError, match="shift"):
            model.shift(first, last)
    model.shift(2, 2)
    model.shift(0, 4)
    assert model.n_past == 0
    model.close()
    free()
