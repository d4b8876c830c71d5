"""The dialects that the server speaks."""

from __future__ import annotations

from edge_spec.server.dialect import Dialect
from edge_spec.server.openai_api import OPENAI

__all__ = ["DIALECTS", "dialect_at"]

DIALECTS = (OPENAI,)
"""The one of all other addresses is the last."""


def dialect_at(path: str) -> Dialect:
    """Return the dialect of an address."""
    return next(dialect for dialect in DIALECTS if path.startswith(dialect.begins))
