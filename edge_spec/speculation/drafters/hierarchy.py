"""A drafter made of a drafter and an intermediate model: trees go in, a sequence comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from edge_spec.errors import Arguments, GrammarDeadEnd, PoolFull, Sentence, SettingsError, StateError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter, WorthMore, always
from edge_spec.speculation.follower import Follower
from edge_spec.speculation.loop import Slot, decode, learn, prepare
from edge_spec.speculation.pool import Path
from edge_spec.speculation.round import Round
from edge_spec.speculation.text import Text, common_prefix
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["HierarchyDrafter"]


class HierarchyDrafter(Drafter):
    """Lets a leaf drafter speed up an intermediate model, and drafts what that model writes.

    The intermediate model verifies the leaf's tree; the accepted path and its bonus token extend a sequence;
    this repeats until the sequence is long enough. A quantized target then only ever sees a sequence, which is
    what its kernels verify cheaply (HierSpec: SpecMQuant, arXiv 2505.22179). Inside it is the very loop that
    drives the target, so hierarchies nest.

    Drafts carry values: what the intermediate model's margins claim for each token, as those of a model drafter do.
    For a target that takes trees the same rows tell the siblings along the sequence.

    Args:
        leaf: guesses what the intermediate model will write.
        intermediate: the intermediate model.
        leaf_limit: the most nodes that the leaf drafts at a time.
        width: candidates considered per token of the sequence: itself and its siblings.
    """

    name = "hierarchy"

    def __init__(self, leaf: Drafter, intermediate: Path, *, leaf_limit: int = 3, width: int = 1) -> None:
        if width < 1:
            raise SettingsError(f"a hierarchy of width {width}; it must be at least 1")
        if not intermediate.capabilities.rollback:
            raise SettingsError(
                "this intermediate model cannot roll back drafts",
                hint=Sentence("use {instead}", instead=Arguments(speculation="ngram")),
            )
        self._inner = Slot(intermediate, leaf)
        self._leaf_limit = leaf_limit
        self._width = width
        self._sampler: Sampler | None = None
        # The intermediate model's text is the target's up to here, and then guesses: a fork of it. Each guess has its
        # claim and those of its siblings.
        self.text = Text()
        self._length = 0
        self._cursor = self.text.cursor()
        self._claims: list[list[tuple[int, float]]] = []

    def begin(self, text: Text, sampler: Sampler) -> None:
        super().begin(text, sampler)
        # Until the fork has begun it has nothing of the text.
        self._cursor, self._length = text.cursor(), 0
        self._claims.clear()
        self._sampler = sampler.over(self._inner.model.kept)
        try:
            self._inner.begin(text.tokens, sampler, reuse=True, pick=self._pick)
        except PoolFull:
            self._inner.forget()
            self._inner.begin(text.tokens, sampler, reuse=False, pick=self._pick)
        self._cursor.position = self._length = len(text)

    def _catch_up(self) -> None:
        """Take in how the text has gone on; guesses stay as far as they have come true."""
        inner = self._inner
        if self._cursor.position < self._length:
            self._length = self._cursor.position
            self._replace(self._length, ())
        tokens = self.text.since(self._cursor)
        agreed = common_prefix(inner.text[self._length : self._length + len(tokens)], tokens)
        if agreed < len(tokens):
            self._replace(self._length + agreed, tokens[agreed:])
        del self._claims[: len(tokens)]
        self._length += len(tokens)

    def read(self, most: int | None = None) -> bool:
        self._catch_up()
        try:
            return self._inner.read(most)
        except PoolFull:
            # Where there are no cells nothing is drafted.
            return True

    def n_unread(self) -> int:
        self._catch_up()
        return self._inner.n_unread

    def draft_all_while(
        self, drafters: Sequence[Drafter], limits: Sequence[int], worth_more: WorthMore
    ) -> Sequence[Tree]:
        mine = [each for each in drafters if isinstance(each, HierarchyDrafter)]
        drafts, lengths = [EMPTY] * len(mine), [0] * len(mine)
        going = [place for place, each in enumerate(mine) if each._begins(limits[place])]
        for place in going:
            # What is left of an earlier draft is still a good guess, if the target has agreed with it so far.
            drafts[place], lengths[place] = mine[place]._written(limits[place])
        while True:
            going = [place for place in going if lengths[place] < limits[place] and mine[place]._has_room]
            if not going:
                break
            if worth_more is not always and all(drafts[place] for place in going):
                seen = [draft if place in going else EMPTY for place, draft in enumerate(drafts)]
                if not worth_more(seen):
                    break
            most = [min(self._leaf_limit, limits[place] - lengths[place] - 1) for place in going]
            going = [going[n] for n in _step([mine[place]._inner for place in going], most)]
            for place in going:
                drafts[place], lengths[place] = mine[place]._written(limits[place])
        return [draft if draft.is_sequence else draft.best(limit) for draft, limit in zip(drafts, limits, strict=True)]

    def _begins(self, limit: int) -> bool:
        """Catch up with the text; return whether anything can be drafted."""
        inner = self._inner
        self._catch_up()
        inner.room = self.text.room
        if self._length > inner.model.n_ctx:
            return False
        try:
            if len(inner.text) == self._length:
                inner.hold()
        except PoolFull:
            return False
        return limit > 0

    @property
    def _has_room(self) -> bool:
        return len(self._inner.text) < self._inner.model.n_ctx

    def _written(self, limit: int) -> tuple[Tree, int]:
        """What the intermediate model has written beyond the target's text, with siblings, and how far it goes."""
        written = self._inner.text[self._length : self._length + limit]
        # A step that failed may have left claims for tokens that it did not write.
        del self._claims[len(self._inner.text) - self._length :]
        tokens: list[int] = []
        parents: list[int] = []
        values: list[float] = []
        end, above = -1, 1.0
        for guesses in self._claims[: len(written)]:
            tokens += [token for token, _ in guesses]
            parents += [end] * len(guesses)
            values += [above * chance for _, chance in guesses]
            end = len(tokens) - len(guesses)
            above = values[end]
        return Tree(tuple(tokens), tuple(parents), tuple(values)), len(written)

    def _pick(self, row: Any, text: Sequence[int]) -> int:
        """Return what the sampler picks from a row of the intermediate model, with its chance and its siblings'."""
        assert self._sampler is not None, "begin() comes first"
        guesses = self._sampler.guess(row, text, self._width)
        if not guesses:
            # Where the grammar allows nothing this raises.
            return self._sampler.pick(row, text)
        del self._claims[len(text) - self._length :]
        self._claims.append(guesses)
        return guesses[0][0]

    def drop_guesses(self) -> None:
        """Forget what the intermediate model has written beyond the target's text."""
        self._catch_up()
        self._replace(self._length, ())

    def _replace(self, length: int, tokens: Sequence[int]) -> None:
        self._inner.replace(length, tokens)
        self._claims.clear()

    def save(self) -> dict[str, bytes]:
        self.drop_guesses()
        with suppress(PoolFull):
            return {f"{self.name}.{name}": state for name, state in self._inner.save().items()}
        return {}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        self._claims.clear()
        start = f"{self.name}."
        own = {name.removeprefix(start): state for name, state in states.items() if name.startswith(start)}
        # Without a usable state the intermediate model reads the text again.
        with suppress(StateError, PoolFull):
            self._inner.restore(own, text)
        # Until another one begins, the text is what was restored.
        self.text = Text(self._inner.text)
        self._cursor = self.text.cursor()
        self._cursor.position = self._length = len(self.text)

    @property
    def followed(self) -> dict[str, Follower]:
        return {f"{self.name}.{name}": followed for name, followed in self._inner.followed.items()}

    @property
    def held_bytes(self) -> int:
        return self._inner.drafter.held_bytes


def _step(texts: Sequence[Slot], limits: Sequence[int]) -> list[int]:
    """Let the intermediate models of several texts write on, all in one decode; returns which of them can go on."""
    while texts:
        try:
            prepared = prepare(texts, limits)
            rows = decode(texts, prepared)
            break
        except PoolFull:
            # Who comes last goes without, or no further.
            texts, limits = texts[:-1], limits[:-1]
    done: dict[int, Round] = {}
    for n, text in enumerate(texts):
        # Where a grammar allows nothing it is only for this guess: the target may never come here.
        with suppress(GrammarDeadEnd):
            done[n] = text.finish(prepared[n], rows[n], _never)
    if done and len(done) == len(texts):
        for error in learn(texts, list(done.values())):
            if error is not None:
                raise error
    return list(done)


def _never(token: int) -> bool:
    """Return False: an intermediate model's text does not end, the target decides."""
    return False
