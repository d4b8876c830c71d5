"""The verification rule: one for sequences, trees, tables, models and hierarchies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.tree import Tree

__all__ = ["Pick", "walk"]


Pick = Callable[[Any, Sequence[int]], int]
"""The token that follows a text by a row of logits, see ``Sampler.pick``."""


def walk(
    tree: Tree, root: int, rows: Logits, pick: Pick, text: list[int], ends: Callable[[int], bool]
) -> tuple[list[int], tuple[int, ...]]:
    """Let the model pick its way down a tree; ``text`` grows by what it picks.

    At each node the model picks the next token. The walk descends if a child holds that token, else it stops. Every
    token is what the model would have picked alone, so a drafter can only change when a token arrives.

    Args:
        tree: its nodes down to ``root`` are the end of the text, those below it drafts.
        rows: one row of logits per node, ``[n, n_vocab]``.
        ends: called with every picked token; says whether the text ends with it.

    Returns:
        The nodes that are part of the text now, from the top, and the picked tokens.
    """
    length = len(text)
    path = list(range(root + 1))
    node: int | None = root
    while node is not None:
        token = pick(rows[node], text)
        text.append(token)
        if ends(token):
            break
        node = tree.child(node, token)
        if node is not None:
            path.append(node)
    return path, tuple(text[length:])
