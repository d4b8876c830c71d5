"""edge-spec completion: print the completion script for a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from edge_spec.cli.command import root
from edge_spec.cli.help import Verb
from edge_spec.cli.printing import echo

__all__ = ["command"]

_VARIABLE = "_EDGE_SPEC_COMPLETE"


@click.command("completion", cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the script with which SHELL completes verbs, options and names of models.

    \b
    Examples:
      edge-spec completion bash >> ~/.bashrc
      edge-spec completion zsh >> ~/.zshrc
      edge-spec completion fish > ~/.config/fish/completions/edge-spec.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(root(), {}, "edge-spec", _VARIABLE).source())
    return 0
