"""edge-spec drafter: make a drafter for a model."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_spec.cli.folders import ModelName, cache_folder, folder_options, model_argument
from edge_spec.cli.help import Count, Verb, list_verbs, option
from edge_spec.cli.printing import echo
from edge_spec.cli.wording import in_options
from edge_spec.engines.registry import AUTO, engine_names
from edge_spec.training.drafter.settings import HEAD, KINDS, MakeSettings

if TYPE_CHECKING:
    from edge_spec.training.clock import Clock

__all__ = ["command"]

_TIME_IS_UP = 3
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


class _Duration(click.ParamType):  # type: ignore[type-arg]
    """A time such as ``90s``, ``30m`` or ``2h``, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r" *([0-9]+(?:\.[0-9]+)?) *(s|m|min|h|) *", str(value), re.ASCII)
        if found is None:
            self.fail(f"{str(value)[:32]!r} is not a time; write 90s, 30m or 2h", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


_ENGINE = click.Choice([AUTO, *sorted(engine_names())])


def _size(name: str, text: str, *, of: Any = None, metavar: str = "N") -> Callable[[Any], Any]:
    """Return the option of a field of ``MakeSettings``."""
    flag, default = f"--{name.replace('_', '-')}", getattr(MakeSettings, name)
    return option("Size", flag, type=of or Count(), default=default, metavar=metavar, help=text)


def _folder(texts: str) -> Path:
    """Return the folder of texts that was given."""
    if not Path(texts).is_dir():
        raise click.ClickException(f"--texts is {texts!r}, which is not a folder; give one with texts")
    return Path(texts)


@click.group("drafter", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Make a drafter for a model."""
    list_verbs(context)


@command.command("make", cls=Verb)
@model_argument()
@option("Files", "--texts", required=True, metavar="FOLDER", help="Texts to ask about: .txt, .md, .jsonl, .jsonl.xz.")
@option(
    "Files",
    "--out",
    required=True,
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Where to write the drafter; run again with the same folder to resume.",
)
@option(
    "Files",
    "--install/--no-install",
    default=None,
    help="Make it this model's drafter on this computer, or do not. [default: if it pays there]",
)
@option(
    "Size",
    "--kind",
    type=click.Choice(KINDS),
    default=MakeSettings.kind,
    help="A small model, or a head on MODEL's hidden states, which needs edge-spec's own kernels.",
)
@option(
    "Files",
    "--continue",
    "head",
    type=click.Path(),
    metavar="HEAD",
    help="Let a head that was made for MODEL learn on, with the vocabulary that it has.",
)
@_size("tokens", "Tokens that the model writes.")
@_size("read_answers", "Tokens of others' answers, in the texts, that it reads besides.", of=int)
@_size("passes", "How often its answers are read.", of=float, metavar="X")
@_size("vocabulary", "Tokens that the drafter knows.")
@_size("layers", "Layers of a small model.")
@_size("width", "Width of a small model, a multiple of 32.")
@_size("steps_ahead", "Draft steps that a head is trained on.")
@_size("answer_tokens", "Maximum tokens of an answer.")
@option(
    "Size",
    "--inherit/--no-inherit",
    default=MakeSettings.inherit,
    help="Begin a small model with MODEL's embedding, made narrower, or with random weights alone.",
)
@option("Running", "--time-limit", type=_Duration(), metavar="TIME", help="Save and stop after 90s, 30m, 2h, ...")
@option("Running", "--engine", type=_ENGINE, default=AUTO, help="What runs the model that answers.")
@option("Running", "--device", default="auto", metavar="NAME", help="Device to train on: cpu, cuda, ...")
@option(
    "Running",
    "--threads",
    type=Count(),
    shared=False,
    metavar="N",
    help="Threads of the training. [default: all cores]",
)
@option("Running", "--seed", type=int, default=MakeSettings.seed, metavar="N", help="Random seed.")
@folder_options
def make(
    model: str | None,
    texts: str,
    out: str,
    install: bool | None,
    head: str | None,
    time_limit: float | None,
    cache_dir: str | None,
    **values: Any,
) -> int:
    """Make a drafter for MODEL, or the default model, on this computer.

    The model answers prompts out of the texts, and a small model, or a head that reads its hidden states, learns to
    expect what it writes. Hours on two cores; the same command continues after an interruption. At the end acceptance
    and speed are measured, and if the drafter pays on this computer it is installed: wherever this model is loaded, it
    drafts.

    \b
    Example:
      edge-spec drafter make model.gguf --texts ~/texts --out ~/drafter --time-limit 8h
    """
    from importlib.util import find_spec

    from edge_spec.errors import UnsupportedModel
    from edge_spec.extras import not_installed
    from edge_spec.models import inspect, resolve
    from edge_spec.training.drafter.opened import engine_for

    engine, device, threads, _ = (values.pop(name) for name in ("engine", "device", "threads", "model_dir"))
    settings = MakeSettings(**values)
    if head is not None and settings.kind != HEAD:
        raise click.ClickException("--continue is for heads; add --kind head")
    target = inspect(resolve(model))
    if target.trimmed is not None:
        raise UnsupportedModel(f"{target.path.name} is a drafter itself", hint="give the model that it drafts for")
    folder = _folder(texts)
    on = engine_for(target, engine)
    if find_spec("torch") is None:
        raise not_installed("PyTorch", extra="training")

    from edge_spec.training.clock import Clock, TimeIsUp
    from edge_spec.training.drafter.card import table_of
    from edge_spec.training.drafter.make import DRAFTER, DrafterMaker
    from edge_spec.training.drafter.verdict import verdict_of
    from edge_spec.training.precision import device_of

    clock = Clock(time_limit)
    maker = DrafterMaker(
        target=target,
        texts=folder,
        out=Path(out),
        settings=settings,
        on=on,
        device=device_of(device, threads),
        clock=clock,
        cache_dir=cache_folder(cache_dir),
        say=lambda line: echo(f"edge-spec: {in_options(line)}", err=True),
        head=None if head is None else inspect(head),
    )
    try:
        with _stopped_by_interrupt(clock):
            results = maker.run()
    except TimeIsUp as note:
        echo(f"edge-spec: stopped: {note}; run the same command to continue", err=True)
        return _TIME_IS_UP
    echo(f"{table_of(results['measured'])}\n\n{verdict_of(results['measured'])}")
    if install or (install is None and results["pays"]):
        echo(f"Installed for this model in {maker.install()}")
        return 0
    echo(f"The drafter is {maker.out / DRAFTER}: use it with --draft.")
    if install is None:
        echo(
            "It is not installed; run the same command with --install to install it all the same.\n"
            f"To teach it more, remove prepared, training, {DRAFTER} and results.json from {maker.out} and run the "
            "command with a larger --tokens or --read-answers: what the model has answered is kept."
        )
    return 0


@command.command("pack", cls=Verb)
@model_argument()
@option("Files", "--texts", required=True, metavar="FOLDER", help="Texts to ask about: .txt, .md, .jsonl, .jsonl.xz.")
@option(
    "Files",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write the prompts.",
)
@option("Size", "--prompts", type=Count(), default=100_000, metavar="N", help="Maximum prompts.")
@option("Size", "--prompt-tokens", type=Count(), default=512, metavar="N", help="Maximum tokens of a prompt.")
@option("Size", "--characters", type=Count(), default=900, metavar="N", help="Maximum characters of a passage.")
@option("Running", "--seed", type=int, default=1, metavar="N", help="Random seed.")
@folder_options
def pack(
    model: str | None,
    texts: str,
    out: Path,
    prompts: int,
    prompt_tokens: int,
    characters: int,
    seed: int,
    cache_dir: str | None,
    **_: Any,
) -> int:
    """Write the prompts that teach a head on a GPU.

    For a machine that has PyTorch and a checkout but no installed edge-spec: there `python training/drafter` lets MODEL
    write answers to these prompts by the thousand, and teaches a head with them.

    \b
    Example:
      edge-spec drafter pack smollm2 --texts ~/texts --out prompts.npz
    """
    from edge_spec.generation.prompts import PromptBuilder
    from edge_spec.models import inspect, resolve
    from edge_spec.training.drafter.opened import engine_for
    from edge_spec.training.drafter.pack import pack_prompts
    from edge_spec.training.drafter.prompts import prompts_in

    target = inspect(resolve(model))
    asked = prompts_in(_folder(texts), seed=seed, most=prompts, characters=characters)
    with closing(engine_for(target, AUTO).opener(cache_dir=cache_folder(cache_dir))) as opener:
        builder = PromptBuilder(opener.tokenizer(target), target.chat_template, target.n_vocab)
        n = pack_prompts(out, builder, target, asked, longest=prompt_tokens)
    echo(f"{n:,} prompts are in {out}")
    return 0


@command.command("export", cls=Verb)
@click.argument("head", type=click.Path())
@option(
    "Files",
    "--llama-cpp",
    type=click.Path(dir_okay=False),
    metavar="OUT",
    help="Write an eagle3 GGUF for llama.cpp to this file.",
)
@option(
    "Files",
    "--safetensors",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Write it as EAGLE-3 heads are published, in floats, to this folder.",
)
@option("Files", "--target", type=ModelName(), metavar="MODEL", help="The head's model. [default: the default model]")
@folder_options
def export(head: str, llama_cpp: str | None, safetensors: str | None, target: str | None, **_: Any) -> int:
    """Write a head for other programs.

    HEAD is the drafter.gguf of `drafter make --kind head`. Both forms of it contain rows of the model itself, whose
    license applies to the file.

    \b
    Example:
      edge-spec drafter export drafter.gguf --llama-cpp eagle3.gguf --target smollm2
    """
    from edge_spec.models import inspect, resolve
    from edge_spec.training.drafter.llama_cpp import export_for_llama_cpp
    from edge_spec.training.drafter.published import export_published

    if llama_cpp is None and safetensors is None:
        raise click.UsageError("give --llama-cpp OUT or --safetensors FOLDER")
    of = inspect(resolve(target))
    if llama_cpp is not None:
        export_for_llama_cpp(inspect(head), of, Path(llama_cpp))
        models = shlex.join(["--model", str(of.path), "--model-draft", llama_cpp])
        echo(f"Use it in llama.cpp with {models} --spec-type draft-eagle3")
    if safetensors is not None:
        echo(f"It is {export_published(inspect(head), of, Path(safetensors))}")
    return 0


@contextmanager
def _stopped_by_interrupt(clock: Clock) -> Iterator[None]:
    """The first interruption stops where everything can be saved; a second one stops at once."""

    def stop(number: int, frame: object) -> None:
        echo("edge-spec: stopping; interrupt again to lose what is not saved", err=True)
        clock.stop()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
