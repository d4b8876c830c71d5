"""Laws of the pool of a llama.cpp context: every path has the bits of a text that has a context for itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logits_rows import next_row
from lone_text import lone_text
from paths_in_company import PathsInCompany
from paths_in_company import some_tokens as tokens
from weekly import seeds

from edge_spec.engines.llama.engine import open_llama
from edge_spec.engines.llama.library_context import LibraryContext
from edge_spec.engines.llama.pool import LlamaPath, LlamaPool
from edge_spec.engines.llama.settings import LlamaSettings, llama_settings
from edge_spec.errors import BackendError, PoolFull
from edge_spec.llama_cpp.weights import LlamaWeights
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.long

TARGET = inspect(resolve_family("demo").target)
ACTS = ("decode", "decode", "decode", "decode", "prefill", "keep", "keep", "rollback", "fork", "shift", "close")
RARE = ("resize", "save")
Opener = Callable[..., LlamaPath]


@pytest.fixture(scope="module")
def opened(weights: Callable[[str], LlamaWeights], probe_cache: Path) -> Iterator[Opener]:
    models: list[Any] = []

    def open_it(**changes: Any) -> Any:
        settings = LlamaSettings(**{"n_ctx": 120, "n_threads": 1, "prefill_chunk": 32} | changes)
        models.append(
            lone_text(open_llama(weights("target"), settings, file=TARGET.fingerprint, cache_dir=probe_cache)[0])
        )
        return models[-1]

    yield open_it
    for model in models:
        model.close()


@pytest.fixture
def model(opened: Opener) -> Iterator[LlamaPath]:
    model = opened()
    yield model
    model.close()


class Texts(PathsInCompany):
    most_tiles = 40

    def chosen(self) -> str:
        return self.chance.choice(ACTS if self.chance.randrange(8) else RARE)

    def drafted(self, path: LlamaPath) -> Tree:
        return Tree.sequence([*path.pending.tokens, *tokens(self.chance, self.chance.randrange(1, 5))])

    def kept(self, path: LlamaPath) -> range:
        return range(self.chance.randrange(len(path.pending) + 1))


@pytest.mark.parametrize("seed", seeds(3, weekly=40))
@pytest.mark.parametrize("kinds", [("q8_0", "f16"), ("q8_0", "q8_0")], ids="/".join)
def test_every_path_has_the_bits_of_a_text_alone(opened: Opener, kinds: tuple[str, str], seed: int) -> None:
    """Random drafts, reading, forks, going back, shifts, resizing and saving, in company."""
    kv_k, kv_v = kinds
    root, alone = (opened(kv_k=kv_k, kv_v=kv_v) for _ in range(2))
    if root.pool.max_paths == 1:
        pytest.skip("on this device, or with these caches, texts in company differ")
    texts = Texts(root, seed)

    def look() -> None:
        held = {cell for path in texts.paths for cell in path.cells}
        assert texts.pool.n_free == texts.pool.n_cells - len(held)
        assert all(sorted(set(path.cells)) == path.cells for path in texts.paths)

    texts.play(alone, 70, 60, look)
    root.close()
    alone.close()


def test_texts_in_company_have_the_cells_of_each_alone_with_the_usual_caches(opened: Opener) -> None:
    """Those that a user gets who asks for nothing."""
    model = opened(n_ctx=640)
    assert model.capabilities.in_company
    assert model.pool.max_paths == 16


@pytest.mark.parametrize("max_rows", [pytest.param(4, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize(
    "differs",
    [
        lambda pool, trees: pool.n_cells - pool.n_free > 512,
        lambda pool, trees: pool.n_shared > 0,
        lambda pool, trees: [path.cells[0] for path, _ in trees] != sorted(path.cells[0] for path, _ in trees),
        lambda pool, trees: any(path.cells[-1] - path.cells[0] >= len(path.cells) for path, _ in trees),
    ],
    ids=["many cells", "a shared beginning", "another order", "cells of others between"],
)
def test_whatever_differs_in_company_is_found(
    differs: Callable[[LlamaPool, Any], bool],
    max_rows: int,
    weights: Callable[[str], LlamaWeights],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = LlamaPool.decode

    def decoded(pool: LlamaPool, trees: Any) -> list[Any]:
        differing = len(trees) > 1 and differs(pool, trees)
        found = [rows.copy() for rows in decode(pool, trees)]
        if differing:
            found[-1][0, 7] = np.nextafter(found[-1][0, 7], np.float32(9))
        return found

    monkeypatch.setattr(LlamaPool, "decode", decoded)
    settings = LlamaSettings(n_ctx=1600, n_threads=1, max_rows=max_rows)
    pool, found = open_llama(weights("target"), settings, file=TARGET.fingerprint, cache_dir=None)
    model = lone_text(pool)
    model.close()
    assert (found.capabilities.reuse_step, found.capabilities.in_company) == (1, False)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_caches_that_are_read_by_tiles_hold_one_text(opened: Opener, kind: str) -> None:
    """There the sums of attention depend on where the cells of a text lie."""
    assert opened(kv_k=kind, kv_v=kind).pool.max_paths == 1
    assert opened(flash_attention=False).pool.max_paths == 1


def test_a_beginning_is_shared(model: LlamaPath) -> None:
    pool, n = model.pool, model.pool.n_cells
    assert pool.n_free == n
    model.prefill(list(range(300, 370)))
    forks = [model.fork(70), model.fork(64)]
    assert (pool.n_free, pool.n_shared) == (n - 70, 70)
    assert [pool.n_more(path, 6) for path in (model, *forks)] == [6, 6, 6]
    before = model.save()
    forks[1].rollback(20)
    pool.decode([(path, Tree.sequence([500])) for path in forks])
    for path in forks:
        path.keep([0])
    forks[0].shift(3, 40)
    assert model.save() == before
    pool.resize(400)
    assert (pool.n_shared, pool.n_free) == (20, 400 - 70 - 1 - 34)
    assert model.save() == before


def test_there_are_as_many_texts_as_a_decode_has_rows(model: LlamaPath) -> None:
    pool = model.pool
    paths = [pool.path() for _ in range(pool.max_paths + 1)]
    model.prefill([300])
    pool.prefill([(path, [300]) for path in paths[2:]])
    for refused in (lambda: paths[0].prefill([300]), lambda: model.fork(1)):
        with pytest.raises(PoolFull, match="no more than 16 texts can have cells at a time"):
            refused()
    assert pool.n_more(paths[0], 1) > pool.n_free
    paths.pop().rollback(0)
    assert pool.n_more(paths[0], 1) == 1
    assert model.fork(1).n_past == 1


def test_a_pool_that_has_no_memory_for_another_size_stays_as_it_was(
    model: LlamaPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.prefill(list(range(300, 340)))
    fork = model.fork(35)
    row, cells, saved = next_row(model), model.pool.n_cells, (model.save(), fork.save())
    opened = LibraryContext.open

    def refusing(context: LibraryContext, n_cells: int) -> None:
        if n_cells > 400:
            context.close()
            raise BackendError("no memory")
        opened(context, n_cells)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(LibraryContext, "open", refusing)
        model.pool.resize(500)
    assert np.array_equal(next_row(model), row)
    assert (model.pool.n_cells, model.save(), fork.save()) == (cells, *saved)
    model.pool.resize(160)
    fork.prefill([7] * 50)
    assert np.array_equal(next_row(model), row)


@pytest.mark.parametrize("n_read", [0, 12])
def test_a_decode_that_is_interrupted_leaves_no_cell(
    model: LlamaPath, opened: Opener, monkeypatch: pytest.MonkeyPatch, n_read: int
) -> None:
    """Ctrl-C may come when the library is done and nobody knows of it."""
    chance, pool = random.Random(3), model.pool
    begin = tokens(chance, n_read)
    model.prefill(begin)
    take = pool._take

    def struck(path: LlamaPath, n: int) -> None:
        raise KeyboardInterrupt

    other = pool.path()
    monkeypatch.setattr(pool, "_take", struck)
    with pytest.raises(KeyboardInterrupt):
        pool.decode([(model, Tree.sequence([400, 401])), (other, Tree.sequence([500]))])
    monkeypatch.setattr(pool, "_take", take)
    for path in (model, other):
        path.rollback(path.n_past)
    alone = opened()
    alone.prefill(begin)
    expected = [alone.decode(Tree.sequence([402]))[0].copy()]
    alone.rollback(0)
    expected.append(alone.decode(Tree.sequence([600]))[0].copy())
    found = pool.decode([(model, Tree.sequence([402])), (other, Tree.sequence([600]))])
    assert all(np.array_equal(rows[0], row) for rows, row in zip(found, expected, strict=True))


def test_models_with_a_window_hold_one_text() -> None:
    """Cells beyond the window are given to whoever comes, in any order."""
    assert TARGET.sliding_window is None
    settings = LlamaSettings(n_ctx=120)
    assert llama_settings(TARGET, settings).shares_cells
    assert not llama_settings(replace(TARGET, sliding_window=16), settings).shares_cells


def test_a_decode_that_fails_empties_all_paths_and_the_pool_goes_on(
    model: LlamaPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails for no known reason may be what a damaged state has left."""
    other = model.fork(0)
    model.pool.prefill([(model, list(range(300, 340))), (other, list(range(400, 415)))])
    row = next_row(model)
    with monkeypatch.context() as patch, pytest.raises(BackendError, match="code -3"):
        patch.setattr(model.pool.context, "run", lambda n, *, logits: -3)
        model.pool.decode([(model, Tree.sequence([5])), (other, Tree.sequence([6]))])
    assert (model.n_past, other.n_past, model.pool.n_free) == (0, 0, model.pool.n_cells)
    model.prefill(list(range(300, 340)))
    assert np.array_equal(next_row(model), row)
