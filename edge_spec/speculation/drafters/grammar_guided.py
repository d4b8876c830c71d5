"""Drafts by the grammar: what cannot come is not drafted, and what has to come is drafted without a drafter."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edge_spec.sampling import Sampler
from edge_spec.sampling.grammar import Node
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.wrapping import WrappingDrafter
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.tree import Tree

__all__ = ["GrammarGuided"]


class GrammarGuided(WrappingDrafter):
    """Guides another drafter wherever a reply has a grammar; elsewhere it hands on its drafts unchanged.

    Tokens that the grammar forces count like drafted ones: the limit was set by what rows cost.
    """

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        # The text so far; nothing where there is no grammar.
        self._text: list[int] = []
        self._sampler: Sampler | None = None

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._sampler = sampler if sampler.has_grammar else None
        self._text = list(prompt) if sampler.has_grammar else []
        self.inner.begin(prompt, sampler)

    @property
    def pause(self) -> Pause:
        return self.inner.pause if self._sampler is None else Pause()

    def limit(self, left: int) -> int:
        limit = self.inner.limit(left)
        # What has to come costs nothing to draft.
        return limit if self._sampler is None else sys.maxsize

    def changed(self, draft: Tree, limit: int) -> Tree:
        if self._sampler is None:
            return draft
        return _guided(draft, self._sampler.place(self._text), limit)

    def accept(self, tokens: Sequence[int]) -> None:
        if self._sampler is not None and tokens:
            # Forced text will be drafted as the model cut it now.
            node = self._sampler.place(self._text)
            for token in tokens:
                if node.state is not None:
                    node.state.learn(token)
                node = node.below(token)
            self._text.extend(tokens)
        self.inner.accept(tokens)

    def rollback(self, length: int) -> None:
        del self._text[length:]
        self.inner.rollback(length)


def _guided(draft: Tree, end_of_text: Node, limit: int) -> Tree:
    """Return the draft without what the grammar forbids, its likeliest path extended by what the grammar forces."""
    # Place -1 is the end of the text; None stands for a node that is left out.
    places: dict[int, tuple[int, Node] | None] = {-1: (-1, end_of_text)}
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
