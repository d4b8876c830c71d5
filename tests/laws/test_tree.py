"""The laws of a draft tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_spec.speculation.tree import EMPTY, Tree


@st.composite
def trees(draw: st.DrawFn, *, valued: bool | None = None) -> Tree:
    n = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(n))
    tokens = tuple(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    if not (draw(st.booleans()) if valued is None else valued):
        return Tree(tokens, parents)
    values: list[float] = []
    for parent in parents:
        share = draw(st.sampled_from([0.0, 0.25, 0.5, 1.0]))
        values.append(share * (values[parent] if parent >= 0 else 1.0))
    return Tree(tokens, parents, tuple(values))


def texts(tree: Tree) -> list[tuple[int, ...]]:
    """Return what each node says, from the top down to it."""
    return [tuple(tree.tokens[step] for step in tree.path_to(node)) for node in range(len(tree))]


@given(trees())
def test_depths_count_the_nodes_above(tree: Tree) -> None:
    assert list(tree.depths) == [len(tree.path_to(node)) - 1 for node in range(len(tree))]


@given(trees())
def test_a_path_leads_from_the_top_to_its_node(tree: Tree) -> None:
    assert tree.path_to(-1) == []
    for node in range(len(tree)):
        path = tree.path_to(node)
        assert path[-1] == node
        assert [tree.parents[step] for step in path] == [-1, *path[:-1]]


@given(trees())
def test_each_node_sees_itself_and_those_above(tree: Tree) -> None:
    mask = tree.mask()
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        assert np.flatnonzero(mask[node]).tolist() == tree.path_to(node)


@given(trees(), st.integers(-1, 12), st.integers(0, 5))
def test_a_child_holds_the_token_below_its_parent(tree: Tree, parent: int, token: int) -> None:
    nodes = [node for node in range(len(tree)) if (tree.parents[node], tree.tokens[node]) == (parent, token)]
    assert tree.child(parent, token) == (nodes[0] if nodes else None)


@given(trees(), st.lists(st.integers(0, 5), max_size=8))
def test_descending_stops_where_the_tree_ends(tree: Tree, tokens: list[int]) -> None:
    path = tree.descend(tokens)
    assert [tree.tokens[node] for node in path] == tokens[: len(path)]
    last = path[-1] if path else -1
    assert path == tree.path_to(last)
    assert len(path) == len(tokens) or tree.child(last, tokens[len(path)]) is None


@given(trees(), st.lists(st.integers(0, 4), max_size=4))
def test_a_tree_hung_below_tokens_says_them_first(tree: Tree, tokens: list[int]) -> None:
    hung = tree.under(tokens)
    n = len(tokens)
    assert texts(hung)[n:] == [(*tokens, *text) for text in texts(tree)]
    assert hung.tokens[:n] == tuple(tokens)
    assert Tree(hung.tokens[:n], hung.parents[:n]).is_sequence
    assert hung.values == ((1.0,) * n + tree.values if tree.values else ())


@given(st.lists(st.integers(0, 4), max_size=6))
def test_a_sequence_is_a_tree_in_which_each_follows_the_one_before(tokens: list[int]) -> None:
    tree = Tree.sequence(tokens)
    assert tree.is_sequence
    assert tree.tokens == tuple(tokens)
    assert tree.depths == tuple(range(len(tokens)))
    assert tree.best(len(tokens)) == tree


@given(trees(valued=True), st.integers(0, 14))
def test_the_best_nodes_are_the_most_valuable_and_a_tree(tree: Tree, limit: int) -> None:
    best = tree.best(limit)
    assert len(best) == min(limit, len(tree))
    assert sorted(best.values, reverse=True) == sorted(tree.values, reverse=True)[:limit]
    # Every node of the best stands in the tree, with its text and value, no more often than there.
    there = list(zip(texts(tree), tree.values, strict=True))
    for node in zip(texts(best), best.values, strict=True):
        there.remove(node)


@given(trees(valued=True), st.integers(0, 14))
def test_the_best_nodes_come_depth_first_with_the_best_child_first(tree: Tree, limit: int) -> None:
    best = tree.best(limit)
    for node in range(1, len(best)):
        # Depth first: each node's parent lies on the path to the node before it.
        assert best.parents[node] in (-1, *best.path_to(node - 1))
    for parent in range(-1, len(best)):
        values = [best.values[node] for node in range(len(best)) if best.parents[node] == parent]
        assert values == sorted(values, reverse=True)


@given(trees(valued=True), st.integers(0, 14))
def test_the_best_of_the_best_is_itself(tree: Tree, limit: int) -> None:
    best = tree.best(limit)
    assert best.best(limit) == best


@given(trees(valued=False), st.integers(0, 14))
def test_without_values_the_first_nodes_are_the_best(tree: Tree, limit: int) -> None:
    best = tree.best(limit)
    assert best.values == ()
    assert sorted(texts(best)) == sorted(texts(tree)[:limit])


@pytest.mark.parametrize("parents", [(0,), (-2,), (1, -1), (-1, 1), (-1, 0, 3)])
def test_a_parent_that_does_not_stand_before_its_child_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="parent"):
        Tree((1,) * len(parents), parents)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 parents"):
        Tree((1, 2), (-1,))
    with pytest.raises(ValueError, match="1 values"):
        Tree((1, 2), (-1, 0), (0.5,))


def test_the_empty_tree_says_nothing() -> None:
    assert len(EMPTY) == 0
    assert EMPTY.is_sequence
    assert EMPTY.mask().shape == (0, 0)
    assert EMPTY.descend([1]) == []
    assert EMPTY.best(3) == EMPTY
    assert EMPTY.under([]) == EMPTY
    assert EMPTY.under([4, 5]).tokens == (4, 5)
