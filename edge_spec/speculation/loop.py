"""The decoding loop: a target and its drafter, writing one text together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from edge_spec.errors import StateError
from edge_spec.sampling import Sampler
from edge_spec.speculation.drafters.base import Drafter
from edge_spec.speculation.drafters.checked import CheckedDrafter
from edge_spec.speculation.drafters.plain import NoDrafter
from edge_spec.speculation.followed_text import FollowedText, OnRead
from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.pause import Pause
from edge_spec.speculation.policy import Policy
from edge_spec.speculation.round import Round, Stopwatch
from edge_spec.speculation.tree import EMPTY, Tree
from edge_spec.speculation.walk import Pick, walk

__all__ = ["Speculator"]


class Speculator:
    """A target and its drafter.

    Attributes:
        drafter: guesses what the target will write.
    """

    def __init__(self, model: LanguageModel, drafter: Drafter) -> None:
        self.drafter = drafter
        self._target = FollowedText(model)
        self._undone_on_error = _UndoneOnError(self._target)
        self._sampler: Sampler | None = None
        self._pick: Pick = _not_begun
        self._pause = Pause()

    @property
    def model(self) -> LanguageModel:
        """The target."""
        return self._target.model

    @property
    def text(self) -> list[int]:
        """Token ids of the prompt and all accepted tokens."""
        return self._target.tokens

    @property
    def followed(self) -> dict[str, FollowedText]:
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
        self._target.begin(prompt, reuse=reuse)
        self._sampler = sampler
        self._pick = pick or sampler.pick
        self._begin_drafter(prompt, sampler)

    def _begin_drafter(self, text: Sequence[int], sampler: Sampler) -> None:
        self.drafter.begin(text, sampler.view())
        # A drafter that a grammar guides is not paused: whether one guides it is known now.
        self._pause = self.drafter.pause

    def read(self, most: int | None = None, on_read: OnRead = lambda done, total: None) -> bool:
        """Read what the models have not read of the text, or ``most`` tokens each; whether all is read now.

        Args:
            on_read: called with how far the target is, see ``FollowedText.read``.
        """
        return all([self._target.read(most, on_read), self.drafter.read(most)])

    @property
    def n_unread(self) -> int:
        """How many tokens of the text its models have not read, together."""
        return self._target.n_unread + self.drafter.n_unread

    def step(self, policy: Policy, most: int, ends: Callable[[int], bool]) -> Round:
        """One round: ask how far to draft, draft, decode, walk, keep, learn.

        Args:
            most: draft no more tokens than this, whatever the policy says.
            ends: called with every picked token; says whether the text ends with it.
        """
        pause, tokens = self._pause, self._target.uncommitted(self._target.model.capabilities.max_rows)
        if pause.n_left and len(tokens) == 1:
            done = self._round(EMPTY, Tree.sequence(tokens), 0, Stopwatch(), ends)
            pause.add(done)
            return done
        watch = Stopwatch()
        draft = self._draft(min(policy.limit(), self.drafter.limit(most + 1), most), n_uncommitted=len(tokens))
        done = self._round(draft, draft.under(tokens), len(tokens) - 1, watch, ends, self.drafter.accept)
        self.drafter.learn(done)
        return done

    def _round(
        self,
        draft: Tree,
        tree: Tree,
        root: int,
        watch: Stopwatch,
        ends: Callable[[int], bool],
        on_picked: Callable[[Sequence[int]], None] = lambda picked: None,
    ) -> Round:
        """Decode a tree, walk down from ``root``, where the text ends, and keep what is text now.

        Args:
            on_picked: called with what was picked, before the round is over.
        """
        model = self._target.model
        rows = watch.timed(model.decode, tree)
        with self._undone_on_error:
            path, picked = walk(tree, root, rows, self._pick, self._target.tokens, ends)
            model.keep(path)
            on_picked(picked)
        return Round.of(draft, tree, path, picked, watch)

    def _draft(self, limit: int, *, n_uncommitted: int) -> Tree:
        """Return a draft of at most ``limit`` tokens that fits the rest of a decode.

        With the bonus token it fits the context as well, so that drafts do not change where a context is full.
        """
        model, n_tokens = self._target.model, len(self._target.tokens)
        limit = min(limit, model.capabilities.max_rows - n_uncommitted, model.n_ctx - n_tokens - 1)
        return self.drafter.draft(limit) if limit > 0 else EMPTY

    def replace(self, length: int, tokens: Sequence[int]) -> None:
        """Make the text its first ``length`` tokens followed by ``tokens``."""
        if length < len(self.text):
            # Else what the drafter has decoded beyond the text may be what the tokens are.
            self.drafter.rollback(length)
        self._target.rollback(length)
        self.drafter.accept(tokens)
        self.text.extend(tokens)

    def hold(self) -> None:
        """Make the text, as far as the target has to read it now, a place to which it can go back."""
        self._target.uncommitted(self.model.capabilities.max_rows)
        self.model.hold()

    def end_reply(self) -> None:
        """Drop everything that was guessed beyond the text of a reply that has ended.

        The next reply then has the room, and what is saved in between is text.
        """
        self._target.rollback(len(self.text))
        self.drafter.rollback(len(self.text))

    def settle(self) -> None:
        """Commit what the last rounds have left uncommitted, see ``FollowedText.settle``."""
        self._target.settle()

    def cut(self, first: int, last: int) -> None:
        """Take the tokens from ``first`` up to ``last`` out of the text, to make room in the context."""
        self._target.cut(first, last)
        if self._sampler is not None:
            self._sampler.forget(last - first)
            self._begin_drafter(self.text, self._sampler)
        self._target.read()

    def change_drafter(self, drafter: Drafter | None) -> None:
        """Close the drafter and continue with another one, or with none."""
        self.drafter.close()
        self.drafter = drafter or NoDrafter()
        if self._sampler is not None:
            self._begin_drafter(self.text, self._sampler)

    def change_target(self, model: LanguageModel) -> None:
        """Continue the text with another target. What its cache lacks is read by the next round.

        The old target is not closed.
        """
        if self.model.capabilities.takes_trees and not model.capabilities.takes_trees:
            self.drafter = CheckedDrafter(self.drafter, model)
        self._target.model = model

    def save(self, *, drafters: bool = True) -> dict[str, bytes]:
        """The caches of the target and, with ``drafters``, of the drafter's models, by name. They belong to ``text``.

        Raises:
            Cancelled, Closed: as ``LanguageModel.decode`` and ``save``.
        """
        self.settle()
        return {"target": self.model.save(), **(self.drafter.save() if drafters else {})}

    def restore(self, states: Mapping[str, bytes], text: Sequence[int]) -> None:
        """Restore what ``save`` returned while the text was ``text``; ``begin`` comes next.

        Raises:
            StateError: the target's state is missing, damaged or of another model; text and cache are empty then.
        """
        self.forget()
        if "target" not in states:
            raise StateError("the saved state is incomplete", hint="read the text again instead")
        self._target.restore(states["target"], text)
        # A drafter without a usable state reads the text again; nothing else changes.
        with suppress(StateError):
            self.drafter.restore({name: state for name, state in states.items() if name != "target"}, text)

    def forget(self) -> None:
        """Empty the text and the target's cache."""
        self._target.forget()

    def cancel(self) -> None:
        """Make what the models compute, in another thread, raise ``Cancelled``."""
        for followed in self.followed.values():
            followed.model.cancel()

    def resume(self) -> None:
        """Forget a ``cancel`` that nothing has answered yet."""
        for followed in self.followed.values():
            followed.model.resume()

    def close(self) -> None:
        """Free the target and the drafter."""
        self.drafter.close()
        self.model.close()


def _not_begun(row: Any, text: Sequence[int]) -> int:
    raise AssertionError("begin() comes first")


class _UndoneOnError:
    """If the block fails, the text is what it was before, and the model holds no more than that."""

    __slots__ = ("_followed", "_length")

    def __init__(self, followed: FollowedText) -> None:
        self._followed = followed
        self._length = 0

    def __enter__(self) -> None:
        self._length = len(self._followed.tokens)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            model = self._followed.model
            del self._followed.tokens[self._length :]
            model.rollback(min(model.n_past, self._length - 1))
