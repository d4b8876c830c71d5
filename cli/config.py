"""edge-spec config: show the current settings and where they come from."""

from __future__ import annotations

import os

import click

from edge_spec.cli.command import verb
from edge_spec.cli.configuration import COMMON, defaults_of, read_configuration
from edge_spec.cli.folders import cache_folder, models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.output import print_json, print_table

__all__ = ["command"]


@click.command("config", cls=Verb)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """Show the current settings and where they come from.

    They are read from config.toml in edge-spec's folder for configuration, or from the file that EDGE_SPEC_CONFIG
    names, and from variables such as EDGE_SPEC_MEMORY, which come first. Settings for all verbs are the names of
    options; those of one verb stand under its name, such as [chat].
    """
    found = read_configuration(os.environ)
    for name in found.verbs:
        # An unknown verb or option is an error that is better told now.
        found_verb = verb(name)
        if found_verb is None:
            raise click.ClickException(f"{found.path}: there is no verb {name!r} for [{name}]; see edge-spec --help")
        defaults_of(found_verb, name, found)
    folders = {
        "model-dir": str(models_in(found.common.get("model-dir"))),
        "cache-dir": str(cache_folder(found.common.get("cache-dir"))),
    }
    if as_json:
        settings = {**found.common, **{name: dict(values) for name, values in found.verbs.items()}}
        print_json({"file": str(found.path), "exists": found.path.is_file(), "settings": settings, "folders": folders})
        return 0
    click.echo(f"{found.path}{'' if found.path.is_file() else ' (not there)'}\n")
    rows = [
        (name, _shown(found.common.get(name, folders.get(name, ""))), found.sources.get(name, "")) for name in COMMON
    ]
    rows += [
        (f"{name}.{key}", _shown(value), found.path.name)
        for name, values in found.verbs.items()
        for key, value in values.items()
    ]
    print_table(("setting", "value", "from"), rows)
    return 0


def _shown(value: object) -> str:
    return "" if value is None else str(value)
