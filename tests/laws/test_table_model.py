"""Laws of the table model: it keeps the promises of a language model, by the book."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.errors import Cancelled, Closed, ContextFull, StateError
from edge_spec.speculation.pool import Path as TextPath
from edge_spec.speculation.tree import Tree
from edge_spec.testing import TableModel, random_table

V = 5
TABLE = random_table(V, order=2, seed=1)

texts = st.lists(st.integers(0, V - 1), max_size=12)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    n = draw(st.integers(1, 10))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(n))
    return Tree(tuple(draw(st.lists(st.integers(0, V - 1), min_size=n, max_size=n))), parents)


def row_after(text: list[int]) -> np.ndarray:
    before = [0, 0, *text]
    return TABLE[before[-2], before[-1]]


def test_it_is_a_language_model() -> None:
    assert isinstance(TableModel(TABLE), TextPath)


@given(texts, trees())
def test_a_row_is_the_law_after_its_branch(text: list[int], tree: Tree) -> None:
    model = TableModel(TABLE)
    model.prefill(text)
    rows = model.decode(tree)
    for node in range(len(tree)):
        branch = [tree.tokens[step] for step in tree.path_to(node)]
        assert np.array_equal(rows[node], row_after([*text, *branch]))
    assert model.cells == tuple(text)
    assert model.pending == tree


@given(texts, trees(), st.data())
def test_a_grown_tree_is_the_whole_tree(text: list[int], tree: Tree, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(tree)))
    whole, grown = TableModel(TABLE), TableModel(TABLE)
    whole.prefill(text)
    grown.prefill(text)
    first = grown.decode(Tree(tree.tokens[:n], tree.parents[:n]))
    rows = np.concatenate([first, grown.decode(tree)]) if n < len(tree) else first
    assert np.array_equal(rows, whole.decode(tree))


@given(texts, trees(), st.data())
def test_keep_commits_a_path_or_what_of_it_lies_in_plain_order(
    text: list[int], tree: Tree, data: st.DataObject
) -> None:
    path = tree.path_to(data.draw(st.integers(-1, len(tree) - 1)))
    tokens = [tree.tokens[node] for node in path]
    in_order = 0
    while path[in_order : in_order + 1] == [in_order]:
        in_order += 1
    for keeps_branches, n in ((True, len(path)), (False, in_order)):
        model = TableModel(TABLE, keeps_branches=keeps_branches)
        model.prefill(text)
        model.decode(tree)
        model.keep(path)
        assert model.cells == (*text, *tokens[:n])
        assert not model.pending
        assert np.array_equal(model.decode(Tree.sequence([3]))[0], row_after([*text, *tokens[:n], 3]))


@given(trees(), st.data())
def test_what_is_no_path_is_not_kept(tree: Tree, data: st.DataObject) -> None:
    path = data.draw(st.lists(st.integers(0, len(tree) - 1), min_size=1, max_size=4))
    model = TableModel(TABLE)
    model.decode(tree)
    if path == tree.path_to(path[-1]):
        model.keep(path)
        assert model.n_past == len(path)
    else:
        with pytest.raises(ValueError, match="not a path"):
            model.keep(path)
        assert model.n_past == 0


@given(texts, trees(), st.data())
def test_rollback_restores_the_cache(text: list[int], tree: Tree, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(text)))
    model, short = TableModel(TABLE), TableModel(TABLE)
    model.prefill(text)
    model.decode(tree)
    model.rollback(length)
    short.prefill(text[:length])
    assert model.cells == short.cells
    assert np.array_equal(model.decode(tree), short.decode(tree))
    with pytest.raises(ValueError, match="rollback"):
        model.rollback(length + 1)


@given(texts, trees())
def test_saving_and_restoring_gives_the_same_rows(text: list[int], tree: Tree) -> None:
    model, other = TableModel(TABLE), TableModel(TABLE)
    model.prefill(text)
    state = model.save()
    other.prefill([1, 2, 3])
    other.restore(state)
    assert other.cells == tuple(text)
    assert np.array_equal(other.decode(tree), model.decode(tree))


@given(texts, st.data())
def test_damaged_state_is_refused_and_leaves_an_empty_cache(text: list[int], data: st.DataObject) -> None:
    model = TableModel(TABLE)
    model.prefill(text)
    state = bytearray(model.save())
    place = data.draw(st.integers(0, len(state) - 1))
    if data.draw(st.booleans()):
        state[place] ^= data.draw(st.integers(1, 255))
    else:
        del state[place:]
    with pytest.raises(StateError) as caught:
        model.restore(bytes(state))
    assert caught.value.hint
    assert model.cells == ()
    model.prefill(text)
    assert model.cells == tuple(text)


def test_state_of_another_model_is_refused() -> None:
    model = TableModel(TABLE)
    model.prefill([4, 4])
    with pytest.raises(StateError):
        TableModel(random_table(V, order=2, seed=2)).restore(model.save())


def test_a_full_context_says_so_and_commits_nothing() -> None:
    model = TableModel(TABLE, n_ctx=4, max_rows=2)
    with pytest.raises(ContextFull) as caught:
        model.prefill([0] * 7)
    assert (caught.value.n_past, caught.value.n_new, caught.value.n_ctx) == (0, 7, 4)
    assert model.n_past == 0
    model.prefill([0] * 4)
    model.decode(Tree.sequence([0] * 2))
    with pytest.raises(ContextFull):
        model.decode(Tree.sequence([0] * 3))


def test_a_cancelled_decode_raises_once() -> None:
    model = TableModel(TABLE)
    model.prefill([1])
    model.pool.cancel()
    with pytest.raises(Cancelled):
        model.decode(Tree.sequence([2]))
    assert model.cells == (1,)
    model.decode(Tree.sequence([2]))
    model.pool.cancel()
    model.pool.resume()
    model.decode(Tree.sequence([2, 3]))


def test_what_it_cannot_do_is_refused() -> None:
    tree = Tree((1, 2), (-1, -1))
    with pytest.raises(ValueError, match="not trees"):
        TableModel(TABLE, takes_trees=False).decode(tree)
    with pytest.raises(ValueError, match="3 rows"):
        TableModel(TABLE, max_rows=2).decode(Tree.sequence([1, 2, 3]))
    with pytest.raises(ValueError, match="axes"):
        TableModel(np.zeros((2, 3), dtype=np.float32))
    model = TableModel(TABLE)
    model.decode(tree)
    with pytest.raises(ValueError, match="only be grown"):
        model.decode(Tree((2, 2, 1), (-1, -1, 0)))


def test_after_close_nothing_works() -> None:
    model = TableModel(TABLE)
    model.close()
    model.close()
    for use in (lambda: model.prefill([1]), lambda: model.decode(Tree.sequence([1]))):
        with pytest.raises(Closed):
            use()


def test_profiles_differ_where_rows_may() -> None:
    profiles = {
        TableModel(TABLE).profile.name,
        TableModel(TABLE, n_ctx=8).profile.name,
        TableModel(random_table(V, order=2, seed=2)).profile.name,
    }
    assert len(profiles) == 3
    assert TableModel(TABLE).profile == TableModel(TABLE.copy()).profile
