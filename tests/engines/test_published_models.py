"""Laws of published ONNX models as they run: rows, rollback, trees, state, and the texts that come of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from published_models import Weights, publish, read_weights

import edge_spec
from edge_spec.engines.llama.external_vocabulary import ExternalVocabulary, external_vocabulary_bytes
from edge_spec.engines.onnx import OnnxModel, open_published
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import (
    BackendError,
    Cancelled,
    Closed,
    ContextFull,
    OutOfMemory,
    SettingsError,
    StateError,
    UnsupportedModel,
)
from edge_spec.models import inspect, resolve_family
from edge_spec.models.json_tokenizer import JsonTokenizer
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.tree import Tree

DEMO = resolve_family("demo")
assert DEMO.draft is not None
assert DEMO.intermediate is not None

SIGNATURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("plain", "float32", {}),
    "plain-f16": ("plain", "float16", {}),
    "plain-q4": ("plain", "float32", {"four_bits": True}),
    "plain-f16-keep": ("plain", "float16", {"logits_kind": "float32", "keep": True}),
    "plain-mask4": ("plain", "float32", {"mask_dims": 4}),
    "plain-mask4-f16": ("plain", "float16", {"mask_dims": 4}),
    "plain-last": ("plain", "float32", {"last_only": True}),
    "plain-last-f16": ("plain", "float16", {"last_only": True}),
    "genai": ("genai", "float32", {}),
    "genai-f16": ("genai", "float16", {}),
    "genai-q4": ("genai", "float32", {"four_bits": True}),
    "genai-q4f16": ("genai", "float16", {"four_bits": True}),
}
EVERY = pytest.mark.parametrize("name", SIGNATURES)
SOME = pytest.mark.parametrize("name", ["plain", "plain-f16-keep", "genai-q4", "genai-f16"])

Opener = Callable[..., OnnxModel]


@pytest.fixture(scope="module")
def numbers() -> Weights:
    return read_weights(DEMO.draft)


@pytest.fixture(scope="module")
def published(numbers: Weights, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("published")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            style, kind, rest = SIGNATURES[name]
            publish(root / name, numbers, style, kind, **rest)
        return root / name

    return folder


@pytest.fixture(scope="module")
def open_it(published: Callable[[str], Path]) -> Iterator[Opener]:
    """Opens a model, the same one for the same settings, with an empty cache."""
    opened: dict[Any, OnnxModel] = {}

    def open_one(name: str, *, fresh: bool = False, **values: Any) -> OnnxModel:
        key = (name, len(opened) if fresh else -1, tuple(sorted(values.items())))
        if key not in opened:
            given_values = ModelSettings(**({"n_ctx": 300, "n_threads": 1} | values))
            opened[key] = open_published(inspect(published(name)), given_values, cache_dir=None)[0]
        opened[key].resume()
        opened[key].rollback(0)
        return opened[key]

    yield open_one
    for model in opened.values():
        model.close()


def some_text(n: int, *, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(300, 8192, n).tolist()  # type: ignore[no-any-return]


def next_row(model: OnnxModel, token: int = 777) -> np.ndarray[Any, Any]:
    row = model.decode(Tree.sequence([token]))[0].copy()
    model.rollback(model.n_past)
    return row


def one_by_one(model: OnnxModel, tokens: list[int]) -> np.ndarray[Any, Any]:
    rows = []
    for token in tokens:
        rows.append(model.decode(Tree.sequence([token]))[0].copy())
        model.keep([0])
    return np.array(rows)


# --- rows


def reference(w: Weights, tokens: list[int], *, four_bits: bool) -> np.ndarray[Any, Any]:
    """Logits of every token, as the network is written down, in 64 bits."""

    def matrix(name: str) -> np.ndarray[Any, Any]:
        found = w.arrays[name]
        if four_bits:
            kind = GGMLQuantizationType.Q4_0
            found = gguf.quants.dequantize(gguf.quants.quantize(found, kind), kind)
        return found.astype(np.float64)

    def norm(x: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + w.epsilon) * w.arrays[name]

    n, d = len(tokens), w.head_dim
    angles = np.arange(n)[:, None] * w.base ** (-np.arange(0, d, 2) / d)

    def turned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        first, second = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    x = w.arrays["token_embd"][tokens].astype(np.float64)
    for layer in range(w.n_layers):
        blk = f"blk.{layer}."
        h = norm(x, blk + "attn_norm")
        q, k, v = (
            (h @ matrix(blk + part).T).reshape(n, -1, d).swapaxes(0, 1) for part in ("attn_q", "attn_k", "attn_v")
        )
        k, v = (np.repeat(each, w.n_head // w.n_head_kv, 0) for each in (turned(k), v))
        scores = turned(q) @ k.swapaxes(1, 2) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
        x = x + attended @ matrix(blk + "attn_output").T
        h = norm(x, blk + "ffn_norm")
        gate = h @ matrix(blk + "ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ matrix(blk + "ffn_up").T)) @ matrix(blk + "ffn_down").T
    return norm(x, "output_norm") @ matrix("output").T


@EVERY
def test_rows_are_those_of_the_network_written_down(open_it: Opener, numbers: Weights, name: str) -> None:
    text = some_text(60)
    model = open_it(name)
    assert isinstance(model, LanguageModel)
    model.prefill(text[:44])
    found = one_by_one(model, text[44:52])
    if model.capabilities.max_rows > 1:
        found = np.concatenate([found, model.decode(Tree.sequence(text[52:]))])
    else:
        found = np.concatenate([found, one_by_one(model, text[52:])])
    _, kind, rest = SIGNATURES[name]
    expected = reference(numbers, text, four_bits=rest.get("four_bits", False))[44:]
    # 4-bit products round activations to 8 bits.
    most = 0.1 if rest.get("four_bits") else 0.03 if kind == "float16" else 1e-4
    assert np.abs(found - expected).max() < most * expected.std()


@SOME
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(0, 3))
def test_a_row_does_not_depend_on_the_rows_beside_it(open_it: Opener, name: str, cuts: list[int], seed: int) -> None:
    model = open_it(name)
    if model.capabilities.identity != "bitwise":
        pytest.skip("on this device rows depend on how many are computed together")
    cuts = [min(n, model.capabilities.max_rows) for n in cuts]
    text = some_text(sum(cuts) + 20, seed=seed)
    rows = []
    for pieces in (cuts, [1] * sum(cuts)):
        model.rollback(0)
        model.prefill(text[:20])
        found, start = [], 20
        for n in pieces:
            found.append(model.decode(Tree.sequence(text[start : start + n])).copy())
            model.keep(range(n))
            start += n
        rows.append(np.concatenate(found))
    assert np.array_equal(*rows)


@pytest.mark.parametrize("name", ["plain-mask4", "plain-mask4-f16"])
def test_a_graph_that_is_told_what_each_token_sees_takes_trees(open_it: Opener, name: str) -> None:
    model = open_it(name, trees=True, exact=False)
    assert model.capabilities.takes_trees
    text = some_text(40)
    model.prefill(text[:30])
    tree = Tree((500, 501, 502, 503, 504, 505), (-1, 0, 0, 2, 1, 3))
    rows = model.decode(Tree(tree.tokens[:3], tree.parents[:3])).copy()
    rows = np.concatenate([rows, model.decode(tree)])
    path = [0, 2, 3, 5]
    model.keep(path)
    assert model.n_past == 34
    after = next_row(model)
    model.rollback(30)
    alone = model.decode(Tree.sequence([500, 502, 503, 505, 777])).copy()
    tolerance = 1e-4 if name == "plain-mask4" else 0.05
    assert np.abs(rows[path] - alone[:4]).max() < tolerance
    assert np.abs(after - alone[4]).max() < tolerance


@pytest.mark.parametrize("name", ["plain", "genai", "genai-q4f16"])
def test_a_flat_mask_takes_sequences_only_and_says_so(open_it: Opener, published: Any, name: str) -> None:
    model = open_it(name, trees=True)
    assert not model.capabilities.takes_trees
    assert model.capabilities.can_rollback
    with pytest.raises(ValueError, match="sequences"):
        model.decode(Tree((400, 401), (-1, -1)))
    folder = published(name)
    with edge_spec.load(folder, draft=folder, speculation="tree", n_ctx=64, n_threads=1, cache_dir=None) as text_model:
        assert text_model.mode == "off"
        assert "tree" in text_model.notes[0]


def test_a_graph_of_one_row_is_run_without_drafts(open_it: Opener, published: Any) -> None:
    for name in ("plain-last", "plain-last-f16"):
        capabilities = open_it(name).capabilities
        assert (capabilities.max_rows, capabilities.identity) == (1, "bitwise")
    with edge_spec.load(published("plain-last"), speculation="ngram", n_ctx=64, n_threads=1, cache_dir=None) as model:
        reply = model.generate("Once upon a time", max_tokens=12, temperature=0)
        assert reply.read()
        assert reply.statistics.drafted == 0


# --- the cache


@EVERY
def test_rollback_restores_the_cache(open_it: Opener, name: str) -> None:
    model = open_it(name)
    text = some_text(100)
    model.prefill(text[:50])
    before = next_row(model)
    for n in (1, 3, model.capabilities.max_rows):
        tokens = text[50 : 50 + min(n, model.capabilities.max_rows)]
        model.decode(Tree.sequence(tokens))
        model.keep(range(len(tokens)))
    model.prefill(text[70:90])
    model.decode(Tree.sequence(text[90:91]))
    model.rollback(50)
    assert np.array_equal(before, next_row(model))
    model.rollback(20)
    model.prefill(text[20:50])
    assert np.allclose(before, next_row(model), atol=1e-3 if SIGNATURES[name][1] == "float32" else 0.1)


@SOME
def test_a_pending_sequence_can_be_grown(open_it: Opener, name: str) -> None:
    model = open_it(name)
    text = some_text(40)
    model.prefill(text[:30])
    first = model.decode(Tree.sequence(text[30:32])).copy()
    grown = model.decode(Tree.sequence(text[30:36])).copy()
    model.keep(range(6))
    after = next_row(model)
    model.rollback(30)
    rows = one_by_one(model, text[30:36])
    assert np.allclose(np.concatenate([first, grown]), rows, atol=0.1)
    assert np.allclose(after, next_row(model), atol=0.1)


@SOME
def test_a_saved_cache_comes_back_bit_for_bit(open_it: Opener, name: str) -> None:
    model, other = open_it(name), open_it(name, fresh=True)
    model.prefill(some_text(50))
    state = model.save()
    other.restore(state)
    assert other.n_past == 50
    assert np.array_equal(next_row(model), next_row(other))
    assert np.array_equal(one_by_one(model, [1, 2, 3]), one_by_one(other, [1, 2, 3]))
    strange = open_it("plain-q4")
    strange.prefill(some_text(5))
    for bad in (b"", state[:-1], state[:-1] + bytes([state[-1] ^ 1]), strange.save()):
        with pytest.raises(StateError):
            other.restore(bad)
        assert other.n_past == 0


@SOME
def test_a_full_context_is_refused_before_anything_happens(open_it: Opener, name: str) -> None:
    model = open_it(name, n_ctx=40)
    model.prefill(some_text(40))
    before = next_row(model)
    with pytest.raises(ContextFull):
        model.prefill(some_text(1))
    assert np.array_equal(before, next_row(model))


# --- stopping


@SOME
def test_a_cancel_before_a_decode_is_answered_once(open_it: Opener, name: str) -> None:
    model = open_it(name)
    model.prefill(some_text(20))
    before = next_row(model)
    model.cancel()
    with pytest.raises(Cancelled):
        model.decode(Tree.sequence([400]))
    assert np.array_equal(before, next_row(model))


@SOME
def test_a_cancel_amid_a_prompt_leaves_the_model_usable(open_it: Opener, name: str) -> None:
    model = open_it(name, n_ctx=900, prefill_chunk=16)
    text = some_text(900)
    timer = threading.Timer(0.02, model.cancel)
    timer.start()
    try:
        model.prefill(text)
    except Cancelled:
        assert model.n_past % 16 == 0
    timer.join()
    model.resume()
    reached = model.n_past
    model.rollback(min(reached, 8))
    model.prefill(text[model.n_past : 20])
    after = next_row(model)
    model.rollback(0)
    model.prefill(text[:20])
    assert np.allclose(after, next_row(model), atol=0.1)


@SOME
def test_after_close_there_is_nothing_but_closed(open_it: Opener, name: str) -> None:
    model = open_it(name, fresh=True, n_ctx=24)
    model.close()
    model.close()
    for call in (lambda: model.prefill([1]), lambda: model.decode(Tree.sequence([1])), model.save):
        with pytest.raises(Closed):
            call()


# --- texts


@pytest.fixture(scope="module")
def family(published: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Published models of three sizes beside the GGUFs they were made of."""
    root = tmp_path_factory.mktemp("family")
    target, intermediate = read_weights(DEMO.target), read_weights(DEMO.intermediate)
    publish(root / "target-genai", target, "genai", four_bits=True)
    publish(root / "intermediate-plain", intermediate, "plain")
    publish(root / "intermediate-genai", intermediate, "genai", "float16", four_bits=True)
    return {
        "target-genai": root / "target-genai",
        "intermediate-plain": root / "intermediate-plain",
        "intermediate-genai": root / "intermediate-genai",
        "draft-plain": published("plain"),
        "draft-genai": published("genai-q4"),
        "target-gguf": DEMO.target,
        "intermediate-gguf": DEMO.intermediate,
        "draft-gguf": DEMO.draft,
    }


MIXES = [
    ("target-genai", "intermediate-genai", "draft-genai"),
    ("target-genai", "intermediate-gguf", "draft-plain"),
    ("intermediate-plain", "draft-genai", "draft-gguf"),
    ("target-gguf", "intermediate-plain", "draft-genai"),
]


@pytest.mark.parametrize("mix", MIXES, ids="+".join)
def test_text_is_identical_with_every_drafter(
    family: dict[str, Path], prompts: list[str], probe_cache: Path, mix: tuple[str, str, str]
) -> None:
    target, intermediate, draft = (family[name] for name in mix)
    engine = "llama" if mix[0].endswith("gguf") else "auto"
    texts: dict[str, list[list[int]]] = {}
    accepted = 0
    for mode in ("off", "ngram", "sequence", "hierarchy"):
        with edge_spec.load(
            target,
            draft=draft,
            intermediate=intermediate,
            speculation=mode,
            engine=engine,
            n_ctx=256,
            n_threads=1,
            cache_dir=probe_cache,
        ) as model:
            if model.identity != "bitwise":
                pytest.skip("on this device rows depend on how many are computed together")
            assert model.mode == mode
            assert model.profile.engine == ("llama" if engine == "llama" else "onnx")
            for number, prompt in enumerate(prompts[:3]):
                for temperature in (0, 0.9):
                    reply = model.generate(prompt, max_tokens=32, seed=number, temperature=temperature)
                    reply.read()
                    texts.setdefault(mode, []).append(reply.token_ids)
                    accepted += reply.statistics.accepted if mode == "sequence" else 0
    for mode, found in texts.items():
        assert found == texts["off"], mode
    assert accepted > 0


def test_a_published_model_follows_grammars_with_every_drafter(family: dict[str, Path], probe_cache: Path) -> None:
    properties = {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}}
    schema = {"properties": properties, "required": list(properties)}
    texts = {}
    for mode in ("off", "ngram", "sequence"):
        with edge_spec.load(
            family["target-genai"],
            draft=family["draft-genai"],
            speculation=mode,
            n_ctx=128,
            n_threads=1,
            cache_dir=probe_cache,
        ) as model:
            texts[mode] = model.generate("A dog:", json_schema=schema, seed=3, max_tokens=60).read()
            assert any(line.name == "vocabulary of grammars" for line in model.ledger)
            with pytest.raises(SettingsError):
                model.generate("A dog:", grammar='root ::= "a').read()
    assert set(json.loads(texts["off"])) == {"name", "old"}
    assert len(set(texts.values())) == 1


def test_grammars_of_all_threads_share_one_tokeniser_and_one_vocabulary(
    family: dict[str, Path], probe_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(name: str, kind: Any) -> Callable[..., Any]:
        def make(*args: Any, **values: Any) -> Any:
            made.append(name)
            if made.count("vocabulary") == 1 and name == "vocabulary":
                raise MemoryError
            sleep(0.05)
            return kind(*args, **values)

        return make

    monkeypatch.setattr("edge_spec.engines.tokenizers.JsonTokenizer", counted("tokeniser", JsonTokenizer))
    monkeypatch.setattr(
        "edge_spec.engines.tokenizers.ExternalVocabulary", counted("vocabulary", ExternalVocabulary)
    )
    with edge_spec.load(
        family["target-genai"], speculation="off", n_ctx=128, n_threads=1, cache_dir=probe_cache
    ) as model:
        held = model.ledger.held_bytes
        with pytest.raises(MemoryError):
            model.grammar_of('root ::= "a"', None)
        assert model.ledger.held_bytes == held
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(lambda n: model.grammar_of(f'root ::= "{n}"', None), range(4)))
        assert made == ["tokeniser", "vocabulary", "vocabulary"]
        (line,) = (line for line in model.ledger if line.name == "vocabulary of grammars")
        assert line.predicted_bytes == external_vocabulary_bytes(model.n_vocab)
        assert line.measured_bytes is not None


def test_a_published_model_writes_what_its_network_would(
    published: Callable[[str], Path], numbers: Weights, prompts: list[str], probe_cache: Path
) -> None:
    """At temperature 0 numbers that round differently only part at near ties, and these prompts have none."""
    texts = []
    with edge_spec.load(DEMO.draft, speculation="off", n_ctx=128, n_threads=1, cache_dir=probe_cache) as model:
        expected_prompts = [model.prompt_of(prompt) for prompt in prompts[:2]]
    for name in ("plain", "genai"):
        with edge_spec.load(published(name), speculation="off", n_ctx=128, n_threads=1, cache_dir=probe_cache) as model:
            assert [model.prompt_of(prompt) for prompt in prompts[:2]] == expected_prompts
            replies = [model.generate(prompt, max_tokens=20, temperature=0) for prompt in prompts[:2]]
            texts.append([(reply.read(), reply.token_ids, reply.finish_reason) for reply in replies])
            assert all(model.detokenize(tokens) == text for text, tokens, _ in texts[-1])
    assert texts[0] == texts[1]
    for prompt, (_, tokens, _) in zip(expected_prompts, texts[0], strict=True):
        rows = reference(numbers, [*prompt, *tokens], four_bits=False)[len(prompt) - 1 : -1]
        assert rows.argmax(-1).tolist() == tokens


# --- what is refused


def test_llama_cpp_does_not_run_graphs(published: Callable[[str], Path]) -> None:
    folder = published("plain")
    with pytest.raises(UnsupportedModel, match="target model: it is an ONNX graph"):
        edge_spec.load(folder, engine="llama")
    with pytest.raises(UnsupportedModel, match="draft model: it is an ONNX graph"):
        edge_spec.load(DEMO.target, draft=folder, draft_engine="llama")
    with pytest.raises(SettingsError, match="kv_k"):
        edge_spec.load(folder, kv_k="f16", speculation="off")


def test_a_context_beyond_memory_is_refused_before_anything_is_loaded(published: Callable[[str], Path]) -> None:
    with pytest.raises(OutOfMemory):
        edge_spec.load(published("genai"), n_ctx=1_000_000_000, cache_dir=None)


def test_prompts_are_read_in_chunks_that_bound_what_a_run_takes(open_it: Opener, published: Any) -> None:
    """Rows of 8192 logits are few bytes; the scores of long contexts and of more heads are not."""
    assert open_it("plain").settings.prefill_chunk == 512
    file = inspect(published("plain"))
    wide = ModelSettings(n_ctx=60_000, n_threads=1)
    model = open_published(file, wide, cache_dir=None)[0]
    try:
        assert wide.max_rows <= model.settings.prefill_chunk < 512
        assert model.n_ctx == 60_000
    finally:
        model.close()


def test_a_graph_that_onnx_runtime_does_not_take_is_unsupported(
    numbers: Weights, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import onnx

    path = publish(tmp_path, numbers, "genai")
    whole = onnx.load(path, load_external_data=False)

    def refused(change: Callable[[Any], object]) -> str:
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        change(model)
        onnx.save(model, path)
        with pytest.raises(UnsupportedModel) as raised:
            open_published(inspect(path), ModelSettings(n_ctx=64, n_threads=1), cache_dir=None)
        assert "\n" not in str(raised.value)
        assert raised.value.hint
        return str(raised.value)

    def first(model: Any, operator: str) -> Any:
        return next(node for node in model.graph.node if node.op_type == operator)

    assert "FusedMagic" in refused(lambda model: setattr(first(model, "MatMul"), "op_type", "FusedMagic"))
    assert "org.strange" in refused(lambda model: setattr(first(model, "MatMul"), "domain", "org.strange"))
    assert "IR version" in refused(lambda model: setattr(model, "ir_version", 99))
    # What only shows when it runs: keys of three heads where the cache has one.
    shapes = refused(lambda model: setattr(first(model, "GroupQueryAttention").attribute[1], "i", 3))
    assert "cannot be run" in shapes or "cannot load" in shapes
    assert refused(lambda model: model.graph.initializer[0].dims.append(7))
    assert capfd.readouterr().out == ""


def test_a_failure_of_a_run_is_one_of_ours_and_passes(open_it: Opener) -> None:
    model = open_it("plain")
    model.prefill(some_text(10))
    before = next_row(model)
    with pytest.raises(BackendError):
        model.decode(Tree.sequence([99_999]))
    assert np.array_equal(before, next_row(model))
