"""Laws of models with experts: they compute what llama.cpp and the formulas do, and write one text in every mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared_logits import Change, Rows, by_row, changed, off_by, on_llama, on_onnx, rows_of
from families import EXPERT_FAMILIES, FLOAT_KINDS
from float_networks import float_logits, rows_near_a_tie
from gguf_files import EXPERTS, MATRICES, N_VOCAB, write_gguf
from lone_text import lone_text
from modes_agree import check_modes_agree, wishes

import edge_spec
from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.engine import onnx_footprint
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.transcription.architecture import ARCHITECTURES
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import UnsupportedModel
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.loading import plan
from edge_spec.models import inspect
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

needs_kernels = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

TEXT = np.random.default_rng(5).integers(3, N_VOCAB, 600).tolist()
"""A text in which no choice between experts is closer than llama.cpp is to float64."""
SHORT = 68
QWEN, GPT_OSS = EXPERT_FAMILIES["qwen3moe, 2 of 8"], EXPERT_FAMILIES["gpt-oss, 2 of 8"]


def with_ties(routers: Rows) -> Rows:
    """Pairs of experts have the same score."""
    routers[1::2] = routers[0::2]
    return routers


def with_a_favorite(routers: Rows) -> Rows:
    """One expert is preferred wherever a row's first number is positive."""
    routers[:, 0], routers[3, 0] = 0, 8
    return routers


def with_a_sign(embeddings: Rows) -> Rows:
    """The first number of every row is."""
    embeddings[:, 0] = 6
    return embeddings


# --- the same logits


@needs_kernels
@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_logits_are_those_of_llama_cpp_and_of_the_formulas(tmp_path: Path, family: str) -> None:
    path, text = write_gguf(tmp_path / "model.gguf", kinds=FLOAT_KINDS, **EXPERT_FAMILIES[family]), TEXT[:160]
    model = on_onnx(path, tmp_path / "cache")
    ours = rows_of(model, text, [8])
    for widths in (range(1, 17), [1], [2, 3]):
        model.rollback(0)
        assert np.array_equal(rows_of(model, text, widths), ours)
    model.close()
    clear = ~rows_near_a_tie(path, text, within=1e-5)[4:]
    assert clear.mean() >= 0.99
    assert by_row(ours, float_logits(path, text)[4:])[clear].max() <= 3e-5
    assert by_row(ours, on_llama(path, text))[clear].max() <= 1e-4


@needs_kernels
@pytest.mark.parametrize("family", ["qwen3moe, 4 of 32", "gpt-oss, 4 of 32"])
def test_beyond_512_cells_rollback_and_saved_states_change_no_bit(tmp_path: Path, family: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", kinds=FLOAT_KINDS, **EXPERT_FAMILIES[family])
    model = on_onnx(path, tmp_path / "cache")
    ours = rows_of(model, TEXT, [8])
    exact, clear = float_logits(path, TEXT)[4:], ~rows_near_a_tie(path, TEXT, within=1e-5)[4:]
    assert clear.mean() >= 0.99
    assert by_row(ours, exact)[clear].max() <= 3e-5
    # Single rows of llama.cpp are further from the formulas here: its angles round more the later a token is.
    assert np.sqrt(np.mean(by_row(ours, on_llama(path, TEXT))[clear] ** 2)) <= 1e-4
    # Rows do not depend on how the text before them was read.
    for start in (530, 520, 13):
        model.rollback(min(start, 500))
        assert np.array_equal(rows_of(model, TEXT, [3, 16], start=start), ours[start - 4 :])
    model.rollback(550)
    state = model.save()
    model.rollback(0)
    model.restore(state)
    assert np.array_equal(rows_of(model, TEXT, [5], start=550), ours[546:])
    model.close()


@needs_kernels
@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_ties_go_to_the_lower_number_and_one_expert_may_serve_all_rows(tmp_path: Path, family: str) -> None:
    made, text = EXPERT_FAMILIES[family], TEXT[:SHORT]
    tied = changed(write_gguf(tmp_path / "tied.gguf", kinds=FLOAT_KINDS, **made), {"ffn_gate_inp.weight": with_ties})
    one = changed(
        write_gguf(tmp_path / "one.gguf", kinds=FLOAT_KINDS, **made),
        {"ffn_gate_inp.weight": with_a_favorite, "token_embd.weight": with_a_sign},
    )
    for path in (tied, one):
        model = on_onnx(path, tmp_path / "cache")
        ours = rows_of(model, text, [8])
        model.rollback(0)
        assert np.array_equal(rows_of(model, text, [1, 5, 11]), ours)
        model.close()
        assert by_row(ours, float_logits(path, text)[4:]).max() <= 3e-5
    assert by_row(ours, on_llama(one, text)).max() <= 1e-4


@needs_kernels
@pytest.mark.parametrize("made", [QWEN, GPT_OSS], ids=["qwen3moe", "gpt-oss"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "MXFP4", "Q4_K"])
def test_quantized_experts_are_no_further_from_the_formulas_than_those_of_llama_cpp(
    tmp_path: Path, made: dict[str, Any], kind: str
) -> None:
    kinds = FLOAT_KINDS | dict.fromkeys(EXPERTS, kind)
    path, text = write_gguf(tmp_path / "model.gguf", kinds=kinds, **{**made, "experts": (8, 2, 256)}), TEXT[:200]
    model = on_onnx(path, tmp_path / "cache")
    ours = rows_of(model, text, [8])
    model.close()
    off = off_by(path, text, ours, float_logits(path, text)[4:])
    assert 0 < off[0] <= 1.3 * min(off[1:])


# --- every setting matters


SHARED = EXPERT_FAMILIES["qwen2moe, 2 of 8, one shared"]
MUTATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fewer experts are used": (QWEN, {"file": {"experts": (8, 1, 96)}}),
    "more experts are used": (GPT_OSS, {"file": {"experts": (8, 3, 96)}}),
    "shares are not normalized": (QWEN, {"experts": {"normalized": False}}),
    "shares are of all": (GPT_OSS, {"experts": {"of_all": True}}),
    "no limit": (GPT_OSS, {"experts": {"limit": 0.0}}),
    "another limit": (GPT_OSS, {"experts": {"limit": 6.0}}),
    "another steepness": (GPT_OSS, {"experts": {"alpha": 1.0}}),
    "no window": (GPT_OSS, {"file": {"extra": GPT_OSS["extra"] | {"attention.sliding_window": 640}}}),
    "a shorter window": (GPT_OSS, {"file": {"extra": GPT_OSS["extra"] | {"attention.sliding_window": 15}}}),
    "windows in other layers": (GPT_OSS, {"kind": {"window_every": 1}}),
    "windows are not scaled": (GPT_OSS, {"kind": {"windows_scaled": False}}),
    "sinks weigh nothing": (GPT_OSS, {"tensors": {"attn_sinks.weight": lambda x: x - 90}}),
    "sinks of other heads": (GPT_OSS, {"tensors": {"attn_sinks.weight": lambda x: x[::-1]}}),
    "experts change places": (QWEN, {"tensors": {"ffn_down_exps.weight": lambda x: x[::-1]}}),
    "gates change places": (QWEN, {"tensors": {"ffn_gate_exps.weight": lambda x: x[::-1]}}),
    "OLMoE's shares are normalized": (EXPERT_FAMILIES["olmoe, 4 of 32"], {"experts": {"normalized": True}}),
    "Mixtral's shares are not": (EXPERT_FAMILIES["llama, 2 of 8"], {"experts": {"normalized": False}}),
    "nothing is shared": (SHARED, {"tensors": {"ffn_down_shexp.weight": np.zeros_like}}),
    "how much is shared": (SHARED, {"tensors": {"ffn_gate_inp_shexp.weight": np.zeros_like}}),
    "scores change places": (QWEN, {"tensors": {"ffn_gate_inp.weight": lambda x: x[::-1]}}),
    **{
        f"no biases of {name}": (GPT_OSS, {"tensors": {f"{name}.bias": np.zeros_like}})
        for name in (*EXPERTS, "ffn_gate_inp", "attn_output", "attn_q", "attn_v")
    },
}
"""What is changed, of which models; test_families.py changes every setting and swaps tensors."""


@needs_kernels
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_changed_setting_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutation: str) -> None:
    """What the comparison of logits is worth: it fails with each of these."""
    made, change = MUTATIONS[mutation]
    # Large enough that gates reach the limit.
    loud: dict[str, Change] = {f"ffn_{side}_exps.weight": lambda x: 4 * x for side in ("gate", "up")}
    right = changed(write_gguf(tmp_path / "right.gguf", kinds=FLOAT_KINDS, **made), loud)
    model = on_onnx(right, tmp_path / "right")
    exact, ours = float_logits(right, TEXT[:SHORT])[4:], rows_of(model, TEXT[:SHORT], [8])
    model.close()
    assert by_row(ours, exact).max() <= 1e-4
    other = made | change.get("file", {})
    wrong = changed(write_gguf(tmp_path / "wrong.gguf", kinds=FLOAT_KINDS, **other), loud)
    changed(wrong, change.get("tensors", {}))
    kind = replace(ARCHITECTURES[made["architecture"]], **change.get("kind", {}))
    assert kind.experts is not None
    kind = replace(kind, experts=replace(kind.experts, **change.get("experts", {})))
    monkeypatch.setitem(ARCHITECTURES, made["architecture"], kind)
    model = on_onnx(wrong, tmp_path / "wrong")
    assert by_row(rows_of(model, TEXT[:SHORT], [8]), exact).max() > 1e-3
    model.close()


# --- the same text


@needs_kernels
@pytest.mark.parametrize("made", [QWEN, GPT_OSS], ids=["qwen3moe", "gpt-oss"])
def test_text_is_identical_in_every_mode(tmp_path: Path, made: dict[str, Any]) -> None:
    target, draft, intermediate = (
        write_gguf(tmp_path / f"{layers}.gguf", **made, seed=layers % 3, n_layers=layers) for layers in (3, 1, 2)
    )

    def look(mode: str, model: edge_spec.TextModel) -> None:
        assert model.profile.engine == "onnx"
        assert model.identity == "bitwise"

    replies = check_modes_agree(
        ("off", "sequence", "tree", "hierarchy", "ngram", "auto"),
        wishes(("abcabc", "a story"), 40),
        look,
        target,
        draft=draft,
        intermediate=intermediate,
        engine="onnx",
        n_ctx=128,
        cache_dir=tmp_path,
    )
    for mode in ("sequence", "tree", "hierarchy"):
        assert sum(reply.statistics.drafted for reply in replies[mode]) > 0


@needs_kernels
@pytest.mark.parametrize("made", [QWEN, GPT_OSS], ids=["qwen3moe", "gpt-oss"])
def test_several_texts_are_what_each_is_alone(tmp_path: Path, made: dict[str, Any]) -> None:
    path = write_gguf(tmp_path / "model.gguf", **made)
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


# --- what it takes, and what is refused


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "MXFP4", "F32"])
@pytest.mark.parametrize("made", [QWEN, GPT_OSS], ids=["qwen3moe", "gpt-oss"])
def test_the_plan_knows_what_experts_take(tmp_path: Path, made: dict[str, Any], kind: str) -> None:
    kinds = dict.fromkeys((*MATRICES, *EXPERTS), kind)
    path = write_gguf(tmp_path / "model.gguf", kinds=kinds, **{**made, "experts": (16, 2, 512)})
    planned = onnx_footprint(inspect(path), ModelSettings(n_ctx=64, n_threads=1))
    folder = transcribe(inspect(path), tmp_path / "cache" / "onnx").folder
    assert (folder / "weights.bin").stat().st_size == pytest.approx(planned.weight_bytes, rel=0.04)
    assert planned.expert_bytes > 0.5 * planned.weight_bytes
    assert planned.lines()["experts, mapped"] == planned.expert_bytes
    found = {
        cache: plan(path, engine="onnx", n_ctx=64, speculation="off", cache_dir=tmp_path / cache).disk_bytes
        for cache in ("none", "cache")
    }
    assert found == {"none": planned.weight_bytes, "cache": 0}


@pytest.mark.parametrize("family", ["granitemoe, 4 of 32, one shared", "llama, 2 of 8"])
def test_rows_of_experts_are_the_same_in_every_width_on_llama_cpp(tmp_path: Path, family: str) -> None:
    """Scores of experts are a product of floats, which the library sums otherwise for a single row."""
    weights = LlamaWeights(write_gguf(tmp_path / "model.gguf", **EXPERT_FAMILIES[family], n_layers=3))
    settings = LlamaSettings(n_ctx=100, n_threads=1, max_rows=8)
    pool, _ = open_llama(weights, settings, file=family, cache_dir=None)
    model = lone_text(pool)
    chance = np.random.default_rng(0)
    for _ in range(40):
        # In one of a hundred rows what is summed otherwise does not vanish where activations are rounded.
        text = chance.integers(3, N_VOCAB, chance.integers(9, 88)).tolist()
        rows = []
        for width in (1, 2, 3, 8):
            model.rollback(0)
            model.prefill(text[:-8])
            rows.append([])
            while model.n_past < len(text):
                ahead = text[model.n_past : model.n_past + width]
                rows[-1] += [row.tobytes() for row in model.decode(Tree.sequence(ahead))]
                model.keep(range(len(ahead)))
        assert rows[1:] == rows[:1] * 3
    model.close()
    weights.close()


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ({"extra": {"expert_count": 16}}, "ffn_gate_inp.weight in the shape"),
        ({"extra": {"expert_weights_scale": 2.0}}, "expert_weights_scale"),
        ({"extra": {"expert_group_count": 2, "expert_group_used_count": 1}}, "expert_group_count"),
        ({"expert_biases": True}, "blk.0.ffn_gate"),
        ({"sinks": True}, "blk.0.attn_sinks.weight"),
        ({"experts": None}, "uses 0 of 0 experts"),
        ({"architecture": "gpt-oss", "head_norms": False}, "lacks the tensor blk.0.post_attention_norm.weight"),
        ({**GPT_OSS, "head_norms": False, "tied": True}, "lacks the tensor output.weight"),
        (
            {**GPT_OSS, "head_norms": False, "extra": {"expert_feed_forward_length": 64}},
            "expert_feed_forward_length is 64, and .* 96",
        ),
        ({"extra": {"expert_feed_forward_length": 128}}, "expert_feed_forward_length is 128"),
        ({**GPT_OSS, "head_norms": False, "sinks": False}, "lacks the tensor blk.0.attn_sinks.weight"),
        ({**GPT_OSS, "head_norms": False, "expert_biases": False}, "lacks the tensor blk.0.ffn_gate_inp.bias"),
    ],
)
def test_experts_that_the_graph_cannot_express_are_left_to_llama_cpp(
    tmp_path: Path, made: dict[str, Any], named: str
) -> None:
    path = write_gguf(tmp_path / "model.gguf", **QWEN | made)
    with pytest.raises(UnsupportedModel, match=named):
        transcribe(inspect(path), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("architecture", ["qwen3moe", "deepseek2"])
@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"expert_count": 0}, "uses 2 of 0 experts"),
        ({"expert_used_count": 0}, "uses 0 of 8 experts"),
        ({"expert_used_count": 9}, "uses 9 of 8 experts"),
        ({"expert_count": 1025}, "has 1,025 experts"),
        ({"expert_count": 2**31}, "no valid number for .*expert_count"),
        ({"expert_group_count": 8}, "has 8 groups of 8 experts"),
        ({"expert_group_count": 3, "expert_group_used_count": 1}, "uses 1 of 3 groups"),
        ({"expert_group_count": 4}, "uses 0 of 4 groups"),
    ],
)
def test_numbers_of_experts_that_would_end_the_process_in_llama_cpp_are_refused_before(
    tmp_path: Path, architecture: str, extra: dict[str, int], named: str
) -> None:
    path = write_gguf(tmp_path / "model.gguf", **{**QWEN, "architecture": architecture, "extra": extra})
    with pytest.raises(UnsupportedModel, match=named) as caught:
        inspect(path)
    assert "\n" not in str(caught.value)
