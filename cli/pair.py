"""edge-spec pair: find the best drafter for a model on this computer."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from edge_spec.cli.check import prompts_or_own
from edge_spec.cli.folders import ModelName, folder_options, model_argument, models_in
from edge_spec.cli.help import Count, Verb, default_of, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import context_option, max_tokens_option, memory_option, running_option, threads_option
from edge_spec.cli.output import print_json, print_notes, print_table
from edge_spec.cli.printing import echo
from edge_spec.cli.wording import in_options
from edge_spec.controller.options import StrPath
from edge_spec.engines.registry import AUTO, engine_names, why_none
from edge_spec.evaluation.bench import Speed
from edge_spec.evaluation.pairing import TOLD, best_of, pairings
from edge_spec.library.description import candidates_for, drafters_for
from edge_spec.loading import load
from edge_spec.memory import describe
from edge_spec.model import TextModel
from edge_spec.models import ModelFile, check_pair, inspect, resolve, resolve_family
from edge_spec.models.made_drafters import choose_drafter, chosen_drafter, forget_drafter
from edge_spec.models.pairs import drafter_file

__all__ = ["command"]

_LIMIT = 4
_ROUNDS, _MAX_TOKENS = default_of(pairings, "rounds"), default_of(pairings, "max_tokens")
_LOADED = ("memory", "n_threads", "cache_dir")
_ENGINE = click.Choice([AUTO, *sorted(engine_names())])


@click.command("pair", cls=Verb)
@model_argument("[TARGET]")
@click.argument("drafts", type=ModelName(), nargs=-1)
@option("Runs", "--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@option("Runs", "--limit", type=Count(), default=_LIMIT, metavar="N", help="How many of the prompts to use.")
@option("Runs", "--rounds", type=Count(), default=_ROUNDS, metavar="N", help="How often every prompt is written.")
@max_tokens_option(_MAX_TOKENS, "Maximum tokens of a reply.")
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per drafter, and the choice.")
@option("Output", "--no-remember", is_flag=True, help="Only measure; leave this model's drafter as it is.")
@option(
    "Output", "--forget", is_flag=True, help="Measure nothing; forget the chosen drafters, with --engine that engine's."
)
@running_option("--engine", type=_ENGINE, default=AUTO, help="What runs the models; the choice is kept per engine.")
@context_option("Maximum tokens of prompt and reply together; a smaller N needs less memory.")
@memory_option()
@threads_option()
@folder_options
def command(model: StrPath | None, drafts: tuple[StrPath, ...], **values: Any) -> int:
    """Find the best drafter for TARGET on this computer, and use it from now on.

    Every drafter writes the same prompts, against plain decoding. Without DRAFTS all models that fit are tried: those
    in the family and the folder of TARGET, in the model folder, and in those of other programs. The best one is
    remembered, and drafts wherever TARGET is loaded with the same --engine and without --draft. A drafter that was
    chosen before and is not faster any more is forgotten. TARGET is loaded once at a time, with one drafter; if it is
    not given, it is the default model.

    \b
    Examples:
      edge-spec pair llama-3.2-3b-q4_0.gguf
      edge-spec pair qwen2.5-7b-q4_0.gguf qwen2.5-0.5b-q4_0.gguf qwen2.5-1.5b-q4_0.gguf
    """
    file = inspect(resolve(model))
    if values["forget"]:
        typed = click.get_current_context().get_parameter_source("engine") == ParameterSource.COMMANDLINE
        was_there = forget_drafter(file, values["engine"] if typed else None)
        echo(f"the choice for {file.path.name} is forgotten" if was_there else "there was no choice to forget")
        return 0
    if (refusal := why_none(file)) is not None:
        raise refusal
    near = candidates_for(resolve_family(model), models_in(values["model_dir"]), os.environ)
    candidates = _named(file, drafts) if drafts else drafters_for(file, near)
    if not candidates:
        raise click.ClickException(
            f"no model on this computer can draft for {file.path.name}; name one, or make one with "
            "'edge-spec drafter make'"
        )
    prompts = [prompt.text for prompt in prompts_or_own(values["prompts"])[: values["limit"]]]
    arguments = {name: values[name] for name in _LOADED if values[name] is not None}
    arguments |= dict([values["ctx"]]) if values["ctx"] is not None else {}

    def opened(draft: ModelFile, mode: str) -> TextModel:
        with_it = load(model, draft=draft.path, speculation=mode, engine=values["engine"], on_wait=_wait, **arguments)
        print_notes(with_it.notes, about=f"{draft.path.name}, {mode}: ")
        return with_it

    def work() -> int:
        found = []
        options = {"rounds": values["rounds"], "max_tokens": values["max_tokens"]}
        remember = not values["no_remember"]
        for draft, pairing in pairings(candidates, opened, prompts, remember=remember, **options):
            found.append((draft, pairing))
            if values["as_json"]:
                print_json({"draft": str(draft.path), **_told(pairing)})
            else:
                interval = "{:.2f} to {:.2f}".format(*pairing.interval)
                echo(f"edge-spec: {draft.path.name}: {interval} times as fast", err=True)
        best = best_of(found)
        changed = _remember(file, found, best, values["engine"]) if remember else ""
        if values["as_json"]:
            path = str(best[0].path) if best is not None else None
            print_json({"best": path, "remembered": changed == "chosen", "forgotten": changed == "forgotten"})
        else:
            _print(file, found, best, changed)
        return 0

    return interruptible(work, lambda: False)


def _named(target: ModelFile, drafts: tuple[StrPath, ...]) -> list[ModelFile]:
    """Return the named drafters; one that does not fit is an error."""
    files = [drafter_file(resolve(name), target) for name in drafts]
    for file in files:
        check_pair(target, file)
    return files


def _remember(
    target: ModelFile, found: list[tuple[ModelFile, Speed]], best: tuple[ModelFile, Speed] | None, engine: str
) -> str:
    """Store the best one, or forget one that is slower now; return ``chosen``, ``forgotten`` or an empty text."""
    if best is not None:
        choose_drafter(target, best[0], {**_told(best[1]), "processor": describe().processor}, engine)
        return "chosen"
    before = chosen_drafter(target, engine)
    if before is not None and any(draft.path.resolve() == before.path for draft, _ in found):
        forget_drafter(target, engine)
        return "forgotten"
    return ""


def _told(found: Speed) -> dict[str, Any]:
    return {name: getattr(found, name) for name in TOLD}


def _print(
    target: ModelFile,
    found: list[tuple[ModelFile, Speed]],
    best: tuple[ModelFile, Speed] | None,
    changed: str,
) -> None:
    titles = ("drafter", "accepted", "tokens/round", "tokens/s", "speed-up", "interval")
    rows = [
        (
            draft.path.name,
            f"{pairing.acceptance:.0%}",
            f"{pairing.mean_length:.2f}",
            f"{pairing.tokens_per_s:.1f}",
            f"{pairing.speed_up:.2f}",
            "{:.2f}-{:.2f}".format(*pairing.interval),
        )
        for draft, pairing in found
    ]
    print_table(titles, rows, right=range(1, len(titles)))
    if not all(pairing.same_text for _, pairing in found):
        echo("\nTOKENS DIFFER, see edge-spec check")
    if best is not None and changed:
        said = f"best here: {best[0].path.name}, which drafts for {target.path.name} from now on (--forget undoes)"
    elif best is not None:
        said = f"best here: --draft {best[0].path}"
    elif changed:
        said = "no drafter is significantly faster than plain decoding; the one that was chosen before is forgotten"
    else:
        said = "no drafter is significantly faster than plain decoding; nothing is changed"
    echo(f"\n{said}")


def _wait(sentence: str) -> None:
    echo(f"edge-spec: {in_options(sentence)} ...", err=True)
