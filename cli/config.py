"""edge-spec config: show the current settings and where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from edge_spec.cli.command import verb
from edge_spec.cli.configuration import COMMON, Configuration, common_mistakes, read_configuration, table_mistakes
from edge_spec.cli.folders import cache_folder, models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.output import print_json, print_table
from edge_spec.cli.printing import echo
from edge_spec.cli.wording import described

__all__ = ["command"]


@click.command("config", cls=Verb)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool) -> int:
    """Show the current settings and where they come from.

    They are read from config.toml in edge-spec's folder for configuration, or from the file that EDGE_SPEC_CONFIG
    names, and from variables such as EDGE_SPEC_MEMORY, which come first. Settings for all verbs are the names of
    options; those of one verb stand under its name, such as [chat]. Exits with 1 if the file has a mistake, which stops
    the other verbs.
    """
    found = read_configuration(os.environ)
    tables = (mistake for name in found.verbs for mistake in table_mistakes(verb(name), name, found))
    # Every setting for all verbs is an option of ``run``.
    mistakes = [described(mistake) for mistake in (*common_mistakes(found, verb("run")), *tables)]
    folders = {
        "model-dir": str(models_in(_text(found.common.get("model-dir")))),
        "cache-dir": str(cache_folder(_text(found.common.get("cache-dir")))),
    }
    if as_json:
        settings = {**found.common, **found.verbs}
        shown = {"file": str(found.path), "exists": found.path.is_file(), "settings": settings, "folders": folders}
        print_json({**shown, "mistakes": mistakes})
    else:
        _print(found, folders)
        for mistake in mistakes:
            echo(f"edge-spec: error: {mistake}", err=True)
    return int(bool(mistakes))


def _print(found: Configuration, folders: Mapping[str, str]) -> None:
    echo(f"{found.path}{'' if found.path.is_file() else ' (not there)'}\n")
    names = dict.fromkeys((*COMMON, *found.common))
    rows = [
        (name, _shown(found.common.get(name, folders.get(name, ""))), found.sources.get(name, "")) for name in names
    ]
    rows += [
        (f"{name}.{key}", _shown(value), found.path.name)
        for name, values in found.verbs.items()
        for key, value in values.items()
    ]
    print_table(("setting", "value", "from"), rows)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _shown(value: object) -> str:
    return "" if value is None else str(value)
