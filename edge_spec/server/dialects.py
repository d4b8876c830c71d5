"""The dialects that the server speaks."""

from __future__ import annotations

from edge_spec.server.anthropic_api import ANTHROPIC
from edge_spec.server.dialect import Dialect
from edge_spec.server.ollama_api import OLLAMA
from edge_spec.server.openai_api import OPENAI

__all__ = ["DIALECTS", "dialect_at"]

DIALECTS = (ANTHROPIC, OLLAMA, OPENAI)
"""The one of all other addresses is the last."""


def dialect_at(path: str) -> Dialect:
    """Return the dialect of an address."""
    return next(dialect for dialect in DIALECTS if path.startswith(dialect.begins))
