"""Folders of models and caches: options, variables, and names of models."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from edge_spec.cli.help import option
from edge_spec.options import require_path

__all__ = [
    "ModelName",
    "cache_dir_option",
    "cache_folder",
    "folder_options",
    "model_argument",
    "model_dir_option",
    "models_in",
    "own_names",
]

Command = TypeVar("Command", bound=Callable[..., Any])

_FOLDERS = "Folders"
_FOLDER = click.Path(file_okay=False, readable=False)
"""A folder, which need not be there."""


class ModelName(click.ParamType):  # type: ignore[type-arg]
    """A path, or the name of a model on this computer, which is converted to a path with that name attached."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from edge_spec.library.stores import all_models
        from edge_spec.models.catalogue import family_names

        names = [*family_names(), *(found.name for found in all_models(_folder_of(ctx), os.environ))]
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | os.PathLike[str]:
        from edge_spec.library.stores import Found, locate

        if isinstance(value, Found):
            return value
        if not str(value) or "\0" in str(value):
            self.fail(f"{str(value)!r} is not a name or a path", param, ctx)
        return locate(str(value), _folder_of(ctx), os.environ) or str(value)


def own_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of models in the user's folder that begin so, for the shell."""
    from edge_spec.library.stores import own_models

    return [each.name for each in own_models(_folder_of(ctx)) if each.name.startswith(incomplete)]


def model_argument(metavar: str | None = None, *, several: bool = False) -> Callable[[Command], Command]:
    """The optional argument MODEL; ``load`` has the default. ``several`` of them are the argument ``models``."""
    if several:
        return click.argument("models", type=ModelName(), nargs=-1, metavar=metavar)
    return click.argument("model", type=ModelName(), required=False, metavar=metavar)


def _folder_of(ctx: click.Context | None) -> Path:
    """Return the model folder for a command that has been read as far as ``--model-dir``."""
    given = ctx.params.get("model_dir") if ctx is not None else None
    # For a missing folder, some versions of click hold a placeholder here.
    return models_in(given if isinstance(given, str) else None)


def cache_dir_option(command: Command) -> Command:
    """``--cache-dir``, or its variable."""
    text = "Where transcriptions and probes are kept; or set EDGE_SPEC_CACHE_DIR. [default: the user's cache]"
    return _folder("cache_dir", text)(command)


def model_dir_option(command: Command) -> Command:
    """``--model-dir``, or its variable; parsed before the names that it helps to find."""
    text = "Your model folder; or set EDGE_SPEC_MODEL_DIR. [default: in the user's data]"
    return _folder("model_dir", text, is_eager=True)(command)


def _folder(name: str, text: str, **more: Any) -> Callable[[Command], Command]:
    flag = "--" + name.replace("_", "-")
    check = partial(require_path, name)
    return option(_FOLDERS, flag, type=_FOLDER, metavar="FOLDER", help=text, check=check, **more)


def folder_options(command: Command) -> Command:
    """Both options."""
    return cache_dir_option(model_dir_option(command))


def cache_folder(given: str | None) -> Path:
    """Return the folder for transcriptions and measurements."""
    from platformdirs import user_cache_path

    return Path(given) if given else user_cache_path("edge-spec")


def models_in(given: str | None) -> Path:
    """Return the folder of the user's models."""
    from edge_spec.library.user_folder import model_folder

    return Path(given) if given else model_folder(os.environ)
