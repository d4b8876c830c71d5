"""Checks every draft of a drafter that may be wrong about what a draft is."""

from __future__ import annotations

from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.wrapping import WrappingDrafter
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.tree import Tree

__all__ = ["CheckedDrafter"]


class CheckedDrafter(WrappingDrafter):
    """Leaves out of each draft what the target cannot decode.

    These are nodes beyond the limit, tokens outside of the vocabulary, side branches where the target does not take
    trees, and all that hangs below such nodes.

    Args:
        target: the model that decodes the drafts.
    """

    def __init__(self, inner: Drafter, target: LanguageModel) -> None:
        super().__init__(inner)
        self._n_vocab = target.n_vocab
        self._takes_trees = target.capabilities.takes_trees

    def changed(self, draft: Tree, limit: int) -> Tree:
        n_vocab, takes_trees = self._n_vocab, self._takes_trees
        shape_fits = len(draft) <= limit and (draft.is_sequence or takes_trees)
        if shape_fits and all(0 <= token < n_vocab for token in draft.tokens):
            return draft
        places = {-1: -1}
        tokens: list[int] = []
        parents: list[int] = []
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            fits = takes_trees or places.get(parent) == len(tokens) - 1
            if parent in places and fits and 0 <= token < n_vocab and len(tokens) < limit:
                places[node] = len(tokens)
                tokens.append(token)
                parents.append(places[parent])
        return Tree(tuple(tokens), tuple(parents))
