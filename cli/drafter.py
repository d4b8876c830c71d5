"""edge-spec drafter: make a drafter for a model."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_spec.cli.folders import ModelName, cache_folder, folder_options
from edge_spec.cli.help import Count, Verb, option
from edge_spec.cli.wording import in_options
from edge_spec.engines.registry import AUTO, engine_names
from edge_spec.training.drafter.settings import MakeSettings

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


@click.group("drafter")
def command() -> None:
    """Make a drafter for a model."""


@command.command("make", cls=Verb)
@click.argument("model", type=ModelName())
@option("Files", "--texts", required=True, metavar="FOLDER", help="Texts to ask about: .txt, .md, .jsonl, .jsonl.xz.")
@option("Files", "--out", required=True, metavar="FOLDER", help="For what is made; an interrupted run continues here.")
@option("Files", "--no-install", is_flag=True, help="Do not make it this model's drafter on this computer.")
@option(
    "Size", "--tokens", type=Count(), default=MakeSettings.tokens, metavar="N", help="Tokens that the model writes."
)
@option(
    "Size", "--passes", type=float, default=MakeSettings.passes, metavar="X", help="How often its answers are read."
)
@option(
    "Size",
    "--vocabulary",
    type=Count(),
    default=MakeSettings.vocabulary,
    metavar="N",
    help="Tokens that the drafter knows.",
)
@option("Size", "--layers", type=Count(), default=MakeSettings.layers, metavar="N", help="Layers of the drafter.")
@option(
    "Size",
    "--width",
    type=Count(),
    default=MakeSettings.width,
    metavar="N",
    help="Width of the drafter, a multiple of 32.",
)
@option(
    "Size",
    "--answer-tokens",
    type=Count(),
    default=MakeSettings.answer_tokens,
    metavar="N",
    help="Maximum tokens of an answer.",
)
@option("Running", "--time-limit", type=_Duration(), metavar="TIME", help="Save and stop after 90s, 30m, 2h, ...")
@option(
    "Running",
    "--engine",
    type=click.Choice([AUTO, *sorted(engine_names())]),
    default=AUTO,
    help="What runs the model that answers.",
)
@option("Running", "--device", default="auto", metavar="NAME", help="Device to train on: cpu, cuda, ...")
@option("Running", "--threads", type=Count(), metavar="N", help="Threads of the training. [default: all cores]")
@option("Running", "--seed", type=int, default=MakeSettings.seed, metavar="N", help="Random seed of everything.")
@folder_options
def make(
    model: str, texts: str, out: str, no_install: bool, time_limit: float | None, cache_dir: str | None, **values: Any
) -> int:
    """Make a drafter for MODEL at home.

    The model answers prompts out of the texts, and a small model learns to expect what it writes. Hours on two cores;
    the same command continues after an interruption. At the end the drafter is installed: wherever this model is
    loaded, it drafts.

    \b
    Example:
      edge-spec drafter make model.gguf --texts ~/texts --out ~/drafter --time-limit 8h
    """
    from importlib.util import find_spec

    from edge_spec.errors import UnsupportedModel
    from edge_spec.models import inspect, resolve

    if find_spec("torch") is None:
        raise click.ClickException('PyTorch is not installed; run: pip install "edge-spec[training]"')
    target = inspect(resolve(model))
    if target.trimmed is not None:
        raise UnsupportedModel(f"{target.path.name} is a drafter itself", hint="give the model that it drafts for")

    from edge_spec.training.clock import Clock, TimeIsUp
    from edge_spec.training.drafter.card import table_of
    from edge_spec.training.drafter.make import DrafterMaker
    from edge_spec.training.drafter.opened import engine_for
    from edge_spec.training.precision import device_of

    engine, device, threads, _ = (values.pop(name) for name in ("engine", "device", "threads", "model_dir"))
    clock = Clock(time_limit)
    maker = DrafterMaker(
        target=target,
        texts=Path(texts),
        out=Path(out),
        settings=MakeSettings(**values),
        on=engine_for(target, engine),
        device=device_of(device, threads),
        clock=clock,
        cache_dir=cache_folder(cache_dir),
        say=lambda line: click.echo(f"edge-spec: {in_options(line)}", err=True),
    )
    try:
        with _stopped_by_interrupt(clock):
            results = maker.run()
    except TimeIsUp as note:
        click.echo(f"edge-spec: stopped: {note}; run the same command to continue", err=True)
        return _TIME_IS_UP
    click.echo(table_of(results["measured"]))
    if no_install:
        click.echo(f"The drafter is {Path(out) / 'drafter.gguf'}: use it with --draft.")
    else:
        click.echo(f"Installed for this model in {maker.install()}")
    return 0


@contextmanager
def _stopped_by_interrupt(clock: Clock) -> Iterator[None]:
    """The first interruption stops where everything can be saved; a second one stops at once."""

    def stop(number: int, frame: object) -> None:
        click.echo("edge-spec: stopping; interrupt again to lose what is not saved", err=True)
        clock.stop()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
