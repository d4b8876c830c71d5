"""The decoding loop: a target and its drafter, writing one text together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from edge_spec.errors import StateError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.follower import Follower, OnRead
from edge_spec.speculation.guide import guided, learn_forced
from edge_spec.speculation.language_model import LanguageModel, Logits
from edge_spec.speculation.round import Round, Stopwatch
from edge_spec.speculation.text import Text
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.speculation.walk import Pick, walk

__all__ = ["Prepared", "Speculator"]


class Prepared(NamedTuple):
    """A round whose decode comes next.

    Attributes:
        tree: what the target decodes: the uncommitted tokens, and the draft below the last of them.
        draft: what was drafted.
        watch: times the round.
    """

    tree: Tree
    draft: Tree
    watch: Stopwatch


class Speculator:
    """A target and its drafter.

    Attributes:
        drafter: guesses what the target will write.
    """

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self.drafter = drafter
        self._target = Follower(model)
        self._undone_on_error = _UndoneOnError(self._target)
        self._sampler: Sampler | None = None
        self._pick: Pick = _not_begun
        # Of a reply that a grammar guides: it guides its drafts as well.
        self._guide: Sampler | None = None

    @property
    def model(self) -> LanguageModel:
        """The target."""
        return self._target.model

    @property
    def text(self) -> list[int]:
        """Token ids of the prompt and all accepted tokens."""
        return self._target.text.tokens

    @property
    def room(self) -> int | None:
        """The tokens by which the text may still grow, if that is known: drafters weigh what pays by then."""
        return self._target.text.room

    @room.setter
    def room(self, n_tokens: int | None) -> None:
        self._target.text.room = n_tokens

    @property
    def followed(self) -> dict[str, Follower]:
        """All models and the texts that they follow: ``target``, and those of the drafter by their names."""
        return {"target": self._target, **self.drafter.followed}

    def begin(self, prompt: Sequence[int], sampler: Sampler, *, reuse: bool, pick: Pick | None = None) -> None:
        """Start a new text; ``read`` comes next. With ``reuse`` the caches keep what they share with it.

        A reused cache was computed in other widths than a fresh one. For the same text after the same prompt, do not
        reuse.

        Args:
            pick: picks tokens instead of ``sampler.pick``, and picks the same ones.
        """
        if reuse:
            self._target.settle()
        self._target.follow(Text(prompt), reuse=reuse)
        self._sampler = sampler
        self._pick = pick or sampler.pick
        self._begin_drafter(sampler)

    def _begin_drafter(self, sampler: Sampler) -> None:
        view = sampler.view()
        self._guide = view if sampler.has_grammar and self.drafter.takes_guidance else None
        self.drafter.begin(self._target.text, view)

    def read(self, most: int | None = None, on_read: OnRead = lambda done, total: None) -> bool:
        """Read what the models have not read of the text, or ``most`` tokens each; whether all is read now.

        Args:
            on_read: called with how far the target is, see ``Follower.read``.
        """
        return all([self._target.read(most, on_read), self.drafter.read(most)])

    def unread(self, most: int) -> Sequence[int]:
        """Return the next tokens that the target has to read before it can write, at most ``most``."""
        return self._target.unread(most)

    @property
    def n_unread(self) -> int:
        """How many tokens of the text its models have not read, together."""
        return self._target.n_unread + self.drafter.n_unread()

    def step(self, limit: int, most: int, ends: Callable[[int], bool]) -> Round:
        """One round: draft, decode, walk, keep, learn.

        Args:
            limit: the most tokens to draft; 0 for plain decoding.
            most: draft no more tokens than this either.
            ends: called with every picked token; says whether the text ends with it.
        """
        prepared = self.prepare(limit, most)
        return self.finish(prepared, self.decode(prepared), ends)

    def prepare(self, limit: int, most: int, *, max_rows: int | None = None) -> Prepared:
        """Draft; the target has to decode the tree of what is returned, and ``finish`` comes next.

        Args:
            limit, most: as for ``step``.
            max_rows: of the decode, which other texts may share; the model's own if None.
        """
        watch = Stopwatch()
        if max_rows is None:
            max_rows = self.model.capabilities.max_rows
        tokens = self._target.uncommitted(max_rows)
        draft = self._draft(min(limit, most, max_rows - len(tokens)))
        watch.lap()
        return Prepared(draft.under(tokens), draft, watch)

    def decode(self, prepared: Prepared) -> Logits:
        """Decode the tree of ``prepare``; returns its rows."""
        rows = self._target.decode(prepared.tree)
        prepared.watch.lap()
        return rows

    def decoded(self, prepared: Prepared, seconds: float) -> None:
        """The tree of ``prepare`` was decoded together with those of other texts; its rows' part took ``seconds``."""
        self._target.decoded(prepared.tree)
        prepared.watch.count(seconds)

    def finish(self, prepared: Prepared, rows: Logits, ends: Callable[[int], bool], *, learns: bool = True) -> Round:
        """Walk, keep and learn, once the tree of ``prepare`` is decoded.

        Args:
            rows: logits of the tree's nodes.
            ends: as for ``step``.
            learns: whether the drafter learns from the round; not from one whose decode was shared.
        """
        target, draft, tree = self._target, prepared.draft, prepared.tree
        with self._undone_on_error:
            path, picked = walk(tree, len(tree) - len(draft) - 1, rows, self._pick, self.text, ends)
            target.keep(path)
            if self._guide is not None:
                learn_forced(self._guide, self.text, len(picked))
        done = Round.of(draft, tree, path, picked, prepared.watch)
        if learns:
            self.drafter.learn(done)
        return done

    def _draft(self, most: int) -> Tree:
        """Return a draft of at most so many tokens.

        With the bonus token it fits the context as well, so that drafts do not change where a context is full.
        """
        model, text = self.model, self._target.text
        most = min(most, model.n_ctx - len(text) - 1)
        if most < 1:
            return EMPTY
        draft = self.drafter.draft(most)
        if self._guide is not None:
            draft = guided(draft, self._guide, text.tokens, most)
        if draft is EMPTY:
            return EMPTY
        return draft.fitted(most, model.n_vocab, branches=model.capabilities.takes_trees)

    def replace(self, length: int, tokens: Sequence[int]) -> None:
        """Make the text its first ``length`` tokens followed by ``tokens``."""
        self._target.rollback(length)
        self.text.extend(tokens)

    def hold(self) -> None:
        """Make the text, as far as the target has to read it now, a place to which it can go back."""
        self._target.uncommitted(self.model.capabilities.max_rows)
        self.model.hold()

    def end_reply(self) -> None:
        """Drop what the target has decoded beyond the text of a reply that has ended: the next one has the room."""
        self._target.rollback(len(self.text))

    def settle(self) -> None:
        """Commit what the last rounds have left uncommitted, see ``Follower.settle``."""
        self._target.settle()

    def cut(self, first: int, last: int) -> None:
        """Take the tokens from ``first`` up to ``last`` out of the text, to make room in the context."""
        self._target.cut(first, last)
        if self._sampler is not None:
            self._sampler.forget(last - first)
        self._target.read()

    def draft_with(self, drafter: Drafter) -> None:
        """Continue with another drafter. The one before is not closed."""
        self.drafter = drafter
        if self._sampler is not None:
            self._begin_drafter(self._sampler)

    def change_target(self, model: LanguageModel) -> None:
        """Continue the text with another target. What its cache lacks is read by the next round.

        The old target is not closed.
        """
        self._target.change_model(model)

    def save(self, *, target: bool = True, drafters: bool = True) -> dict[str, bytes]:
        """Return the caches of the target and of the drafter's models, by name. They belong to ``text``.

        Raises:
            Cancelled, Closed: as ``LanguageModel.decode`` and ``save``.
        """
        states: dict[str, bytes] = {}
        if target:
            self.settle()
            states["target"] = self._target.save()
        return states | (self.drafter.save() if drafters else {})

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Restore what ``save`` returned while the text was ``text``; ``begin`` comes next.

        Raises:
            StateError: the target's state is missing, damaged or of another model; text and cache are empty then.
        """
        self.forget()
        if "target" not in states:
            raise StateError("the saved state is incomplete", hint="read the text again instead")
        self._target.restore(states["target"], text)
        self.drafter.restore(states, text)

    def holds(self, tokens: Sequence[int]) -> None:
        """The text, empty so far, is ``tokens``, and the target's cells hold their beginning; ``begin`` comes next."""
        self._target.holds(tokens)

    def forget(self) -> None:
        """Empty the text and the target's cache."""
        self._target.forget()


def _not_begun(row: Any, text: Sequence[int]) -> int:
    raise AssertionError("begin() comes first")


class _UndoneOnError:
    """If the block fails, the text is what it was before, and the model holds no more than that."""

    __slots__ = ("_follower", "_length")

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._length = 0

    def __enter__(self) -> None:
        self._length = len(self._follower.text)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._follower.rollback(self._length)
