"""A model of another vocabulary, a trimmed or a padded one, as one that follows a text of the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from edge_spec.speculation.language_model import Capabilities, LanguageModel, Logits, NumericsProfile
from edge_spec.speculation.pool import Path, Pool, pool_of
from edge_spec.speculation.tree import Tree
from edge_spec.tokens.kept_tokens import KeptTokens

__all__ = ["TrimmedModel", "decode_paths"]


class TrimmedModel:
    """A ``LanguageModel`` that is told tokens of the whole vocabulary, and has columns for the kept ones.

    It hands on the inner model's own ids: those of kept tokens, and for every other token the one that stands for all
    of them. Columns of tokens that the whole vocabulary lacks are left out of the rows, and so is that of the token
    that stands for others where it is none of the kept ones.

    Args:
        inner: a model whose own ids are those that ``kept`` names.
    """

    def __init__(self, inner: LanguageModel, kept: KeptTokens) -> None:
        largest = int(kept.own_ids.max())
        if not int(kept.own_ids.min()) >= 0 or largest >= inner.n_vocab:
            raise ValueError(f"a model of {inner.n_vocab} tokens, and its own id {largest}")
        self._inner = inner
        self.kept: KeptTokens | None = kept
        self._own_ids = kept.own_ids
        self._picked = kept.picked
        self._n_kept = len(kept)

    @property
    def pool(self) -> Pool | None:
        """The pool of which the inner model is a path, see ``decode_paths``."""
        return pool_of(self._inner)

    @property
    def n_vocab(self) -> int:
        return self._n_kept

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
        return self._inner.decode(self._own_tree(tree))[:, self._picked]

    def _own_tree(self, tree: Tree) -> Tree:
        return Tree(tuple(self._own(tree.tokens)), tree.parents, tree.values)

    def _own(self, tokens: Sequence[int]) -> list[int]:
        """Return the inner model's ids of tokens."""
        own: list[int] = self._own_ids[list(tokens)].tolist()
        return own

    def keep(self, path: Sequence[int]) -> None:
        self._inner.keep(path)

    def rollback(self, n_past: int) -> None:
        self._inner.rollback(n_past)

    def hold(self) -> None:
        self._inner.hold()

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


def decode_paths(models: Sequence[LanguageModel], trees: Sequence[Tree]) -> list[Logits]:
    """Decode trees of several models, trimmed or not, which are paths of one pool; see ``Pool.decode``."""
    pool = pool_of(models[0])
    assert pool is not None
    rows = pool.decode(
        [
            (cast(Path, model._inner), model._own_tree(tree))
            if isinstance(model, TrimmedModel)
            else (cast(Path, model), tree)
            for model, tree in zip(models, trees, strict=True)
        ]
    )
    return [
        own[:, model._picked] if isinstance(model, TrimmedModel) else own
        for model, own in zip(models, rows, strict=True)
    ]
