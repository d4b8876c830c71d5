"""Laws of Gemma 4 on our own kernels: layers of two shapes that share keys and values, and take in rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_logits import (
    Change,
    Rows,
    by_row,
    changed,
    off_by,
    on_llama,
    on_onnx,
    rows_however_read,
    rows_of,
    set_fact,
    swapped,
)
from float_networks import float_logits
from gemma4_shapes import SHAPES, Gemma4Shape, write_gemma4
from gguf_files import N_VOCAB
from lone_text import lone_text
from modes_agree import check_modes_agree, wishes

import edge_spec
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.engine import onnx_footprint
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.row_table import RowTable
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import BackendError, EdgeSpecError, ModelFileError, UnsupportedModel
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.loading import plan
from edge_spec.models import inspect
from edge_spec.models.model_file import kv_cache_bytes
from edge_spec.speculation.cache_state import unpack_state
from edge_spec.speculation.tree import Tree

pytestmark = [pytest.mark.long, pytest.mark.skipif(available() is not None, reason="the kernels were not built")]

TEXT = np.random.default_rng(5).integers(3, N_VOCAB, 600).tolist()
SHORT = 68
E2B = SHAPES["as E2B: shared layers, a table"]
UNVALUED = SHAPES["as 31B: keys are values, no table"]


@pytest.fixture(scope="module")
def formulas(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Gemma4Shape], Rows]:
    """Rows of a short text as the formulas have them."""
    found: dict[Gemma4Shape, Rows] = {}

    def of(shape: Gemma4Shape) -> Rows:
        if shape not in found:
            path = write_gemma4(tmp_path_factory.mktemp("right") / "model.gguf", shape)
            found[shape] = float_logits(path, TEXT[:SHORT])[4:]
        return found[shape]

    return of


# --- the same logits


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_llama_cpp_and_of_the_formulas(tmp_path: Path, name: str) -> None:
    path = write_gemma4(tmp_path / "model.gguf", SHAPES[name])
    model = on_onnx(path, tmp_path / "cache")

    def look(ours: Rows) -> None:
        """Far beyond the window."""
        model.rollback(300)
        assert np.array_equal(rows_of(model, TEXT[:340], [6], start=300), ours[296:336])

    ours = rows_however_read(model, TEXT, look)
    model.close()
    assert by_row(ours, float_logits(path, TEXT)[4:]).max() <= 1e-5
    # llama.cpp's GELU is a table of 16-bit floats.
    assert by_row(ours, on_llama(path, TEXT)).max() <= 1e-3


def test_a_tree_gives_the_rows_of_its_paths(tmp_path: Path) -> None:
    model = on_onnx(write_gemma4(tmp_path / "model.gguf", E2B), tmp_path / "cache")
    model.prefill(TEXT[:40])
    rows = model.decode(Tree((50, 51, 52, 53, 54), (-1, 0, 0, 2, -1))).copy()
    model.keep([0, 2, 3])
    after = model.decode(Tree.sequence([60])).copy()
    for path, row in (((50, 51), 1), ((50, 52, 53), 3), ((54,), 4)):
        model.rollback(40)
        assert np.array_equal(model.decode(Tree.sequence(path))[-1], rows[row])
    model.rollback(0)
    model.prefill([*TEXT[:40], 50, 52, 53])
    assert np.array_equal(model.decode(Tree.sequence([60])), after)
    model.close()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1"])
def test_rows_of_a_table_of_any_type_are_looked_up(tmp_path: Path, kind: str) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B, table=kind)
    model = on_onnx(path, tmp_path / "cache")
    ours = rows_of(model, TEXT[:SHORT], [8])
    model.close()
    assert by_row(ours, float_logits(path, TEXT[:SHORT])[4:]).max() <= 1e-5
    assert by_row(ours, on_llama(path, TEXT[:SHORT])).max() <= 1e-3


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", SHAPES)
def test_quantized_layers_are_no_further_from_the_formulas_than_those_of_llama_cpp(
    tmp_path: Path, name: str, kind: str
) -> None:
    shape = replace(SHAPES[name], dims=(64, 96 if name.startswith("one head") else 32))
    path, text = write_gemma4(tmp_path / "model.gguf", shape, kind), TEXT[:300]
    model = on_onnx(path, tmp_path / "cache")
    ours = rows_of(model, text, [8])
    model.close()
    off = off_by(path, text, ours, float_logits(path, text)[4:])
    assert 0 < off[0] <= 1.3 * min(off[1:])


def test_a_cache_of_16_bits_rounds_and_no_more(tmp_path: Path) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B)
    rows = {}
    for kind in ("f32", "f16"):
        model = on_onnx(path, tmp_path / "cache", kv_k=kind, kv_v=kind)
        rows[kind] = rows_of(model, TEXT[:SHORT], [8])
        model.prefill(TEXT[SHORT:300])
        state = model.save()
        model.rollback(0)
        model.restore(state)
        assert model.n_past == 300
        model.close()
    assert 0 < by_row(rows["f16"], rows["f32"]).max() <= 3e-3


@pytest.mark.parametrize("windowed", [(True, False), (False, True)], ids=["narrow", "wide"])
def test_keys_turn_back_as_if_they_had_been_read_there(tmp_path: Path, windowed: tuple[bool, ...]) -> None:
    shape = replace(E2B, windowed=windowed, n_shared=0, n_ff=(384, 384))
    model = on_onnx(write_gemma4(tmp_path / "model.gguf", shape), tmp_path / "cache")
    # Keys of the first layer depend on tokens and places alone, and come first in what is saved.
    n_first = shape.heads[1 + windowed[0]] * 60 * shape.dims[windowed[0]]
    keys = []
    for removed in (13, 0):
        model.rollback(0)
        model.prefill(TEXT[: 60 + removed] if removed else [*TEXT[:20], *TEXT[33:73]])
        if removed:
            model.shift(20, 20 + removed)
        body, n_past = unpack_state(model.save(), profile=model.profile.name, n_ctx=640)
        assert n_past == 60
        keys.append(np.frombuffer(body, np.float32)[:n_first])
    model.close()
    assert np.abs(keys[1]).max() > 0.3
    assert np.allclose(*keys, atol=1e-5)


@pytest.mark.parametrize("engine", ["onnx/f32", "onnx/f16", "llama"])
def test_a_shift_is_as_if_the_tokens_had_never_been(tmp_path: Path, engine: str) -> None:
    """Narrow and wide layers, some of which read the keys and values of others. Where attention of the first layer adds
    nothing, all keys and values depend on token and place alone, so a shift may only round."""
    shape = replace(E2B, windowed=(True, False, True, False), n_ff=(384, 256, 512, 640))
    path = write_gemma4(tmp_path / "model.gguf", shape)
    changed(path, {"0.attn_output.weight": np.zeros_like})
    if engine == "llama":
        weights = LlamaWeights(path)
        settings = LlamaSettings(n_ctx=300, n_threads=1, kv_k="f32", kv_v="f32")
        model = lone_text(open_llama(weights, settings, file="x", cache_dir=None)[0])
        # It gives cells beyond a window to others.
        assert not model.capabilities.can_shift
        model.close()
        weights.close()
        return
    kind = engine.partition("/")[2]
    model = on_onnx(path, tmp_path / "cache", kv_k=kind, kv_v=kind)
    assert model.capabilities.can_shift
    text, after = TEXT[:160], TEXT[160:164]

    def rows_after(tokens: list[int]) -> Rows:
        rows = model.decode(Tree.sequence(tokens)).copy()
        model.rollback(model.n_past)
        return rows

    model.prefill(text[:10] + text[100:])
    wanted = rows_after(after)
    model.rollback(0)
    model.prefill(text[100:])
    others = rows_after(after)
    model.rollback(0)
    model.prefill(text)
    model.shift(10, 100)
    assert model.n_past == 70
    found = rows_after(after)
    off = np.abs(found - wanted).max()
    # What lies before the hole, far beyond the window, is still seen.
    assert off < 0.1 * np.abs(others - wanted).max()
    assert off < (1e-5 if kind == "f32" else 0.02) * np.abs(wanted).max()
    for n, token in enumerate(after):
        assert np.array_equal(model.decode(Tree.sequence([token]))[0], found[n])
        model.keep([0])
    state = model.save()
    more = rows_after(TEXT[164:167])
    model.restore(state)
    assert np.array_equal(rows_after(TEXT[164:167]), more)
    model.close()


# --- every setting matters


def heads_of(n_heads: int) -> Change:
    """Heads change places."""
    return lambda x: np.roll(x.reshape(n_heads, -1, *x.shape[1:]), 1, axis=0).reshape(x.shape)


def backward(x: Rows) -> Rows:
    return x[::-1]


MUTATIONS: dict[str, tuple[Gemma4Shape, dict[str, Change], dict[str, float]]] = {
    "a shorter window": (E2B, {}, {"attention.sliding_window": 15}),
    "positions without a window": (E2B, {}, {"rope.freq_base": 1e4}),
    "positions with a window": (E2B, {}, {"rope.freq_base_swa": 1e3}),
    "all pairs are turned": (E2B, {"rope_freqs.weight": np.ones_like}, {}),
    "fewer pairs are turned with a window": (E2B, {}, {"rope.dimension_count_swa": 16}),
    "epsilon": (E2B, {}, {"attention.layer_norm_rms_epsilon": 1e-2}),
    "another bound": (E2B, {}, {"final_logit_softcapping": 2.8}),
    "no bound": (E2B, {}, {"final_logit_softcapping": 0.0}),
    "no layer reads the keys of another": (replace(E2B, keeps_keys=True), {}, {"attention.shared_kv_layers": 0}),
    "keys that others read": (E2B, {"4.attn_k.weight": backward}, {}),
    "values that others read": (E2B, {"3.attn_v.weight": backward}, {}),
    "keys that are values": (UNVALUED, {"attn_k_norm.weight": backward}, {}),
    "heads of queries": (E2B, {"0.attn_q.weight": heads_of(4)}, {}),
    "heads of keys": (E2B, {"0.attn_k.weight": heads_of(2)}, {}),
    "norms of queries": (E2B, {"attn_q_norm.weight": backward}, {}),
    "the norm after attention": (E2B, {"post_attention_norm.weight": backward}, {}),
    "the norm after the network": (E2B, {"post_ffw_norm.weight": backward}, {}),
    "gates of networks": (E2B, {"6.ffn_gate.weight": backward}, {}),
    "the table": (E2B, {"per_layer_token_embd.weight": backward}, {}),
    "layers of the table": (E2B, {"per_layer_token_embd.weight": lambda x: np.roll(x, 64, axis=1)}, {}),
    "layers of the projection": (E2B, {"per_layer_model_proj.weight": lambda x: np.roll(x, 64, axis=0)}, {}),
    "the norm of the projection": (E2B, {"per_layer_proj_norm.weight": backward}, {}),
    "gates of what is taken in": (E2B, {"1.inp_gate.weight": backward}, {}),
    "what is taken in": (E2B, {"1.proj.weight": backward}, {}),
    "the norm of what is taken in": (E2B, {"1.post_norm.weight": backward}, {}),
    "the scale of a layer": (E2B, {"2.layer_output_scale.weight": lambda x: 1.1 * x}, {}),
}
"""What is changed, of which models: tensors, and numbers of the metadata."""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_changed_setting_would_be_seen(
    formulas: Callable[[Gemma4Shape], Rows], tmp_path: Path, mutation: str
) -> None:
    """What the comparison of logits is worth: it fails with each of these."""
    shape, tensors, facts = MUTATIONS[mutation]
    wrong = changed(write_gemma4(tmp_path / "wrong.gguf", shape), tensors)
    for fact, value in facts.items():
        set_fact(wrong, f"gemma4.{fact}", value)
    model = on_onnx(wrong, tmp_path / "cache")
    ours = rows_of(model, TEXT[:SHORT], [8])
    model.close()
    assert by_row(ours, formulas(shape)).max() > 3e-3
    # With the same change the formulas agree: it is one that a file can have.
    assert by_row(ours, float_logits(wrong, TEXT[:SHORT])[4:]).max() <= 1e-5


SWAPS: dict[str, tuple[str, str]] = {
    "gate and up": ("ffn_gate.weight", "ffn_up.weight"),
    "keys and values": ("attn_k.weight", "attn_v.weight"),
    "norms before attention and the network": ("attn_norm.weight", "ffn_norm.weight"),
    "norms after attention and the network": ("post_attention_norm.weight", "post_ffw_norm.weight"),
    "norms of queries and keys": ("2.attn_q_norm.weight", "2.attn_k_norm.weight"),
    "what two layers take in": ("3.inp_gate.weight", "5.inp_gate.weight"),
    "queries of two layers with a window": ("3.attn_q.weight", "5.attn_q.weight"),
    "keys of two layers with a window": ("0.attn_k.weight", "3.attn_k.weight"),
    "the last norm and one of a layer": ("output_norm.weight", "blk.0.attn_norm.weight"),
}
"""Tensors of one shape that change places."""


@pytest.mark.parametrize("swap", SWAPS)
def test_tensors_that_change_places_would_be_seen(
    formulas: Callable[[Gemma4Shape], Rows], tmp_path: Path, swap: str
) -> None:
    one, other = SWAPS[swap]
    wrong = swapped(write_gemma4(tmp_path / "wrong.gguf", E2B), {one: other})
    model = on_onnx(wrong, tmp_path / "cache")
    assert by_row(rows_of(model, TEXT[:SHORT], [8]), formulas(E2B)).max() > 3e-3
    model.close()


@pytest.mark.parametrize(
    "change",
    [
        {"attention_scale": 0.0},
        {"value_norms": False},
        {"scales": False},
        {"gelu": False},
        {"interleaved": True},
        {"head_norms": False},
    ],
    ids=str,
)
def test_a_changed_architecture_would_be_seen(
    formulas: Callable[[Gemma4Shape], Rows],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, bool],
) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B)
    monkeypatch.setitem(ARCHITECTURES, "gemma4", replace(ARCHITECTURES["gemma4"], **change))
    try:
        model = on_onnx(path, tmp_path / "cache")
    except UnsupportedModel as error:
        assert change == {"head_norms": False}
        assert "attn_q_norm" in str(error)
        return
    assert by_row(rows_of(model, TEXT[:SHORT], [8]), formulas(E2B)).max() > 3e-3
    model.close()


# --- the same text


@pytest.mark.parametrize("shape", [E2B, UNVALUED], ids=["E2B", "31B"])
def test_text_is_identical_in_every_mode(tmp_path: Path, shape: Gemma4Shape) -> None:
    target, draft, intermediate = (
        write_gemma4(tmp_path / f"{noise}.gguf", replace(shape, soft_cap=30.0), "Q4_0", noise=noise)
        for noise in (0.0, 0.06, 0.03)
    )

    def look(mode: str, model: edge_spec.TextModel) -> None:
        assert model.profile.engine == "onnx"
        assert model.identity == "bitwise"

    replies = check_modes_agree(
        ("off", "sequence", "tree", "hierarchy", "ngram", "auto"),
        wishes(("abcabc", "In the beginning there was"), 40),
        look,
        target,
        draft=draft,
        intermediate=intermediate,
        engine="onnx",
        n_ctx=128,
        cache_dir=tmp_path,
    )
    for mode in ("sequence", "tree", "hierarchy"):
        done = [reply.statistics for reply in replies[mode]]
        assert 0 < sum(each.accepted for each in done) < sum(each.drafted for each in done)


def test_several_texts_are_what_each_is_alone(tmp_path: Path) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B, "Q4_0")
    asked: dict[str, Any] = {"raw": True, "ignore_eos": True, "max_tokens": 30, "seed": 5}
    prompts = ["abc", "another one", "x" * 40, "last"]
    with edge_spec.load(path, engine="onnx", n_ctx=128, n_threads=1, speculation="off", cache_dir=tmp_path) as model:
        several = model.generate_many(prompts, **asked)
        several.read()
        found = [several[index].token_ids for index in range(len(prompts))]
        alone = [model.generate(prompt, **asked) for prompt in prompts]
        for reply in alone:
            reply.read()
    assert found == [reply.token_ids for reply in alone]


# --- what it takes


@pytest.mark.parametrize("keeps_keys", [False, True])
@pytest.mark.parametrize("kind", ["Q4_0", "F32"])
def test_the_plan_knows_what_layers_take_and_leaves_the_table_out(
    tmp_path: Path, kind: str, *, keeps_keys: bool
) -> None:
    # Wide enough that what lies between matrices, to the next page, is little.
    shape = replace(E2B, n_ff=(2048,) * 7, per_layer=512, keeps_keys=keeps_keys)
    path = write_gemma4(tmp_path / "model.gguf", shape, kind)
    file, settings = inspect(path), ModelSettings(n_ctx=64, n_threads=1, max_rows=8)
    planned = onnx_footprint(file, settings)
    source = transcribe(file, tmp_path / "cache" / "onnx")
    stored = (source.folder / "weights.bin").stat().st_size
    assert stored == pytest.approx(planned.mapped_bytes, rel=0.04)
    (table,) = (tensor for tensor in file.tensors if tensor.name == "per_layer_token_embd.weight")
    assert table.n_bytes > 0.08 * planned.mapped_bytes
    # Two layers with 2 heads of 32 numbers, of keys and of values, for each with one head of 64.
    numbers = 2 * (3 * 2 * 32 + 2 * 1 * 64)
    assert source.cell_numbers == numbers
    assert kv_cache_bytes(file, 256, "f32", "f32") == 256 * 4 * numbers
    places = 4 * settings.n_cells * (64 + 32)
    assert planned.kv_cache_bytes == settings.n_cells * 4 * numbers + places
    found = {
        cache: plan(path, engine="onnx", n_ctx=64, speculation="off", cache_dir=tmp_path / cache).disk_bytes
        for cache in ("none", "cache")
    }
    assert found == {"none": planned.mapped_bytes, "cache": 0}


def test_a_table_of_floats_does_not_speak_against_our_kernels(tmp_path: Path) -> None:
    shape = replace(E2B, per_layer=256)
    path = write_gemma4(tmp_path / "model.gguf", shape, "Q4_0", table="F32")
    file = inspect(path)
    assert file.tensor_types["F32"] > 0.5 * file.weight_bytes
    assert plan(path, n_ctx=64, speculation="off", cache_dir=tmp_path).engine == "onnx"


def test_a_table_that_has_gone_is_named(tmp_path: Path) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B)
    settings = ModelSettings(n_ctx=64, n_threads=1)
    pool, _ = open_onnx(transcribe(inspect(path), tmp_path / "cache"), settings, file="x", cache_dir=None)
    model = lone_text(pool)
    model.prefill(TEXT[:8])
    row = model.decode(Tree.sequence([9])).copy()
    model.rollback(8)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) // 100)
    with pytest.raises(ModelFileError, match=r"per_layer_token_embd.weight .* cannot be read") as caught:
        model.decode(Tree.sequence([9]))
    assert "\n" not in str(caught.value)
    with path.open("r+b") as file:
        file.write(whole)
    assert np.array_equal(model.decode(Tree.sequence([9])), row)
    model.close()


@pytest.mark.filterwarnings("error")
def test_a_table_of_no_numbers_warns_nobody(tmp_path: Path) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B, table="Q4_0")
    (tensor,) = (each for each in inspect(path).tensors if each.name == "per_layer_token_embd.weight")
    rows = np.zeros((2, tensor.shape[0]), np.float32)
    table = RowTable(tensor)
    table.read(np.array([3, 383]), rows)
    assert np.isfinite(rows).all()
    assert len(set(rows[0])) > 20
    changed(path, {"per_layer_token_embd.weight": lambda x: 0 * x + 255})
    table.read(np.array([3, 383]), rows)
    table.close()
    assert np.isnan(rows).all()


# --- what is refused

REFUSED: dict[str, tuple[dict[str, float], str]] = {
    "heads of nothing": ({"attention.key_length": 0, "attention.value_length": 0}, "keys of 0 and 32 numbers"),
    "narrow heads of nothing": ({"attention.key_length_swa": 0, "attention.value_length_swa": 0}, "64 and 0 numbers"),
    "values of another width": ({"attention.value_length": 32}, "values of 32 and 32"),
    "heads of another width": ({"attention.key_length": 80, "attention.value_length": 80}, "in the shape"),
    "heads of 24": ({"attention.key_length_swa": 24, "attention.value_length_swa": 24}, "= 32, of 24 numbers"),
    "no heads of keys": ({"attention.head_count_kv": 0}, "4 heads of queries on 0"),
    "3 heads of keys": ({"attention.head_count_kv": 3}, "4 heads of queries on 3"),
    "4 heads of keys": ({"attention.head_count_kv": 4}, "blk.0.attn_k.weight in the shape"),
    "no heads of queries": ({"attention.head_count": 0}, "in the shape"),
    "a window of nothing": ({"attention.sliding_window": 0}, "window of no tokens"),
    "a window in other layers": ({"attention.sliding_window_pattern": 0}, "in the shape"),
    "all layers read others": ({"attention.shared_kv_layers": 7}, "7 layers, of which 7 read"),
    "2^31 layers read others": ({"attention.shared_kv_layers": 1 << 31}, "no valid number for .*shared_kv_layers"),
    "layers of another shape": ({"attention.shared_kv_layers": 3}, "layer 4 read the keys and values of layer 3"),
    "fewer layers": ({"block_count": 6}, "7 values of gemma4.attention.head_count_kv"),
    "a network of nothing": ({"feed_forward_length": 0}, "how wide the feed-forward networks"),
    "a wider network": ({"feed_forward_length": 512}, "blk.0.ffn_up.weight in the shape"),
    "wider inputs": ({"embedding_length_per_layer_input": 96}, "per_layer_token_embd.weight in the shape"),
    "no inputs": ({"embedding_length_per_layer_input": 0}, "no place for"),
    "positions beyond a head": ({"rope.dimension_count_swa": 34}, "= 34, of 32 numbers"),
    "fewer pairs": ({"rope.dimension_count": 32}, "rope_freqs.weight in the shape"),
    "a bound below 0": ({"final_logit_softcapping": -1.0}, "no usable number for gemma4.final_logit_softcapping"),
    "a bound that is none": ({"final_logit_softcapping": float("nan")}, "no usable number"),
}
"""Numbers of the metadata that contradict each other or the tensors, and what the refusal names."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_in_a_line(tmp_path: Path, case: str) -> None:
    facts, named = REFUSED[case]
    path = write_gemma4(tmp_path / "model.gguf", E2B)
    for fact, value in facts.items():
        set_fact(path, f"gemma4.{fact}", value)
    check_refused(path, named, tmp_path)


@pytest.mark.parametrize(
    "lost",
    [
        *("rope_freqs.weight", "per_layer_token_embd.weight", "per_layer_model_proj.weight"),
        *("per_layer_proj_norm.weight", "0.attn_k.weight", "5.attn_q_norm.weight", "0.attn_k_norm.weight"),
        *("3.inp_gate.weight", "3.proj.weight", "3.post_norm.weight", "6.post_ffw_norm.weight", "0.ffn_gate.weight"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, lost: str) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B)
    path.write_bytes(path.read_bytes().replace(lost.encode(), lost[:-1].encode() + b"~", 1))
    check_refused(path, f"lacks the tensor .*{lost}|divided|no place for", tmp_path)


def test_no_layer_with_a_window_is_refused_in_a_line_before_llama_cpp_ends_the_process(tmp_path: Path) -> None:
    shape = replace(E2B, windowed=(False, False), n_shared=0, n_ff=(384, 384))
    check_refused(write_gemma4(tmp_path / "model.gguf", shape), "no layer with a window", tmp_path)


@pytest.mark.parametrize("lost", ["attention.sliding_window_pattern", "embedding_length_per_layer_input"])
def test_a_missing_setting_is_named(tmp_path: Path, lost: str) -> None:
    path = write_gemma4(tmp_path / "model.gguf", E2B)
    path.write_bytes(path.read_bytes().replace(lost.encode(), lost[:-1].encode() + b"~", 1))
    check_refused(path, "layer by layer" if "pattern" in lost else lost[:-1], tmp_path)


def check_refused(path: Path, named: str, folder: Path) -> None:
    """See that a file is refused in a line, before anything native looks at it."""
    with pytest.raises(EdgeSpecError, match=named) as caught:
        transcribe(inspect(path), folder / "cache")
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, BackendError)
    assert not (folder / "cache").exists()
