"""How far a loaded model can go back in its text, found out by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_spec.engines.pool import CachedPath
from edge_spec.errors import BackendError
from edge_spec.speculation.language_model import ANYWHERE
from edge_spec.speculation.tree import Tree

__all__ = ["comes_back", "how_far_back"]


def how_far_back(model: CachedPath[Any], text: Sequence[int]) -> int:
    """Return how many tokens of a decode can be taken back, see ``Capabilities.rollback``.

    Args:
        text: longer than a decode.
    """
    n = min(model.settings.max_rows + 1, model.settings.prefill_chunk, model.n_ctx)
    for back in range(n - 1, 0, -1):
        if _goes_back(model, text[:n], back):
            return ANYWHERE if back == n - 1 else back
    return 0 if n > 1 else ANYWHERE


def _goes_back(model: CachedPath[Any], text: Sequence[int], back: int) -> bool:
    """Return whether so many tokens at the end of a text can be taken back while the others stay."""
    try:
        model.rollback(0)
        model.prefill(text)
        model.rollback(len(text) - back)
    except BackendError:
        model.rollback(0)
    return model.n_past == len(text) - back


def comes_back(model: CachedPath[Any], text: Sequence[int]) -> bool:
    """Return whether a model comes back to what it held, after two decodes of a token each."""
    n = min(2, model.n_ctx)
    try:
        model.prefill(text[:n])
        model.hold()
        for last in (n + 1, n + 2):
            model.decode(Tree.sequence(text[n:last]))
        model.rollback(n)
    except BackendError:
        model.rollback(0)
    return model.n_past == n
