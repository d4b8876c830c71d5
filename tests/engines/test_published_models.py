"""Laws of published ONNX models as they run: rows, rollback, trees, state, cancelling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_rows import next_row, one_by_one, some_text
from published_signatures import SIGNATURES, reference
from published_weights import Weights

import edge_spec
from edge_spec.engines.onnx.published_pool import PublishedPath
from edge_spec.errors import (
    Cancelled,
    Closed,
    ContextFull,
    StateError,
)
from edge_spec.speculation.language_model import ANYWHERE
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

EVERY = pytest.mark.parametrize("name", SIGNATURES)
SOME = pytest.mark.parametrize("name", ["plain", "plain-f16-keep", "genai-q4", "genai-f16"])

Opener = Callable[..., PublishedPath]


# --- rows


@EVERY
def test_rows_are_those_of_the_network_written_down(open_it: Opener, numbers: Weights, name: str) -> None:
    text = some_text(60)
    model = open_it(name)
    assert isinstance(model, TextPath)
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
def test_a_row_does_not_depend_on_the_other_rows_of_its_decode(
    open_it: Opener, name: str, cuts: list[int], seed: int
) -> None:
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
    assert model.capabilities.rollback == ANYWHERE
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
