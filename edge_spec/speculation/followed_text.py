"""A text, and a model whose cache holds its beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge_spec.speculation.language_model import LanguageModel
from edge_spec.speculation.tree import Tree

__all__ = ["FollowedText", "OnRead", "common_prefix"]

OnRead = Callable[[int, int], object]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts have in common from the start."""
    n = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        n += 1
    return n


class FollowedText:
    """A text that a model follows.

    Between two rounds the model has committed all tokens but the last one, or fewer (see ``LanguageModel.keep``).
    The others are *uncommitted*: the next decode begins with them.

    Attributes:
        model: the model; its cache holds the beginning of ``tokens`` and nothing else.
        tokens: token ids of the whole text.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.tokens: list[int] = []

    def begin(self, prompt: Sequence[int], *, reuse: bool) -> None:
        """Follow another text; ``read`` comes next.

        Args:
            reuse: the cache keeps what both texts begin with, as far as the model can go back to it.
        """
        model = self.model
        model.rollback(common_prefix(self.tokens[: model.n_past], prompt[:-1]) if reuse else 0)
        self.tokens = list(prompt)

    @property
    def n_unread(self) -> int:
        """How many tokens are not committed, beside the last one."""
        return max(0, len(self.tokens) - 1 - self.model.n_past)

    def read(self, most: int | None = None, on_read: OnRead = lambda done, total: None) -> bool:
        """Commit all tokens but the last one, or ``most`` of them; whether all are committed now.

        A few are left to the next decode if there is a ``most``. A text longer than the context is not read.

        Args:
            on_read: called with the number of tokens that are read and of all that have to be, chunk by chunk.
        """
        n_past, end = self.model.n_past, len(self.tokens) - 1
        if end >= self.model.n_ctx or (most is not None and end - n_past < self.model.capabilities.max_rows // 2):
            return True
        stop = end if most is None else min(end, n_past + most)
        step = self.model.capabilities.prefill_chunk or max(1, stop - n_past)
        for start in range(n_past, stop, step):
            on_read(start - n_past, stop - n_past)
            self.model.prefill(self.tokens[start : min(start + step, stop)])
        if stop > n_past:
            on_read(stop - n_past, stop - n_past)
        return stop == end

    def uncommitted(self, max_rows: int) -> Sequence[int]:
        """Return the tokens that the next decode has to begin with, never none.

        All of them but the last one are prefilled, unless they take at most ``max_rows`` rows of the next decode.
        """
        model = self.model
        if model.n_past >= len(self.tokens):
            # After a rollback, or after a draft that was right. The row after the last token is needed all the same.
            model.rollback(len(self.tokens) - 1)
        tokens = self.tokens[model.n_past :]
        if len(tokens) > max(max_rows, 1):
            model.prefill(tokens[:-1])
            tokens = tokens[-1:]
        return tokens

    def settle(self) -> None:
        """Commit all tokens but the last one, computed like those of a reply, not like those of a prompt.

        Afterwards the cache is the one that plain decoding would have left. Only what ``keep`` has left out after a
        side branch is committed; if more is missing, it has yet to be read, and is left to a prefill.
        """
        model, n_tokens = self.model, len(self.tokens)
        missing = self.tokens[model.n_past : -1]
        if missing and len(missing) <= model.capabilities.max_rows and n_tokens <= model.n_ctx:
            model.decode(Tree.sequence(missing))
            model.keep(range(len(missing)))

    def rollback(self, length: int) -> None:
        """Shorten the text to its first ``length`` tokens, and drop what is pending in the model."""
        self.model.rollback(min(self.model.n_past, length))
        del self.tokens[length:]

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
        except BaseException:
            # Text and cache may differ now.
            self.forget()
            raise
        del self.tokens[first:last]

    def forget(self) -> None:
        """Empty the text and the cache."""
        self.tokens = []
        self.model.rollback(0)

    def restore(self, state: bytes, tokens: Sequence[int]) -> None:
        """Follow ``tokens`` with a cache that ``model.save`` returned while it followed them.

        Raises:
            StateError: the state is damaged or of another model; text and cache are empty then.
        """
        self.forget()
        self.model.restore(state)
        self.tokens = list(tokens)
