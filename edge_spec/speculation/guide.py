"""Drafts by the grammar: what cannot come is not drafted, and what has to come is drafted without a drafter."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.sampling import Sampler
from edge_spec.sampling.grammar import Node
from edge_spec.speculation.tree import Tree

__all__ = ["guided", "learn_forced"]


def guided(draft: Tree, sampler: Sampler, text: Sequence[int], limit: int) -> Tree:
    """Return a draft without what the grammar forbids, its likeliest path extended by what the grammar forces.

    Tokens that are forced count like drafted ones: the limit was set by what rows cost.

    Args:
        sampler: of a reply with a grammar.
        text: prompt and reply so far.
        limit: the most nodes of the result.
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
    forced = _forced(last[1], limit - len(kept))
    if not forced:
        return kept
    n = len(kept)
    return Tree((*kept.tokens, *forced), (*kept.parents, end, *range(n, n + len(forced) - 1)))


def learn_forced(sampler: Sampler, text: Sequence[int], n: int) -> None:
    """Learn from the last ``n`` tokens of a text: forced text will be drafted as the model has cut it into tokens.

    Call it before the sampler is told that they are accepted.
    """
    node = sampler.place(text[: len(text) - n])
    for token in text[len(text) - n :]:
        if node.state is not None:
            node.state.learn(token)
        node = node.below(token)


def _forced(node: Node, limit: int) -> list[int]:
    """At most ``limit`` tokens that have to come after a node, as far as the grammar allows them.

    The text is forced, its tokens are not: how text is cut into tokens is only the tokenizer's opinion.
    """
    if node.state is None or limit < 1:
        return []
    forced: list[int] = []
    for token in node.state.forced(limit):
        if not node.allowed([token])[0]:
            break
        forced.append(token)
        node = node.below(token)
    return forced
