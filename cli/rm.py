"""edge-spec rm: remove a model from the model folder."""

from __future__ import annotations

import click

from edge_spec.cli.folders import model_dir_option, models_in, own_names
from edge_spec.cli.help import Verb
from edge_spec.cli.printing import echo
from edge_spec.library.pulling import remove
from edge_spec.memory import format_size

__all__ = ["command"]


@click.command("rm", cls=Verb)
@click.argument("names", nargs=-1, required=True, shell_complete=own_names)
@model_dir_option
def command(names: tuple[str, ...], model_dir: str | None) -> int:
    """Remove models from the model folder.

    What other programs have downloaded is theirs and stays. "edge-spec cache clear" removes what was made of models.
    """
    for name in names:
        freed = remove(name, models_in(model_dir))
        echo(f"{name} is removed, {format_size(freed)} freed")
    return 0
