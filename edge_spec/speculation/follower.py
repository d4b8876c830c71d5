"""A model, and the text whose beginning its cache holds."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.errors import PoolFull
from edge_spec.speculation.language_model import Logits
from edge_spec.speculation.pool import Path
from edge_spec.speculation.text import Text, common_prefix
from edge_spec.speculation.tree import EMPTY, Tree

__all__ = ["Follower", "decode_all"]


class Follower:
    """A model that follows a text.

    Between two rounds the model has committed all tokens but the last one, or fewer (see ``Path.keep``).
    The others are *uncommitted*: the next decode begins with them. A model that nobody asks falls behind, and catches
    up when it is asked.

    Attributes:
        model: a path of the model; its cache holds the beginning of the text and, after ``decode``, guesses.
        text: the text.
    """

    def __init__(self, model: Path) -> None:
        self.model = model
        self.text = Text()
        self._cursor = self.text.cursor()
        # Decoded beyond what is committed: the end of the text as it was then, and guesses below that.
        self._pending: Tree = EMPTY

    def follow(self, text: Text, *, reuse: bool) -> None:
        """Follow another text; ``read`` comes next.

        Args:
            reuse: the cache keeps what both texts begin with, as far as the model can go back to it.
        """
        model = self.model
        if reuse and text is self.text:
            self._catch_up()
            return
        known = self.text.tokens[: min(model.n_past, self._cursor.position)]
        self._pending = EMPTY
        model.rollback(common_prefix(known, text.tokens[:-1]) if reuse else 0)
        self.text, self._cursor = text, text.cursor()
        self._cursor.position = len(text)

    def change_model(self, model: Path) -> None:
        """Follow the text with another model; what its cache lacks is read when it is asked."""
        self.model, self._pending = model, EMPTY

    def evict(self) -> None:
        """Give the cells back: the text is read again when the model is asked."""
        self._pending = EMPTY
        self.model.rollback(0)

    def _catch_up(self) -> None:
        """Commit the guesses that have become text, and forget the others and what is no longer text."""
        model, cursor = self.model, self._cursor
        pending, self._pending = self._pending, EMPTY
        if cursor.position < model.n_past:
            model.rollback(cursor.position)
        elif pending:
            model.keep(pending.descend(self.text.tokens[model.n_past :]))
        cursor.position = len(self.text)

    @property
    def n_unread(self) -> int:
        """How many tokens are not committed, beside the last one."""
        return max(0, len(self.text) - 1 - min(self.model.n_past, self._cursor.position))

    def read(self, most: int | None = None) -> bool:
        """Commit all tokens but the last one, or ``most`` of them; whether all are committed now.

        A few are left to the next decode if there is a ``most``. A text longer than the context is not read.
        """
        self._catch_up()
        n_past, end = self.model.n_past, len(self.text) - 1
        if end >= self.model.n_ctx or (most is not None and end - n_past < self.model.capabilities.max_rows // 2):
            return True
        stop = end if most is None else min(end, n_past + most)
        step = self.model.capabilities.prefill_chunk or max(1, stop - n_past)
        for start in range(n_past, stop, step):
            self.model.prefill(self.text.tokens[start : min(start + step, stop)])
        return stop == end

    def uncommitted(self, max_rows: int) -> Sequence[int]:
        """Return the tokens that the next decode has to begin with, never none.

        All of them but the last one are prefilled, unless they take at most ``max_rows`` rows of the next decode.
        """
        self._catch_up()
        model = self.model
        if model.n_past >= len(self.text):
            # After a rollback, or after a draft that was right. The row after the last token is needed all the same.
            model.rollback(len(self.text) - 1)
        tokens = self.text.tokens[model.n_past :]
        if len(tokens) > max(max_rows, 1):
            model.prefill(tokens[:-1])
            tokens = tokens[-1:]
        return tokens

    def decode(self, tree: Tree) -> Logits:
        """Decode guesses; the nodes that become text are kept as soon as the model is asked again.

        Args:
            tree: begins with what ``uncommitted`` returned. It may be grown, see ``Pool.decode``.
        """
        return decode_all([self], [tree])[0]

    def unread(self, most: int) -> Sequence[int]:
        """Return the next tokens to commit of a text that is being read, at most ``most``; never its last one."""
        self._catch_up()
        n_past = self.model.n_past
        return self.text.tokens[n_past : min(n_past + most, len(self.text) - 1)]

    def keep(self, path: Sequence[int]) -> None:
        """Commit the nodes of what was decoded last that are text now, see ``Path.keep``."""
        self._pending = EMPTY
        self.model.keep(path)
        self._cursor.position = len(self.text)

    def settle(self) -> None:
        """Commit all tokens but the last one, computed like those of a reply, not like those of a prompt.

        Afterwards the cache is the one that plain decoding would have left. Only what ``keep`` has left out after a
        side branch is committed; if more is missing, it has yet to be read, and is left to a prefill.
        """
        self._catch_up()
        model, n_tokens = self.model, len(self.text)
        missing = self.text.tokens[model.n_past : -1]
        if missing and len(missing) <= model.capabilities.max_rows and n_tokens <= model.n_ctx:
            model.decode(Tree.sequence(missing))
            model.keep(range(len(missing)))

    def rollback(self, length: int) -> None:
        """Shorten the text to its first ``length`` tokens, and drop what is pending in the model."""
        self.text.shorten(length)
        self._pending = EMPTY
        self.model.rollback(min(self.model.n_past, self._cursor.position))
        self._cursor.position = len(self.text)

    def cut(self, first: int, last: int) -> None:
        """Take the tokens from ``first`` up to ``last`` out of the text.

        A model that can shift keeps what it computed from them; any other has to read again what follows.
        """
        model = self.model
        try:
            self.settle()
            if model.capabilities.can_shift and last <= model.n_past:
                model.shift(first, last)
            else:
                model.rollback(min(first, model.n_past))
        except PoolFull:
            # Nothing has changed.
            raise
        except BaseException:
            # Text and cache may differ now.
            self.forget()
            raise
        self.text.cut(first, last)
        self._cursor.position = len(self.text)

    def forget(self) -> None:
        """Empty the text and the cache."""
        self.rollback(0)

    def leave(self) -> None:
        """Empty the cache, and follow no text that others know."""
        self.text = Text()
        self._cursor = self.text.cursor()
        self.forget()

    def save(self) -> bytes:
        """Return what the model has committed of the text."""
        self._catch_up()
        return self.model.save()

    def restore(self, state: bytes, tokens: Sequence[int]) -> None:
        """Follow ``tokens``, as a text of its own, with a cache that ``save`` returned while it followed them.

        Raises:
            StateError: the state is damaged or of another model; text and cache are empty then.
        """
        self.leave()
        self.model.restore(state)
        self.holds(tokens)

    def holds(self, tokens: Sequence[int]) -> None:
        """The text, empty so far, is ``tokens``, and the cache holds their beginning."""
        self.text.tokens += tokens
        self._cursor.position = len(tokens)


def decode_all(followers: Sequence[Follower], trees: Sequence[Tree]) -> list[Logits]:
    """Decode guesses of several texts at once, see ``Follower.decode``.

    Args:
        followers: those of paths through one pool.

    Raises:
        PoolFull, Cancelled, BackendError: as ``Pool.decode``.
    """
    try:
        pairs = [(follower.model, tree) for follower, tree in zip(followers, trees, strict=True)]
        rows = followers[0].model.pool.decode(pairs)
    except PoolFull:
        # Nothing has changed.
        raise
    except BaseException:
        for follower in followers:
            follower._pending = EMPTY
        raise
    for follower, tree in zip(followers, trees, strict=True):
        follower._pending = tree
    return rows
