"""edge-spec list: list the models on this computer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click

from edge_spec.cli.folders import model_dir_option, models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.output import in_short, print_json, print_records
from edge_spec.cli.printing import echo, one_line
from edge_spec.controller.drafter_choice import ReadFile, own_drafter
from edge_spec.engines.registry import AUTO, why_none
from edge_spec.errors import EdgeSpecError, ModelNotFound
from edge_spec.library.stores import Found, all_models
from edge_spec.memory import format_size
from edge_spec.models import Family, inspect, resolve_family
from edge_spec.models.catalogue import family_names
from edge_spec.models.made_drafters import chosen_drafter

__all__ = ["command"]


@click.command("list", cls=Verb)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per model.")
@model_dir_option
def command(as_json: bool, model_dir: str | None) -> int:
    """List the models on this computer, by the names that other verbs take.

    These are the ones that come with edge-spec, those in the model folder, and what Hugging Face's tools, ollama and
    LM Studio have downloaded: they are used where they lie. Sizes are without drafters. A drafter that "edge-spec pair"
    has chosen shows how much faster it made the model on this computer, and the 95 % interval of that.
    """
    models = list(_described(models_in(model_dir)))
    if as_json:
        for each in models:
            print_json(each)
        return 0
    titles = ("name", "architecture", "parameters", "type", "size", "drafter", "from")
    rows = [
        (
            each["name"],
            each["architecture"],
            in_short(each["parameters"]) if each["parameters"] is not None else "",
            each["quantization"],
            format_size(each["bytes"]) if each["bytes"] is not None else "",
            _drafter(each),
            each["from"],
        )
        for each in models
    ]
    print_records(titles, rows, right=(2, 4))
    for each in models:
        if each["problem"]:
            echo(f"edge-spec: note: {one_line(each['problem'])}", err=True)
    return 0


def _drafter(model: dict[str, Any]) -> str:
    if not model["draft"]:
        return ""
    return "{:.2f}x here ({:.2f}-{:.2f})".format(model["speed_up"], *model["interval"]) if model["speed_up"] else "yes"


def _described(folder: Path) -> Iterator[dict[str, Any]]:
    # Each model asks for the same drafters.
    read_file = cache(inspect)
    for name in family_names():
        try:
            yield _facts(name, "the package", resolve_family(name), read_file)
        except ModelNotFound:
            continue
    for found in all_models(folder, os.environ):
        try:
            yield _facts(found.name, found.store, resolve_family(found.path), read_file)
        except (EdgeSpecError, OSError) as error:
            yield _unreadable(found, str(error))


def _facts(name: str, store: str, family: Family, read_file: ReadFile) -> dict[str, Any]:
    target = read_file(family.target)
    chosen, (draft, _) = chosen_drafter(target), own_drafter(family, target, AUTO, read_file)
    speed_up = chosen.speed_up if chosen is not None else None
    return {
        "name": name,
        "path": str(family.target),
        "from": store,
        "architecture": target.architecture,
        "parameters": target.n_params,
        "quantization": target.quantization,
        "bytes": sum(path.stat().st_size for path in target.parts),
        "draft": str(draft) if draft is not None else None,
        "speed_up": speed_up[0] if speed_up is not None else None,
        "interval": list(speed_up[1:]) if speed_up is not None else None,
        "problem": str(why_none(target) or ""),
    }


def _unreadable(found: Found, problem: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": found.name, "path": str(found.path), "from": found.store}
    facts |= {"architecture": "unusable", "parameters": None, "quantization": "", "bytes": None}
    return facts | {"draft": None, "speed_up": None, "interval": None, "problem": problem}
