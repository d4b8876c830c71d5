"""Laws of a pool of cells: its paths are texts of their own, and cells are counted exactly."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import ContextFull, PoolFull
from edge_spec.speculation.pool import TILE, Path, Pool
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table
from edge_spec.testing.table_model import TablePath

V = 5
TABLE = random_table(V, order=2, seed=1)
ACTS = ("decode", "decode", "prefill", "keep", "rollback", "fork", "shift", "close", "resize")


def n_tiles(n: int) -> int:
    return -(-n // TILE)


def held(paths: Sequence[TablePath]) -> int:
    """The cells that paths hold together, by the lists of their tiles."""
    return len({tile for path in paths for tile in path.tiles.ids}) * TILE


def some_tree(chance: random.Random, most: int) -> Tree:
    n = chance.randrange(1, most + 1)
    return Tree(tuple(chance.randrange(V) for _ in range(n)), tuple(chance.randrange(-1, node) for node in range(n)))


def test_a_table_has_a_pool() -> None:
    model = TableModel(TABLE, n_ctx=100, max_rows=8)
    assert isinstance(model, Path) and isinstance(model.pool, Pool)
    assert (model.pool.n_cells, model.pool.n_free) == (112, 112)


def row_after(text: Sequence[int]) -> np.ndarray:
    before = [0, 0, *text]
    return TABLE[before[-2], before[-1]]


@given(st.integers(0, 1 << 32))
def test_paths_write_what_each_would_write_alone(seed: int) -> None:
    """Random drafts, reading, going back, forks, shifts and closing in a small pool; cells are counted throughout."""
    chance = random.Random(seed)
    root = TableModel(TABLE, n_ctx=60, n_cells=160, max_rows=12)
    pool, paths, texts = root.pool, [root], [[]]
    for _ in range(30):
        some = chance.sample(range(len(paths)), chance.randrange(1, min(3, len(paths)) + 1))
        one, path = some[0], paths[some[0]]
        n, act = chance.randrange(path.n_past + 1), chance.choice(ACTS)
        before = [(each.cells, each.pending) for each in paths]
        try:
            if act == "decode":
                trees = [(index, some_tree(chance, 4)) for index in some if not paths[index].pending]
                rows = pool.decode([(paths[index], tree) for index, tree in trees]) if trees else []
                for (index, tree), found in zip(trees, rows, strict=True):
                    for node, row in enumerate(found):
                        branch = [tree.tokens[above] for above in tree.path_to(node)]
                        assert np.array_equal(row, row_after([*texts[index], *branch]))
            elif act == "prefill":
                read = {index: [chance.randrange(V) for _ in range(chance.randrange(20))] for index in some}
                pool.prefill([(paths[index], tokens) for index, tokens in read.items()])
                for index, tokens in read.items():
                    texts[index] += tokens
            elif act == "keep" and path.pending:
                nodes = path.pending.path_to(chance.randrange(-1, len(path.pending)))
                texts[one] += [path.pending.tokens[node] for node in nodes]
                path.keep(nodes)
            elif act == "rollback":
                path.rollback(n)
                del texts[one][n:]
            elif act == "fork" and len(paths) < 8:
                paths.append(path.fork(n))
                texts.append(texts[one][:n])
            elif act == "shift":
                path.shift(n // 2, n)
                del texts[one][n // 2 : n]
            elif act == "close" and one:
                path.close()
                del paths[one], texts[one]
            elif act == "resize":
                pool.resize(max(held(paths), 16 * chance.randrange(5, 11)))
        except (PoolFull, ContextFull) as full:
            assert act in ("decode", "prefill", "fork", "shift")
            if act in ("decode", "fork"):
                assert [(each.cells, each.pending) for each in paths] == before
            if isinstance(full, PoolFull):
                assert pool.n_free == full.n_free < full.n_needed
        assert [list(each.cells) for each in paths] == texts
        assert pool.n_free == pool.n_cells - held(paths)
        for each in paths:
            assert len(each.tiles.ids) == n_tiles(each.n_past + len(each.pending))
    for each in paths[1:]:
        each.close()
    root.rollback(0)
    assert pool.n_free == pool.n_cells


def test_a_shared_beginning_is_held_once() -> None:
    root = TableModel(TABLE, n_ctx=200, n_cells=160)
    root.prefill([1] * 70)
    forks = [root.fork(70) for _ in range(3)]
    # Four tiles of sixteen for all, and the fifth for each.
    assert root.pool.n_free == 160 - 4 * TILE - 4 * TILE
    assert root.pool.n_more(forks[0], 10) == 0
    assert root.pool.n_more(forks[0], 11) == TILE
    forks[0].rollback(40)
    # The tile of place 40 is shared: to write there takes a copy.
    assert root.pool.n_more(forks[0], 1) == TILE
    assert root.pool.n_more(root.fork(64), 1) == TILE
    root.pool.decode([(path, Tree.sequence([2])) for path in forks])
    assert root.cells == (1,) * 70


def test_what_does_not_fit_the_pool_changes_nothing() -> None:
    root = TableModel(TABLE, n_ctx=200, n_cells=48)
    root.prefill([1] * 30)
    other = root.pool.path()
    for refused in (
        lambda: other.prefill([1] * 17),
        lambda: root.pool.decode([(root, Tree.sequence([1] * 3)), (other, Tree.sequence([1]))]),
        lambda: root.pool.prefill([(other, [1]), (root, [1, 1, 1])]),
    ):
        with pytest.raises(PoolFull) as full:
            refused()
        assert (full.value.n_free, full.value.n_needed) == (16, 32)
        assert "\n" not in str(full.value)
        assert (root.n_past, other.n_past, root.pending, other.pending) == (30, 0, Tree((), ()), Tree((), ()))
    other.prefill([1])
    with pytest.raises(PoolFull):
        root.fork(20)
    root.fork(16)


@pytest.mark.parametrize("n_cells", [80, 96, 400])
def test_resizing_keeps_what_paths_hold(n_cells: int) -> None:
    root = TableModel(TABLE, n_ctx=200, n_cells=160)
    paths = [root, *(root.pool.path() for _ in range(3))]
    root.pool.prefill([(path, [number] * (20 + 8 * number)) for number, path in enumerate(paths)])
    paths[2].rollback(0)
    paths[3].rollback(10)
    held_before = held(paths)
    with pytest.raises(ValueError, match="held"):
        root.pool.resize(held_before - TILE)
    root.pool.resize(n_cells)
    assert held(paths) == held_before
    assert root.pool.n_free == root.pool.n_cells - held_before
    assert max(tile for path in paths for tile in path.tiles.ids) < root.pool.n_cells // TILE
    rows = root.pool.decode([(path, Tree.sequence([2])) for path in paths[:2]])
    for number, row in enumerate(rows):
        assert np.array_equal(row[0], TABLE[number, 2])


@pytest.mark.parametrize(("n_paths", "shares"), [(2, False), (3, True), (8, True), (16, False)])
def test_paths_that_grow_in_turn_lie_in_long_stretches(n_paths: int, *, shares: bool) -> None:
    """Attention is slower where a text lies in many pieces. Half of the pool stays free."""
    root = TableModel(TABLE, n_ctx=4096, n_cells=4096 * 16, max_rows=16)
    root.pool.prefill([(root, [1] * 40)])
    paths = [root, *(root.fork(40 * shares) for _ in range(n_paths - 1))]
    n = 4096 * 16 // n_paths // 2 // TILE
    for _ in range(min(n, 250)):
        for path in paths:
            root.pool.prefill([(path, [1] * TILE)])
    for path in paths:
        ids = path.tiles.ids
        n_pieces = 1 + sum(after != before + 1 for before, after in itertools.pairwise(ids))
        assert len(ids) / n_pieces >= 32


@pytest.mark.parametrize("n_each", [12, 40])
def test_a_path_that_grows_alone_fills_the_cells_of_others_from_their_beginning(n_each: int) -> None:
    """The pool was full; those who wait give up their cells one after the other, in any order."""
    root = TableModel(TABLE, n_ctx=20 * n_each * TILE, n_cells=20 * n_each * TILE, max_rows=16)
    root.pool.prefill([(root, [1])])
    others = [root.fork(0) for _ in range(19)]
    for other in others:
        root.pool.prefill([(other, [1] * n_each * TILE)])
    assert root.pool.n_free == (n_each - 1) * TILE
    # Whoever has just grown may grow on.
    for _ in range(n_each - 1):
        root.pool.prefill([(root, [1] * TILE)])
    random.Random(n_each).shuffle(others)
    grown = root.fork(0)
    while others:
        others.pop().close()
        root.pool.prefill([(grown, [1] * root.pool.n_free)])
    ids = grown.tiles.ids
    n_pieces = 1 + sum(after != before + 1 for before, after in itertools.pairwise(ids))
    assert len(ids) == 19 * n_each
    assert n_pieces <= 2 * 19
