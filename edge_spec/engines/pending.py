"""Checks of what a model is asked to do with its pending tree, the same on every engine."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.speculation.tree import Tree

__all__ = ["check_path", "n_new_nodes"]


def n_new_nodes(tree: Tree, pending: Tree, *, max_rows: int) -> int:
    """How many nodes of ``tree`` come after the pending ones.

    Raises:
        ValueError: the tree does not begin with the pending nodes, or there are none or too many new ones.
    """
    first = len(pending)
    n = len(tree) - first
    if not 1 <= n <= max_rows:
        raise ValueError(f"{n} rows in one decode; from 1 to {max_rows} are possible")
    if first and (tree.tokens[:first], tree.parents[:first]) != (pending.tokens, pending.parents):
        raise ValueError("a tree can only be grown: its first nodes must be the pending ones")
    return n


def check_path(path: Sequence[int], pending: Tree) -> None:
    """Refuse anything but a path down the pending tree from its top.

    Raises:
        ValueError: it is something else.
    """
    for above, node in zip([-1, *path], path, strict=False):
        if pending.parents[node] != above:
            raise ValueError(f"{list(path)} is not a path down the pending tree")
