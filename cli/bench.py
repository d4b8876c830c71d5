"""edge-spec bench: time every way to speculate against plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from edge_spec.cli.check import modes_of, modes_option, prompts_or_own
from edge_spec.cli.help import Count, Verb, default_of, option
from edge_spec.cli.interrupt import interruptible
from edge_spec.cli.options import load_arguments, max_tokens_option, model_options
from edge_spec.cli.output import print_json, print_table, progress_console
from edge_spec.cli.printing import echo, one_line
from edge_spec.cli.prompts import Prompt
from edge_spec.cli.reply_options import reply_arguments, sampler_options
from edge_spec.cli.wording import in_options, sampling_in_words
from edge_spec.evaluation.bench import Speed, Verdict, bench, verdict_of
from edge_spec.library.stores import name_of
from edge_spec.loading import load
from edge_spec.memory import describe
from edge_spec.model import TextModel
from edge_spec.sampling import SAMPLER_OPTIONS, SamplerSettings

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["command", "show_speeds"]

_MAX_TOKENS = default_of(bench, "max_tokens")
_ROUNDS = default_of(bench, "rounds")
_SEED = default_of(bench, "seed")
_LIMIT = 8
_FEW_DRAFTS = 50


@click.command("bench", cls=Verb)
@option("Runs", "--prompts", metavar="FILE", help="One prompt per line, text or JSON. [default: the package's own]")
@option("Runs", "--limit", type=Count(), default=_LIMIT, metavar="N", help="How many of the prompts to use.")
@modes_option("[default: auto and all that the models allow]")
@option(
    "Runs", "--rounds", type=Count(), default=_ROUNDS, metavar="N", help="How often every mode writes every prompt."
)
@max_tokens_option(_MAX_TOKENS, "Maximum tokens of a reply.")
@option("Replies", "--seed", type=int, default=_SEED, metavar="N", help="Random seed; prompt i uses N + i.")
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per mode, and the verdict.")
@model_options
@sampler_options()
def command(**values: Any) -> int:
    """Time every way to speculate against plain decoding.

    The modes write the same prompts in turn, in an order that changes from prompt to prompt and round to round. What
    is shown are medians of tokens per second, and of the ratios to plain decoding run by run, with the 95 % interval
    for other prompts like these and other runs of them, and the ratio of all tokens and seconds together; the last
    lines say which mode is the best here. With --json every line is one mode, and the last one the verdict.
    """
    prompts = prompts_or_own(values["prompts"])[: values["limit"]]
    arguments, asked = load_arguments(values), reply_arguments(values)
    modes = modes_of(values["modes"], arguments)
    if values["modes"] is None:
        modes.insert(0, "auto")
    modes = ["off", *(mode for mode in modes if mode != "off")]
    return interruptible(lambda: _time(values, prompts, modes, arguments, asked), lambda: False)


def _time(
    values: Mapping[str, Any],
    prompts: Sequence[Prompt],
    modes: Sequence[str],
    arguments: Mapping[str, Any],
    asked: Mapping[str, Any],
) -> int:
    """Time modes and print their speed; return the exit code.

    Args:
        values: the options.
        modes: in this order; the first is ``off``.
        arguments: of ``load``, besides the mode.
        asked: options of the replies.
    """
    from rich.progress import Progress

    about: dict[str, Any] = {"model": name_of(values["model"]), "processor": describe().processor}

    def opened(mode: str, console: Console) -> TextModel:
        model = load(**arguments, speculation=mode)
        sampling = _sampling_of(model, asked)
        about.update(engine=model.profile.engine, profile=model.profile.name, sampling=sampling)
        for note in model.notes:
            line = f"edge-spec: note: {mode}: {one_line(in_options(note))}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return model

    is_hidden = values["as_json"] or not sys.stderr.isatty()
    with Progress(console=progress_console(), transient=True, disable=is_hidden) as progress:
        task = progress.add_task("writing", total=len(modes) * (1 + values["rounds"] * len(prompts)))
        speeds = list(
            bench(
                lambda mode: opened(mode, progress.console),
                [prompt.text for prompt in prompts],
                modes=modes,
                categories=[prompt.category for prompt in prompts],
                rounds=values["rounds"],
                on_run=lambda: progress.advance(task),
                **asked,
            )
        )
    if values["as_json"]:
        for speed in speeds:
            print_json(vars(speed))
        print_json({"verdict": {**about, **verdict_of(speeds).as_json()}})
    else:
        show_speeds(speeds, about, n_replies=len(prompts) * values["rounds"])
    return 0


def _sampling_of(model: TextModel, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the temperature, and other sampler settings of a model's replies that differ from the defaults."""
    settings, defaults = model.sampler_settings(**given), SamplerSettings()
    found = {name: getattr(settings, name) for name in SAMPLER_OPTIONS if name not in ("seed", "attempt")}
    return {name: x for name, x in found.items() if name == "temperature" or x != getattr(defaults, name)}


def show_speeds(speeds: Sequence[Speed], about: Mapping[str, Any], *, n_replies: int) -> None:
    """Print the speed of each mode, and the best mode.

    Args:
        about: the model, engine, processor and sampler.
        n_replies: in every mode.
    """
    echo(f"sampler: {sampling_in_words(about['sampling'])}; else edge-spec's defaults\n")
    _print(speeds)
    _print_verdict(verdict_of(speeds), about, n_replies=n_replies, n_modes=len(speeds))


def _share(speed: Speed) -> str:
    """Return the share of drafted tokens that were accepted, or their number if there were few."""
    if speed.drafted >= _FEW_DRAFTS:
        return f"{speed.acceptance:.0%}"
    return f"{round(speed.acceptance * speed.drafted)}/{speed.drafted}" if speed.drafted else "-"


def _print(speeds: Sequence[Speed]) -> None:
    columns = (
        "tokens/s",
        "speed-up",
        "interval",
        "total",
        "tokens/round",
        "drafted",
        "accepted",
        "drafting",
        "verifying",
    )
    rows = [
        (
            speed.mode,
            f"{speed.tokens_per_s:.1f}",
            f"{speed.speed_up:.2f}",
            "{:.2f}-{:.2f}".format(*speed.interval),
            f"{speed.total_speed_up:.2f}",
            f"{speed.mean_length:.2f}",
            f"{speed.drafted:,}",
            _share(speed),
            f"{speed.draft_share:.0%}",
            f"{speed.verify_share:.0%}",
        )
        for speed in speeds
    ]
    print_table(("mode", *columns), rows, right=range(1, 1 + len(columns)))
    categories = speeds[0].by_category
    if len(categories) > 1:
        echo()
        by_category = [
            (category, *(f"{speed.by_category[category]:.2f}" for speed in speeds[1:])) for category in categories
        ]
        print_table(("speed-up in", *(speed.mode for speed in speeds[1:])), by_category, right=range(1, len(speeds)))


_DRAFTERS = {"draft": "the drafter", "intermediate": "the intermediate model", "ngram": "n-grams"}


def _print_verdict(verdict: Verdict, about: Mapping[str, Any], *, n_replies: int, n_modes: int) -> None:
    echo()
    best, auto = verdict.best, verdict.auto
    if n_modes == 1:
        echo("nothing to compare with plain decoding; name more modes in --modes, or leave it out")
    elif best.mode == "off":
        # A mixture can be faster than each of its parts.
        name = "auto" if auto is not None and auto.interval[0] > 1 else "off"
        echo(f"best here: {name}; no single mode is significantly faster than plain decoding")
    else:
        echo(f"best here: {_said(best)}")
        _print_limit(best)
    if auto is not None:
        echo(_said(auto))
        _print_limit(auto)
    if n_modes == 1:
        return
    same = "every token is the same" if verdict.same_text else "TOKENS DIFFER, see edge-spec check"
    processor = f", {about['processor']}" if about["processor"] else ""
    echo(f"{about['model']} on {about['engine']}{processor}; {n_replies} replies in every mode: {same}")


def _said(speed: Speed) -> str:
    """Return a sentence about a mode, its drafts and its speed."""
    low, high = speed.interval
    sure = f"95 %: {low:.2f} to {high:.2f}" if high > low else "one run, which proves little"
    drafts = ""
    if speed.drafter:
        what = f"{speed.shape} of {_DRAFTERS.get(speed.drafter, speed.drafter)}, {speed.rows:g} rows"
        drafts = f" ({what}, in {speed.draft_rounds:.1%} of the rounds)"
    return f"{speed.mode}{drafts}, {speed.speed_up:.2f} times as fast as plain decoding ({sure})"


def _print_limit(speed: Speed) -> None:
    """Print a mode's distance from the possible speed-up of its drafts, and where the time goes."""
    if speed.drafter:
        echo(
            f"  {speed.mean_length:.2f} tokens/round: {speed.share_of_limit:.0%} of what that would bring if drafts "
            "and their rows took no time"
        )
        echo(
            f"  time: {speed.draft_share:.0%} drafting, {speed.verify_share:.0%} verifying, "
            f"{speed.rest_share:.0%} sampling and bookkeeping"
        )
