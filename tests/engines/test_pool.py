"""Laws of the pool of a transcription: every path has the bits of a text that has a model for itself."""

from __future__ import annotations

import mmap
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_files import write_head
from logits_rows import next_row
from lone_text import lone_text
from paths_in_company import PathsInCompany
from paths_in_company import some_tokens as tokens

from edge_spec.engines.base import ModelSettings
from edge_spec.engines.onnx.head_model import HeadPath
from edge_spec.engines.onnx.kernels import available
from edge_spec.engines.onnx.opener import drafter_settings
from edge_spec.engines.onnx.pool import OnnxPath
from edge_spec.engines.onnx.transcription.head import HIDDEN, hidden_rows_tail
from edge_spec.engines.registry import engine
from edge_spec.errors import BackendError, Cancelled
from edge_spec.models import inspect, resolve_family
from edge_spec.speculation.pool import TILE
from edge_spec.speculation.tree import Tree

pytestmark = pytest.mark.skipif(available() is not None, reason="the kernels were not built")

TARGET = inspect(resolve_family("demo").target)
LAYERS = (2, 4, 7)
ACTS = ("decode", "decode", "decode", "prefill", "keep", "keep", "rollback", "fork", "shift", "close", "resize", "save")


def opened(cache: Path, **changes: Any) -> tuple[Any, OnnxPath]:
    onnx = engine("onnx")
    opener = onnx.opener(cache_dir=cache)
    given = {"n_ctx": 120, "n_threads": 1, "trees": True, "prefill_chunk": 32} | changes
    model = lone_text(opener.open(TARGET, onnx.resolve(TARGET, ModelSettings(**given))).pool)
    assert isinstance(model, OnnxPath)
    return opener, model


@pytest.fixture(params=["f32", "f16"])
def both(request: pytest.FixtureRequest, probe_cache: Path) -> Iterator[tuple[OnnxPath, OnnxPath]]:
    """A model whose pool is used, and another one for a text alone."""
    kind = request.param
    pairs = [opened(probe_cache, kv_k=kind, kv_v=kind) for _ in range(2)]
    yield pairs[0][1], pairs[1][1]
    for opener, model in pairs:
        model.close()
        opener.close()


@pytest.fixture
def model(probe_cache: Path) -> Iterator[OnnxPath]:
    opener, model = opened(probe_cache)
    yield model
    model.close()
    opener.close()


def some_tree(chance: random.Random, n: int) -> Tree:
    return Tree(tuple(tokens(chance, n)), tuple(chance.randrange(-1, node) for node in range(n)))


class Texts(PathsInCompany):
    most_tiles = 24

    def chosen(self) -> str:
        return self.chance.choice(ACTS)

    def drafted(self, path: OnnxPath) -> Tree | None:
        return some_tree(self.chance, self.chance.randrange(1, 5)) if not path.pending else None

    def kept(self, path: OnnxPath) -> list[int] | None:
        return path.pending.path_to(self.chance.randrange(-1, len(path.pending))) if path.pending else None


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_every_path_has_the_bits_of_a_text_alone(both: tuple[OnnxPath, OnnxPath], seed: int) -> None:
    """Random drafts, reading, forks, going back, shifts, resizing and saving, in company and in scattered tiles."""
    root, alone = both
    texts = Texts(root, seed)

    def look() -> None:
        held = len({tile for path in texts.paths for tile in path.tiles.ids})
        assert texts.pool.n_free == texts.pool.n_cells - held * TILE

    texts.play(alone, 60, 50, look)


def test_scattered_tiles_save_and_continue_like_contiguous_ones(
    both: tuple[OnnxPath, OnnxPath],
) -> None:
    """Every tile lies before the one that comes before it in the text."""
    root, alone = both
    chance = random.Random(1)
    text = tokens(chance, 100)
    pool = root.pool
    fillers = [pool.path() for _ in range(pool.n_cells // TILE)]
    pool.prefill([(path, [300]) for path in fillers])
    fillers.sort(key=lambda path: path.tiles.ids)
    for first in range(0, len(text), TILE):
        fillers.pop().close()
        root.prefill(text[first : first + TILE])
    assert sorted(root.tiles.ids, reverse=True) == root.tiles.ids and len(root.tiles.ids) == 7
    alone.prefill(text)
    assert root.save() == alone.save()
    tree = some_tree(chance, 12)
    assert np.array_equal(root.decode(tree), alone.decode(tree))


def test_a_beginning_is_shared_and_what_two_would_write_is_copied(model: OnnxPath) -> None:
    pool, n = model.pool, model.pool.n_cells // TILE
    assert (pool.n_cells, pool.n_free) == (n * TILE, n * TILE)
    model.prefill(list(range(300, 370)))
    forks = [model.fork(70), model.fork(64)]
    assert pool.n_free == (n - 6) * TILE
    assert [pool.n_more(path, 1) for path in (model, *forks)] == [0, 0, TILE]
    assert pool.n_more(model, 11) == TILE
    before = model.save()
    forks[1].rollback(20)
    assert pool.n_more(forks[1], 1) == TILE
    pool.decode([(path, Tree.sequence([500])) for path in forks])
    for path in forks:
        path.keep([0])
    forks[0].shift(3, 40)
    assert model.save() == before


@pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="blocks of memory have no limit to set here")
def test_a_pool_that_has_no_memory_for_another_size_stays_as_it_was(
    model: OnnxPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.prefill(list(range(300, 340)))
    fork = model.fork(35)
    row, cells, saved = next_row(model), model.pool.n_cells, (model.save(), fork.save())
    for n in (cells + 160, 64):
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(mmap, "mmap", _refusing)
            model.pool.resize(n)
        assert np.array_equal(next_row(model), row)
        assert (model.pool.n_cells, model.save(), fork.save()) == (cells, *saved)
    model.pool.resize(160)
    fork.prefill([7] * 50)
    assert np.array_equal(next_row(model), row)


def _refusing(*_: Any, **__: Any) -> Any:
    raise OSError("no memory")


@pytest.mark.parametrize("error", [Cancelled, BackendError])
def test_a_decode_that_fails_leaves_all_paths_as_they_were_committed(
    error: type[Exception], model: OnnxPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = model.fork(0)
    model.pool.prefill([(model, list(range(300, 340))), (other, list(range(400, 415)))])
    rows, free = [next_row(path) for path in (model, other)], model.pool.n_free
    trees = [Tree((5, 6, 7), (-1, -1, 1)), Tree.sequence([8, 9])]
    model.pool.decode([(model, trees[0]), (other, trees[1])])
    with monkeypatch.context() as patch:
        if error is Cancelled:
            other.pool.cancel()
        else:
            patch.setattr(model.pool.session, "compute", _failing)
        with pytest.raises(error):
            model.pool.decode([(model, Tree((5, 6, 7, 8), (-1, -1, 1, 1))), (other, Tree.sequence([8, 9, 10]))])
    assert (model.n_past, other.n_past, len(model.pending), len(other.pending)) == (40, 15, 0, 0)
    assert model.pool.n_free == free
    assert all(np.array_equal(next_row(path), row) for path, row in zip((model, other), rows, strict=True))


def _failing(*_: Any, **__: Any) -> None:
    raise BackendError("it failed")


def test_reading_that_is_cancelled_says_how_far_it_came(model: OnnxPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """After two chunks of 32 tokens: the first text is read, the second one in part, the third one not at all."""
    paths = [model, model.fork(0), model.fork(0)]
    computed, calls = model.pool.session.compute, 0

    def counted(*given: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            model.cancel()
        computed(*given, **options)

    monkeypatch.setattr(model.pool.session, "compute", counted)
    with pytest.raises(Cancelled):
        model.pool.prefill([(path, list(range(300, 340))) for path in paths])
    assert [path.n_past for path in paths] == [40, 24, 0]
    assert [len(path.tiles.ids) for path in paths] == [3, 2, 0]


def test_what_heads_read_follows_forks_moves_and_resizing(model: OnnxPath) -> None:
    """Of every path what reading its text at once gives, in whichever tiles it came about."""
    rows = model.features(hidden_rows_tail(LAYERS, TARGET.n_embd), HIDDEN, 3 * TARGET.n_embd)
    chance = random.Random(3)
    text = tokens(chance, 90)
    model.prefill(text[:50])
    fork = model.fork(45)
    model.pool.decode([(fork, Tree((1, text[45], 2, text[46]), (-1, -1, 0, 1))), (model, Tree.sequence(text[50:55]))])
    fork.keep([1, 3])
    model.keep(range(5))
    model.pool.resize(800)
    model.pool.prefill([(model, text[55:70]), (fork, text[47:90])])
    model.rollback(64)
    model.pool.resize(240)
    found = [rows.on(path)[: path.n_past].copy() for path in (model, fork)]
    for path, own in zip((model, fork), found, strict=True):
        n = path.n_past
        path.rollback(0)
        path.prefill(text[:n])
        assert np.array_equal(rows.on(path)[:n], own)


def test_paths_of_a_head_draft_like_heads_of_their_own(tmp_path: Path, probe_cache: Path) -> None:
    """Two texts, whose head is asked for both in one decode, against each text alone."""
    write_head(tmp_path / "head.gguf", TARGET, np.arange(300, 400), LAYERS, seed=5)
    opener, target = opened(probe_cache)
    settings = drafter_settings(target.settings)
    head = lone_text(opener.open(inspect(tmp_path / "head.gguf"), settings, target=(target.pool, TARGET)).pool, target)
    assert isinstance(head, HeadPath)
    chance = random.Random(4)
    texts = [tokens(chance, 40), tokens(chance, 23)]
    own = [[chance.randrange(100) for _ in text] for text in texts]
    trees = [_grown(ids[-3:]) for ids in own]
    alone = []
    for text, ids, grown in zip(texts, own, trees, strict=True):
        target.rollback(0)
        target.prefill(text[:-1])
        head.prefill(ids[:-3])
        alone.append([head.decode(tree).copy() for tree in grown])
        head.rollback(0)
    target.rollback(0)
    target.pool.resize(400)
    head.pool.resize(400)
    paths = [target.pool.path() for _ in texts]
    target.pool.prefill([(path, text[:-1]) for path, text in zip(paths, texts, strict=True)])
    heads = [head.pool.path(path) for path in paths]
    head.pool.prefill([(path, ids[:-3]) for path, ids in zip(heads, own, strict=True)])
    for step, level in enumerate(zip(*trees, strict=True)):
        found = head.pool.decode(list(zip(heads, level, strict=True)))
        for rows, wanted in zip(found, alone, strict=True):
            assert np.array_equal(rows, wanted[step])
    assert (heads[0].fork(20).n_past, heads[0].n_past) == (20, 37)
    head.close()
    target.close()
    opener.close()


def _grown(ids: list[int]) -> list[Tree]:
    """The last tokens of a text, then a draft of two levels, each computed when the one before it is."""
    tokens, parents = (*ids, 1, 2, 3), (-1, 0, 1, 2, 2, 4)
    return [Tree(tokens[:n], parents[:n]) for n in (3, 5, 6)]
