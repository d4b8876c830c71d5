"""One line on what speculation did, for ``--stats``."""

from __future__ import annotations

from edge_spec.generation.reply import Reply
from edge_spec.model import TextModel

__all__ = ["summary"]


def summary(model: TextModel, generation: Reply) -> str:
    """Tokens, speed, rounds, drafts, and what is needed to have the same text again."""
    statistics = generation.statistics
    return (
        f"edge-spec: {statistics.tokens} tokens, {statistics.tokens_per_s:.1f} per second; "
        f"speculation {model.mode}: {statistics.mean_length:.2f} tokens per round, "
        f"{statistics.accepted} of {statistics.drafted} drafts accepted; "
        f"seed {generation.settings.seed}, profile {model.profile.name}, {model.identity}"
    )
