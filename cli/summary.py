"""One line on what speculation did, for ``--stats``."""

from __future__ import annotations

import sys

import click

from edge_spec.generation.reply import Reply
from edge_spec.model import TextModel

__all__ = ["print_summary"]


def print_summary(model: TextModel, reply: Reply) -> None:
    """Tokens, speed, drafts, and what is needed to have the same text again, on standard error."""
    statistics = reply.statistics
    if sys.stdout.isatty():
        # The text stands just above.
        click.echo(err=True)
    click.echo(
        f"edge-spec: {statistics.tokens} tokens, {statistics.tokens_per_s:.1f} tokens/s; "
        f"speculation {model.mode}: {statistics.mean_length:.2f} tokens/round, "
        f"{statistics.accepted} of {statistics.drafted} drafts accepted; "
        f"seed {reply.settings.seed}, profile {model.profile.name}, {model.identity}",
        err=True,
    )
