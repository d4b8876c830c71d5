"""A drafter made of a drafter and an intermediate model: trees go in, a sequence comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_spec.errors import GrammarDeadEnd, SettingsError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.followed_text import FollowedText, common_prefix
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.loop import Speculator
from edge_spec.speculation.policy import FixedPolicy
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["HierarchyDrafter"]


class HierarchyDrafter(Drafter):
    """Lets a leaf drafter speed up an intermediate model, and drafts what that model writes.

    The intermediate model verifies the leaf's tree; the accepted path and its bonus token extend a sequence;
    this repeats until the sequence is long enough. A quantised target then only ever sees a sequence, which is
    what its kernels verify cheaply (HierSpec: SpecMQuant, arXiv 2505.22179). Inside it is the very loop that
    drives the target, so hierarchies nest.

    Args:
        leaf: guesses what the intermediate model will write.
        intermediate: the intermediate model.
        leaf_limit: the most nodes of one leaf tree.
    """

    name = "hierarchy"

    def __init__(self, leaf: Drafter, intermediate: LanguageModel, *, leaf_limit: int = 3) -> None:
        if not intermediate.capabilities.can_rollback:
            raise SettingsError("this intermediate model cannot roll back drafts", hint="use `speculation='ngram'`")
        self._inner = Speculator(intermediate, leaf)
        self._leaf_policy = FixedPolicy(leaf_limit)
        # Of the target's text; the inner text may be longer.
        self._length = 0

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._inner.begin(prompt, sampler, reuse=True)
        self._length = len(prompt)

    def draft(self, limit: int) -> Tree:
        inner = self._inner
        if self._length > inner.model.n_ctx:
            return EMPTY
        # What is left of an earlier draft is still a good guess, if the target has agreed with it so far.
        while len(inner.text) - self._length < limit and len(inner.text) < inner.model.n_ctx:
            missing = limit - (len(inner.text) - self._length)
            try:
                inner.step(self._leaf_policy, missing - 1, _never)
            except GrammarDeadEnd:
                # Only for this guess: the target may never come here.
                break
        return Tree.sequence(inner.text[self._length : self._length + limit])

    def accept(self, tokens: Sequence[int]) -> None:
        text = self._inner.text
        agreed = common_prefix(text[self._length : self._length + len(tokens)], tokens)
        if agreed < len(tokens):
            self._inner.replace(self._length + agreed, tokens[agreed:])
        self._length += len(tokens)

    def rollback(self, length: int) -> None:
        self._inner.replace(length, ())
        self._length = length

    def save(self) -> dict[str, bytes]:
        # What the intermediate model wrote beyond the text is a guess that has not been asked for yet.
        self._inner.replace(self._length, ())
        return {f"{self.name}.{name}": state for name, state in self._inner.save().items()}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        start = f"{self.name}."
        own = {name[len(start) :]: state for name, state in states.items() if name.startswith(start)}
        self._inner.restore(own, text)

    def close(self) -> None:
        self._inner.close()

    @property
    def followed(self) -> dict[str, FollowedText]:
        return {f"{self.name}.{name}": followed for name, followed in self._inner.followed.items()}

    @property
    def held_bytes(self) -> int:
        return self._inner.drafter.held_bytes


def _never(token: int) -> bool:
    """An intermediate model's text does not end: the target decides."""
    return False
