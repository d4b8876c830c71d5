"""A model of a trimmed vocabulary, as one that follows a text of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from edge_spec.speculation.language_model import Capabilities, LanguageModel, Logits, NumericsProfile
from edge_spec.speculation.tree import Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["TrimmedModel"]


class TrimmedModel:
    """A ``LanguageModel`` that is told tokens of the whole vocabulary, and has columns for the kept ones.

    It hands on the inner model's own ids: those of kept tokens, and for every other token the one that stands for all
    of them, whose column is left out of the rows.

    Args:
        inner: a model with one token more than ``kept``, the last, which stands for all others.
    """

    def __init__(self, inner: LanguageModel, kept: KeptTokens) -> None:
        if inner.n_vocab != len(kept) + 1:
            raise ValueError(f"a model of {inner.n_vocab} tokens for {len(kept)} kept ones and one for all others")
        self._inner = inner
        self.kept: KeptTokens | None = kept
        self._columns = kept.columns

    @property
    def n_vocab(self) -> int:
        return self._inner.n_vocab - 1

    @property
    def n_ctx(self) -> int:
        return self._inner.n_ctx

    @property
    def n_past(self) -> int:
        return self._inner.n_past

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def profile(self) -> NumericsProfile:
        return self._inner.profile

    def prefill(self, tokens: Sequence[int]) -> None:
        self._inner.prefill(self._own(tokens))

    def decode(self, tree: Tree) -> Logits:
        return self._inner.decode(Tree(tuple(self._own(tree.tokens)), tree.parents, tree.values))[:, :-1]

    def _own(self, tokens: Sequence[int]) -> list[int]:
        """The inner model's ids of tokens."""
        own: list[int] = self._columns[list(tokens)].tolist()
        return own

    def keep(self, path: Sequence[int]) -> None:
        self._inner.keep(path)

    def rollback(self, n_past: int) -> None:
        self._inner.rollback(n_past)

    def shift(self, first: int, last: int) -> None:
        self._inner.shift(first, last)

    def save(self) -> bytes:
        return self._inner.save()

    def restore(self, state: bytes) -> None:
        self._inner.restore(state)

    def cancel(self) -> None:
        self._inner.cancel()

    def resume(self) -> None:
        self._inner.resume()

    def close(self) -> None:
        self._inner.close()
