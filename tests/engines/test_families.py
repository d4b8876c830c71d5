"""Laws of architectures that are a row in a table: they compute what llama.cpp and the formulas do, at all widths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from compared_logits import swapped
from families import EXPERT_FAMILIES, FAMILIES, FLOAT_KINDS
from float_networks import float_logits
from gguf_files import N_VOCAB, write_gguf
from lone_text import lone_text

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES, Kind
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import UnsupportedModel
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

Rows = np.ndarray[Any, Any]
TEXT = np.random.default_rng(0).integers(3, N_VOCAB, 68).tolist()


def apart(ours: Rows, theirs: Rows) -> float:
    """Root mean square of the difference of rows, in standard deviations of theirs: the worst row's."""
    return float(np.max(np.sqrt(np.mean((ours - theirs) ** 2, axis=-1)) / theirs.std(axis=-1)))


def rows_of(model: TextPath, widths: list[int]) -> Rows:
    """Rows of TEXT but those of its first four tokens, in decodes of these widths by turns."""
    model.prefill(TEXT[:4])
    rows, start, turn = [], 4, 0
    while start < len(TEXT):
        part = Tree.sequence(TEXT[start : start + widths[turn % len(widths)]])
        rows.append(model.decode(part).copy())
        model.keep(range(len(part)))
        start, turn = start + len(part), turn + 1
    return np.concatenate(rows)


def on_llama(path: Path) -> Rows:
    weights = LlamaWeights(path)
    settings = LlamaSettings(n_ctx=96, n_threads=1, kv_k="f32", kv_v="f32", flash_attention=False, exact=False)
    pool, _ = open_llama(weights, settings, file="x", cache_dir=None)
    model = lone_text(pool)
    rows = rows_of(model, [8])
    model.close()
    weights.close()
    return rows


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_llama_cpp_and_of_the_formulas(tmp_path: Path, family: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=FLOAT_KINDS, **FAMILIES[family])
    settings = ModelSettings(n_ctx=96, n_threads=1, trees=True, kv_k="f32", kv_v="f32")
    pool, found = open_onnx(transcribe(inspect(path), tmp_path / "cache"), settings, file="x", cache_dir=None)
    model = lone_text(pool)
    assert found.capabilities.identity == "bitwise"
    ours = rows_of(model, [8])
    for widths in ([1], [2, 3], [7, 5, 4]):
        model.rollback(0)
        assert np.array_equal(rows_of(model, widths), ours)
    model.rollback(0)
    model.prefill(TEXT[:40])
    assert np.array_equal(model.decode(Tree.sequence(TEXT[40:48])), ours[36:44])
    model.close()
    assert apart(ours, float_logits(path, TEXT)[4:]) <= 1e-5
    # llama.cpp's GELU is a table of 16-bit floats.
    assert apart(ours, on_llama(path)) <= (3e-3 if family == "gemma" else 1e-4)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ({"architecture": "granite"}, "does not set granite.logit_scale"),
        ({"architecture": "granite", "experts": (8, 2, 96), "extra": {"logit_scale": 2.0}}, "expert_count"),
        ({"architecture": "granite", "extra": {"logit_scale": -2.0}}, "granite.logit_scale"),
        ({"architecture": "minicpm", "extra": {"embedding_scale": 12.0}}, "does not set minicpm.residual_scale"),
        ({"architecture": "qwen2", "extra": {"logit_scale": 2.0}}, "qwen2.logit_scale"),
        ({"architecture": "ernie4_5", "more_biases": ("attn_output",)}, "blk.0.attn_output.bias"),
        ({"architecture": "smollm3", "extra": {"attention.temperature_scale": 0.1}}, "attention.temperature_scale"),
        ({**FAMILIES["exaone4"], "n_layers": 64}, "64 layers"),
        ({"architecture": "olmo2", "head_norms": True, "pre_norms": (), "post_norms": True}, "attn_q_norm"),
        ({"architecture": "arcee"}, "blk.0.ffn_gate.weight"),
        ({**FAMILIES["olmo2"], "tied": True}, "lacks the tensor output.weight"),
        ({**FAMILIES["internlm2"], "tied": True}, "lacks the tensor output.weight"),
        ({**EXPERT_FAMILIES["olmoe, 4 of 32"], "tied": True}, "lacks the tensor output.weight"),
    ],
)
def test_what_a_family_does_not_have_is_left_to_llama_cpp(tmp_path: Path, made: dict[str, Any], named: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", **made)
    with pytest.raises(UnsupportedModel, match=named):
        transcribe(inspect(path), tmp_path / "cache")


# --- every setting and every tensor matters


MADE = (*FAMILIES.values(), *EXPERT_FAMILIES.values())
PERMITS = {"biases", "ignored", "other_layers", "own_output", "required", "yarn_settings"}
"""What an architecture says that changes no sum."""


def other_facts(made: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting of a model, with another value."""
    positions = {} if "rope.scaling.finetuned" in made.get("extra", {}) else {"rope.freq_base": 1e4}
    for name, value in ({"attention.layer_norm_rms_epsilon": 1e-2} | positions | made.get("extra", {})).items():
        if name.endswith("feed_forward_length"):
            continue  # Tensors say it, too.
        if isinstance(value, bool | str):
            yield name, "none" if isinstance(value, str) else not value
        elif value:
            yield name, value + value // 2 if isinstance(value, int) else value / 2


def pairs_of(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of tensors of one shape in which every tensor of the first layer, or of none, occurs."""
    shapes: dict[tuple[int, ...], list[str]] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if not tensor.name.startswith("blk.") or tensor.name.startswith("blk.0."):
            shapes.setdefault(tuple(tensor.shape), []).append(tensor.name)
    for names in shapes.values():
        alone = [(names[0], names[0].replace("blk.0.", "blk.1."))] if names[0].startswith("blk.") else []
        yield from pairwise(names) if len(names) > 1 else alone


def logits_of(path: Path, folder: Path) -> Rows | None:
    """Our logits; None if the model is refused."""
    try:
        source = transcribe(inspect(path), folder)
    except UnsupportedModel:
        return None
    settings = ModelSettings(n_ctx=96, n_threads=1, exact=False, kv_k="f32", kv_v="f32")
    pool, _ = open_onnx(source, settings, file="x", cache_dir=None)
    model = lone_text(pool)
    rows = rows_of(model, [8])
    model.close()
    return rows


@needs_kernels
@pytest.mark.parametrize("architecture", sorted({made["architecture"] for made in MADE}))
def test_whatever_is_changed_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """What the comparisons of logits are worth: they fail with each of these, or the model is refused."""
    kind = ARCHITECTURES[architecture]
    flags = {each.name: each.default for each in fields(Kind) if each.name not in PERMITS}
    flags = {name: value for name, value in flags.items() if getattr(kind, name) != value}
    unseen, seen_flags = [], set()
    for number, made in enumerate(made for made in MADE if made["architecture"] == architecture):
        right, wrong = tmp_path / f"{number}.gguf", tmp_path / "wrong.gguf"
        exact = float_logits(write_gguf(right, kinds=FLOAT_KINDS, **made), TEXT)[4:]

        def is_seen(path: Path, what: str, exact: Rows = exact, number: int = number) -> bool:
            rows = logits_of(path, tmp_path / f"{number} {what}")
            return rows is None or apart(rows, exact) > 1e-3

        for name, value in other_facts(made):
            changed = made | {"extra": made.get("extra", {}) | {name: value}}
            if not is_seen(write_gguf(wrong, kinds=FLOAT_KINDS, **changed), name):
                unseen.append(name)
        for one, other in pairs_of(right):
            write_gguf(wrong, kinds=FLOAT_KINDS, **made)
            if not is_seen(swapped(wrong, {one: other}), f"{one}, {other}"):
                unseen.append(f"{one} and {other}")
        for name, value in flags.items():
            with monkeypatch.context() as patch:
                patch.setitem(ARCHITECTURES, architecture, replace(kind, **{name: value}))
                seen_flags |= {name} if is_seen(right, name) else set()
    assert (unseen, flags.keys() - seen_flags) == ([], set())
