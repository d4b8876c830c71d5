"""The leaf of a hierarchy, drafting for the target itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_spec.speculation.drafters.base import Drafter, WorthMore
from edge_spec.speculation.drafters.hierarchy import HierarchyDrafter
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.tree import Tree

__all__ = ["LeafDrafter"]


class LeafDrafter(Drafter):
    """Drafts with a model that is part of a hierarchy, without the intermediate model: one cache for both uses.

    The model follows the text through the hierarchy, which must therefore follow the same text. The hierarchy's guesses
    beyond the text are dropped before the model drafts. Meanwhile the intermediate model reads nothing; it catches up
    before it is used again.

    Args:
        hierarchy: saves, restores and closes the model.
        leaf: the model's drafter, which the hierarchy's own leaf calls.
    """

    def __init__(self, hierarchy: HierarchyDrafter, leaf: Drafter) -> None:
        self.name = leaf.name
        self._hierarchy = hierarchy
        self._leaf = leaf

    def read(self, most: int | None = None) -> bool:
        self._hierarchy.drop_guesses()
        return self._leaf.read(most)

    def n_unread(self) -> int:
        self._hierarchy.drop_guesses()
        return self._leaf.n_unread()

    def draft_all_while(
        self, drafters: Sequence[Drafter], limits: Sequence[int], worth_more: WorthMore
    ) -> Sequence[Tree]:
        mine = [each for each in drafters if isinstance(each, LeafDrafter)]
        for each in mine:
            each._hierarchy.drop_guesses()
        return self._leaf.draft_all_while([each._leaf for each in mine], limits, worth_more)

    @property
    def followed(self) -> Mapping[str, Follower]:
        return self._leaf.followed

    def save(self) -> dict[str, bytes]:
        return {}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass
