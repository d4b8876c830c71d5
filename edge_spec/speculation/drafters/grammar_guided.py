"""Drafts by the grammar: what cannot come is not drafted, what has to come is drafted for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.sampling import Sampler
from edge_spec.sampling.grammar import Node
from edge_spec.speculation.tree import Tree

__all__ = ["guided", "learn_cuts"]


def guided(draft: Tree, sampler: Sampler, text: Sequence[int], most: int) -> Tree:
    """The draft without what the grammar forbids, its likeliest path made longer by what the grammar forces.

    Args:
        most: nodes that it may have then.
    """
    # Place -1 is the end of the text; None stands for a node that is left out.
    places: dict[int, tuple[int, Node] | None] = {-1: (-1, sampler.place(text))}
    tokens: list[int] = []
    parents: list[int] = []
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        above = places[parent]
        if above is None or not above[1].allowed([token])[0]:
            places[node] = None
            continue
        places[node] = (len(tokens), above[1].below(token))
        tokens.append(token)
        parents.append(above[0])
    kept = Tree(tuple(tokens), tuple(parents))
    # The likeliest path comes first; it ends at the first node that is not the child of the one before.
    end = -1
    while end + 1 < len(parents) and parents[end + 1] == end:
        end += 1
    last = next(place for place in places.values() if place is not None and place[0] == end)
    more = _forced(last[1], most - len(kept))
    if not more:
        return kept
    n = len(kept)
    return Tree((*kept.tokens, *more), (*kept.parents, end, *range(n, n + len(more) - 1)))


def learn_cuts(sampler: Sampler, text: Sequence[int], tokens: Sequence[int]) -> None:
    """``tokens`` followed ``text``: forced text will be drafted as it was cut now."""
    node = sampler.place(text)
    for token in tokens:
        if node.state is not None:
            node.state.learn(token)
        node = node.below(token)


def _forced(node: Node, most: int) -> list[int]:
    """Forced tokens as far as they are allowed one after another; how text is cut is only the tokeniser's opinion."""
    if node.state is None or most < 1:
        return []
    forced: list[int] = []
    for token in node.state.forced(most):
        if not node.allowed([token])[0]:
            break
        forced.append(token)
        node = node.below(token)
    return forced
