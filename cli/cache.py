"""edge-spec cache: show or clear what is kept on the disk besides models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edge_spec.cli.folders import cache_folder, folder_options, models_in
from edge_spec.cli.help import Verb, list_verbs, option
from edge_spec.cli.output import print_json, print_table
from edge_spec.cli.printing import echo
from edge_spec.library.storage import Kept, clear, kept_in
from edge_spec.memory import format_size

__all__ = ["command"]

_KINDS = {"transcriptions": "transcription", "probes": "probes", "downloads": "download"}
"""The kinds that ``clear`` can remove, and their ``Kept.kind``."""


class _Cleared(click.Choice):  # type: ignore[type-arg]
    """One of the kinds in the plural, or as the list shows it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        plurals = {kind: plural for plural, kind in _KINDS.items()}
        return super().convert(plurals.get(value, value), param, ctx)


@click.group("cache", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show or clear what is kept on the disk besides models."""
    list_verbs(context)


@command.command("list", cls=Verb)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@folder_options
def show(as_json: bool, cache_dir: str | None, model_dir: str | None) -> int:
    """List what is kept on the disk besides models, and what it takes.

    Transcriptions are the weights of a model in the order that ONNX Runtime reads, probes are what was measured on
    this computer; both are made again when they are needed. Downloads are the unfinished ones of "edge-spec pull",
    which would resume. Drafters and conversations cannot be made again as they are.
    """
    kept = _kept(cache_dir, model_dir)
    if as_json:
        for each in kept:
            print_json({**vars(each), "path": str(each.path)})
        return 0
    rows = [
        (each.kind, each.name, format_size(each.n_bytes), "yes" if each.is_cache else "no", str(each.path))
        for each in kept
    ]
    print_table(("what", "of", "size", "cleared", "where"), rows, right=(2,))
    total = sum(each.n_bytes for each in kept if each.is_cache)
    echo(f"\n`edge-spec cache clear` would free {format_size(total)}.")
    return 0


@command.command("clear", cls=Verb)
@click.argument("what", type=_Cleared(["all", *_KINDS]), default="all")
@folder_options
def clear_cache(what: str, cache_dir: str | None, model_dir: str | None) -> int:
    """Remove what would be made or fetched again.

    These are transcriptions and probes, which are made again when they are needed, and unfinished downloads. Models,
    drafters and conversations stay.
    """
    freed = 0
    for each in _kept(cache_dir, model_dir):
        if each.is_cache and (what == "all" or each.kind == _KINDS[what]):
            if clear(each):
                freed += each.n_bytes
            else:
                echo(f"edge-spec: note: {each.name} is being fetched, and stays", err=True)
    echo(f"{format_size(freed)} freed in {cache_folder(cache_dir)} and {models_in(model_dir)}")
    return 0


def _kept(cache_dir: str | None, model_dir: str | None) -> list[Kept]:
    from platformdirs import user_data_path

    return list(kept_in(cache_folder(cache_dir), Path(user_data_path("edge-spec")), models_in(model_dir)))
