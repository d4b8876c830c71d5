"""edge-spec pull: fetch a model and its drafter from the hub."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from edge_spec.cli.folders import model_dir_option, models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.output import Bar, print_table
from edge_spec.cli.wording import in_options
from edge_spec.errors import BudgetExceeded, VocabularyMismatch
from edge_spec.library.hub import Hub
from edge_spec.library.pulling import Pull, find, preview, pull
from edge_spec.library.wanted import read_catalogue, wanted
from edge_spec.loading import plan
from edge_spec.memory import format_size
from edge_spec.models import check_pair, inspect

__all__ = ["command"]

_RUNNING = "Engine and memory"


@click.command("pull", cls=Verb)
@click.argument("name", required=False)
@option(
    "Models",
    "--as",
    "own_name",
    metavar="NAME",
    help="What to call it here. [default: as in the catalogue, or its file]",
)
@option("Models", "--no-drafts", is_flag=True, help="Only the model itself, without the smaller ones of its entry.")
@option("Models", "--dry-run", is_flag=True, help="Only say what it is and what it needs.")
@option(
    "Engine and memory",
    "--memory",
    metavar="SIZE",
    help="Memory to plan for, such as 2GiB. [default: 80% of what is free]",
)
@option(_RUNNING, "--ctx", "n_ctx", type=int, metavar="N", help="Tokens of context to plan for.")
@model_dir_option
def command(name: str | None, **values: Any) -> int:
    """Fetch a model and its drafter from the hub.

    NAME is one of the catalogue, which is listed without NAME; or org/repo, org/repo:Q4_0, org/repo:FILE.gguf; or an
    address of the hub. First only headers are read, to say what the models need here and whether they fit together.
    What was interrupted continues; what Hugging Face's tools, ollama or LM Studio have already is not fetched again.

    \b
    Examples:
      edge-spec pull
      edge-spec pull qwen3-4b --memory 4GiB
      edge-spec pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_0 --dry-run
    """
    if name is None:
        return _list()
    if values["own_name"] is not None and Path(values["own_name"]).name != values["own_name"].lstrip("."):
        raise click.BadParameter(f"{values['own_name']!r} is not a plain name", param_hint="--as")
    asked = wanted(name, own_catalogue())
    if asked.note:
        click.echo(f"edge-spec: note: {asked.note}", err=True)
    folder = models_in(values["model_dir"])

    bar = Bar()

    def cancel() -> bool:
        # What has come stays where it is: the same command continues.
        bar.close()
        return False

    def work() -> int:
        hub = Hub()
        what = find(asked, hub)
        kept = {"target": what.files["target"]} if values["no_drafts"] else what.files
        what = Pull(name=values["own_name"] or what.name, files=kept)
        _look(what, hub, values)
        if not values["dry_run"]:
            place = pull(what, hub, folder, os.environ, on_bytes=lambda done, total: bar("fetching", done, total))
            click.echo(f"{what.name} is in {place}; run it with: edge-spec run {what.name} -p 'Hello'")
        return 0

    return interruptible(work, cancel)


def own_catalogue() -> Path:
    """The user's own catalogue, whether or not there is one."""
    from platformdirs import user_config_path

    return user_config_path("edge-spec") / "catalogue.toml"


def _list() -> int:
    rows = [
        (name, *(entry.sources[role].repo if role in entry.sources else "" for role in ("target", "draft")))
        for name, entry in sorted(read_catalogue(own_catalogue()).items())
    ]
    print_table(("name", "target", "drafter"), rows)
    return 0


def _look(what: Pull, hub: Hub, values: dict[str, Any]) -> None:
    """Say what is to be fetched, and what it needs here."""
    click.echo(f"{what.name}: {format_size(what.n_bytes)} from the hub")
    with TemporaryDirectory(prefix="edge-spec-") as folder:
        previews = preview(what, hub, Path(folder))
        files = {role: inspect(path) for role, path in previews.items()}
        for role, file in files.items():
            click.echo(f"  {role}: {file.path.name}, {file.architecture}, {file.quantisation}")
            try:
                check_pair(files["target"], file)
            except VocabularyMismatch as error:
                raise click.ClickException(f"{error}; --no-drafts fetches the model alone") from None
        asked = {"memory": values["memory"], "n_ctx": values["n_ctx"], "cache_dir": None}
        asked |= {role: path for role, path in previews.items() if role != "target"}
        try:
            found = plan(previews["target"], **asked)
        except BudgetExceeded as error:
            click.echo(in_options(f"edge-spec: note: as it is, it would not run here: {error}"), err=True)
            return
        chosen = found.chosen
        click.echo(
            f"  here: {chosen.described}; needs {format_size(chosen.needed_bytes)} with {chosen.n_ctx:,} tokens, "
            f"the budget allows {format_size(found.budget_bytes)}"
        )
