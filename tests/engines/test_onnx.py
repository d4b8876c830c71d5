"""Laws of models on ONNX Runtime: rows, trees, rollback, state, cancelling."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import EXPERT_FAMILIES, FAMILIES
from gguf_files import GEMMA3, MATRICES, PHI3, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_rows import next_row, some_text
from lone_text import lone_text

from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import open_onnx
from edge_spec.engines.onnx.pool import OnnxPath
from edge_spec.engines.onnx.transcription.cache import transcribe
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Cancelled, Closed, ContextFull, SettingsError, StateError
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.language_model import ANYWHERE
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

Opener = Callable[..., OnnxPath]


LLAMA: dict[str, Any] = {}


@pytest.fixture(scope="module")
def open_demo_onnx(probe_cache: Path) -> Iterator[Opener]:
    """Opens a demo model, the same one for the same settings; it may hold an earlier text."""
    opened: dict[Any, OnnxPath] = {}

    def open_it(role: str = "draft", *, fresh: bool = False, **values: Any) -> OnnxPath:
        key = (role, len(opened) if fresh else -1, tuple(sorted(values.items())))
        if key not in opened:
            file = inspect(getattr(resolve_family("demo"), role))
            source = transcribe(file, probe_cache / "onnx")
            given_values = ModelSettings(**({"n_ctx": 640, "n_threads": 1} | values))
            opened[key] = lone_text(open_onnx(source, given_values, file=file.fingerprint, cache_dir=probe_cache)[0])
        model = opened[key]
        model.resume()
        model.rollback(0)
        return model

    yield open_it
    for model in opened.values():
        model.close()


@pytest.fixture
def small(open_demo_onnx: Opener) -> OnnxPath:
    """The drafter's model, which answers fast, with an empty cache."""
    return open_demo_onnx(trees=True)


# --- rows


def test_the_demo_target_takes_drafts_bit_for_bit(open_demo_onnx: Opener) -> None:
    model = open_demo_onnx("target")
    assert isinstance(model, TextPath)
    assert model.capabilities.rollback == ANYWHERE
    assert set(range(2, 9)) <= set(model.capabilities.widths)
    assert 1 in model.capabilities.widths
    assert open_demo_onnx("target", trees=True).capabilities.takes_trees
    assert model.capabilities.identity == "bitwise"
    assert model.profile.engine == "onnx"


def test_a_graph_for_trees_computes_sequences_alike(open_demo_onnx: Opener) -> None:
    text = some_text(60)
    rows = []
    for trees in (False, True):
        model = open_demo_onnx("target", trees=trees)
        model.prefill(text[:50])
        rows.append(model.decode(Tree.sequence(text[50:])).copy())
    assert np.array_equal(*rows)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.integers(0, 3))
def test_a_row_does_not_depend_on_the_other_rows_of_its_decode(
    open_demo_onnx: Opener, cuts: list[int], seed: int
) -> None:
    model = open_demo_onnx()
    text = some_text(sum(cuts) + 20, seed=seed)
    rows = []
    for pieces in (cuts, [4] * (-(-sum(cuts) // 4))):
        model.rollback(0)
        model.prefill(text[:20])
        found, start = [], 20
        for n in pieces:
            part = Tree.sequence(text[start : start + n])
            found.append(model.decode(part).copy())
            model.keep(range(len(part)))
            start += n
        rows.append(np.concatenate(found)[: sum(cuts)])
    assert np.array_equal(*rows)


@pytest.mark.long
@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(LLAMA, id="llama"),
        pytest.param(GEMMA3, id="gemma3"),
        pytest.param(PHI3, id="phi3"),
        pytest.param(FAMILIES["smollm3"], id="smollm3"),
        pytest.param(FAMILIES["mistral3"], id="mistral3"),
        pytest.param(FAMILIES["granite"], id="granite"),
        pytest.param(FAMILIES["olmo2 with windows"], id="olmo2"),
        pytest.param(EXPERT_FAMILIES["qwen3moe, 4 of 32"], id="qwen3moe"),
        pytest.param(EXPERT_FAMILIES["gpt-oss, 4 of 32"], id="gpt-oss"),
        pytest.param(EXPERT_FAMILIES["qwen2moe, 2 of 8, one shared"], id="qwen2moe"),
        pytest.param({"kinds": dict.fromkeys(MATRICES, "BF16")}, id="BF16"),
        pytest.param({"kinds": dict.fromkeys(MATRICES, "Q2_K")}, id="Q2_K"),
    ],
)
def test_every_architecture_takes_drafts_bit_for_bit(tmp_path: Path, made: dict[str, Any], kv: str) -> None:
    source = transcribe(inspect(write_gguf(tmp_path / "model.gguf", **made)), tmp_path)
    given_values = ModelSettings(n_ctx=600, n_threads=1, trees=True, kv_k=kv, kv_v=kv)
    pool, found = open_onnx(source, given_values, file="x", cache_dir=None)
    model = lone_text(pool)
    assert found.capabilities.takes_trees
    assert set(range(1, 9)) <= set(found.capabilities.widths)
    assert ("kv", f"{kv}/{kv}") in model.profile.facts
    text = some_text(80, most=384)
    model.prefill(text[:40])
    rows = [model.decode(Tree.sequence(text[40:52])).copy()]
    model.keep(range(12))
    state = model.save()
    after = model.decode(Tree.sequence(text[52:56])).copy()
    model.restore(state)
    assert np.array_equal(model.decode(Tree.sequence(text[52:56])), after)
    model.rollback(0)
    for token in text[:40]:
        model.decode(Tree.sequence([token]))
        model.keep([0])
    rows.append(np.concatenate([_next_rows(model, [token]) for token in text[40:52]]))
    assert np.array_equal(*rows)
    model.close()


def _next_rows(model: OnnxPath, tokens: list[int]) -> np.ndarray[Any, Any]:
    rows = model.decode(Tree.sequence(tokens)).copy()
    model.keep(range(len(tokens)))
    return rows


def _trees(n: int) -> st.SearchStrategy[Tree]:
    parents = st.tuples(*(st.integers(-1, node - 1) for node in range(n)))
    tokens = st.lists(st.integers(300, 8191), min_size=n, max_size=n, unique=True)
    return st.builds(lambda p, t: Tree(tuple(t), tuple(p)), parents, tokens)


@settings(max_examples=25)
@given(st.data())
def test_every_branch_of_a_tree_is_computed_like_a_sequence(small: OnnxPath, data: st.DataObject) -> None:
    tree = data.draw(st.integers(1, 12).flatmap(_trees))
    grown = data.draw(st.integers(1, len(tree)))
    text = some_text(30)
    small.rollback(0)
    small.prefill(text)
    rows = small.decode(Tree(tree.tokens[:grown], tree.parents[:grown])).copy()
    if grown < len(tree):
        rows = np.concatenate([rows, small.decode(tree)])
    path = tree.path_to(data.draw(st.integers(0, len(tree) - 1)))
    small.keep(path)
    assert small.n_past == len(text) + len(path)
    after = next_row(small)
    branch = [tree.tokens[node] for node in path]
    small.rollback(len(text))
    alone = small.decode(Tree.sequence([*branch, 777])).copy()
    small.rollback(small.n_past)
    assert (small.capabilities.takes_trees, small.settings.exact, small.capabilities.identity) == (
        True,
        True,
        "bitwise",
    )
    assert np.array_equal(rows[path], alone[:-1])
    assert np.array_equal(after, alone[-1])


def test_a_first_branch_is_kept_bit_for_bit(small: OnnxPath) -> None:
    text = some_text(40)
    small.prefill(text[:30])
    small.decode(Tree((text[30], text[31], 999, text[32]), (-1, 0, 0, 1)))
    small.keep([0, 1])
    after = next_row(small)
    small.rollback(0)
    small.prefill(text[:30])
    small.decode(Tree.sequence(text[30:32]))
    small.keep([0, 1])
    assert np.array_equal(after, next_row(small))


# --- the cache


def test_rollback_restores_the_cache(small: OnnxPath) -> None:
    text = some_text(100)
    small.prefill(text[:50])
    before = next_row(small)
    small.decode(Tree.sequence(text[50:60]))
    small.keep(range(10))
    small.decode(Tree.sequence(text[60:64]))
    small.rollback(50)
    assert np.array_equal(before, next_row(small))


def test_a_saved_cache_comes_back_bit_for_bit(open_demo_onnx: Opener) -> None:
    model, other = open_demo_onnx(), open_demo_onnx(fresh=True)
    model.prefill(some_text(50))
    state = model.save()
    other.restore(state)
    assert other.n_past == 50
    assert np.array_equal(next_row(model), next_row(other))


def test_damaged_state_and_that_of_others_is_refused(open_demo_onnx: Opener) -> None:
    model = open_demo_onnx()
    model.prefill(some_text(20))
    state = model.save()
    for bad in (b"", state[:-1], state[:-1] + bytes([state[-1] ^ 1]), open_demo_onnx("intermediate").save()):
        with pytest.raises(StateError):
            model.restore(bad)
        assert model.n_past == 0
    model.restore(state)
    assert model.n_past == 20


def test_a_full_context_is_refused_before_anything_happens(open_demo_onnx: Opener) -> None:
    model = open_demo_onnx(n_ctx=32)
    model.prefill(some_text(32))
    before = next_row(model)
    with pytest.raises(ContextFull):
        model.prefill(some_text(17))
    with pytest.raises(ContextFull):
        model.rollback(32)
        model.prefill(some_text(16))
        model.decode(Tree.sequence([1]))
    model.rollback(32)
    assert np.array_equal(before, next_row(model))


def test_wrong_calls_are_told(small: OnnxPath) -> None:
    with pytest.raises(ValueError, match="rows"):
        small.decode(Tree.sequence(some_text(17)))
    small.decode(Tree.sequence([400, 401]))
    with pytest.raises(ValueError, match="grown"):
        small.decode(Tree.sequence([400, 402, 403]))
    with pytest.raises(ValueError, match="path"):
        small.keep([1])
    with pytest.raises(ValueError, match="rollback"):
        small.rollback(1)
    for wrong in ({"n_ctx": 0}, {"n_ctx": 8, "kv_k": "q3"}):
        with pytest.raises(SettingsError):
            ModelSettings(**wrong)


# --- stopping


def test_a_cancel_ends_a_long_prefill_and_leaves_the_model_usable(open_demo_onnx: Opener) -> None:
    model = open_demo_onnx("target", n_ctx=8000)
    timer = threading.Timer(0.1, model.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        model.prefill(some_text(8000))
    n_past = model.n_past
    assert n_past < 8000 and n_past % model.settings.prefill_chunk == 0
    model.rollback(min(n_past, 5))
    next_row(model)


def test_a_cancel_before_a_decode_is_answered_once(small: OnnxPath) -> None:
    small.prefill(some_text(20))
    small.cancel()
    with pytest.raises(Cancelled):
        small.decode(Tree.sequence([400]))
    before = next_row(small)
    small.cancel()
    small.resume()
    assert np.array_equal(before, next_row(small))


def test_after_close_there_is_nothing_but_closed(open_demo_onnx: Opener) -> None:
    model = open_demo_onnx(fresh=True, n_ctx=24)
    model.close()
    model.close()
    for call in (lambda: model.prefill([1]), lambda: model.decode(Tree.sequence([1])), model.save):
        with pytest.raises(Closed):
            call()
