"""edge-spec pull: fetch a model and its drafter."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click
from click.core import ParameterSource

from edge_spec.cli.folders import folder_options, models_in
from edge_spec.cli.help import Verb, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import context_option, memory_option
from edge_spec.cli.output import Bar, in_short, print_json, print_records
from edge_spec.cli.printing import echo
from edge_spec.cli.process import held_bytes, import_all
from edge_spec.cli.wording import described
from edge_spec.controller.candidates import Candidate
from edge_spec.controller.drafter_choice import named, own_drafter
from edge_spec.controller.options import require_n_ctx
from edge_spec.engines.registry import AUTO
from edge_spec.errors import BudgetExceeded, SettingsError, UnsupportedModel, VocabularyMismatch
from edge_spec.extras import how_to_install
from edge_spec.library.description import drafters_for
from edge_spec.library.finding import Pull, find
from edge_spec.library.hub import Hub
from edge_spec.library.names import is_plain
from edge_spec.library.previews import named_as_asked, preview
from edge_spec.library.pulling import check_name, pull, to_fetch
from edge_spec.library.shapes import files_of
from edge_spec.library.stores import all_targets
from edge_spec.library.wanted import Wanted, drafter_like, read_catalogue, wanted
from edge_spec.loading import plan, plan_files
from edge_spec.memory import format_size
from edge_spec.memory.budget import parse_memory
from edge_spec.models import Family, ModelFile, check_pair, inspect

__all__ = ["command"]

_SHOWN_WAIT_S = 2.0


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the catalogue that begin so, for the shell."""
    return [name for name in sorted(_catalogue()) if name.startswith(incomplete)]


@click.command("pull", cls=Verb)
@click.argument("name", required=False, shell_complete=_names)
@option("Models", "--as", "own_name", metavar="NAME", help="What to call it here. [default: catalogue or file name]")
@option("Models", "--draft", metavar="NAME", help="Fetch this as its drafter: any NAME that can be pulled.")
@option("Models", "--no-drafts", is_flag=True, help="Fetch the target alone, without the smaller models of its entry.")
@option("Models", "--dry-run", is_flag=True, help="Only say what it is and what it needs.")
@option("Models", "--yes", is_flag=True, help="Fetch it even if it does not fit the memory of this computer.")
@option("Output", "--json", "as_json", is_flag=True, help="Without NAME: print one JSON object per catalogue entry.")
@memory_option(help="Memory to plan for, such as 2GiB.")
@context_option("Tokens of context to plan for; N+ for at least N.")
@folder_options
def command(name: str | None, **values: Any) -> int:
    """Fetch a model and its drafter.

    NAME is one of the catalogue, which is listed without NAME; or a repository on the hub as org/repo, org/repo:Q4_0 or
    org/repo:FILE.gguf; or the address of a repository or of any .gguf file. First only headers are read, to say what
    the models need here and whether they fit together. An interrupted download resumes; what Hugging Face's tools,
    ollama or LM Studio have already is not fetched again.

    \b
    Examples:
      edge-spec pull
      edge-spec pull --memory 2GiB
      edge-spec pull qwen3-4b --memory 4GiB
      edge-spec pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_0 --draft bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_0
      edge-spec pull https://example.org/models/tiny-q4_0.gguf --dry-run
    """
    if values["own_name"] is not None and not is_plain(values["own_name"]):
        raise click.BadParameter(f"{values['own_name']!r} is not a plain name", param_hint="--as")
    if values["memory"] is not None:
        parse_memory(values["memory"])
    if values["ctx"] is not None:
        require_n_ctx(*values["ctx"])
    if name is None:
        return _list(values)
    # Measure before importing what only downloads need: the model will run without it.
    import_all()
    program_bytes = held_bytes()
    asked = _asked(name, values)
    if asked.note:
        echo(f"edge-spec: note: {asked.note}", err=True)
    moved = click.get_current_context().get_parameter_source("model_dir") == ParameterSource.COMMANDLINE
    folder, previews, bar = models_in(values["model_dir"]), Path(mkdtemp(prefix="edge-spec-")), Bar()

    def cancel() -> bool:
        # Partial downloads stay: the same command continues.
        bar.close()
        shutil.rmtree(previews, ignore_errors=True)
        return False

    def work() -> int:
        hub = Hub(endpoint=os.environ.get("HF_ENDPOINT") or None, environment=os.environ, pause=_pause)
        try:
            what = find(asked, hub, values["own_name"] or "")
            check_name(what, folder)
        except SettingsError as error:
            raise click.ClickException(f"{error.message}; {error.hint}") from None
        echo(f"{what.name}: {format_size(what.n_bytes)}")
        looked = preview(what, hub, previews)
        with named_as_asked(what, previews):
            fits = _look(what, looked, folder, values, program_bytes)
        missing = to_fetch(what, folder, os.environ)
        echo(f"  to fetch: {format_size(missing)}, into {folder / what.name}")
        if values["dry_run"]:
            return 0
        if not fits and not values["yes"]:
            limit = "that budget" if values["memory"] else "this computer"
            raise click.ClickException(
                f"{what.name} does not fit {limit} and is not fetched; "
                "--memory or --ctx may make it fit, --yes fetches it all the same"
            )
        pull(what, hub, folder, os.environ, bar)
        where = f" --model-dir {shlex.quote(values['model_dir'])}" if moved else ""
        echo(f"{what.name} is ready: edge-spec run {what.name}{where} -p 'Hello'")
        return 0

    try:
        return interruptible(work, cancel)
    finally:
        shutil.rmtree(previews, ignore_errors=True)


def _own_catalogue() -> Path:
    """Return the path of the user's own catalogue, which need not exist."""
    from platformdirs import user_config_path

    return user_config_path("edge-spec") / "catalogue.toml"


def _catalogue() -> dict[str, Wanted]:
    return read_catalogue(_own_catalogue())


def _list(values: dict[str, Any]) -> int:
    """Print the catalogue: the size and memory of each entry, and what fits here."""
    import_all()
    program_bytes = held_bytes()
    roles = ("target", "intermediate", "draft")
    rows = []
    for name, entry in sorted(_catalogue().items()):
        looked = _foreseen(entry, values, program_bytes)
        if values["as_json"]:
            repos = {role: entry.sources[role].repo if role in entry.sources else "" for role in roles}
            print_json({"name": name, **repos, "tried": entry.tried, "read": entry.read, **looked})
        rows.append((name if entry.tried else f"{name} *", *_in_words(looked)))
    if not values["as_json"]:
        where = values["memory"] or "this computer"
        print_records(("name", "parameters", "size", "memory", "fits"), rows, right=(1, 2, 3))
        echo(
            f"\nWhat fits {where}, with drafters, computed from the shapes of models.\n"
            "`edge-spec pull NAME --dry-run` looks at the files.\n"
            "* never run by edge-spec's makers."
        )
    return 0


def _foreseen(entry: Wanted, values: dict[str, Any], program_bytes: int) -> dict[str, Any]:
    """Return sizes and memory of an entry by the shapes of its models; None for unknown ones."""
    found: dict[str, Any] = dict.fromkeys(
        ("parameters", "bytes", "memory_bytes", "n_ctx", "speculation", "cache", "fits", "least_bytes")
    )
    files = files_of(entry)
    if files is None:
        return found
    found |= {"parameters": files["target"].n_params, "bytes": sum(file.weight_bytes for file in files.values())}
    asked = {"memory": values["memory"], **(dict([values["ctx"]]) if values["ctx"] is not None else {})}
    try:
        first, here, least_bytes = plan_files(files, held_bytes=program_bytes, **asked)
    except UnsupportedModel:
        return found
    fits = {**_way(here), "held_experts": here.settings.held_experts} if here is not None else None
    return found | _way(first) | {"fits": fits, "least_bytes": least_bytes}


def _way(found: Candidate) -> dict[str, Any]:
    """Return a way to run as JSON values."""
    kept = {"n_ctx": found.n_ctx, "speculation": found.mode.name, "cache": "/".join(found.kv)}
    return {"memory_bytes": found.needed_bytes, **kept}


def _in_words(found: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return parameters, size, memory and what fits, in words."""
    if found["bytes"] is None:
        return ("", "", "", "not known before it is looked at")
    sizes = (in_short(found["parameters"]), format_size(found["bytes"]))
    if found["memory_bytes"] is None:
        return (*sizes, "", f"with llama.cpp alone: {how_to_install('llama')}")
    fits = found["fits"]
    if fits is None:
        return (*sizes, format_size(found["memory_bytes"]), f"no, from {format_size(found['least_bytes'])} on")
    less = [f"speculation {fits['speculation']}"] if fits["speculation"] != found["speculation"] else []
    less += [f"a context of {fits['n_ctx']:,}"] if fits["n_ctx"] < found["n_ctx"] else []
    less += [f"{fits['held_experts']} experts of a layer in memory"] if fits["held_experts"] else []
    less += [f"a cache of {fits['cache']}"] if fits["cache"] != found["cache"] and not less else []
    if fits["memory_bytes"] < found["memory_bytes"]:
        less = less or ["prompts read in smaller pieces"]
    return (*sizes, format_size(found["memory_bytes"]), f"with {' and '.join(less)}" if less else "yes")


def _asked(name: str, values: dict[str, Any]) -> Wanted:
    """Return the models that the command line asks for."""
    if values["draft"] is not None and values["no_drafts"]:
        raise click.UsageError("--draft and --no-drafts contradict each other; give one of them")
    known, endpoint = _own_catalogue(), os.environ.get("HF_ENDPOINT", "")
    asked = wanted(name, known, endpoint=endpoint)
    if values["no_drafts"]:
        return replace(asked, sources={"target": asked.sources["target"]})
    if values["draft"] is not None:
        draft = wanted(values["draft"], known, endpoint=endpoint)
        return replace(asked, sources={**asked.sources, "draft": draft.sources["target"]})
    return asked


def _look(what: Pull, previews: dict[str, Path], folder: Path, values: dict[str, Any], program_bytes: int) -> bool:
    """Print the download and its needs here; return whether it fits.

    Args:
        program_bytes: what a program holds that will run it, before it reads headers.
    """
    before = held_bytes()
    files = {role: inspect(path) for role, path in previews.items()}
    for role, file in files.items():
        echo(f"  {role}: {file.path.name}, {file.architecture}, {file.quantization}")
        try:
            check_pair(files["target"], file)
        except VocabularyMismatch as error:
            raise click.ClickException(f"{error}; --no-drafts fetches the model alone") from None
    for line in _about_drafters(what, files, folder):
        echo(f"  {line}")
    asked = {"memory": values["memory"]}
    asked |= {"cache_dir": values["cache_dir"]} if values["cache_dir"] is not None else {}
    asked |= dict([values["ctx"]]) if values["ctx"] is not None else {}
    asked |= {role: path for role, path in previews.items() if role != "target"}
    try:
        found = plan(previews["target"], held_bytes=program_bytes + held_bytes() - before, **asked)
    except BudgetExceeded as error:
        echo(f"  here: it does not fit: {described(error)}")
        return False
    chosen = found.chosen
    echo(
        f"  here: {chosen.described}; needs {format_size(chosen.needed_bytes)} with {chosen.n_ctx:,} tokens, "
        f"the budget allows {format_size(found.budget_bytes)}"
    )
    if found.disk_bytes:
        echo(f"  on the disk besides, written when it is first loaded: {format_size(found.disk_bytes)}")
    return True


def _about_drafters(what: Pull, files: dict[str, ModelFile], folder: Path) -> Iterator[str]:
    """Yield sentences about a drafter that fits, or about where to find one."""
    if "draft" in files:
        yield "the drafter fits: both have the same tokens"
        return
    own, note = own_drafter(Family(target=files["target"].path), files["target"], AUTO)
    if own is not None or note:
        drafter = named(own, files["target"]) if own is not None else ""
        yield f"{drafter}, which was made for this model, drafts for it" if drafter else note
        return
    here = drafters_for(files["target"], all_targets(folder, os.environ))
    if here:
        yield f"{here[0].path} can draft for it: `edge-spec pair {what.name}` measures it"
        return
    known = drafter_like(what.files["target"][0].repo, _catalogue())
    if known is not None:
        yield f"a drafter that may fit: --draft {known}"
    else:
        yield "no drafter is known for it: --draft ORG/REPO fetches a small model of the same family with it"


def _pause(seconds: float) -> None:
    if seconds >= _SHOWN_WAIT_S:
        echo(f"edge-spec: the connection failed or the hub is busy: trying again in {seconds:.0f} s ...", err=True)
    time.sleep(seconds)
