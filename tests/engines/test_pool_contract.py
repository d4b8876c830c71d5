"""The contract of pools, on every engine: what a text is among others, and what changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_files import HybridFiles
from logits_rows import next_row
from lone_text import lone_text

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.settings import LlamaSettings
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.registry import engine
from edge_spec.engines.settings import ModelSettings
from edge_spec.errors import Cancelled, Closed, PoolFull
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.pool import TILE, Pool
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.testing import TableModel, random_table

TARGET = inspect(resolve_family("demo").target)
TABLE = random_table(600, order=1, seed=1)
TOKENS = range(300, 500)
Opener = Callable[[], Any]


@pytest.fixture(params=["table", "onnx", "llama"])
def opened(
    request: pytest.FixtureRequest, weights: Callable[[str], LlamaWeights], probe_cache: Path
) -> Iterator[Opener]:
    """Opens a pool for several texts, and returns the first one."""
    closed: list[Callable[[], None]] = []
    if request.param == "onnx" and available() is not None:
        pytest.skip("the kernels were not built")

    def open_it() -> Any:
        if request.param == "table":
            return TableModel(TABLE, n_ctx=120, n_cells=160, max_rows=16)
        if request.param == "onnx":
            onnx = engine("onnx")
            opener = onnx.opener(cache_dir=probe_cache)
            settings = onnx.resolve(TARGET, ModelSettings(n_ctx=120, n_threads=1, prefill_chunk=32))
            model = lone_text(opener.open(TARGET, settings).pool)
            closed.extend((model.close, opener.close))
            return model
        settings = LlamaSettings(n_ctx=120, n_threads=1, prefill_chunk=32)
        model = lone_text(open_llama(weights("target"), settings, file=TARGET.fingerprint, cache_dir=probe_cache)[0])
        closed.append(model.close)
        return model

    yield open_it
    for close in closed:
        close()


def some_tokens(chance: random.Random, n: int) -> list[int]:
    return [chance.choice(TOKENS) for _ in range(n)]


@pytest.mark.long
def test_it_is_a_pool_with_paths(opened: Opener) -> None:
    model = opened()
    assert isinstance(model, TextPath) and isinstance(model.pool, Pool)
    assert model.pool.max_paths >= 16
    assert model.pool.n_free == model.pool.n_cells >= 120


@pytest.mark.long
def test_prompts_read_together_leave_the_cells_of_each_read_alone(opened: Opener) -> None:
    root, alone = opened(), opened()
    chance = random.Random(2)
    root.pool.resize(1200)
    texts = [some_tokens(chance, n) for n in (40, 1, 0, 33, 7, 64, 17, 100, 2)]
    paths = [root.pool.path() for _ in texts]
    first = [chance.randrange(len(text) + 1) for text in texts]
    root.pool.prefill([(path, text[:n]) for path, text, n in zip(paths, texts, first, strict=True)])
    root.pool.prefill([(path, text[n:]) for path, text, n in zip(paths, texts, first, strict=True)])
    for path, text in zip(paths, texts, strict=True):
        alone.rollback(0)
        alone.prefill(text)
        assert path.save() == alone.save()


def test_a_beginning_is_held_once_and_writing_after_it_changes_no_other_text(opened: Opener) -> None:
    model = opened()
    pool = model.pool
    model.prefill(some_tokens(random.Random(3), 70))
    before, n_free = model.save(), pool.n_free
    forks = [model.fork(70), model.fork(64)]
    # At most the tile in which it forks is copied.
    assert pool.n_free >= n_free - TILE
    assert pool.n_shared >= 64
    forks[1].rollback(20)
    pool.decode([(path, Tree.sequence([400])) for path in forks])
    for path in forks:
        path.keep([0])
    forks[0].shift(3, 40)
    assert model.save() == before
    assert [path.n_past for path in forks] == [71 - 37, 21]


def test_what_does_not_fit_the_pool_changes_nothing(opened: Opener) -> None:
    model = opened()
    pool = model.pool
    pool.resize(64)
    model.prefill(list(TOKENS[:40]))
    other = pool.path()
    other.prefill([300])
    model.decode(Tree.sequence([400] * 8))
    pending, n_free = model.pending, pool.n_free
    for refused in (
        lambda: pool.decode([(other, Tree.sequence([401] * 15)), (model, Tree.sequence([400] * 9))]),
        lambda: other.prefill([300] * 16),
    ):
        with pytest.raises(PoolFull) as full:
            refused()
        assert full.value.n_free < full.value.n_needed
        assert "\n" not in str(full.value)
        assert (model.n_past, other.n_past, model.pending, other.pending) == (40, 1, pending, EMPTY)
        assert pool.n_free == n_free
    with pytest.raises(ValueError, match=r"h[eo]ld"):
        pool.resize(40)
    assert pool.n_cells == 64
    with pytest.raises(PoolFull):
        pool.prefill([(other, [301] * 15), (model, [301] * 9)])
    assert (model.n_past, other.n_past) == (40, 1)


def test_a_cancelled_decode_leaves_all_paths_as_they_were_committed(opened: Opener) -> None:
    model = opened()
    other = model.fork(0)
    model.pool.prefill([(model, list(TOKENS[:40])), (other, list(TOKENS[50:65]))])
    rows, free = [next_row(path, 450) for path in (model, other)], model.pool.n_free
    model.pool.decode([(model, Tree.sequence([305, 306, 307])), (other, Tree.sequence([308, 309]))])
    model.pool.cancel()
    with pytest.raises(Cancelled):
        model.pool.decode([(model, Tree.sequence([305, 306, 307, 308])), (other, Tree.sequence([308, 309, 310]))])
    assert (model.n_past, other.n_past, model.pending, other.pending) == (40, 15, EMPTY, EMPTY)
    assert model.pool.n_free == free
    assert all(np.array_equal(next_row(path, 450), row) for path, row in zip((model, other), rows, strict=True))


def test_what_no_pool_can_decode_is_refused(opened: Opener) -> None:
    model = opened()
    other, stranger = model.fork(0), opened()
    with pytest.raises(ValueError, match="twice"):
        model.pool.decode([(model, Tree.sequence([300])), (model, Tree.sequence([300]))])
    with pytest.raises(ValueError, match="17 rows"):
        model.pool.decode([(model, Tree.sequence([300] * 9)), (other, Tree.sequence([300] * 8))])
    with pytest.raises(ValueError, match="another pool"):
        model.pool.decode([(stranger, Tree.sequence([300]))])
    other.close()
    other.close()
    with pytest.raises(Closed):
        other.decode(Tree.sequence([300]))
    other = model.fork(0)
    model.close()
    other.close()
    for path in (model, other):
        with pytest.raises(Closed):
            path.prefill([300])


@pytest.fixture(params=["llama, f16", "llama, recurrent", "published"])
def lone(
    request: pytest.FixtureRequest,
    weights: Callable[[str], LlamaWeights],
    hybrids: HybridFiles,
    probe_cache: Path,
    open_it: Callable[..., Any],
) -> Iterator[Any]:
    """A path of a pool for one text."""
    if request.param == "published":
        yield open_it("plain", fresh=True)
        return
    file = inspect(hybrids["lfm2"]) if "recurrent" in request.param else TARGET
    own = LlamaWeights(file.path) if file is not TARGET else weights("target")
    settings = LlamaSettings(n_ctx=120, n_threads=1, kv_k="f16", kv_v="f16")
    model = lone_text(open_llama(own, settings, file=file.fingerprint, cache_dir=probe_cache)[0])
    yield model
    model.close()
    if file is not TARGET:
        own.close()


@pytest.mark.long
def test_a_pool_of_one_text_takes_another_when_the_first_has_given_its_cells_back(lone: Any) -> None:
    pool, text = lone.pool, list(range(30, 50))
    assert pool.max_paths == 1
    other = pool.path()
    lone.prefill(text)
    row, state, n_free = next_row(lone, 45), lone.save(), pool.n_free
    for refused in (
        lambda: other.prefill([40]),
        lambda: other.decode(Tree.sequence([40])),
        lambda: other.restore(state),
        lambda: lone.fork(5),
        lambda: pool.decode([(lone, Tree.sequence([40])), (other, Tree.sequence([41]))]),
    ):
        with pytest.raises(PoolFull, match="no more than 1 text"):
            refused()
        assert (lone.n_past, other.n_past, pool.n_free) == (20, 0, n_free)
    assert pool.n_more(other, 1) > pool.n_free
    assert np.array_equal(next_row(lone, 45), row)
    assert lone.save() == state
    lone.rollback(0)
    assert pool.n_more(other, 1) == 1
    other.restore(state)
    assert np.array_equal(next_row(other, 45), row)
    other.close()
    lone.prefill(text)
    assert np.array_equal(next_row(lone, 45), row)
