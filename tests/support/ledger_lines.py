"""The lines of a model's ledger."""

from __future__ import annotations

from typing import Any

from edge_spec import TextModel


def lines_of(model: TextModel) -> dict[str, Any]:
    """Every line by its name."""
    return {line.name: line for line in model.ledger}
